"""The contraction family on plain threads: f32 products of any operand type, register tiles, staged operands.

A block of TM x TN threads makes TM*FM x TN*FN results; a thread holds FM x FN of them a sum, in groups of up to four
neighbours, so that operands are read from shared memory as vectors.  Shared tiles are [k][row] in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emmy.codegen.expr import TID, Code, add, call, div, elem, f32, i32, mod, mul, shared_at
from emmy.codegen.families.contraction import Contraction
from emmy.codegen.families.frame import Frame
from emmy.codegen.families.staging import Tile
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.kernel import Kernel, Layout, LoadVector, Var, X
from emmy.ir.loop import Ax, Body, Expr
from emmy.ir.schedule import Row
from emmy.ir.views.access import async_copy, run_side
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.product import Part


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Threads, results a thread, elements of the summed axis a stage, ring depth."""

    threads_mn: tuple[int, int]
    fragments: tuple[int, int]
    block_k: int
    stages: int
    copies: bool
    group: int

    @staticmethod
    def of(row: Row) -> TileConfig:
        tm, tn = row.work.dims
        fm, fn = row.tile.fragment
        return TileConfig(
            (tm, tn), (fm, fn), row.tile.k, row.stage.depth, row.stage.where == "smem-async", row.raster.group
        )

    @property
    def threads(self) -> int:
        return self.threads_mn[0] * self.threads_mn[1]

    @property
    def block_m(self) -> int:
        return self.threads_mn[0] * self.fragments[0]

    @property
    def block_n(self) -> int:
        return self.threads_mn[1] * self.fragments[1]


def group_of(fragment: int) -> int:
    """Neighbours that a thread holds together: 4, 2 or 1."""
    return 4 if fragment % 4 == 0 else 2 if fragment % 2 == 0 else 1


def tiles(view: ContractionView, c: TileConfig) -> list[Tile]:
    """The staged tile of every part, left parts first."""
    left = [_tile(view, c, f"a{k}", p, view.m, c.block_m) for k, p in enumerate(view.parts_a)]
    return left + [_tile(view, c, f"b{k}", p, view.n, c.block_n) for k, p in enumerate(view.parts_b)]


def _tile(view: ContractionView, c: TileConfig, name: str, part: Part, own: tuple[Ax, ...], rows: int) -> Tile:
    run = run_side(part, view.body, own, view.k)
    copies = c.copies and run == "own" and rows % 4 == 0 and async_copy(part, view.body, own, view.k, "f32")
    pad = 4 if run == "k" and rows % 4 == 0 else 0
    return Tile(
        name,
        part,
        own,
        view.k,
        rows,
        c.block_k,
        "f32",
        run,
        "own",
        "async" if copies else "sync",
        c.stages,
        Layout(pad),
    )


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
            frame, view, tiles(view, c), c.block_m, c.block_n, c.block_k, c.threads, c.stages, c.group
        )  # fmt: skip

    def kernel(self) -> Kernel:
        c, code = self.c, self.code
        (tm, tn), (fm, fn) = c.threads_mn, c.fragments
        self.ty = code.let("ty", div(TID, tn)) if tm > 1 else i32(0)
        self.tx = code.let("tx", mod(TID, tn)) if tn > 1 else i32(0)
        self.acc = [code.declare(f"acc{k}", "f32", f32(0.0), fm * fn) for k in range(len(self.v.sums))]
        self.x.run(code, self._products)
        self._store(code)
        return self.f.kernel(self.x.buffers, self.x.blocks.grid, c.threads)

    def _products(self, code: Code, slot: X) -> None:
        (tm, tn), (fm, fn) = self.c.threads_mn, self.c.fragments
        left = [code.declare("frag_a", "f32", count=fm) for _ in self.x.left]
        right = [code.declare("frag_b", "f32", count=fn) for _ in self.x.right]
        with code.loop("kk", self.c.block_k, unroll=0 if self.c.block_k * fm * fn <= 1024 else 4) as (c, kk):
            for t, array in zip(self.x.left, left, strict=True):
                self._read(c, t, array, slot, kk, self.ty, tm, fm)
            for t, array in zip(self.x.right, right, strict=True):
                self._read(c, t, array, slot, kk, self.tx, tn, fn)
            with c.loop("i", fm, unroll=0) as (ci, i), ci.loop("j", fn, unroll=0) as (cj, j):
                for total, acc in zip(self.v.sums, self.acc, strict=True):
                    at = elem(acc, add(mul(i, fn), j))
                    product = call("fma", elem(left[total.a], i), elem(right[total.b], j), at, type="f32")
                    cj.assign(at, product)

    def _read(self, code: Code, t: Tile, array: Var, slot: X, kk: X, place: X, threads: int, fragment: int) -> None:
        width = group_of(fragment)
        with code.loop("g", fragment // width, unroll=0) as (c, g):
            row = add(mul(g, threads * width), mul(place, width))
            source = shared_at(t.buffer, slot, kk, row)
            if width > 1:
                c.emit(LoadVector(array.name, mul(g, width), width, source))
            else:
                c.assign(elem(array, g), c.load("x", "f32", source))

    def _store(self, code: Code) -> None:
        (tm, tn), (fm, fn) = self.c.threads_mn, self.c.fragments
        wm, wn = group_of(fm), group_of(fn)
        b, epilogue = self.x.blocks, self.x.epilogue(wn)
        with code.loop("i", fm, unroll=0) as (ci, i), ci.loop("g", fn // wn, unroll=0) as (c, g):
            row = add(mul(div(i, wm), tm * wm), mul(self.ty, wm), mod(i, wm))
            column = add(mul(g, tn * wn), mul(self.tx, wn))
            m, n = c.let("m", add(b.m0, row)), c.let("n", add(b.n0, column))
            at = add(mul(i, fn), mul(g, wn))
            sums = zip(self.v.sums, self.acc, strict=True)
            held: dict[Expr, Sequence[X]] = {s.node: [elem(acc, add(at, e)) for e in range(wn)] for s, acc in sums}
            epilogue.store(c, m, n, held, self.x.known(row, column))


__all__ = ["TileConfig", "group_of", "lower_tile", "tiles"]
