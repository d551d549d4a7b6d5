"""Pooling and folding: windows are an index map with extra dimensions, reduced over those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from emmy.frontend.translate.call import Call, Decline, Handler, number, numel, static, stored
from emmy.frontend.translate.convolution import each
from emmy.frontend.translate.layout import reshape
from emmy.ir.build import iadd, idiv, imod, imul, isub, scalar
from emmy.ir.dtype import DTYPES, is_float
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Shape, Terms, coordinates

ZERO: Final = const(0)


def windows(
    t: Terms, x: int, places: Shape, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], fill: float | None,
) -> int:  # fmt: skip
    """x as […, place…, kernel…], `fill` outside."""
    rank = len(kernel)
    lead = t.shape(x)[:-rank]
    shape = (*lead, *places, *(const(k) for k in kernel))
    d = coordinates(shape)
    ps, ks = d[len(lead) : len(lead) + rank], d[len(lead) + rank :]
    steps = zip(ps, ks, stride, padding, dilation, strict=True)
    index = [iadd(imul(p, s), imul(k, r), -pad) for p, k, s, pad, r in steps]
    return t.map(x, (*d[: len(lead)], *index), shape, fill)


def lowest(dtype: str) -> float:
    """Neutral element of max."""
    if is_float(dtype):
        return -math.inf
    return 0 if dtype == "u8" else -(2 ** (DTYPES[dtype].bits - 1))


def _trailing(t: Terms, x: int, count: int) -> tuple[int, ...]:
    rank = len(t.shape(x))
    return tuple(range(rank - count, rank))


def max_pool(t: Terms, c: Call) -> int | tuple[int, ...]:
    """max_pool1d, 2d, 3d, with the position in the input's plane as second result where asked for."""
    rank = int(c.base.split("pool")[1][0])
    x, kernel = c.get(0, "self"), each(c.get(1, "kernel_size"), rank)
    stride = each(c.get(2, "stride") or kernel, rank)
    padding, dilation = each(c.get(3, "padding", 0), rank), each(c.get(4, "dilation", 1), rank)
    places = c.shape[-rank:]
    w = windows(t, x, places, kernel, stride, padding, dilation, lowest(c.dtype))
    value = t.reduce("max", w, _trailing(t, w, rank))
    if len(c.node.results) == 1:
        return value
    lead = len(c.shape) - rank
    picked = t.arg_reduce("max", reshape(t, w, (*c.shape, const(math.prod(kernel)))), len(c.shape), False)
    return value, _position(t, c, picked, lead, kernel, stride, padding, dilation)


def _position(
    t: Terms, c: Call, picked: int, lead: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> int:  # fmt: skip
    """Row-major place in the input plane of the picked element of each window."""
    plane = t.shape(c.get(0, "self"))[lead:]
    d = coordinates(c.shape)
    total: int | None = None
    for k, size in enumerate(kernel):
        inner = math.prod(kernel[k + 1 :])
        within = t.bin("mod", t.bin("floordiv", picked, t.full(inner, (), "i64")), t.full(size, (), "i64"))
        start = t.iota(iadd(imul(d[lead + k], stride[k]), -padding[k]), c.shape)
        at = t.bin("add", start, t.bin("mul", within, t.full(dilation[k], (), "i64")))
        weighted = t.bin("mul", at, t.iota(numel(plane[k + 1 :]), ()))
        total = weighted if total is None else t.bin("add", total, weighted)
    assert total is not None
    return total


def avg_pool(t: Terms, c: Call) -> int:
    rank = int(c.base.split("pool")[1][0])
    x, kernel = c.get(0, "self"), each(c.get(1, "kernel_size"), rank)
    stride, padding = each(c.get(2, "stride") or kernel, rank), each(c.get(3, "padding", 0), rank)
    ceil, include = c.get(4, "ceil_mode", False), c.get(5, "count_include_pad", True)
    divisor = c.get(6, "divisor_override")
    w = windows(t, x, c.shape[-rank:], kernel, stride, padding, (1,) * rank, 0.0)
    total = t.reduce("sum", w, _trailing(t, w, rank))
    if divisor is None and ((include and not ceil) or (not any(padding) and not ceil)):
        divisor = math.prod(kernel)
    if divisor is not None:
        return stored(t, t.bin("div", total, t.full(float(divisor))), c.dtype)
    count = _window_sizes(t, c, kernel, stride, padding, bool(include))
    return stored(t, t.bin("div", total, t.cast(count, "f32")), c.dtype)


def _window_sizes(
    t: Terms, c: Call, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], include: bool
) -> int:
    """Elements of each window, those in the padding counted or not; what lies past the padding never is."""
    rank = len(kernel)
    places = c.shape[-rank:]
    plane = t.shape(c.get(0, "self"))[-rank:]
    sizes: list[Expr] = []
    for d, n, k, s, pad in zip(coordinates(places), plane, kernel, stride, padding, strict=True):
        start = iadd(imul(d, s), -pad)
        stop = scalar("min", iadd(start, k), iadd(n, pad))
        if not include:
            start, stop = scalar("max", start, ZERO), scalar("min", stop, n)
        sizes.append(isub(stop, start))
    return t.iota(imul(*sizes), places)


def _adaptive(t: Terms, x: int, places: Shape, fill: float) -> tuple[int, int | None]:
    """Windows from floor(i * n / o) to ceil((i + 1) * n / o), and their sizes (None where all are equal)."""
    rank = len(places)
    lead, plane = t.shape(x)[:-rank], t.shape(x)[-rank:]
    if all(number(o) == 1 for o in places):
        return reshape(t, x, (*lead, *places, *plane)), None
    n = [static(e, "an adaptively pooled dimension") for e in plane]
    o = [static(e, "a pooled dimension") for e in places]
    if all(a % b == 0 for a, b in zip(n, o, strict=True)):
        kernel = [a // b for a, b in zip(n, o, strict=True)]
        return windows(t, x, places, kernel, kernel, (0,) * rank, (1,) * rank, None), None
    kernel = [max(-(-(i + 1) * a // b) - i * a // b for i in range(b)) for a, b in zip(n, o, strict=True)]
    shape = (*lead, *places, *(const(k) for k in kernel))
    d = coordinates(shape)
    index: list[Expr] = []
    sizes: list[Expr] = []
    for i, (a, b) in enumerate(zip(n, o, strict=True)):
        p, k = d[len(lead) + i], d[len(lead) + rank + i]
        start, stop = idiv(imul(p, a), b), idiv(iadd(imul(p, a), a + b - 1), b)
        index.append(scalar("where", scalar("lt", iadd(start, k), stop), iadd(start, k), const(-1)))
        q = coordinates(places)[i]
        sizes.append(isub(idiv(iadd(imul(q, a), a + b - 1), b), idiv(imul(q, a), b)))
    return t.map(x, (*d[: len(lead)], *index), shape, fill), t.iota(imul(*sizes), places)


def adaptive_avg_pool(t: Terms, c: Call) -> int:
    rank = int(c.base.split("pool")[1][0])
    w, count = _adaptive(t, c.get(0, "self"), c.shape[-rank:], 0.0)
    if count is None:
        return reshape(t, t.mean(w, _trailing(t, w, rank), True), c.shape)
    total = t.reduce("sum", w, _trailing(t, w, rank))
    return stored(t, t.bin("div", total, t.cast(count, "f32")), c.dtype)


def adaptive_max_pool(t: Terms, c: Call) -> tuple[int, ...]:
    """Values, and positions in the input's plane."""
    rank = int(c.base.split("pool")[1][0])
    x, places = c.get(0, "self"), c.shape[-rank:]
    lead, plane = t.shape(x)[:-rank], t.shape(x)[-rank:]
    w, _ = _adaptive(t, x, places, lowest(c.dtype))
    value = t.reduce("max", w, _trailing(t, w, rank))
    kernel = t.shape(w)[-rank:]
    picked = t.arg_reduce("max", reshape(t, w, (*lead, *places, numel(kernel))), len(c.shape), False)
    d = coordinates(c.shape)[len(lead) :]
    total: int | None = None
    for k in range(rank):
        inner = numel(kernel[k + 1 :])
        within = t.bin("mod", t.bin("floordiv", picked, t.iota(inner, ())), t.iota(kernel[k], ()))
        start = t.iota(idiv(imul(coordinates(places)[k], plane[k]), d[k].extent), places)
        weighted = t.bin("mul", t.bin("add", start, within), t.iota(numel(plane[k + 1 :]), ()))
        total = weighted if total is None else t.bin("add", total, weighted)
    assert total is not None
    return value, total


def im2col(t: Terms, c: Call) -> int:
    """[n, channels * kernel, places]."""
    x = c.get(0, "self")
    kernel, dilation, padding, stride = (each(c.get(i, ""), 2) for i in (1, 2, 3, 4))
    wide = _count(t.shape(x)[-1], kernel[1], stride[1], padding[1], dilation[1])
    channels, place = coordinates(c.shape)[-2:]
    k = imod(channels, kernel[0] * kernel[1])
    row = iadd(imul(idiv(place, wide), stride[0]), imul(idiv(k, kernel[1]), dilation[0]), -padding[0])
    column = iadd(imul(imod(place, wide), stride[1]), imul(imod(k, kernel[1]), dilation[1]), -padding[1])
    lead = coordinates(c.shape)[:-2]
    fill = False if c.dtype == "bool" else 0.0 if is_float(c.dtype) else 0
    return t.map(x, (*lead, idiv(channels, kernel[0] * kernel[1]), row, column), c.shape, fill)


def _count(n: Expr, kernel: int, stride: int, padding: int, dilation: int) -> Expr:
    return iadd(idiv(iadd(n, 2 * padding - dilation * (kernel - 1) - 1), stride), 1)


def col2im(t: Terms, c: Call) -> int:
    """Every pixel sums the window elements that were read from it; kernels are walked backwards as in `convolution`."""
    x = c.get(0, "self")
    kernel, dilation, padding, stride = (each(c.get(i, ""), 2) for i in (2, 3, 4, 5))
    plane = c.shape[-2:]
    counts = [_count(plane[k], kernel[k], stride[k], padding[k], dilation[k]) for k in range(2)]
    shape = (*c.shape, const(kernel[0]), const(kernel[1]))
    *lead, channel, h, w, a, b = coordinates(shape)
    back = [isub(kernel[k] - 1, e) for k, e in enumerate((a, b))]
    inside: Expr = const(True, "bool")
    place: list[Expr] = []
    for k, (p, e) in enumerate(((h, a), (w, b))):
        whole = iadd(p, imul(e, dilation[k]), padding[k] - (kernel[k] - 1) * dilation[k])
        at = idiv(whole, stride[k])
        for condition in (
            scalar("eq", imod(whole, stride[k]), ZERO), scalar("le", ZERO, at), scalar("lt", at, counts[k]),
        ):  # fmt: skip
            inside = scalar("and", inside, condition)
        place.append(at)
    position = scalar("where", inside, iadd(imul(place[0], counts[1]), place[1]), const(-1))
    column = iadd(imul(channel, kernel[0] * kernel[1]), imul(back[0], kernel[1]), back[1])
    read = t.map(x, (*lead, column, position), shape, 0.0 if is_float(c.dtype) else 0)
    return t.reduce("sum", read, (len(shape) - 2, len(shape) - 1))


def pad(t: Terms, c: Call) -> int:
    """Constant, reflect, replicate and circular padding, from the last dimension on."""
    x, pads = c.get(0, "self"), c.get(1, "pad", c.kwargs.get("padding"))
    mode = str(c.get(2, "mode", "constant")) if c.base == "pad" else c.base.split("_")[0].removesuffix("ion")
    value = (c.get(3, "value", 0) if c.base == "pad" else c.get(2, "value", 0)) if mode == "constant" else None
    index: list[Expr] = list(coordinates(c.shape))
    for k in range(len(pads) // 2):
        dim = len(c.shape) - 1 - k
        place = isub(index[dim], pads[2 * k])
        index[dim] = place if mode == "constant" else _folded(place, t.shape(x)[dim], mode)
    return t.map(x, index, c.shape, None if value is None else _fill(value, c.dtype))


def _fill(value: Any, dtype: str) -> float | int | bool:
    from emmy.frontend.translate.call import rounded, wrapped

    if isinstance(value, Expr):
        raise Decline("a symbolic padding value")
    if is_float(dtype):
        return rounded(float(value), dtype)
    return bool(value) if dtype == "bool" else wrapped(value, dtype)


def _folded(place: Expr, n: Expr, mode: str) -> Expr:
    """A coordinate outside 0 .. n-1 led back inside."""
    if mode == "circular":
        return imod(place, n)
    if mode in ("replicate", "replicat"):
        return scalar("min", scalar("max", place, ZERO), isub(n, 1))
    if mode not in ("reflect", "reflection"):
        raise Decline(f"{mode} padding")
    front = scalar("where", scalar("lt", place, ZERO), imul(place, -1), place)
    return scalar("where", scalar("le", n, place), isub(imul(isub(n, 1), 2), place), front)


_PADS: Final = (
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d",
)  # fmt: skip
POOLING: Final[dict[str, Handler]] = {
    **{f"max_pool{r}d{tail}": max_pool for r in (1, 2, 3) for tail in ("", "_with_indices")},
    **{f"avg_pool{r}d": avg_pool for r in (1, 2, 3)},
    **{f"{lead}adaptive_avg_pool{r}d": adaptive_avg_pool for lead in ("", "_") for r in (1, 2, 3)},
    **{f"adaptive_max_pool{r}d": adaptive_max_pool for r in (1, 2, 3)},
    **dict.fromkeys(_PADS, pad), "im2col": im2col, "col2im": col2im,
}  # fmt: skip
