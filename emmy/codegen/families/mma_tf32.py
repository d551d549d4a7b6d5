"""Contractions of f32 factors on tensor cores: mma.sync m16n8k8, each factor rounded to tf32 as its fragment is read.

All but the fragments is that of the 16-bit family.  A lane reads single elements: of A[16][8] those at (row, k) =
(g + 8 (q % 2), t + 4 (q / 2)), of B[8][8] those at (k, column) = (t + 4 q, g), g = lane / 4 and t = lane % 4.  Rows (or
columns) of shared memory lie so far apart that the 32 lanes meet 32 banks.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from emmy.codegen.expr import Code, add, call, div, elem, mod, mul, shared_at
from emmy.codegen.families.frame import Frame
from emmy.codegen.families.mma import MmaConfig, WarpProducts
from emmy.codegen.families.tiles import Tile, Transport
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.kernel import Elem, Kernel, Layout, Mma, Var, X
from emmy.ir.loop import Ax, Body
from emmy.ir.schedule import Row
from emmy.ir.views.access import async_copy, run_side
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.product import Part

STEP: Final = 8  # elements of the summed axis an instruction takes
BANKS: Final = 32


class Tf32Config(MmaConfig):
    """What a row says; a step is of eight elements."""

    @property
    def block_k(self) -> int:
        return self.steps * STEP

    def shifts(self, view: ContractionView) -> bool:
        return False

    def tile(self, view: ContractionView, name: str, part: Part, own: tuple[Ax, ...], rows: int) -> Tile:
        run = run_side(part, view.body, own, view.k)
        copies = self.where == "smem-async" and async_copy(part, view.body, own, view.k, "f32")
        transport: Transport = "async" if copies else "sync"
        layout = Layout(_pad(self.block_k, (4, 12, 20, 28)) if run == "k" else _pad(rows, (8, 24)))
        return Tile(name, part, own, view.k, rows, self.block_k, "f32", run, run, transport, self.stages, layout)


def _pad(length: int, apart: tuple[int, ...]) -> int:
    """Elements behind a line of shared memory, so that lines lie `apart` elements from each other, modulo the banks."""
    return next(p for p in range(0, BANKS, 4) if (length + p) % BANKS in apart)


def lower_tf32(body: Body, row: Row, scalars: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a contraction and a row TILE=mma_m16n8k8_tf32_f32/…."""
    view = contraction_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name} is no contraction: {view}", "take a row of another family")
    c = MmaConfig.of(row)
    config = Tf32Config(*(getattr(c, f.name) for f in fields(c)))
    return _Tf32(view, config, Frame(body, scalars, name, comment)).kernel()


class _Tf32(WarpProducts):
    again = True

    def _fragments(self, code: Code, slot: X, s: X, half: X) -> None:
        (fm, fn), k0 = self.c.fragments, mul(s, STEP)
        g, t = div(self.lane, 4), mod(self.lane, 4)
        for tile, array in zip(self.x.left, self.frag_a, strict=True):
            with code.loop("i", fm, unroll=0) as (ci, i), ci.loop("q", 4, unroll=0) as (c, q):
                row = add(mul(self.warp_m, fm * 16), mul(i, 16), g, mul(mod(q, 2), 8))
                at = add(mul(half, fm * 4), mul(i, 4), q)
                self._read(c, tile, array, at, slot, row, add(k0, t, mul(div(q, 2), 4)))
        for tile, array in zip(self.x.right, self.frag_b, strict=True):
            with code.loop("j", fn, unroll=0) as (cj, j), cj.loop("q", 2, unroll=0) as (c, q):
                row = add(mul(self.warp_n, fn * 8), mul(j, 8), g)
                at = add(mul(half, fn * 2), mul(j, 2), q)
                self._read(c, tile, array, at, slot, row, add(k0, t, mul(q, 4)))

    def _read(self, c: Code, tile: Tile, array: Var, at: X, slot: X, row: X, k: X) -> None:
        index = (slot, row, k) if tile.layout == "k" else (slot, k, row)
        value = call("round_tf32", c.load("x", "f32", shared_at(tile.buffer, *index)), type="f32")
        c.assign(elem(array, at), call("bits_of_f32", value, type="u32"))

    def _product(self, d: tuple[Elem, ...], a: tuple[Elem, ...], b: tuple[Elem, ...]) -> Mma:
        return Mma("m16n8k8", "tf32", d, a, b, d)


__all__ = ["Tf32Config", "lower_tf32"]
