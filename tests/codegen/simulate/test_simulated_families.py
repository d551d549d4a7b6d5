"""Kernels of every family run in the simulator without a finding and compute what their bodies say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from emmy.codegen.lower import lower
from emmy.ir.kernel import AsyncWait, Barrier, Kernel, S, bodies, walk, with_bodies
from emmy.ir.loop import Body
from tests import bodies as B
from tests.codegen import small as K
from tests.codegen import test_families, test_tiled_values
from tests.codegen.simulate.check import compare, launch
from tests.codegen.test_families import CARD

MAPS = ("rms norm, odd", "softmax, one pass in vectors", "layer norm", "column sums", "integers and booleans",
        "cumulative sum, half", "rotary", "transpose, vectors and ragged tiles", "positions", "two spaces")  # fmt: skip
SUMS = ("odd", "tiny", "aligned tails", "two sums", "dequantized", "symbolic sum", "empty sum")
ATTENTIONS = ("causal, grouped heads", "additive mask, token major", "odd heads")


def proved(body: Body, kernel: Kernel, sizes: Mapping[str, int], tolerance: float) -> None:
    error, simulation = compare(body, kernel, CARD, sizes)
    assert not simulation.findings, "\n".join(map(str, simulation.findings))
    assert error < tolerance, kernel.comment


@pytest.mark.parametrize("name", MAPS)
def test_rows_of_pointwise_and_row_families(name: str) -> None:
    body, sizes = test_families.CASES[name]
    for s in test_families.rows(body, sizes, 2, seed=len(name)):
        proved(body, lower(body, s.family, s.row, CARD, "k_test"), sizes, test_families.TOLERANCE)


@pytest.mark.parametrize("name", SUMS)
def test_contractions(name: str) -> None:
    body, sizes = test_tiled_values.CONTRACTIONS[name]
    for row in test_tiled_values.MMA_ROWS:
        proved(body, test_tiled_values.mma(body, row), sizes, test_tiled_values.TOLERANCE)
    for row in test_tiled_values.TILE_ROWS:
        proved(body, test_tiled_values.tile(body, row), sizes, test_tiled_values.TOLERANCE)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    body, sizes = test_tiled_values.ATTENTIONS[name]
    for row in test_tiled_values.ATTENTION_ROWS:
        proved(body, test_tiled_values.attention(body, row), sizes, test_tiled_values.TOLERANCE)


def without(body: tuple[S, ...], drop: Callable[[S], bool]) -> tuple[S, ...]:
    return tuple(with_bodies(s, lambda b: without(b, drop)) for s in body if not drop(s))


def kinds(body: Body, kernel: Kernel, drop: Callable[[S], bool]) -> set[str]:
    _, simulation = launch(body, replace(kernel, body=without(kernel.body, drop)), CARD)
    return {f.kind for f in simulation.findings}


def test_a_barrier_left_out_is_a_race() -> None:
    body = K.rms_norm(5, 2304)
    kernel = lower(body, "row", test_families.rows(body, {}, 0, 0)[0].row, CARD, "k_test")
    assert kinds(body, kernel, lambda s: isinstance(s, Barrier)) == {"shared race"}


def test_a_wait_left_out_is_a_read_of_copies_in_flight() -> None:
    body = B.linear(64, 96, 64)
    kernel = test_tiled_values.mma(body, test_tiled_values.MMA_ROWS[0])
    found = kinds(body, kernel, lambda s: isinstance(s, AsyncWait))
    assert found >= {"read before wait", "never waited"}


def test_a_stage_filled_early_is_found() -> None:
    """Without the barrier of the main loop a stage is filled while other warps still read it."""
    body = B.linear(64, 96, 256)
    kernel = test_tiled_values.mma(body, test_tiled_values.MMA_ROWS[0])
    loops = [s for s in walk(kernel.body) if any(isinstance(i, Barrier) for b in bodies(s) for i in b)]
    inner = {id(i) for s in loops for b in bodies(s) for i in b if isinstance(i, Barrier)}
    found = kinds(body, kernel, lambda s: id(s) in inner)
    assert "refill before read" in found


def test_the_main_loop_reads_each_operand_once_a_tile() -> None:
    body = B.linear(256, 256, 256)
    row = "WORK=w2x2,TILE=mma_m16n8k16_{}_f32/f4x8/k4,REDUCE=,STAGE=d4/smem-async,RASTER=gm8"
    _, simulation = launch(body, test_tiled_values.mma(body, row), CARD)
    c = simulation.counters
    assert not simulation.findings
    assert c.flops == 2 * 256**3
    assert c.bytes_read == 2 * 2 * 2 * 256 * 256  # each operand twice
    assert c.sectors_read * 32 == c.bytes_read
    assert c.bytes_written == 2 * 256 * 256
    assert c.conflicts == 0
