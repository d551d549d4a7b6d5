"""Sums that several blocks share, finished inside the launch: the last block to arrive at a tile makes its results.

Each block adds up its part of the summed axis.  Its warps then announce their sums, each by itself: a warp of the last
block needs the sums of the same warp of the other blocks and of nobody else, so that no barrier is needed.

    workspace   every warp stores its sums, counts its arrival, and the last one reads all of them in the order of the
                parts: the same bits whichever block is last
    atomic      every warp adds its sums to those of the tile, in whatever order the blocks come; the last one reads
                the total, and clears it

An arrival is a release and an acquire: what the warp's lanes stored, a barrier of the warp, a fence of the device, the
atomic, a fence, a barrier of the warp.  The last warp clears its counter, so that the next launch finds zeros.
Source: PTX ISA manual, memory consistency model (release and acquire patterns).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from emmy.codegen.expr import (
    TID,
    Code,
    add,
    call,
    compare,
    convert,
    div,
    elem,
    f32,
    global_at,
    i32,
    lt,
    mod,
    mul,
    select,
    sub,
)
from emmy.codegen.families.frame import LARGE, Frame, static
from emmy.ir.build import imul
from emmy.ir.kernel import Assign, Atomic, Fence, LoadVector, Place, StoreVector, Var, WarpSync, X
from emmy.ir.loop import Const, Expr
from emmy.ir.schedule import Reduce

UNROLLED = 24  # vectors that a thread may have on their way at once beside its sums
FEW = 8


@dataclass(frozen=True, slots=True)
class Parts:
    """How many blocks share a sum; `atomic`: they add to one total."""

    count: int = 1
    atomic: bool = False

    @staticmethod
    def of(reduce: Reduce) -> Parts:
        return Parts(max(1, reduce.parts), reduce.finish == "a")


class Finish:
    """The workspace of one kernel: `tiles` tiles, of which a thread holds `words` sums; `warps` a block hold some."""

    def __init__(self, frame: Frame, parts: Parts, tiles: Expr, warps: int, words: int) -> None:
        self.parts, self.warps, self.words = parts, warps, words
        s, each = frame.scalars, 32 * warps * words
        copies = 1 if parts.atomic else parts.count
        count = imul(tiles, copies * each)
        self.sums = s.work("sums", "f32", "zeroed" if parts.atomic else "scratch", count)
        self.arrivals = s.work("arrivals", "i32", "zeroed", imul(tiles, warps))
        self.type = "i32" if isinstance(count, Const) and int(count.value) < LARGE else "i64"

    @contextmanager
    def last(self, code: Code, tile: X, part: X, warp: X, arrays: Sequence[tuple[Var, int]]) -> Iterator[Code]:
        """Announces the warp's sums `arrays` (each with its length); the block runs in the tile's last warp to do so,
        where they hold the sums of all parts."""
        lane = code.let("part_lane", mod(TID, 32))
        first = code.let("sums_at", self._first(tile, warp))
        if self.parts.atomic:
            self._add(code, first, lane, arrays)
        else:
            at = code.let("part_at", add(first, convert(mul(part, self._apart), self.type)))
            self._put(code, at, lane, arrays)
        counter = global_at(self.arrivals, code.let("arrival", add(mul(tile, self.warps), warp)), "i32")
        seen = self._arrive(code, counter, lane)
        with code.when(compare("==", seen, self.parts.count - 1)) as inner:
            self._take_total(inner, first, lane, arrays) if self.parts.atomic else self._take(
                inner, first, lane, arrays
            )
            inner.store(counter, i32(0), compare("==", lane, 0))
            yield inner

    @property
    def _apart(self) -> int:
        """Elements between two parts of a tile."""
        return 32 * self.warps * self.words

    def _first(self, tile: X, warp: X) -> X:
        copies = 1 if self.parts.atomic else self.parts.count
        return add(mul(convert(tile, self.type), copies * self._apart), convert(mul(warp, 32 * self.words), self.type))

    def _arrive(self, code: Code, counter: Place, lane: X) -> X:
        """How many parts have arrived before the warp's."""
        ticket = code.declare("ticket", "i32", i32(0))
        code.emit(WarpSync())
        with code.when(compare("==", lane, 0)) as one:
            before = one.names.fresh("before")
            one.emit(Fence(), Atomic("add", counter, i32(1), None, before), Fence())
            one.emit(Assign(ticket, Var(before, "i32")))
        seen = code.shuffle(ticket, "lane", 0, "arrived")
        code.emit(WarpSync())
        return seen

    # -- workspace: [tile][part][warp][group][lane][element of the group]

    def _groups(self, arrays: Sequence[tuple[Var, int]]) -> Iterator[tuple[Var, int, int, int]]:
        """(array, groups of neighbours that move as one, their width, words before)."""
        before = 0
        for array, count in arrays:
            width = 4 if count % 4 == 0 and before % 4 == 0 else 2 if count % 2 == 0 and before % 2 == 0 else 1
            yield array, count // width, width, before
            before += count

    def _place(self, at: X, g: X, lane: X, width: int, before: int) -> Place:
        index = add(mul(g, 32 * width), mul(lane, width), 32 * before)
        return global_at(self.sums, add(at, convert(index, self.type)), "f32")

    def _put(self, code: Code, at: X, lane: X, arrays: Sequence[tuple[Var, int]]) -> None:
        for array, groups, width, before in self._groups(arrays):
            with code.loop("g", groups, unroll=0) as (c, g):
                c.emit(StoreVector(self._place(at, g, lane, width, before), array.name, mul(g, width), width))

    def _take(self, code: Code, first: X, lane: X, arrays: Sequence[tuple[Var, int]]) -> None:
        """Sums in the order of the parts, the warp's own among them."""
        for array, groups, width, before in self._groups(arrays):
            with code.loop("g", groups, unroll=0) as (c, g):
                c.emit(LoadVector(array.name, mul(g, width), width, self._place(first, g, lane, width, before)))
        each = sum(groups for _, groups, _, _ in self._groups(arrays))
        unroll = 0 if (self.parts.count - 1) * each <= UNROLLED else 2 if each <= FEW else 1
        with code.loop("p", self.parts.count, start=1, unroll=unroll) as (inner, p):
            at = add(first, convert(mul(p, self._apart), self.type))
            for array, groups, width, before in self._groups(arrays):
                with inner.loop("g", groups, unroll=0) as (c, g):
                    piece = c.declare("piece", "f32", count=width)
                    c.emit(LoadVector(piece.name, i32(0), width, self._place(at, g, lane, width, before)))
                    for e in range(width):
                        to = elem(array, add(mul(g, width), e))
                        c.assign(to, call("add", to, elem(piece, e), type="f32"))

    # -- atomic: [tile][warp][word][lane]

    def _add(self, code: Code, first: X, lane: X, arrays: Sequence[tuple[Var, int]]) -> None:
        for array, count, before in self._each(arrays):
            with code.loop("g", count, unroll=0) as (c, g):
                c.emit(Atomic("add", self._word(first, g, lane, before), elem(array, g)))

    def _take_total(self, code: Code, first: X, lane: X, arrays: Sequence[tuple[Var, int]]) -> None:
        for array, count, before in self._each(arrays):
            with code.loop("g", count, unroll=0) as (c, g):
                c.assign(elem(array, g), c.load("total", "f32", self._word(first, g, lane, before)))
            with code.loop("g", count, unroll=0) as (c, g):
                c.store(self._word(first, g, lane, before), f32(0.0))

    def _each(self, arrays: Sequence[tuple[Var, int]]) -> Iterator[tuple[Var, int, int]]:
        before = 0
        for array, count in arrays:
            yield array, count, before
            before += count

    def _word(self, first: X, g: X, lane: X, before: int) -> Place:
        index = add(mul(g, 32), lane, 32 * before)
        return global_at(self.sums, add(first, convert(index, self.type)), "f32")


def share(tiles: X, parts: int, part: X) -> tuple[X, X]:
    """First tile of the summed axis that a part takes, and how many: equal shares, the last one what is left."""
    if parts == 1:
        return i32(0), tiles
    each = div(add(tiles, parts - 1), parts)
    first = mul(part, each)
    if static(tiles) is not None and int(static(tiles) or 0) % parts == 0:
        return first, each
    left = sub(tiles, first)
    return first, select(lt(each, left), each, left)


__all__ = ["Finish", "Parts", "share"]
