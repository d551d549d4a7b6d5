"""Sampled rows of every family at tile edges: no finding and right values.

Two rows a group run with every `make test`, forty a group (all where there are fewer) with `make test-simulate`.
"""

from __future__ import annotations

import pytest

from tests.simulate.cases import GROUPS, legal, sampled
from tests.simulate.runner import check_sample

FEW, MANY, SEED = 3, 48, 0


def run(group: str, n: int, count: int) -> None:
    sample = sampled(group, count, SEED)[n]
    result = check_sample(sample, seed=n)
    assert not result.simulation.findings and not result.wrong, f"{sample.label}\n{result.text}"


@pytest.mark.parametrize("n", range(FEW))
@pytest.mark.parametrize("group", GROUPS)
def test_a_row_has_no_finding_and_right_values(group: str, n: int) -> None:
    # another seed than the full suite's first rows: the cases, too, are drawn
    samples = sampled(group, MANY, SEED + 1)
    sample = samples[n * len(samples) // FEW]
    result = check_sample(sample, seed=n)
    assert not result.simulation.findings and not result.wrong, f"{sample.label}\n{result.text}"


@pytest.mark.simulate
@pytest.mark.parametrize(("group", "n"), [(g, n) for g in GROUPS for n in range(MANY)])
def test_every_sampled_row_has_no_finding_and_right_values(group: str, n: int) -> None:
    if n >= len(sampled(group, MANY, SEED)):
        pytest.skip("the group has fewer rows")
    run(group, n, MANY)


@pytest.mark.parametrize("group", GROUPS)
def test_the_suite_has_forty_rows_of_every_group(group: str) -> None:
    rows = sampled(group, MANY, SEED)
    assert len(rows) >= min(40, sum(len(r) for _, r in legal(group)))
    assert len({r.case.name for r in rows}) >= min(6, len(legal(group)))
