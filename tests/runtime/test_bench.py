import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emmy.errors import UsageError
from emmy.runtime.bench import measure, quantile, ratio, summary, turns


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30))
def test_quantiles_are_ordered_and_between_the_extremes(samples: list[float]) -> None:
    p10, p50, p90 = (quantile(samples, q) for q in (0.1, 0.5, 0.9))
    assert min(samples) <= p10 <= p50 <= p90 <= max(samples)


def test_quantiles_interpolate() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    assert quantile([4.0], 0.9) == 4.0
    with pytest.raises(UsageError):
        quantile([], 0.5)


def test_rounds_alternate_their_order_and_time_everyone_once() -> None:
    assert turns(3, 2) == [0, 1, 2, 2, 1, 0]
    assert sorted(turns(4, 5)) == sorted(list(range(4)) * 5)


def test_ratios_pair_samples_of_one_round() -> None:
    base = summary("base", [1.0, 2.0, 4.0], "cold", "graph")
    other = summary("other", [0.5, 1.0, 2.0], "cold", "graph")
    assert ratio(other, base).median == 0.5
    assert ratio(other, base).p90 == 0.5
    with pytest.raises(UsageError, match="no pairs"):
        ratio(other, summary("base", [1.0], "cold", "graph"))


def test_spread_is_relative() -> None:
    assert summary("a", [9.0, 10.0, 11.0], "warm", "graph").spread == pytest.approx(0.16)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_timing_without_a_device_says_so() -> None:
    with pytest.raises(UsageError, match="needs a CUDA device"):
        measure({"a": lambda: None})
