"""What a handler is given: the node, its arguments with tensors as term ids; and helpers that follow PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from emmy.frontend.translate.promotion import DEFAULT, HALF, Category, result_type
from emmy.ir.build import iadd, imul, scalar
from emmy.ir.dtype import DTYPES, is_float
from emmy.ir.graph import Node
from emmy.ir.loop import Const, Expr, Tensor, const
from emmy.ir.tensor import Shape, Terms, coordinates


class Value(int):
    """A term id among resolved arguments, told apart from a plain number."""


class Decline(Exception):
    """A case that a handler does not express; PyTorch executes the node."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node and its arguments: `Value` for tensors, tuples of them, Python values, Loop IR integers, type names."""

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Positional or by name; None counts as absent."""
        value = self.args[position] if position < len(self.args) else self.kwargs.get(name)
        return default if value is None else value

    @property
    def base(self) -> str:
        """The operation without its overload: `add` of `aten.add.Tensor`."""
        return self.node.op.split(".")[1]

    @property
    def overload(self) -> str:
        return self.node.op.split(".")[-1]

    @property
    def result(self) -> Tensor:
        return self.node.results[0]

    @property
    def dtype(self) -> str:
        return self.node.results[0].dtype

    @property
    def shape(self) -> Shape:
        return self.node.results[0].shape


Handler = Callable[[Terms, Call], "int | tuple[int, ...]"]


def extent(value: int | Expr) -> Expr:
    return value if isinstance(value, Expr) else const(value)


def number(e: Expr | int) -> int | None:
    """The extent where it is known."""
    if isinstance(e, int):
        return e
    return int(e.value) if isinstance(e, Const) else None


def static(e: Expr | int, what: str) -> int:
    n = number(e)
    if n is None:
        raise Decline(f"{what} is symbolic")
    return n


def is_empty(tensor: Tensor) -> bool:
    return any(number(e) == 0 for e in tensor.shape)


def numel(shape: Sequence[Expr]) -> Expr:
    return imul(*shape) if shape else const(1)


def rounded(value: float, dtype: str) -> float:
    """The nearest value that the storage type holds."""
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return float(np.float16(value))
    if dtype == "bf16":
        return float(ml_dtypes.bfloat16(value))
    if dtype == "f32":
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    return float(value)


def wrapped(value: float, dtype: str) -> int:
    """An integer constant as the type stores it."""
    bits = DTYPES[dtype].bits
    n = int(value) & ((1 << bits) - 1)
    return n - (1 << bits) if dtype != "u8" and n >> (bits - 1) else n


def constant(t: Terms, value: Any, dtype: str, shape: Shape = (), weak: bool = True) -> int:
    """A Python number or symbolic integer as a term of `dtype`.

    A float constant is weak (it takes the type of what it meets, unrounded) unless `weak` is False.
    """
    if isinstance(value, Expr) and not isinstance(value, Const):
        return t.iota(value, shape, dtype)
    if isinstance(value, Const):
        value = value.value
    if dtype == "bool":
        return t.full(bool(value), shape, "bool")
    if is_float(dtype):
        return t.full(float(value), shape) if weak else t.full(rounded(float(value), dtype), shape, dtype)
    return t.full(wrapped(value, dtype), shape, dtype)


def as_type(t: Terms, x: Any, dtype: str) -> int:
    """A tensor or number as `dtype`, the way PyTorch promotes operands."""
    if not isinstance(x, Value):
        return constant(t, x, dtype)
    return convert(t, x, dtype)


def convert(t: Terms, x: int, dtype: str) -> int:
    """`x.to(dtype)`: to bool is `!= 0`."""
    if dtype != "bool" or t.dtype(x) == "bool":
        return t.cast(x, dtype)
    return t.bin("ne", x, constant(t, 0, t.dtype(x)))


def common_type(t: Terms, *operands: Any) -> str:
    """`torch.result_type` of tensors and Python numbers."""
    dims: list[str] = []
    zeros: list[str] = []
    numbers: list[Category] = []
    for x in operands:
        if isinstance(x, Value):
            (dims if t.shape(x) else zeros).append(t.dtype(x))
        elif isinstance(x, bool):
            numbers.append("bool")
        else:
            numbers.append("float" if isinstance(x, float) else "int")
    return result_type(dims, zeros, numbers)


def wide(t: Terms, x: int) -> int:
    """A half-precision value as f32, in which PyTorch computes inside one operation; others as they are."""
    return t.cast(x, DEFAULT) if t.dtype(x) in HALF and not t.is_weak(x) else x


def stored(t: Terms, x: int, dtype: str) -> int:
    """An interior f32 value as the operation's result type."""
    if is_float(t.dtype(x)) and is_float(dtype):
        return t.store_as(x, dtype)
    return convert(t, x, dtype)


def axis(dim: int, rank: int) -> int:
    """A dimension counted from the left; a scalar has one dimension for this purpose."""
    return dim % max(rank, 1)


def axes(dims: Any, rank: int) -> tuple[int, ...]:
    """None or an empty list means all."""
    if dims is None or dims == ():
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted({axis(d, rank) for d in dims}))


def mask(t: Terms, condition: Expr, shape: Shape) -> int:
    """A bool tensor from a condition on the coordinates."""
    return t.iota(condition, shape, "bool")


def mask_along(t: Terms, shape: Shape, dim: int, name: str, bound: Expr) -> int:
    """A bool tensor that broadcasts to `shape`: a comparison of the coordinate along `dim` with a bound."""
    own = (shape[dim], *(const(1) for _ in shape[dim + 1 :]))
    return t.iota(scalar(name, coordinates(own)[0], bound), own, "bool")


def at(shape: Shape, dim: int, index: Expr) -> list[Expr]:
    """The coordinates of `shape` with one of them replaced."""
    d: list[Expr] = list(coordinates(shape))
    d[dim] = index
    return d


def flat(index: Sequence[Expr], shape: Shape) -> Expr:
    """Row-major position."""
    total: Expr = const(0)
    for i, e in zip(index, shape, strict=True):
        total = iadd(imul(total, e), i)
    return total


def zero_like(t: Terms, x: int) -> int:
    return constant(t, 0, t.dtype(x))
