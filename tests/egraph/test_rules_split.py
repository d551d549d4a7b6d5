"""Split: a long reduction with few results equals partial results and a finishing reduction."""

from __future__ import annotations

import random
from typing import Any

import pytest

from emmy.egraph.egg import Egg
from emmy.egraph.fusion import Launch
from emmy.egraph.model import BOUNDS, ModelGraph
from emmy.ir.counts import contractions
from emmy.ir.loop import Fold, size
from emmy.resources import rulesets
from tests.egraph.build import P, agree, execute, makers, plans, values
from tests.frontend.translate.reference import run

Facts = dict[str, list[tuple[object, ...]]]
LONG, FEW, FILL = BOUNDS["SPLIT_ELEMENTS"], BOUNDS["SPLIT_RESULTS"], BOUNDS["SPLIT_FILL"]
LONG_K, FEW_K, FILL_K = BOUNDS["SPLIT_K_ELEMENTS"], BOUNDS["SPLIT_K_RESULTS"], BOUNDS["SPLIT_K_FILL"]


def reduction(operand: str = "", dtype: str = "f32", n: int = LONG, m: int = FEW, **more: Any) -> Facts:
    return {"reduction": [(7, "sum", operand, dtype, n, m)], "partial": [("sum", "f32"), ("max", "bf16")], **more}


def contraction(n: int = LONG_K, m: int = FEW_K, weighs: int = 7, dtype: str = "f32") -> Facts:
    return reduction("bf16", dtype, n, m, weighs=[(weighs,)])


# rule -> (facts in which it fires, its answer, facts in which it must not)
CASES: dict[str, tuple[Facts, tuple[object, ...], tuple[Facts, ...]]] = {
    "split-reduction": (
        reduction(), (7, FILL),
        (
            reduction(n=LONG - 1), reduction(m=FEW + 1),
            reduction(dtype="bf16"),  # a partial sum would be rounded
            reduction("bf16"),
        ),
    ),
    "split-contraction": (
        contraction(), (7, FILL_K),
        (contraction(n=LONG_K - 1), contraction(m=FEW_K + 1), contraction(weighs=8), contraction(dtype="f16")),
    ),
    "unite-split": ({}, (), ()),
}  # fmt: skip
ASK = [r for r in CASES if r != "unite-split"]


def wanted(facts: Facts, *held: str) -> list[Any]:
    egg = Egg(constants=dict(BOUNDS), held=frozenset(held))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "split")))
    for relation, rows in facts.items():
        egg.facts(relation, rows)
    egg.run("split", saturate=True)
    return sorted(egg.freeze().rows("want-split"))


@pytest.mark.parametrize("rule", ASK)
def test_split_rule_fires(rule):
    facts, answer, _ = CASES[rule]
    assert wanted(facts) == [answer]
    assert not wanted(facts, rule)


@pytest.mark.parametrize(("rule", "near"), [(r, k) for r in ASK for k in range(len(CASES[r][2]))])
def test_split_rule_leaves_near_misses_alone(rule, near):
    assert not wanted(CASES[rule][2][near])


# ---- programs


def total(p: P) -> int:
    return p.t.reduce("sum", p.t.un("exp", p.input(3, 2 * LONG)), (1,))


def extreme(p: P) -> int:
    return p.t.reduce("max", p.input(2, LONG, 3, dtype="bf16"), (1, 2), keepdim=True)


def softmax(p: P) -> int:
    return p.t.softmax(p.input(2, LONG), 1)


def decode(p: P) -> int:
    """A linear of one row with what comes before and after it."""
    x, w, r = p.input(1, 2 * LONG_K, dtype="bf16"), p.param(24, 2 * LONG_K, dtype="bf16"), p.input(1, 24, dtype="bf16")
    return p.t.bin("add", p.linear(p.t.silu(x), w), r)


PROGRAMS = {f.__name__: f for f in (total, extreme, softmax, decode)}


def saturated(name: str, *held: str) -> tuple[P, ModelGraph]:
    p = P()
    return p, p.saturate(PROGRAMS[name](p), held=held)


def finishing(model: ModelGraph) -> list[Launch]:
    return [l for l in model.closed if model.anchors.partial & set(l.operands)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_split_plans_compute_the_program(name):
    p, model = saturated(name)
    assert model.anchors.partial and finishing(model)
    arrays = p.arrays()
    found = values(model, arrays)
    expected = run(p.program(), arrays)
    for t, e in zip(model.outputs, expected, strict=True):
        agree(found[t], e, "a row")
    split = 0
    for steps in plans(model, random.Random(3), 12):
        split += any(model.anchors.partial & set(s.launch.results) for s in steps)
        for f, e in zip(execute(model, steps, arrays), expected, strict=True):
            agree(f, e, str([s.body.text for s in steps]))
    assert split


@pytest.mark.parametrize("name", PROGRAMS)
def test_held_split_takes_away_the_partial_launches_alone(name):
    _, model = saturated(name)
    _, held = saturated(name, *ASK)
    assert not held.anchors.partial
    rest = {(l.body.hash, l.rule) for l in model.closed if not model.anchors.partial & {*l.operands, *l.results}}
    assert rest >= {(l.body.hash, l.rule) for l in held.closed}


@pytest.mark.parametrize(("held", "united"), [((), True), (("unite-split",), False)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_split_fold_and_the_whole_one_are_one_class_where_a_rule_unites_them(name, held, united):
    _, model = saturated(name, *held)
    frozen = model.egg.freeze()
    classes, pairs = dict(frozen.rows("node")), frozen.rows("split-of")
    assert pairs and all((classes[i] == classes[j]) == united for i, j in pairs)


def test_partial_results_of_a_contraction_are_f32_and_the_finishing_launch_takes_the_epilogue():
    _, model = saturated("decode")
    (part,) = model.anchors.partial
    assert model.numbering.tensors[part].dtype == "f32"
    last = [l for l in finishing(model) if l.results == model.outputs]
    assert any(len(l.operands) == 2 and not contractions(l.body) for l in last)


def test_partial_results_are_never_recomputed_where_they_are_finished():
    for name in PROGRAMS:
        _, model = saturated(name)
        made = makers(model)
        for t in model.anchors.partial:
            assert made[t]
        for l in model.closed:
            nested = [n for n in l.body.nodes if isinstance(n, Fold) and isinstance(n.body, Fold) and not n.operand]
            assert name == "extreme" or not nested, l.body.text


def test_axis_of_unknown_extent_is_not_split():
    p = P()
    x = p.input(2, size("n"))
    model = p.saturate(p.t.reduce("sum", x, (1,)), sizes={"n": 4 * LONG})
    assert not model.anchors.partial


def test_reduction_of_weights_alone_is_not_split():
    p = P()
    x, w = p.input(4), p.param(4, 2 * LONG)
    model = p.saturate(p.t.bin("mul", x, p.t.reduce("sum", w, (1,))))
    assert not model.anchors.partial


def test_extent_without_a_divisor_is_not_split():
    p = P()
    model = p.saturate(p.t.reduce("sum", p.input(2, 8191), (1,)))
    assert not model.anchors.partial
