"""Tensors that come from no tensor: constants, ranges, identity matrices, one-hot rows."""

from __future__ import annotations

from typing import Any, Final

from emmy.frontend.translate.call import Call, Decline, Handler, Value, constant, convert, static, stored
from emmy.frontend.translate.layout import reshape
from emmy.ir.build import iadd, imul, isub, scalar
from emmy.ir.dtype import is_float
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Terms, coordinates


def full_of(t: Terms, c: Call, value: Any) -> int:
    if isinstance(value, Value):
        return t.expand(convert(t, value, c.dtype), c.shape)
    return constant(t, value, c.dtype, c.shape, weak=False)


def filled(position: int, name: str, value: Any = None) -> Handler:
    """A constant tensor: of `value`, or of the argument at that position."""

    def handler(t: Terms, c: Call) -> int:
        return full_of(t, c, c.get(position, name) if value is None else value)

    return handler


def fill_like(t: Terms, c: Call) -> int:
    return full_of(t, c, c.get(1, "value"))


def copy(t: Terms, c: Call) -> int:
    return t.expand(convert(t, c.get(1, "src"), c.dtype), c.shape)


def arange(t: Terms, c: Call) -> int:
    start, step = (0, 1) if c.overload == "default" else (c.get(0, "start", 0), c.get(2, "step", 1))
    if c.overload == "start":
        step = 1
    d = coordinates(c.shape)[0]
    if not isinstance(start, float) and not isinstance(step, float):
        value = iadd(imul(d, step), start if isinstance(start, Expr) else const(start))
        return t.iota(value, c.shape, c.dtype)
    if not is_float(c.dtype):
        raise Decline("an integer range with a fractional step")
    place = t.iota(d, c.shape, "f32")
    scaled = t.bin("mul", place, constant(t, step, "f32"))
    return stored(t, t.bin("add", scaled, constant(t, start, "f32")), c.dtype)


def linspace(t: Terms, c: Call) -> int:
    """Counted from the nearer end, as PyTorch does."""
    start, end, steps = c.get(0, "start"), c.get(1, "end"), static(c.get(2, "steps"), "the number of steps")
    if isinstance(start, Value) or isinstance(end, Value) or not is_float(c.dtype):
        raise Decline("ends given by data, or an integer result")
    if steps == 1:
        return constant(t, start, c.dtype, c.shape, weak=False)
    step = t.full((end - start) / (steps - 1))
    place = t.iota(coordinates(c.shape)[0], c.shape, "f32")
    left = t.iota(isub(steps - 1, coordinates(c.shape)[0]), c.shape, "f32")
    low = t.bin("add", t.bin("mul", place, step), t.full(float(start)))
    high = t.bin("sub", t.full(float(end)), t.bin("mul", left, step))
    first = t.iota(scalar("lt", coordinates(c.shape)[0], const(steps // 2)), c.shape, "bool")
    return stored(t, t.where(first, low, high), c.dtype)


def eye(t: Terms, c: Call) -> int:
    row, column = coordinates(c.shape)
    return convert(t, t.iota(scalar("eq", row, column), c.shape, "bool"), c.dtype)


def one_hot(t: Terms, c: Call) -> int:
    x = c.get(0, "self")
    d = coordinates(c.shape)
    shown = reshape(t, x, (*t.shape(x), const(1)))
    return convert(t, t.bin("eq", shown, t.iota(d[-1], c.shape, t.dtype(x))), c.dtype)


CREATION: Final[dict[str, Handler]] = {
    "full": filled(1, "fill_value"), "full_like": filled(1, "fill_value"), "new_full": filled(2, "fill_value"),
    "scalar_tensor": filled(0, "s"), "fill": fill_like,
    **{op: filled(0, "", 0) for op in
       ("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty", "empty_strided",
        "new_empty_strided", "empty_permuted")},
    **{op: filled(0, "", 1) for op in ("ones", "ones_like", "new_ones")},
    "arange": arange, "linspace": linspace, "eye": eye, "one_hot": one_hot, "copy": copy,
}  # fmt: skip
