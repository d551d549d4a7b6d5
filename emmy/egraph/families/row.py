"""Facts and rows of the row family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from emmy.ir.build import scalar
from emmy.ir.config import KernelConfig
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body, Const, Expr, Fold, Online
from emmy.ir.schedule import Reduce, Row, Stage, Tile, Work
from emmy.ir.target import Target
from emmy.ir.views.row_view import Passes, RowView, across_rows, alive, held_body, passes, row_view

WIDTHS = (1, 2, 4, 8, 16)
MOST_BYTES = 16  # of one access of a thread
PARTS_ACROSS = 4  # partial results of a column's thread
UNROLLED = 4  # turns of a short loop that run as one


def facts(body: Body, target: Target, sizes: Mapping[str, int]) -> dict[str, list[tuple[object, ...]]] | str:
    view = row_view(body)
    if isinstance(view, str):
        return view
    p = passes(view, 1)
    longest = max(integer(a.count, sizes) for a in p.reducing)
    state = max(sum(_state_bytes(f.node) for f in a.folds) for a in p.reducing)
    found: dict[str, list[tuple[object, ...]]] = {"row-body": [(body.hash, longest, state)]}
    if across_rows(view):
        found["row-across"] = [(body.hash,)]
        found["row-widest"] = [(body.hash, PARTS_ACROSS // 2)]
    else:
        found["row-along"] = [(body.hash,)]
        accesses = {w: _accesses(passes(view, w), w) for w in WIDTHS if _vectors(view, w)}
        found["row-vector"] = [(body.hash, w, max(moved)) for w, moved in accesses.items()]
        widest = [w for w, moved in accesses.items() if w == 1 or (min(moved) <= MOST_BYTES and max(moved) <= 32)]
        found["row-widest"] = [(body.hash, max(widest))]
    kept_view = row_view(held_body(body))
    held = _held_bytes(passes(kept_view, 1)) if isinstance(kept_view, RowView) else 0
    if held:
        found["row-held"] = [(body.hash, held)]
    return found


def _state_bytes(node: Fold | Online) -> int:
    return 8 if isinstance(node, Online) else 12 if node.kind == "m2" else 8 if node.type in ("i64", "f64") else 4


def _vectors(view: RowView, width: int) -> bool:
    """True when every reducing pass walks in vectors of this width and reads some operand by them."""
    return width == 1 or all(
        a.width == width and any(width * dtype(s.load.dtype).bytes >= 4 for s in a.staged)
        for a in passes(view, width).reducing
    )


def _accesses(p: Passes, width: int) -> list[int]:
    """Bytes of each access that moves a vector."""
    return [width * dtype(s.load.dtype).bytes for a in (*p.reducing, *p.sweeps) for s in a.staged] or [4]


def _held_bytes(p: Passes) -> int:
    """Register bytes for each element of a held row; 0 where nothing would be kept or the row's length is symbolic."""
    if not all(isinstance(a.count, Const) for a in (*p.reducing, *p.sweeps)):
        return 0
    taken = [sum(dtype(s.load.dtype).bytes for s in loads) + 4 * len(computed) for loads, computed in alive(p)]
    return max(taken, default=0)


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, Row]]:
    for body, threads, block, width, parts, held, _ in found:
        yield (
            body,
            Row(
                Work("t", (threads, block) if block > 1 else (threads,)),
                Tile(fragment=(width,) if width > 1 else ()),
                Reduce(coop=True, accumulators=parts),
                Stage(registers=bool(held)),
            ),
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a config needs of a body at one vector width."""

    across: bool
    rows: Expr
    longest: Expr
    state: int
    kept: int
    staged: int
    widest: int


@lru_cache(maxsize=512)
def _shape(body: Body, width: int, held: bool) -> _Shape:
    view = row_view(held_body(body) if held else body)
    assert isinstance(view, RowView)
    p = passes(view, width)
    longest = p.reducing[0].count
    for a in p.reducing[1:]:
        longest = scalar("max", longest, a.count)
    return _Shape(
        across_rows(view),
        view.count,
        longest,
        sum(_state_bytes(f.node) for a in p.reducing for f in a.folds),
        max((len(loads) + len(computed) for loads, computed in alive(p)), default=0),
        max(sum(dtype(s.load.dtype).bytes for s in a.staged) for a in p.reducing),
        max(_accesses(p, width)),
    )


def config(body: Body, row: Row, target: Target, sizes: Mapping[str, int]) -> KernelConfig:
    threads, block = (*row.work.dims, 1)[:2]
    width = row.tile.fragment[0] if row.tile.fragment else 1
    shape = _shape(body, width, row.stage.registers)
    steps = -(-integer(shape.longest, sizes) // (threads * width))
    # a kept element is unpacked: it takes a register whatever its type is, and of many some are there twice
    each = width * steps if row.stage.registers else 0
    held = shape.kept * each * (256 + each) // 256
    at_once = row.reduce.accumulators * width
    # the compiler overlaps about this many elements of a loop by itself
    at_once = max(at_once, UNROLLED * min(at_once, 2))
    return KernelConfig(
        "row",
        threads * block,
        max(1, -(-integer(shape.rows, sizes) // block)),
        tile_n=block,
        tile_k=threads * width,
        vector=min(MOST_BYTES, shape.widest),
        smem=shape.state * (threads * block if shape.across else block * -(-threads // 32)),
        registers=24 + held + row.reduce.accumulators * -(-width * shape.staged // 4),
        rows_per_block=block,
        reduce_threads=threads,
        run=shape.widest,
        flight=max(4, shape.staged) * (width * steps if row.stage.registers else at_once),
        held=row.stage.registers,
    )
