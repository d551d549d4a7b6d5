"""The contraction family on tensor cores: mma.sync m16n8k16 (bf16, f16), a ring of shared tiles, warps over the output.

A block makes WM*FM*16 x WN*FN*8 results; each of its WM x WN warps holds FM x FN fragments a sum.  Operands pass
through a ring of shared tiles of 16*k elements of the summed axis (see `staging`), fragments are read by ldmatrix one
step ahead of the products.  The tiles are brought by copies of all threads, or by TMA, which one thread asks for them.
Several blocks may share a sum (see `parts`).
Fragment maps follow the PTX ISA manual, sections on mma.m16n8k16 and ldmatrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emmy.codegen.expr import TID, Code, add, div, elem, i32, mod, mul
from emmy.codegen.families.contraction import Contraction
from emmy.codegen.families.fragments import load_a, load_b
from emmy.codegen.families.frame import Frame
from emmy.codegen.families.parts import Parts
from emmy.codegen.families.tiles import Tile, Transport, swizzled
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.kernel import Elem, Kernel, Lit, Mma, X
from emmy.ir.loop import Ax, Body, Expr
from emmy.ir.schedule import Row
from emmy.ir.views.access import async_copy, run_side
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.product import Part

STEP = 16  # elements of the summed axis an instruction takes


@dataclass(frozen=True, slots=True)
class MmaConfig:
    """What a row says: warps, fragments a warp, instruction steps a stage, ring depth."""

    type: str
    warps: tuple[int, int]
    fragments: tuple[int, int]
    steps: int
    stages: int
    where: str
    group: int
    parts: Parts

    @staticmethod
    def of(row: Row) -> MmaConfig:
        wm, wn = row.work.dims
        fm, fn = row.tile.fragment
        type = row.tile.instruction.split("_")[2]
        stage, parts = row.stage, Parts.of(row.reduce)
        return MmaConfig(
            type, (wm, wn), (fm, fn), row.tile.k, stage.depth, stage.where, row.raster.group, parts
        )  # fmt: skip

    @property
    def words(self) -> int:
        """Elements of one sum that a thread holds."""
        return self.fragments[0] * self.fragments[1] * 4

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    @property
    def block_m(self) -> int:
        return self.warps[0] * self.fragments[0] * 16

    @property
    def block_n(self) -> int:
        return self.warps[1] * self.fragments[1] * 8

    @property
    def block_k(self) -> int:
        return self.steps * STEP

    def shifts(self, view: ContractionView) -> bool:
        """True when a thread's registers hold, beside accumulators and fragments, its share of a stage twice."""
        (fm, fn), pa, pb = self.fragments, len(view.parts_a), len(view.parts_b)
        used = 40 + len(view.sums) * 4 * fm * fn + 8 * pa * fm + 4 * pb * fn
        stage = 2 * self.block_k * (pa * self.block_m + pb * self.block_n)
        return used + 2 * (stage // (4 * self.threads)) <= 255

    def tile(self, view: ContractionView, name: str, part: Part, own: tuple[Ax, ...], rows: int) -> Tile:
        """How `rows` rows of a part are staged."""
        run = run_side(part, view.body, own, view.k)
        copies = self.where == "smem-async" and async_copy(part, view.body, own, view.k, self.type)
        transport: Transport = "tma" if self.where == "smem-tma" else "async" if copies else "sync"
        layout = swizzled(self.block_k if run == "k" else rows, 2)
        shifts = self.shifts(view)
        return Tile(
            name, part, own, view.k, rows, self.block_k, self.type, run, run, transport, self.stages, layout,
            shifts=shifts,
        )  # fmt: skip


def tiles(view: ContractionView, c: MmaConfig) -> list[Tile]:
    """The staged tile of every part, left parts first."""
    made: list[Tile] = []
    for side, parts in (("a", view.parts_a), ("b", view.parts_b)):
        own, rows = (view.m, c.block_m) if side == "a" else (view.n, c.block_n)
        for k, part in enumerate(parts):
            name = side if len(parts) == 1 else f"{side}{k}"
            made.append(c.tile(view, name, part, own, rows))
    return made


def lower_mma(body: Body, row: Row, scalars: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a contraction and an mma row (WORK=w…, TILE=mma_m16n8k16_…, STAGE=d…/smem…)."""
    view = contraction_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name} is no contraction: {view}", "take a row of another family")
    return WarpProducts(view, MmaConfig.of(row), Frame(body, scalars, name, comment)).kernel()


class WarpProducts:
    """Products by the fragments of warps; `again` is that of `chained_ring`."""

    again = False

    def __init__(self, view: ContractionView, config: MmaConfig, frame: Frame) -> None:
        self.v, self.c, self.f, self.code = view, config, frame, frame.code
        c = config
        self.x = Contraction(
            frame, view, tiles(view, c), c.block_m, c.block_n, c.block_k, c.threads, c.stages, c.group, c.parts,
            c.words * len(view.sums),
        )  # fmt: skip

    def kernel(self) -> Kernel:
        c, code = self.c, self.code
        self.warp_m, self.warp_n = self._warps(code)
        self.lane = code.let("lane", mod(TID, 32))
        self._accumulators(code)
        self.x.run_chained(code, c.steps, self._fragments, self._step, again=self.again)
        x = self.x
        with x.finished(code, self.acc, c.words) as last:
            self._store(last)
        return self.f.kernel(x.buffers, x.grid, c.threads, 2 if c.threads <= 128 else 0, x.rings, x.maps)

    def _warps(self, code: Code) -> tuple[X, X]:
        wm, wn = self.c.warps
        warp = div(TID, 32)
        return (
            code.let("warp_m", div(warp, wn) if wm > 1 else i32(0)) if wm > 1 else i32(0),
            code.let("warp_n", mod(warp, wn) if wm > 1 else warp) if wn > 1 else i32(0),
        )

    # -- the loop over k

    def _accumulators(self, code: Code) -> None:
        fm, fn = self.c.fragments
        self.acc = [code.declare(f"acc{k}", "f32", Lit(0.0, "f32"), fm * fn * 4) for k in range(len(self.v.sums))]
        self.frag_a = [code.declare("frag_a", "u32", count=2 * fm * 4) for _ in self.v.parts_a]
        self.frag_b = [code.declare("frag_b", "u32", count=2 * fn * 2) for _ in self.v.parts_b]

    def _fragments(self, code: Code, slot: X, s: X, half: X) -> None:
        fm, fn = self.c.fragments
        k0 = mul(s, STEP)
        for t, array in zip(self.x.left, self.frag_a, strict=True):
            with code.loop("i", fm, unroll=0) as (c, i):
                m0 = add(mul(self.warp_m, fm * 16), mul(i, 16))
                at = add(mul(half, fm * 4), mul(i, 4))
                load_a(c, t.buffer, t.layout == "k", self.lane, array, at, slot, m0, k0)
        n0 = mul(self.warp_n, fn * 8)
        for t, array in zip(self.x.right, self.frag_b, strict=True):
            first = mul(half, fn * 2)
            if fn > 1:
                with code.loop("j", fn // 2, unroll=0) as (c, j):
                    at, n = add(first, mul(j, 4)), add(n0, mul(j, 16))
                    load_b(c, t.buffer, t.layout == "k", self.lane, array, at, slot, n, k0)
            if fn % 2:
                at, n = add(first, (fn - 1) * 2), add(n0, (fn - 1) * 8)
                load_b(code, t.buffer, t.layout == "k", self.lane, array, at, slot, n, k0, 2)

    def _step(self, code: Code, half: X) -> None:
        fm, fn = self.c.fragments
        with code.loop("i", fm, unroll=0) as (rows, i), rows.loop("j", fn, unroll=0) as (c, j):
            for total, acc in zip(self.v.sums, self.acc, strict=True):
                a0, b0 = add(mul(half, fm * 4), mul(i, 4)), add(mul(half, fn * 2), mul(j, 2))
                d0 = add(mul(i, fn * 4), mul(j, 4))
                d = tuple(Elem(acc.name, add(d0, q), "f32") for q in range(4))
                a = tuple(Elem(self.frag_a[total.a].name, add(a0, q), "u32") for q in range(4))
                b = tuple(Elem(self.frag_b[total.b].name, add(b0, q), "u32") for q in range(2))
                c.emit(self._product(d, a, b))

    def _product(self, d: tuple[Elem, ...], a: tuple[Elem, ...], b: tuple[Elem, ...]) -> Mma:
        return Mma("m16n8k16", self.c.type, d, a, b, d)

    # -- results

    def _store(self, code: Code) -> None:
        fm, fn = self.c.fragments
        b, epilogue = self.x.blocks, self.x.epilogue(2)
        with code.loop("i", fm, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            row = add(mul(self.warp_m, fm * 16), mul(i, 16), div(self.lane, 4), mul(h, 8))
            m = ch.let("m", add(b.m0, row))
            with ch.loop("j", fn, unroll=0) as (c, j):
                column = add(mul(self.warp_n, fn * 8), mul(j, 8), mul(mod(self.lane, 4), 2))
                n = c.let("n", add(b.n0, column))
                d0 = add(mul(i, fn * 4), mul(j, 4), mul(h, 2))
                sums = zip(self.v.sums, self.acc, strict=True)
                held: dict[Expr, Sequence[X]] = {s.node: [elem(acc, add(d0, q)) for q in range(2)] for s, acc in sums}
                epilogue.store(c, m, n, held, self.x.known(row, column))


__all__ = ["MmaConfig", "WarpProducts", "lower_mma", "tiles"]
