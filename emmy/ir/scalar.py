"""The scalar vocabulary: every operation that may stand between a load and a store, one row each.

A row says how many operands the operation takes, what its result is, whether operands commute, how it is computed on
numpy arrays (the oracle), and what it costs in instruction slots (special-function operations cost more).  The CUDA
spelling stands in `emmy.codegen.cuda_scalar`; a test holds the two tables to the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Result = Literal["same", "bool", "cast", "float"]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """`result`: `same` as the (promoted) operands, `bool`, `float` (always f32), or `cast` (named by the node)."""

    name: str
    arity: int
    result: Result
    numpy: Callable[..., Array]
    commutes: bool = False
    slots: float = 1.0


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[float])(x))


def _pow(x: Array, y: Array) -> Array:
    if np.issubdtype(np.asarray(x).dtype, np.integer):
        return np.asarray(np.power(x, np.maximum(y, 0)))
    return np.asarray(np.power(x, y))


def _floordiv(x: Array, y: Array) -> Array:
    return np.asarray(np.floor_divide(x, y))


def _truncdiv(x: Array, y: Array) -> Array:
    q = np.floor_divide(x, y)  # not through abs, which the lowest integer does not have
    return np.asarray(q + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0))).astype(np.asarray(q).dtype))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _sign(x: Array) -> Array:
    """PyTorch's: the sign of NaN is 0."""
    return np.asarray(np.greater(x, 0).astype(x.dtype) - np.less(x, 0).astype(x.dtype))


def _identity(x: Array) -> Array:
    return x


_ROWS: Final[tuple[ScalarOp, ...]] = (
    # arithmetic
    ScalarOp("add", 2, "same", np.add, commutes=True),
    ScalarOp("sub", 2, "same", np.subtract),
    ScalarOp("mul", 2, "same", np.multiply, commutes=True),
    ScalarOp("div", 2, "float", np.true_divide, slots=8),
    ScalarOp("floordiv", 2, "same", _floordiv, slots=10),
    ScalarOp("truncdiv", 2, "same", _truncdiv, slots=10),
    ScalarOp("mod", 2, "same", np.mod, slots=10),
    ScalarOp("fmod", 2, "same", np.fmod, slots=10),
    ScalarOp("pow", 2, "same", _pow, slots=20),
    ScalarOp("max", 2, "same", np.maximum, commutes=True),
    ScalarOp("min", 2, "same", np.minimum, commutes=True),
    ScalarOp("atan2", 2, "float", np.arctan2, slots=30),
    ScalarOp("neg", 1, "same", np.negative),
    ScalarOp("abs", 1, "same", np.abs),
    ScalarOp("sign", 1, "same", _sign, slots=3),
    # rounding to integral values
    ScalarOp("floor", 1, "same", np.floor),
    ScalarOp("ceil", 1, "same", np.ceil),
    ScalarOp("round", 1, "same", np.round),
    ScalarOp("trunc", 1, "same", np.trunc),
    # transcendental
    ScalarOp("recip", 1, "float", lambda x: np.asarray(1.0 / x), slots=8),
    ScalarOp("sqrt", 1, "float", np.sqrt, slots=8),
    ScalarOp("rsqrt", 1, "float", lambda x: np.asarray(1.0 / np.sqrt(x)), slots=8),
    ScalarOp("exp", 1, "float", np.exp, slots=8),
    ScalarOp("exp2", 1, "float", np.exp2, slots=8),
    ScalarOp("expm1", 1, "float", np.expm1, slots=12),
    ScalarOp("log", 1, "float", np.log, slots=10),
    ScalarOp("log2", 1, "float", np.log2, slots=8),
    ScalarOp("log1p", 1, "float", np.log1p, slots=12),
    ScalarOp("sin", 1, "float", np.sin, slots=20),
    ScalarOp("cos", 1, "float", np.cos, slots=20),
    ScalarOp("tan", 1, "float", np.tan, slots=30),
    ScalarOp("asin", 1, "float", np.arcsin, slots=20),
    ScalarOp("acos", 1, "float", np.arccos, slots=20),
    ScalarOp("atan", 1, "float", np.arctan, slots=20),
    ScalarOp("sinh", 1, "float", np.sinh, slots=20),
    ScalarOp("cosh", 1, "float", np.cosh, slots=20),
    ScalarOp("tanh", 1, "float", np.tanh, slots=12),
    ScalarOp("sigmoid", 1, "float", _sigmoid, slots=14),
    ScalarOp("erf", 1, "float", _erf, slots=20),
    # comparisons and logic
    ScalarOp("lt", 2, "bool", np.less),
    ScalarOp("le", 2, "bool", np.less_equal),
    ScalarOp("eq", 2, "bool", np.equal, commutes=True),
    ScalarOp("ne", 2, "bool", np.not_equal, commutes=True),
    ScalarOp("and", 2, "bool", np.logical_and, commutes=True),
    ScalarOp("or", 2, "bool", np.logical_or, commutes=True),
    ScalarOp("xor", 2, "bool", np.logical_xor, commutes=True),
    ScalarOp("not", 1, "bool", np.logical_not),
    ScalarOp("isnan", 1, "bool", np.isnan),
    ScalarOp("isinf", 1, "bool", np.isinf),
    # bits
    ScalarOp("band", 2, "same", np.bitwise_and, commutes=True),
    ScalarOp("bor", 2, "same", np.bitwise_or, commutes=True),
    ScalarOp("bxor", 2, "same", np.bitwise_xor, commutes=True),
    ScalarOp("bnot", 1, "same", np.invert),
    ScalarOp("shl", 2, "same", np.left_shift),
    ScalarOp("shr", 2, "same", np.right_shift),
    # choice: a load in the branch that is not chosen may be out of range
    ScalarOp("where", 3, "same", np.where),
    # change of type; a float cast to a narrower float rounds, and stays in an f32 register
    ScalarOp("cast", 1, "cast", _identity),
)

SCALAR: Final[dict[str, ScalarOp]] = {row.name: row for row in _ROWS}
