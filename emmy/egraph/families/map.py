"""Facts and rows of the map family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body, Expr
from emmy.ir.schedule import Row, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.map_view import MapView, access_bytes, map_view, vectors

WIDTHS = (2, 4, 8, 16)


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> dict[str, list[tuple[object, ...]]] | str:
    view = map_view(body)
    if isinstance(view, str):
        return view
    widths: list[tuple[object, ...]] = []
    for width in WIDTHS:
        bytes = access_bytes(view, width)
        if bytes and min(bytes) >= 4:
            widths.append((body.hash, width, max(bytes)))
    return {"map-body": [(body.hash,)], "map-vector": widths}


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Row]]:
    for body, threads, repeats, width, _ in found:
        fragment = (repeats, width) if repeats > 1 else (width,) if width > 1 else ()
        yield body, Row(Work("t", (threads,)), Tile(fragment=fragment))


@lru_cache(maxsize=512)
def _shape(body: Body, width: int) -> tuple[Expr, int, int, int]:
    """Points, bytes of the loads that move as vectors for each of them, the narrowest and the widest vector's bytes."""
    view = map_view(body)
    assert isinstance(view, MapView)
    staged = vectors(view, width).staged if width > 1 else ()
    moved = access_bytes(view, width) if width > 1 else ()
    return (
        view.count,
        sum(dtype(s.load.dtype).bytes for s in staged),
        min(16, *moved) if moved else 4,
        max(moved, default=0),
    )


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    repeats, width = (1, 1, *row.tile.fragment)[-2:] if row.tile.fragment else (1, 1)
    count, element_bytes, vector, run = _shape(body, width)
    points, tile = integer(count, sizes), row.work.threads * repeats * width
    held = -(-width * repeats * element_bytes // 4)
    return KernelConfig(
        "map",
        row.work.threads,
        max(1, -(-points // tile)),
        tile_n=tile,
        vector=vector,
        registers=min(255, 24 + held + 2 * width),
        run=run,
    )
