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
from emmy.ir.views.turn_view import Turned, TurnView, turn_view, turned

WIDTHS = (1, 2, 4, 8, 16)
MOST_BYTES = 16  # of one access of a thread
SMALLEST = 32  # edge of a tile, which every width divides


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> dict[str, list[tuple[object, ...]]] | str:
    view = turn_view(body)
    if isinstance(view, str):
        return view
    found = {w: turned(view, SMALLEST, w) for w in WIDTHS}
    plain = found[1]
    if isinstance(plain, str):
        return plain
    shared = sum(_bytes(s.load.dtype) for s in plain.sources)
    vectors = [v for v in found.values() if isinstance(v, Turned)]
    return {
        "turn-body": [(body.hash, shared, *(integer(a.extent, sizes) for a in (view.across, view.along)))],
        "turn-vector": [(body.hash, v.width, _widest(v), _moved(v)) for v in vectors],
        "turn-widest": [(body.hash, max(v.width for v in vectors if _widest(v) <= MOST_BYTES or v.width == 1))],
    }


def _bytes(type: str) -> int:
    return dtype(type).bytes


def _accesses(v: Turned) -> list[int]:
    """Bytes of each access that moves a vector."""
    loads = [_bytes(s.load.dtype) for s in (*v.sources, *v.direct)]
    return [v.width * b for b in loads]


def _widest(v: Turned) -> int:
    return max(_accesses(v))


def _moved(v: Turned) -> int:
    """Register bytes that an element's loads take until they are used."""
    return sum(_bytes(s.load.dtype) for s in (*v.sources, *v.direct))


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Row]]:
    for body, edge, width, lines, _ in found:
        yield body, Row(Work("t", (edge // width, lines)), Tile(fragment=(edge, edge)), stage=Stage(1, "smem"))


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    """`tile_m` > 1 tells such a map from others: neighbours in both directions belong to one block."""
    view = turn_view(body)
    assert isinstance(view, TurnView)
    edge, (along, lines) = row.tile.fragment[0], row.work.dims
    v = turned(view, edge, edge // along)
    assert isinstance(v, Turned)
    high, low = (-(-integer(a.extent, sizes) // edge) for a in (view.across, view.along))
    blocks = high * low * integer(total(view.others), sizes)
    pad = 4 if v.width == 1 else 0
    shared = sum(edge * (edge * _bytes(s.load.dtype) + pad) for s in v.sources)
    held = _moved(v) * v.width * (edge // lines) // 4
    return KernelConfig(
        "map",
        row.work.threads,
        max(1, blocks),
        tile_m=edge,
        tile_n=edge,
        vector=min(MOST_BYTES, *_accesses(v)),
        smem=shared,
        registers=min(255, 24 + held),
        flight=4 * held,
    )
