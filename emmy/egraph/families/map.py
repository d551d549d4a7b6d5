"""Facts and rows of the map family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body
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


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = map_view(body)
    assert isinstance(view, MapView)
    repeats, width = (1, 1, *row.tile.fragment)[-2:] if row.tile.fragment else (1, 1)
    points, tile = integer(view.count, sizes), row.work.threads * repeats * width
    staged = vectors(view, width).staged if width > 1 else ()
    held = sum(-(-width * repeats * dtype(s.load.dtype).bytes // 4) for s in staged)
    return KernelConfig(
        "map",
        row.work.threads,
        max(1, -(-points // tile)),
        tile_n=tile,
        vector=min(16, min(access_bytes(view, width), default=4)) if width > 1 else 4,
        registers=min(255, 24 + held + 2 * width),
    )
