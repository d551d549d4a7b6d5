"""Every mutant is found or proved equivalent: a sample here, all of them with `make test-simulate`.

The witnesses are themselves held to account: unmutated kernels have no finding, a witness of a change that matters has.
"""

from __future__ import annotations

import random

import pytest

from emmy.ir.kernel import Barrier, Lit, Load, Store
from tests.simulate import fixtures
from tests.simulate.edits import Site, executed, replaced, sites, sprung_where_different, with_value
from tests.simulate.judge import ALL, judge, judge_subject, mutants
from tests.simulate.operators import OPERATORS
from tests.simulate.runner import checked
from tests.simulate.subjects import Subject, subjects

KERNELS, SEED = 4, 0
KEYS = [s.key for s in subjects(KERNELS, SEED)]
FIRST = list(subjects(1, SEED))


@pytest.mark.parametrize("subject", FIRST, ids=[s.key.split(":")[0] for s in FIRST])
def test_sampled_mutants_are_found_or_equivalent(subject: Subject) -> None:
    assert not checked(subject.case, subject.kernel).simulation.findings
    found = list(mutants(subject, SEED + 1))
    for m in random.Random(subject.key).sample(found, min(3, len(found))):
        assert judge(subject, m).how != "survived", f"{m.operator} at {m.site} of {subject.kernel.comment}"


@pytest.mark.simulate
@pytest.mark.parametrize("key", KEYS)
def test_every_mutant_is_found_or_equivalent(key: str) -> None:
    lost = [f"{v.operator} at {v.site}" for v in judge_subject(key, KERNELS, SEED, 1) if v.how == "survived"]
    assert not lost


@pytest.mark.simulate
@pytest.mark.parametrize("key", KEYS)
def test_unmutated_kernels_have_no_finding(key: str) -> None:
    (subject,) = (s for s in subjects(KERNELS, SEED) if s.key == key)
    result = checked(subject.case, subject.kernel)
    assert not result.simulation.findings and not result.wrong, result.text


def test_there_are_operators_enough() -> None:
    assert len(ALL) >= 20
    assert len([m for s in subjects(1, SEED) for m in mutants(s, SEED)]) >= 150


def _first(kind: type) -> tuple[Subject, Site]:
    case, kernel = fixtures.warp_reverse()
    return Subject("warp: 0", case, kernel), next(s for s in sites(kernel) if isinstance(s.statement, kind))


def test_a_trap_is_sprung_where_the_statement_runs() -> None:
    subject, site = _first(Store)
    assert [f.kind for f in checked(subject.case, executed(subject.kernel, site)).simulation.findings] == [
        "out of bounds"
    ]


def test_a_trap_is_sprung_only_where_values_differ() -> None:
    subject, site = _first(Load)
    assert isinstance(site.statement, Load)
    (index,) = site.statement.place.index
    for other, finds in ((index, False), (Lit(3, "i32"), True)):
        witness = sprung_where_different(subject.kernel, site, index, other)
        assert bool(checked(subject.case, witness).simulation.findings) == finds


def test_edits_change_one_place() -> None:
    _, kernel = fixtures.last_block()
    at = [s for s in sites(kernel) if isinstance(s.statement, Barrier)]
    assert len(at) == 2
    left = replaced(kernel, at[0])
    assert sum(isinstance(s.statement, Barrier) for s in sites(left)) == 1
    assert len(list(sites(left))) == len(list(sites(kernel))) - 1
    store = next(s for s in sites(kernel) if isinstance(s.statement, Store))
    assert isinstance(store.statement, Store)
    changed = with_value(store.statement, store.statement.value, Lit(1.0, "f32"))
    assert changed.value == Lit(1.0, "f32") and changed.place == store.statement.place


def test_operators_leave_the_kernel_as_it_was() -> None:
    _, kernel = fixtures.last_block()
    for name, operator in OPERATORS.items():
        assert all(m.kernel != kernel for m in operator(kernel)), name
