"""An e-graph is gone when its last reader is.

egglog's objects must be dropped on the thread that made them, and the collector of cycles runs on any thread: a
reference cycle around an e-graph would end in an error that nobody can catch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from emmy.egraph.egg import Egg, Frozen
from emmy.egraph.schedule import schedule_rows
from emmy.ir.target import target
from emmy.resources import rulesets
from tests.bodies import linear
from tests.egraph.build import P


def alive() -> int:
    # the type itself: `isinstance` asks an object for its class, and objects of some libraries warn when asked
    return sum(type(o) in (Egg, Frozen) for o in gc.get_objects())


@pytest.fixture
def before() -> Iterator[int]:
    """How many there were, with the collector of cycles off."""
    gc.collect()
    gc.disable()
    yield alive()
    gc.enable()


def test_a_model_e_graph_goes_with_its_graph_and_leaves_no_loop_e_graph(before: int) -> None:
    p = P()
    x, w = p.input(8, 16, dtype="bf16"), p.param(24, 16, dtype="bf16")
    p.outputs = (p.linear(p.t.rms_norm(x, (1,), 1e-6), w),)
    model = p.saturate()
    assert alive() == before + 1
    assert model.launches
    del model
    assert alive() == before


def test_schedule_e_graphs_are_gone_when_rows_are_there(before: int) -> None:
    body = linear(32, 32, 32)
    rows = schedule_rows([body], target("sm_90a"), {}, rulesets())
    assert rows.rows[body.hash]
    assert alive() == before
