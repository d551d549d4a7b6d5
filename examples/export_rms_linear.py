"""Export a small model file: RMSNorm that feeds the query, key and value projection of a 1024-wide decoder.

    python examples/export_rms_linear.py out/rms_linear.pt2

The model takes bf16[1, 512, 1024] and gives bf16[1, 512, 4096]: 16 query, 8 key and 8 value heads of 128.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

HIDDEN = 1024
HEAD = 128
QUERY_HEADS, KEY_HEADS, VALUE_HEADS = 16, 8, 8


class NormedProjection(nn.Module):
    """RMSNorm, then one linear layer for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-6)
        self.qkv = nn.Linear(HIDDEN, HEAD * (QUERY_HEADS + KEY_HEADS + VALUE_HEADS), bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.qkv(self.norm(hidden_states))
        return projected


def main(path: str) -> None:
    torch.manual_seed(0)
    model = NormedProjection().to(torch.bfloat16).eval()
    example = (torch.randn(1, 512, HIDDEN, dtype=torch.bfloat16),)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(torch.export.export(model, example, strict=False), path)
    print(f"wrote {path}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} PATH.pt2")
    main(sys.argv[1])
