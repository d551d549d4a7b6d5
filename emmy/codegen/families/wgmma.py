"""The contraction family on Hopper's tensor cores: wgmma on tiles that TMA brings, producer and consumer warpgroups.

One thread of the producer warpgroup keeps a ring of tiles filled; each consumer warpgroup multiplies its rows by the
block's columns.  Operands lie in shared memory as TMA's 128-byte swizzle writes them and wgmma reads them, in either
order.  One group of products stays in flight: a slot is released when the group after it has been issued.  A block that
stays goes on to the next tile while the last one's results are stored.  For few rows the instruction's 64 rows lie
along n (`swapped`), and the blocks of a cluster may share the summed axis (`parts`), none of them without a stage of
it, or the tiles of the right factor (`cluster`).  Other blocks share a sum through a workspace (`parts`): each takes a
part of every tile, or an equal share of the stages of all tiles (`wgmma_stream`).  Two consumer warpgroups may take
turns (`pingpong`): while one multiplies, the other stores its tile.  Left factors that are not stored as the product
takes them are computed by the consumers from raw tiles (`wgmma_registers`) while the products before them run.  Sums of
8-bit products are added to f32 registers after every tile.  Factors of f32 are taken in tf32: TMA rounds the
tiles that nothing but products reads, consumers round what they compute, and the instruction cuts off the low 13 bits
of tiles from which row scalars are gathered, too.  What rows say: `emmy.ir.warpgroups`.

Sources: PTX ISA manual (wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from emmy.codegen.expr import BID, TID, Code, add, call, compare, div, elem, f32, i32, lt, mod, mul, select, sub
from emmy.codegen.families.blocks import Blocks, place_blocks, tiles_of
from emmy.codegen.families.frame import Frame, static
from emmy.codegen.families.parts import Finish, Parts
from emmy.codegen.families.wgmma_gather import Gather
from emmy.codegen.families.wgmma_lines import line_buffers
from emmy.codegen.families.wgmma_registers import SETS, Fragments
from emmy.codegen.families.wgmma_results import Results
from emmy.codegen.families.wgmma_stream import Stream
from emmy.codegen.families.wgmma_tiles import staged as staged_result
from emmy.codegen.families.wgmma_tiles import staged_operand
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.build import imul
from emmy.ir.kernel import (
    Advance,
    Builtin,
    ClusterBarrier,
    Cursor,
    If,
    InitRings,
    Kernel,
    Matrix,
    NamedBarrier,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    Role,
    Roles,
    Var,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.loop import Body, Expr, Load, const
from emmy.ir.schedule import Row
from emmy.ir.views.box import points
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.converted import Left, left_of, stored
from emmy.ir.views.gather import passing
from emmy.ir.views.product import Part
from emmy.ir.views.results import by_boxes
from emmy.ir.warpgroups import GROUP, Warpgroups

TURN: Final = 4  # the named barrier that lets the first of two groups multiply; the next one lets the second


def lower_wgmma(body: Body, row: Row, scalars: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a contraction and a wgmma row (WORK=w…+p4, TILE=wgmma_m64n…, STAGE=d…/smem-tma)."""
    view = contraction_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name} is no contraction: {view}", "take a row of another family")
    config = Warpgroups.of(row)
    if config.type == "tf32":
        view = view.in_tf32()
    if config.swapped:
        view = view.swapped()
    return _Wgmma(view, config, Frame(body, scalars, name, comment)).kernel()


class _Wgmma:
    def __init__(self, view: ContractionView, config: Warpgroups, frame: Frame) -> None:
        self.v, self.c, self.f = view, config, frame
        c, names = config, frame.scalars.names
        left = left_of(view)
        if isinstance(left, str) or bool(left.computed) != c.computed:
            why = left if isinstance(left, str) else "left factors that take another form"
            raise LoweringError(f"{frame.name} has {why}", "take a row of another family")
        self.factors = left
        self.at_once = c.at_once(len(view.sums), self._left_registers)
        type = config.type
        products = _products_alone(view, c, left)
        self.tiles = {
            n: staged_operand(
                frame, view, c, Part(n, view.k), "a", view.m, c.long, n.dtype, rounded=type == "tf32" and n in products
            )
            for n in left.tiles
        }
        # the tile of each left factor that is read as it lies there
        self.left = [None if (n := stored(p, type)) is None else self.tiles[n] for p in view.parts_a]
        plain = [Part(n, view.k) for p in view.parts_b if (n := stored(p, type)) is not None]
        self.right = [
            staged_operand(frame, view, c, p, "b", view.n, c.n, c.stored.name, c.cluster > 1, type == "tf32")
            for p in plain
        ]
        boxes = c.out and by_boxes(view)
        self.outs = [staged_result(frame, view, c, k) for k in range(len(view.body.outs))] if boxes else []
        lines = line_buffers(frame, view, c) if c.out and not boxes else []
        operands = [o.buffer for o in (*self.tiles.values(), *self.right)]
        self.results = Results(frame, view, c, self.outs, lines, operands)
        # every warp that reads a slot releases it, in each block whose slot it reads
        self.ring = Ring(names.fresh("ring"), c.stages, 1, 4 * c.cluster * (1 if c.pingpong else c.groups))
        self.rank: X = Builtin("cluster_rank")
        self.stream = Stream(frame, self._count(), self._stages()) if c.stream else None
        parts = Parts(2) if c.stream else Parts(c.shared, c.atomic)
        words = c.fragments * c.n // 2 * len(view.sums)
        shares = parts.count > 1
        self.finish = Finish(frame, parts, self._count(), 4 * c.groups, words) if shares else None

    def _left_registers(self, at_once: int) -> int:
        return self.factors.registers(self.c.fragments, self.c.steps, at_once)

    def _stages(self) -> X:
        """How many tiles of the summed axis there are."""
        return div(add(self.f.total(self.v.k), self.c.block_k - 1), self.c.block_k)

    def kernel(self) -> Kernel:
        c, f = self.c, self.f
        code = f.code
        code.emit(InitRings())
        self._together(code)
        self.tile: X = BID
        if c.shared > 1:
            self.tile, self.part = code.let("shared_tile", div(BID, c.shared)), code.let("part", mod(BID, c.shared))
        if self.stream is not None:
            self.stream.begin(code)
        blocks = None if c.persist else self._blocks(code, div(self.tile, c.parts * c.cluster))
        self.results.scalars_of(blocks, code)
        producer_registers, consumer_registers, resident = c.registers(
            len(self.v.sums), self._left_registers(self.at_once)
        )
        producer = Role("producer", 4, producer_registers, tuple(self._producer(blocks).statements))
        consumer = Role("consumer", 4 * c.groups, consumer_registers, tuple(self._consumer(blocks).statements))
        code.emit(Roles((producer, consumer)))
        if self.results.combined:
            assert blocks is not None
            self._together(code)
            self.results.combine(code, blocks)
        if c.parts > 1 or c.cluster > 1:
            code.emit(ClusterBarrier())  # nobody leaves while another block reads its sums or writes to its slots
        operands = [*self.tiles.values(), *self.right]
        shared = [*(o.buffer for o in operands), *self.results.buffers]
        maps = (*(o.map for o in operands), *(o.map for o in self.outs))
        together = c.parts * c.cluster
        grid = (imul(self._count(), together * c.shared), const(1), const(1))
        return f.kernel(shared, grid, c.threads, resident, (self.ring,), maps, (together, 1, 1))

    def _together(self, code: Code) -> None:
        """All threads of the blocks that share a tile."""
        code.emit(ClusterBarrier()) if self.c.parts > 1 or self.c.cluster > 1 else code.barrier()

    def _blocks(self, code: Code, index: X) -> Blocks:
        v, c = self.v, self.c
        b = place_blocks(self.f, v.batch, v.m, v.n, c.long * c.cluster, c.n, c.group, code=code, index=index)
        return b if c.cluster == 1 else replace(b, m0=code.let("m_own", add(b.m0, mul(self.rank, c.long))))

    def _count(self) -> Expr:
        """How many tiles (with clusters: pairs of them) there are."""
        v, c = self.v, self.c
        return imul(points(v.batch), imul(tiles_of(v.m, c.long * c.cluster), tiles_of(v.n, c.n)))

    def _tiles(self, code: Code, blocks: Blocks | None, work: Callable[[Code, Blocks], None], turn: X | None) -> None:
        """`work(code, blocks)` for every tile of the block; with `turn` (0 or 1) for every other one."""
        if blocks is not None:
            work(code, blocks)
            return
        if self.stream is not None:
            with self.stream.pieces(code) as (inner, piece):
                self.piece = piece
                work(inner, self._blocks(inner, piece.tile))
            return
        each: X = div(Builtin("grid_x"), self.c.cluster)
        start: X = div(BID, self.c.cluster)
        step = each
        if turn is not None:
            start, step = add(start, mul(turn, each)), mul(each, 2)
        with code.loop("tile", self.f.count(self._count()), start=start, step=step) as (inner, tile):
            self.following = add(tile, each)
            work(inner, self._blocks(inner, tile))

    def _k_range(self, code: Code) -> tuple[X, X]:
        """First and past the last tile of the summed axis that the block takes."""
        tiles, parts = self._stages(), self.c.parts * self.c.shared
        if self.stream is not None:
            return self.piece.first, self.piece.last
        if parts == 1:
            return i32(0), tiles
        share = div(add(tiles, parts - 1), parts)
        first = code.let("k_first", mul(self.part if self.c.shared > 1 else self.rank, share))
        last = add(first, share)
        return first, code.let("k_last", select(lt(last, tiles), last, tiles))

    # -- the producer

    def _producer(self, blocks: Blocks | None) -> Code:
        names = self.f.scalars.names
        code, cursor = Code(names), names.fresh("fill")
        slot = Var(f"{cursor}_slot", "i32")
        bytes = sum(o.bytes for o in (*self.tiles.values(), *self.right))

        def fill(inner: Code, b: Blocks) -> None:
            first, last = self._k_range(inner)
            with inner.loop("t", last, start=first) as (c, t):
                c.emit(RingWait(cursor, "empty"), RingArrive(cursor, "full", bytes))
                k0 = mul(t, self.c.block_k)
                for o in self.tiles.values():
                    o.load(c, slot, b.m0, k0, b.batch, cursor)
                for o in self.right:
                    o.load(c, slot, b.n0, k0, b.batch, cursor, self.rank if self.c.cluster > 1 else None)
                c.emit(Advance(cursor))

        with code.when(compare("==", TID, 0)) as one:
            one.emit(Cursor(cursor, self.ring.name))
            self._tiles(one, blocks, fill, None)
        return code

    # -- the consumers

    def _consumer(self, blocks: Blocks | None) -> Code:
        c, names = self.c, self.f.scalars.names
        code = Code(names)
        self.take, self.free = names.fresh("take"), names.fresh("free")
        index = sub(div(TID, GROUP), 1) if c.groups > 1 else i32(0)
        whole = c.groups == 1 or c.pingpong
        self.row0 = i32(0) if whole else code.let("row0", mul(index, 64 * c.fragments))
        code.emit(Cursor(self.take, self.ring.name), Cursor(self.free, self.ring.name))
        if c.pingpong:
            self._begin_turns(code, index)

        def multiply(inner: Code, b: Blocks) -> None:
            each = c.fragments * c.n // 2
            acc = [inner.declare(f"acc{k}", "f32", count=each) for k in range(len(self.v.sums))]
            sums = acc
            if c.promotes:
                sums = [inner.declare(f"sum{k}", "f32", f32(0.0), each) for k in range(len(acc))]
            if c.pingpong:
                inner.emit(NamedBarrier(add(index, TURN), 2 * GROUP))
            gather = Gather(self.f, self.v, c, self.left[0], self.results, b, self.row0)
            fragments = Fragments(self.f, self.v, c, self.factors, self.tiles, self.results, b, self.row0, self.at_once)
            self._sums(inner, acc, sums, index, gather, fragments)
            self._store(inner, b, sums, index)
            if c.pingpong:
                self._skip(inner, self._k_range(inner)[1])

        self._tiles(code, blocks, multiply, index if c.pingpong else None)
        self.results.end(code)
        return code

    def _store(self, code: Code, b: Blocks, sums: Sequence[Var], index: X) -> None:
        """The results of a tile, by the last warp to add to its sums where blocks share them."""
        self.results.drain(code)
        if self.finish is None:
            self.results.store(code, b, sums, self.row0, index)
            return
        warp = code.let("part_warp", sub(div(TID, 32), 4))
        arrays = [(a, self.c.fragments * self.c.n // 2) for a in sums]
        if self.stream is None:
            with self.finish.last(code, self.tile, self.part, warp, arrays) as last:
                self.results.store(last, b, sums, self.row0, index)
            return
        piece = self.piece
        mine = code.declare("mine", "i32", i32(1))
        with code.when(lt(piece.count, self._stages())) as some:
            some.assign(mine, i32(0))
            with self.finish.last(some, piece.slot, piece.part, warp, arrays) as last:
                last.assign(mine, i32(1))
        with code.when(compare("==", mine, 1)) as last:
            self.results.store(last, b, sums, self.row0, index)

    def _begin_turns(self, code: Code, index: X) -> None:
        """The second group starts with the second tile, and lets the first go ahead."""
        with code.when(compare("==", index, 1)) as second:
            self._skip(second, self._k_range(second)[1])
            second.emit(NamedBarrier(i32(TURN), 2 * GROUP, arrive=True))

    def _skip(self, code: Code, slots: X) -> None:
        """Past the slots of a tile that the other group takes."""
        code.emit(Advance(self.take, slots), Advance(self.free, slots))

    def _sums(
        self, code: Code, acc: Sequence[Var], sums: Sequence[Var], index: X, gather: Gather, fragments: Fragments
    ) -> None:
        """The instruction's registers `acc` are the sums themselves, or are added to them tile by tile."""
        first, last = self._k_range(code)
        gather.begin(code)
        fragments.begin(code)
        if self.c.promotes:
            with code.loop("t", last, start=first) as (loop, t):
                self._promoted(loop, acc, sums, t, gather, fragments)
            self._next_turn(code, index)
            gather.end(code)
            return
        some = Code(code.names)
        fragments.ahead(some, mul(first, self.c.block_k))
        # the first products begin the sums, so that no register is kept from tile to tile
        self._products(some, acc, first, last, gather, fragments, begin=True)
        with some.loop("t", last, start=add(first, 1)) as (loop, t):
            self._products(loop, acc, t, last, gather, fragments, begin=False)
        self._next_turn(some, index)
        some.emit(WgmmaWait(0))
        self._release(some)
        if static(self.f.total(self.v.k)) is None:
            code.emit(If(lt(first, last), tuple(some.statements), tuple(self._nothing(code, acc, index).statements)))
        else:
            code.emit(*some.statements)
        gather.end(code)
        fragments.end(code)

    def _nothing(self, code: Code, acc: Sequence[Var], index: X) -> Code:
        """In place of the products of a sum that has no terms."""
        none = Code(code.names)
        with none.loop("q", self.c.fragments * self.c.n // 2, unroll=0) as (inner, q):
            for array in acc:
                inner.assign(elem(array, q), f32(0.0))
        self._next_turn(none, index)
        return none

    def _next_turn(self, code: Code, index: X) -> None:
        """All products are issued: the other group's turn, if it has another tile."""
        if self.c.pingpong:
            with code.when(lt(self.following, self.f.count(self._count()))) as more:
                more.emit(NamedBarrier(sub(TURN + 1, index), 2 * GROUP, arrive=True))

    def _promoted(
        self, code: Code, acc: Sequence[Var], sums: Sequence[Var], t: X, gather: Gather, fragments: Fragments
    ) -> None:
        """Products of tile t of the summed axis, which begin sums of their own, and these added to those in f32."""
        slot = Var(f"{self.take}_slot", "i32")
        code.emit(RingWait(self.take, "full"), WgmmaFence())
        for s in range(self.c.steps):
            self._step(code, acc, slot, s, fragments, s == 0)
        code.emit(WgmmaCommit())
        gather.tile(code, slot, mul(t, self.c.block_k))
        code.emit(Advance(self.take), WgmmaWait(0))
        self._release(code)
        with code.loop("q", self.c.fragments * self.c.n // 2, unroll=0) as (inner, q):
            for total, array in zip(sums, acc, strict=True):
                inner.assign(elem(total, q), call("add", elem(total, q), elem(array, q), type="f32"))

    def _products(
        self, code: Code, acc: Sequence[Var], t: X, last: X, gather: Gather, fragments: Fragments, begin: bool
    ) -> None:
        """Products of tile t of the summed axis, of those before `last`; with `begin` the first of their sums.

        When they have been issued the tile before is released, as soon as its own products are done.
        """
        slot, k0 = Var(f"{self.take}_slot", "i32"), mul(t, self.c.block_k)
        if self.c.computed:
            fragments.arrive(code)
            following = add(t, 1)
            fragments.ahead(code, mul(select(lt(following, last), following, t), self.c.block_k))
            code.emit(RingWait(self.take, "full"))
            self._computed(code, acc, slot, k0, fragments, begin)
            code.emit(Advance(self.take))
            return
        code.emit(RingWait(self.take, "full"), WgmmaFence())
        for s in range(self.c.steps):
            self._step(code, acc, slot, s, fragments, begin and s == 0)
        code.emit(WgmmaCommit())
        gather.tile(code, slot, k0)
        code.emit(Advance(self.take))
        if not begin:
            code.emit(WgmmaWait(1))
            self._release(code)

    def _computed(self, code: Code, acc: Sequence[Var], slot: X, k0: X, fragments: Fragments, begin: bool) -> None:
        """Groups of steps: while the products of one run, the left factors of the next go into the other set.

        An even number of them makes a tile, so that the compiler sees which set a product reads.  Copies from one set
        to the other would not do: it takes them for the registers that are copied, which products may still read.
        """
        for number, s in enumerate(range(0, self.c.steps, self.at_once)):
            if not begin or number >= SETS:
                code.emit(WgmmaWait(SETS - 1))  # the products that read this set are done
            if not begin and number == SETS - 1:
                self._release(code)
            fragments.compute(code, slot, s, k0)
            code.emit(WgmmaFence())
            for k in range(s, s + self.at_once):
                self._step(code, acc, slot, k, fragments, begin and k == 0)
            code.emit(WgmmaCommit())

    def _step(self, code: Code, acc: Sequence[Var], slot: X, s: int, fragments: Fragments, first: bool) -> None:
        """The products of one instruction's step of a tile."""
        c = self.c
        for i in range(c.fragments):
            for total, array in zip(self.v.sums, acc, strict=True):
                a: Matrix | tuple[X, X, X, X] | None = fragments.of(total.a, i, s)
                if a is None:
                    tile = self.left[total.a]
                    assert tile is not None
                    a = tile.matrix(slot, add(self.row0, 64 * i), s * c.step)
                b = self.right[total.b].matrix(slot, i32(0), s * c.step)
                at = i32(i * c.n // 2)
                code.emit(Wgmma(array.name, at, c.n, c.type, a, b, accumulate=not first))

    def _release(self, code: Code) -> None:
        blocks = self.c.cluster
        if self.results.passing or self.c.computed:
            # all lanes have read the slot by ordinary loads, which an arrival alone does not order (`ring.release`)
            code.emit(ProxyFence("shared"), WarpSync())
        with code.when(lt(mod(TID, 32), blocks)) as some:
            some.emit(RingArrive(self.free, "empty", rank=mod(TID, 32) if blocks > 1 else None))
        code.emit(Advance(self.free))


def _products_alone(view: ContractionView, c: Warpgroups, left: Left) -> frozenset[Load]:
    """The left tiles that nothing but products reads: no row scalar is gathered from them, no factor computed."""
    if c.gathers and passing(view):
        return frozenset()
    return frozenset(left.tiles) - {n for one in left.computed for n in one.tiles}


__all__ = ["lower_wgmma"]
