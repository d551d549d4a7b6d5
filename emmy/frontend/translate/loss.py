"""Losses that the exporter keeps whole."""

from __future__ import annotations

from typing import Final

from emmy.frontend.translate.call import Call, Decline, Handler, axes, constant, stored, wide
from emmy.frontend.translate.indexing import read
from emmy.frontend.translate.layout import reshape
from emmy.ir.dtype import is_float
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Terms, coordinates


def reduced(t: Terms, c: Call, x: int, how: int) -> int:
    """0: each, 1: mean, 2: sum."""
    if how == 0:
        return stored(t, x, c.dtype)
    x = reshape(t, x, t.shape(x) or (const(1),))
    folded = axes(None, len(t.shape(x)))
    return stored(t, t.mean(x, folded, False) if how == 1 else t.reduce("sum", x, folded), c.dtype)


def _pair(t: Terms, c: Call) -> tuple[int, int]:
    x, y = c.get(0, "self"), c.get(1, "target")
    if not is_float(t.dtype(x)) or not is_float(t.dtype(y)):
        raise Decline("a loss of integers")
    return wide(t, x), wide(t, y)


def difference(name: str) -> Handler:
    """mse_loss, l1_loss, smooth_l1_loss, huber_loss."""

    def handler(t: Terms, c: Call) -> int:
        x, y = _pair(t, c)
        gap = t.bin("sub", x, y)
        if name == "mse":
            return reduced(t, c, t.bin("mul", gap, gap), c.get(2, "reduction", 1))
        size = t.un("abs", gap)
        if name == "l1":
            return reduced(t, c, size, c.get(2, "reduction", 1))
        delta = float(c.get(3, "beta" if name == "smooth" else "delta", 1.0))
        if delta == 0:
            return reduced(t, c, size, c.get(2, "reduction", 1))
        inner = t.bin("mul", t.bin("mul", gap, gap), t.full(0.5 / delta if name == "smooth" else 0.5))
        outer = t.bin("sub", size, t.full(0.5 * delta))
        outer = outer if name == "smooth" else t.bin("mul", outer, t.full(delta))
        return reduced(t, c, t.where(t.bin("lt", size, t.full(delta)), inner, outer), c.get(2, "reduction", 1))

    return handler


def bce_with_logits(t: Terms, c: Call) -> int:
    """(1 - y) * x + factor * (log1p(exp(-|x|)) + max(-x, 0))."""
    x, y = _pair(t, c)
    weight, positive = c.get(2, "weight"), c.get(3, "pos_weight")
    soft = t.un("log1p", t.un("exp", t.un("neg", t.un("abs", x))))
    tail = t.bin("add", soft, t.bin("max", t.un("neg", x), t.full(0.0)))
    if positive is not None:
        factor = t.bin("add", t.bin("mul", t.bin("sub", wide(t, positive), t.full(1.0)), y), t.full(1.0))
        tail = t.bin("mul", factor, tail)
    out = t.bin("add", t.bin("mul", t.bin("sub", t.full(1.0), y), x), tail)
    if weight is not None:
        out = t.bin("mul", out, wide(t, weight))
    return reduced(t, c, out, c.get(4, "reduction", 1))


def bce(t: Terms, c: Call) -> int:
    """Logarithms are held above -100."""
    x, y = _pair(t, c)
    yes = t.bin("max", t.un("log", x), t.full(-100.0))
    no = t.bin("max", t.un("log1p", t.un("neg", x)), t.full(-100.0))
    out = t.bin("sub", t.bin("mul", t.bin("sub", y, t.full(1.0)), no), t.bin("mul", y, yes))
    if c.get(2, "weight") is not None:
        out = t.bin("mul", out, wide(t, c.get(2, "weight")))
    return reduced(t, c, out, c.get(3, "reduction", 1))


def kl_div(t: Terms, c: Call) -> int:
    x, y = _pair(t, c)
    if c.kwargs.get("log_target", False):
        out = t.bin("mul", t.un("exp", y), t.bin("sub", y, x))
    else:
        gap = t.bin("sub", t.bin("mul", y, t.un("log", y)), t.bin("mul", y, x))
        out = t.where(t.bin("eq", y, t.full(0.0)), t.full(0.0), gap)
    return reduced(t, c, out, c.get(2, "reduction", 1))


def cross_entropy(t: Terms, c: Call) -> int:
    x, target, smoothing = c.get(0, "self"), c.get(1, "target"), float(c.get(5, "label_smoothing", 0.0))
    classes = 0 if len(t.shape(x)) == 1 else 1
    if is_float(t.dtype(target)) or smoothing:
        raise Decline("class probabilities or label smoothing")
    return _likelihood(t, c, t.softmax(wide(t, x), classes, "LogSoftmax"), target, classes)


def nll(t: Terms, c: Call) -> int | tuple[int, ...]:
    x = c.get(0, "self")
    if len(c.node.results) != 1:
        raise Decline("the total weight")
    return _likelihood(t, c, wide(t, x), c.get(1, "target"), 0 if len(t.shape(x)) == 1 else 1)


def _likelihood(t: Terms, c: Call, x: int, target: int, classes: int) -> int:
    """-x[target], weighted; the mean divides by the weights that were used."""
    weight, how, ignored = c.get(2, "weight"), c.get(3, "reduction", 1), c.get(4, "ignore_index", -100)
    shape = t.shape(target)
    used = t.bin("ne", target, constant(t, ignored, t.dtype(target)))
    safe = t.where(used, target, constant(t, 0, t.dtype(target)))
    d: list[Expr] = list(coordinates(shape))
    label = read(t, 1, safe, tuple(d))
    picked = t.un("neg", t.gather(x, (*d[:classes], label, *d[classes:]), [safe], shape))
    share = t.full(1.0, (), "f32") if weight is None else t.gather(wide(t, weight), (label,), [safe], shape)
    share = t.where(used, share, t.full(0.0))
    value = t.where(used, t.bin("mul", picked, share), t.full(0.0))
    if how == 0:
        return stored(t, value, c.dtype)
    folded = axes(None, len(shape))
    total = t.reduce("sum", value, folded)
    if how == 1:
        total = t.bin("div", total, t.reduce("sum", share, folded))
    return stored(t, total, c.dtype)


LOSS: Final[dict[str, Handler]] = {
    "mse_loss": difference("mse"), "l1_loss": difference("l1"), "smooth_l1_loss": difference("smooth"),
    "huber_loss": difference("huber"), "binary_cross_entropy_with_logits": bce_with_logits,
    "binary_cross_entropy": bce, "kl_div": kl_div, "cross_entropy_loss": cross_entropy, "nll_loss_nd": nll,
    "nll_loss": nll, "nll_loss2d": nll,
}  # fmt: skip
