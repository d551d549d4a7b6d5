"""Tiles of the `wgmma` family in shared memory: operands that TMA brings, results that TMA takes away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emmy.codegen.families.boxes import Operand, operand, slabs, tensor_map
from emmy.codegen.families.frame import Frame
from emmy.errors import LoweringError
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import Buffer, TensorMap
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import Ax
from emmy.ir.views.access import run_side
from emmy.ir.views.box import Box, out_box
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.product import Part
from emmy.ir.warpgroups import Warpgroups

ROWS: Final = 64  # of results that are staged together
BUFFERS: Final = 2  # of staged results, for each consumer group


@dataclass(frozen=True)
class Staged:
    """One result on its way through shared memory: [consumer group][buffer][ROWS][columns of a block]."""

    box: Box
    buffer: Buffer
    map: TensorMap


def staged_operand(
    frame: Frame, view: ContractionView, c: Warpgroups, part: Part, stem: str, own: tuple[Ax, ...], rows: int,
    type: str, shared: bool = False, rounded: bool = False,
) -> Operand:  # fmt: skip
    """The staged tiles of a plain part of `type` elements, `rows` of them along its own axes.

    `shared`: blocks of a cluster bring halves; `rounded`: to tf32 on their way.
    """
    run, name = run_side(part, view.body, own, view.k), frame.scalars.names.fresh(f"{stem}_tile")
    return operand(frame, view, part, own, slabs(name, type, c.stages, run, rows, c.block_k), stem, shared, rounded)


def staged(frame: Frame, view: ContractionView, c: Warpgroups, k: int) -> Staged:
    """The buffers of result k."""
    form = out_box(view.body.outs[k], view.batch, view.m, view.n)
    if isinstance(form, str):
        raise LoweringError(f"{frame.name}: a result has {form}", "take a row whose results are stored directly")
    name = frame.scalars.names.fresh("out_tile")
    span = c.block * DTYPES[form.dtype].bytes
    buffer = Buffer(name, form.dtype, (c.groups, BUFFERS, ROWS, c.block), swizzle_of(span), align=8 * span)
    return Staged(form, buffer, tensor_map(frame, "out_map", form, frame.scalars.result(k), (ROWS, c.block), span))


__all__ = ["BUFFERS", "ROWS", "Staged", "staged", "staged_operand"]
