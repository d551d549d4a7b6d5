"""What both contraction families do around their products: blocks, row scalars, staged tiles, the ring over k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from emmy.codegen.expr import BID, TID, Code, add, div, i32, mod, mul
from emmy.codegen.families.blocks import Blocks, place_blocks
from emmy.codegen.families.boxes import operand
from emmy.codegen.families.epilogue import Epilogue, Side
from emmy.codegen.families.frame import Frame, Known, fits
from emmy.codegen.families.parts import Finish, Parts, share
from emmy.codegen.families.ring import Boxes, Chunks, Multiply, Read, Use, boxed_ring, chained_ring, ring
from emmy.codegen.families.rowscalars import RowScalars
from emmy.codegen.families.staging import Stager
from emmy.codegen.families.statistics import Statistics
from emmy.codegen.families.tiles import Tile
from emmy.ir.build import imul
from emmy.ir.kernel import InitRings, Lit, Ring, TensorMap, Var, X
from emmy.ir.loop import const
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.gather import gathered
from emmy.ir.views.product import top_folds


class Contraction:
    """Set-up of one contraction kernel.  `tiles` are those of the left parts, then those of the right parts."""

    def __init__(
        self, frame: Frame, view: ContractionView, tiles: Sequence[Tile], block_m: int, block_n: int, block_k: int,
        threads: int, stages: int, group: int, parts: Parts, words: int,
    ) -> None:  # fmt: skip
        """`words`: sums that a thread holds."""
        self.f, self.v, self.threads, self.stages, self.parts = frame, view, threads, stages, parts
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        names = frame.scalars.names
        named = [replace(t, label=names.fresh(f"{t.name}_tile")) for t in tiles]
        self.left, self.right = named[: len(view.parts_a)], named[len(view.parts_a) :]
        self.tile, self.part = self._share_of(frame.code)
        self.blocks: Blocks = place_blocks(
            frame, view.batch, view.m, view.n, block_m, block_n, group, index=self.tile
        )  # fmt: skip
        each = self.blocks.grid[0]
        self.grid = (imul(each, parts.count), const(1), const(1))
        self.finish = Finish(frame, parts, each, threads // 32, words) if parts.count > 1 else None
        b = self.blocks
        # the copies of a tile whose rows run along the sum pass rows by that no block has
        every_m, every_n = (any(t.run == "own" and t.part.scalars for t in side) for side in (self.left, self.right))
        self.scalars_m = RowScalars(frame, "m", view.scalars_m, view.m, block_m, b.m0, b.batch, threads, every_m)
        self.scalars_n = RowScalars(frame, "n", view.scalars_n, view.n, block_n, b.n0, b.batch, threads, every_n)
        self.buffers = [
            *(t.buffer for t in named), *self.scalars_m.buffers.values(), *self.scalars_n.buffers.values()
        ]  # fmt: skip
        # what TMA brings: all operands, or none
        self.boxed = [
            operand(frame, view, t.part, t.own, t.buffer, t.name) for t in named if t.transport == "tma"
        ]  # fmt: skip
        # every warp releases a slot
        rings = [Ring(names.fresh("ring"), stages, 1, threads // 32)] if self.boxed else []
        self.rings: tuple[Ring, ...] = tuple(rings)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        return tuple(o.map for o in self.boxed)

    def _share_of(self, code: Code) -> tuple[X, X]:
        """The block's tile, and which part of its sum it takes: the parts of a tile run side by side."""
        if self.parts.count == 1:
            return BID, i32(0)
        return code.let("shared_tile", div(BID, self.parts.count)), code.let("part", mod(BID, self.parts.count))

    @contextmanager
    def finished(self, code: Code, sums: Sequence[Var], words: int) -> Iterator[Code]:
        """Where `words` registers of each of the sums are those of the whole summed axis."""
        if self.finish is None:
            yield code
            return
        warp = code.let("part_warp", div(TID, 32))
        with self.finish.last(code, self.tile, self.part, warp, [(a, words) for a in sums]) as inner:
            yield inner

    def run(self, code: Code, products: Callable[[Code, X], None], chunks: Chunks | None = None) -> None:
        """The row scalars, then the ring; `products(code, slot)` adds one staged tile to the accumulators."""
        stagers, start, count = self._set_up(code)
        use: Use = lambda inner, _, slot: products(inner, slot)  # noqa: E731
        ring(code, stagers, self.stages, count, self.block_k, use, start=start, chunks=chunks)

    def run_chained(
        self,
        code: Code,
        steps: int,
        read: Read,
        multiply: Multiply,
        gather: bool = True,
        again: bool = False,
        least: int = 1,
        chunks: Chunks | None = None,
    ) -> None:
        """The same with tiles in steps, fragments read a step ahead of their products.

        With `gather` the tiles give row scalars that only the results use; `again`, `least` and `chunks` are those of
        `chained_ring`.
        """
        if self.boxed:
            code.emit(InitRings())
            code.barrier()
        # a part of the sum sees no row whole
        stagers, start, count = self._set_up(code, gather and self.parts.count == 1)
        if self.boxed:
            boxes = Boxes(self.rings[0], sum(o.bytes for o in self.boxed), self._ask)
            boxed_ring(code, boxes, stagers, count, self.block_k, steps, read, multiply, start)
            return
        chained_ring(
            code, stagers, self.stages, count, self.block_k, steps, read, multiply, again, start, least, chunks
        )

    def _ask(self, code: Code, slot: X, k0: X, cursor: str) -> None:
        b = self.blocks
        for k, o in enumerate(self.boxed):
            o.load(code, slot, b.m0 if k < len(self.left) else b.n0, k0, b.batch, cursor)

    def _set_up(self, code: Code, gather: bool = False) -> tuple[list[Stager], X, X]:
        """Row scalars; what moves the tiles, the first element of the summed axis, and how many tiles there are."""
        b = self.blocks
        stagers = [Stager(self.f, t, self.threads, b.m0, b.batch, self.scalars_m.of(t.part.scalars)) for t in self.left]
        stagers += [
            Stager(self.f, t, self.threads, b.n0, b.batch, self.scalars_n.of(t.part.scalars)) for t in self.right
        ]
        if gather:
            for s in stagers:
                self._gather(s, self.scalars_m if s.t.own == self.v.m else self.scalars_n)
        self.scalars_m.compute(code)
        self.scalars_n.compute(code)
        for s in stagers:
            s.setup(code)
        total = div(add(self.f.total(self.v.k), self.block_k - 1), self.block_k)
        first, count = share(total, self.parts.count, self.part)
        start = mul(first, self.block_k)
        return (
            stagers,
            start if isinstance(start, Lit) else code.let("k_start", start),
            count if isinstance(count, Lit) else code.let("k_tiles", count),
        )

    def _gather(self, stager: Stager, scalars: RowScalars) -> None:
        """Let a part's tiles give the row scalars that only the results use."""
        early = [s for t in (*self.left, *self.right) for s in t.part.scalars]
        given = gathered(scalars.scalars, stager.t.part, stager.t.own, self.v.k, early)
        folds = [s for s in given if s not in scalars.gathered]
        if folds and stager.steady:
            stager.statistics = Statistics(self.f, folds, scalars)
            scalars.gathered.update(folds)

    def epilogue(self, width: int) -> Epilogue:
        b = self.blocks
        m = Side(self.v.m, b.m_total, fits(b.m_total, self.block_m))
        n = Side(self.v.n, b.n_total, fits(b.n_total, self.block_n))
        return Epilogue(self.f, self.v.body.outs, m, n, b.batch, width)

    def known(self, row: X, column: X) -> Callable[[Code, int], Known]:
        """Row scalars at the block's (row, column + e)."""
        only = {f for o in self.v.body.outs for f in top_folds(o.value)}
        m, n = self.scalars_m.of(only), self.scalars_n.of(only)
        return lambda code, e: {**m(code, row), **n(code, add(column, e))}
