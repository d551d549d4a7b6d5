"""The contraction family on plain threads: f32 products of any operand type, register tiles, staged operands.

A block of TM x TN threads makes TM*FM x TN*FN results; a thread holds FM x FN of them a sum.  A side whose operands run
along the sum is staged as it lies, [row][k], and four elements of the sum are read at a time; its thread holds every
TM-th (TN-th) row, so that neighbours read neighbouring rows.  The other sides are staged [k][row], and a thread holds
groups of four neighbours, and of two and one where their number leaves a rest.  No bank is asked twice either way.

With `turn` operands that run along the sum are copied element by element, so that they are staged [k][row] too.  A step
is one element of the sum then, and the factors of neighbouring results lie in both banks of the register file: where
four elements of the sum are read at a time, both factors of a product come out of one bank.

Results of f32 are sums of sums: after every 512 elements a thread's sums are added to its totals in shared memory.

With `reg` fragments are read one step ahead of their products, also across stages.  With `coop/rP` the block has P such
groups of threads, each of which sums a P-th of every stage; their sums are added in order at the end.  Several blocks
may share a sum (see `parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emmy.codegen.expr import TID, Code, add, call, compare, div, elem, f32, i32, lt, mod, mul, shared_at, sub
from emmy.codegen.families.contraction import Contraction
from emmy.codegen.families.frame import Frame
from emmy.codegen.families.parts import Parts
from emmy.codegen.families.ring import Chunks
from emmy.codegen.families.tiles import Tile, swizzled
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.kernel import Buffer, Elem, Kernel, Layout, LoadVector, Place, Var, X
from emmy.ir.loop import Ax, Body, Expr
from emmy.ir.schedule import Row
from emmy.ir.views.access import along_sum, async_copy, run_side
from emmy.ir.views.chunks import CHUNK, sums_in_chunks
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.product import Part

QUAD = 4  # elements of the sum that a vector of 16 bytes holds
BUNCH = 8  # copies of an operand in a step: before each bunch of them the assembler spends three empty reads
ROLLED = 1024  # products of a thread from which a stage is not unrolled as a whole


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Threads of a group, results a thread, elements of the sum a stage, ring depth, groups that share a sum."""

    threads_mn: tuple[int, int]
    fragments: tuple[int, int]
    block_k: int
    stages: int
    copies: bool
    group: int
    parts: int
    ahead: bool
    turn: bool
    blocks: Parts

    @staticmethod
    def of(row: Row) -> TileConfig:
        tm, tn = row.work.dims
        fm, fn = row.tile.fragment
        parts = row.reduce.accumulators if row.reduce.coop else 1
        stage = row.stage
        return TileConfig(
            (tm, tn), (fm, fn), row.tile.k, stage.depth, stage.where == "smem-async", row.raster.group, parts,
            stage.registers, stage.turn, Parts.of(row.reduce),
        )  # fmt: skip

    @property
    def threads(self) -> int:
        return self.threads_mn[0] * self.threads_mn[1] * self.parts

    @property
    def block_m(self) -> int:
        return self.threads_mn[0] * self.fragments[0]

    @property
    def block_n(self) -> int:
        return self.threads_mn[1] * self.fragments[1]

    def shifts(self, view: ContractionView) -> bool:
        """True when a thread's registers hold, beside accumulators and fragments, its share of a stage twice."""
        (fm, fn), pa, pb = self.fragments, len(view.parts_a), len(view.parts_b)
        quad = 1 if self.turn else QUAD
        used = 40 + len(view.sums) * fm * fn + quad * (2 if self.ahead else 1) * (pa * fm + pb * fn)
        stage = 4 * self.block_k * (pa * self.block_m + pb * self.block_n)
        return used + 2 * (stage // (4 * self.threads)) <= 255


def tiles(view: ContractionView, c: TileConfig) -> list[Tile]:
    """The staged tile of every part, left parts first."""
    found = []
    for side, parts, own in ((0, view.parts_a, view.m), (1, view.parts_b, view.n)):
        lying = along_sum(parts, view.body, own, view.k) and not c.turn
        found += [_tile(view, c, f"{'ab'[side]}{k}", p, own, side, lying) for k, p in enumerate(parts)]
    return found


def _tile(
    view: ContractionView, c: TileConfig, name: str, part: Part, own: tuple[Ax, ...], side: int, lying: bool
) -> Tile:
    threads, rows = c.threads_mn[side], c.threads_mn[side] * c.fragments[side]
    run = run_side(part, view.body, own, view.k)
    plain = async_copy(part, view.body, own, view.k, "f32")
    copies = c.copies and plain and (lying or (c.turn if run == "k" else rows % QUAD == 0))
    turned = run == "k" and not lying
    layout = _lying(c.block_k, threads) if lying else _turned(rows, copies) if turned else Layout()
    return Tile(
        name, part, own, view.k, rows, c.block_k, "f32", run, "k" if lying else "own", "async" if copies else "sync",
        c.stages, layout, shifts=c.shifts(view),
    )  # fmt: skip


def _lying(depth: int, threads: int) -> Layout:
    """The layout without bank conflicts for neighbours that read 16 bytes each, of neighbouring rows.

    All rows of a thread are swizzled alike, so that one address serves them all.
    """
    layout = swizzled(depth, 4)
    ways = min(layout.swizzle, threads >> layout.shift)
    return Layout(0, ways, layout.shift) if ways > 1 else Layout()


def _turned(rows: int, copies: bool) -> Layout:
    """The layout of [k][row] for an operand that runs along k.

    A copy of single elements writes eight neighbours in k of four rows: an odd number of vectors a line keeps their
    banks apart.
    """
    return Layout(4 if rows % (2 * QUAD if copies else QUAD) == 0 else 0)


@dataclass(frozen=True, slots=True)
class _Run:
    """`groups` groups of `width` neighbours, of which a thread's first is the `first` of all that it holds."""

    first: int
    groups: int
    width: int


@dataclass(frozen=True, slots=True)
class _Edge:
    """One side of a thread's results: `threads` of the group along it, `count` held; `lying` is staged [row][k]."""

    threads: int
    count: int
    lying: bool
    place: X

    @property
    def runs(self) -> tuple[_Run, ...]:
        """What a thread holds in the widest vectors that there are: seven neighbours are four, two and one."""
        found, first = [], 0
        for width in (1,) if self.lying else (4, 2, 1):
            groups = (self.count - first) // width
            if groups and self.threads * self.count % width == 0:
                found.append(_Run(first, groups, width))
                first += groups * width
        return tuple(found)

    @property
    def pitch(self) -> int:
        """Registers of one element of the sum: vectors begin at multiples of their width."""
        width = self.runs[0].width
        return -(-self.count // width) * width

    def row(self, run: _Run, g: X) -> X:
        """Of the block's rows the first of a group."""
        return add(mul(add(mul(g, self.threads), self.place), run.width), run.first * self.threads)

    def held(self, i: X, kk: X, quad: int) -> X:
        """Where in a half of the registers the fragment of row i and element kk of a step is."""
        return add(mul(i, quad), kk) if self.lying else add(mul(kk, self.pitch), i)


def lower_tile(body: Body, row: Row, scalars: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a contraction and a row WORK=t16x16,TILE=f4x8/k16,STAGE=d2/smem."""
    view = contraction_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name} is no contraction: {view}", "take a row of another family")
    return _Tiled(view, TileConfig.of(row), Frame(body, scalars, name, comment)).kernel()


class _Tiled:
    def __init__(self, view: ContractionView, config: TileConfig, frame: Frame) -> None:
        self.v, self.c, self.f, self.code = view, config, frame, frame.code
        c = config
        self.x = Contraction(
            frame, view, tiles(view, c), c.block_m, c.block_n, c.block_k, c.threads, c.stages, c.group, c.blocks,
            c.fragments[0] * c.fragments[1] * len(view.sums),
        )  # fmt: skip
        lying = [t.layout == "k" for t in (self.x.left[0], self.x.right[0])]
        self.quad = QUAD if any(lying) else 1
        self.steps = c.block_k // (self.quad * c.parts)
        self.part, ty, tx = self._places(frame.code)
        (tm, tn), (fm, fn) = c.threads_mn, c.fragments
        self.m, self.n = _Edge(tm, fm, lying[0], ty), _Edge(tn, fn, lying[1], tx)

    def kernel(self) -> Kernel:
        c, code = self.c, self.code
        count = self.m.count * self.n.count
        self.acc = [code.declare(f"acc{k}", "f32", f32(0.0), count) for k in range(len(self.v.sums))]
        halves = 2 if c.ahead else 1
        self.left = [code.declare("frag_a", "f32", count=halves * self.quad * self.m.pitch) for _ in self.x.left]
        self.right = [code.declare("frag_b", "f32", count=halves * self.quad * self.n.pitch) for _ in self.x.right]
        chunked = sums_in_chunks(self.v, c.parts * c.blocks.count)
        kept = c.parts if chunked else c.parts - 1
        self.totals = self._totals(kept) if kept else None
        tiles = max(1, CHUNK * c.parts // c.block_k)
        chunks = Chunks(tiles, lambda inner: self._each_total(inner, _bank)) if chunked else None
        if chunked:
            self._each_total(code, lambda inner, total, _: inner.store(total, f32(0.0)))
        if c.ahead:
            self.x.run_chained(
                code, self.steps, self._read, self._multiply, gather=False, again=True, least=BUNCH, chunks=chunks
            )
        else:
            self.x.run(code, self._products, chunks)
        shared = [*self.x.buffers, *([self.totals] if self.totals is not None else [])]
        if chunked:
            self._each_total(code, lambda inner, total, sum: inner.assign(sum, inner.load("x", "f32", total)))
        if c.parts > 1:
            self._combine(code, kept)
        with (
            code.when(compare("==", self.part, 0) if c.parts > 1 else None) as first,
            self.x.finished(first, self.acc, count) as last,
        ):
            self._store(last)
        return self.f.kernel(shared, self.x.grid, c.threads, 1)

    def _places(self, code: Code) -> tuple[X, X, X]:
        """(group, place along m, place along n) of a thread.

        A warp covers 4 x 8 threads where there are as many.  A lane shares its row with the next one and its column
        with the next but one: then the two quarters of half a warp are served together when each lane reads 16 bytes.
        """
        tm, tn = self.c.threads_mn
        parts = self.c.parts
        part = code.let("part", mod(div(TID, tm * tn), parts)) if parts > 1 else i32(0)
        own = mod(TID, tm * tn) if parts > 1 else TID
        across = max(min(tn, 8), 32 // tm)
        along = 32 // across
        if tm * tn % 32 or tm % along or tn % across or along * across != 32 or along == 1:
            return (
                part,
                code.let("ty", div(own, tn)) if tm > 1 else i32(0),
                code.let("tx", mod(own, tn)) if tn > 1 else i32(0),
            )
        warp, lane = code.let("warp", div(own, 32)), code.let("lane", mod(TID, 32))
        x = add(mul(mod(div(lane, 4), across // 2), 2), mod(lane, 2)) if across > 1 else i32(0)
        y = add(mul(div(lane, 2 * across), 2), mod(div(lane, 2), 2)) if across > 1 else lane
        return (
            part,
            code.let("ty", add(mul(div(warp, tn // across), along), y)),
            code.let("tx", add(mul(mod(warp, tn // across), across), x)) if tn > 1 else i32(0),
        )

    # -- the loop over the sum

    def _products(self, code: Code, slot: X) -> None:
        each = self.quad * self.m.count * self.n.count
        most = max(1, ROLLED // each)
        unroll = 0 if self.steps <= most else max(u for u in range(1, most + 1) if self.steps % u == 0)
        with code.loop("s", self.steps, unroll=unroll) as (c, step):
            self._read(c, slot, step, i32(0))
            self._multiply(c, i32(0))

    def _read(self, code: Code, slot: X, step: X, half: X) -> None:
        """The fragments of a step into one half of the registers.

        Groups take turns, so that one swizzled address serves all steps of a thread.
        """
        k0 = mul(add(mul(step, self.c.parts), self.part), self.quad)
        for edge, parts, arrays in ((self.m, self.x.left, self.left), (self.n, self.x.right, self.right)):
            at = mul(half, self.quad * edge.pitch)
            for t, array in zip(parts, arrays, strict=True):
                if edge.lying:
                    self._read_lying(code, edge, t, array, at, slot, k0)
                else:
                    self._read_turned(code, edge, t, array, at, slot, k0)

    def _read_lying(self, code: Code, edge: _Edge, t: Tile, array: Var, at: X, slot: X, k0: X) -> None:
        (run,) = edge.runs
        with code.loop("i", edge.count, unroll=0) as (c, i):
            place = shared_at(t.buffer, slot, edge.row(run, i), k0)
            c.emit(LoadVector(array.name, add(at, mul(i, QUAD)), QUAD, place))

    def _read_turned(self, code: Code, edge: _Edge, t: Tile, array: Var, at: X, slot: X, k0: X) -> None:
        with code.loop("kk", self.quad, unroll=0) as (ck, kk):
            for run in edge.runs:
                with ck.loop("g", run.groups, unroll=0) as (c, g):
                    source = shared_at(t.buffer, slot, add(k0, kk), edge.row(run, g))
                    target = add(at, mul(kk, edge.pitch), mul(g, run.width), run.first)
                    if run.width > 1:
                        c.emit(LoadVector(array.name, target, run.width, source))
                    else:
                        c.assign(elem(array, target), c.load("x", "f32", source))

    def _multiply(self, code: Code, half: X) -> None:
        """One step of the sums: along the shorter side and back, so that each product shares a factor with the next.

        The register file reads a shared factor once.  What is left is two reads a product, as many as its two banks
        serve.
        """
        rows, columns = self.m.count, self.n.count
        along = rows < columns
        lines, length = (columns, rows) if along else (rows, columns)

        def product(c: Code, kk: X, line: X, place: X) -> None:
            self._product(c, half, kk, *((place, line) if along else (line, place)))

        with code.loop("kk", self.quad, unroll=0) as (ck, kk):
            with ck.loop("i", lines // 2, unroll=0) as (ci, i):
                there = mul(i, 2)
                with ci.loop("j", length, unroll=0) as (c, j):
                    product(c, kk, there, j)
                with ci.loop("j", length, unroll=0) as (c, j):
                    product(c, kk, add(there, 1), sub(length - 1, j))
            if lines % 2:
                with ck.loop("j", length, unroll=0) as (c, j):
                    product(c, kk, i32(lines - 1), j)

    def _product(self, code: Code, half: X, kk: X, i: X, j: X) -> None:
        m, n, q = self.m, self.n, self.quad
        a0, b0 = mul(half, q * m.pitch), mul(half, q * n.pitch)
        for total, acc in zip(self.v.sums, self.acc, strict=True):
            at = elem(acc, add(mul(i, n.count), j))
            a = elem(self.left[total.a], add(a0, m.held(i, kk, q)))
            b = elem(self.right[total.b], add(b0, n.held(j, kk, q)))
            code.assign(at, call("fma", a, b, at, type="f32"))

    # -- results

    def _totals(self, groups: int) -> Buffer:
        """Of the last `groups` groups of threads: neighbours of a thread's own sum are other threads' of the same."""
        (tm, tn), count = self.c.threads_mn, self.m.count * self.n.count
        name = self.f.scalars.names.fresh("total")
        return Buffer(name, "f32", (groups, len(self.v.sums), count, tm * tn))

    def _each_total(self, code: Code, use: Callable[[Code, Place, Elem], None]) -> None:
        """`use(code, total, sum)` for all sums of a thread."""
        (tm, tn), count, totals = self.c.threads_mn, self.m.count * self.n.count, self.totals
        assert totals is not None
        own = mod(TID, tm * tn) if self.c.parts > 1 else TID
        with code.loop("e", count, unroll=0) as (c, e):
            for k, acc in enumerate(self.acc):
                use(c, shared_at(totals, self.part, k, e, own), elem(acc, e))

    def _combine(self, code: Code, kept: int) -> None:
        """Adds the sums of the other groups to those of the first, in order; of `kept` groups totals have room."""
        totals, (tm, tn), parts = self.totals, self.c.threads_mn, self.c.parts
        assert totals is not None
        count, before = self.m.count * self.n.count, parts - kept  # groups without a place
        own = code.let("own", mod(TID, tm * tn))
        with code.when(lt(0, self.part)) as others:
            for k, acc in enumerate(self.acc):
                with others.loop("e", count, unroll=0) as (c, e):
                    c.store(shared_at(totals, sub(self.part, before), k, e, own), elem(acc, e))
        code.barrier()
        with (
            code.when(compare("==", self.part, 0)) as first_group,
            first_group.loop("p", parts - 1) as (outer, p),
            outer.loop("e", count, unroll=0) as (c, e),
        ):
            for k, acc in enumerate(self.acc):
                other = c.load("x", "f32", shared_at(totals, add(p, 1 - before), k, e, own))
                c.assign(elem(acc, e), add(elem(acc, e), other))

    def _store(self, code: Code) -> None:
        for rows in self.m.runs:
            for columns in self.n.runs:
                self._store_runs(code, rows, columns)

    def _store_runs(self, code: Code, rows: _Run, columns: _Run) -> None:
        m, n = self.m, self.n
        b, epilogue = self.x.blocks, self.x.epilogue(columns.width)
        with (
            code.loop("i", rows.groups * rows.width, unroll=0) as (ci, i),
            ci.loop("g", columns.groups, unroll=0) as (c, g),
        ):
            row = add(m.row(rows, div(i, rows.width)), mod(i, rows.width))
            column = n.row(columns, g)
            at_m, at_n = c.let("m", add(b.m0, row)), c.let("n", add(b.n0, column))
            at = add(mul(add(i, rows.first), n.count), mul(g, columns.width), columns.first)
            sums = zip(self.v.sums, self.acc, strict=True)
            held: dict[Expr, Sequence[X]] = {
                s.node: [elem(acc, add(at, e)) for e in range(columns.width)] for s, acc in sums
            }
            epilogue.store(c, at_m, at_n, held, self.x.known(row, column))


def _bank(code: Code, total: Place, sum: Elem) -> None:
    """A thread's sum of a chunk goes to its total, and begins anew."""
    code.store(total, add(code.load("x", "f32", total), sum))
    code.assign(sum, f32(0.0))


__all__ = ["TileConfig", "lower_tile", "tiles"]
