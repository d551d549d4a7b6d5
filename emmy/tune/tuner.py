"""The search: which rows of which bodies to measure until the budget ends or nothing is left that could win.

Two levels.  The plans worth considering (`Selection.alternatives`) say which bodies there are; their rows are measured
batch by batch, most to the body that promises to save most.  After a while the plans are chosen again, on what is known
by then: a launch that failed is replaced, and a launch that turned out better brings other bodies in.

Batches are lowered and compiled ahead by threads, while the executor measures earlier ones.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final

from emmy.errors import LoweringError
from emmy.extract.records import STAND_IN, Failure, Measurement, Regime, Snapshot
from emmy.extract.store import Store
from emmy.ir.schedule import Scheduled
from emmy.runtime.cache import CubinCache
from emmy.runtime.nvrtc import nvrtc_version
from emmy.saturation import Saturation, choose_again
from emmy.tune.builders import Builders, Built, job_of, result
from emmy.tune.executors import Executor
from emmy.tune.groups import candidate_id
from emmy.tune.packet import card_name
from emmy.tune.record import INNOCENT, Recorder, failure_of, measurements_of
from emmy.tune.runner.tasks import task_of
from emmy.tune.space import MIXES, Effort, Mix
from emmy.tune.subjects import (
    UNIFORM_SOURCE,
    Subject,
    known_integers,
    make_subject,
    take_evidence,
    wanted_bodies,
)

Json = dict[str, Any]
BATCH: Final = 12
AHEAD: Final = 3  # batches that wait, compiled or compiling, for each that is measured
# the plans are chosen again after this share of the budget
AGAIN: Final = 0.25
# the anchor may take this much longer or shorter than before: more is a change of the card, not of a row
DRIFT: Final = 0.1
# seconds beyond the budget for bodies of the final plan of which nothing was measured, and rows of each
GRACE: Final = 20.0
FEW_ROWS: Final = 6
# failures that another process, or the machine, may have caused
DOUBTFUL: Final = ("crash", "timeout")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """`rows`: at most so many a body (None: as the effort says).  `budget` in seconds."""

    budget: float = 600.0
    effort: Effort = "normal"
    seed: int = 0
    rows: int | None = None

    @property
    def mix(self) -> Mix:
        mix = MIXES[self.effort]
        return mix if self.rows is None else replace(mix, most=self.rows, plans=1)


@dataclass
class Progress:
    """What a table of the search shows."""

    subjects: Sequence[Subject]
    measured: int
    recalled: int
    failures: Counter[str]
    seconds: float
    left: float
    device_seconds: float


Observe = Callable[[Progress], None]


@dataclass
class Outcome:
    """`saturation` is chosen on what was measured.  `stopped` says why the search ended."""

    saturation: Saturation
    subjects: list[Subject]
    regime: Regime
    measured: int
    recalled: int
    failures: Counter[str]
    seconds: float
    device_seconds: float
    stopped: str


@dataclass
class _Batch:
    """`numbers` are rows of the subject that are being built and measured together, `building` by number or "check"."""

    subject: Subject
    numbers: list[int]
    building: dict[int | str, Future[Built]]
    drifted: bool = False


@dataclass
class Tuner:
    """Measures rows of one compiled program.  `note` takes texts for people, `observe` the state after each batch.

    `workers` processes build kernels (None: one a core, 0: threads).
    """

    start: Saturation
    executor: Executor
    store: Store
    options: TuneOptions
    note: Callable[[str], None]
    observe: Observe | None = None
    cache: CubinCache = field(default_factory=CubinCache)
    workers: int | None = None
    subjects: dict[str, Subject] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    measured: int = 0
    recalled: int = 0
    device_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.store, self.note)
        self.new: dict[str, list[Measurement]] = {}
        self.broken: dict[str, list[Failure]] = {}
        self.unmakeable: set[str] = set()
        self.regime = self._regime()
        self.base = self._base()
        self.began = time.monotonic()
        self.known = known_integers(self.start)
        self.builders = Builders(self.workers)
        self.building: list[_Batch] = []
        self.running: dict[Future[list[Json]], _Batch] = {}

    # ---- the search ------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Search; what was measured before KeyboardInterrupt is in the store and in `outcome()`."""
        # a start that was timed as a whole is one plan: the search looks at all
        whole = self.regime == self.start.regime and not self.start.selection.only
        s = self.start if whole else self.informed(self.start)
        stopped = ""
        try:
            while not stopped:
                added = self._add_subjects(s)
                stopped = self._rounds(added)
                if not stopped:
                    s = self.informed(s)
            s = self._settled(s)
        finally:
            self.builders.close()
            self._salvage()
            self.recorder.finish()
        return self.outcome(s, stopped)

    def _salvage(self) -> None:
        """Record batches that were measured but not looked at yet, where the search is interrupted."""
        for future, batch in self.running.items():
            if future.done() and future.exception() is None:
                batch.drifted = True  # nothing is measured again now
                self._take(batch, future.result())
        self.running.clear()

    def outcome(self, s: Saturation, stopped: str) -> Outcome:
        return Outcome(
            s, list(self.subjects.values()), self.regime, self.measured, self.recalled, self.failures,
            time.monotonic() - self.began, self.device_seconds, stopped,
        )  # fmt: skip

    @property
    def left(self) -> float:
        return self.options.budget - (time.monotonic() - self.began)

    def informed(self, s: Saturation) -> Saturation:
        """Chosen on all that is known by now."""
        return choose_again(s, self.evidence(), self.regime, self.cache)

    def evidence(self) -> Snapshot:
        """What was known at the start, and what was measured since."""
        base = self.base
        measurements = {b: [*base.measured(b), *self.new.get(b, ())] for b in {*base.measurements, *self.new}}
        failures = {b: [*base.failed(b), *self.broken.get(b, ())] for b in {*base.failures, *self.broken}}
        biases = (*base.biases, *(m for ms in self.new.values() for m in ms))
        return replace(base, measurements=measurements, failures=failures, biases=biases)

    def _base(self) -> Snapshot:
        """What the compile knew; where the executor's times belong to another regime, what is known there."""
        if self.regime == self.start.regime:
            return self.start.selection.evidence
        found = self.store.snapshot([b.hash for b in self.start.model.bodies()], self.regime)
        if self.regime.gpu != STAND_IN:
            return found
        failures = {b: [_ours(f) for f in fs if f.arch == STAND_IN] for b, fs in found.failures.items()}
        return replace(found, failures=failures)

    def _regime(self) -> Regime:
        """Where the executor's times are evidence."""
        facts, mine = self.executor.facts, self.start.regime
        if facts["gpu"] == STAND_IN:
            return replace(mine, gpu=STAND_IN)
        target = self.start.options.target
        if facts["capability"] != target.capability:
            raise LoweringError(
                f"the GPU is sm_{facts['capability']} ({facts['gpu']}), the program is compiled for {target.arch}",
                "leave --target and --gpu out, or write a packet with --packet-only",
            )
        gpu = card_name(facts["gpu"])
        if gpu != mine.gpu:
            self.note(
                f"measurements on {gpu} are no evidence for {mine.gpu}: name the card with --gpu where you compile"
            )
        return replace(mine, gpu=gpu, compiler=f"nvrtc-{nvrtc_version()}")

    def _settled(self, s: Saturation) -> Saturation:
        """The plan of what was measured: where it has bodies of which nothing was, a few rows of each are measured now,
        for a short while beyond the budget; then the plan is chosen among measured bodies."""
        until = time.monotonic() + max(GRACE, 0.1 * self.options.budget)
        while True:
            s = self.informed(s)
            unknown = [c for c in s.launches if not c.at_build and c.priced.decision.tier in ("predicted", "safe")]
            bodies = {c.priced.body.hash for c in unknown}
            if not bodies:
                return s
            self._add_subjects(s, plans=1)
            subjects = [x for b, x in self.subjects.items() if b in bodies and not x.stopped and not x.space.tried]
            if not subjects or time.monotonic() >= until:
                return self._among_measured(s)
            for x in subjects:
                self._build(x, [k for k, _ in x.space.propose(FEW_ROWS)])
            while self.building or self.running:
                self._submit()
                self._collect()
                if time.monotonic() >= until:
                    self._abandon()

    def _among_measured(self, s: Saturation) -> Saturation:
        """The best plan of measured bodies; `s` where they make none."""
        only = {
            x.body.hash: (r.family, r.row.text)
            for x in self.subjects.values()
            if x.space.best is not None and (r := x.row(x.space.best))
        }
        for c in s.launches:
            if c.at_build:
                only.setdefault(c.priced.body.hash, (c.priced.scheduled.family, c.priced.scheduled.row.text))
        try:
            return choose_again(s, self.evidence(), self.regime, self.cache, only)
        except LoweringError:
            self.note("the measured kernels alone make no plan: some launches rest on predictions")
            return s

    def _add_subjects(self, s: Saturation, plans: int | None = None) -> int:
        """Subjects for bodies that the plans use now; weights of the others follow the plan.  How many are new."""
        added = 0
        found = wanted_bodies(s, plans or self.options.mix.plans)
        weights = {b.hash: w for _, b, w in found}
        for key, subject in self.subjects.items():
            subject.weight = weights.get(key, 0.1)
        evidence = s.selection.evidence
        for launch, body, weight in found:
            if body.hash in self.subjects or body.hash in self.unmakeable:
                continue
            try:
                subject = make_subject(s, launch, body, weight, self.options.mix, self.options.seed, self.known)
            except LoweringError as e:
                self.note(e.what)
                self.unmakeable.add(body.hash)
                continue
            arch = self.start.options.target.arch
            failed = {f.row: f.stage for f in evidence.failed(body.hash) if f.arch in ("", arch, STAND_IN)}
            self.recalled += take_evidence(subject, evidence.measured(body.hash), self.regime, failed)
            self.subjects[body.hash] = subject
            self.recorder.waiting_kernels.append(subject.record)
            added += 1
        return added

    def _rounds(self, added: int) -> str:
        """Measure until the plans should be chosen again (empty), or the end: why."""
        until = time.monotonic() + max(10.0, AGAIN * self.options.budget)
        before = self.measured
        while True:
            while len(self.building) + len(self.running) < (AHEAD + 1) * self.executor.slots and self.left > 0:
                if not self._propose():
                    break
            self._submit()
            if not self.building and not self.running:
                if self.left <= 0:
                    return "the budget is spent"
                done = all(x.stopped for x in self.subjects.values())
                return "" if self.measured > before or not done else "nothing is left that could win"
            self._collect()
            if self.left <= 0:
                self._abandon()
            elif time.monotonic() >= until and not any(b.subject.space.best is None for b in self.building):
                return ""  # what is under way goes on meanwhile

    def _propose(self) -> bool:
        """Begin to compile the batch that promises most; False where nothing is worth it."""
        live = []
        for subject in self.subjects.values():
            reason = subject.stopped or subject.space.finished()
            if not reason:
                live.append(subject)
            elif not subject.space.pending:  # what is under way may fail, or change the estimate
                subject.stopped = reason
        fresh = [x for x in live if not x.space.tried and not x.space.pending]
        # of what several batches are under way for, less is expected of one more
        for subject in sorted(fresh or live, key=lambda x: (-x.promise / (1 + len(x.space.pending)), x.body.hash)):
            chosen = subject.space.propose(BATCH)
            if chosen:
                self._build(subject, [k for k, _ in chosen])
                return True
        return False

    def _build(self, subject: Subject, numbers: Sequence[int]) -> None:
        """Lower and compile rows, and what they are compared with, in other processes."""
        jobs: dict[int | str, Scheduled] = {k: subject.row(k) for k in numbers}
        if subject.group.json["check"] and subject.check is not None and not subject.kernels.get("check"):
            jobs["check"] = subject.check
        first = subject.space.first
        if subject.anchor is None and first not in jobs and first not in subject.space.failed:
            jobs["anchor"] = subject.row(first)
        arch, group = self.start.options.target.arch, subject.group
        building = {
            k: self.builders.submit(
                job_of(
                    subject.body, r.family, r.row.text, arch, group.name, group.sizes, group.limits,
                    self.cache.folder.parent,
                )
            )
            for k, r in jobs.items()
        }  # fmt: skip
        self.building.append(_Batch(subject, list(numbers), building))

    def _submit(self) -> None:
        """Hand built batches to the executor, as many as it can take."""
        for batch in list(self.building):
            if len(self.running) > self.executor.slots:
                return
            if all(f.done() for f in batch.building.values()):
                self.building.remove(batch)
                self._launch(batch)

    def _launch(self, batch: _Batch) -> None:
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
        wanted = [self._id(subject, k) for k in batch.numbers]
        self.running[self.executor.submit(task_of(group.json, kernels, wanted))] = batch

    def _unbuilt(self, batch: _Batch, k: int | str, built: Built) -> None:
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

    # ---- results ---------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
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

    def _take(self, batch: _Batch, results: Sequence[Json]) -> None:
        subject = batch.subject
        by_id = {r["id"]: r for r in results}
        if self._drifted(subject, by_id) and not batch.drifted:
            self.failures["drift"] += 1
            self._build(subject, batch.numbers)
            if self.building:
                self.building[-1].drifted = True
            return
        found: list[Measurement] = []
        sizes = tuple(sorted(subject.group.sizes.items()))
        for k in batch.numbers:
            r = by_id[self._id(subject, k)]
            if not r["ok"]:
                self._fail(subject, k, r)
                continue
            subject.space.measured(k, r["median"])
            source = UNIFORM_SOURCE if k in subject.space.uniform else "tune"
            source = STAND_IN if self.regime.gpu == STAND_IN else source
            scheduled = subject.row(k)
            found += measurements_of(
                r, subject.body.hash, sizes, scheduled.family, scheduled.row.text, self.regime, source,
                self.recorder.now(),
            )  # fmt: skip
            self.measured += 1
        cold = [m for m in found if m.regime == self.regime]
        self.new.setdefault(subject.body.hash, []).extend(cold)
        self.recorder.add(found, ())
        self._observe()

    def _drifted(self, subject: Subject, by_id: dict[str, Json]) -> bool:
        """Whether the anchor's time moved, which it does with the card's clocks; the new time is taken over."""
        anchor = next((r["anchor"] for r in by_id.values() if r.get("ok") and r.get("anchor")), 0.0)
        before, subject.anchor_seconds = subject.anchor_seconds, anchor or subject.anchor_seconds
        return bool(before and anchor) and abs(math.log(anchor / before)) > DRIFT

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
        sizes = tuple(sorted(subject.group.sizes.items()))
        arch = self.start.options.target.arch
        row = subject.row(k).row.text
        failure = failure_of(result, subject.body.hash, sizes, row, self.regime, arch, self.recorder.now())
        self.broken.setdefault(subject.body.hash, []).append(_ours(failure))
        self.recorder.add((), [failure])

    def _abandon(self) -> None:
        """Let go of what is not being measured; what is, is waited for."""
        for batch in self.building:
            for k in batch.numbers:
                batch.subject.space.give_back(k)
        self.building.clear()

    def _id(self, subject: Subject, k: int) -> str:
        return candidate_id(subject.row(k))

    def _observe(self) -> None:
        if self.observe is not None:
            self.observe(
                Progress(
                    list(self.subjects.values()), self.measured, self.recalled, self.failures,
                    time.monotonic() - self.began, max(0.0, self.left), self.device_seconds,
                )
            )  # fmt: skip


def _ours(f: Failure) -> Failure:
    """A stand-in's failure as one of whatever card, for its own search only."""
    return replace(f, arch="") if f.arch == STAND_IN else f
