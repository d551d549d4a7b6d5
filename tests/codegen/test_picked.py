"""Contractions whose matrix or row is data: what may be copied in chunks, and when the index is read."""

from __future__ import annotations

import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.kernel import AsyncCopy, walk
from emmy.ir.loop import Body
from emmy.ir.schedule import Scheduled
from emmy.ir.target import target
from emmy.ir.views.access import async_copy, gathered_load, run_side, vector_load
from emmy.ir.views.affine import affine, gathered_form
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.resources import rulesets
from tests import bodies as B

CARD = target("sm_90a")
MATRICES, ROWS = B.picked_linear(3, 32, 40, 72), B.picked_rows(32, 40, 72)


def view_of(body: Body) -> ContractionView:
    view = contraction_view(body)
    assert isinstance(view, ContractionView)
    return view


def rows(body: Body) -> list[Scheduled]:
    return schedule_rows([body], CARD, {}, rulesets()).rows[body.hash]


def test_a_picked_matrix_lies_in_lines_as_any_other() -> None:
    v = view_of(MATRICES)
    (right,) = v.parts_b
    assert right.plain is None and right.single is not None
    node, tensor = right.single, MATRICES.slots[right.single.slot]
    assert affine(node, tensor) is None and not vector_load(node, MATRICES, v.k, 8)
    form = gathered_form(node, tensor, (*v.n, *v.k))
    assert form is not None and len(form.data) == 1
    assert run_side(right, MATRICES, v.n, v.k) == "k" and gathered_load(node, MATRICES, v.k, 8)
    assert async_copy(right, MATRICES, v.n, v.k, "bf16")


def test_a_picked_row_is_no_line_of_the_copy_but_may_be_read_in_vectors() -> None:
    """Its index would be read for rows that are not there."""
    v = view_of(ROWS)
    (left,) = v.parts_a
    assert left.single is not None and gathered_load(left.single, ROWS, v.k, 8)
    assert not async_copy(left, ROWS, v.m, v.k, "bf16")


@pytest.mark.parametrize("body", [B.picked_linear(3, 32, 40, 71), B.picked_linear(3, 32, 36, 72, trans_b=False)])
def test_lines_that_are_not_aligned_are_read_by_element(body: Body) -> None:
    v = view_of(body)
    (right,) = v.parts_b
    assert right.single is not None
    run = v.k if run_side(right, body, v.n, v.k) == "k" else v.n
    assert gathered_load(right.single, body, run, 8) is None and not async_copy(right, body, v.n, v.k, "bf16")


def test_boxes_take_no_picked_matrix() -> None:
    assert not [r for r in rows(MATRICES) if "tma" in r.row.text]


def test_the_index_is_read_once_a_block_and_not_for_every_tile() -> None:
    found = next(r for r in rows(MATRICES) if r.family == "mma" and r.row.stage.where == "smem-async")
    kernel = lower(MATRICES, found.family, found.row, CARD, "k", ("x", "picked", "w"), ("y",))
    assert any(isinstance(s, AsyncCopy) for s in walk(kernel.body))
    main = source(kernel).partition('extern "C"')[2].partition("{")[2]
    assert "picked[" in main and main.rindex("picked[") < main.index("async_copy16(") < main.index("mma_")
