"""Positions of tensors: operands come before results in at least one row of every class that can be made."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from emmy.egraph.model import saturate
from emmy.egraph.numbering import Prim, settle
from emmy.ir.loop import const
from emmy.resources import rulesets
from tests.egraph.build import P
from tests.program_strategies import programs


def prim(number: int, result: int, *operands: int) -> Prim:
    return Prim(number, "Bin", (), operands, result)


def test_class_below_its_operand_moves_just_above_it():
    assert settle([prim(0, 2, 0), prim(1, 3, 2)], {0: 0, 2: 50, 3: 20}, [0]) == {0: 0, 2: 50, 3: 51}


def test_class_with_a_row_in_order_stays():
    rows = [prim(0, 2, 0), prim(1, 3, 2), prim(2, 3, 0)]
    assert settle(rows, {0: 0, 2: 50, 3: 20}, [0]) == {0: 0, 2: 50, 3: 20}


def test_input_that_equals_a_row_of_its_own_stays_first():
    assert settle([prim(0, 0, 0), prim(1, 2, 0)], {0: 0, 2: 5}, [0]) == {0: 0, 2: 5}


def test_class_that_nothing_makes_keeps_its_position():
    assert settle([prim(0, 3, 9)], {3: 5, 9: 7}, []) == {3: 5, 9: 7}


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_axes_of_one_element_can_be_made(causal):
    """Where an axis has extent 1, classes inside the softmax merge with what it is made of."""
    p = P()
    x = p.input(2, 6, 1)
    m = p.t.mean(x, (2,), True)
    e = p.t.expand(m, (const(2), *p.t.shape(m)))
    model = p.saturate(e, p.t.sdpa(m, m, x, None, causal, 0.5))
    assert {t for l in model.closed for t in l.results} >= set(model.outputs)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(programs())
def test_every_output_has_a_row_in_order(case):
    model = saturate(case.program, rulesets(), parameters=case.parameters, sizes={}, stages="do")
    order = model.numbering.order
    found = set(model.inputs)
    for p in sorted(model.numbering.prims, key=lambda p: order[p.result]):
        if all(x in found and order[x] < order[p.result] for x in p.operands):
            found.add(p.result)
    assert set(model.outputs) <= found
