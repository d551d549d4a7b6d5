"""How a warpgroup's sums become results: pair by pair, in blocks that TMA stores, line by line, or as deposits.

Register 4j + 2h + e of fragment i holds row 64i + 16 warp + lane/4 + 8h, column 8j + 2 (lane % 4) + e of the group's
rows (PTX ISA manual, register fragments of wgmma).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final

from emmy.codegen.expr import TID, Code, add, call, compare, div, elem, i32, lt, mod, mul, select, shared_at, sub
from emmy.codegen.families.blocks import Blocks
from emmy.codegen.families.epilogue import Epilogue, Held, Side
from emmy.codegen.families.frame import Frame, Known, fits
from emmy.codegen.families.rowscalars import RowScalars
from emmy.codegen.families.wgmma_lines import Lines
from emmy.codegen.families.wgmma_tiles import BUFFERS, Staged
from emmy.ir.kernel import (
    Buffer,
    Builtin,
    BulkCommit,
    BulkWait,
    Elem,
    Lit,
    LoadVector,
    NamedBarrier,
    Place,
    ProxyFence,
    StMatrix,
    StoreVector,
    TmaStore,
    Var,
    WarpSync,
    X,
)
from emmy.ir.loop import Expr, Fold
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.gather import passing
from emmy.ir.views.product import top_folds
from emmy.ir.warpgroups import GROUP, LINES, Warpgroups

# the named barrier of all consumers after their last products; groups that take turns, by the same one, deposit nothing
DRAINED: Final = 4
WIDE: Final = 4  # neighbours of which a thread reads what all blocks have deposited: 16 bytes from each
PAD = 8  # f32 beside a row of deposited sums: neighbours of a column lie in other banks


class Results:
    """`view` has the instruction's rows as m and its columns as n; `row0` is the group's first row in the block.

    Deposited sums lie in the memory of the rings `operands`, which nothing needs after the last products.
    """

    def __init__(
        self, frame: Frame, view: ContractionView, c: Warpgroups, outs: Sequence[Staged], lines: Sequence[Buffer],
        operands: Sequence[Buffer],
    ) -> None:  # fmt: skip
        self.f, self.v, self.c, self.outs, self.lines = frame, view, c, outs, lines
        self.lane = mod(TID, 32)
        self.scalars: list[RowScalars] = []
        self.passing: list[Fold] = []  # row scalars that consumers gather from the left factor's tiles
        largest = sorted(operands, key=lambda b: -b.bytes)
        over = zip_longest(range(len(view.sums)), largest[: len(view.sums)])
        self.deposits = [self._deposit(k, ring) for k, ring in over] if self.deposited else []

    @property
    def deposited(self) -> bool:
        """The sums pass through shared memory: to be combined, or because results run along the instruction's rows."""
        return self.c.swapped or self.c.parts > 1

    @property
    def combined(self) -> bool:
        """All threads of the block store results, after the groups have parted with their sums."""
        return self.deposited and self.c.shared == 1

    @property
    def buffers(self) -> list[Buffer]:
        scalars = (b for s in self.scalars for b in s.buffers.values())
        return [*(o.buffer for o in self.outs), *self.lines, *self.deposits, *scalars]

    def _deposit(self, k: int, ring: Buffer | None) -> Buffer:
        name = self.f.scalars.names.fresh(f"sum{k}_tile")
        # neighbours of a result's rows are neighbours here
        shape = (self.c.n, self.c.long) if self.c.swapped else (self.c.long, self.c.n)
        return Buffer(name, "f32", (shape[0], shape[1] + PAD), overlays=ring.name if ring is not None else "")

    def scalars_of(self, b: Blocks | None, code: Code) -> None:
        """The results' row scalars; those that no tile gives are computed in `code`, before the threads part.

        Without `b` blocks stay for several tiles, and tiles give all scalars.
        """
        v, c = self.v, self.c
        m0, n0, batch = (i32(0), i32(0), {}) if b is None else (b.m0, b.n0, b.batch)
        sides = (("m", v.scalars_m, v.m, c.long, m0), ("n", v.scalars_n, v.n, c.n, n0))
        for side, scalars, own, rows, own0 in sides:
            self.scalars.append(RowScalars(self.f, side, scalars, own, rows, own0, batch, c.threads))
        self.passing = passing(v) if c.gathers else []
        for s in self.scalars:
            s.gather(self.passing, c.parts)
            if b is not None:
                s.compute(code)

    def drain(self, code: Code) -> None:
        """By all consumers after their products: other warps' may still read the tiles that deposits overwrite."""
        if self.deposited:
            code.emit(NamedBarrier(i32(DRAINED), self.c.groups * GROUP))

    def store(self, code: Code, b: Blocks, acc: Sequence[Var], row0: X, index: X) -> None:
        """By each consumer group `index`, after its products."""
        if self.deposited:
            self._put(code, acc, row0)
            if not self.combined:
                code.emit(WarpSync())
                self._lines(code, b, row0)
        elif self.outs:
            self._blocks(code, b, acc, row0, index)
        elif self.lines:
            self._by_lines(code, b, acc, row0)
        else:
            self._pairs(code, b, acc, row0)

    def end(self, code: Code) -> None:
        """By each consumer group, after its last tile."""
        if self.outs:
            with code.when(compare("==", mod(TID, GROUP), 0)) as one:
                one.emit(BulkWait(0))

    # -- what the ways share

    def _epilogue(self, b: Blocks, width: int = 2) -> Epilogue:
        v, c = self.v, self.c
        m = Side(v.m, b.m_total, fits(b.m_total, c.long))
        n = Side(v.n, b.n_total, fits(b.n_total, c.n))
        return Epilogue(self.f, v.body.outs, n if c.swapped else m, m if c.swapped else n, b.batch, width)

    def _held(self, acc: Sequence[Var], at: X) -> Held:
        """The sums of the pair whose first register is `at`."""
        return {s.node: [elem(a, add(at, q)) for q in range(2)] for s, a in zip(self.v.sums, acc, strict=True)}

    def _known(self, row: X, column: X) -> Callable[[Code, int], Known]:
        """Row scalars of the pair that begins at (row, column) of the block, which runs along the results' rows."""
        only = {x for o in self.v.body.outs for x in top_folds(o.value)}

        def known(code: Code, e: int) -> Known:
            at = (add(row, e), column) if self.c.swapped else (row, add(column, e))
            found: dict[Expr, X] = {}
            for side, x in zip(self.scalars, at, strict=False):
                found.update(side.at(code, x, only))
            return found

        return known

    # -- pair by pair

    def _pairs(self, code: Code, b: Blocks, acc: Sequence[Var], row0: X) -> None:
        c, epilogue = self.c, self._epilogue(b)
        warp = mod(div(TID, 32), 4)
        with code.loop("i", c.fragments, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            row = add(row0, mul(i, 64), mul(warp, 16), div(self.lane, 4), mul(h, 8))
            m = ch.let("m", add(b.m0, row))
            with ch.loop("j", c.n // 8, unroll=0) as (inner, j):
                column = add(mul(j, 8), mul(mod(self.lane, 4), 2))
                n = inner.let("n", add(b.n0, column))
                at = add(mul(i, c.n // 2), mul(j, 4), mul(h, 2))
                epilogue.store(inner, m, n, self._held(acc, at), self._known(row, column))

    # -- blocks of 64 rows by TMA

    def _blocks(self, code: Code, b: Blocks, acc: Sequence[Var], row0: X, index: X) -> None:
        """stmatrix into one of two buffers of the group, then one thread's TMA store while the next is computed."""
        c, epilogue, width = self.c, self._epilogue(b), self.c.block
        local = mod(TID, GROUP)
        barrier = div(TID, GROUP)
        count = c.n // width
        # an odd number of blocks leaves the next tile to begin with the buffer that was stored last
        odd = c.persist and c.fragments * count % BUFFERS
        ahead = 0 if odd else (BUFFERS - 1) * len(self.outs)
        again = c.persist or c.fragments * count > BUFFERS  # a buffer is filled more than once
        with code.loop("i", c.fragments, unroll=0) as (ci, i), ci.loop("j", count, unroll=0) as (inner, j):
            turn = mod(add(mul(i, count), j), BUFFERS)
            row, column = add(row0, mul(i, 64)), mul(j, width)
            if again:
                with inner.when(compare("==", local, 0)) as one:
                    one.emit(BulkWait(ahead, read=True))
                inner.emit(NamedBarrier(barrier, GROUP))
            with inner.loop("q", width // 16, unroll=0) as (quarter, q):
                at = add(mul(i, c.n // 2), mul(j, width // 2), mul(q, 8))
                words = self._words(quarter, b, epilogue, acc, at, row, add(column, mul(q, 16)))
                line = add(mul(div(local, 32), 16), mod(self.lane, 16))
                for out, w in zip(self.outs, words, strict=True):
                    place = shared_at(out.buffer, index, turn, line, add(mul(q, 16), mul(div(self.lane, 16), 8)))
                    quarter.emit(StMatrix(place, tuple(Elem(w.name, i32(k), "u32") for k in range(4))))
            inner.emit(ProxyFence("shared"), NamedBarrier(barrier, GROUP))
            with inner.when(compare("==", local, 0)) as one:
                for out in self.outs:
                    first = (*(b.batch[a] for a in out.box.batch), add(b.m0, row), add(b.n0, column))
                    source = shared_at(out.buffer, index, turn, 0, 0)
                    one.emit(TmaStore(out.map.name, first, source), BulkCommit())

    def _words(
        self, code: Code, b: Blocks, epilogue: Epilogue, acc: Sequence[Var], at: X, row: X, column: X
    ) -> list[Var]:
        """Four words of each result: rows 8h on, columns 8e on, in the order in which stmatrix takes its matrices."""
        words = [code.declare("words", "u32", Lit(0, "u32"), 4) for _ in self.outs]
        warp = mod(div(TID, 32), 4)
        for part in range(4):
            h, e = part % 2, part // 2
            r = add(row, mul(warp, 16), div(self.lane, 4), 8 * h)
            q = add(column, 8 * e, mul(mod(self.lane, 4), 2))
            into = [Elem(w.name, i32(part), "u32") for w in words]
            held = self._held(acc, add(at, 4 * e + 2 * h))
            epilogue.pack(code, add(b.m0, r), add(b.n0, q), held, self._known(r, q), into)
        return words

    # -- line by line

    def _by_lines(self, code: Code, b: Blocks, acc: Sequence[Var], row0: X) -> None:
        """Eight rows of the warp at a time: stmatrix, then the warp's stores."""
        c, epilogue = self.c, self._epilogue(b)
        lines = Lines(epilogue, b, c, self.lines)
        own = code.let("own_warp", sub(div(TID, 32), 4))
        warp, each = mod(div(TID, 32), 4), 4 if c.n % 32 == 0 else 2
        with code.loop("i", c.fragments, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            first = add(row0, mul(i, 64), mul(warp, 16), mul(h, LINES))
            with ch.loop("j", c.n // (8 * each), unroll=0) as (inner, j):
                at = add(mul(i, c.n // 2), mul(j, 4 * each), mul(h, 2))
                words = self._line_words(inner, b, epilogue, acc, at, first, mul(j, 8 * each), each)
                for buffer, w in zip(self.lines, words, strict=True):
                    column = add(mul(j, 8 * each), mul(mod(div(self.lane, 8), each), 8))
                    place = shared_at(buffer, own, mod(self.lane, 8), column)
                    inner.emit(StMatrix(place, tuple(Elem(w.name, i32(k), "u32") for k in range(each))))
            ch.emit(WarpSync())
            lines.store(ch, own, first)
            ch.emit(WarpSync())

    def _line_words(
        self, code: Code, b: Blocks, epilogue: Epilogue, acc: Sequence[Var], at: X, row: X, column: X, count: int
    ) -> list[Var]:
        """`count` words of each result along the thread's row, from `column` on and eight columns apart."""
        words = [code.declare("words", "u32", Lit(0, "u32"), count) for _ in self.lines]
        r = add(row, div(self.lane, 4))
        for k in range(count):
            q = add(column, 8 * k, mul(mod(self.lane, 4), 2))
            into = [Elem(w.name, i32(k), "u32") for w in words]
            held = self._held(acc, add(at, 4 * k))
            epilogue.pack(code, add(b.m0, r), add(b.n0, q), held, self._known(r, q), into, loose=True)
        return words

    # -- through shared memory

    def _put(self, code: Code, acc: Sequence[Var], row0: X) -> None:
        """The group's sums into the block's deposits."""
        c = self.c
        warp = mod(div(TID, 32), 4)
        with code.loop("i", c.fragments, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            row = add(row0, mul(i, 64), mul(warp, 16), div(self.lane, 4), mul(h, 8))
            with ch.loop("j", c.n // 8, unroll=0) as (inner, j):
                column = add(mul(j, 8), mul(mod(self.lane, 4), 2))
                at = add(mul(i, c.n // 2), mul(j, 4), mul(h, 2))
                for buffer, a in zip(self.deposits, acc, strict=True):
                    if not c.swapped:
                        inner.emit(StoreVector(shared_at(buffer, row, column), a.name, at, 2))
                        continue
                    for e in range(2):
                        inner.store(shared_at(buffer, add(column, e), row), elem(a, add(at, e)))

    def _lines(self, code: Code, b: Blocks, row0: X) -> None:
        """Results of the warp's own rows of the instruction, along which they run, from its own deposits."""
        c, epilogue = self.c, self._epilogue(b)
        warp, each = mod(div(TID, 32), 4), 8  # pairs of a warp's 16 rows
        count = c.n * each // 32
        with code.loop("i", c.fragments, unroll=0) as (ci, i), ci.loop("q", count, unroll=min(count, 4)) as (inner, q):
            pair = add(mul(q, 32), self.lane)
            line = inner.let("line", div(pair, each))
            at = inner.let("at", add(row0, mul(i, 64), mul(warp, 16), mul(mod(pair, each), 2)))
            sums = zip(self.v.sums, self.deposits, strict=True)
            held: dict[Expr, list[X]] = {s.node: self._sum(inner, d, line, at) for s, d in sums}
            epilogue.store(inner, add(b.n0, line), add(b.m0, at), held, self._known(at, line))

    def combine(self, code: Code, b: Blocks) -> None:
        """By all threads of a cluster's blocks: each block stores its share of the results."""
        c, epilogue = self.c, self._epilogue(b, WIDE)
        if not epilogue.whole:
            epilogue = self._epilogue(b)
        width = epilogue.width
        lines, along = (c.n, c.long) if c.swapped else (c.long, c.n)
        some = lines * along // width
        share = -(-some // c.parts)
        first = add(mul(Builtin("cluster_rank"), share), TID) if c.parts > 1 else TID
        last = add(mul(Builtin("cluster_rank"), share), share) if c.parts > 1 else i32(share)
        if some % c.parts:
            last = select(lt(last, some), last, i32(some))
        with code.loop("group", last, start=first, step=c.threads) as (inner, group):
            line = inner.let("line", div(group, along // width))
            at = inner.let("at", mul(mod(group, along // width), width))
            sums = zip(self.v.sums, self.deposits, strict=True)
            held: dict[Expr, list[X]] = {s.node: self._sum(inner, d, line, at, width) for s, d in sums}
            row, column = (at, line) if c.swapped else (line, at)
            m, n = add(b.m0, row), add(b.n0, column)
            epilogue.store(inner, n if c.swapped else m, m if c.swapped else n, held, self._known(row, column))

    def _sum(self, code: Code, buffer: Buffer, line: X, at: X, count: int = 2) -> list[X]:
        """The sums of neighbours over the blocks of the cluster, always in the same order."""
        parts = []
        for rank in [None] if self.c.parts == 1 else [i32(p) for p in range(self.c.parts)]:
            parts.append(code.declare("part", "f32", count=count))
            place = Place("shared", buffer.name, (line, at), "f32", rank)
            code.emit(LoadVector(parts[-1].name, i32(0), count, place))
        totals: list[X] = []
        for e in range(count):
            total: X = elem(parts[0], e)
            for part in parts[1:]:
                total = call("add", total, elem(part, e), type="f32")
            totals.append(total if len(parts) == 1 else code.let("total", total))
        return totals


__all__ = ["PAD", "Results"]
