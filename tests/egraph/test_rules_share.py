"""Share: two launches over the same points that read a common tensor may be one launch."""

from __future__ import annotations

import random
from typing import Any

import pytest

from emmy.egraph.egg import Egg
from emmy.egraph.fusion import Launch
from emmy.egraph.model import BOUNDS, ModelGraph
from emmy.resources import rulesets
from tests.egraph.build import P, agree, execute, plans, values
from tests.frontend.translate.reference import run

Facts = dict[str, list[tuple[object, ...]]]
PAIR: Facts = {
    "at": [(10, 10), (20, 20), (30, 30)],
    "spans": [(1, 20, 5, 10), (2, 30, 5, 10)],  # launches 1 and 2 make 20 and 30 over points 5, from what lies at 10
    "reads": [(1, 0, 10), (2, 1, 10)],
}
ASKED = (1, -1, 2, "share")

CASES: dict[str, tuple[Facts, tuple[Facts, ...]]] = {
    "share": (
        PAIR,
        (
            {**PAIR, "spans": [(1, 20, 5, 10), (2, 30, 6, 10)]},  # over other points
            {**PAIR, "spans": [(1, 20, 5, 10), (2, 30, 5, 20)]},  # the second reads what the first makes
            {**PAIR, "spans": [(1, 20, 5, 10), (2, 20, 5, 10)]},  # two ways to make one tensor
            {**PAIR, "reads": [(1, 0, 10), (2, 1, 11)]},
        ),
    ),
}  # fmt: skip


def requests(facts: Facts, *held: str) -> list[Any]:
    egg = Egg(constants=dict(BOUNDS), held=frozenset(held))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "lift", "fuse", "share")))
    for relation, rows in facts.items():
        egg.facts(relation, rows)
    egg.run("analysis", saturate=True)
    egg.run("fuse", saturate=True)
    return sorted(egg.freeze().rows("request"))


def test_share_fires():
    assert requests(PAIR) == [ASKED]
    assert not requests(PAIR, "share")


@pytest.mark.parametrize("near", range(len(CASES["share"][1])))
def test_share_leaves_near_misses_alone(near):
    assert ASKED not in requests(CASES["share"][1][near])


# ---- programs


def statistics(p: P) -> tuple[int, ...]:
    x = p.input(6, 40)
    return p.t.reduce("sum", x, (1,)), p.t.reduce("max", x, (1,))


def tables(p: P) -> tuple[int, ...]:
    """Cosine and sine of one angle, from positions and frequencies."""
    x, f = p.input(5, 1), p.input(1, 4)
    angle = p.t.bin("mul", x, f)
    return p.t.un("cos", angle), p.t.un("sin", angle)


def chain(p: P) -> tuple[int, ...]:
    """The second needs the first."""
    x = p.input(6, 40)
    total = p.t.reduce("sum", x, (1,), keepdim=True)
    return total, p.t.reduce("max", p.t.bin("sub", x, total), (1,), keepdim=True)


def apart(p: P) -> tuple[int, ...]:
    """Over other points."""
    x = p.input(6, 40)
    return p.t.reduce("sum", x, (0,)), p.t.reduce("max", x, (1,))


def saturated(build: Any, *held: str) -> tuple[P, ModelGraph]:
    p = P()
    return p, p.saturate(*build(p), held=held)


def shared(model: ModelGraph) -> list[Launch]:
    return [l for l in model.closed if l.rule == "share"]


@pytest.mark.parametrize("build", (statistics, tables))
def test_shared_launch_makes_both_and_plans_with_it_compute_the_program(build):
    p, model = saturated(build)
    (l,) = shared(model)
    assert set(l.results) == set(model.outputs) and len(l.body.outs) == 2
    assert len(set(l.operands)) == len(l.operands)
    arrays = p.arrays()
    expected = run(p.program(), arrays)
    found = values(model, arrays)
    for t, e in zip(model.outputs, expected, strict=True):
        agree(found[t], e, "output")
    used = 0
    for steps in plans(model, random.Random(2), 8):
        used += any(s.launch.rule == "share" for s in steps)
        for f, e in zip(execute(model, steps, arrays), expected, strict=True):
            agree(f, e, str([s.body.text for s in steps]))
    assert used


@pytest.mark.parametrize("build", (statistics, tables))
def test_held_share_takes_away_shared_launches_alone(build):
    _, model = saturated(build)
    _, held = saturated(build, "share")
    assert not shared(held)
    assert {l.body.hash for l in held.closed} == {l.body.hash for l in model.closed if l.rule != "share"}


@pytest.mark.parametrize("build", (chain, apart))
def test_launches_that_depend_on_each_other_or_lie_apart_are_not_shared(build):
    assert not shared(saturated(build)[1])
