"""Map, row, scan and plain kernels compute what their bodies say, run on the CPU from the source that NVRTC gets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.build import cast
from emmy.ir.kernel import Load, LoadVector, Store, StoreVector, walk
from emmy.ir.loop import Body, Out, ax, load, size
from emmy.ir.schedule import Pin, Row, Scheduled
from emmy.ir.target import target
from tests import bodies as B
from tests import host_cuda
from tests.codegen import check
from tests.codegen import small as K

RULESETS = Path(__file__).parents[2] / "rulesets"
CARD = target("sm_90a")
S = size("s")
host = pytest.mark.skipif(not host_cuda.available(), reason="no C++ compiler to run kernels on the CPU")
# What a kernel may differ from float64, in units of `check.distance`; prefixes of 5000 terms in f32 take 4.
TOLERANCE = 16.0

CASES: dict[str, tuple[Body, Mapping[str, int]]] = {
    "rms norm": (K.rms_norm(5, 2304), {}),
    "rms norm, odd": (K.rms_norm(7, 77, "bf16"), {}),
    "rms norm, short": (K.rms_norm(33, 5), {}),
    "rms norm, rows by name": (K.rms_norm(S, 128, "bf16"), {"s": 11}),
    "residual and rms norm": (K.add_rms_norm(5, 512), {}),
    "softmax": (K.softmax(7, 256, "bf16"), {}),
    "softmax, long odd": (K.softmax(2, 4097), {}),
    "softmax, length by name": (K.softmax(3, S), {"s": 515}),
    "softmax, one pass": (K.softmax(3, 1000, twisted=True), {}),
    "softmax, one pass in vectors": (K.softmax(5, 1536, "bf16", twisted=True), {}),
    "softmax, masked rows": (K.masked_softmax(9, 40), {}),
    "layer norm": (K.layer_norm(6, 768, "f16"), {}),
    "layer norm, odd": (K.layer_norm(3, 33), {}),
    "column sums": (K.column_sum(100, 70), {}),
    "column sums, half": (K.column_sum(33, 64, "bf16"), {}),
    "channel statistics": (K.channel_statistics(3, 5, 28), {}),
    "sum of all": (K.whole_sum(5000, "bf16"), {}),
    "integers and booleans": (K.integer_folds(9, 70), {}),
    "cumulative sum": (K.cumulative(3, 1500), {}),
    "cumulative sum, half": (K.cumulative(5, 77, dtype="bf16"), {}),
    "cumulative maximum, first axis": (K.cumulative(40, 33, "max", first=True), {}),
    "cumulative product": (K.cumulative(2, 20, "prod"), {}),
    "bias and gelu": (K.bias_gelu(33, 77), {}),
    "bias and gelu, aligned": (K.bias_gelu(S, 64), {"s": 17}),
    "rotary": (K.rotary(6, 3, 64), {}),
    "rotary, odd halves": (K.rotary(3, 2, 10, "f32"), {}),
    "concatenated": (K.concatenated(5, 24, 40), {}),
    "concatenated, odd": (K.concatenated(5, 3, 7, "f16"), {}),
    "transpose": (K.added_transpose(40, 24), {}),
    "transpose, whole tiles": (K.added_transpose(64, 32, "bf16"), {}),
    "transpose, vectors and ragged tiles": (K.added_transpose(40, 136, "bf16"), {}),
    "transpose, vectors": (K.added_transpose(68, 36), {}),
    "transpose, rows by name": (K.added_transpose(S, 40, "f16"), {"s": 37}),
    "store in another order": (K.permuted_store(3, 5, 16), {}),
    "positions": (K.positions(9, 7), {}),
    "two spaces": (K.two_spaces(5, 7), {}),
}


def rows(body: Body, sizes: Mapping[str, int], count: int, seed: int) -> list[Scheduled]:
    """Every family's first and last row and `count` of the others by chance."""
    found = [s for s in schedule_rows([body], CARD, sizes, RULESETS).rows[body.hash] if s.family not in ("mma", "tile")]
    ends: dict[str, list[Scheduled]] = {}
    for s in found:
        ends.setdefault(s.family, []).append(s)
    picked = [s for group in ends.values() for s in (group[0], group[-1])]
    picked += random.Random(seed).sample(found, min(count, len(found)))
    return list(dict.fromkeys(picked))


@host
@pytest.mark.parametrize("name", CASES)
def test_sampled_rows_compute_the_body(name: str) -> None:
    body, sizes = CASES[name]
    for s in rows(body, sizes, 4, seed=len(name)):
        kernel = lower(body, s.family, s.row, CARD, "k_test")
        assert check.error(body, kernel, sizes) < TOLERANCE, f"{s.family} {s.row.text}"


@host
def test_lengths_share_a_kernel() -> None:
    body = K.softmax(S, S, "bf16")
    for s in rows(body, {"s": 64}, 2, seed=1):
        kernel = lower(body, s.family, s.row, CARD, "k_test", limits={"s": 4096})
        for n in (1, 17, 128):
            assert check.error(body, kernel, {"s": n}) < TOLERANCE, f"{s.row.text} at {n}"


@host
def test_rows_by_index_come_from_the_table() -> None:
    body = K.embedding(11, 50, 48)
    rng = np.random.default_rng(3)
    index = rng.integers(-50, 50, 11)
    by_type = {"i64": index, "bf16": check.operand(K.tensor("bf16", 50, 48), {}, rng)}
    arrays = [by_type[t.dtype] for t in body.slots]
    for s in rows(body, {}, 4, seed=2):
        kernel = lower(body, s.family, s.row, CARD, "k_test")
        assert check.error(body, kernel, given=arrays) == 0.0, s.row.text


@host
@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_travel(special: float) -> None:
    body = K.softmax(4, 300)
    x = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32)
    x[1, 77], x[2, :] = special, special
    for s in rows(body, {}, 3, seed=5):
        kernel = lower(body, s.family, s.row, CARD, "k_test")
        assert check.error(body, kernel, given=[x]) < TOLERANCE, s.row.text


@host
@pytest.mark.parametrize("new", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_stores_round_to_nearest_even(new: str) -> None:
    """Every 16-bit pattern's neighbourhood in f32, ties, denormals, overflow."""
    bits = np.arange(0, 2**32, 9973 * 7, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(0, 2**16, dtype=np.uint32) << 16) + 0x8000
    x = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    body = K.converted(len(x), "f32", new)
    kernel = lower(body, "plain", rows(body, {}, 0, 0)[-1].row, CARD, "k_test")
    (found,) = host_cuda.run(kernel, [x], shapes=[x.shape])
    with np.errstate(all="ignore"):
        expected = x.astype(host_cuda.NUMPY[new])
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), np.isnan(expected.astype(np.float32)))
    real = ~np.isnan(expected.astype(np.float32))
    unsigned = np.uint16 if found.dtype.itemsize == 2 else np.uint8
    np.testing.assert_array_equal(found.view(unsigned)[real], expected.view(unsigned)[real])


@host
@pytest.mark.parametrize("old", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_loads_are_exact(old: str) -> None:
    kind = host_cuda.NUMPY[old]
    width = np.dtype(kind).itemsize
    x = np.arange(0, 2 ** (8 * width), dtype=np.uint16 if width == 2 else np.uint8).view(kind)
    body = K.converted(len(x), old, "f32")
    kernel = lower(body, "plain", rows(body, {}, 0, 0)[-1].row, CARD, "k_test")
    (found,) = host_cuda.run(kernel, [x], shapes=[x.shape])
    np.testing.assert_array_equal(found, x.astype(np.float32))


@host
@pytest.mark.parametrize("new", ["bf16", "f16"])
@pytest.mark.parametrize("old", ["i8", "u8", "f8e4m3", "f8e5m2"])
def test_casts_of_8_bit_elements_to_16_bits_round_nothing(old: str, new: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(host_cuda.NUMPY[old])
    i = ax("i0", 256)
    out = Out((i,), (i,), cast(cast(load(0, (i,), old), new), "f32"), B.tensor("f32", 256))
    body = B.body([out], [B.tensor(old, 256)])
    kernel = lower(body, "plain", rows(body, {}, 0, 0)[-1].row, CARD, "k_test")
    assert "round_" not in source(kernel)
    (found,) = host_cuda.run(kernel, [x], shapes=[x.shape])
    np.testing.assert_array_equal(found, x.astype(np.float32))


def test_every_body_ends_with_the_plain_row() -> None:
    for body, sizes in CASES.values():
        assert schedule_rows([body], CARD, sizes, RULESETS).rows[body.hash][-1].family == "plain"


def test_rows_of_a_body_are_spelled_apart() -> None:
    for body, sizes in CASES.values():
        texts = [s.row.text for s in schedule_rows([body], CARD, sizes, RULESETS).rows[body.hash]]
        assert len(texts) == len(set(texts))


def test_holding_a_rule_takes_its_rows_away() -> None:
    body = K.rms_norm(32, 2048)
    everything = {s.row.text for s in schedule_rows([body], CARD, {}, RULESETS).rows[body.hash]}
    held = {s.row.text for s in schedule_rows([body], CARD, {}, RULESETS, frozenset({"row-held"})).rows[body.hash]}
    assert everything - held == {t for t in everything if "STAGE=reg" in t}
    assert held < everything


def test_a_row_of_576_vectors_is_shared_by_as_many_threads_as_fill_it() -> None:
    body = K.rms_norm(5, 2304)
    found = schedule_rows([body], CARD, {}, RULESETS).rows[body.hash]
    filled = {s.row.work.threads: s for s in found if s.row.work.threads in (192, 288, 576)}
    assert set(filled) == {192, 288, 576}


@host
@pytest.mark.parametrize("text", ["WORK=t192,TILE=f4", "WORK=t288,TILE=f4", "WORK=t576,TILE=f4", "WORK=t96,TILE=f8"])
def test_warps_that_are_no_power_of_two_combine(text: str) -> None:
    for body in (K.layer_norm(3, 2304, "f16"), K.softmax(3, 2304, twisted=True)):
        for stage in ("", "reg"):
            row = Row.parse(f"{text},REDUCE=coop,STAGE={stage},RASTER=")
            assert check.error(body, lower(body, "row", row, CARD, "k_test")) < TOLERANCE, row.text


def test_long_rows_of_16_bits_stay_in_registers() -> None:
    for body in (K.rms_norm(4, 16384, "bf16"), K.softmax(4, 16384, "bf16", twisted=True)):
        found = schedule_rows([body], CARD, {}, RULESETS).rows[body.hash]
        assert {512, 1024} <= {s.row.work.threads for s in found if s.row.stage.registers}


def test_turned_vectors_move_16_bytes_on_both_sides() -> None:
    """The widest rows copy 16 bytes only: no element of a turned operand or a result moves alone."""
    body = K.added_transpose(64, 128, "bf16")
    rows_of = schedule_rows([body], CARD, {}, RULESETS).rows[body.hash]
    row = next(s.row for s in rows_of if s.family == "turn" and s.row.text.startswith("WORK=t8x32,TILE=f64x64"))
    kernel = lower(body, "turn", row, CARD, "k_test")
    moved = [s for s in walk(kernel.body) if isinstance(s, LoadVector | StoreVector)]
    assert {s.count for s in moved} == {8}
    assert not [s for s in walk(kernel.body) if isinstance(s, Load | Store) and s.place.space == "global"]


@pytest.mark.parametrize("width", ["", "f4", "f8"])
def test_a_fold_that_lacks_the_rows_is_made_by_the_team_and_once(width: str) -> None:
    """A normalized vector times a matrix: the vector's root mean square depends on no row of the matrix."""
    row = Row.parse(f"WORK=t32,TILE={width},REDUCE=coop,STAGE=,RASTER=")
    kernel = lower(B.scaled_linear(1, 17, 256), "row", row, CARD, "k_test")
    reads = [s.place for s in walk(kernel.body) if isinstance(s, Load | LoadVector)]
    assert sorted(p.buffer for p in reads if p.space == "global") == ["x0", "x1"]


def test_legal_rows_of_a_row_are_few() -> None:
    for body in (K.layer_norm(64, 4096, "bf16"), K.softmax(64, 8192, "bf16"), K.rms_norm(64, 2304)):
        assert len(schedule_rows([body], CARD, {}, RULESETS).rows[body.hash]) <= 150


def test_partial_pins_find_the_rows_of_the_tutorial() -> None:
    body = K.rms_norm(512, 2304)
    found = [s.row for s in schedule_rows([body], target("sm_120a"), {}, RULESETS).rows[body.hash]]
    for text in ("WORK=t256,REDUCE=coop", "WORK=t256,REDUCE=coop/r2"):
        pinned = [r for r in found if Pin.parse(text).matches(r)]
        assert pinned
        assert {r.reduce.text for r in pinned} == {text.split("REDUCE=")[1]}
