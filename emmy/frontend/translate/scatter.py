"""Writes whose place is data, spelled as reads: every element of the result looks for what was written to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    Value,
    at,
    axis,
    constant,
    convert,
    mask,
    mask_along,
    number,
    numel,
    stored,
)
from emmy.frontend.translate.indexing import aligned, first_dim, read, tensor_positions, unflatten, wrap
from emmy.frontend.translate.joins import cat_of
from emmy.frontend.translate.layout import reshape, slice_of, slice_start, wrapped_index
from emmy.ir.build import idiv, imod, isub, scalar
from emmy.ir.dtype import is_float
from emmy.ir.loop import Expr, ax, const
from emmy.ir.tensor import Shape, Terms, broadcast, coordinates

_MODES: Final = {"sum": "sum", "add": "sum", "prod": "prod", "multiply": "prod", "amax": "amax", "amin": "amin"}


def along(t: Terms, mode: str, base: int, dim: int, indices: int, src: int) -> int:
    """base[…, indices[…, j, …], …] gets src[…, j, …]; indices may be shorter than base in the other dimensions."""
    shape, own = t.shape(base), t.shape(indices)
    d = coordinates(shape)
    j = ax("j", own[dim])
    place: tuple[Expr, ...] = tuple(j if i == dim else d[i] for i in range(len(shape)))
    hit = scalar("eq", read(t, 1, indices, place), d[dim])
    for i, e in enumerate(own):
        if i != dim and e is not shape[i]:
            hit = scalar("where", scalar("lt", d[i], e), hit, const(False, "bool"))
    return t.scatter(mode, own[dim], hit, place, base, [indices], src)


def scatter(t: Terms, c: Call) -> int:
    """scatter, scatter_add, scatter_reduce in all forms."""
    x, dim, indices, src = c.get(0, "self"), c.get(1, "dim"), c.get(2, "index"), c.get(3, "src", c.kwargs.get("value"))
    mode = "sum" if c.base == "scatter_add" else c.get(4, "reduce", "set")
    if not isinstance(src, Value):
        src = constant(t, src, c.dtype, t.shape(indices), weak=False)
    if not t.shape(x):
        x, indices, src = (reshape(t, v, (const(1),)) for v in (x, indices, src))
        return reshape(t, _scatter(t, c, x, 0, indices, src, mode), ())
    return _scatter(t, c, x, axis(dim, len(t.shape(x))), indices, src, mode)


def _scatter(t: Terms, c: Call, x: int, dim: int, indices: int, src: int, mode: str) -> int:
    if number(numel(t.shape(indices))) == 0:
        return x
    if not c.kwargs.get("include_self", True):
        x = _neutral(t, x, dim, indices, "sum" if mode == "mean" else mode)
    if mode == "mean":
        return _mean(t, x, dim, indices, src, bool(c.kwargs.get("include_self", True)))
    if mode == "set":
        return along(t, "set", x, dim, indices, src)
    if mode not in _MODES:
        raise Decline(f"reduction by {mode}")
    return along(t, _MODES[mode], x, dim, indices, src)


def _touched(t: Terms, x: int, dim: int, indices: int) -> int:
    shape = t.shape(indices)
    return along(t, "set", t.full(False, t.shape(x), "bool"), dim, indices, t.full(True, shape, "bool"))


def _neutral(t: Terms, x: int, dim: int, indices: int, mode: str) -> int:
    """x with the neutral element wherever something is written."""
    if mode in ("amax", "amin") and not is_float(t.dtype(x)):
        raise Decline("an integer extreme without the old value")
    unit = {"sum": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}.get(_MODES.get(mode, ""))
    if unit is None:
        raise Decline(f"reduction by {mode}")
    return t.where(_touched(t, x, dim, indices), constant(t, unit, t.dtype(x)), x)


def _mean(t: Terms, x: int, dim: int, indices: int, src: int, include_self: bool) -> int:
    if not is_float(t.dtype(x)):
        raise Decline("an integer mean")
    total = along(t, "sum", x, dim, indices, src)
    first = t.full(1.0 if include_self else 0.0, t.shape(x), "f32")
    count = along(t, "sum", first, dim, indices, t.full(1.0, t.shape(indices), "f32"))
    return stored(t, t.bin("div", total, t.bin("max", count, t.full(1.0))), t.dtype(x))


def index_write(mode: str) -> Handler:
    """index_add, index_copy, index_fill: one-dimensional indices along one dimension."""

    def handler(t: Terms, c: Call) -> int:
        x, indices = c.get(0, "self"), c.get(2, "index")
        src = c.get(3, "source", c.kwargs.get("value"))
        if not t.shape(x):
            raise Decline("a scalar")
        k = axis(c.get(1, "dim"), len(c.shape))
        many = t.shape(indices)[0] if t.shape(indices) else const(1)
        if number(many) == 0:
            return int(x)
        d, j = coordinates(c.shape), ax("j", many)
        if c.base == "index_fill":
            rows = (*c.shape[:k], many, *c.shape[k + 1 :])
            src = constant(t, src, c.dtype, rows, False) if not isinstance(src, Value) else t.expand(src, rows)
        alpha = c.kwargs.get("alpha", 1)
        src = convert(t, src, c.dtype)
        if alpha != 1:
            src = t.bin("mul", src, constant(t, alpha, c.dtype))
        hit = scalar("eq", wrap(read(t, 1, indices, (j,) if t.shape(indices) else ()), c.shape[k]), d[k])
        return t.scatter(mode, many, hit, at_j(d, k, j), x, [indices], src)

    return handler


def at_j(d: Sequence[Expr], k: int, j: Expr) -> tuple[Expr, ...]:
    return (*d[:k], j, *d[k + 1 :])


def index_put(t: Terms, c: Call) -> int:
    """x[i, None, j] = values, or += with `accumulate`; a mask with one value is a choice."""
    x, indices = c.get(0, "self"), c.get(1, "indices")
    values, add = convert(t, c.get(2, "values"), c.dtype), bool(c.get(3, "accumulate", False))
    if len(indices) == 1 and indices[0] is not None and t.dtype(indices[0]) == "bool":
        return _masked(t, x, indices[0], values, add)
    found = tensor_positions(t, indices, len(c.shape))
    if len(found) > 2:
        raise Decline(f"{len(found)} index tensors in a write")
    many: Shape = ()
    for i in found.values():
        many = broadcast(many, t.shape(i))
    j = ax("j", numel(many))
    if number(j.extent) == 0:
        return int(x)
    place = unflatten(j, many)
    d, order = coordinates(c.shape), sorted(found)
    hit: Expr = const(True, "bool")
    for slot, k in enumerate(order):
        target = wrap(read(t, slot + 1, found[k], aligned(t, found[k], place)), c.shape[k])
        hit = scalar("and", hit, scalar("eq", target, d[k]))
    first = first_dim(found)
    rest = [i for i in range(len(c.shape)) if i not in found]
    written = [*(c.shape[i] for i in rest[:first]), *many, *(c.shape[i] for i in rest[first:])]
    source = [*(d[i] for i in rest[:first]), *place, *(d[i] for i in rest[first:])]
    values = t.expand(values, tuple(written))
    return t.scatter("sum" if add else "set", j.extent, hit, source, x, [found[k] for k in order], values)


def _masked(t: Terms, x: int, chosen: int, values: int, add: bool) -> int:
    if number(numel(t.shape(values))) != 1:
        raise Decline("a masked write of many values")
    rest = tuple(const(1) for _ in t.shape(x)[len(t.shape(chosen)) :])
    chosen = reshape(t, chosen, (*t.shape(chosen), *rest))
    value = reshape(t, values, ())
    return t.where(chosen, t.bin("add", x, value) if add else value, x)


def select_scatter(t: Terms, c: Call) -> int:
    x, src, k = c.get(0, "self"), c.get(1, "src"), axis(c.get(2, "dim"), len(c.shape))
    d = coordinates(c.shape)
    index = wrapped_index(c.get(3, "index"), c.shape[k])
    written = t.map(convert(t, src, c.dtype), (*d[:k], *d[k + 1 :]), c.shape)
    return t.where(mask_along(t, c.shape, k, "eq", index), written, x)


def slice_scatter(t: Terms, c: Call) -> int:
    x, src, k = c.get(0, "self"), convert(t, c.get(1, "src"), c.dtype), axis(c.get(2, "dim", 0), len(c.shape))
    start, step = slice_start(c.shape[k], c.get(3, "start", 0)), c.get(5, "step", 1)
    if number(t.shape(src)[k]) == 0:
        return int(x)
    if t.shape(src)[k] is c.shape[k] and step == 1:
        return src
    own = (c.shape[k], *(const(1) for _ in c.shape[k + 1 :]))
    offset = isub(coordinates(own)[0], start)
    row = idiv(offset, step)
    inside = scalar("and", scalar("le", const(0), offset), scalar("lt", row, t.shape(src)[k]))
    inside = scalar("and", inside, scalar("eq", imod(offset, step), const(0)))
    fill = False if c.dtype == "bool" else 0.0 if is_float(c.dtype) else 0
    place = idiv(isub(coordinates(c.shape)[k], start), step)
    return t.where(mask(t, inside, own), t.map(src, at(c.shape, k, place), c.shape, fill), x)


def diagonal_scatter(t: Terms, c: Call) -> int:
    x, src, offset = c.get(0, "self"), convert(t, c.get(1, "src"), c.dtype), c.get(2, "offset", 0)
    dims = axis(c.get(3, "dim1", 0), len(c.shape)), axis(c.get(4, "dim2", 1), len(c.shape))
    d = coordinates(c.shape)
    row, column = (isub(d[k], max(o, 0)) for k, o in zip(dims, (-offset, offset), strict=True))
    rest = tuple(d[i] for i in range(len(d)) if i not in dims)
    fill = False if c.dtype == "bool" else 0.0 if is_float(c.dtype) else 0
    on = scalar("eq", row, column)
    return t.where(mask(t, on, c.shape), t.map(src, (*rest, row), c.shape, fill), x)


def diff(t: Terms, c: Call) -> int:
    x, dim = c.get(0, "self"), axis(c.get(2, "dim", -1), len(c.shape))
    parts = [p for p in (c.get(3, "prepend"), x, c.get(4, "append")) if p is not None]
    if len(parts) > 1:
        parts = [convert(t, p, c.dtype) for p in parts]
        total = t.shape(parts[0])[dim]
        for p in parts[1:]:
            total = isub(total, isub(const(0), t.shape(p)[dim]))
        x = cat_of(t, parts, dim, (*c.shape[:dim], total, *c.shape[dim + 1 :]))
    for _ in range(c.get(1, "n", 1)):
        length = isub(t.shape(x)[dim], 1)
        high, low = (slice_of(t, x, dim, const(k), length) for k in (1, 0))
        x = t.bin("xor" if t.dtype(x) == "bool" else "sub", high, low)
    return int(x)


def refused(reason: str) -> Handler:
    def handler(t: Terms, c: Call) -> Any:
        raise Decline(reason)

    return handler


SCATTER: Final[dict[str, Handler]] = {
    "scatter": scatter, "scatter_add": scatter, "scatter_reduce": scatter, "index_add": index_write("sum"),
    "index_copy": index_write("set"), "index_fill": index_write("set"), "index_put": index_put,
    "_unsafe_index_put": index_put, "select_scatter": select_scatter, "slice_scatter": slice_scatter,
    "diagonal_scatter": diagonal_scatter, "diff": diff,
    "masked_scatter": refused("a write whose source's place is data"),
    "masked_select": refused("a result whose size is data"), "nonzero": refused("a result whose size is data"),
    "sort": refused("sorting"), "argsort": refused("sorting"), "topk": refused("sorting"), "unique": refused("sorting"),
}  # fmt: skip
