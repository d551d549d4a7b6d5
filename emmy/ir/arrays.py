"""Arrays with named dimensions, and the pieces of axes over which the evaluator computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from emmy.ir.loop import Ax, Expr

Array = npt.NDArray[Any]

# The folded axes and the factors of a sum of products.
Factors = tuple[tuple[Ax, ...], tuple[Expr, ...]]

_STORED: Final[dict[str, Any]] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip
REDUCE: Final[dict[str, Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "or": np.logical_or, "and": np.logical_and,
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) type in which a storage type is stored."""
    stored: np.dtype[Any] = np.dtype(_STORED[name])
    return stored


@dataclass(frozen=True, slots=True)
class Value:
    """An array with one dimension for each axis of `axes`."""

    axes: tuple[Ax, ...]
    data: Array

    def align(self, order: Sequence[Ax]) -> Array:
        """The data with its dimensions in `order`, of length 1 for an axis that it does not have."""
        moved = self.data.transpose([self.axes.index(a) for a in order if a in self.axes])
        return moved[tuple(slice(None) if a in self.axes else None for a in order)]


@dataclass(slots=True)
class Frame:
    """The part of each restricted axis that is computed now, and the values that depend on it."""

    ranges: dict[Ax, tuple[int, int]]
    own: frozenset[Ax] = frozenset()
    parent: Frame | None = None
    memo: dict[Expr, Value] = field(default_factory=dict)
    factors: dict[Expr, Factors | None] = field(default_factory=dict)

    def home(self, node: Expr) -> Frame:
        """The outermost frame in which the node has the same value."""
        frame = self
        while frame.parent is not None and not (frame.own & node.free):
            frame = frame.parent
        return frame

    def over(self, ranges: Mapping[Ax, tuple[int, int]]) -> Frame:
        return Frame({**self.ranges, **ranges}, frozenset(ranges), self) if ranges else self

    def without(self, axis: Ax) -> Frame:
        """Inside a binder its axis runs over everything again."""
        if axis not in self.ranges:
            return self
        return Frame({a: r for a, r in self.ranges.items() if a is not axis}, frozenset((axis,)), self)


def union(values: Sequence[Value]) -> tuple[Ax, ...]:
    widest = max(values, key=lambda v: len(v.axes), default=None)
    order = dict.fromkeys(widest.axes if widest else ())
    for v in values:
        order.update(dict.fromkeys(v.axes))
    return tuple(order)


def multiply(values: Sequence[Value]) -> Value:
    order = union(values)
    data = values[0].align(order)
    for v in values[1:]:
        data = data * v.align(order)
    return Value(order, data)


def running_m2(data: Array, prefix: Array) -> None:
    """Welford's recurrence over the last dimension."""
    mean = np.zeros(data.shape[:-1], data.dtype)
    for k in range(data.shape[-1]):
        delta = data[..., k] - mean
        mean = mean + delta / (k + 1)
        prefix[..., k + 1] = prefix[..., k] + delta * (data[..., k] - mean)


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    if kind in ("sum", "m2", "or"):
        return 0
    if kind in ("prod", "and"):
        return 1
    if dtype.kind == "f":
        return -np.inf if kind == "max" else np.inf
    if dtype.kind == "b":
        return kind == "min"
    info = np.iinfo(dtype)
    return info.min if kind == "max" else info.max
