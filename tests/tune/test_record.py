"""Times of two batches, told at one state of the card."""

from __future__ import annotations

from typing import Any

import pytest

from emmy.tune.record import steadied

TIMED: dict[str, Any] = {"ok": True, "n": 10, "median": 3.0, "p10": 2.9, "p90": 3.3, "anchor": 2.2, "warm": None}


def test_times_are_scaled_to_the_state_in_which_the_anchor_took_its_reference_time() -> None:
    warm = {"n": 8, "median": 2.0, "p10": 1.9, "p90": 2.1}
    found = steadied({**TIMED, "warm": warm}, 2.0)
    assert [found[k] for k in ("median", "p10", "p90")] == pytest.approx([3.0 / 1.1, 2.9 / 1.1, 3.3 / 1.1])
    assert [found["warm"][k] for k in ("median", "p10", "p90")] == pytest.approx([2.0 / 1.1, 1.9 / 1.1, 2.1 / 1.1])
    assert (found["n"], found["warm"]["n"], found["anchor"]) == (10, 8, 2.2)
    assert warm["median"] == 2.0  # the result that came is left alone


@pytest.mark.parametrize(("anchor", "reference"), [(0.0, 2.0), (2.2, None), (2.2, 0.0)])
def test_without_an_anchor_or_a_reference_times_stay(anchor: float, reference: float | None) -> None:
    assert steadied({**TIMED, "anchor": anchor}, reference) == {**TIMED, "anchor": anchor}


def test_rows_of_a_slower_batch_keep_their_rank() -> None:
    cool = {"first": 2.0, "a": 1.9}
    throttled = {"first": 2.4, "b": 2.2}  # the same card, a fifth slower
    b = steadied({**TIMED, "median": throttled["b"], "anchor": throttled["first"]}, cool["first"])["median"]
    assert b < cool["a"]


@pytest.mark.parametrize("reference", [0.2, 200.0])
def test_a_reference_that_no_clock_explains_is_of_another_kernel(reference: float) -> None:
    assert steadied(TIMED, reference) == TIMED
