"""Tiles of the `wgmma` family in shared memory: operands that TMA brings, results that TMA takes away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emmy.codegen.expr import Code, add, div, i32, mul, shared_at
from emmy.codegen.families.frame import Frame
from emmy.errors import LoweringError
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import Buffer, Matrix, TensorMap, TmaLoad, X
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import Ax, const
from emmy.ir.views.box import Box, out_box, part_box
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.product import Part
from emmy.ir.warpgroups import Warpgroups

SPAN: Final = 128  # bytes of a swizzled row
MOST_BOX: Final = 256  # elements of a box's dimension
ROWS: Final = 64  # of results that are staged together
BUFFERS: Final = 2  # of staged results, for each consumer group


@dataclass(frozen=True)
class Operand:
    """One part's tiles: [stage][slab of k][row][SPAN] where rows run along k, else [stage][slab of rows][k][SPAN]."""

    box: Box
    own: tuple[Ax, ...]
    buffer: Buffer
    map: TensorMap

    @property
    def wide(self) -> int:
        """Elements of a swizzled row."""
        return self.buffer.shape[-1]

    def load(
        self, code: Code, slot: X, own0: X, k0: X, batch: Mapping[Ax, X], cursor: str, share: X | None = None
    ) -> None:
        """One tile, in boxes of one slab and at most 256 rows.

        With `share` (the block's rank) the boxes are halves of the tile's rows, or of its slabs: the block brings its
        own halves, and brings them to both blocks of the cluster.
        """
        lead = tuple(batch[a] for a in self.box.batch)
        slabs, lines = self.buffer.shape[1:3]
        everyone = None if share is None else i32(3)
        split = share is not None and self.box.run == "own"
        first_slab = mul(share, slabs // 2) if share is not None and split else i32(0)
        first_line = mul(share, lines // 2) if share is not None and not split else i32(0)
        halves = share is not None and not split
        for n in range(slabs // 2 if split else slabs):
            for at in range(0, lines // 2 if halves else lines, self.map.box[-2]):
                slab, line = add(first_slab, n), add(first_line, at)
                along = add(k0 if self.box.run == "k" else own0, mul(slab, self.wide))
                across = add(own0 if self.box.run == "k" else k0, line)
                place = shared_at(self.buffer, slot, slab, line, i32(0))
                code.emit(TmaLoad(place, self.map.name, (*lead, across, along), cursor, everyone))

    def matrix(self, slot: X, own0: X, k0: int) -> Matrix:
        """The operand from row `own0` (a multiple of 64) of the tile and element `k0` on."""
        if self.box.run == "k":
            place = shared_at(self.buffer, slot, i32(k0 // self.wide), own0, i32(k0 % self.wide))
            return Matrix(place, "k")
        return Matrix(shared_at(self.buffer, slot, div(own0, self.wide), i32(k0), i32(0)), "mn")


@dataclass(frozen=True)
class Staged:
    """One result on its way through shared memory: [consumer group][buffer][ROWS][columns of a block]."""

    box: Box
    buffer: Buffer
    map: TensorMap


def operand(
    frame: Frame, view: ContractionView, c: Warpgroups, part: Part, stem: str, own: tuple[Ax, ...], rows: int,
    shared: bool = False,
) -> Operand:  # fmt: skip
    """The staged tiles of a part, `rows` of them along its own axes; `shared`: blocks of a cluster bring halves."""
    form = part_box(part, view.body, view.batch, own, view.k)
    if isinstance(form, str):
        raise LoweringError(f"{frame.name}: a factor has {form}", "take a row of another family")
    wide = SPAN // DTYPES[c.type].bytes
    slabs, lines = (c.block_k // wide, rows) if form.run == "k" else (rows // wide, c.block_k)
    name = frame.scalars.names.fresh(f"{stem}_tile")
    buffer = Buffer(name, c.type, (c.stages, slabs, lines, wide), swizzle_of(SPAN), align=8 * SPAN)
    most = lines // 2 if shared and form.run == "k" else lines
    tile = max(d for d in range(8, MOST_BOX + 1, 8) if most % d == 0), wide
    return Operand(form, own, buffer, _map(frame, f"{stem}_map", form, frame.scalars.operand(form.slot), tile))


def staged(frame: Frame, view: ContractionView, c: Warpgroups, k: int) -> Staged:
    """The buffers of result k."""
    form = out_box(view.body.outs[k], view.batch, view.m, view.n)
    if isinstance(form, str):
        raise LoweringError(f"{frame.name}: a result has {form}", "take a row whose results are stored directly")
    name = frame.scalars.names.fresh("out_tile")
    span = c.block * DTYPES[form.dtype].bytes
    buffer = Buffer(name, form.dtype, (c.groups, BUFFERS, ROWS, c.block), swizzle_of(span), align=8 * span)
    return Staged(form, buffer, _map(frame, "out_map", form, frame.scalars.result(k), (ROWS, c.block), span))


def _map(frame: Frame, hint: str, form: Box, param: str, tile: tuple[int, int], span: int = SPAN) -> TensorMap:
    name, boxed = frame.scalars.names.fresh(hint), (*(1 for _ in form.batch), *tile)
    base = None if form.base is const(0) else form.base
    return TensorMap(name, param, form.dtype, form.shape, form.strides, boxed, span, base)


__all__ = ["BUFFERS", "ROWS", "Operand", "Staged", "operand", "staged"]
