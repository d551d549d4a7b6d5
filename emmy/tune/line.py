"""The line that batches of rows go through: built by other processes ahead of time, measured, recorded.

A batch is rows of one subject, with what they are compared with: the anchor, and a kernel that checks their values.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Final

from emmy.extract.records import STAND_IN, Measurement
from emmy.ir.schedule import Scheduled
from emmy.ir.target import Target
from emmy.runtime.cache import CubinCache
from emmy.tune.builders import Builders, Built, job_of, result
from emmy.tune.executors import Executor
from emmy.tune.groups import candidate_id
from emmy.tune.known import Known
from emmy.tune.record import INNOCENT, Recorder, failure_of, measurements_of, steadied
from emmy.tune.runner.tasks import task_of
from emmy.tune.subjects import UNIFORM_SOURCE, Subject

Json = dict[str, Any]
AHEAD: Final = 3  # batches that wait, compiled or compiling, for each that is measured
# the anchor may take this much longer or shorter than before: more is a change of the card, not of a row
DRIFT: Final = 0.1
# failures that another process, or the machine, may have caused
DOUBTFUL: Final = ("crash", "timeout")


@dataclass
class Batch:
    """`numbers` are rows of the subject that are being built and measured together, `building` by number or "check"."""

    subject: Subject
    numbers: list[int]
    building: dict[int | str, Future[Built]]
    drifted: bool = False


@dataclass
class Line:
    """`taken` is called when a batch was measured.

    Counted: `failures` by kind, rows `measured`, and seconds that devices worked.
    """

    target: Target
    executor: Executor
    builders: Builders
    cache: CubinCache
    recorder: Recorder
    known: Known
    note: Callable[[str], None]
    taken: Callable[[], None]
    building: list[Batch] = field(default_factory=list)
    running: dict[Future[list[Json]], Batch] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    device_seconds: float = 0.0

    @property
    def busy(self) -> bool:
        return bool(self.building or self.running)

    @property
    def room(self) -> bool:
        """Whether another batch should be begun, so that the device does not wait."""
        return len(self.building) + len(self.running) < (AHEAD + 1) * self.executor.slots

    # ---- to the device ---------------------------------------------------------------------------------------------

    def build(self, subject: Subject, numbers: Sequence[int]) -> None:
        """Lower and compile rows, and what they are compared with, in other processes."""
        jobs: dict[int | str, Scheduled] = {k: subject.row(k) for k in numbers}
        if subject.group.json["check"] and subject.check is not None and not subject.kernels.get("check"):
            jobs["check"] = subject.check
        first = subject.space.first
        if subject.anchor is None and first not in jobs and first not in subject.space.failed:
            jobs["anchor"] = subject.row(first)
        group = subject.group
        building = {
            k: self.builders.submit(
                job_of(
                    subject.body, r.family, r.row.text, self.target.arch, group.name, group.sizes, group.limits,
                    self.cache.folder.parent,
                )
            )
            for k, r in jobs.items()
        }  # fmt: skip
        self.building.append(Batch(subject, list(numbers), building))

    def submit(self) -> None:
        """Hand built batches to the executor, as many as it can take."""
        for batch in list(self.building):
            if len(self.running) > self.executor.slots:
                return
            if all(f.done() for f in batch.building.values()):
                self.building.remove(batch)
                self._launch(batch)

    def abandon(self) -> None:
        """Let go of what is not being measured; what is, is waited for."""
        for batch in self.building:
            for k in batch.numbers:
                batch.subject.space.give_back(k)
        self.building.clear()

    def _launch(self, batch: Batch) -> None:
        subject, group = batch.subject, batch.subject.group
        kernels: dict[str, Json] = {}
        for k, future in batch.building.items():
            built = result(future)
            if built.launch is None or built.kernel is None:
                self._unbuilt(batch, k, built)
                continue
            scheduled = subject.check if k == "check" else subject.row(k if isinstance(k, int) else subject.space.first)
            assert scheduled is not None
            number = k if isinstance(k, int) else subject.space.first
            id = group.take(scheduled, float(subject.space.predicted[number]), built.launch)
            kernels[built.source_id] = built.kernel
            if k == "check":
                subject.kernels["check"] = {built.source_id: built.kernel}
            elif subject.anchor is None and number == subject.space.first:
                subject.anchor = id
                subject.kernels["anchor"] = {built.source_id: built.kernel}
        if subject.stopped or not batch.numbers:
            for k in batch.numbers:
                subject.space.give_back(k)
            return
        group.json["anchor"] = subject.anchor or ""
        for held in subject.kernels.values():
            kernels.update(held)
        wanted = [candidate_id(subject.row(k)) for k in batch.numbers]
        self.running[self.executor.submit(task_of(group.json, kernels, wanted))] = batch

    def _unbuilt(self, batch: Batch, k: int | str, built: Built) -> None:
        subject = batch.subject
        if isinstance(k, int):
            batch.numbers.remove(k)
            if built.kind == "setup":
                subject.space.give_back(k)
            else:
                self._fail(subject, k, {"kind": built.kind, "reason": built.reason})
        elif k == "check":
            self.note(f"{subject.name}: its check kernel was not built: {built.reason}")
            subject.stopped = f"its check kernel was not built: {built.reason}"

    # ---- and back --------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Wait a moment for anything to be done, and take the results that are there."""
        began, busy = time.monotonic(), bool(self.running)
        waiting: list[Future[Any]] = [*self.running]
        if len(self.running) <= self.executor.slots:
            waiting += [f for b in self.building for f in b.building.values() if not f.done()]
        if waiting:
            wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        self.device_seconds += (time.monotonic() - began) * busy
        for future in [f for f in self.running if f.done()]:
            self._take(self.running.pop(future), future.result())

    def salvage(self) -> None:
        """Record batches that were measured but not looked at yet, where the search is interrupted."""
        for future, batch in self.running.items():
            if future.done() and future.exception() is None:
                batch.drifted = True  # nothing is measured again now
                self._take(batch, future.result())
        self.running.clear()

    def _take(self, batch: Batch, results: Sequence[Json]) -> None:
        subject = batch.subject
        by_id = {r["id"]: r for r in results}
        if _drifted(subject, by_id) and not batch.drifted:
            self.failures["drift"] += 1
            self.build(subject, batch.numbers)
            if self.building:
                self.building[-1].drifted = True
            return
        found: list[Measurement] = []
        sizes, regime = tuple(sorted(subject.group.sizes.items())), self.known.regime
        # other batches of this body were timed at another state of the card
        reference = subject.space.times.get(subject.space.first)
        for k in batch.numbers:
            r = by_id[candidate_id(subject.row(k))]
            if not r["ok"]:
                self._fail(subject, k, r)
                continue
            r = steadied(r, reference)
            subject.space.measured(k, r["median"])
            source = UNIFORM_SOURCE if k in subject.space.uniform else "tune"
            source = STAND_IN if regime.gpu == STAND_IN else source
            row = subject.row(k)
            found += measurements_of(
                r, subject.body.hash, sizes, row.family, row.row.text, regime, source, self.recorder.now()
            )
            self.measured += 1
        self.known.measured(subject.body.hash, found)
        self.recorder.add(found, ())
        self.taken()

    def _fail(self, subject: Subject, k: int, result: Json) -> None:
        kind = result["kind"]
        self.failures[kind] += 1
        if kind in ("setup", "reference"):
            subject.space.give_back(k)
            if not subject.stopped:
                self.note(f"{subject.name}: {result['reason']}")
                subject.stopped = f"its kernels cannot be checked: {result['reason']}"
            return
        if kind in DOUBTFUL and k not in subject.retried:
            subject.retried.add(k)
            subject.space.give_back(k)  # it will be proposed again
            return
        subject.space.broke(k, kind)
        if kind in INNOCENT:
            return
        sizes, row = tuple(sorted(subject.group.sizes.items())), subject.row(k).row.text
        failure = failure_of(
            result, subject.body.hash, sizes, row, self.known.regime, self.target.arch, self.recorder.now()
        )
        self.known.failed(failure)
        self.recorder.add((), [failure])


def _drifted(subject: Subject, by_id: dict[str, Json]) -> bool:
    """Whether the anchor's time moved, which it does with the card's clocks; the new time is taken over."""
    anchor = next((r["anchor"] for r in by_id.values() if r.get("ok") and r.get("anchor")), 0.0)
    before, subject.anchor_seconds = subject.anchor_seconds, anchor or subject.anchor_seconds
    return bool(before and anchor) and abs(math.log(anchor / before)) > DRIFT
