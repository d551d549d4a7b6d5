"""Convolutions as contractions over index maps: padding is the zero that an index out of range reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from emmy.frontend.translate.call import Call, Handler, static
from emmy.frontend.translate.contraction import product
from emmy.frontend.translate.layout import reshape
from emmy.frontend.translate.normalization import per_channel
from emmy.ir.build import iadd, idiv, imod, imul, isub, scalar
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Shape, Terms, coordinates

ZERO: Final = const(0)
ONE: Final = const(1)


def each(value: Any, rank: int) -> tuple[int, ...]:
    """One number for every spatial dimension."""
    if not isinstance(value, tuple):
        value = (value,)
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def conv(t: Terms, c: Call) -> int:
    """conv1d, conv2d, conv3d with numbers or `same`/`valid`."""
    weight = c.get(1, "weight")
    rank = len(t.shape(weight)) - 2
    stride, dilation = each(c.get(3, "stride", 1), rank), each(c.get(5, "dilation", 1), rank)
    padding = c.get(4, "padding", 0)
    if isinstance(padding, str):
        sizes = [static(e, "the kernel") for e in t.shape(weight)[2:]]
        padding = tuple((d * (k - 1)) // 2 if padding == "same" else 0 for d, k in zip(dilation, sizes, strict=True))
    return _conv(t, c, stride, each(padding, rank), dilation, c.get(6, "groups", 1))


def convolution(t: Terms, c: Call) -> int:
    rank = len(t.shape(c.get(1, "weight"))) - 2
    stride, padding, dilation = (each(c.get(i, ""), rank) for i in (3, 4, 5))
    run = _conv_transpose if c.get(6, "transposed") else _conv
    return run(t, c, stride, padding, dilation, c.get(8, "groups"))


def conv_transpose(t: Terms, c: Call) -> int:
    rank = len(t.shape(c.get(1, "weight"))) - 2
    stride, padding, dilation = (each(c.get(i, n, v), rank) for i, n, v in (
        (3, "stride", 1), (4, "padding", 0), (7, "dilation", 1)))  # fmt: skip
    return _conv_transpose(t, c, stride, padding, dilation, c.get(6, "groups", 1))


def _operands(t: Terms, c: Call) -> tuple[int, int, Shape]:
    """Input with a batch, weight, and the result's shape with a batch."""
    x, weight = c.get(0, "input"), c.get(1, "weight")
    batched = len(t.shape(x)) == len(t.shape(weight))
    shape = c.shape if batched else (ONE, *c.shape)
    return x if batched else reshape(t, x, (ONE, *t.shape(x))), weight, shape


def _finish(t: Terms, c: Call, y: int, shape: Shape) -> int:
    bias = c.get(2, "bias")
    if bias is not None:
        y = t.bin("add", y, per_channel(t, bias, len(shape)))
    return reshape(t, y, c.shape)


def _conv(
    t: Terms, c: Call, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> int:
    """Space [n, (group), out channel, in channel, kernel…, place…], summed over in channel and kernel."""
    x, w, shape = _operands(t, c)
    n, _, *places = shape
    many, inner, *kernel = t.shape(w)
    grouped = (const(groups),) if groups > 1 else ()
    full = (n, *grouped, idiv(many, groups), inner, *kernel, *places)
    d = coordinates(full)
    g = len(grouped)
    group: Expr = d[1] if g else ZERO
    o, i, rank = d[1 + g], d[2 + g], len(kernel)
    ks, ps = d[3 + g : 3 + g + rank], d[3 + g + rank :]
    place = [
        iadd(imul(p, s), imul(k, r), -pad) for p, k, s, pad, r in zip(ps, ks, stride, padding, dilation, strict=True)
    ]
    x_index = (d[0], iadd(imul(group, inner), i), *place)
    w_index = (iadd(imul(group, idiv(many, groups)), o), i, *ks)
    return _summed(t, c, x, x_index, w, w_index, full, groups, rank, shape)


def _conv_transpose(
    t: Terms, c: Call, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> int:
    """Reads x[(o + padding - k * dilation) / stride] where that is whole.

    The kernel is walked backwards, so that the quotient's argument is only ever negative by a constant.
    """
    x, w, shape = _operands(t, c)
    n, _, *places = shape
    total, many, *kernel = t.shape(w)
    inner = idiv(total, groups)
    grouped = (const(groups),) if groups > 1 else ()
    full = (n, *grouped, many, inner, *kernel, *places)
    d = coordinates(full)
    g = len(grouped)
    group: Expr = d[1] if g else ZERO
    o, i, rank = d[1 + g], d[2 + g], len(kernel)
    ks, ps = d[3 + g : 3 + g + rank], d[3 + g + rank :]
    place: list[Expr] = []
    back: list[Expr] = []
    for p, k, size, s, pad, r in zip(ps, ks, kernel, stride, padding, dilation, strict=True):
        whole = iadd(p, imul(k, r), pad, imul(isub(size, 1), -r))
        at = idiv(whole, s)
        place.append(at if s == 1 else scalar("where", scalar("eq", imod(whole, s), ZERO), at, const(-1)))
        back.append(isub(isub(size, 1), k))
    channel = iadd(imul(group, inner), i)
    return _summed(t, c, x, (d[0], channel, *place), w, (channel, o, *back), full, groups, rank, shape)


def _summed(
    t: Terms, c: Call, x: int, x_index: Sequence[Expr], w: int, w_index: Sequence[Expr], full: Shape, groups: int,
    rank: int, shape: Shape,
) -> int:  # fmt: skip
    g = 1 if groups > 1 else 0
    summed = range(2 + g, 3 + g + rank)
    e = coordinates(shape)
    each_group = full[1 + g]
    split = (idiv(e[1], each_group), imod(e[1], each_group)) if g else (e[1],)
    out_index = (e[0], *split, *(ZERO for _ in summed), *e[2:])
    return _finish(t, c, product(t, c.base, x, x_index, w, w_index, full, summed, shape, out_index), shape)


CONVOLUTION: Final[dict[str, Handler]] = {
    "conv1d": conv, "conv2d": conv, "conv3d": conv, "convolution": convolution, "_convolution": convolution,
    "convolution_overrideable": convolution, "conv_transpose1d": conv_transpose, "conv_transpose2d": conv_transpose,
    "conv_transpose3d": conv_transpose,
}  # fmt: skip
