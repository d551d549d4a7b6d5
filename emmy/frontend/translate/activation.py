"""Activations, computed in f32 inside and stored in the result's type."""

from __future__ import annotations

from typing import Any, Final

from emmy.frontend.translate.call import Call, Decline, Handler, axis, stored, wide
from emmy.frontend.translate.layout import slice_of
from emmy.ir.build import idiv
from emmy.ir.dtype import is_float
from emmy.ir.loop import const
from emmy.ir.tensor import Terms

# Klambauer et al., Self-Normalizing Neural Networks (2017), appendix 1.
_SELU_ALPHA: Final = 1.6732632423543772848170429916717
_SELU_SCALE: Final = 1.0507009873554804934193349852946


def _x(t: Terms, c: Call) -> int:
    x = c.get(0, "self", c.kwargs.get("input"))
    if not is_float(t.dtype(x)):
        raise Decline("an activation of integers")
    return wide(t, x)


def relu(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    return t.bin("max", x, t.full(0.0) if is_float(t.dtype(x)) else t.full(0, (), t.dtype(x)))


def between(t: Terms, x: int, low: float, high: float) -> int:
    return t.bin("min", t.bin("max", x, t.full(float(low))), t.full(float(high)))


def hardtanh(t: Terms, c: Call) -> int:
    low, high = (0.0, 6.0) if c.base == "relu6" else (c.get(1, "min_val", -1.0), c.get(2, "max_val", 1.0))
    x = c.get(0, "self")
    if not is_float(t.dtype(x)):
        raise Decline("an activation of integers")
    return between(t, x, low, high)


def hardsigmoid(t: Terms, c: Call) -> int:
    gate = between(t, t.bin("add", _x(t, c), t.full(3.0)), 0.0, 6.0)
    return stored(t, t.bin("div", gate, t.full(6.0)), c.dtype)


def hardswish(t: Terms, c: Call) -> int:
    x = _x(t, c)
    gate = between(t, t.bin("add", x, t.full(3.0)), 0.0, 6.0)
    return stored(t, t.bin("div", t.bin("mul", x, gate), t.full(6.0)), c.dtype)


def _elu(t: Terms, c: Call, alpha: float, scale: float, inner: float) -> int:
    x = _x(t, c)
    low = t.bin("mul", t.un("expm1", _scaled(t, x, inner)), t.full(alpha * scale))
    return stored(t, t.where(t.bin("le", x, t.full(0.0)), low, _scaled(t, x, scale)), c.dtype)


def _scaled(t: Terms, x: int, factor: float) -> int:
    return x if factor == 1 else t.bin("mul", x, t.full(float(factor)))


def elu(t: Terms, c: Call) -> int:
    return _elu(t, c, float(c.get(1, "alpha", 1.0)), float(c.get(2, "scale", 1.0)), float(c.get(3, "input_scale", 1.0)))


def selu(t: Terms, c: Call) -> int:
    return _elu(t, c, _SELU_ALPHA, _SELU_SCALE, 1.0)


def celu(t: Terms, c: Call) -> int:
    alpha = float(c.get(1, "alpha", 1.0))
    return _elu(t, c, alpha, 1.0, 1.0 / alpha)


def _leaky(t: Terms, x: int, slope: int) -> int:
    return t.where(t.bin("lt", t.full(0.0), x), x, t.bin("mul", x, slope))


def leaky_relu(t: Terms, c: Call) -> int:
    return stored(t, _leaky(t, _x(t, c), t.full(float(c.get(1, "negative_slope", 0.01)))), c.dtype)


def rrelu(t: Terms, c: Call) -> int:
    low, high = c.get(1, "lower", 1 / 8), c.get(2, "upper", 1 / 3)
    if c.get(3, "training", False):
        raise Decline("random numbers")
    return stored(t, _leaky(t, _x(t, c), t.full((low + high) / 2)), c.dtype)


def prelu(t: Terms, c: Call) -> int:
    """One slope, or one for each channel (dimension 1)."""
    x, weight = _x(t, c), wide(t, c.get(1, "weight"))
    rank = len(t.shape(x))
    if t.shape(weight) and c.base == "prelu":
        n = t.shape(weight)[0]
        shape = (
            (n, *(const(1) for _ in range(rank - 2))) if rank > 1 and n is not const(1) else (const(1),) * min(rank, 1)
        )
        weight = t.reshape(weight, shape)
    return stored(t, _leaky(t, x, weight), c.dtype)


def softplus(t: Terms, c: Call) -> int:
    beta, threshold = float(c.get(1, "beta", 1.0)), float(c.get(2, "threshold", 20.0))
    x = _x(t, c)
    z = _scaled(t, x, beta)
    soft = _scaled(t, t.un("log1p", t.un("exp", z)), 1 / beta)
    return stored(t, t.where(t.bin("lt", t.full(threshold), z), x, soft), c.dtype)


def mish(t: Terms, c: Call) -> int:
    x = _x(t, c)
    return stored(t, t.bin("mul", x, t.un("tanh", t.un("log1p", t.un("exp", x)))), c.dtype)


def log_sigmoid(t: Terms, c: Call) -> Any:
    x = _x(t, c)
    if len(c.node.results) != 1:
        raise Decline("the buffer of log_sigmoid_forward")
    tail = t.un("log1p", t.un("exp", t.un("neg", t.un("abs", x))))
    return stored(t, t.bin("sub", t.bin("min", x, t.full(0.0)), tail), c.dtype)


def threshold(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    if not is_float(t.dtype(x)):
        raise Decline("an activation of integers")
    low, value = (float(c.get(i, n)) for i, n in ((1, "threshold"), (2, "value")))
    return t.where(t.bin("le", x, t.full(low)), t.full(value), x)


def glu(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    dim = axis(c.get(1, "dim", -1), len(t.shape(x)))
    half = idiv(t.shape(x)[dim], 2)
    value, gate = (wide(t, slice_of(t, x, dim, start, half)) for start in (const(0), half))
    return stored(t, t.bin("mul", value, t.un("sigmoid", gate)), c.dtype)


def logit(t: Terms, c: Call) -> int:
    x, eps = _x(t, c), c.get(1, "eps")
    if eps is not None:
        x = between(t, x, eps, 1 - eps)
    return stored(t, t.un("log", t.bin("div", x, t.bin("sub", t.full(1.0), x))), c.dtype)


def atanh(t: Terms, c: Call) -> int:
    x = _x(t, c)
    ratio = t.bin("div", t.bin("add", x, x), t.bin("sub", t.full(1.0), x))
    return stored(t, t.bin("mul", t.un("log1p", ratio), t.full(0.5)), c.dtype)


def gelu(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    if not is_float(t.dtype(x)):
        raise Decline("an activation of integers")
    return t.gelu(x, str(c.get(1, "approximate", "none")))


def silu(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    if not is_float(t.dtype(x)):
        raise Decline("an activation of integers")
    return t.silu(x)


def hardshrink(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    inside = t.bin("le", t.un("abs", x), t.full(float(c.get(1, "lambd", 0.5))))
    return t.where(inside, t.full(0.0), x)


ACTIVATION: Final[dict[str, Handler]] = {
    "relu": relu, "relu6": hardtanh, "hardtanh": hardtanh, "hardsigmoid": hardsigmoid, "hardswish": hardswish,
    "elu": elu, "selu": selu, "celu": celu, "leaky_relu": leaky_relu, "rrelu": rrelu, "prelu": prelu,
    "_prelu_kernel": prelu, "softplus": softplus, "mish": mish, "log_sigmoid": log_sigmoid,
    "log_sigmoid_forward": log_sigmoid, "threshold": threshold, "glu": glu, "logit": logit, "special_logit": logit,
    "gelu": gelu, "silu": silu, "hardshrink": hardshrink, "atanh": atanh, "arctanh": atanh,
}  # fmt: skip
