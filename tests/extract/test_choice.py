"""The choice of launches: exact against brute force, acyclic, indifferent to numbering, fast on repeated layers."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.errors import LoweringError
from emmy.extract.choice import Candidate, Unmade, choose, k_best, structure
from emmy.extract.greedy import greedy
from emmy.extract.prune import closure, order_candidates, prune, unreachable

INPUTS = frozenset({0, 1})


def brute_force(candidates, inputs, outputs):
    """Least total over all subsets from which every output can be made; None where there is none."""
    best = None
    for n in range(len(candidates) + 1):
        for subset in itertools.combinations(candidates, n):
            if outputs <= closure(subset, inputs)[0]:
                total = sum(c.cost for c in subset)
                best = total if best is None else min(best, total)
    return best


@st.composite
def problems(draw, largest=9):
    """Small problems over tensors 0..7 (0 and 1 are inputs); operands may rank above results, so cycles occur."""
    candidates = []
    for i in range(draw(st.integers(1, largest))):
        outs = tuple(sorted(draw(st.sets(st.integers(2, 7), min_size=1, max_size=2))))
        ops = frozenset(draw(st.sets(st.integers(0, 7), max_size=3)))
        candidates.append(Candidate(i, outs, ops, draw(st.integers(0, 12)) * 1e-6, f"k{i}"))
    outputs = frozenset(draw(st.sets(st.integers(2, 7), min_size=1, max_size=3)))
    return candidates, outputs


ORDER = {t: t for t in range(8)}


def check_runs(choice, inputs, outputs):
    made = set(inputs)
    for c in choice.candidates:
        assert c.ops <= made
        made |= set(c.outs)
    assert outputs <= made


@settings(max_examples=250, deadline=None)
@given(problems())
def test_choice_is_the_brute_force_optimum(problem):
    candidates, outputs = problem
    best = brute_force(candidates, INPUTS, outputs)
    if best is None:
        with pytest.raises(LoweringError):
            choose(candidates, INPUTS, outputs, ORDER)
        return
    choice = choose(candidates, INPUTS, outputs, ORDER)
    check_runs(choice, INPUTS, outputs)
    assert choice.method == "optimal"
    assert choice.total == pytest.approx(best, abs=1e-12)
    assert choice.gap == 0.0


@settings(max_examples=150, deadline=None)
@given(problems())
def test_cutting_wherever_possible_keeps_the_optimum(problem):
    candidates, outputs = problem
    best = brute_force(candidates, INPUTS, outputs)
    if best is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("emmy.extract.regions.PIECE", 0)
        choice = choose(candidates, INPUTS, outputs, ORDER)
    check_runs(choice, INPUTS, outputs)
    assert choice.total == pytest.approx(best, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_pruning_never_changes_the_optimum(problem):
    candidates, outputs = problem
    listed = order_candidates(candidates, INPUTS, ORDER)
    kept = prune(listed, INPUTS, outputs)
    assert brute_force(kept, INPUTS, outputs) == pytest.approx(brute_force(candidates, INPUTS, outputs))


@settings(max_examples=200, deadline=None)
@given(problems())
def test_greedy_is_feasible_and_never_below_the_optimum(problem):
    candidates, outputs = problem
    listed = order_candidates(candidates, INPUTS, ORDER)
    if unreachable(listed, INPUTS, outputs):
        return
    plan = greedy(listed, INPUTS, outputs)
    assert outputs <= closure(plan, INPUTS)[0]
    assert sum(c.cost for c in plan) >= brute_force(candidates, INPUTS, outputs) - 1e-12


@settings(max_examples=60, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_choice_does_not_depend_on_the_order_of_candidates(problem, rng):
    candidates, outputs = problem
    if unreachable(candidates, INPUTS, outputs):
        return
    shuffled = list(candidates)
    rng.shuffle(shuffled)
    shuffled = [Candidate(100 + i, c.outs, c.ops, c.cost, c.key) for i, c in enumerate(shuffled)]
    first, second = (choose(cs, INPUTS, outputs, ORDER) for cs in (candidates, shuffled))
    assert [c.key for c in first.candidates] == [c.key for c in second.candidates]


def layered(layers, seed=3, straddle=False):
    """A chain of equal layers: stream h -> (a, b, c) -> h', each piece fused or cut; `straddle` recomputes the sum."""
    rng = random.Random(seed)
    costs = [rng.randint(5, 20) for _ in range(40)]
    candidates, order = [], {}
    number = itertools.count()

    def add(outs, ops, cost, kind):
        candidates.append(Candidate(next(number), tuple(outs), frozenset(ops), cost * 1e-6, f"{kind}@{outs}", kind))

    for layer in range(layers):
        base, below = 10 * layer + 10, 10 * layer
        h, a, b, c, d, up = below, base - 4, base - 3, base - 2, base - 1, base
        order.update({t: t for t in (h, a, b, c, d, up)})
        sources = [(h,)] if not straddle or layer == 0 else [(h,), (below - 10, below - 1)]
        for s, ops in enumerate(sources):
            add([a], ops, costs[0] + s, f"a{s}")
            add([b], ops, costs[1] + s, f"b{s}")
            add([a, b], ops, costs[0] + costs[1] - 4 + s, f"ab{s}")
            add([c], (*ops, b), costs[2] + costs[0] - 1 + s, f"ac{s}")
            if s:
                add([a, h], ops, costs[0] + 2, "a-keeps")
        add([c], (a, b), costs[2], "c")
        add([d], (a, c), costs[3], "d")
        add([d], (a, b), costs[3] + costs[2] - 2, "cd")
        add([c, d], (a, b), costs[3] + costs[2] - 1, "cd-keeps")
        add([up], (h, d), costs[4], "up")
        add([up], (h, c, a), costs[4] + costs[3] - 1, "dup")
    return candidates, frozenset({0}), frozenset({10 * layers}), order


@pytest.mark.parametrize("straddle", [False, True])
def test_pieces_give_the_optimum_of_the_whole(monkeypatch, straddle):
    monkeypatch.setattr("emmy.extract.regions.PIECE", 5)
    problem = layered(4, straddle=straddle)
    pieces = choose(*problem)
    monkeypatch.setattr("emmy.extract.regions._cuts", lambda *_: [])
    whole = choose(*problem)
    assert pieces.regions > 1 and whole.regions == 1
    assert pieces.method == whole.method == "optimal"
    assert pieces.total == pytest.approx(whole.total)


def test_equal_layers_are_solved_once():
    few, many = (choose(*layered(n)) for n in (4, 28))
    assert many.method == "optimal"
    assert many.regions > few.regions
    assert many.distinct_regions == few.distinct_regions


def test_two_launches_that_feed_each_other_are_never_a_plan():
    # x <- y and y <- x cost nothing; the way from the input costs something
    candidates = [
        Candidate(0, (2,), frozenset({3}), 0.0, "x from y"),
        Candidate(1, (3,), frozenset({2}), 0.0, "y from x"),
        Candidate(2, (4,), frozenset({2, 3}), 1e-6, "out"),
        Candidate(3, (2,), frozenset({0}), 9e-6, "x"),
        Candidate(4, (3,), frozenset({0}), 8e-6, "y"),
    ]
    choice = choose(candidates, {0}, {4}, {t: t for t in range(5)})
    assert [c.key for c in choice.candidates] == ["y", "x from y", "out"]


def test_kept_output_that_closes_a_cycle_is_left_out():
    candidates = [
        Candidate(0, (2, 5), frozenset({0, 4}), 1e-6, "makes 2, reads 4"),
        Candidate(1, (4,), frozenset({2}), 1e-6, "makes 4, reads 2"),
        Candidate(2, (2,), frozenset({0}), 3e-6, "2 alone"),
        Candidate(3, (5,), frozenset({2}), 3e-6, "5 alone"),
    ]
    choice = choose(candidates, {0}, {4, 5}, {t: t for t in range(6)})
    check_runs(choice, {0}, {4, 5})
    assert choice.total == pytest.approx(5e-6)
    assert choice.makers[2] == 2


def test_shared_producer_and_multi_output_launch_are_paid_once():
    candidates = [
        Candidate(0, (2,), frozenset({0}), 10e-6, "shared"),
        Candidate(1, (3,), frozenset({2}), 1e-6, "left"),
        Candidate(2, (4,), frozenset({2}), 1e-6, "right"),
        Candidate(3, (3,), frozenset({0}), 8e-6, "left alone"),
        Candidate(4, (4,), frozenset({0}), 8e-6, "right alone"),
        Candidate(5, (3, 4), frozenset({0}), 11.5e-6, "both"),
    ]
    both = choose(candidates, {0}, {3, 4}, {})
    assert [c.key for c in both.candidates] == ["both"]
    without = choose(candidates[:5], {0}, {3, 4}, {})
    assert [c.key for c in without.candidates] == ["shared", "left", "right"]


def test_ties_go_to_the_smaller_key():
    candidates = [Candidate(i, (2,), frozenset({0}), 1e-6, key) for i, key in enumerate("cab")]
    assert choose(candidates, {0}, {2}, {}).candidates[0].key == "a"


def test_missing_output_is_an_error_that_names_it():
    with pytest.raises(LoweringError, match=r"\[7\]"):
        choose([Candidate(0, (2,), frozenset({0}), 1e-6)], {0}, {2, 7}, {})


def test_what_a_missing_output_waits_for_is_found_through_its_candidates():
    chain = [Candidate(0, (2,), frozenset({9}), 1e-6), Candidate(1, (3,), frozenset({2, 0}), 1e-6)]
    with pytest.raises(Unmade) as e:
        choose(chain, {0}, {3}, {})
    assert (e.value.tensors, e.value.roots) == ((3,), (9,))
    circle = [Candidate(0, (2,), frozenset({3}), 1e-6), Candidate(1, (3,), frozenset({2}), 1e-6)]
    with pytest.raises(Unmade) as e:
        choose(circle, {0}, {3}, {})
    assert e.value.roots == (3,)


def test_required_output_that_is_an_input_costs_nothing():
    assert choose([], {0}, {0}, {}).candidates == ()


def test_without_time_the_greedy_plan_and_its_bound_are_reported():
    problem = layered(3)
    choice = choose(*problem, time_limit=0.0)
    assert choice.method == "greedy"
    assert 0 < choice.bound <= choose(*problem).total <= choice.total
    check_runs(choice, problem[1], problem[2])


def test_k_best_plans_differ_in_structure_and_are_sorted():
    problem = layered(3)
    plans = k_best(*problem, k=5)
    assert len(plans) == 5
    assert plans[0].total == choose(*problem).total
    assert [p.total for p in plans] == sorted(p.total for p in plans)
    assert len({structure(p) for p in plans}) == 5
    for plan in plans:
        check_runs(plan, problem[1], problem[2])


SHUFFLED = """
import random, sys
from emmy.extract.choice import Candidate, choose
from tests.extract.test_choice import layered
candidates, inputs, outputs, order = layered(6, straddle=True)
random.Random(int(sys.argv[1])).shuffle(candidates)
renumbered = [Candidate(i, c.outs, c.ops, c.cost, c.key, c.structure) for i, c in enumerate(candidates)]
print([c.key for c in choose(renumbered, inputs, outputs, order).candidates])
"""


def test_hash_seeds_and_shuffled_candidates_give_one_plan():
    root = str(Path(__file__).parents[2])
    plans = set()
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        done = subprocess.run(
            [sys.executable, "-c", SHUFFLED, seed], env=env, capture_output=True, text=True, check=True
        )
        plans.add(done.stdout)
    assert len(plans) == 1


def test_solving_prints_nothing(capfd):
    choose(*layered(2))
    assert capfd.readouterr() == ("", "")
