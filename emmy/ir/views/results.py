"""How a contraction's 16-bit results can leave a tile in shared memory: in boxes by TMA, or line by line."""

from __future__ import annotations

from typing import Final

from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Out, const
from emmy.ir.views.affine import merged_stride, offset_form
from emmy.ir.views.box import Box, out_box
from emmy.ir.views.contraction_view import ContractionView

BYTES: Final = 2  # of an element: stmatrix takes no others


def by_boxes(view: ContractionView) -> bool:
    """Every result is one of boxes of 16-bit elements."""
    return all(_sixteen(o) and isinstance(out_box(o, view.batch, view.m, view.n), Box) for o in view.body.outs)


def by_lines(view: ContractionView) -> bool:
    """Points along n are neighbours in every result, wherever its lines begin; TMA need not be able to store it."""
    return all(_sixteen(o) and _lines(view, o) for o in view.body.outs)


def _sixteen(out: Out) -> bool:
    return DTYPES[out.tensor.dtype].bytes == BYTES


def _lines(view: ContractionView, out: Out) -> bool:
    form = offset_form(out.index, out.tensor.shape)
    if form is None or merged_stride(form, view.n) is not const(1):
        return False
    return all(form.stride(a) is not const(0) for a in view.batch)


__all__ = ["by_boxes", "by_lines"]
