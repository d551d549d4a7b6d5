"""Which rows are proposed, and when a body is done: on the rows of a real body, with times that are made up."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from emmy.egraph.schedule import schedule_rows
from emmy.extract.prior import predict_many, roofline
from emmy.extract.work import analyse
from emmy.ir.target import target
from emmy.resources import rulesets
from emmy.tune.space import MIXES, UNIFORM_SHARE, WON, Effort, Space
from tests.codegen import small as K

pytestmark = pytest.mark.filterwarnings("default")
TARGET = target("sm_90a")
BODY = K.rms_norm(512, 2304, "f32")


@pytest.fixture(scope="module")
def legal() -> tuple[list, np.ndarray, float]:
    rows = schedule_rows([BODY], TARGET, {}, rulesets(), frozenset()).rows[BODY.hash]
    work = analyse(BODY)
    return rows, predict_many(work, [r.config for r in rows], TARGET), roofline(work, TARGET)


def space(legal, effort: Effort = "normal", **more) -> Space:
    rows, predicted, floor = legal
    return Space(rows, predicted, floor, int(np.argmin(predicted)), MIXES[effort], **more)


def answer(s: Space, chosen: list[int], off: float = 1.0) -> None:
    for k in chosen:
        s.measured(k, float(s.predicted[k]) * off)


def test_the_first_batch_has_the_first_pick_and_one_of_each_family(legal) -> None:
    s = space(legal)
    found = s.propose(12)
    assert found[0] == (s.first, "first")
    families = {s.rows[k].family for k, _ in found}
    near = {r.family for k, r in enumerate(s.rows) if s.predicted[k] <= 20 * s.predicted[s.first]}
    assert families >= near
    assert len({k for k, _ in found}) == len(found) == 12


def test_kinds_of_which_nothing_was_tried_come_up_until_each_was(legal) -> None:
    s = space(legal)
    new = []
    for _ in range(6):
        chosen = s.propose(12)
        seen = {s.kinds[k] for k in s.times}
        for k, why in chosen:
            if why == "kind":
                assert s.kinds[k] not in seen
                assert s.predicted[k] <= 4 * s.best_seconds
                new.append(s.kinds[k])
        answer(s, [k for k, _ in chosen])
    assert new and len(set(new)) == len(new)
    near = {s.kinds[k] for k in range(len(s.rows)) if s.predicted[k] <= s.best_seconds}
    assert near <= {s.kinds[k] for k in s.times}


def test_rows_that_a_golden_file_proposes_are_tried_first(legal) -> None:
    s = space(legal)
    worst = sorted(range(len(s.rows)), key=lambda k: s.predicted[k])[-9:]
    s.proposed = worst
    first = [k for k, why in s.propose(12) if why == "proposed"]
    assert first == worst[:6]
    answer(s, list(s.pending))
    assert [k for k, why in s.propose(12) if why == "proposed"] == [k for k in worst if k not in first]


def test_no_row_is_proposed_twice(legal) -> None:
    s = space(legal)
    first, second = s.propose(12), s.propose(12)
    assert not {k for k, _ in first} & {k for k, _ in second}


def test_neighbours_of_the_fastest_differ_in_one_knob(legal) -> None:
    s = space(legal)
    answer(s, [k for k, _ in s.propose(12)])
    fastest = sorted(s.times, key=lambda k: s.times[k])[:3]
    near = [k for k, why in s.propose(12) if why == "neighbour"]
    assert near
    for k in near:
        assert min((s.codes[k] != s.codes[b]).sum() for b in fastest) == 1


def test_full_effort_draws_a_third_of_its_rows_uniformly(legal) -> None:
    s = space(legal, "full")
    for _ in range(5):
        answer(s, [k for k, _ in s.propose(12)])
        assert len(s.uniform) >= math.floor(0.3 * s.tried)
    assert 0.3 <= UNIFORM_SHARE < 0.5


def test_the_seed_decides_what_is_drawn(legal) -> None:
    one, same, other = (space(legal, "full", seed=n).propose(12) for n in (1, 1, 2))
    assert one == same != other


def test_measurements_correct_the_expectation_of_rows_like_them(legal) -> None:
    s = space(legal)
    k = int(np.argmin(s.predicted))
    near = int(np.argmin([(s.codes[j] != s.codes[k]).sum() if j != k else 99 for j in range(len(s.rows))]))
    before = float(s.expected()[0][near])
    s.measured(k, 3 * float(s.predicted[k]))
    after = float(s.expected()[0][near])
    assert after > 1.2 * before
    assert float(s.expected()[0][k]) == 3 * float(s.predicted[k])


def test_a_body_whose_best_row_is_at_the_floor_is_done(legal) -> None:
    s = space(legal)
    s.measured(s.first, s.floor / WON * 0.999)
    assert "roofline" in s.finished()


def test_a_body_is_done_when_no_other_row_is_likely_to_win(legal) -> None:
    s = space(legal)
    while not s.finished():
        answer(s, [k for k, _ in s.propose(12)])
    assert "estimate" in s.finished() or "every row" in s.finished()
    assert s.propose(0) == []


def test_failed_rows_are_not_proposed_again_and_those_given_back_are(legal) -> None:
    s = space(legal)
    ((a, _), (b, _)) = s.propose(2)
    s.broke(a, "timeout")
    s.give_back(b)
    rest = {k for k, _ in s.propose(len(s.rows))}
    assert a not in rest and b in rest


def test_at_most_so_many_rows_are_tried(legal) -> None:
    s = space(legal, "quick")
    chosen: list[int] = []
    while batch := s.propose(10):
        chosen += [k for k, _ in batch]
        answer(s, [k for k, _ in batch])
    assert len(chosen) == MIXES["quick"].most
    assert "24 rows" in s.finished()


def test_rows_that_differ_have_codes_that_differ(legal) -> None:
    rows, _, _ = legal
    codes = Counter(tuple(c) for c in space(legal).codes)
    assert len(codes) == len({(r.family, r.row.text) for r in rows})
