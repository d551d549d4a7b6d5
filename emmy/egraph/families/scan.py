"""Facts and rows of the scan family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body
from emmy.ir.schedule import Reduce, Row, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.scan_view import Scanned, ScanView, scan_view, scanned, strided

WIDTHS = (1, 2, 4, 8, 16)


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> dict[str, list[tuple[object, ...]]] | str:
    view = scan_view(body)
    if isinstance(view, str):
        return view
    state = sum(8 if s.type in ("i64", "f64") else 4 for s in view.scans)
    found: dict[str, list[tuple[object, ...]]] = {"scan-body": [(body.hash, integer(view.along.extent, sizes), state)]}
    if strided(view):
        found["scan-strided"] = [(body.hash,)]
        return found
    widths = {w: scanned(view, w) for w in WIDTHS}
    found["scan-vector"] = [
        (body.hash, w, _widest(s)) for w, s in widths.items() if w == 1 or (s.width == w and _widest(s) >= 8)
    ]
    return found


def _widest(s: Scanned) -> int:
    return max((s.width * dtype(x.load.dtype).bytes for x in s.staged), default=4)


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Row]]:
    for body, threads, block, width, _ in found:
        work = Work("t", (threads, block) if block > 1 else (threads,))
        yield body, Row(work, Tile(fragment=(width,) if width > 1 else ()), Reduce(coop=True))


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    view = scan_view(body)
    assert isinstance(view, ScanView)
    threads, block = (*row.work.dims, 1)[:2]
    width = row.tile.fragment[0] if row.tile.fragment else 1
    return KernelConfig(
        "scan",
        threads * block,
        max(1, -(-integer(view.count, sizes) // block)),
        tile_n=block,
        tile_k=threads * width,
        vector=min(16, 4 * width),
        smem=8 * block * max(1, threads // 32) if threads > 32 else 0,
        registers=32 + 3 * width,
        rows_per_block=block,
        reduce_threads=threads,
        run=4 * width,
        flight=4 * width,
    )
