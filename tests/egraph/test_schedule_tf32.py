"""f32 factors on tensor cores: only where that is allowed, and what it then means for cost, evidence and checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.codegen.simulate import simulate
from emmy.egraph.schedule import schedule_rows
from emmy.errors import UsageError
from emmy.extract.prior import predict_many, roofline
from emmy.extract.work import analyse
from emmy.ir.loop import Body
from emmy.ir.schedule import Row
from emmy.ir.target import TARGETS, Target, allowing, target
from emmy.options import Options
from emmy.runtime.numerics import tolerance
from emmy.runtime.nvrtc import Compiled, Job, compile_many
from emmy.saturation import regime_of
from tests import bodies as B

RULESETS = Path(__file__).parents[2] / "rulesets"
CARD = target("sm_90a")
TF32 = allowing(CARD, "tf32")
SQUARE = B.linear(512, 512, 512, "f32")


def rows(body: Body, card: Target, held: str = "") -> set[str]:
    found = schedule_rows([body], card, {}, RULESETS, frozenset({held} - {""}))
    return {f"{r.family} {r.row.text}" for r in found.rows[body.hash]}


@pytest.mark.parametrize("arch", TARGETS)
def test_f32_factors_are_rounded_only_where_that_is_allowed(arch: str) -> None:
    without, allowed = rows(SQUARE, target(arch)), rows(SQUARE, allowing(target(arch), "tf32"))
    assert not any("tf32" in r for r in without)
    families = {"tf32", "wgmma"} if arch == "sm_90a" else {"tf32"}
    assert without < allowed and {r.split()[0] for r in allowed - without} == families
    assert all("_tf32_f32/" in r for r in allowed - without)
    assert all(Row.parse(r.split()[1]).text == r.split()[1] for r in allowed)


def test_factors_of_16_bits_stay_as_they_are() -> None:
    body = B.linear(512, 512, 512)
    assert rows(body, TF32) == rows(body, CARD)


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ("tf32-shape", "tf32 "),
        ("tf32-async", "smem-async"),
        ("tf32-ring", "STAGE=d2/smem,"),
        ("tf32-raster", "tf32 "),
        ("wgmma-tf32", "wgmma "),
    ],
)
def test_holding_a_rule_takes_exactly_its_rows(rule: str, gone: str) -> None:
    everything, left = rows(SQUARE, TF32), rows(SQUARE, TF32, rule)
    taken = {r for r in everything if r.startswith(("tf32 ", "wgmma ")) and gone in r}
    assert taken and left == everything - taken


def test_the_option_reaches_target_regime_and_tolerance() -> None:
    options = Options(CARD, allow="tf32")
    assert (options.target, regime_of(options.target).numerics) == (TF32, "tf32")
    assert regime_of(CARD).numerics == ""
    assert replace(options, allow="").target == Options(TF32).target == CARD
    assert tolerance("f32", 512, 0, "tf32") > 100 * tolerance("f32", 512) > 0
    with pytest.raises(UsageError, match="use atomics, tf32"):
        Options(CARD, allow="bf16")


def test_no_row_is_expected_below_the_floor_and_tensor_cores_are_expected_to_win() -> None:
    body = B.linear(2048, 2048, 2048, "f32")
    found = schedule_rows([body], TF32, {}, RULESETS).rows[body.hash]
    seconds = predict_many(analyse(body, {}), [r.config for r in found], TF32)
    assert seconds.min() >= roofline(analyse(body, {}), TF32)
    assert found[int(seconds.argmin())].family == "wgmma"
    others = [r for r in found if r.family != "wgmma"]
    seconds = predict_many(analyse(body, {}), [r.config for r in others], TF32)
    assert others[int(seconds.argmin())].family == "tf32"


def test_products_are_those_of_rounded_factors() -> None:
    body = B.linear(33, 40, 72, "f32")
    row = Row.parse("WORK=w1x2,TILE=mma_m16n8k8_tf32_f32/f1x1/k4,REDUCE=,STAGE=d2/smem,RASTER=")
    kernel = lower(body, "tf32", row, TF32, "k_test")
    rng = np.random.default_rng(1)
    shapes = [tuple(int(e.text) for e in s.shape) for s in body.slots]
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    bits = [((g.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64) for g in given]
    left = next(k for k, s in enumerate(shapes) if s[0] == 33)
    expected = bits[left] @ bits[1 - left].T
    ins, (out,) = [p.name for p in kernel.params if p.role == "in"], [p.name for p in kernel.params if p.role == "out"]
    done = simulate(kernel, CARD, dict(zip(ins, given, strict=True)), {}, {out: 33 * 40})
    assert not done.findings
    found = done.outputs[out].view(np.float32).reshape(33, 40)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", TARGETS)
def test_rows_compile_for_the_target(arch: str) -> None:
    card = allowing(target(arch), "tf32")
    found = [r for r in schedule_rows([SQUARE], card, {}, RULESETS).rows[SQUARE.hash] if r.family == "tf32"]
    kernels = [lower(SQUARE, r.family, r.row, card, "k_test") for r in found[:: len(found) // 4]]
    for binary in compile_many([Job(source(k), k.name, arch) for k in kernels]):
        assert isinstance(binary, Compiled) and not binary.spill_bytes and "warning" not in binary.log
