"""Facts and rows of maps with turned operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body
from emmy.ir.schedule import Row, Stage, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.flat import total
from emmy.ir.views.turn_view import TurnView, turn_view, turned


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> dict[str, list[tuple[object, ...]]] | str:
    view = turn_view(body)
    if isinstance(view, str):
        return view
    loads = turned(view, 32).turned
    if not loads:
        return "no operand runs along another axis than the results"
    return {"turn-body": [(body.hash, sum(dtype(s.load.dtype).bytes for s in loads))]}


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Row]]:
    for body, edge, threads, _ in found:
        yield body, Row(Work("t", (edge, threads)), Tile(fragment=(edge, edge)), stage=Stage(1, "smem"))


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = turn_view(body)
    assert isinstance(view, TurnView)
    edge = row.tile.fragment[0]
    high, low = (-(-integer(a.extent, sizes) // edge) for a in (view.across, view.along))
    blocks = high * low * integer(total(view.others), sizes)
    return KernelConfig(
        "map", row.work.threads, max(1, blocks), tile_n=edge * edge, vector=4, smem=4 * edge * (edge + 1)
    )
