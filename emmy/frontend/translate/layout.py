"""Layout: every operation is one index map."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    Value,
    at,
    axes,
    axis,
    convert,
    extent,
    mask,
    number,
    numel,
    static,
)
from emmy.ir.build import iadd, idiv, imod, imul, isub, scalar
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Shape, Terms, coordinates

ONE: Final = const(1)
ZERO: Final = const(0)


def reshape(t: Terms, x: int, shape: Shape) -> int:
    """Row-major reinterpretation; dimensions are regrouped in the smallest blocks of equal size, so that what does
    not change (a symbolic length above all) stays one axis."""
    old, d = t.shape(x), coordinates(shape)
    if old == shape:
        return x
    index: list[Expr] = [ZERO] * len(old)
    here = [i for i, e in enumerate(old) if e is not ONE]
    there = [i for i, e in enumerate(shape) if e is not ONE]
    for sources, targets in _blocks(old, here, shape, there):
        position: Expr = ZERO
        for k in targets:
            position = iadd(imul(position, shape[k]), d[k])
        for n, k in enumerate(sources):
            inner = numel([old[j] for j in sources[n + 1 :]])
            part = idiv(position, inner)
            index[k] = part if n == 0 else imod(part, old[k])
    return t.map(x, tuple(index), shape)


def _blocks(old: Shape, here: list[int], new: Shape, there: list[int]) -> list[tuple[list[int], list[int]]]:
    """The dimensions of both sides in runs of equal size, each as short as possible."""
    out: list[tuple[list[int], list[int]]] = []
    while here or there:
        sizes = [(i, j) for i, j in product(range(len(here) + 1), range(len(there) + 1)) if i and j]
        cuts = sorted(sizes, key=sum)
        i, j = next(
            ((i, j) for i, j in cuts if numel([old[k] for k in here[:i]]) is numel([new[k] for k in there[:j]])),
            (len(here), len(there)),
        )
        out.append((here[:i], there[:j]))
        here, there = here[i:], there[j:]
    return out


def slice_of(t: Terms, x: int, dim: int, start: Expr, length: Expr, step: int = 1) -> int:
    old = t.shape(x)
    shape = (*old[:dim], length, *old[dim + 1 :])
    return t.map(x, at(shape, dim, iadd(imul(coordinates(shape)[dim], step), start)), shape)


def view(t: Terms, c: Call) -> int:
    return convert(t, reshape(t, c.get(0, "self"), c.shape), c.dtype)


def view_dtype(t: Terms, c: Call) -> int:
    """view, reshape and all whose result follows from its shape alone."""
    if c.overload == "dtype" or t.dtype(c.get(0, "self")) != c.dtype:
        raise Decline("a view as another type")
    return view(t, c)


def permute(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    rank = len(t.shape(x))
    order = c.get(1, "dims")
    return t.permute(x, [axis(i, rank) for i in (order if isinstance(order, tuple) else c.args[1:])])


def transpose(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    rank = len(t.shape(x))
    if rank == 0:
        return int(x)
    a, b = axis(c.get(1, "dim0"), rank), axis(c.get(2, "dim1"), rank)
    order = list(range(rank))
    order[a], order[b] = b, a
    return t.permute(x, order)


def reverse_dims(t: Terms, c: Call) -> int:
    """t, T, numpy_T reverse all dimensions; mT, mH, adjoint the last two."""
    x = c.get(0, "self")
    rank = len(t.shape(x))
    if c.base in ("mT", "mH", "adjoint", "matrix_H"):
        return t.permute(x, [*range(rank - 2), rank - 1, rank - 2])
    return t.permute(x, list(range(rank))[::-1])


def movedim(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    rank = len(t.shape(x))
    source, target = axes_in_order(c.get(1, "source"), rank), axes_in_order(c.get(2, "destination"), rank)
    rest = iter(i for i in range(rank) if i not in source)
    order = [source[target.index(k)] if k in target else next(rest) for k in range(rank)]
    return t.permute(x, order)


def axes_in_order(dims: Any, rank: int) -> list[int]:
    return [axis(i, rank) for i in (dims if isinstance(dims, tuple) else (dims,))]


def expand(t: Terms, c: Call) -> int:
    return t.expand(c.get(0, "self"), c.shape)


def broadcast_tensors(t: Terms, c: Call) -> tuple[int, ...]:
    return tuple(t.expand(x, r.shape) for x, r in zip(c.get(0, "tensors"), c.node.results, strict=True))


def repeat(t: Terms, c: Call) -> int:
    """repeat, tile: coordinates modulo the old extents."""
    x = c.get(0, "self")
    old, d = t.shape(x), coordinates(c.shape)
    lead = len(c.shape) - len(old)
    return t.map(x, tuple(ZERO if e is ONE else imod(d[lead + i], e) for i, e in enumerate(old)), c.shape)


def repeat_interleave(t: Terms, c: Call) -> int:
    times = c.get(1, "repeats")
    if c.overload != "self_int" or isinstance(times, Value):
        raise Decline("repeats given by data")
    x, dim = c.get(0, "self"), c.get(2, "dim")
    if dim is None:
        x, dim = reshape(t, x, (numel(t.shape(x)),)), 0
    k = axis(dim, len(t.shape(x)))
    return t.map(x, at(c.shape, k, idiv(coordinates(c.shape)[k], times)), c.shape)


def flip(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    index: list[Expr] = list(coordinates(c.shape))
    dims = {"fliplr": (1,), "flipud": (0,)}.get(c.base, c.get(1, "dims"))
    for k in axes(dims, len(c.shape)) if dims else ():
        index[k] = isub(isub(c.shape[k], 1), index[k])
    return t.map(x, tuple(index), c.shape)


def roll(t: Terms, c: Call) -> int:
    x, shifts, dims = c.get(0, "self"), c.get(1, "shifts"), c.get(2, "dims", ())
    shifts = shifts if isinstance(shifts, tuple) else (shifts,)
    dims = dims if isinstance(dims, tuple) else (dims,)
    shape = c.shape
    if not dims:
        x, shape, dims = reshape(t, x, (numel(shape),)), (numel(shape),), (0,)
    for by, dim in zip(shifts, dims, strict=True):
        k = axis(dim, len(shape))
        d, shift = coordinates(shape)[k], imod(static(by, "the shift"), shape[k])
        around = scalar("where", scalar("lt", d, shift), iadd(isub(d, shift), shape[k]), isub(d, shift))
        x = t.map(x, at(shape, k, around), shape)
    return reshape(t, x, c.shape)


def slice_(t: Terms, c: Call) -> int:
    x, dim = c.get(0, "self"), c.get(1, "dim", 0)
    k = axis(dim, len(t.shape(x)))
    return slice_of(t, x, k, slice_start(t.shape(x)[k], c.get(2, "start", 0)), c.shape[k], c.get(4, "step", 1))


def slice_start(n: Expr, start: int | Expr) -> Expr:
    """Where a slice begins: counted from the end if negative, clipped into range."""
    if isinstance(start, Expr):
        return start
    size = number(n)
    if size is None:
        return const(start) if start >= 0 else iadd(n, start)
    return const(min(max(start + size if start < 0 else start, 0), size))


def narrow(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    if isinstance(c.get(2, "start"), Value):
        raise Decline("a start given by data")
    k = axis(c.get(1, "dim"), len(t.shape(x)))
    return slice_of(t, x, k, slice_start(t.shape(x)[k], c.get(2, "start")), c.shape[k])


def select(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    k = axis(c.get(1, "dim"), len(t.shape(x)))
    return select_at(t, x, k, wrapped_index(c.get(2, "index"), t.shape(x)[k]))


def wrapped_index(index: int | Expr, n: Expr) -> Expr:
    if isinstance(index, Expr):
        return index
    return const(index) if index >= 0 else iadd(n, index)


def select_at(t: Terms, x: int, dim: int, index: Expr) -> int:
    old = t.shape(x)
    shape = (*old[:dim], *old[dim + 1 :])
    d = coordinates(shape)
    return t.map(x, (*d[:dim], index, *d[dim:]), shape)


def diagonal_of(t: Terms, x: int, offset: int, dim1: int, dim2: int, shape: Shape) -> int:
    """The diagonal becomes the last dimension."""
    d = coordinates(shape)
    rest = iter(d[:-1])
    where = {dim1: iadd(d[-1], max(-offset, 0)), dim2: iadd(d[-1], max(offset, 0))}
    return t.map(x, tuple(where[i] if i in where else next(rest) for i in range(len(t.shape(x)))), shape)


def diagonal(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    rank = len(t.shape(x))
    dims = axis(c.get(2, "dim1", 0), rank), axis(c.get(3, "dim2", 1), rank)
    return diagonal_of(t, x, c.get(1, "offset", 0), *dims, c.shape)


def diag(t: Terms, c: Call) -> int:
    x, offset = c.get(0, "self"), c.get(1, "diagonal", 0)
    if len(t.shape(x)) == 2:
        return diagonal_of(t, x, offset, 0, 1, c.shape)
    return diag_embed_of(t, x, offset, 0, 1, c.shape)


def diag_embed_of(t: Terms, x: int, offset: int, dim1: int, dim2: int, shape: Shape) -> int:
    d = coordinates(shape)
    rest = tuple(d[i] for i in range(len(shape)) if i not in (dim1, dim2))
    row, column = d[dim1], d[dim2]
    on = scalar("eq", iadd(row, max(offset, 0)), iadd(column, max(-offset, 0)))
    index = isub(row, max(-offset, 0)) if offset < 0 else isub(column, max(offset, 0))
    zero = False if t.dtype(x) == "bool" else 0 if t.dtype(x)[0] in "iu" else 0.0
    blank = t.full(zero, (), t.dtype(x))
    return t.where(mask(t, on, shape), t.map(x, (*rest, index), shape, zero), blank)


def diag_embed(t: Terms, c: Call) -> int:
    rank = len(c.shape)
    dims = axis(c.get(2, "dim1", -2), rank), axis(c.get(3, "dim2", -1), rank)
    return diag_embed_of(t, c.get(0, "self"), c.get(1, "offset", 0), *dims, c.shape)


def triangle(t: Terms, c: Call) -> int:
    """tril, triu."""
    x, k = c.get(0, "self"), c.get(1, "diagonal", 0)
    row, column = coordinates(c.shape[-2:])
    below = scalar("le", column, iadd(row, k)) if c.base == "tril" else scalar("le", iadd(row, k), column)
    zero = t.full(False if c.dtype == "bool" else 0 if c.dtype[0] in "iu" else 0.0, (), c.dtype)
    return t.where(mask(t, below, c.shape[-2:]), x, zero)


def pixel_shuffle(t: Terms, c: Call) -> int:
    """x[…, c*r*r + (h % r)*r + w % r, h // r, w // r]."""
    x, r = c.get(0, "self"), c.get(1, "upscale_factor")
    *lead, ch, h, w = coordinates(c.shape)
    channel = iadd(imul(ch, r * r), imul(imod(h, r), r), imod(w, r))
    return t.map(x, (*lead, channel, idiv(h, r), idiv(w, r)), c.shape)


def pixel_unshuffle(t: Terms, c: Call) -> int:
    x, r = c.get(0, "self"), c.get(1, "downscale_factor")
    *lead, ch, h, w = coordinates(c.shape)
    row, column = iadd(imul(h, r), imod(idiv(ch, r), r)), iadd(imul(w, r), imod(ch, r))
    return t.map(x, (*lead, idiv(ch, r * r), row, column), c.shape)


def channel_shuffle(t: Terms, c: Call) -> int:
    x, groups = c.get(0, "self"), c.get(1, "groups")
    k = len(c.shape) - 3
    ch = coordinates(c.shape)[k]
    return t.map(x, at(c.shape, k, iadd(imul(imod(ch, groups), idiv(c.shape[k], groups)), idiv(ch, groups))), c.shape)


def unfold(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    k, step = axis(c.get(1, "dimension"), len(t.shape(x))), c.get(3, "step")
    *d, offset = coordinates(c.shape)
    index: list[Expr] = list(d)
    if not t.shape(x):
        return t.map(x, (), c.shape)
    index[k] = iadd(imul(index[k], step), offset)
    return t.map(x, tuple(index), c.shape)


def as_strided(t: Terms, c: Call) -> int:
    """By address in the (contiguous) operand."""
    x = c.get(0, "self")
    position: Expr = extent(c.get(3, "storage_offset", 0))
    for d, stride in zip(coordinates(c.shape), c.get(2, "stride"), strict=True):
        position = iadd(position, imul(d, stride))
    return t.map(reshape(t, x, (numel(t.shape(x)),)), (position,), c.shape)


def rot90(t: Terms, c: Call) -> int:
    x, k, dims = c.get(0, "self"), c.get(1, "k", 1) % 4, c.get(2, "dims", (0, 1))
    a, b = (axis(i, len(c.shape)) for i in dims)
    index: list[Expr] = list(coordinates(c.shape))
    old = t.shape(x)
    p, q = index[a], index[b]
    if k == 1:
        index[a], index[b] = q, isub(isub(old[b], 1), p)
    elif k == 2:
        index[a], index[b] = isub(isub(old[a], 1), p), isub(isub(old[b], 1), q)
    elif k == 3:
        index[a], index[b] = isub(isub(old[a], 1), q), p
    return t.map(x, tuple(index), c.shape)


_VIEWS: Final = (
    "view", "reshape", "_unsafe_view", "_reshape_alias", "_reshape_copy", "flatten", "unflatten", "view_as",
    "reshape_as", "squeeze", "unsqueeze", "ravel", "view_copy", "squeeze_copy", "unsqueeze_copy", "atleast_1d",
    "atleast_2d", "atleast_3d",
)  # fmt: skip
LAYOUT: Final[dict[str, Handler]] = {
    **dict.fromkeys(_VIEWS, view_dtype),
    **dict.fromkeys(("t", "T", "numpy_T", "mT", "mH", "adjoint", "matrix_H", "t_copy"), reverse_dims),
    "permute": permute, "permute_copy": permute, "transpose": transpose, "swapaxes": transpose, "swapdims": transpose,
    "transpose_copy": transpose, "movedim": movedim, "moveaxis": movedim, "expand": expand, "expand_as": expand,
    "expand_copy": expand, "broadcast_to": expand, "broadcast_tensors": broadcast_tensors, "repeat": repeat,
    "tile": repeat, "repeat_interleave": repeat_interleave, "flip": flip, "fliplr": flip, "flipud": flip, "roll": roll,
    "slice": slice_, "slice_copy": slice_, "narrow": narrow, "narrow_copy": narrow, "select": select,
    "select_copy": select,
    "diagonal": diagonal, "diagonal_copy": diagonal, "diag": diag, "diag_embed": diag_embed, "tril": triangle,
    "triu": triangle, "pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle,
    "channel_shuffle": channel_shuffle, "unfold": unfold, "unfold_copy": unfold, "as_strided": as_strided,
    "as_strided_copy": as_strided, "rot90": rot90,
}  # fmt: skip
