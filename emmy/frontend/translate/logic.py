"""Comparisons, logic and bits."""

from __future__ import annotations

from typing import Any, Final

from emmy.frontend.translate.call import (
    Call,
    Decline,
    Handler,
    Value,
    as_type,
    common_type,
    constant,
    convert,
    rounded,
    zero_like,
)
from emmy.ir.dtype import DTYPES, is_float
from emmy.ir.tensor import Terms


def comparison(name: str, swap: bool) -> Handler:
    """eq ne lt le, with operands swapped for gt and ge; a number is rounded to the tensor's type first."""

    def handler(t: Terms, c: Call) -> int:
        x, y = c.get(0, "self"), c.get(1, "other")
        common = common_type(t, x, y)
        if common == "bool" and name in ("lt", "le"):
            common = "u8"
        a, b = (as_type(t, v, common) if isinstance(v, Value) else _weak(t, v, common) for v in (x, y))
        if common == "bool":
            differ = t.bin("xor", a, b)
            return differ if name == "ne" else t.un("not", differ)
        return t.bin(name, b, a) if swap else t.bin(name, a, b)

    return handler


def _weak(t: Terms, value: Any, dtype: str) -> int:
    if is_float(dtype) and isinstance(value, int | float):
        return t.full(rounded(float(value), dtype))
    return constant(t, value, dtype)


def logical(name: str) -> Handler:
    def handler(t: Terms, c: Call) -> int:
        x, y = c.get(0, "self"), c.get(1, "other")
        return t.bin(name, convert(t, x, "bool"), as_type(t, y, "bool"))

    return handler


def logical_not(t: Terms, c: Call) -> int:
    return t.un("not", convert(t, c.get(0, "self"), "bool"))


def bitwise(name: str) -> Handler:
    """and, or, xor of integers or bools."""

    def handler(t: Terms, c: Call) -> int:
        x, y = (as_type(t, c.get(i, n), c.dtype) for i, n in enumerate(("self", "other")))
        return t.bin(name if c.dtype == "bool" else f"b{name}", x, y)

    return handler


def bitwise_not(t: Terms, c: Call) -> int:
    return t.un("not" if c.dtype == "bool" else "bnot", c.get(0, "self"))


def shift(name: str) -> Handler:
    """A shift by at least the width gives zero (left) or the sign (right), as in PyTorch."""

    def handler(t: Terms, c: Call) -> int:
        bits = DTYPES[c.dtype].bits
        y = c.get(1, "other")
        x = as_type(t, c.get(0, "self"), c.dtype)
        if is_float(c.dtype):
            raise Decline("a shift of floats")
        if not isinstance(y, Value) and isinstance(y, int):
            if 0 <= y < bits:
                return t.bin(name, x, constant(t, y, c.dtype))
            return (
                t.bin("mul", x, zero_like(t, x)) if name == "shl" else t.bin("shr", x, constant(t, bits - 1, c.dtype))
            )
        by = as_type(t, y, c.dtype)
        zero, last = constant(t, 0, c.dtype), constant(t, bits - 1, c.dtype)
        inside = t.bin("and", t.bin("le", zero, by), t.bin("le", by, last))
        shifted = t.bin(name, x, t.where(inside, by, last))
        return shifted if name == "shr" else t.where(inside, shifted, zero)

    return handler


_COMPARE: Final = {
    "eq": ("eq", False), "ne": ("ne", False), "lt": ("lt", False), "le": ("le", False), "gt": ("lt", True),
    "ge": ("le", True), "not_equal": ("ne", False), "less": ("lt", False), "less_equal": ("le", False),
    "greater": ("lt", True), "greater_equal": ("le", True),
}  # fmt: skip

LOGIC: Final[dict[str, Handler]] = {
    **{op: comparison(*row) for op, row in _COMPARE.items()},
    "logical_and": logical("and"), "logical_or": logical("or"), "logical_xor": logical("xor"),
    "logical_not": logical_not, "bitwise_and": bitwise("and"), "bitwise_or": bitwise("or"),
    "bitwise_xor": bitwise("xor"), "bitwise_not": bitwise_not, "__and__": bitwise("and"), "__or__": bitwise("or"),
    "__xor__": bitwise("xor"), "bitwise_left_shift": shift("shl"), "bitwise_right_shift": shift("shr"),
    "__lshift__": shift("shl"), "__rshift__": shift("shr"),
}  # fmt: skip
