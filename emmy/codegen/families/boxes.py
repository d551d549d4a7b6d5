"""Tiles of operands that TMA brings: slabs of swizzled rows, each as wide as one span of the hardware's swizzle.

Source: PTX ISA manual, "Tensor swizzling modes"; CUDA driver API, cuTensorMapEncodeTiled (dimensions of a box).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from emmy.codegen.expr import Code, add, div, i32, mod, mul, shared_at
from emmy.codegen.families.frame import Frame
from emmy.errors import LoweringError
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import Buffer, Matrix, Place, TensorMap, TmaLoad, X
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import Ax, const
from emmy.ir.views.access import Side
from emmy.ir.views.box import Box, part_box
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.product import Part

SPANS: Final = (128, 64, 32)  # bytes of a swizzled row
MOST_BOX: Final = 256  # elements of a box's dimension
SLABS: Final = 4  # dimensions of a buffer whose tiles come in slabs


def slabs(name: str, type: str, stages: int, run: Side, rows: int, depth: int) -> Buffer:
    """Tiles of `rows` by `depth` (of the summed axis) elements that TMA brings.

    [stage][slab of k][row][span] where the operand runs along k, else [stage][slab of rows][k][span], the span as wide
    as divides what runs.  Lines count eights, what runs sixteens of a 16-bit type.
    """
    along, lines = (depth, rows) if run == "k" else (rows, depth)
    bytes = DTYPES[type].bytes
    span = next(s for s in SPANS if along * bytes % s == 0)
    wide = span // bytes
    return Buffer(name, type, (stages, along // wide, lines, wide), swizzle_of(span), align=8 * span)


def tile_at(buffer: Buffer, slot: X, line: X, column: X) -> Place:
    """An element of a staged tile, whether its lines are whole or come in slabs."""
    if len(buffer.shape) < SLABS:
        return shared_at(buffer, slot, line, column)
    wide = buffer.shape[-1]
    return shared_at(buffer, slot, div(column, wide), line, mod(column, wide))


@dataclass(frozen=True)
class Operand:
    """One part's tiles in a buffer of `slabs`."""

    box: Box
    own: tuple[Ax, ...]
    buffer: Buffer
    map: TensorMap

    @property
    def wide(self) -> int:
        """Elements of a swizzled row."""
        return self.buffer.shape[-1]

    @property
    def bytes(self) -> int:
        """Of one tile."""
        return self.buffer.bytes // self.buffer.shape[0]

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
        """The operand of wgmma from row `own0` (a multiple of 64) of the tile and element `k0` on."""
        if self.box.run == "k":
            place = shared_at(self.buffer, slot, i32(k0 // self.wide), own0, i32(k0 % self.wide))
            return Matrix(place, "k")
        return Matrix(shared_at(self.buffer, slot, div(own0, self.wide), i32(k0), i32(0)), "mn")


def operand(
    frame: Frame, view: ContractionView, part: Part, own: tuple[Ax, ...], buffer: Buffer, stem: str,
    shared: bool = False, rounded: bool = False,
) -> Operand:  # fmt: skip
    """A part whose tiles TMA brings into `buffer`; `shared`: blocks of a cluster bring halves; `rounded`: to tf32."""
    form = part_box(part, view.body, view.batch, own, view.k)
    if isinstance(form, str):
        raise LoweringError(f"{frame.name}: a factor has {form}", "take a row of another family")
    _, _, lines, wide = buffer.shape
    most = lines // 2 if shared and form.run == "k" else lines
    tile = max(d for d in range(8, MOST_BOX + 1, 8) if most % d == 0), wide
    span = wide * DTYPES[buffer.type].bytes
    param = frame.scalars.operand(form.slot)
    map = tensor_map(frame, f"{stem}_map", form, param, tile, span)
    return Operand(form, own, buffer, replace(map, type="tf32") if rounded else map)


def tensor_map(frame: Frame, hint: str, form: Box, param: str, tile: tuple[int, int], span: int) -> TensorMap:
    """The map of a parameter from which boxes of one `tile` (rows, columns) are moved."""
    name, boxed = frame.scalars.names.fresh(hint), (*(1 for _ in form.batch), *tile)
    base = None if form.base is const(0) else form.base
    return TensorMap(name, param, form.dtype, form.shape, form.strides, boxed, span, base)


__all__ = ["Operand", "operand", "slabs", "tensor_map", "tile_at"]
