"""Sums, products, extremes, statistics, norms and prefix folds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    axes,
    axis,
    constant,
    convert,
    number,
    numel,
    stored,
    wide,
)
from emmy.frontend.translate.elementwise import ELEMENTWISE
from emmy.frontend.translate.layout import reshape
from emmy.ir.dtype import is_float
from emmy.ir.loop import const
from emmy.ir.tensor import Terms, coordinates

Fold = Callable[[Terms, int, tuple[int, ...]], int]


def over(t: Terms, c: Call, x: int, dims: Any, fold: Fold, empty: float | None, dtype: str | None = None) -> int:
    """Apply `fold(t, x, axes)`, which keeps the reduced dimensions, and give the result its shape.

    A scalar counts as one element; `empty` is the value over nothing (None: PyTorch refuses that).
    """
    dtype = dtype or c.dtype
    if not t.shape(x):
        x, dims = reshape(t, x, (const(1),)), (0,)
    folded = axes(dims, len(t.shape(x)))
    if any(number(t.shape(x)[a]) == 0 for a in folded):
        if empty is None:
            raise Decline("an extreme of nothing")
        return constant(t, empty, dtype, c.shape, weak=False)
    return reshape(t, fold(t, x, folded), c.shape)


def plain(kind: str) -> Fold:
    return lambda t, x, folded: t.reduce(kind, x, folded, keepdim=True)


def accumulate(kind: str, empty: float) -> Handler:
    """sum, prod: in the result's type, which is i64 for integers and bool unless `dtype` says otherwise."""

    def handler(t: Terms, c: Call) -> int:
        x = convert(t, c.get(0, "self"), c.dtype)
        dims = c.get(1, "dim") if c.overload != "default" else None
        if c.dtype == "bool":
            return over(t, c, x, dims, plain("or" if kind == "sum" else "and"), empty)
        return over(t, c, x, dims, plain(kind), empty)

    return handler


def nansum(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    if is_float(t.dtype(x)):
        x = t.where(t.un("isnan", x), t.full(0.0), x)
    return over(t, c, convert(t, x, c.dtype), c.get(1, "dim"), plain("sum"), 0)


def mean(t: Terms, c: Call) -> int:
    x = convert(t, c.get(0, "self"), c.dtype)
    dims = c.get(1, "dim") if c.overload != "default" else None
    return over(t, c, x, dims, lambda t, x, folded: t.mean(x, folded, True), math.nan)


def _extreme(t: Terms, x: int, kind: str, folded: tuple[int, ...]) -> int:
    if t.dtype(x) == "bool":
        return t.reduce("or" if kind == "max" else "and", x, folded, keepdim=True)
    return t.reduce(kind, x, folded, keepdim=True)


def extreme(kind: str) -> Handler:
    """amax, amin, and max and min over everything, over one dimension (with indices) and of two tensors."""

    def handler(t: Terms, c: Call) -> int | tuple[int, ...]:
        if c.overload == "other":
            return ELEMENTWISE[f"{kind}imum"](t, c)
        x = c.get(0, "self")
        dims = c.get(1, "dim") if c.base[0] == "a" or c.overload == "dim" else None
        value = over(t, c, x, dims, lambda t, x, folded: _extreme(t, x, kind, folded), None)
        if len(c.node.results) == 1:
            return value
        return value, _arg(t, c, x, kind, dims, c.node.results[1].shape)

    return handler


def aminmax(t: Terms, c: Call) -> tuple[int, ...]:
    x, dims = c.get(0, "self"), c.get(1, "dim", c.kwargs.get("dim"))
    low = over(t, c, x, dims, lambda t, x, folded: _extreme(t, x, "min", folded), None)
    return low, over(t, c, x, dims, lambda t, x, folded: _extreme(t, x, "max", folded), None)


def _arg(t: Terms, c: Call, x: int, kind: str, dim: int | None, shape: Any) -> int:
    if dim is None or not t.shape(x):
        x, dim = reshape(t, x, (numel(t.shape(x)),)), 0
    k = axis(dim, len(t.shape(x)))
    if number(t.shape(x)[k]) == 0:
        raise Decline("an extreme of nothing")
    x = t.cast(x, "u8") if t.dtype(x) == "bool" else x
    return reshape(t, t.arg_reduce(kind, x, k, True), shape)


def arg_extreme(kind: str) -> Handler:
    def handler(t: Terms, c: Call) -> int:
        return _arg(t, c, c.get(0, "self"), kind, c.get(1, "dim"), c.shape)

    return handler


def truth(kind: str) -> Handler:
    """any (or), all (and); the result of u8 is u8."""

    def handler(t: Terms, c: Call) -> int:
        x = convert(t, c.get(0, "self"), "bool")
        out = over(t, c, x, c.get(1, "dim"), plain(kind), kind == "and", "bool")
        return convert(t, out, c.dtype)

    return handler


def count_nonzero(t: Terms, c: Call) -> int:
    x = t.cast(convert(t, c.get(0, "self"), "bool"), c.dtype)
    return over(t, c, x, c.get(1, "dim"), plain("sum"), 0)


def _correction(c: Call) -> tuple[Any, float]:
    """Dimensions and the number taken off the count, from the three overloads."""
    if c.overload == "default":
        return None, 1.0 if c.get(1, "unbiased", True) else 0.0
    if c.overload == "dim":
        return c.get(1, "dim"), 1.0 if c.get(2, "unbiased", True) else 0.0
    correction = c.kwargs.get("correction")
    return c.get(1, "dim"), 1.0 if correction is None else float(correction)


def _variance(t: Terms, c: Call, root: bool) -> int:
    dims, correction = _correction(c)

    def fold(t: Terms, x: int, folded: tuple[int, ...]) -> int:
        count = number(numel([t.shape(x)[a] for a in folded]))
        if count is not None and count <= correction:
            return _too_few(t, x, folded)
        if root:
            return stored(t, t.un("sqrt", t.var(wide(t, x), folded, correction, True)), c.dtype)
        return t.var(x, folded, correction, True)

    return over(t, c, c.get(0, "self"), dims, fold, math.nan)


def _too_few(t: Terms, x: int, folded: tuple[int, ...]) -> int:
    """Squared deviations over a count of zero: infinite, or NaN where there are none."""
    return t.bin("div", t.var(x, folded, 0.0, True), t.full(0.0))


def var(t: Terms, c: Call) -> int:
    return _variance(t, c, root=False)


def std(t: Terms, c: Call) -> int:
    return _variance(t, c, root=True)


def with_mean(root: bool) -> Handler:
    """var_mean, std_mean."""

    def handler(t: Terms, c: Call) -> tuple[int, ...]:
        dims, _ = _correction(c)
        x = c.get(0, "self")
        return _variance(t, c, root), over(t, c, x, dims, lambda t, x, folded: t.mean(x, folded, True), math.nan)

    return handler


def logsumexp(t: Terms, c: Call) -> int:
    """The largest value is taken off first; where it is infinite nothing is."""
    x = wide(t, convert(t, c.get(0, "self"), c.dtype))

    def fold(t: Terms, x: int, folded: tuple[int, ...]) -> int:
        top = t.reduce("max", x, folded, keepdim=True)
        top = t.where(t.un("isinf", top), t.full(0.0), top)
        total = t.reduce("sum", t.un("exp", t.bin("sub", x, top)), folded, keepdim=True)
        return stored(t, t.bin("add", t.un("log", total), top), c.dtype)

    return over(t, c, x, c.get(1, "dim"), fold, -math.inf)


def norm_over(t: Terms, x: int, p: float, folded: tuple[int, ...]) -> int:
    """The p-norm of f32 values, reduced dimensions kept."""
    if p == 2:
        return t.un("sqrt", t.reduce("sum", t.bin("mul", x, x), folded, keepdim=True))
    if p in (math.inf, -math.inf):
        return t.reduce("max" if p > 0 else "min", t.un("abs", x), folded, keepdim=True)
    if p == 0:
        return t.reduce("sum", t.cast(t.bin("ne", x, t.full(0.0)), "f32"), folded, keepdim=True)
    size = t.un("abs", x)
    if p == 1:
        return t.reduce("sum", size, folded, keepdim=True)
    total = t.reduce("sum", t.bin("pow", size, t.full(p)), folded, keepdim=True)
    return t.bin("pow", total, t.full(1 / p))


def norm(t: Terms, c: Call) -> int:
    """norm, linalg_norm, linalg_vector_norm, linalg_matrix_norm with a vector's meaning."""
    order, dims = _order(t, c)
    x = c.get(0, "self")
    if not is_float(t.dtype(x)):
        raise Decline("a norm of integers")
    x = wide(t, t.cast(x, c.dtype))
    return over(t, c, x, dims, lambda t, x, a: stored(t, norm_over(t, x, order, a), c.dtype), 0.0)


def _order(t: Terms, c: Call) -> tuple[float, Any]:
    """The p of the vector norm, and the dimensions."""
    rank = len(t.shape(c.get(0, "self")))
    if c.base == "linalg_vector_norm":
        return float(c.get(1, "ord", 2)), c.get(2, "dim")
    if c.base == "linalg_matrix_norm":
        if c.get(1, "ord", "fro") != "fro":
            raise Decline("a matrix norm other than Frobenius")
        return 2.0, c.get(2, "dim", (-2, -1))
    if c.base == "norm":
        return float(c.get(1, "p", 2)), c.get(2, "dim")
    order, dims = c.get(1, "ord"), c.get(2, "dim")
    width = rank if dims is None else 1 if isinstance(dims, int) else len(dims)
    if order is not None and order != "fro" and width != 1:
        raise Decline("a matrix norm")
    return 2.0 if order is None or order == "fro" else float(order), dims


def scan(kind: str) -> Handler:
    """cumsum, cumprod."""

    def handler(t: Terms, c: Call) -> int:
        x = convert(t, c.get(0, "self"), c.dtype)
        if not t.shape(x):
            return x
        return t.scan(kind, x, axis(c.get(1, "dim"), len(t.shape(x))))

    return handler


def softmax(kind: str) -> Handler:
    """softmax, log_softmax and their internal forms: in the result's type."""

    def handler(t: Terms, c: Call) -> int:
        x = convert(t, c.get(0, "self"), c.dtype)
        if not t.shape(x):
            return reshape(t, t.softmax(reshape(t, x, (const(1),)), 0, kind), ())
        return t.softmax(x, axis(c.get(1, "dim"), len(t.shape(x))), kind)

    return handler


def histc(t: Terms, c: Call) -> int:
    """How many elements lie in each of equal parts of min … max, whose last part has its end; others count nowhere."""
    bins, low, high = int(c.get(1, "bins", 100)), c.get(2, "min", 0), c.get(3, "max", 0)
    if low == high:
        raise Decline("bounds that the data give")
    x = wide(t, c.get(0, "self"))
    n = numel(t.shape(x))
    x = reshape(t, x, (const(1), n))
    steps = t.bin("mul", t.bin("sub", x, t.full(float(low))), t.full(float(bins)))
    part = t.un("floor", t.bin("div", steps, t.full(float(high - low))))
    part = t.bin("min", part, t.full(float(bins - 1)))
    inside = t.bin("and", t.bin("le", t.full(float(low)), x), t.bin("le", x, t.full(float(high))))
    b, _ = coordinates((const(bins), const(1)))
    hit = t.bin("and", inside, t.bin("eq", part, t.cast(t.iota(b, (const(bins), const(1))), "f32")))
    # f32 counts to 2^24 only
    return stored(t, t.reduce("sum", t.cast(hit, "i64"), (1,)), c.dtype)


REDUCTION: Final[dict[str, Handler]] = {
    "sum": accumulate("sum", 0), "prod": accumulate("prod", 1), "nansum": nansum, "mean": mean, "amax": extreme("max"),
    "amin": extreme("min"), "max": extreme("max"), "min": extreme("min"), "aminmax": aminmax,
    "argmax": arg_extreme("max"), "argmin": arg_extreme("min"), "any": truth("or"), "all": truth("and"),
    "count_nonzero": count_nonzero, "var": var, "std": std, "var_mean": with_mean(False), "std_mean": with_mean(True),
    "logsumexp": logsumexp, "special_logsumexp": logsumexp, "norm": norm, "linalg_vector_norm": norm,
    "linalg_norm": norm, "linalg_matrix_norm": norm, "histc": histc, "cumsum": scan("sum"), "cumprod": scan("prod"),
    "softmax": softmax("Softmax"), "_softmax": softmax("Softmax"), "special_softmax": softmax("Softmax"),
    "log_softmax": softmax("LogSoftmax"), "_log_softmax": softmax("LogSoftmax"),
    "special_log_softmax": softmax("LogSoftmax"), "_safe_softmax": softmax("SafeSoftmax"),
}  # fmt: skip
