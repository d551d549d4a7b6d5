"""Experts, from capture to a plan: nothing of them runs in PyTorch, and values are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from emmy.frontend import interpret
from emmy.frontend.capture import capture
from emmy.inspect.interpret_plan import interpret_plan
from emmy.inspect.simulated import simulate_program
from emmy.ir.target import target
from emmy.saturation import Options, Saturation, saturate_program

HIDDEN, INNER, EXPERTS = 32, 48, 4


def planned(module: Any, args: tuple[torch.Tensor, ...], folder: Path) -> Saturation:
    options = Options(target("sm_90a"), golden="", database=folder / "none.duckdb", check=False, fallback=False)
    return saturate_program(capture(module, args), options)


def right(s: Saturation, args: tuple[torch.Tensor, ...]) -> None:
    """The plan's values are as near to float64 as PyTorch's, and its kernels have no finding."""
    graph, weights = s.program.graph, s.program.weights
    (wanted,) = interpret(graph, weights, args, torch.float64)
    (plain,) = interpret(graph, weights, args)
    (found,) = interpret_plan(s, args, rounding=True)
    scale = float(wanted.abs().max())
    errors = [float((v.double() - wanted).abs().max()) / scale for v in (found, plain)]
    assert errors[0] <= errors[1] + 2.0**-8
    for d in simulate_program(s, args):
        assert d.ok, d


def routed(tokens: int, top: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    index = torch.rand(tokens, EXPERTS, generator=generator).topk(top)[1]
    return torch.randn(tokens, HIDDEN, generator=generator).to(dtype), index, torch.rand(tokens, top).to(dtype)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_experts_of_transformers_by_gathered_weights(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.moe import batched_mm_experts_forward

    if kind == "mixtral":
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts as Experts

        config = transformers.MixtralConfig(
            hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS, num_experts_per_tok=2
        )
    else:
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts as Experts

        config = transformers.Qwen3MoeConfig(
            hidden_size=HIDDEN, moe_intermediate_size=INNER, num_experts=EXPERTS, num_experts_per_tok=2
        )
    config._experts_implementation = "batched_mm"
    experts = Experts(config).bfloat16().eval()
    assert batched_mm_experts_forward is not None
    for p in experts.parameters():
        torch.nn.init.normal_(p, std=0.2)
    args = routed(5, 2, torch.bfloat16)
    right(planned(experts, args, tmp_path), args)


class Grouped(torch.nn.Module):
    """Gated experts over sorted rows, as transformers writes them; `ends` says where each one's rows end."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        gate, down = (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
        self.gate = torch.nn.Parameter((0.2 * torch.randn(gate, generator=generator)).to(dtype))
        self.down = torch.nn.Parameter((0.2 * torch.randn(down, generator=generator)).to(dtype))

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        gate, up = F.grouped_mm(x, self.gate.transpose(-2, -1), offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down.transpose(-2, -1), offs=ends)


@pytest.mark.parametrize("counts", [(2, 0, 1, 4), (20, 0, 33, 11)], ids=str)
def test_experts_over_sorted_rows(counts: tuple[int, ...], tmp_path: Path) -> None:
    """Few rows an expert, and blocks of them."""
    dtype, rows = torch.bfloat16, sum(counts)
    args = torch.randn(rows, HIDDEN).to(dtype), torch.tensor(counts).cumsum(0).to(torch.int32)
    right(planned(Grouped(dtype), args, tmp_path), args)
