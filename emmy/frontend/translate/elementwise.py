"""Element-wise arithmetic and functions, choices and conversions."""

from __future__ import annotations

import math
from typing import Any, Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    Value,
    as_type,
    constant,
    convert,
    rounded,
    stored,
    wide,
)
from emmy.ir.dtype import is_float
from emmy.ir.loop import Expr
from emmy.ir.tensor import Terms


def _float(t: Terms, c: Call, x: Any = None) -> int:
    """The first operand in the result's (floating) type."""
    return as_type(t, c.get(0, "self") if x is None else x, c.dtype)


def unary(name: str) -> Handler:
    """One scalar operation with a floating result; integers are converted first."""

    def handler(t: Terms, c: Call) -> int:
        return t.un(name, _float(t, c))

    return handler


def same(name: str, integral: bool) -> Handler:
    """One scalar operation that keeps the type; with `integral` it changes nothing on integers."""

    def handler(t: Terms, c: Call) -> int:
        x = c.get(0, "self")
        return int(x) if integral and not is_float(t.dtype(x)) else t.un(name, x)

    return handler


def sign(t: Terms, c: Call) -> int:
    """Zero for a NaN, as in PyTorch."""
    x = c.get(0, "self")
    if t.dtype(x) == "bool":
        return int(x)
    zero, one, less = (constant(t, v, c.dtype) for v in (0, 1, -1))
    return t.where(t.bin("lt", zero, x), one, t.where(t.bin("lt", x, zero), less, _typed_zero(t, x)))


def _typed_zero(t: Terms, x: int) -> int:
    """Zero in x's type that is not weak, so that a choice between constants keeps the type."""
    return constant(t, 0, t.dtype(x), weak=False)


def log10(t: Terms, c: Call) -> int:
    x = wide(t, _float(t, c))
    return stored(t, t.bin("mul", t.un("log", x), t.full(1 / math.log(10))), c.dtype)


def square(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    return t.bin("mul", x, x)


def frac(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    return t.bin("sub", x, t.un("trunc", x))


def scaled_by(factor: float) -> Handler:
    def handler(t: Terms, c: Call) -> int:
        return t.bin("mul", _float(t, c), t.full(factor))

    return handler


def classify(name: str) -> Handler:
    """isnan, isinf, isfinite, isposinf, isneginf."""

    def handler(t: Terms, c: Call) -> int:
        x = c.get(0, "self")
        if not is_float(t.dtype(x)):
            return t.full(name == "isfinite", t.shape(x), "bool")
        if name == "isfinite":
            return t.un("not", t.bin("or", t.un("isnan", x), t.un("isinf", x)))
        if name in ("isposinf", "isneginf"):
            return t.bin("eq", x, t.full(math.inf if name == "isposinf" else -math.inf))
        return t.un(name, x)

    return handler


def nan_to_num(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    if not is_float(t.dtype(x)):
        return int(x)
    top = {"f32": 3.4028234663852886e38, "f16": 65504.0, "bf16": 3.3895313892515355e38}.get(c.dtype)
    if top is None:
        raise Decline(f"the largest {c.dtype}")
    nan, high, low = c.get(1, "nan", 0.0), c.get(2, "posinf", top), c.get(3, "neginf", -top)
    x = t.where(t.bin("eq", x, t.full(-math.inf)), t.full(float(low)), x)
    x = t.where(t.bin("eq", x, t.full(math.inf)), t.full(float(high)), x)
    return t.where(t.un("isnan", x), t.full(float(nan)), x)


def identity(t: Terms, c: Call) -> int:
    """Copies, aliases and conversions of type: the result's type says it all."""
    return convert(t, c.get(0, "self"), c.dtype)


def inference_only(flag: str, position: int) -> Handler:
    """Dropout and its kin: nothing in inference, refused in training."""

    def handler(t: Terms, c: Call) -> int | tuple[int, ...]:
        p = c.get(1, "p", 0.0)
        if c.get(position, flag, True) and p != 0:
            raise Decline("random numbers")
        x = c.get(0, "input")
        return int(x) if len(c.node.results) == 1 else (int(x), t.full(True, t.shape(x), "bool"))

    return handler


def arithmetic(name: str) -> Handler:
    """add, sub, mul, maximum, minimum: both operands in the result's type; bool add and maximum are `or`."""
    logical = {"add": "or", "mul": "and", "max": "or", "min": "and"}

    def handler(t: Terms, c: Call) -> int:
        other = c.get(1, "other")
        if name == "mul" and not isinstance(other, Value | Expr | bool) and other == 1:
            return as_type(t, c.get(0, "self"), c.dtype)
        x, y = (as_type(t, v, c.dtype) for v in (c.get(0, "self"), other))
        if c.dtype == "bool":
            return t.bin(logical[name], x, y)
        return t.bin(name, x, _times(t, y, c.get(2, "alpha", 1), c.dtype))

    return handler


def rsub(t: Terms, c: Call) -> int:
    x, y = (as_type(t, c.get(i, n), c.dtype) for i, n in enumerate(("self", "other")))
    return t.bin("sub", y, _times(t, x, c.get(2, "alpha", 1), c.dtype))


def _times(t: Terms, x: int, factor: Any, dtype: str) -> int:
    return x if factor == 1 else t.bin("mul", x, constant(t, factor, dtype))


def division(t: Terms, c: Call) -> int:
    """div, true_divide, floor_divide in every rounding mode."""
    mode = "floor" if c.base == "floor_divide" else c.get(2, "rounding_mode")
    x, y = (as_type(t, c.get(i, n), c.dtype) for i, n in enumerate(("self", "other")))
    if mode is None:
        return t.bin("div", x, y)
    if mode == "floor":
        return t.bin("floordiv", x, y)
    if is_float(c.dtype):
        return stored(t, t.un("trunc", t.bin("div", wide(t, x), wide(t, y))), c.dtype)
    return t.bin("truncdiv", x, y)


def binary(name: str) -> Handler:
    """fmod, remainder, atan2 …: operands in the result's type."""

    def handler(t: Terms, c: Call) -> int:
        return t.bin(name, as_type(t, c.get(0, "self"), c.dtype), as_type(t, c.get(1, "other"), c.dtype))

    return handler


def ignoring_nan(name: str) -> Handler:
    """fmax, fmin."""

    def handler(t: Terms, c: Call) -> int:
        x, y = (as_type(t, c.get(i, n), c.dtype) for i, n in enumerate(("self", "other")))
        if not is_float(c.dtype):
            return t.bin(name, x, y)
        return t.where(t.un("isnan", x), y, t.where(t.un("isnan", y), x, t.bin(name, x, y)))

    return handler


def power(t: Terms, c: Call) -> int:
    """pow in all forms; small constant exponents become products and roots, as PyTorch computes them."""
    x, y = c.get(0, "self"), c.get(1, "exponent")
    if not isinstance(y, Value) and isinstance(y, int | float):
        short = _power(t, as_type(t, x, c.dtype), float(y), c.dtype)
        if short is not None:
            return short
    base, exponent = as_type(t, x, c.dtype), as_type(t, y, c.dtype)
    if is_float(c.dtype):
        return t.bin("pow", base, exponent)
    result = t.bin("pow", base, exponent)
    if c.dtype == "u8" or not isinstance(y, Value):
        return result
    one, zero = constant(t, 1, c.dtype), constant(t, 0, c.dtype)
    minus = constant(t, -1, c.dtype)
    odd = t.bin("eq", t.bin("band", exponent, one), one)
    inverse = t.where(t.bin("eq", base, one), one, zero)
    inverse = t.where(t.bin("eq", base, minus), t.where(odd, minus, one), inverse)
    return t.where(t.bin("lt", exponent, zero), inverse, result)


def _power(t: Terms, x: int, n: float, dtype: str) -> int | None:
    if n == 1:
        return x
    if n in (2.0, 3.0):
        y = wide(t, x) if n == 3 else x
        out = t.bin("mul", y, y)
        return stored(t, out if n == 2 else t.bin("mul", out, y), dtype)
    if not is_float(dtype):
        return None
    if n in (0.5, -0.5, -1.0):
        return t.un({0.5: "sqrt", -0.5: "rsqrt", -1.0: "recip"}[n], x)
    if n == -2.0:
        y = wide(t, x)
        return stored(t, t.un("recip", t.bin("mul", y, y)), dtype)
    return None


def hypot(t: Terms, c: Call) -> int:
    x, y = (wide(t, as_type(t, c.get(i, n), c.dtype)) for i, n in enumerate(("self", "other")))
    return stored(t, t.un("sqrt", t.bin("add", t.bin("mul", x, x), t.bin("mul", y, y))), c.dtype)


def xlogy(t: Terms, c: Call) -> int:
    x, y = (wide(t, as_type(t, c.get(i, n), c.dtype)) for i, n in enumerate(("self", "other")))
    product = t.bin("mul", x, t.un("log", y))
    zero = t.bin("and", t.bin("eq", x, t.full(0.0)), t.un("not", t.un("isnan", y)))
    return stored(t, t.where(zero, t.full(0.0), product), c.dtype)


def where(t: Terms, c: Call) -> int:
    condition = convert(t, c.get(0, "condition"), "bool")
    x, y = c.get(1, "self"), c.get(2, "other")
    both = not isinstance(x, Value) and not isinstance(y, Value)
    a = constant(t, x, c.dtype, weak=False) if both else as_type(t, x, c.dtype)
    return t.where(condition, a, as_type(t, y, c.dtype))


def masked_fill(t: Terms, c: Call) -> int:
    value = c.get(2, "value")
    if is_float(c.dtype) and not isinstance(value, Value) and isinstance(value, int | float):
        value = rounded(float(value), c.dtype)
    return t.where(convert(t, c.get(1, "mask"), "bool"), as_type(t, value, c.dtype), c.get(0, "self"))


def clamp(t: Terms, c: Call) -> int:
    """min(max(x, low), high); NaN in x stays, and a NaN bound gives NaN."""
    x = as_type(t, c.get(0, "self"), c.dtype)
    low, high = c.get(1, "min"), c.get(2, "max")
    if c.base in ("clamp_min", "clamp_max"):
        low, high = (low, None) if c.base == "clamp_min" else (None, c.get(1, "max"))
    if low is not None:
        x = t.bin("max", x, as_type(t, low, c.dtype))
    return x if high is None else t.bin("min", x, as_type(t, high, c.dtype))


def lerp(t: Terms, c: Call) -> int:
    """PyTorch's two forms, each exact at its end."""
    a, b = (wide(t, as_type(t, c.get(i, n), c.dtype)) for i, n in enumerate(("self", "end")))
    w = c.get(2, "weight")
    weight = wide(t, as_type(t, w, c.dtype))
    span = t.bin("sub", b, a)
    near = t.bin("add", a, t.bin("mul", weight, span))
    far = t.bin("sub", b, t.bin("mul", span, t.bin("sub", t.full(1.0), weight)))
    if isinstance(w, Value):
        small = t.bin("lt", t.un("abs", weight), t.full(0.5))
        return stored(t, t.where(small, near, far), c.dtype)
    return stored(t, near if abs(w) < 0.5 else far, c.dtype)


def addc(name: str) -> Handler:
    """addcmul, addcdiv."""

    def handler(t: Terms, c: Call) -> int:
        s, x, y = (wide(t, as_type(t, c.get(i, n), c.dtype)) for i, n in enumerate(("self", "tensor1", "tensor2")))
        product = _times(t, t.bin(name, x, y), c.kwargs.get("value", 1), c.dtype)
        return stored(t, t.bin("add", s, product), c.dtype)

    return handler


def round_decimals(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    n = c.get(1, "decimals", 0)
    if not is_float(c.dtype):
        return int(x)
    if n == 0:
        return t.un("round", x)
    scale, y = t.full(10.0 ** abs(n)), wide(t, x)
    there, back = ("mul", "div") if n > 0 else ("div", "mul")
    return stored(t, t.bin(back, t.un("round", t.bin(there, y, scale)), scale), c.dtype)


_UNARY: Final = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log1p": "log1p", "sin": "sin",
    "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "arcsin": "asin", "arccos": "acos",
    "arctan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "recip", "special_expit": "sigmoid", "special_erf": "erf",
    "special_exp2": "exp2", "special_expm1": "expm1", "special_log1p": "log1p",
}  # fmt: skip
_COPIES: Final = (
    "_to_copy", "to", "type_as", "clone", "contiguous", "detach", "detach_copy", "alias", "alias_copy", "lift",
    "lift_fresh", "lift_fresh_copy", "positive", "resolve_conj", "resolve_neg", "conj", "real", "_conj",
    "_autocast_to_reduced_precision", "_autocast_to_full_precision",
)  # fmt: skip
ELEMENTWISE: Final[dict[str, Handler]] = {
    **{op: unary(name) for op, name in _UNARY.items()},
    **dict.fromkeys(_COPIES, identity),
    **{op: same(name, True) for op, name in
       {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc"}.items()},
    **{op: same(name, False) for op, name in
       {"neg": "neg", "negative": "neg", "abs": "abs", "absolute": "abs"}.items()},
    **{op: classify(op) for op in ("isnan", "isinf", "isfinite", "isposinf", "isneginf")},
    "sign": sign, "sgn": sign, "log10": log10, "square": square, "frac": frac, "round": round_decimals,
    "deg2rad": scaled_by(math.pi / 180), "rad2deg": scaled_by(180 / math.pi), "nan_to_num": nan_to_num,
    "dropout": inference_only("train", 2), "feature_dropout": inference_only("train", 2),
    "alpha_dropout": inference_only("train", 2), "feature_alpha_dropout": inference_only("train", 2),
    "native_dropout": inference_only("train", 2),
    "add": arithmetic("add"), "sub": arithmetic("sub"), "subtract": arithmetic("sub"), "mul": arithmetic("mul"),
    "multiply": arithmetic("mul"), "maximum": arithmetic("max"), "minimum": arithmetic("min"), "rsub": rsub,
    "div": division, "divide": division, "true_divide": division, "floor_divide": division, "atan2": binary("atan2"),
    "arctan2": binary("atan2"), "fmod": binary("fmod"), "remainder": binary("mod"), "fmax": ignoring_nan("max"),
    "fmin": ignoring_nan("min"), "pow": power, "hypot": hypot, "xlogy": xlogy, "special_xlogy": xlogy,
    "where": where, "masked_fill": masked_fill, "clamp": clamp, "clip": clamp, "clamp_min": clamp, "clamp_max": clamp,
    "lerp": lerp, "addcmul": addc("mul"), "addcdiv": addc("div"),
}  # fmt: skip
