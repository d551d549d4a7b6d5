"""The contraction family on tensor cores: mma.sync m16n8k16 (bf16, f16), a ring of shared tiles, warps over the output.

A block makes WM*FM*16 x WN*FN*8 results; each of its WM x WN warps holds FM x FN fragments a sum.  Operands pass
through a ring of shared tiles of 16*k elements of the summed axis (see `staging`), fragments are read by ldmatrix one
step ahead of the products.  Fragment maps follow the PTX ISA manual, sections on mma.m16n8k16 and ldmatrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from emmy.codegen.expr import TID, Code, add, compare, div, elem, i32, lt, mod, mul, select, shared_at
from emmy.codegen.families.blocks import Blocks, place_blocks
from emmy.codegen.families.epilogue import Epilogue, Side
from emmy.codegen.families.frame import Env, Frame, Known, Naming, fits
from emmy.codegen.families.rowscalars import RowScalars
from emmy.codegen.families.staging import Scalars, Stager, Tile, swizzled
from emmy.ir.kernel import AsyncCommit, AsyncWait, Buffer, Elem, Kernel, LdMatrix, Lit, Mma, Var, X
from emmy.ir.loop import Ax
from emmy.ir.schedule import Row
from emmy.ir.views.access import async_copy, run_side
from emmy.ir.views.contraction_view import ContractionView
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
    copies: bool
    group: int

    @staticmethod
    def of(row: Row) -> MmaConfig:
        wm, wn = row.work.dims
        fm, fn = row.tile.fragment
        type = row.tile.instruction.split("_")[2]
        return MmaConfig(
            type, (wm, wn), (fm, fn), row.tile.k, row.stage.depth, row.stage.where == "smem-async", row.raster.group
        )

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


def tiles(view: ContractionView, c: MmaConfig) -> list[Tile]:
    """The staged tile of every part, left parts first."""
    made: list[Tile] = []
    for side, parts in (("a", view.parts_a), ("b", view.parts_b)):
        own, rows = (view.m, c.block_m) if side == "a" else (view.n, c.block_n)
        for k, part in enumerate(parts):
            name = side if len(parts) == 1 else f"{side}{k}"
            made.append(_tile(view, c, name, part, own, rows))
    return made


def _tile(view: ContractionView, c: MmaConfig, name: str, part: Part, own: tuple[Ax, ...], rows: int) -> Tile:
    run = run_side(part, view.body, own, view.k)
    copies = c.copies and async_copy(part, view.body, own, view.k, c.type)
    return Tile(
        name, part, own, view.k, rows, c.block_k, c.type, run, run, "async" if copies else "sync", c.stages,
        swizzled(c.block_k if run == "k" else rows, 2),
    )  # fmt: skip


def lower(view: ContractionView, row: Row, naming: Naming) -> Kernel:
    """The kernel of a contraction view and an mma row (WORK=w…, TILE=mma_m16n8k16_…, STAGE=d…/smem…)."""
    return _Mma(view, MmaConfig.of(row), naming).kernel()


class _Mma:
    def __init__(self, view: ContractionView, config: MmaConfig, naming: Naming) -> None:
        self.v, self.c = view, config
        self.f = Frame(view.body, naming)
        self.code = self.f.code
        self.tiles = tiles(view, config)
        self.buffers: list[Buffer] = [t.buffer for t in self.tiles]

    def kernel(self) -> Kernel:
        v, c, code = self.v, self.c, self.code
        blocks = place_blocks(self.f, v.batch, v.m, v.n, c.block_m, c.block_n, c.group)
        self.warp_m, self.warp_n = self._warps(code)
        self.lane = code.let("lane", mod(TID, 32))
        self.scalars_m = RowScalars(self.f, "m", v.scalars_m, v.m, c.block_m, blocks.m0, blocks.batch, c.threads)
        self.scalars_n = RowScalars(self.f, "n", v.scalars_n, v.n, c.block_n, blocks.n0, blocks.batch, c.threads)
        self.buffers += [*self.scalars_m.buffers.values(), *self.scalars_n.buffers.values()]
        self.scalars_m.compute(code)
        self.scalars_n.compute(code)
        stagers = [Stager(self.f, t, c.threads, *self._side(t, blocks)) for t in self.tiles]
        for s in stagers:
            s.setup(code)
        self._accumulators(code)
        self._pipeline(code, stagers)
        self._store(code, blocks)
        return self.f.kernel(self.buffers, blocks.grid, c.threads, 2 if c.threads <= 128 else 0)

    def _side(self, t: Tile, blocks: Blocks) -> tuple[X, Env, Scalars]:
        if t.name.startswith("a"):
            return blocks.m0, blocks.batch, self.scalars_m.at
        return blocks.n0, blocks.batch, self.scalars_n.at

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

    def _pipeline(self, code: Code, stagers: list[Stager]) -> None:
        """Ring of d tiles: tile kt is used while tile kt + d - 1 is on its way.

        The barrier after the wait does two things: it shows tile kt to all warps, and it says that all have left the
        buffer of tile kt - 1, which the copies issued next refill.
        """
        c, depth = self.c, self.c.block_k
        total = self.f.total(self.v.k)
        count = code.let("k_tiles", div(add(total, depth - 1), depth))
        copies = any(s.t.transport == "async" for s in stagers)
        ahead = c.stages - 1
        for p in range(ahead):
            with code.when(lt(p, count)) as first:
                self._fetch(first, stagers, i32(p), i32(p * depth))
            if copies:
                code.emit(AsyncCommit())
        slot = code.declare("slot", "i32", i32(0))
        with code.loop("kt", count) as (loop, kt):
            if copies:
                loop.emit(AsyncWait(max(0, ahead - 1)))
            loop.barrier()
            fill = loop.let("fill", select(compare("==", slot, 0), i32(c.stages - 1), add(slot, -1)))
            next_k = loop.let("next_k", mul(add(kt, ahead), depth))
            more = lt(add(kt, ahead), count)
            with loop.when(more) as issue:
                for s in stagers:
                    s.issue(issue, fill, next_k)
            if copies:
                loop.emit(AsyncCommit())
            self._products(loop, slot)
            if any(s.t.transport == "sync" for s in stagers):
                with loop.when(more) as finish:
                    for s in stagers:
                        s.finish(finish, fill, next_k)
            loop.assign(slot, select(compare("==", slot, c.stages - 1), i32(0), add(slot, 1)))

    def _fetch(self, code: Code, stagers: list[Stager], slot: X, k0: X) -> None:
        for s in stagers:
            s.issue(code, slot, k0)
        for s in stagers:
            s.finish(code, slot, k0)

    def _products(self, code: Code, slot: X) -> None:
        """Every instruction step of one tile; fragments of the next step are read before this step's products."""
        steps = self.c.steps
        self._fragments(code, slot, i32(0), i32(0))
        with code.loop("s", steps, unroll=0) as (body, s):
            if steps > 1:
                with body.when(lt(s, steps - 1)) as ahead:
                    self._fragments(ahead, slot, add(s, 1), mod(add(s, 1), 2))
            self._step(body, mod(s, 2))

    def _fragments(self, code: Code, slot: X, s: X, half: X) -> None:
        fm, fn = self.c.fragments
        na = len(self.v.parts_a)
        for t, array in zip(self.tiles[:na], self.frag_a, strict=True):
            with code.loop("i", fm, unroll=0) as (c, i):
                row0 = add(mul(self.warp_m, fm * 16), mul(i, 16))
                at = add(mul(half, fm * 4), mul(i, 4))
                self._ld_a(c, t, array, at, slot, row0, mul(s, STEP))
        for t, array in zip(self.tiles[na:], self.frag_b, strict=True):
            if fn > 1:
                with code.loop("j", fn // 2, unroll=0) as (c, j):
                    self._ld_b(c, t, array, add(mul(half, fn * 2), mul(j, 4)), slot, mul(j, 16), mul(s, STEP), 4)
            if fn % 2:
                self._ld_b(code, t, array, add(mul(half, fn * 2), (fn - 1) * 2), slot, i32((fn - 1) * 8), mul(s, STEP), 2)

    def _ld_a(self, code: Code, t: Tile, array: Var, at: X, slot: X, row0: X, k0: X) -> None:
        """Four 8x8 matrices of a 16x16 fragment: (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)."""
        dst = tuple(Elem(array.name, add(at, q), "u32") for q in range(4))
        low, high = mod(self.lane, 16), div(self.lane, 16)
        if t.layout == "k":
            place = shared_at(t.buffer, slot, add(row0, low), add(k0, mul(high, 8)))
        else:
            k, m = add(mul(high, 8), mod(self.lane, 8)), mul(mod(div(self.lane, 8), 2), 8)
            place = shared_at(t.buffer, slot, add(k0, k), add(row0, m))
        code.emit(LdMatrix(dst, place, t.layout != "k"))

    def _ld_b(self, code: Code, t: Tile, array: Var, at: X, slot: X, column: X, k0: X, count: int) -> None:
        """Two 16x8 fragments (or one): matrices (k 0-7, n 0-7), (k 8-15, n 0-7), (k 0-7, n 8-15), (k 8-15, n 8-15)."""
        dst = tuple(Elem(array.name, add(at, q), "u32") for q in range(count))
        low, high = mod(self.lane, 16), div(self.lane, 16) if count == 4 else i32(0)
        n0 = add(mul(self.warp_n, self.c.fragments[1] * 8), column)
        if t.layout == "k":
            n, k = add(mul(high, 8), mod(self.lane, 8)), mul(mod(div(self.lane, 8), 2), 8)
            place = shared_at(t.buffer, slot, add(n0, n), add(k0, k))
        else:
            place = shared_at(t.buffer, slot, add(k0, low), add(n0, mul(high, 8)))
        code.emit(LdMatrix(dst, place, t.layout != "k"))

    def _step(self, code: Code, half: X) -> None:
        fm, fn = self.c.fragments
        with code.loop("i", fm, unroll=0) as (rows, i), rows.loop("j", fn, unroll=0) as (c, j):
            for total, acc in zip(self.v.sums, self.acc, strict=True):
                a0, b0 = add(mul(half, fm * 4), mul(i, 4)), add(mul(half, fn * 2), mul(j, 2))
                d0 = add(mul(i, fn * 4), mul(j, 4))
                d = tuple(Elem(acc.name, add(d0, q), "f32") for q in range(4))
                a = tuple(Elem(self.frag_a[total.a].name, add(a0, q), "u32") for q in range(4))
                b = tuple(Elem(self.frag_b[total.b].name, add(b0, q), "u32") for q in range(2))
                c.emit(Mma("m16n8k16", self.c.type, d, a, b, d))

    # -- results

    def _store(self, code: Code, blocks: Blocks) -> None:
        fm, fn = self.c.fragments
        m = Side(self.v.m, blocks.m_total, fits(blocks.m_total, self.c.block_m))
        n = Side(self.v.n, blocks.n_total, fits(blocks.n_total, self.c.block_n))
        epilogue = Epilogue(self.f, self.v.body.outs, m, n, blocks.batch, 2)
        with code.loop("i", fm, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            row = add(mul(self.warp_m, fm * 16), mul(i, 16), div(self.lane, 4), mul(h, 8))
            at_m = ch.let("m", add(blocks.m0, row))
            with ch.loop("j", fn, unroll=0) as (c, j):
                column = add(mul(self.warp_n, fn * 8), mul(j, 8), mul(mod(self.lane, 4), 2))
                at_n = c.let("n", add(blocks.n0, column))
                d0 = add(mul(i, fn * 4), mul(j, 4), mul(h, 2))
                held = {
                    s.node: [elem(acc, add(d0, q)) for q in range(2)]
                    for s, acc in zip(self.v.sums, self.acc, strict=True)
                }

                def known(inner: Code, e: int, row: X = row, column: X = column) -> Known:
                    return {**self.scalars_m.at(inner, row), **self.scalars_n.at(inner, add(column, e))}

                epilogue.store(c, at_m, at_n, held, known)


__all__ = ["MmaConfig", "lower", "tiles"]
