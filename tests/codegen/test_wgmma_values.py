"""The wgmma family in the simulator: every kind of row gives the evaluator's values without a finding."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from emmy.codegen.lower import lower
from emmy.codegen.simulate import simulate
from emmy.codegen.simulate.numbers import nearest_tf32
from emmy.egraph.schedule import schedule_rows
from emmy.ir.evaluate import evaluate
from emmy.ir.kernel import (
    Assign,
    Barrier,
    Builtin,
    Call,
    ClusterBarrier,
    Declare,
    Elem,
    Kernel,
    Lit,
    S,
    Store,
    Wgmma,
    walk,
    with_bodies,
)
from emmy.ir.loop import Body, size
from emmy.ir.target import allowing, target
from emmy.ir.verify.kernel import verify
from emmy.resources import rulesets
from emmy.runtime.numerics import tolerance
from tests import bodies
from tests.codegen import check

# a card of few SMs: small products have more tiles than it has, so that blocks stay
SMALL = replace(target("sm_90a"), sms=2)
# enough SMs that the blocks of a cluster share sums
IDLE = replace(target("sm_90a"), sms=132)
TF32, IDLE_TF32 = allowing(SMALL, "tf32"), allowing(IDLE, "tf32")

LAYOUTS = {
    "k_k": {}, "k_mn": {"trans_b": False}, "bias": {"bias": True},
}  # fmt: skip


def wgmma_rows(body: Body, card) -> list:
    return [s for s in schedule_rows([body], card, {}, rulesets()).rows[body.hash] if s.family == "wgmma"]


def sampled(body: Body, card, part: str, count: int, seed: int) -> list:
    rows = [s for s in wgmma_rows(body, card) if part in s.row.text]
    assert rows, f"no row has {part}"
    return random.Random(seed).sample(rows, min(count, len(rows)))


def assert_right(body: Body, card, scheduled, seed: int = 0, most: float = 1.0) -> None:
    kernel = lower(body, scheduled.family, scheduled.row, card, "k")
    given = check.operands(body, {}, seed)
    expected = evaluate(body, given, {})
    names = [p.name for p in kernel.params if p.role in ("in", "out")]
    results = {n: int(np.prod(e.shape)) for n, e in zip(names[len(given) :], expected, strict=True)}
    done = simulate(kernel, card, dict(zip(names, given, strict=False)), {}, results)
    assert not done.findings, scheduled.row.text + "\n" + "\n".join(map(str, done.findings))
    found = [done.outputs[n].reshape(e.shape) for n, e in zip(results, expected, strict=True)]
    assert check.distance(body, found, expected) < most, scheduled.row.text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", ["w8x1+p4,", "w12x1", "+pp", "/c2", "/out", "persist", "w1x"])
def test_kinds_of_rows_are_right_beyond_whole_tiles(part: str, layout: str) -> None:
    body = bodies.linear(264, 200, 136, **LAYOUTS[layout])
    for scheduled in sampled(body, SMALL, part, 2, seed=hash_of(part + layout)):
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("part", ["w4x1+p4,", "w8x1+p4,", "+pp", "/c2", "persist"])
@pytest.mark.parametrize("columns", [201, 202, 77])
def test_results_leave_line_by_line_wherever_lines_begin(columns: int, part: str) -> None:
    body = bodies.linear(264, columns, 136, bias=columns == 201)
    found = [s for s in wgmma_rows(body, SMALL) if s.row.stage.out and part in s.row.text]
    for scheduled in random.Random(hash_of(part)).sample(found, 2):
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize(
    "body",
    [
        bodies.linear(130, 1, 72), bodies.linear(130, 17, 72), bodies.linear(70, 65, 72, "f16", batch=3, act=True),
        bodies.rms_linear(72, 41, 72), bodies.swiglu(136, 75, 72),
    ],
    ids=["one column", "less than a tile", "batches that begin at odd elements", "row scalars", "gate"],
)  # fmt: skip
def test_lines_of_every_form_are_right(body: Body) -> None:
    found = [s for s in wgmma_rows(body, SMALL) if s.row.stage.out]
    for scheduled in random.Random(3).sample(found, 3):
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("shape", [(1, 64, 64), (7, 136, 72), (64, 8, 128), (129, 128, 8), (128, 256, 64)])
def test_edges_are_right(shape: tuple[int, int, int]) -> None:
    body = bodies.linear(*shape)
    for scheduled in sampled(body, SMALL, "WORK", 4, seed=sum(shape)):
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_both_types_are_right(dtype: str) -> None:
    body = bodies.linear(128, 128, 192, dtype)
    for scheduled in sampled(body, SMALL, "WORK", 3, seed=1):
        assert_right(body, SMALL, scheduled)


def test_sums_that_a_cluster_shares_are_right() -> None:
    body = bodies.linear(17, 136, 1032)
    for scheduled in sampled(body, IDLE, "REDUCE=g", 4, seed=2):
        assert_right(body, IDLE, scheduled)


def hash_of(text: str) -> int:
    return sum(map(ord, text))


@pytest.mark.parametrize("part", ["w8x1+p4,", "/f2x1", "persist", "/c2", "w1x"])
def test_row_scalars_are_gathered_from_passing_tiles_or_computed_before(part: str) -> None:
    body = bodies.scaled_linear(280, 200, 264)
    for scheduled in sampled(body, SMALL, part, 2, seed=hash_of(part)):
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_gathered_extremes_of_rows_of_one_sign_are_right(kind: str) -> None:
    """A partial fold begins with its neutral element, which is not zero here."""
    body = bodies.scaled_linear(128, 64, 128, by=kind)
    sign = -1.0 if kind == "max" else 1.0
    for scheduled in sampled(body, SMALL, "w8x1+p4,", 2, seed=3):
        kernel = lower(body, scheduled.family, scheduled.row, SMALL, "k")
        given = [np.abs(a.astype(np.float32)).astype(a.dtype) for a in check.operands(body, {})]
        given[0] = (sign * (given[0].astype(np.float32) + 1.0)).astype(given[0].dtype)
        names = [p.name for p in kernel.params]
        done = simulate(kernel, SMALL, dict(zip(names, given, strict=False)), {}, {names[-1]: 128 * 64})
        expected = evaluate(body, given, {})
        assert not done.findings
        assert check.distance(body, [done.outputs[names[-1]].reshape(128, 64)], expected) < 1.0


@pytest.mark.parametrize("part", ["w8x1+p4,", "/c2", "w1x"])
def test_row_scalars_of_a_factor_that_is_stored_transposed_are_right(part: str) -> None:
    """Its tiles' rows run along m: no row of a tile belongs to one scalar, so none is gathered."""
    body = bodies.scaled_linear(264, 136, 136, trans_a=True)
    for scheduled in sampled(body, SMALL, part, 2, seed=hash_of(part)):
        assert_right(body, SMALL, scheduled)


COMPUTED = ("silu", "gate", "norm", "row", "cast", "f8e4m3", "i8", "both")


@pytest.mark.parametrize("kind", COMPUTED)
@pytest.mark.parametrize("part", ["w8x1+p4,", "/f2x1", "/reg/out"])
def test_factors_that_consumers_compute_are_right(part: str, kind: str) -> None:
    body = bodies.prologue(136, 72, 208, kind)
    for scheduled in sampled(body, SMALL, part, 1, seed=hash_of(part + kind)):
        assert "/reg" in scheduled.row.text
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("part", ["w12x1", "+pp", "/c2", "persist"])
@pytest.mark.parametrize("trans_a", [False, True])
def test_computed_factors_in_every_kind_of_row_are_right(part: str, trans_a: bool) -> None:
    body = bodies.prologue(264, 136, 200, "gate", "f16", trans_a=trans_a, trans_b=not trans_a)
    for scheduled in sampled(body, SMALL, part, 1, seed=hash_of(part)):
        assert_right(body, SMALL, scheduled)


def test_computed_factors_of_batches_and_of_shared_sums_are_right() -> None:
    body = bodies.prologue(70, 72, 208, "norm", batch=2)
    for scheduled in sampled(body, SMALL, "WORK", 2, seed=4):
        assert_right(body, SMALL, scheduled)
    body = bodies.prologue(17, 136, 1040, "silu")
    for scheduled in sampled(body, IDLE, "REDUCE=g", 2, seed=5):
        assert_right(body, IDLE, scheduled)


def gathering(body: Body, card, scheduled) -> bool:
    """Whether the kernel's consumers add up row scalars."""
    kernel = lower(body, scheduled.family, scheduled.row, card, "k")
    return any(isinstance(s, Declare) and s.name == "partial" for s in walk(kernel.body))


@pytest.mark.parametrize("part", ["w8x1+p4,", "/f2x1", "persist", "/c2"])
def test_row_scalars_are_gathered_where_left_factors_are_computed(part: str) -> None:
    """A normalization's weight is applied on load, its scale in the epilogue."""
    body = bodies.rms_linear(280, 200, 456)
    for scheduled in sampled(body, SMALL, part, 2, seed=hash_of(part)):
        assert gathering(body, SMALL, scheduled)
        assert_right(body, SMALL, scheduled)


# the last of four blocks has fewer stages than the others (1040: 17 of 64 elements), the last stage a part of one
SHARED = {
    "plain": bodies.scaled_linear(72, 136, 1040), "computed": bodies.rms_linear(72, 136, 1040),
    "f16": bodies.rms_linear(130, 72, 1032, "f16"), "greatest": bodies.scaled_linear(17, 136, 1032, by="max"),
}  # fmt: skip


@pytest.mark.parametrize("part", ["REDUCE=g2", "REDUCE=g4"])
@pytest.mark.parametrize("kind", SHARED)
def test_row_scalars_are_told_by_the_blocks_of_a_cluster(kind: str, part: str) -> None:
    body = SHARED[kind]
    for scheduled in sampled(body, IDLE, f"f1x1/k4,{part}", 2, seed=hash_of(kind + part)):
        assert gathering(body, IDLE, scheduled) == ("WORK=w1x" not in scheduled.row.text)
        assert_right(body, IDLE, scheduled)


@pytest.mark.parametrize("part", ["REDUCE=g8", "WORK=w1x"])
def test_row_scalars_are_computed_before_where_nobody_sees_or_tells_whole_rows(part: str) -> None:
    """Blocks that share a sum through a workspace, and an instruction whose rows are those of the other factor."""
    body = bodies.rms_linear(40, 72, 2552) if part == "REDUCE=g8" else bodies.scaled_linear(17, 136, 1040)
    for scheduled in sampled(body, IDLE, part, 2, seed=hash_of(part)):
        assert not gathering(body, IDLE, scheduled)
        assert_right(body, IDLE, scheduled)


def test_row_scalars_that_a_factor_needs_are_not_gathered() -> None:
    """A scale that is applied on load is known before the first product."""
    body = bodies.rms_linear(72, 136, 1040, factored=False)
    rows = [s for s in sampled(body, IDLE, "REDUCE=g", 200, seed=3) if "WORK=w1x" not in s.row.text]
    assert rows and not any(gathering(body, IDLE, s) for s in rows[::8])
    assert_right(body, IDLE, rows[0])


def met_apart(kernel: Kernel) -> Kernel:
    """The kernel whose blocks do not wait for one another between what they tell and what they read."""
    _, between, _ = (k for k, s in enumerate(kernel.body) if isinstance(s, ClusterBarrier))
    return replace(kernel, body=(*kernel.body[:between], Barrier(), *kernel.body[between + 1 :]))


def told_at_home(kernel: Kernel) -> Kernel:
    """The kernel whose blocks keep what they add up to themselves."""

    def change(s: S) -> S:
        if isinstance(s, Store) and s.place.rank is not None:
            return replace(s, place=replace(s.place, rank=Builtin("cluster_rank")))
        return with_bodies(s, lambda inner: tuple(change(x) for x in inner))

    return replace(kernel, body=tuple(change(s) for s in kernel.body))


@pytest.mark.parametrize("kind", ["plain", "computed"])
@pytest.mark.parametrize("change", [met_apart, told_at_home])
def test_scalars_that_a_block_is_not_told_are_found(change, kind: str) -> None:
    body = SHARED[kind]
    scheduled = next(s for s in sampled(body, IDLE, "REDUCE=g", 9, seed=1) if gathering(body, IDLE, s))
    kernel = change(lower(body, scheduled.family, scheduled.row, IDLE, "k"))
    names = [p.name for p in kernel.params]
    given = dict(zip(names, check.operands(body, {}), strict=False))
    done = [simulate(kernel, IDLE, given, {}, {names[-1]: 72 * 136}, seed=seed) for seed in range(3)]
    kinds = {f.kind for d in done for f in d.findings if f.buffer.startswith("m_scalar")}
    assert kinds & {"uninitialized read", "shared race"}


@pytest.mark.parametrize("trans_a", [False, True])
def test_raw_tiles_are_read_by_all_lanes_before_they_are_refilled(trans_a: bool) -> None:
    body = bodies.prologue(136, 64, 456, "silu", trans_a=trans_a, trans_b=False)
    for scheduled in sampled(body, SMALL, "d3/smem-tma", 2, seed=9):
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("k", [0, 72, 456])
@pytest.mark.parametrize("part", ["w8x1+p4,", "+pp", "w1x"])
def test_sums_whose_length_an_input_gives_may_have_no_terms(part: str, k: int) -> None:
    body = bodies.linear(264, 264, size("s"), trans_a=True, trans_b=False, bias=True)
    found = schedule_rows([body], SMALL, {"s": 512}, rulesets()).rows[body.hash]
    rows = [s for s in found if s.family == "wgmma" and part in s.row.text]
    scheduled = random.Random(k).choice(rows)
    kernel = lower(body, scheduled.family, scheduled.row, SMALL, "k", limits={"s": 512})
    given = check.operands(body, {"s": k})
    names = [p.name for p in kernel.params]
    (expected,) = evaluate(body, given, {"s": k})
    out = names[len(given)]
    done = simulate(kernel, SMALL, dict(zip(names, given, strict=False)), {"s": k}, {out: expected.size})
    assert not done.findings, scheduled.row.text
    assert check.distance(body, [done.outputs[out].reshape(expected.shape)], [expected]) < 1.0


@pytest.mark.parametrize("stored", ["i8", "f8e4m3", "f8e5m2"])
def test_weights_that_are_scaled_on_load_are_right(stored: str) -> None:
    """The product of a stored weight and its scale is rounded to the factors' type, as in every tensor-core family."""
    body = bodies.dequant(40, 136, 272, stored=stored)
    for scheduled in sampled(body, SMALL, "w1x", 2, seed=6) + sampled(body, IDLE, "REDUCE=g", 1, seed=7):
        assert_right(body, IDLE, scheduled, most=1.5)


def test_computed_factors_round_as_those_of_the_other_tensor_core_family() -> None:
    """f32 sums of the same rounded factors differ by the order of terms only, which integers do not show."""
    body = bodies.dequant(24, 136, 272)
    found = schedule_rows([body], SMALL, {}, rulesets()).rows[body.hash]
    given = [np.rint(a.astype(np.float32)).astype(a.dtype) for a in check.operands(body, {})]
    given[2] = (given[2].astype(np.float32) + 1.0 / 128).astype(given[2].dtype)  # products need more than bf16 has
    results = []
    for family in ("mma", "wgmma"):
        scheduled = next(s for s in found if s.family == family)
        kernel = lower(body, scheduled.family, scheduled.row, SMALL, "k")
        names = [p.name for p in kernel.params]
        done = simulate(kernel, SMALL, dict(zip(names, given, strict=False)), {}, {names[-1]: 24 * 136})
        assert not done.findings
        results.append(done.outputs[names[-1]])
    assert np.array_equal(*results)


@pytest.mark.parametrize("part", ["w8x1+p4,", "/f2x1", "w1x", "/out"])
@pytest.mark.parametrize("scaled", ["", "tensor", "row"])
def test_products_of_8_bit_floats_are_right(part: str, scaled: str) -> None:
    body = bodies.f8_linear(136, 72, 272, scaled=scaled, bias=scaled == "row")
    for scheduled in sampled(body, SMALL, part, 1, seed=hash_of(part + scaled)):
        assert "k32_f8e4m3" in scheduled.row.text
        assert_right(body, SMALL, scheduled)


@pytest.mark.parametrize("part", ["+pp", "/c2", "persist"])
def test_8_bit_floats_in_every_kind_of_row_are_right(part: str) -> None:
    body = bodies.f8_linear(264, 200, 400, "f8e5m2", out="f16")
    for scheduled in sampled(body, SMALL, part, 1, seed=hash_of(part)):
        assert_right(body, SMALL, scheduled)


def test_8_bit_floats_whose_sums_a_cluster_shares_are_right() -> None:
    body = bodies.f8_linear(17, 136, 1040, batch=2)
    for scheduled in sampled(body, IDLE, "REDUCE=g", 2, seed=2):
        assert_right(body, IDLE, scheduled)


def unpromoted(kernel: Kernel) -> Kernel:
    """The kernel with one sum in the instruction's registers from the first product to the last."""

    def change(s: S) -> S:
        if isinstance(s, Wgmma):
            return replace(s, accumulate=True)
        if isinstance(s, Declare) and s.name.startswith("acc"):
            return replace(s, init=Lit(0.0, "f32"))
        if isinstance(s, Assign) and isinstance(s.target, Elem) and s.target.array.startswith("sum"):
            assert isinstance(s.value, Call)
            return replace(s, value=s.value.args[1])
        return with_bodies(s, body)

    def body(statements: tuple[S, ...]) -> tuple[S, ...]:
        return tuple(change(s) for s in statements)

    return replace(kernel, body=body(kernel.body))


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_long_sums_of_8_bit_products_are_wrong_without_promotion(dtype: str) -> None:
    """Terms of one sign: what the instruction cuts off adds up, unless a tile's sum goes to f32 registers."""
    body = bodies.f8_linear(8, 16, 16384, dtype, out="f16")
    (scheduled,) = sampled(body, SMALL, "w4x1", 1, seed=8)
    kernel = lower(body, scheduled.family, scheduled.row, SMALL, "k")
    given = [(np.abs(a.astype(np.float32)) / 2).astype(a.dtype) for a in check.operands(body, {})]
    names = [p.name for p in kernel.params]
    expected = evaluate(body, given, {})
    errors = []
    for k in (kernel, unpromoted(kernel)):
        verify(k, SMALL)
        done = simulate(k, SMALL, dict(zip(names, given, strict=False)), {}, {names[-1]: 8 * 16})
        assert not done.findings
        errors.append(check.distance(body, [done.outputs[names[-1]].reshape(8, 16)], expected))
    right, wrong = errors
    assert right < 1.0 < 2.0 < wrong, errors


def cut(x: np.ndarray) -> np.ndarray:
    """f32 without the 13 bits that tf32 does not have."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def near(x: np.ndarray) -> np.ndarray:
    """f32 rounded to tf32, ties to even: TMA does so as it brings them."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 2.0**11), exponent - 11).astype(np.float32)


def simulated(body: Body, card, scheduled, given) -> np.ndarray:
    """The flat result of a body that has one, in f64."""
    kernel = lower(body, scheduled.family, scheduled.row, card, "k")
    verify(kernel, card)
    names = [p.name for p in kernel.params]
    (expected,) = evaluate(body, given, {})
    done = simulate(kernel, card, dict(zip(names, given, strict=False)), {}, {names[len(given)]: expected.size})
    assert not done.findings, scheduled.row.text + "\n" + "\n".join(map(str, done.findings))
    return done.outputs[names[len(given)]].view(np.float32).astype(np.float64)


def assert_within_tf32(body: Body, card, scheduled, terms: int, seed: int = 0) -> None:
    """Held to the evaluator's float64 values of the operands as they are."""
    given = check.operands(body, {}, seed)
    (expected,) = evaluate(body, given, {})
    found = simulated(body, card, scheduled, given).reshape(expected.shape)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 2.0**-20 < error < tolerance("f32", terms, 0, "tf32"), scheduled.row.text


@pytest.mark.parametrize("shape", [(264, 200, 136), (1, 64, 68), (7, 136, 72), (129, 130, 4), (64, 8, 132)])
def test_products_in_tf32_are_those_of_rounded_factors(shape: tuple[int, ...]) -> None:
    body = bodies.linear(*shape, "f32")
    given = check.operands(body, {}, 0)
    (exact,) = evaluate(body, [near(x) for x in given], {})
    for scheduled in sampled(body, TF32, "WORK", 5, seed=sum(shape)):
        result = simulated(body, TF32, scheduled, given).reshape(exact.shape)
        assert np.abs(result - exact).max() < 2e-6 * np.abs(exact).max(), scheduled.row.text


@pytest.mark.parametrize("part", ["w8x1+p4,", "w12x1", "+pp", "/c2", "/f2x1", "persist", "w1x", "/k8"])
def test_kinds_of_rows_in_tf32_are_right_beyond_whole_tiles(part: str) -> None:
    body = bodies.linear(264, 200, 136, "f32", bias=True)
    for scheduled in sampled(body, TF32, part, 2, seed=hash_of(part)):
        assert_within_tf32(body, TF32, scheduled, 136)


@pytest.mark.parametrize("kind", ["silu", "gate", "norm", "row", "i8", "f8e4m3", "both"])
@pytest.mark.parametrize("part", ["w8x1+p4,", "/f2x1", "/k8"])
def test_left_factors_that_consumers_compute_in_tf32_are_right(part: str, kind: str) -> None:
    body = bodies.prologue(136, 72, 208, kind, "f32")
    for scheduled in sampled(body, TF32, part, 1, seed=hash_of(part + kind)):
        assert "/reg" in scheduled.row.text
        assert_within_tf32(body, TF32, scheduled, 208)


def test_factors_in_tf32_that_are_computed_are_rounded() -> None:
    """A scale that is a power of two leaves the rounding to the product, not to the factor."""
    body = bodies.prologue(72, 40, 136, "row", "f32")
    given = check.operands(body, {}, 3)
    scales = next(k for k, x in enumerate(given) if x.ndim == 1)
    given[scales] = np.exp2(np.rint(given[scales])).astype(np.float32)
    left = next(k for k, x in enumerate(given) if x.ndim == 2 and len(x) == 72)
    known = [near(x) if x.ndim == 2 else x for x in given]
    known[left] = cut((given[left].view(np.uint32) + np.uint32(0x1000)).view(np.float32))
    (exact,) = evaluate(body, known, {})
    for scheduled in sampled(body, TF32, "/reg", 3, seed=11):
        found = simulated(body, TF32, scheduled, given).reshape(exact.shape)
        assert np.abs(found - exact).max() < 2e-6 * np.abs(exact).max(), scheduled.row.text


def test_products_in_tf32_of_batches_two_sums_and_shared_sums_are_right() -> None:
    for body, card, part, terms in (
        (bodies.linear(40, 72, 136, "f32", batch=2), TF32, "WORK", 136),
        (bodies.swiglu(72, 40, 136, "f32"), TF32, "WORK", 136),
        (bodies.linear(17, 136, 1032, "f32"), IDLE_TF32, "REDUCE=g", 1032),
        (bodies.prologue(17, 136, 1040, "silu", "f32"), IDLE_TF32, "REDUCE=g", 1040),
    ):
        for scheduled in sampled(body, card, part, 2, seed=terms):
            assert_within_tf32(body, card, scheduled, terms)


@pytest.mark.parametrize("part", ["w8x1+p4,", "/f2x1", "persist", "/c2"])
def test_row_scalars_in_tf32_are_gathered_from_what_is_stored(part: str) -> None:
    for body in (bodies.scaled_linear(280, 200, 264, "f32"), bodies.rms_linear(280, 200, 264, "f32")):
        for scheduled in sampled(body, TF32, part, 1, seed=hash_of(part)):
            assert_within_tf32(body, TF32, scheduled, 264)


def test_row_scalars_in_tf32_are_told_by_the_blocks_of_a_cluster() -> None:
    for body in (bodies.scaled_linear(72, 136, 1032, "f32"), bodies.rms_linear(72, 136, 1032, "f32")):
        rows = [s for s in sampled(body, IDLE_TF32, "REDUCE=g4", 99, seed=5) if "WORK=w1x" not in s.row.text]
        assert gathering(body, IDLE_TF32, rows[0])
        assert_within_tf32(body, IDLE_TF32, rows[0], 1032)


def test_tiles_from_which_row_scalars_are_gathered_are_not_rounded() -> None:
    """Their scalars are those of what is stored; the instruction cuts off what products do not take."""
    body = bodies.scaled_linear(136, 72, 264, "f32", by="max")
    x, w = given = check.operands(body, {}, 5)
    for part, left in (("w8x1+p4,", cut), ("w1x", near)):
        exact = left(x).astype(np.float64) @ near(w).T.astype(np.float64) + x.max(axis=1, keepdims=True)
        for scheduled in sampled(body, TF32, part, 2, seed=12):
            found = simulated(body, TF32, scheduled, given).reshape(exact.shape)
            assert np.abs(found - exact).max() < 2e-6 * np.abs(exact).max(), scheduled.row.text


@pytest.mark.parametrize(
    ("given", "rounded"),
    [
        (0x3F800FFF, 0x3F800000),  # below the middle of two
        (0x3F801000, 0x3F800000),  # ties, to even
        (0x3F803000, 0x3F804000),
        (0x3F801001, 0x3F802000),
        (0x3FFFFFFF, 0x40000000),  # into the exponent
        (0xBF803000, 0xBF804000),
        (0x7F7FFFFF, 0x7F800000),
        (0x7F800000, 0x7F800000),
        (0x7FC00001, 0x7FC00001),
        (0x00000FFF, 0x00000000),
    ],
)
def test_tma_rounds_to_the_nearest_tf32(given: int, rounded: int) -> None:
    assert nearest_tf32(np.array([given], np.uint32).view(np.float32)).view(np.uint32)[0] == rounded


@pytest.mark.parametrize("k", [0, 72, 456])
def test_products_in_tf32_of_rows_and_columns_by_name_are_right(k: int) -> None:
    body = bodies.linear(size("s"), 72, 136, "f32", bias=True)
    found = schedule_rows([body], TF32, {"s": 264}, rulesets()).rows[body.hash]
    rows = [s for s in found if s.family == "wgmma"]
    scheduled = random.Random(k).choice(rows)
    kernel = lower(body, scheduled.family, scheduled.row, TF32, "k", limits={"s": 512})
    given = check.operands(body, {"s": k})
    names = [p.name for p in kernel.params]
    (expected,) = evaluate(body, given, {"s": k})
    out = names[len(given)]
    done = simulate(kernel, TF32, dict(zip(names, given, strict=False)), {"s": k}, {out: expected.size})
    assert not done.findings, scheduled.row.text
    error = np.abs(done.outputs[out].reshape(expected.shape) - expected).max(initial=0.0)
    assert error <= tolerance("f32", 136, 0, "tf32") * np.abs(expected).max(initial=0.0)
