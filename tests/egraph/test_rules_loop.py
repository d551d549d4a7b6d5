"""Loop rules on bare bodies: each fires, leaves its near misses alone, and what it finds computes the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from emmy.egraph.loop import LoopGraph
from emmy.ir.build import cast, scalar
from emmy.ir.evaluate import evaluate
from emmy.ir.loop import Body, Expr, Fold, Online, Out, Tensor, ax, const, fold, load
from emmy.resources import rulesets
from tests.egraph.build import agree
from tests.egraph.rules import matches
from tests.strategies import operands

I, R, Q = ax("o0", const(3)), ax("r1", const(5)), ax("r2", const(5))
ROWS, ROW, MATRIX = (const(3),), (const(5),), (const(3), const(5))


def at(*index: Expr, slot: int = 0) -> Expr:
    return load(slot, index, "f32")


def mul(x: Expr, y: Expr) -> Expr:
    return scalar("mul", x, y)


def total(x: Expr, operand: str = "", kind: str = "sum") -> Expr:
    return fold(kind, R, x, operand)


# x and y are [3, 5], z is [3] and v is [5]; the summed axis is the second
OTHER_MAX = fold("max", Q, at(I, Q, slot=1))  # the largest of other scores
X, Y, Z, V = at(I, R), at(I, R, slot=1), at(I, slot=2), at(R, slot=3)


def score_minus_max(shift: Expr | None = None) -> Expr:
    return scalar("sub", X, total(X, kind="max") if shift is None else shift)


def weight(shift: Expr | None = None) -> Expr:
    return scalar("exp", score_minus_max(shift))


def deviation(divisor: float = 5.0, of: Expr = X) -> Expr:
    return scalar("sub", X, scalar("div", total(of), const(divisor, "f32")))


def squared(x: Expr) -> Expr:
    return mul(x, x)


def low(x: Expr) -> Expr:
    return cast(x, "bf16")


def guard(x: Expr, on: Expr | None = None, zero: float = 0.0) -> Expr:
    """`x` where the condition on a row does not hold, else zero."""
    return scalar("where", scalar("eq", Z if on is None else on, const(1.0, "f32")), const(zero, "f32"), x)


@dataclass(frozen=True)
class LoopCase:
    fires: Expr
    never: tuple[Expr, ...]


def _under(e: Expr) -> list[Expr]:
    return [e, *(d for c in e.children for d in _under(c))]


CASES: dict[str, LoopCase] = {
    "scale-leaves-sum": LoopCase(
        total(mul(mul(X, Y), Z)),
        (total(mul(X, Y)), total(mul(mul(X, Y), Z), kind="max"), total(scalar("add", mul(X, Y), Z))),
    ),
    "divide-by-scale": LoopCase(
        total(scalar("div", mul(X, Y), Z)),
        (
            total(scalar("div", X, Y)),  # the divisor depends on the summed axis
            total(scalar("div", mul(X, Y), Z), kind="max"),
            scalar("div", total(mul(X, Y)), Z),  # outside the sum already
        ),

    ),
    "scale-through-cast": LoopCase(
        total(mul(low(mul(X, Z)), Y)),
        (total(mul(low(scalar("add", X, Z)), Y)), total(mul(low(mul(X, Y)), Z)), total(low(mul(X, Y)), kind="max")),
    ),
    "scale-through-product-left": LoopCase(
        total(mul(mul(X, Z), Y)),
        (total(mul(mul(X, V), Y)), total(mul(Y, mul(X, Z))), total(mul(mul(X, Z), Y), kind="max")),
    ),
    "scale-through-product-right": LoopCase(
        total(mul(Y, mul(X, Z))),
        (total(mul(Y, mul(X, V))), total(mul(mul(X, Z), Y)), total(mul(Y, scalar("add", X, Z)))),
    ),
    "guard-leaves-sum": LoopCase(
        total(guard(mul(X, Y))),
        (
            total(guard(mul(X, Y), on=V)),  # the condition depends on the summed axis
            total(guard(mul(X, Y), zero=1.0)), total(guard(mul(X, Y)), kind="max"), guard(total(mul(X, Y))),
        ),
    ),
    "guard-through-cast": LoopCase(
        total(mul(low(guard(X)), Y)),
        (total(mul(low(guard(X, on=V)), Y)), total(mul(guard(X), low(Y))), total(low(guard(X)), kind="max")),
    ),
    "guard-through-product-left": LoopCase(
        total(mul(guard(X), Y)),
        (total(mul(guard(X, on=V), Y)), total(mul(Y, guard(X))), total(mul(guard(X), Y), kind="max")),
    ),
    "guard-through-product-right": LoopCase(
        total(mul(Y, guard(X))),
        (total(mul(Y, guard(X, on=V))), total(mul(guard(X), Y)), total(mul(Y, guard(X, zero=1.0)))),
    ),
    "twist-sum": LoopCase(
        total(weight()),
        (
            total(weight(OTHER_MAX)),
            total(weight(total(X, kind="min"))), total(weight(), kind="max"), total(score_minus_max()),
        ),

    ),
    "twist-product-left": LoopCase(
        total(mul(weight(), Y)),
        (
            total(mul(weight(OTHER_MAX), Y)), total(mul(weight(), Y), kind="max"), total(mul(score_minus_max(), Y)),
        ),

    ),
    "twist-product-right": LoopCase(
        total(mul(Y, weight())),
        (
            total(mul(Y, weight(OTHER_MAX))), total(scalar("add", Y, weight())), total(mul(Y, weight(total(X)))),
        ),

    ),
    "one-pass-variance": LoopCase(
        total(squared(deviation())),
        (
            total(squared(deviation(4.0))),  # not the mean
            total(squared(deviation(of=Y))),  # the mean of another tensor
            total(mul(deviation(), X)), total(squared(deviation()), kind="max"),
        ),
    ),
}  # fmt: skip


def plain(value: Expr) -> Body:
    """One result for each row; operands in the order x, y, z, v."""
    slots = (Tensor("f32", MATRIX), Tensor("f32", MATRIX), Tensor("f32", ROWS), Tensor("f32", ROW))
    return Body((Out((I,), (I,), value, Tensor("f32", ROWS)),), slots)


def improved(value: Expr, held: tuple[str, ...] = ()) -> tuple[Body, Body, Counter[str]]:
    """The body of a value, its better form, and the matches of each rule."""
    graph = LoopGraph(rulesets() / "loop", frozenset(held))
    with matches() as counts:
        graph.improve([plain(value)])
    return plain(value), graph.best(plain(value)), counts


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires_and_the_better_body_computes_the_same(rule):
    before, after, counts = improved(CASES[rule].fires)
    assert counts[rule]
    assert after is not before
    agree(evaluate(after, operands(before))[0], evaluate(before, operands(before))[0], after.text)


@pytest.mark.parametrize("rule", CASES)
def test_better_body_has_the_form_that_the_rule_gives(rule):
    _, after, _ = improved(CASES[rule].fires)
    nodes = after.nodes
    if rule.startswith("twist"):
        assert any(isinstance(n, Online) for n in nodes) and not any(isinstance(n, Fold) for n in nodes)
    elif rule == "one-pass-variance":
        assert [n.kind for n in nodes if isinstance(n, Fold)] == ["m2"]
    else:
        (sum_,) = (n for n in nodes if isinstance(n, Fold))
        assert all(getattr(n, "slot", -1) != 2 for n in _under(sum_)), "the row's scale is outside the sum"


@pytest.mark.parametrize(("rule", "near"), [(r, n) for r, c in CASES.items() for n in range(len(c.never))])
def test_rule_leaves_near_misses_alone(rule, near):
    before, after, counts = improved(CASES[rule].never[near])
    assert not counts[rule]
    agree(evaluate(after, operands(before))[0], evaluate(before, operands(before))[0], after.text)


@pytest.mark.parametrize("rule", CASES)
def test_held_rule_does_not_fire(rule):
    _, _, counts = improved(CASES[rule].fires, (rule,))
    assert not counts[rule]
