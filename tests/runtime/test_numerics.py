import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emmy.errors import UsageError
from emmy.ir.torch_types import TORCH
from emmy.runtime.numerics import compare, tolerance

FLOATS = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f64")
INF, NAN = math.inf, math.nan


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dtype", FLOATS)
@given(seed=st.integers(0, 10**6))
def test_a_correctly_rounded_result_passes(dtype: str, seed: int) -> None:
    reference = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert compare(reference.to(TORCH[dtype]), reference).ok


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_error_beyond_the_tolerance_fails_and_is_located(dtype: str) -> None:
    reference = torch.ones(4, 5, dtype=torch.float64)
    actual = reference.to(TORCH[dtype]).clone()
    actual[2, 3] = 1.5
    result = compare(actual, reference)
    assert not result.ok
    assert result.worst == (2, 3)
    assert (result.found, result.expected) == (1.5, 1.0)
    assert "WRONG" in str(result) and "[2, 3]" in str(result)


@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16"))
def test_a_relative_error_of_four_roundoffs_fails_without_stores(dtype: str) -> None:
    reference = numbers(1.0, -0.5)
    wrong = numbers(1.0 + 16 * tolerance(dtype), -0.5).to(TORCH[dtype])
    assert not compare(wrong, reference).ok
    near = numbers(1.0 + tolerance(dtype) / 2, -0.5).to(TORCH[dtype])
    assert compare(near, reference).ok


def test_longer_sums_and_more_stores_allow_more() -> None:
    assert tolerance("f32", terms=4096) > 10 * tolerance("f32", terms=1)
    assert tolerance("bf16", stores=2) > 2 * tolerance("bf16")
    assert tolerance("f64", terms=100) < 1e-12
    assert tolerance("i64") == 0.0


def test_f32_sums_in_any_order_pass() -> None:
    values = torch.randn(4096, 8, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    result = torch.zeros(8)
    for row in values:
        result = result + row
    assert compare(result, values.double().sum(0), terms=4096).ok


def test_small_elements_are_held_to_the_scale_of_the_result() -> None:
    assert compare(torch.tensor([1000.0, 1e-5]), numbers(1000.0, 0.0)).ok
    assert not compare(torch.tensor([1000.0, 0.1]), numbers(1000.0, 0.0)).ok


@pytest.mark.parametrize(
    ("found", "expected", "ok"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (INF, 1.0, False),
        (1.0, INF, False),
        (NAN, INF, False),
    ],
)
def test_nan_and_infinity_must_stand_where_expected(found: float, expected: float, ok: bool) -> None:
    result = compare(torch.tensor([2.0, found]), numbers(2.0, expected))
    assert result.ok is ok
    assert result.nonfinite == (0 if ok else 1)
    assert ok or result.worst == (1,)


def test_overflow_to_infinity_is_expected_of_a_narrow_type() -> None:
    assert compare(torch.tensor([INF], dtype=torch.float16), numbers(1e6)).ok
    assert not compare(torch.tensor([60000.0], dtype=torch.float16), numbers(1e6)).ok
    # next to the largest finite value, either side of rounding is right
    assert compare(torch.tensor([INF], dtype=torch.float16), numbers(65519.0)).ok
    assert compare(torch.tensor([65504.0], dtype=torch.float16), numbers(65521.0)).ok


def test_integers_and_booleans_must_be_equal() -> None:
    big = 2**62
    assert compare(torch.tensor([big, -1]), torch.tensor([big, -1])).ok
    assert not compare(torch.tensor([big + 1, -1]), torch.tensor([big, -1])).ok
    wrong = compare(torch.tensor([True, False]), torch.tensor([True, True]))
    assert not wrong.ok and wrong.worst == (1,)


def test_empty_and_scalar_results() -> None:
    assert compare(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.float64)).ok
    assert compare(torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64)).worst == ()
    assert compare(torch.zeros(3), torch.zeros(3, dtype=torch.float64)).ok
    assert not compare(torch.full((3,), 1e-3), torch.zeros(3, dtype=torch.float64)).ok


def test_shapes_must_agree() -> None:
    with pytest.raises(UsageError, match="shapes differ"):
        compare(torch.zeros(3), torch.zeros(1, 3, dtype=torch.float64))


def test_values_between_that_are_rounded_to_a_less_precise_type_are_allowed_its_unit() -> None:
    assert tolerance("f32", 64, 1, between=["bf16"]) > 2.0**-8 > tolerance("f32", 64, 1) * 100
    assert tolerance("bf16", 64, 2, between=["f16", "bf16"]) == tolerance("bf16", 64, 2)
