"""Saturation stops at a limit with the best graph so far, and says so."""

from __future__ import annotations

import random

import pytest

from emmy.egraph.model import Limits
from emmy.frontend.code import load_code
from emmy.ir.target import TARGETS
from emmy.saturation import Options, saturate_program
from tests.egraph.build import P, agree, execute, plans
from tests.frontend.translate.reference import run

LIMITS = [
    (Limits(launches=40), "40 launches"),
    (Limits(seconds=1e-6), "1e-06 seconds"),
    (Limits(megabytes=1.0), "1 megabytes"),
]


def program() -> tuple[P, int]:
    p = P()
    x, w, v = p.input(4, 8), p.param(8, 8), p.param(8, 8)
    h = p.t.layer_norm(p.linear(x, w), (1,), 0.5)
    return p, p.t.bin("add", x, p.t.softmax(p.linear(p.t.gelu(h, "none"), v), 1))


def test_no_limit_leaves_no_note():
    p, y = program()
    assert p.saturate(y).notes == []


@pytest.mark.parametrize(("limits", "text"), LIMITS)
def test_limit_stops_with_a_note_and_a_smaller_graph(limits, text):
    p, y = program()
    full = p.saturate(y)
    less = p.saturate(y, limits=limits)
    (note,) = less.notes
    assert text in note and "the graph so far is used" in note
    assert len(less.launches) < len(full.launches)


def test_every_limit_leaves_a_program_that_compiles():
    """Nothing may be fused when the limit strikes: the operations themselves must still make a plan."""
    code = "x = torch.randn(8, 64); F.softmax(F.layer_norm(x, (64,)) + x, -1)"
    for limits, text in LIMITS:
        options = Options(TARGETS["sm_90a"], check=False, golden="", limits=limits)
        s = saturate_program(load_code(code), options)
        assert s.launches
        assert any(text in n for n in s.notes)


def test_graph_at_a_limit_computes_the_program():
    p, y = program()
    model = p.saturate(y, limits=Limits(launches=40))
    arrays = p.arrays()
    sampled = list(plans(model, random.Random(0), 3))
    assert sampled
    for steps in sampled:
        agree(execute(model, steps, arrays)[0], run(p.program(), arrays)[0], "a plan of a graph at its limit")
