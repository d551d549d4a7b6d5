"""Folds that only a condition around them keeps in range: which families may take them, and what TMA then brings."""

from __future__ import annotations

import pytest

from emmy.egraph.schedule import schedule_rows
from emmy.ir.build import iadd, scalar
from emmy.ir.loop import Body, Expr, Out, ax, const, fold, load
from emmy.ir.target import target
from emmy.ir.views.box import Box, part_box
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.reach import kept_in_range
from emmy.resources import rulesets
from tests import bodies as B


def padded_sum(rows: int, n: int, more: int, shift: int = 0) -> Body:
    """Sums of rows, `shift` places on, with zeros in the other places."""
    (i,) = B.axes(rows + more)
    k = ax("k", const(n))
    at: Expr = iadd(i, const(-shift))
    inside = scalar("and", scalar("le", const(shift), i), scalar("lt", i, const(rows + shift)))
    value = scalar("where", inside, fold("sum", k, load(0, (at, k), "f32")), B.f32(0.0))
    return B.body([Out((i,), (i,), value, B.tensor("f32", rows + more))], [B.tensor("f32", rows, n)])


def windows(n: int, width: int, inner: bool) -> Body:
    """Sums over a window around each element of a row, zeros outside (`inner`), and a result twice as long."""
    (i,) = B.axes(2 * n)
    k = ax("k", const(width))
    at = iadd(i, k)
    element: Expr = load(0, (at,), "f32")
    if inner:
        element = scalar("where", scalar("lt", at, const(n)), element, B.f32(0.0))
    value = scalar("where", scalar("lt", i, const(n)), fold("sum", k, element), B.f32(0.0))
    return B.body([Out((i,), (i,), value, B.tensor("f32", 2 * n))], [B.tensor("f32", n)])


def placed(rows: int, n: int, k: int, where: int, sought: bool = True) -> Body:
    """Rows of a product at places that are data, zeros elsewhere; or (not `sought`) rows that data names, zeros where
    it counts from the end."""
    i, j = B.axes(where if sought else rows, n)
    r, p = ax("r", k), ax("p", rows)
    row: Expr = load(2, (i,), "i64")
    if sought:
        row = fold("max", p, scalar("where", scalar("eq", load(2, (p,), "i64"), i), p, const(-1)))
    product = fold("sum", r, scalar("mul", load(0, (row, r), "bf16"), load(1, (j, r), "bf16")), "bf16")
    value = scalar("where", scalar("le", const(0), row), product, B.f32(0.0))
    slots = [B.tensor("bf16", rows, k), B.tensor("bf16", n, k), B.tensor("i64", rows)]
    return B.body([Out((i, j), (i, j), value, B.tensor("bf16", i.extent, n))], slots)


def families(body: Body) -> set[str]:
    return {s.family for s in schedule_rows([body], target("sm_90a"), {}, rulesets()).rows[body.hash]}


@pytest.mark.parametrize(
    "body",
    [
        padded_sum(40, 65, 5),
        padded_sum(40, 65, 5, 3),
        windows(40, 3, False),
        B.padded_linear(33, 77, 65, out=True),
        placed(33, 77, 64, 90),
    ],
    ids=["behind", "before and behind", "window", "product", "place that is sought"],
)
def test_a_condition_keeps_the_fold_in_range(body):
    assert kept_in_range(body)


@pytest.mark.parametrize(
    "body",
    [
        B.linear(33, 77, 65), B.padded_linear(33, 77, 65), B.padded_linear(33, 80, 65, out=True),
        B.attention(1, 2, 1, 40, 150, 32, causal=True), B.rotated(40, 24, 64), windows(40, 3, True),
        padded_sum(40, 65, 0), placed(33, 77, 64, 90, sought=False),
    ],
    ids=["product", "copies", "no line behind", "mask", "guarded halves", "guarded window", "nothing more", "data"],
)  # fmt: skip
def test_other_folds_are_in_range(body):
    assert not kept_in_range(body)


def test_only_threads_that_look_first_take_such_a_fold():
    assert families(padded_sum(40, 65, 5)) == {"plain"}
    assert "row" in families(padded_sum(40, 65, 0))


def test_tma_brings_zeros_in_place_of_rows_that_are_not_there():
    inside, beyond = B.padded_linear(64, 80, 72, out=True), B.padded_linear(64, 77, 72, out=True)
    assert families(beyond) == {"plain", "wgmma"} < families(inside)
    view = contraction_view(beyond)
    assert isinstance(view, ContractionView)
    box = part_box(view.parts_b[0], beyond, view.batch, view.n, view.k)
    assert isinstance(box, Box) and box.shape == (const(77), const(72)) and view.n[0].size == 80


def test_a_shifted_product_has_no_boxes():
    """Rows before the operand's first cannot be left out of a box."""
    i, j = B.axes(64, 80)
    r = ax("r", const(72))
    at = iadd(j, const(-8))
    value = fold("sum", r, scalar("mul", load(0, (i, r), "bf16"), load(1, (at, r), "bf16")), "bf16")
    value = scalar("where", scalar("le", const(8), j), value, B.f32(0.0))
    slots = [B.tensor("bf16", 64, 72), B.tensor("bf16", 72, 72)]
    assert families(B.body([Out((i, j), (i, j), value, B.tensor("bf16", 64, 80))], slots)) == {"plain"}
