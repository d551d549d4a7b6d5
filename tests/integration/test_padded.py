"""Products of operands whose lines are misaligned: copies with aligned lines are chosen, and give the right values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.frontend.code import load_code
from emmy.inspect.explain import explain
from emmy.ir.schedule import Pin
from emmy.ir.target import TARGETS
from emmy.saturation import Options, Saturation, saturate_program
from tests.integration.machine import Compiled, Machine, launches_where

PROGRAMS = {
    "linear": "x, w=torch.randn(130, 129).bfloat16(), torch.randn(131, 129).bfloat16()\nF.linear(x, w)",
    "f32": "x, w=torch.randn(130, 129), torch.randn(131, 129)\nF.linear(x, w)",
    "k by n": "x, y=torch.randn(97, 129).half(), torch.randn(129, 131).half()\nx @ y",
    "m by k": "x, y=torch.randn(129, 97).half(), torch.randn(129, 131).half()\nx.T @ y",
    "batch": "x, y=torch.randn(5, 65, 77).bfloat16(), torch.randn(5, 77, 99).bfloat16()\ntorch.bmm(x, y)",
    "weight, one row": "l=nn.Linear(1025, 1031, bias=False).bfloat16()\nx=torch.randn(1, 1025).bfloat16()\nl(x)",
    "layers": (
        "m=nn.Sequential(nn.Linear(129, 131), nn.GELU(), nn.Linear(131, 99)).bfloat16()\n"
        "x=torch.randn(97, 129).bfloat16()\nm(x)"
    ),
    "normalized": "x, w=torch.randn(97, 129).half(), torch.randn(131, 129).half()\nF.linear(F.rms_norm(x, (129,)), w)",
}


def padded(model: ModelGraph, launch: Launch) -> bool:
    """What makes or reads copies; and what makes something that no reader of copies makes."""
    copies = model.anchors.padded
    made = {t for l in model.closed if copies & set(l.operands) for t in l.results}
    return bool(copies & {*launch.results, *launch.operands}) or not made & set(launch.results)


@pytest.fixture(scope="module", params=PROGRAMS)
def compiled(machine: Machine, request: pytest.FixtureRequest) -> Compiled:
    with launches_where(padded):
        made = machine.compile(load_code(PROGRAMS[request.param]))
    copies = made.saturation.model.anchors.padded
    assert any(copies & set(c.launch.operands) for c in made.saturation.launches)
    return made


def test_results_are_within_tolerance_of_float64(compiled: Compiled, machine: Machine) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        examples = compiled.saturation.program.example_tensors()
        inputs = [torch.randn(t.shape, generator=generator).to(machine.device, t.dtype) for t in examples]
        compiled.assert_right(compiled.run(inputs), compiled.exact(inputs))


# ---- which plan is chosen, without measurements

LARGE = "x, w=torch.randn(2, 4095, 4095).bfloat16()\nF.linear(x, w)"


def choice(code: str, folder: Path, arch: str = "sm_90a", pin: str = "") -> Saturation:
    pins = (Pin.parse(pin),) if pin else ()
    options = Options(TARGETS[arch], pins, golden="", database=folder / "none.duckdb", check=False)
    return saturate_program(load_code(code), options)


def copies(s: Saturation) -> list[str]:
    return [c.name for c in s.launches if set(c.launch.results) & s.model.anchors.padded]


@pytest.mark.parametrize(("arch", "family"), [("sm_90a", "wgmma"), ("sm_80", "mma"), ("sm_120a", "mma")])
def test_large_odd_product_reads_copies(arch: str, family: str, tmp_path: Path) -> None:
    s = choice(LARGE, tmp_path, arch)
    *made, product = s.launches
    assert copies(s) == [c.name for c in made] == ["k_linear_pad"] * 2
    assert product.priced.scheduled.family == family
    assert product.priced.scheduled.row.stage.where in ("smem-tma", "smem-async")


def test_weights_are_copied_when_the_plan_is_built(tmp_path: Path) -> None:
    s = choice("l=nn.Linear(2049, 1333).bfloat16()\nx=torch.randn(777, 2049).bfloat16()\nl(x)", tmp_path)
    assert sorted(c.at_build for c in s.launches if c.name in copies(s)) == [False, True]


def test_what_makes_the_operand_writes_the_copy(tmp_path: Path) -> None:
    layers = "nn.Linear(1001, 2001), nn.GELU(), nn.Linear(2001, 1001)"
    s = choice(f"m=nn.Sequential({layers}).bfloat16()\nx=torch.randn(1000, 1001).bfloat16()\nm(x)", tmp_path)
    running = [c for c in s.launches if not c.at_build]
    assert [c.name.rstrip("_0123456789") for c in running] == ["k_linear_pad", "k_linear_gelu_pad", "k_linear"]
    assert all(c.priced.scheduled.family == "wgmma" for c in running[1:])


def test_small_odd_product_reads_its_operands(tmp_path: Path) -> None:
    s = choice("x, w=torch.randn(33, 65).bfloat16(), torch.randn(77, 65).bfloat16()\nF.linear(x, w)", tmp_path)
    assert not copies(s) and not s.model.anchors.padded


def test_pins_reach_both_plans(tmp_path: Path) -> None:
    program = "x, w=torch.randn(2, 1023, 1023).bfloat16()\nF.linear(x, w)"
    boxed = choice(program, tmp_path, pin="TILE=wgmma_m64n128k16_bf16_f32/f1x1/k4")
    plain = choice(program, tmp_path, pin="TILE=mma_m16n8k16_bf16_f32/f4x4/k4,STAGE=d2/smem,RASTER=gm8")
    assert copies(boxed) and boxed.launches[-1].priced.scheduled.row.tile.instruction.startswith("wgmma_m64n128")
    assert plain.launches[-1].priced.scheduled.row.stage.where == "smem"


def test_explain_shows_the_plan_without_copies(tmp_path: Path) -> None:
    s = choice(LARGE, tmp_path)
    product = explain(s)[-1]
    (instead,) = product.instead
    assert instead.us > product.us and len(instead.removed) == 3 and len(instead.added) == 1
