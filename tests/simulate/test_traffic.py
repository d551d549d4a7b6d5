"""How staged tiles meet memory: whole sectors of global memory, no bank of shared memory asked twice."""

from __future__ import annotations

import pytest

from emmy.codegen.lower import lower
from emmy.codegen.simulate import Counters
from emmy.ir.loop import Body
from emmy.ir.schedule import Row
from tests import bodies as B
from tests.simulate.cases import CARD, one
from tests.simulate.runner import checked

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
