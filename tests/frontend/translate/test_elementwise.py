"""Element-wise operations: type promotion, special values, integer arithmetic, all held against eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from emmy.frontend.capture import capture
from emmy.frontend.translate import translate
from tests.frontend.translate.reference import check_all, operands, run

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.7, -3.7])


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_one_float_agree_with_eager(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 15).reshape(3, 5).to(dtype)
    ops = (
        torch.exp,
        torch.exp2,
        torch.expm1,
        torch.sin,
        torch.cos,
        torch.tan,
        torch.atan,
        torch.sinh,
        torch.cosh,
        torch.tanh,
        torch.sigmoid,
        torch.erf,
        torch.reciprocal,
        torch.neg,
        torch.abs,
        torch.sign,
        torch.floor,
        torch.ceil,
        torch.round,
        torch.trunc,
        torch.frac,
        torch.square,
        torch.isnan,
        torch.isinf,
        torch.isfinite,
        torch.deg2rad,
        torch.nan_to_num,
        F.relu,
        F.relu6,
        F.hardtanh,
        F.hardswish,
        F.hardsigmoid,
        F.elu,
        F.selu,
        F.celu,
        F.leaky_relu,
        F.softplus,
        F.mish,
        F.gelu,
        F.silu,
        F.logsigmoid,
        F.softsign,
        F.tanhshrink,
        F.hardshrink,
        F.softshrink,
        F.rrelu,
    )
    check_all({f.__name__: f for f in ops}, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_with_a_domain_agree_with_eager(dtype: torch.dtype) -> None:
    x = torch.linspace(0.05, 0.95, 10).to(dtype)
    ops = (
        torch.log,
        torch.log2,
        torch.log10,
        torch.log1p,
        torch.sqrt,
        torch.rsqrt,
        torch.asin,
        torch.acos,
        torch.logit,
        torch.atanh,
    )
    check_all({f.__name__: f for f in ops}, x)


def test_options_of_activations_are_honoured() -> None:
    x = torch.linspace(-3, 3, 12).reshape(2, 6)
    check_all(
        {
            "gelu": lambda x: F.gelu(x, approximate="tanh"),
            "elu": lambda x: F.elu(x, 0.7),
            "celu": lambda x: F.celu(x, 0.5),
            "leaky": lambda x: F.leaky_relu(x, 0.2),
            "hardtanh": lambda x: F.hardtanh(x, -0.5, 2),
            "softplus": lambda x: F.softplus(x, 2.0, 3.0),
            "threshold": lambda x: F.threshold(x, 0.3, 9.0),
            "logit": lambda x: torch.logit(x, 0.1),
            "glu": F.glu,
            "glu0": lambda x: F.glu(x, 0),
            "round": lambda x: torch.round(x, decimals=1),
            "tens": lambda x: torch.round(x * 100, decimals=-1),
            "dropout": lambda x: F.dropout(x, 0.5, False),
        },
        x,
        rtol=1e-4,
    )


def test_prelu_has_one_slope_or_one_a_channel() -> None:
    x, many, one = torch.randn(2, 3, 4), torch.randn(3), torch.randn(1)
    check_all({"many": lambda x, m, o: F.prelu(x, m), "one": lambda x, m, o: F.prelu(x, o)}, x, many, one)


def test_special_values_pass_as_in_eager() -> None:
    check_all(
        {
            "relu": F.relu,
            "clamp": lambda x: x.clamp(-1, 1),
            "low": lambda x: x.clamp(min=0.5),
            "sign": torch.sign,
            "max": lambda x: torch.maximum(x, x.flip(0)),
            "min": lambda x: torch.minimum(x, x.flip(0)),
            "fmax": lambda x: torch.fmax(x, x.flip(0)),
            "fmin": lambda x: torch.fmin(x, x.flip(0)),
            "round": torch.round,
            "eq": lambda x: x == x.flip(0),
            "ne": lambda x: x != x,
            "lt": lambda x: x < 0.5,
            "ge": lambda x: x >= 0.5,
            "isnan": torch.isnan,
            "isinf": torch.isinf,
            "isfinite": torch.isfinite,
            "posinf": torch.isposinf,
            "neginf": torch.isneginf,
            "bool": lambda x: x.bool(),
            "not": torch.logical_not,
            "hardswish": F.hardswish,
            "leaky": F.leaky_relu,
            "elu": F.elu,
            "softplus": F.softplus,
            "threshold": lambda x: F.threshold(x, 0.1, 2.0),
            "num": lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0),
            "amax": lambda x: x.amax(),
            "amin": lambda x: x.amin(),
            "any": lambda x: x.bool().any(),
            "xlogy": lambda x: torch.xlogy(x, x.flip(0)),
            "trunc": torch.trunc,
            "pow0": lambda x: x**0,
            "pow": lambda x: x**0.5,
            "where": lambda x: torch.where(x > 0, x, -1.0),
        },
        SPECIAL,
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_arithmetic_promotes_like_eager(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 1, 3).to(dtype), torch.rand(4, 1).to(dtype) + 0.5
    i, zero = torch.tensor([[1], [2], [3], [-4]]), torch.tensor(2.5)
    check_all(
        {
            "add": lambda x, y, i, z: x + y,
            "alpha": lambda x, y, i, z: torch.add(x, y, alpha=3),
            "int": lambda x, y, i, z: x + i,
            "0d": lambda x, y, i, z: x * z,
            "scalar": lambda x, y, i, z: x + 1,
            "sub": lambda x, y, i, z: x - i,
            "rsub": lambda x, y, i, z: 1.5 - x,
            "mul": lambda x, y, i, z: i * x,
            "div": lambda x, y, i, z: x / y,
            "idiv": lambda x, y, i, z: i / 3,
            "by": lambda x, y, i, z: 2 / y,
            "int+float": lambda x, y, i, z: i + 0.5,
            "z+i": lambda x, y, i, z: z + i,
            "pow": lambda x, y, i, z: y**i,
            "2**": lambda x, y, i, z: 2**x,
            "y**x": lambda x, y, i, z: y**x,
            "cube": lambda x, y, i, z: x**3,
            "inv": lambda x, y, i, z: y**-1,
            "inv2": lambda x, y, i, z: y**-2,
            "rs": lambda x, y, i, z: y**-0.5,
            "max": lambda x, y, i, z: torch.maximum(x, y),
            "other": lambda x, y, i, z: torch.max(x, y),
            "lerp": lambda x, y, i, z: torch.lerp(x, y, 0.3),
            "lerp2": lambda x, y, i, z: torch.lerp(x, y, 0.8),
            "lerpT": lambda x, y, i, z: torch.lerp(x, y, y),
            "addcmul": lambda x, y, i, z: torch.addcmul(x, x, y, value=2),
            "addcdiv": lambda x, y, i, z: torch.addcdiv(x, x, y),
            "atan2": lambda x, y, i, z: torch.atan2(x, y),
            "hypot": lambda x, y, i, z: torch.hypot(x, y),
            "clampT": lambda x, y, i, z: torch.clamp(x, -y, y),
            "one": lambda x, y, i, z: x * 1.0,
            "bools": lambda x, y, i, z: (x > 0) * y,
            "mixed": lambda x, y, i, z: x > i,
        },
        x,
        y,
        i,
        zero,
        rtol=2e-4,
        atol=1e-5,
    )


def test_comparison_rounds_a_number_to_the_tensors_type() -> None:
    x = torch.tensor([0.1, 0.3, 0.5]).to(torch.bfloat16)
    captured = capture(lambda x: (x == 0.1, x < 0.3, x >= 0.3), (x,))
    found = run(translate(captured.graph), operands(captured, (x,)))
    assert [f.tolist() for f in found] == [(x == 0.1).tolist(), (x < 0.3).tolist(), (x >= 0.3).tolist()]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integers_agree_with_eager_exactly(dtype: torch.dtype) -> None:
    x = torch.tensor([-128, -7, -1, 0, 1, 2, 7, 100, 127, 3]).to(dtype)
    y = torch.tensor([3, 2, -3, 5, 7, 1, -2, 2, 2, 3]).to(dtype)
    fns = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "plus": lambda x, y: x + 100,
        "floor": lambda x, y: x // y,
        "by": lambda x, y: x // 3,
        "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "mod": lambda x, y: x % y,
        "fmod": lambda x, y: torch.fmod(x, y),
        "rem": lambda x, y: torch.remainder(x, 5),
        "and": lambda x, y: x & y,
        "or": lambda x, y: x | 5,
        "xor": lambda x, y: x ^ y,
        "not": lambda x, y: ~x,
        "shl": lambda x, y: x << 2,
        "shr": lambda x, y: x >> 1,
        "shlT": lambda x, y: x << (y & 3),
        "square": lambda x, y: x**2,
        "cube": lambda x, y: x**3,
        "fifth": lambda x, y: x**5,
        "powT": lambda x, y: x ** (y & 3),
        "div": lambda x, y: x / y,
        "eq": lambda x, y: x == y,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= 3,
        "gt": lambda x, y: x > y,
        "max": lambda x, y: torch.maximum(x, y),
        "clamp": lambda x, y: x.clamp(0, 50),
        "sign": lambda x, y: torch.sign(x),
        "relu": lambda x, y: F.relu(x),
        "long": lambda x, y: x.long(),
        "float": lambda x, y: x.float(),
        "bool": lambda x, y: x.bool(),
        "floorf": lambda x, y: torch.floor(x),
        "and_": lambda x, y: torch.logical_and(x, y),
        "exp": lambda x, y: torch.exp(y / 4),
        "xor_": lambda x, y: torch.logical_xor(x, y),
        "where": lambda x, y: torch.where(x > y, x, 0),
        "rsub": lambda x, y: 10 - x,
        "scalar0": lambda x, y: x - x[0],
        "int8": lambda x, y: x.to(torch.int8),
    }
    if dtype != torch.uint8:
        fns |= {"neg": lambda x, y: -x, "abs": lambda x, y: x.abs()}
    check_all(fns, x, y, rtol=1e-6)


def test_shifts_past_the_width_and_negative_powers_are_eagers() -> None:
    x, y = torch.tensor([1, -1, 2, -8, 3]), torch.tensor([64, 70, -1, 3, 63])
    check_all(
        {
            "shl": lambda x, y: x << y,
            "shr": lambda x, y: x >> y,
            "big": lambda x, y: x << 64,
            "pow": lambda x, y: x ** (y - 66),
        },
        x,
        y,
    )


def test_bools_add_as_or_and_multiply_as_and() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check_all(
        {
            "add": lambda x, y: x + y,
            "mul": lambda x, y: x * y,
            "and": lambda x, y: x & y,
            "or": lambda x, y: x | y,
            "xor": lambda x, y: x ^ y,
            "not": lambda x, y: ~x,
            "eq": lambda x, y: x == y,
            "lt": lambda x, y: x < y,
            "ge": lambda x, y: x >= y,
            "+1": lambda x, y: x + 1,
            "*f": lambda x, y: x * 0.5,
            "/": lambda x, y: x / 2,
            "max": lambda x, y: torch.maximum(x, y),
            "where": lambda x, y: torch.where(x, 1.0, 0.0),
            "where1": lambda x, y: torch.where(x, 1, 2),
            "float": lambda x, y: x.float(),
            "any": lambda x, y: (x & y).any(),
        },
        x,
        y,
    )


def test_types_of_mixed_integers_are_eagers() -> None:
    tensors = [torch.arange(1, 4).to(d) for d in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool)]
    fns = {
        f"{i}{j}": (lambda *x, i=i, j=j: (x[i] + x[j], x[i] < x[j], torch.maximum(x[i], x[j])))
        for i in range(5)
        for j in range(i)
    }
    check_all(fns, *tensors)


def test_half_types_meet_in_f32() -> None:
    x, y = torch.randn(4).half(), torch.randn(4).bfloat16()
    check_all({"add": lambda x, y: x + y, "lt": lambda x, y: x < y, "z": lambda x, y: x[0] + y}, x, y)


def test_eight_bit_floats_are_stored_and_read() -> None:
    x = torch.tensor([0.5, 1.0, -3.0, 448.0])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        check_all({"read": lambda q: q.float() * 2, "half": lambda q: q.to(torch.bfloat16) + 1}, x.to(dtype))
        check_all({"write": lambda x, d=dtype: x.to(d)}, torch.tensor([0.5, 1.0, -3.0, 256.0]))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1)])
def test_odd_shapes_keep_their_meaning(shape: tuple[int, ...]) -> None:
    check_all(
        {
            "exp": torch.exp,
            "add": lambda x: x + 1,
            "cmp": lambda x: x > 0,
            "where": lambda x: torch.where(x > 0, x, 0.0),
            "clamp": lambda x: x.clamp(0, 1),
            "gelu": F.gelu,
            "sum": torch.sum,
            "mean": torch.mean,
            "prod": torch.prod,
            "cat": lambda x: torch.stack([x, x]),
            "flat": torch.flatten,
            "all": lambda x: (x > 0).all(),
        },
        torch.rand(shape) if shape else torch.tensor(0.5),
    )


def test_masked_fill_and_fills_take_numbers_and_tensors() -> None:
    x, m = torch.randn(2, 3), torch.tensor([True, False, True])
    check_all(
        {
            "number": lambda x, m: x.masked_fill(m, -1e30),
            "inf": lambda x, m: x.masked_fill(m, float("-inf")),
            "tensor": lambda x, m: x.masked_fill(m, torch.tensor(2.0)),
            "half": lambda x, m: x.half().masked_fill(m, 0.1),
            "column": lambda x, m: x.masked_fill(torch.tensor([[True], [False]]), 3),
            "int": lambda x, m: x.long().masked_fill(m, 7),
        },
        x,
        m,
        rtol=1e-3,
    )
