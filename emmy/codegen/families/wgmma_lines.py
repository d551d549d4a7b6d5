"""Results of the `wgmma` family that TMA cannot store: from shared memory, line by line, by the warp that made them.

Lines begin at any element, so each is stored from its first even element on in words of two, lane beside lane, and an
element that is left at either end alone.  Whoever stored two neighbours straight from its registers would touch eight
lines an instruction with a few bytes of each.  A warp needs nobody else: it fills and empties eight lines of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emmy.codegen.expr import TID, Code, add, compare, convert, div, i32, lt, mod, mul, select, shared_at, sub
from emmy.codegen.families.blocks import Blocks
from emmy.codegen.families.epilogue import Epilogue
from emmy.codegen.families.frame import Frame
from emmy.ir.kernel import Buffer, Layout, LoadVector, Place, StoreVector, X
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.warpgroups import LINES, PAD, Warpgroups

PAIR: Final = 2
WARP: Final = 32


def line_buffers(frame: Frame, view: ContractionView, c: Warpgroups) -> list[Buffer]:
    """Of each result [consumer warp][LINES][columns of a block]; padded lines begin in other banks each."""
    fresh, shape = frame.scalars.names.fresh, (4 * c.groups, LINES, c.n)
    return [Buffer(fresh("line_tile"), o.tensor.dtype, shape, Layout(pad=PAD)) for o in view.body.outs]


class Lines:
    """The way of one tile's results from `buffers` to memory."""

    def __init__(self, epilogue: Epilogue, b: Blocks, c: Warpgroups, buffers: Sequence[Buffer]) -> None:
        self.e, self.b, self.c, self.buffers = epilogue, b, c, buffers
        self.lane = mod(TID, WARP)
        rest = sub(b.n_total, b.n0)
        # elements of a line inside of the result
        self.width: X = i32(c.n) if epilogue.n.fits else select(lt(rest, c.n), rest, i32(c.n))

    def store(self, code: Code, warp: X, row: X) -> None:
        """By the whole warp, the lines that it has put for the block's rows from `row` on."""
        width = self.width if self.e.n.fits else code.let("width", self.width)
        for k, buffer in enumerate(self.buffers):
            with code.loop("line", LINES, unroll=4) as (inner, line):
                m = add(self.b.m0, row, line)
                inside = self._inside(m)
                # a condition of each word, not a branch for each line, so that reads of several lines are in flight
                end = width if inside is None else inner.let("end", select(inside, width, i32(0)))
                self._words(inner, k, buffer, warp, line, inner.let("start", self._start(k, m)), end)
            self._ends(code, k, buffer, warp, row, width)

    def _inside(self, m: X) -> X | None:
        return None if self.e.m.fits else lt(m, self.e.m.total)

    def _start(self, k: int, m: X) -> X:
        """Element of result k where the line begins."""
        return self.e.place(k, m, self.b.n0).index[0]

    def _words(self, code: Code, k: int, buffer: Buffer, warp: X, line: X, start: X, end: X) -> None:
        """Both elements of a word at every even element of the result, before column `end`."""
        even = code.let("even", mul(div(add(start, PAIR - 1), PAIR), PAIR))
        skip = code.let("skip", convert(sub(even, start), "i32"))
        with code.loop("q", -(-self.c.n // (PAIR * WARP)), unroll=0) as (inner, q):
            at = add(mul(q, PAIR * WARP), mul(self.lane, PAIR))
            column = inner.let("column", add(skip, at))
            with inner.when(lt(add(column, PAIR - 1), end)) as c:
                pair = c.declare("pair", buffer.type, count=PAIR)
                for e in range(PAIR):
                    c.emit(LoadVector(pair.name, i32(e), 1, shared_at(buffer, warp, line, add(column, e))))
                c.emit(StoreVector(self._at(k, add(even, at)), pair.name, i32(0), PAIR))

    def _ends(self, code: Code, k: int, buffer: Buffer, warp: X, row: X, width: X) -> None:
        """The first element of lines that begin at an odd one, and the last one of lines that end behind an even one.

        Two lanes a line.
        """
        with code.when(lt(self.lane, 2 * LINES)) as some:
            line = some.let("line", div(self.lane, 2))
            m = some.let("m", add(self.b.m0, row, line))
            with some.when(self._inside(m)) as c:
                start, last = c.let("start", self._start(k, m)), compare("==", mod(self.lane, 2), 1)
                skip = c.let("skip", convert(mod(start, PAIR), "i32"))
                odd = select(last, mod(sub(width, skip), PAIR), skip)
                column = c.let("column", select(last, sub(width, 1), i32(0)))
                with c.when(compare("==", odd, 1)) as one:
                    end = one.declare("end", buffer.type, count=1)
                    one.emit(LoadVector(end.name, i32(0), 1, shared_at(buffer, warp, line, column)))
                    one.emit(StoreVector(self._at(k, add(start, column)), end.name, i32(0), 1))

    def _at(self, k: int, index: X) -> Place:
        name, type = self.e.f.scalars.result(k), self.e.outs[k].tensor.dtype
        return Place("global", name, (index,), type)


__all__ = ["Lines", "line_buffers"]
