"""Every word of the scalar vocabulary has a CUDA spelling that computes what the evaluator computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from emmy.codegen.cuda_scalar import CUDA
from emmy.codegen.lower import lower
from emmy.ir.build import scalar
from emmy.ir.loop import Body, Out, Tensor, ax, const, load
from emmy.ir.scalar import SCALAR
from emmy.ir.schedule import Row
from emmy.ir.target import target
from tests import host_cuda

PLAIN = Row.parse("WORK=t32,TILE=,REDUCE=,STAGE=,RASTER=")
host = pytest.mark.skipif(not host_cuda.available(), reason="no C++ compiler to run kernels on the CPU")
FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 0.1, -0.1, 1e-3, 100.5, 1e-30,
                   np.inf, -np.inf, np.nan], np.float32)  # fmt: skip
INTS = np.array([0, 1, -1, 2, -2, 3, 5, -7, 8, 63, -64, 127, -128], np.int64)
EXACT_FLOAT = (
    "add", "sub", "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "max", "min", "neg", "abs", "floor", "ceil",
    "round", "trunc", "lt", "le", "eq", "ne", "isnan", "isinf", "sign", "sqrt", "recip",
)  # fmt: skip
CLOSE_FLOAT = (
    "pow", "atan2", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "sigmoid", "erf",
)  # fmt: skip
INTEGER = (
    "add", "sub", "mul", "max", "min", "neg", "abs", "sign", "band", "bor", "bxor", "bnot", "lt", "le", "eq", "ne",
)  # fmt: skip
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "floordiv": torch.floor_divide, "truncdiv": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "mod": torch.remainder, "max": torch.maximum, "min": torch.minimum, "recip": torch.reciprocal,
    "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor, "bnot": torch.bitwise_not,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
}  # fmt: skip
Array = np.ndarray[Any, Any]


def pairs(values: Array) -> tuple[Array, Array]:
    x, y = np.meshgrid(values, values, indexing="ij")
    return x.reshape(-1), y.reshape(-1)


def results(names: Sequence[str], type: str, x: Array, y: Array) -> Iterator[tuple[str, Array, Array]]:
    """(operation, what a kernel computes, what PyTorch computes) on all pairs; one kernel for all operations."""
    i = ax("o0", const(len(x)))
    operands = [load(0, (i,), type), load(1, (i,), type)]
    outs = []
    for name in names:
        value = scalar(name, *operands[: SCALAR[name].arity])
        outs.append(Out((i,), (i,), value, Tensor(value.type, (i.extent,))))
    slots = (Tensor(type, (i.extent,)), Tensor(type, (i.extent,)))
    kernel = lower(Body(tuple(outs), slots), "plain", PLAIN, target("sm_90a"), "k_test")
    found = host_cuda.run(kernel, [x, y], shapes=[x.shape] * len(names))
    for name, f in zip(names, found, strict=True):
        operation = TORCH.get(name) or getattr(torch, name)
        yield name, f, operation(*(torch.from_numpy(v) for v in (x, y)[: SCALAR[name].arity])).numpy()


def test_the_two_tables_have_the_same_words() -> None:
    assert set(CUDA) == set(SCALAR)


@host
def test_exact_float_operations_equal_pytorch() -> None:
    for name, found, expected in results(EXACT_FLOAT, "f32", *pairs(FLOATS)):
        np.testing.assert_array_equal(found, expected, err_msg=name)


@host
def test_transcendental_operations_are_close_to_pytorch() -> None:
    for name, found, expected in results(CLOSE_FLOAT, "f32", *pairs(FLOATS)):
        np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-38, err_msg=name)


@host
@pytest.mark.parametrize("type", ["i64", "i32", "i8", "u8"])
def test_integer_arithmetic_wraps_as_pytorch_does(type: str) -> None:
    names = [n for n in INTEGER if type != "u8" or n not in ("neg", "sign")]
    for name, found, expected in results(names, type, *pairs(INTS.astype(host_cuda.NUMPY[type]))):
        np.testing.assert_array_equal(found, expected, err_msg=name)


@host
@pytest.mark.parametrize("type", ["i64", "i32", "i8"])
def test_integer_division_rounds_as_pytorch_does(type: str) -> None:
    x, y = pairs(INTS.astype(host_cuda.NUMPY[type]))
    defined = (y != 0) & ~((x == np.iinfo(x.dtype).min) & (y == -1))
    for name, found, expected in results(("floordiv", "truncdiv", "mod", "fmod"), type, x[defined], y[defined]):
        np.testing.assert_array_equal(found, expected, err_msg=name)


@host
@pytest.mark.parametrize("type", ["i64", "i32", "i8"])
def test_shifts_and_powers_of_integers(type: str) -> None:
    x, y = pairs(INTS.astype(host_cuda.NUMPY[type]))
    defined = (y >= 0) & (y < 8 * x.dtype.itemsize)
    for name, found, expected in results(("shl", "shr", "pow"), type, x[defined], y[defined]):
        np.testing.assert_array_equal(found, expected, err_msg=name)
