"""Tensors cut into several, and several joined into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    Value,
    at,
    axis,
    convert,
    mask_along,
    number,
    numel,
)
from emmy.frontend.translate.layout import ONE, ZERO, reshape, select_at, slice_of
from emmy.ir.build import iadd, isub
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Shape, Terms, coordinates


def split(t: Terms, c: Call) -> tuple[int, ...]:
    """split, split_with_sizes, chunk, tensor_split …: consecutive slices as long as the results are."""
    x = c.get(0, "self")
    if isinstance(c.get(1, "indices"), Value):
        raise Decline("sections given by data")
    k = axis(c.get(2, "dim", 0), len(t.shape(x)))
    if c.base in ("hsplit", "vsplit", "dsplit"):
        k = {"hsplit": 1 if len(t.shape(x)) > 1 else 0, "vsplit": 0, "dsplit": 2}[c.base]
    out: list[int] = []
    start: Expr = ZERO
    for r in c.node.results:
        out.append(slice_of(t, x, k, start, r.shape[k]))
        start = iadd(start, r.shape[k])
    return tuple(out)


def unbind(t: Terms, c: Call) -> tuple[int, ...]:
    x = c.get(0, "self")
    k = axis(c.get(1, "dim", 0), len(t.shape(x)))
    return tuple(select_at(t, x, k, const(i)) for i in range(len(c.node.results)))


def cat_of(t: Terms, parts: Sequence[int], dim: int, shape: Shape) -> int:
    """Joined along `dim`: a chain of choices, each part read where its coordinates are in range."""
    d = coordinates(shape)[dim]
    starts: list[Expr] = [ZERO]
    for x in parts:
        starts.append(iadd(starts[-1], t.shape(x)[dim]))
    fill = False if t.dtype(parts[0]) == "bool" else 0 if t.dtype(parts[0])[0] in "iu" else 0.0
    reads = [t.map(x, at(shape, dim, isub(d, s)), shape, fill) for x, s in zip(parts, starts, strict=False)]
    out = reads[-1]
    for read, stop in list(zip(reads[:-1], starts[1:], strict=False))[::-1]:
        out = t.where(mask_along(t, shape, dim, "lt", stop), read, out)
    return out


def cat(t: Terms, c: Call) -> int:
    """Empty one-dimensional operands are ignored, as in PyTorch."""
    tensors = [convert(t, x, c.dtype) for x in c.get(0, "tensors")]
    k = axis(c.get(1, "dim", 0), len(c.shape))
    parts = [x for x in tensors if len(t.shape(x)) == len(c.shape) and number(t.shape(x)[k]) != 0]
    return parts[0] if len(parts) == 1 else cat_of(t, parts, k, c.shape)


def stack_of(t: Terms, parts: Sequence[int], dim: int, shape: Shape) -> int:
    d = coordinates(shape)
    reads = [t.map(x, (*d[:dim], *d[dim + 1 :]), shape) for x in parts]
    out = reads[-1]
    for i in range(len(parts) - 2, -1, -1):
        out = t.where(mask_along(t, shape, dim, "le", const(i)), reads[i], out)
    return out


def stack(t: Terms, c: Call) -> int:
    parts = [convert(t, x, c.dtype) for x in c.get(0, "tensors")]
    return stack_of(t, parts, axis(c.get(1, "dim", 0), len(c.shape)), c.shape)


def hstack(t: Terms, c: Call) -> int:
    """hstack, vstack, dstack, column_stack: operands raised to the result's rank, then joined."""
    parts = [convert(t, x, c.dtype) for x in c.get(0, "tensors")]
    rank = len(c.shape)
    dim = {"hstack": 1 if rank > 1 else 0, "vstack": 0, "row_stack": 0, "dstack": 2, "column_stack": 1}[c.base]
    raised: list[int] = []
    for x in parts:
        shape = t.shape(x)
        if c.base == "column_stack" and len(shape) < 2:
            shape = (numel(shape), ONE)
        if c.base == "dstack" and len(shape) < 3:
            shape = (ONE, numel(shape), ONE) if len(shape) < 2 else (*shape, ONE)
        if len(shape) < rank or not shape:
            shape = (ONE,) * (rank - max(len(shape), 1)) + (shape or (ONE,))
        raised.append(reshape(t, x, shape))
    return raised[0] if len(raised) == 1 else cat_of(t, raised, dim, c.shape)


def meshgrid(t: Terms, c: Call) -> tuple[int, ...]:
    tensors, order = c.get(0, "tensors"), list(range(len(c.node.results)))
    if c.get(1, "indexing", "ij") == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    out: list[int] = []
    for k, x in enumerate(tensors):
        d = coordinates(c.node.results[k].shape)
        out.append(t.map(x, (d[order.index(k)],) if t.shape(x) else (), c.node.results[k].shape))
    return tuple(out)


_SPLITS: Final = (
    "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes",
    "split_copy", "split_with_sizes_copy", "hsplit", "vsplit", "dsplit",
)  # fmt: skip
JOINS: Final[dict[str, Handler]] = {
    **dict.fromkeys(_SPLITS, split), "unbind": unbind, "unbind_copy": unbind, "cat": cat, "concat": cat,
    "concatenate": cat, "stack": stack, "hstack": hstack, "vstack": hstack, "row_stack": hstack, "dstack": hstack,
    "column_stack": hstack, "meshgrid": meshgrid,
}  # fmt: skip
