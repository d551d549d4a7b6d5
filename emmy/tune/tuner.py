"""The search: which rows of which bodies to measure until the budget ends or nothing is left that could win.

Two levels.  The plans worth considering (`Selection.alternatives`) say which bodies there are; their rows are measured
batch by batch, most to the body that promises to save most.  After a while the plans are chosen again, on what is known
by then: a launch that failed is replaced, and a launch that turned out better brings other bodies in.

Batches are lowered and compiled ahead by threads, while the executor measures earlier ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from emmy.errors import LoweringError
from emmy.extract.records import STAND_IN
from emmy.extract.store import Store
from emmy.runtime.cache import CubinCache
from emmy.saturation import Saturation, choose_again
from emmy.tune.asked import Observe, Outcome, Progress, TuneOptions
from emmy.tune.builders import Builders
from emmy.tune.executors import Executor
from emmy.tune.known import known_at_start
from emmy.tune.line import Line
from emmy.tune.record import Recorder
from emmy.tune.subjects import Subject, known_integers, make_subject, take_evidence, wanted_bodies

BATCH: Final = 12
# the plans are chosen again after this share of the budget
AGAIN: Final = 0.25
# seconds beyond the budget for bodies of the final plan of which nothing was measured, and rows of each
GRACE: Final = 20.0
FEW_ROWS: Final = 6


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
    recalled: int = 0

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.store, self.note)
        self.unmakeable: set[str] = set()
        self.known = known_at_start(self.start, self.executor.facts, self.store, self.note)
        self.began = time.monotonic()
        # values of integer operands, which decide what is read
        self.integers = known_integers(self.start)
        self.builders = Builders(self.workers)
        self.line = Line(
            self.start.options.target, self.executor, self.builders, self.cache, self.recorder, self.known, self.note,
            self._observe,
        )  # fmt: skip

    def run(self) -> Outcome:
        """Search; what was measured before KeyboardInterrupt is in the store and in `outcome()`."""
        # a start that was timed as a whole is one plan: the search looks at all
        whole = self.known.regime == self.start.regime and not self.start.selection.only
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
            self.line.salvage()
            self.recorder.finish()
        return self.outcome(s, stopped)

    def outcome(self, s: Saturation, stopped: str) -> Outcome:
        line = self.line
        return Outcome(
            s, list(self.subjects.values()), self.known.regime, line.measured, self.recalled, line.failures,
            time.monotonic() - self.began, line.device_seconds, stopped,
        )  # fmt: skip

    @property
    def left(self) -> float:
        return self.options.budget - (time.monotonic() - self.began)

    def informed(self, s: Saturation) -> Saturation:
        """Chosen on all that is known by now."""
        return choose_again(s, self.known.snapshot(), self.known.regime, self.cache)

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
                self.line.build(x, [k for k, _ in x.space.propose(FEW_ROWS)])
            while self.line.busy:
                self.line.submit()
                self.line.collect()
                if time.monotonic() >= until:
                    self.line.abandon()

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
            return choose_again(s, self.known.snapshot(), self.known.regime, self.cache, only)
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
                subject = make_subject(s, launch, body, weight, self.options.mix, self.options.seed, self.integers)
            except LoweringError as e:
                self.note(e.what)
                self.unmakeable.add(body.hash)
                continue
            arch = self.start.options.target.arch
            failed = {f.row: f.stage for f in evidence.failed(body.hash) if f.arch in ("", arch, STAND_IN)}
            self.recalled += take_evidence(subject, evidence.measured(body.hash), self.known.regime, failed)
            self.subjects[body.hash] = subject
            self.recorder.waiting_kernels.append(subject.record)
            added += 1
        return added

    def _rounds(self, added: int) -> str:
        """Measure until the plans should be chosen again (empty), or the end: why."""
        until = time.monotonic() + max(10.0, AGAIN * self.options.budget)
        line, before = self.line, self.line.measured
        while True:
            while line.room and self.left > 0:
                if not self._propose():
                    break
            line.submit()
            if not line.busy:
                if self.left <= 0:
                    return "the budget is spent"
                done = all(x.stopped for x in self.subjects.values())
                return "" if line.measured > before or not done else "nothing is left that could win"
            line.collect()
            if self.left <= 0:
                line.abandon()
            elif time.monotonic() >= until and not any(b.subject.space.best is None for b in line.building):
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
                self.line.build(subject, [k for k, _ in chosen])
                return True
        return False

    def _observe(self) -> None:
        if self.observe is not None:
            self.observe(
                Progress(
                    list(self.subjects.values()), self.line.measured, self.recalled, self.line.failures,
                    time.monotonic() - self.began, max(0.0, self.left), self.line.device_seconds,
                )
            )  # fmt: skip
