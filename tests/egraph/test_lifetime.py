"""An e-graph is gone when its last reader is.

egglog's objects must be dropped on the thread that made them, and the collector of cycles runs on any thread: there, an
e-graph in a reference cycle would end in an error that nobody can catch.
"""

from __future__ import annotations

import gc
import sys
import threading
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


def test_an_e_graph_in_a_cycle_that_another_thread_collects_is_dropped_by_its_own(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    egg = Egg()
    cycle: list[object] = [egg]
    cycle.append(cycle)
    waiting = egg._graves
    del egg, cycle
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()
    assert alive() == before and len(waiting) == 1
    Egg()
    assert not waiting and not errors


def test_an_e_graph_that_another_thread_made_and_left_is_dropped_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    made: list[Egg] = []
    ready, dropped = threading.Event(), threading.Event()

    def work() -> None:
        made.append(Egg())
        ready.set()
        dropped.wait()
        Egg()

    maker = threading.Thread(target=work)
    maker.start()
    ready.wait()
    made.clear()
    dropped.set()
    maker.join()
    assert not errors


def test_an_e_graph_outlives_the_thread_that_made_it_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    made: list[Egg] = []
    maker = threading.Thread(target=lambda: made.append(Egg()))
    maker.start()
    maker.join()
    made.clear()
    gc.collect()
    assert not errors
