"""Exports RMSNorm followed by the three linear layers of attention's queries, keys and values, in bf16.

python examples/export_rms_linear.py rms_linear.pt2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn


class RMSNormLinear(nn.Module):
    """x [tokens, width] -> queries [tokens, width], keys and values [tokens, width // 2]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // 2, bias=False)
        self.value = nn.Linear(width, width // 2, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.norm(x)
        return self.query(h), self.key(h), self.value(h)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the .pt2 file to write")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = RMSNormLinear(options.width).to(torch.bfloat16).eval()
    x = torch.randn(options.tokens, options.width, dtype=torch.bfloat16)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(torch.export.export(model, (x,)), options.out)
    print(f"wrote {options.out}: RMSNorm + q/k/v linear, {options.tokens} tokens of {options.width}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
