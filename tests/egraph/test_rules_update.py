"""Update: new contents of a changed input are stored into it, where nothing else reads the old ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from emmy.codegen.lower import lower
from emmy.egraph.egg import Egg
from emmy.egraph.fusion import Launch
from emmy.egraph.model import BOUNDS, ModelGraph, saturate
from emmy.egraph.schedule import schedule_rows
from emmy.ir.build import iadd, scalar
from emmy.ir.evaluate import evaluate
from emmy.ir.loop import Expr, ax, const, load, op
from emmy.ir.parse import parse_body
from emmy.ir.target import TARGETS
from emmy.ir.tensor import coordinates
from emmy.resources import rulesets
from tests import host_cuda
from tests.egraph.build import P, agree, execute, plans, values
from tests.frontend.translate.reference import run

Facts = dict[str, list[tuple[object, ...]]]
PLACES: Facts = {"at": [(i, i) for i in range(10)], "updates": [(0, 9)], "own-place": [(7,)]}
ONE: Facts = {**PLACES, "prim3": [(7, "Scatter1", 9, 0, 1, 2)]}
TWO: Facts = {**PLACES, "prim4": [(7, "Scatter2", 9, 0, 1, 2, 3)]}


def near(facts: Facts) -> tuple[Facts, ...]:
    return (
        {**facts, "updates": []}, {**facts, "updates": [(1, 9)]}, {**facts, "own-place": []},
        {**facts, "at": [(i, i if i < 9 else 0) for i in range(10)]},  # operands that come after the result
    )  # fmt: skip


# rule -> (facts in which it fires, facts in which it must not)
CASES: dict[str, tuple[Facts, tuple[Facts, ...]]] = {
    "update-in-place": (ONE, (*near(ONE), {**ONE, "prim3": [(7, "Where", 9, 0, 1, 2)]})),
    "update-in-place-2": (TWO, near(TWO)),
}


def wanted(facts: Facts, *held: str) -> list[Any]:
    egg = Egg(constants=dict(BOUNDS), held=frozenset(held))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "lift", "update")))
    for relation, rows in facts.items():
        egg.facts(relation, rows)
    egg.run("lift", saturate=True)
    return sorted(egg.freeze().rows("want-update"))


@pytest.mark.parametrize("rule", CASES)
def test_update_rule_fires(rule):
    facts, _ = CASES[rule]
    assert wanted(facts) == [(7,)]
    assert not wanted(facts, rule)


@pytest.mark.parametrize(("rule", "k"), [(r, k) for r, c in CASES.items() for k in range(len(c[1]))])
def test_update_rule_leaves_near_misses_alone(rule, k):
    assert not wanted(CASES[rule][1][k])


# ---- programs: a cache of 6 rows, one of which a step writes

ROWS, WIDTH = 6, 8


def wrapped(i: Expr, n: int) -> Expr:
    return scalar("where", scalar("lt", i, const(0)), iadd(i, n), i)


def written(p: P, cache: int, place: int, row: int) -> int:
    """The cache with `row` [1, WIDTH] at the position in `place`."""
    d, j = coordinates(p.t.shape(cache)), ax("j", const(1))
    hit = op("eq", wrapped(load(1, (j,), "i64"), ROWS), d[0], dtype="bool")
    return p.t.scatter("set", const(1), hit, (j, d[1]), cache, [place], row)


def step(p: P, cache: int, place: int, row: int) -> tuple[int, ...]:
    """A step that writes an activated row and sums up the new cache."""
    new = written(p, cache, place, p.t.silu(row))
    return new, p.t.reduce("sum", new, (0,))


def build(make: Any = step, *held: str, mutated: dict[int, int] | None = None) -> tuple[P, ModelGraph]:
    p = P()
    cache, place, row = p.input(ROWS, WIDTH), p.input(1, dtype="i64"), p.input(1, WIDTH)
    program = p.program(*make(p, cache, place, row))
    model = saturate(
        program, rulesets(), parameters=frozenset(), sizes={}, held=frozenset(held),
        mutated={0: cache} if mutated is None else mutated,
    )  # fmt: skip
    return p, model


def updates(model: ModelGraph) -> list[Launch]:
    return [l for l in model.closed if l.in_place]


def arrays(p: P, place: int) -> list[Any]:
    cache, _, row = p.arrays()
    return [cache, np.array([place]), row]


@pytest.mark.parametrize("place", (0, 3, ROWS - 1, -1))
def test_plans_with_an_update_compute_the_program(place):
    p, model = build()
    given = arrays(p, place)
    expected = run(p.program(), given)
    found = values(model, given)
    in_place = 0
    for l in updates(model):
        agree(evaluate(l.body, [found[x] for x in l.operands])[0], found[l.results[0]], l.body.text)
    for steps in plans(model, random.Random(1), 8):
        in_place += any(s.launch.in_place for s in steps)
        for f, e in zip(execute(model, steps, given), expected, strict=True):
            agree(f, e, str([s.body.text for s in steps]))
    assert in_place


def test_update_stores_only_what_changes_and_takes_in_what_makes_it():
    _, model = build()
    (whole,) = (l for l in updates(model) if set(l.operands) == set(model.inputs))
    (out,) = whole.body.outs
    assert [a.size for a in out.axes] == [WIDTH]
    assert whole.in_place == (model.outputs[0], model.inputs[0])
    assert parse_body(whole.body.text) == whole.body


def test_copying_form_stays():
    _, model = build()
    assert any(not l.in_place and l.results == model.outputs[:1] for l in model.closed)


def test_launch_that_reads_the_old_cache_is_right_after_the_update_too():
    p, model = build()
    given = arrays(p, 2)
    found = values(model, given)
    (base, new) = model.inputs[0], model.outputs[0]
    readers = [l for l in model.closed if base in l.operands and new not in l.results]
    assert readers
    for l in readers:
        after = [found[new if x == base else x] for x in l.operands]
        for t, made in zip(l.results, evaluate(l.body, after), strict=True):
            agree(made, found[t], l.body.text)


def test_held_rule_takes_away_updates_alone():
    _, model = build()
    _, held = build(step, "update-in-place")
    assert updates(model) and not updates(held)
    assert {l.body.hash for l in held.closed} == {l.body.hash for l in model.closed if not l.in_place}


def read_before(p: P, cache: int, place: int, row: int) -> tuple[int, ...]:
    return written(p, cache, place, row), p.t.un("exp", cache)


def returned_before(p: P, cache: int, place: int, row: int) -> tuple[int, ...]:
    return written(p, cache, place, row), cache


def several(p: P, cache: int, place: int, row: int) -> tuple[int, ...]:
    """Two rows at places that may be the same: the last one wins, which stores side by side cannot promise."""
    d, j = coordinates(p.t.shape(cache)), ax("j", const(2))
    hit = op("eq", iadd(load(1, (const(0),), "i64"), j), d[0], dtype="bool")
    return (p.t.scatter("set", const(2), hit, (const(0), d[1]), cache, [place], row),)


@pytest.mark.parametrize("make", (read_before, returned_before, several))
def test_nothing_is_updated_where_it_would_be_seen(make):
    assert not updates(build(make)[1])


def test_input_that_the_program_does_not_change_is_not_written():
    assert not updates(build(mutated={})[1])


@pytest.mark.skipif(not host_cuda.available(), reason="no C++ compiler")
@pytest.mark.parametrize("place", (0, ROWS - 1, -1, ROWS, 1000, -ROWS - 1))
def test_kernels_store_the_row_and_nothing_out_of_range(place):
    p, model = build()
    cache, at, row = (a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays(p, place))
    expected = cache.copy()
    if -ROWS <= place < ROWS:
        expected[place] = row[0] / (1 + np.exp(-row[0]))
    (l,) = (l for l in updates(model) if set(l.operands) == set(model.inputs))
    given = dict(zip(model.inputs, (cache, at, row), strict=True))
    operands = [given[x] for x in l.operands]
    rows = schedule_rows([l.body], TARGETS["sm_90a"], {}, rulesets()).rows[l.body.hash]
    assert {r.family for r in rows} == {"map", "plain"}
    for r in rows:
        kernel = lower(l.body, r.family, r.row, TARGETS["sm_90a"], "k_update")
        (found,) = host_cuda.run(kernel, operands, {}, [cache.shape], initial=[cache])
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=f"{r.family} {r.row.text}")
