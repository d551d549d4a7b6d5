"""Row scalars of the `wgmma` family that consumers gather: each adds up its rows of the left factor as tiles pass.

While a slot's products run, the two threads of a row read their halves of it; a normalization's statistic costs no pass
over memory of its own.  Blocks that share a sum have a share of each row, and tell the others (`rowscalars`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from emmy.codegen.expr import TID, Code, add, convert, div, elem, i32, lt, mod, mul, shared_at
from emmy.codegen.families.blocks import Blocks
from emmy.codegen.families.boxes import Operand
from emmy.codegen.families.frame import Frame, static
from emmy.codegen.families.statistics import Statistics
from emmy.codegen.families.wgmma_results import Results
from emmy.ir.dtype import register
from emmy.ir.kernel import LoadVector, NamedBarrier, X
from emmy.ir.loop import Expr
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.warpgroups import GROUP, Warpgroups

THREADS = 2  # of a group for each of its rows


class Gather:
    """The statistics of one tile's rows; does nothing where no row scalar passes."""

    def __init__(
        self, frame: Frame, view: ContractionView, c: Warpgroups, left: Operand | None, results: Results, b: Blocks,
        row0: X,
    ) -> None:  # fmt: skip
        self.f, self.v, self.c, self.left, self.b, self.row0 = frame, view, c, left, b, row0
        # computed factors show their elements where they are computed
        self.folds = [] if c.computed else results.passing
        if self.folds:
            self.statistics = Statistics(frame, self.folds, results.scalars[0])
        k = static(frame.total(view.k))
        self.fits = k is not None and k % c.block_k == 0

    def begin(self, code: Code) -> None:
        if self.folds:
            self.statistics.declare(code, self.c.fragments)

    def _line(self, i: X) -> X:
        """The thread's row of the block in fragment i."""
        return add(self.row0, mul(i, 64), div(mod(TID, GROUP), THREADS))

    def tile(self, code: Code, slot: X, k0: X) -> None:
        """Add up the thread's half of its rows of a slot, whose elements begin at `k0` of the summed axis."""
        if not self.folds:
            return
        node = self.v.parts_a[0].plain
        assert node is not None and self.left is not None
        buffer, count = self.left.buffer, 16 // self.c.stored.bytes
        half = self.left.wide // THREADS
        with code.loop("i", self.c.fragments, unroll=0) as (each, i):
            line = each.let("line", self._line(i))
            env = {**self.b.batch, **self.f.decode(add(self.b.m0, line), self.v.m)}
            for slab in range(buffer.shape[1]):
                with each.loop("chunk", half // count, unroll=0) as (c, chunk):
                    column = add(mul(mod(TID, THREADS), half), mul(chunk, count))
                    raw = c.declare("chunk_raw", self.c.stored.name, count=count)
                    c.emit(LoadVector(raw.name, i32(0), count, shared_at(buffer, slot, i32(slab), line, column)))
                    for e in range(count):
                        k = add(k0, slab * self.left.wide, column, e)
                        held: dict[Expr, X] = {node: convert(elem(raw, e), register(node.dtype))}
                        inside = None if self.fits else lt(k, self.f.total(self.v.k))
                        self.statistics.take(c, i, {**env, self.v.k[0]: k}, held, inside)

    def end(self, code: Code) -> None:
        """The rows' scalars, where the results find them."""
        if self.folds:
            with handed(code, self.c):
                self.statistics.finish(code, self.c.fragments, THREADS, self._line, lambda line: None)


@contextmanager
def handed(code: Code, c: Warpgroups) -> Iterator[None]:
    """Around the stores of a group's row scalars, which the group's results read, or those of the whole cluster."""
    if c.parts > 1:  # the cluster has one tile, and meets before it makes results
        yield
        return
    barrier = NamedBarrier(div(TID, GROUP), GROUP)
    code.emit(barrier)  # the last tile's results have been made
    yield
    code.emit(barrier)


__all__ = ["Gather", "handed"]
