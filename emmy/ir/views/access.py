"""How the operand of a contraction lies in memory: along which side it is contiguous, and whether whole chunks move.

Facts for schedule rules and for lowering alike; both sides of a part are linear indices over axis lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Ax, Body, Const, Load, const
from emmy.ir.views.affine import Affine, affine, chunked, divides, gathered_form
from emmy.ir.views.product import Part

Side = Literal["k", "own"]


def run_side(part: Part, body: Body, own: Sequence[Ax], k: Sequence[Ax]) -> Side:
    """The side along which most elements of the part are neighbours in memory (`k` where no load tells)."""
    ends: tuple[tuple[Side, Ax | None], ...] = (("k", k[-1] if k else None), ("own", own[-1] if own else None))
    best: tuple[int, Side] = (-1, "k")
    for node in part.loads:
        for side, axis in ends:
            form = None if axis is None else gathered_form(node, body.slots[node.slot], (axis,))
            if form is not None and axis is not None and form.stride(axis) is const(1):
                rank = len(node.free)
                if rank > best[0]:
                    best = (rank, side)
    return best[1]


def along_sum(parts: Sequence[Part], body: Body, own: Sequence[Ax], k: Sequence[Ax]) -> bool:
    """True when every part of a side of a product runs along the summed axes."""
    return all(run_side(p, body, own, k) == "k" for p in parts)


def whole_chunks(axes: Sequence[Ax], chunk: int) -> bool:
    """True when an aligned chunk of the linear index over `axes` never leaves the last axis."""
    return bool(axes) and divides(chunk, axes[-1].extent)


def vector_load(node: Load, body: Body, run: Sequence[Ax], chunk: int) -> bool:
    """True when `chunk` neighbours along the linear index over `run` are contiguous and aligned in the operand."""
    form = affine(node, body.slots[node.slot])
    if form is None or not run:
        return False
    return chunked(form, run[-1], chunk, [a for a, _ in form.strides])


def gathered_load(node: Load, body: Body, run: Sequence[Ax], chunk: int) -> Affine | None:
    """Where the load lies if it moves as `vector_load` says; which line it is may be data.  None where it does not."""
    form = gathered_form(node, body.slots[node.slot], run[-1:])
    if form is None or not run or not chunked(form, run[-1], chunk, [a for a, _ in form.strides]):
        return None
    return form


def async_copy(part: Part, body: Body, own: Sequence[Ax], k: Sequence[Ax], dtype: str) -> bool:
    """True when 16-byte chunks of the operand can be copied to shared memory as they are.

    Which matrix of a batch it is may be data: that is read once a block.
    """
    node = part.single
    if node is None or node.dtype != dtype or gathered_form(node, body.slots[node.slot], (*own, *k)) is None:
        return False
    run = k if run_side(part, body, own, k) == "k" else own
    return gathered_load(node, body, run, 16 // DTYPES[dtype].bytes) is not None


def size_of(axes: Sequence[Ax]) -> int | None:
    """The number of points where every extent is a number."""
    total = 1
    for a in axes:
        if not isinstance(a.extent, Const):
            return None
        total *= int(a.extent.value)
    return total


__all__ = ["Side", "along_sum", "async_copy", "gathered_load", "run_side", "size_of", "vector_load", "whole_chunks"]
