"""Operands and results of a contraction as TMA sees them: tensors of at most five dimensions of which a tile is a box.

Sources of the limits: CUDA driver API, cuTensorMapEncodeTiled (rank, alignment of strides and of the base).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from emmy.ir.build import imul
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Ax, Body, Const, Expr, Load, Out, const
from emmy.ir.views.access import Side, run_side
from emmy.ir.views.affine import Affine, affine, divides, merged_stride, offset_form
from emmy.ir.views.product import Part

MOST_DIMENSIONS = 5
ALIGNMENT = 16  # bytes of every stride and of the origin


@dataclass(frozen=True, slots=True)
class Box:
    """Dimensions from the outermost: one for each of `batch`, then rows, then columns (whose stride is 1).

    `shape` and `strides` are elements as Loop IR integers; `base`: element of the origin.  `run`, of an operand: k
    where its rows run along the summed index, else own.
    """

    dtype: str
    base: Expr
    batch: tuple[Ax, ...]
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    run: Side = "own"
    slot: int = -1


def part_box(part: Part, body: Body, batch: Sequence[Ax], own: Sequence[Ax], k: Sequence[Ax]) -> Box | str:
    """A factor as TMA sees it, or why it cannot be moved by TMA."""
    node = part.plain
    if node is None:
        return "a factor that is computed, not loaded"
    form = affine(node, body.slots[node.slot])
    if form is None:
        return "a factor that is gathered"
    run = run_side(part, body, own, k)
    rows, columns = (own, k) if run == "k" else (k, own)
    box = _box(form, node.dtype, batch, rows, columns, run, node.slot)
    return box if isinstance(box, str) else _clipped(box, node, body, own)


def _clipped(box: Box, node: Load, body: Body, own: Sequence[Ax]) -> Box:
    """The box without rows (or columns) behind the operand's own, where a condition says that nobody needs them.

    TMA brings zeros instead.
    """
    if len(own) != 1 or own[0] not in node.index:
        return box
    (axis,), extent = own, body.slots[node.slot].shape[node.index.index(own[0])]
    if not isinstance(extent, Const) or axis.size is None or axis.size <= extent.value:
        return box
    at = -2 if box.run == "k" else -1
    shape = list(box.shape)
    shape[at] = extent
    return replace(box, shape=tuple(shape))


def out_box(out: Out, batch: Sequence[Ax], m: Sequence[Ax], n: Sequence[Ax]) -> Box | str:
    """A result as TMA sees it, or why it cannot be stored by TMA."""
    form = offset_form(out.index, out.tensor.shape)
    if form is None:
        return "a result that is scattered"
    if any(form.stride(a) is const(0) for a in batch):
        return "a result that several blocks store"
    return _box(form, out.tensor.dtype, batch, m, n, "own", -1)


def _box(
    form: Affine, dtype: str, batch: Sequence[Ax], rows: Sequence[Ax], columns: Sequence[Ax], run: Side, slot: int
) -> Box | str:
    down, along = merged_stride(form, rows), merged_stride(form, columns)
    if down is None or along is None:
        return "rows or columns that lie at no constant distance"
    if along is not const(1):
        return "no neighbours along a row or a column"
    moving = tuple(a for a in batch if form.stride(a) is not const(0))
    chunk = ALIGNMENT // DTYPES[dtype].bytes
    # a dimension of one point has no distance of its own
    down = const(chunk) if points(rows) is const(1) else down
    strides = (*(form.stride(a) for a in moving), down, const(1))
    if len(strides) > MOST_DIMENSIONS:
        return f"more than {MOST_DIMENSIONS} dimensions"
    if any(s is const(0) or not divides(chunk, s) for s in strides[:-1]) or not divides(chunk, form.base):
        return f"rows that do not all begin at multiples of {ALIGNMENT} bytes"
    shape = (*(a.extent for a in moving), points(rows), points(columns))
    return Box(dtype, form.base, moving, shape, strides, run, slot)


def points(axes: Sequence[Ax]) -> Expr:
    """The number of points of some axes."""
    total: Expr = const(1)
    for a in axes:
        total = imul(total, a.extent)
    return total
