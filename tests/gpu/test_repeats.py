"""Rings under load: grids of many blocks give the same bits at every launch.

What overtakes a read shows in some runs only: of 750 launches of the first row 36 had wrong elements when slots were
released without a proxy fence.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emmy.frontend.code import load_code
from emmy.frontend.reference import interpret
from emmy.ir.plan import KernelLaunch
from emmy.ir.schedule import Pin
from emmy.ir.target import TARGETS, Target
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module, runs_on
from emmy.runtime.numerics import compare
from emmy.saturation import Options, Saturation, saturate_program

pytestmark = pytest.mark.gpu
LAUNCHES = 200
LINEAR = "x=torch.randn({m}, {k}, dtype={t})\nw=torch.randn({n}, {k}, dtype={t})\nF.linear(x, w)"
GATED = (
    "x, y=torch.randn(2, {m}, {k}, dtype={t})\nw=torch.randn({n}, {k}, dtype={t})\nF.linear(F.silu(x) * y, w)"
)  # fmt: skip
# name -> (code, type, rows, columns, elements of the sum, pinned knobs, capabilities that have them)
ROWS: dict[str, tuple[str, str, int, int, int, str, range]] = {
    "two slots by TMA": (
        LINEAR, "torch.bfloat16", 1536, 2560, 4096,
        "WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x2/k4,STAGE=d2/smem-tma,RASTER=", range(90, 1000),
    ),
    "four slots by TMA": (
        LINEAR, "torch.float16", 2048, 2560, 4096,
        "WORK=w2x2,TILE=mma_m16n8k16_f16_f32/f2x2/k2,STAGE=d4/smem-tma", range(90, 1000),
    ),
    "large fragments, slots by TMA": (
        LINEAR, "torch.bfloat16", 1536, 2560, 4096,
        "WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f4x8/k4,STAGE=d2/smem-tma", range(90, 1000),
    ),
    "left factors computed by warpgroups": (
        GATED, "torch.bfloat16", 1536, 2560, 4096,
        "WORK=w4x1+p4,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k8,STAGE=d3/smem-tma/reg", range(90, 91),
    ),
    "slots by asynchronous copies": (
        LINEAR, "torch.bfloat16", 1536, 2560, 4096,
        "WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x2/k4,STAGE=d2/smem-async", range(80, 1000),
    ),
}  # fmt: skip


def pinned(name: str, card: Target, folder: Path) -> Saturation:
    """One launch by the row; its operands in the order of the code."""
    code, dtype, m, n, k, pin, _ = ROWS[name]
    options = Options(
        card, pins=(Pin.parse(pin),), place="fuse", check=False, golden="", database=folder / "none.duckdb"
    )  # fmt: skip
    s = saturate_program(load_code(code.format(t=dtype, m=m, n=n, k=k)), options, cache=CubinCache(folder))
    (launch,) = s.plan.launches
    assert isinstance(launch, KernelLaunch)
    assert all(setting in launch.row.split(",") for setting in pin.split(","))
    return s


@pytest.mark.parametrize("name", ROWS)
def test_many_blocks_give_the_same_bits_at_every_launch(name: str, tmp_path: Path) -> None:
    capability = torch.cuda.get_device_capability()
    card = TARGETS[next(a for a in reversed(TARGETS) if runs_on(a, capability))]
    if card.capability not in ROWS[name][-1]:
        pytest.skip(f"{card.arch} has no such rows")
    s = pinned(name, card, tmp_path)
    generator = torch.Generator("cuda").manual_seed(1)
    inputs = [
        torch.randn(t.shape, device="cuda", generator=generator).to(t.dtype) for t in s.program.example_tensors()
    ]  # fmt: skip
    module = Module(s.plan, s.program.weights, graph=False, poison=False, cache=CubinCache(tmp_path))
    first = module(*inputs)[0].clone()
    (wanted,) = interpret(s.program.graph, s.program.weights, inputs, torch.float64)
    comparison = compare(first, wanted, terms=ROWS[name][4], stores=2)
    assert comparison.ok, str(comparison)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(LAUNCHES):
        wrong += (module(*inputs)[0] != first).any()
    module.close()
    assert int(wrong) == 0, f"{int(wrong)} of {LAUNCHES} launches differ"
