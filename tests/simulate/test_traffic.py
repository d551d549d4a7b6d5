"""How staged tiles meet memory: whole sectors of global memory, no bank of shared memory asked twice."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.codegen.lower import lower
from emmy.codegen.simulate import Counters
from emmy.egraph.schedule import schedule_rows
from emmy.ir.loop import Body
from emmy.ir.schedule import Row
from tests import bodies as B
from tests.codegen import small as K
from tests.simulate.cases import CARD, RULESETS, one
from tests.simulate.runner import checked

ROW = "WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x4/k4,REDUCE=,STAGE=d2/smem,RASTER="

THREADS = (
    "WORK=t16x16,TILE=f8x8/k8,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t16x16,TILE=f8x8/k16,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t16x16,TILE=f8x8/k16,REDUCE=,STAGE=d3/smem-async/reg,RASTER=",
    "WORK=t8x8,TILE=f4x4/k32,REDUCE=,STAGE=d2/smem,RASTER=",
    "WORK=t4x8,TILE=f4x4/k64,REDUCE=coop/r8,STAGE=d2/smem-async,RASTER=",
)


def counters(body: Body, family: str, row: str) -> Counters:
    kernel = lower(body, family, Row.parse(row), CARD, "k_test")
    result = checked(one("traffic", body), kernel, count=True)
    assert not result.wrong and not result.simulation.findings, result.text
    return result.simulation.counters


@pytest.mark.parametrize("row", THREADS)
@pytest.mark.parametrize("a", [False, True], ids=["left rows along k", "left rows along m"])
@pytest.mark.parametrize("b", [False, True], ids=["right rows along n", "right rows along k"])
def test_tiles_of_threads_move_whole_sectors_and_no_bank_is_asked_twice(a: bool, b: bool, row: str) -> None:
    found = counters(B.linear(128, 128, 128, "f32", trans_a=a, trans_b=b), "tile", row)
    assert (found.efficiency, found.conflicts) == (1.0, 0)


@pytest.mark.parametrize("a", [False, True], ids=["left rows along k", "left rows along m"])
@pytest.mark.parametrize("b", [False, True], ids=["right rows along n", "right rows along k"])
def test_rows_at_any_alignment_are_read_in_two_vectors_a_chunk(a: bool, b: bool) -> None:
    m, n, k = 127, 129, 321
    found = counters(B.linear(m, n, k, trans_a=a, trans_b=b), "mma", ROW)
    tiles = 2 * 64 * 64 * -(-k // 64)  # elements that a block stages
    blocks = -(-m // 64) * -(-n // 64)
    assert found.conflicts < 0.1 * found.shared_accesses
    # two vectors for each, and the elements behind the last whole vector one by one
    assert found.bytes_read < 2 * 2 * tiles * blocks + 32 * 64 * blocks
    assert found.sectors_read * 32 < 2 * 2 * tiles * blocks


@pytest.mark.parametrize("columns", [256, 128, 80])
def test_lines_are_stored_lane_beside_lane_and_no_bank_is_asked_twice(columns: int) -> None:
    m, n = 127, 2 * columns - 1
    row = f"WORK=w4x1+p4,TILE=wgmma_m64n{columns}k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d3/smem-tma{{}},RASTER="
    lines, alone = (counters(B.linear(m, n, 72), "wgmma", row.format(s)) for s in ("/out", ""))
    assert lines.conflicts == 0
    # words of 32 lanes touch the sectors of 128 bytes and one more, and ends those of an element
    words = m * 2 * -(-columns // 64)
    assert lines.sectors_written <= 5 * words + 2 * 2 * m
    assert alone.sectors_written > 3 * lines.sectors_written


@pytest.mark.parametrize("skip", range(4))
def test_runs_that_begin_anywhere_are_read_in_vectors_and_nothing_outside(skip: int) -> None:
    rows, n = 61, 251
    found = counters(K.padded_copy(rows, n, 256, skip=skip), "map", "WORK=t64,TILE=f8,REDUCE=,STAGE=,RASTER=")
    chunks = rows * 256 // 8
    # two vectors for each, whose neighbours share sectors, and chunks at the operand's end again, one by one
    assert 0 <= found.bytes_read - 2 * 16 * chunks <= 2 * 16
    assert found.sectors_read < 2 * chunks * 16 // 32 + 2 * chunks * 16 // 512 * 2


@pytest.mark.parametrize("row", ["WORK=t64,TILE=f8", "WORK=t64,TILE=f4x8"])
def test_groups_behind_the_last_one_read_nothing_before_an_operand(row: str) -> None:
    counters(K.upside_down(33, 67, 64), "map", f"{row},REDUCE=,STAGE=,RASTER=")


def test_threads_whose_chunks_lie_in_no_order_read_nothing_behind_an_operand() -> None:
    # rows of 28 chunks: in the last round a thread's chunk may lie before that of the round before
    row = "WORK=t16x16,TILE=f8x7/k16,REDUCE=,STAGE=d2/smem,RASTER="
    assert counters(B.linear(66, 111, 21, "f32", trans_b=False), "tile", row).bytes_read > 0


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 70), st.integers(2, 70), st.integers(17, 150), st.booleans(), st.booleans(),
    st.sampled_from(["bf16", "f16", "f32"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_alignment_gives_right_values(
    m: int, n: int, k: int, a: bool, b: bool, dtype: str, chance: random.Random
) -> None:
    body = B.linear(m, n, k, dtype, trans_a=a, trans_b=b)
    family = "tile" if dtype == "f32" else "mma"
    rows = schedule_rows([body], CARD, {}, RULESETS).rows[body.hash]
    row = chance.choice([r for r in rows if r.family == family and r.row.stage.where == "smem"])
    result = checked(one("any alignment", body, True), lower(body, family, row.row, CARD, "k_test"))
    assert not result.wrong and not result.simulation.findings, f"{row.row.text}: {result.text}"
