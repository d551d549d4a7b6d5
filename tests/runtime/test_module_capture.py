"""Which memory a module's launches use, inside and outside captures of the caller's; a driver that only records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from emmy.ir.build import imul
from emmy.ir.loop import const, size
from emmy.ir.plan import KernelLaunch, Plan, Workspace
from emmy.runtime import module as runtime
from emmy.runtime.driver import Function, Invocation
from emmy.runtime.module import Module
from tests.runtime.plans import COLUMNS, two_kernels


@dataclass
class Recorder:
    """`launched`: the arguments of each launch, and where zeros of `zeroed` elements were made while capturing."""

    capturing: bool = False
    launched: list[tuple[int, ...]] = field(default_factory=list)
    zeroed: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # as a graph's pool does, so that no address comes twice


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    made = Recorder()
    zeros, empty = torch.zeros, torch.empty

    def zeros_(n: int, **options: Any) -> torch.Tensor:
        if made.capturing:
            made.zeroed.append(n)
        made.kept.append(zeros(n, **options))
        return made.kept[-1]

    def empty_(*n: Any, **options: Any) -> torch.Tensor:
        made.kept.append(empty(*n, **options))
        return made.kept[-1]

    def launch(self: Invocation, _: int) -> None:
        made.launched.append(tuple(int(v) for v in self.arguments.values))

    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(runtime, "_cuda_device", lambda *_: torch.device("cpu"))
    monkeypatch.setattr(runtime, "_load", lambda plan, _: {(n.source, n.name): Function(n.name, None, 0)
                                                           for n in plan.launches})  # fmt: skip
    monkeypatch.setattr(runtime.driver, "primary_context", lambda _: None)
    monkeypatch.setattr(runtime.driver, "enter", lambda _: None)
    monkeypatch.setattr(torch, "zeros", zeros_)
    monkeypatch.setattr(torch, "empty", empty_)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(Invocation, "launch", launch)
    yield made


def working() -> Plan:
    """The plan of two kernels, each with sums and counters of its own."""
    both = (Workspace("f32", imul(size("s"), const(3)), False), Workspace("i32", const(7), True))
    plan = two_kernels()
    return replace(plan, launches=tuple(replace(n, work=both) for n in plan.launches if isinstance(n, KernelLaunch)))


def own(driver: Recorder, module: Module, capturing: bool = False, rows: int = 20) -> set[int]:
    """Addresses of temporaries, sums and counters in one call."""
    driver.launched.clear()
    driver.capturing = capturing
    module(torch.ones(rows, COLUMNS))
    driver.capturing = False
    (x, t, sums, count, _), (again, w, y, others, counts, _) = driver.launched
    assert t == again and len({x, w, y, t, sums, count, others, counts}) >= 7
    return {t, sums, count, others, counts}


@pytest.fixture
def module(driver: Recorder) -> Module:
    return Module(working(), {"linear.weight": torch.arange(COLUMNS, dtype=torch.float32)}, graph=False)


def test_calls_share_their_memory(driver: Recorder, module: Module) -> None:
    assert own(driver, module) == own(driver, module) and not driver.zeroed


@pytest.mark.parametrize("warm", [True, False])
def test_every_capture_has_memory_of_its_own_that_its_replays_zero(
    driver: Recorder, module: Module, warm: bool
) -> None:
    before = own(driver, module) if warm else set()
    driver.zeroed.clear()
    first, second = own(driver, module, capturing=True), own(driver, module, capturing=True)
    assert driver.zeroed == [512, 512], "each graph sets the counters of both launches"
    after = own(driver, module)
    assert not first & second and not (first | second) & (before | after)
    assert before in (after, set())


def test_a_capture_that_fails_leaves_the_memory_of_calls(
    driver: Recorder, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = own(driver, module)

    def refused(*_: Any) -> None:
        raise RuntimeError("not while capturing")

    with monkeypatch.context() as m, pytest.raises(RuntimeError):
        m.setattr(Invocation, "launch", refused)
        own(driver, module, capturing=True)
    driver.capturing = False
    assert own(driver, module) == before
