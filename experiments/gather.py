"""Measures rows of many bodies on the local GPU into an evidence store: what a prior is trained on and judged by.

    python -m experiments.gather --db out/h200.duckdb --budget 540          # the same command again goes on
    python -m experiments.gather --db out/h200.duckdb --picks out/regret.json   # picks that nobody measured yet
    python -m experiments.gather --db out/h200.duckdb --propose rows.json       # {REGEX of programs: [ROW, ...]} early
    python -m experiments.gather --db out/h200.duckdb --fill    # what a body lacks of 100 rows that are drawn uniformly
    python -m experiments.gather --db /tmp/s.duckdb --stand-in --budget 60  # a dry run: no GPU, made-up times

Bodies come from `experiments.bodies`, in an order of which every beginning is a fair sample; each gets --rows rows:
at least 35 % drawn uniformly from its legal rows, the others by prediction, by what was measured so far, and by their
distance to the best (`emmy.tune.space`).  All cores lower and compile ahead of the GPU; every row is checked against a
plain kernel of the same body, and timed with L2 cold: three graph replays first, more of what is near the best.
Rows that the card's golden file holds are known, unless --no-golden, and its proposals come early.
Rows that are predicted to take more than a quarter of a second are left out: checking them would take seconds.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from emmy.errors import EmmyError, UsageError
from emmy.extract.evidence import standing
from emmy.extract.golden import GoldenFile, golden_path, read_golden
from emmy.extract.records import STAND_IN, Failure, KernelRecord, Measurement, Regime, Run
from emmy.extract.store import Store
from emmy.ir.schedule import Scheduled
from emmy.ir.target import Target, target
from emmy.tune.builders import Builders, Built, job_of, result
from emmy.tune.executors import Executor, Local, StandIn
from emmy.tune.groups import Group, candidate_id
from emmy.tune.packet import card_name
from emmy.tune.record import INNOCENT, failure_of, measurements_of, steadied
from emmy.tune.runner.tasks import task_of
from emmy.tune.space import MIXES, UNIFORM, Space
from experiments.bodies import Found, read
from experiments.wanted import is_named, pattern, wanted_picks, wanted_rows

Json = dict[str, Any]
BODIES: Final = Path(__file__).parent / "results" / "bodies.json"
LONGEST: Final = 0.25  # seconds a launch, predicted
OPEN: Final = 8  # bodies that are worked on at a time
AHEAD: Final = 2  # batches that wait at the GPU
SAY: Final = 10.0  # seconds between two lines


@dataclass(frozen=True)
class Survey:
    """A body's rows that may be measured, their predicted seconds, and its group; `check` is among `rows`."""

    rows: list[Scheduled]
    predicted: list[float]
    legal: int
    floor: float
    check: Scheduled | None
    group: Json


def survey(found: Found, arch: str) -> Survey | str:
    """In another process: the legal rows of a body, and how its results are checked; or why there is nothing."""
    from emmy.egraph.schedule import schedule_rows
    from emmy.extract.prior import roofline
    from emmy.extract.priors import prior_of
    from emmy.extract.work import analyse
    from emmy.ir.parse import parse_body
    from emmy.resources import golden, rulesets
    from emmy.settings import Settings
    from emmy.tune.groups import add_check, make_group

    card, body = target(arch), parse_body(found.text)
    legal = schedule_rows([body], card, found.sizes, rulesets()).rows[body.hash]
    work = analyse(body, found.sizes)
    prior, _ = prior_of(card, golden(), Settings.read().prior)
    seconds = [float(t) for t in prior.score(work, [r.config for r in legal], card)]
    try:
        group = make_group(body, found.sizes, card, work, found.name)
        check = add_check(group, legal, seconds)
    except EmmyError as e:
        return e.what
    usable = [k for k, t in enumerate(seconds) if t <= LONGEST]
    group.json["candidates"] = []
    return Survey(
        [legal[k] for k in usable], [seconds[k] for k in usable], len(legal), roofline(work, card),
        next((r for r in legal if candidate_id(r) == check), None), group.json,
    )  # fmt: skip


@dataclass
class Batch:
    """Rows of a body that are built and measured together; `building` has their check and their anchor as well."""

    numbers: list[int]
    building: dict[int | str, Future[Built]]


@dataclass
class Site:
    """A body that is worked on.

    `held`: the check's and the anchor's kernels, once built.  `why` says how each row came to be measured.  `picks`:
    rows that were asked for and are not measured yet.
    """

    found: Found
    surveyed: Future[Survey | str]
    space: Space | None = None
    group: Group | None = None
    check: Scheduled | None = None
    legal: int = 0
    held: dict[str, dict[str, Json]] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    batch: Batch | None = None
    running: bool = False
    picks: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(self.found.sizes.items()))


@dataclass
class Gathering:
    """`rows` a body at most, those that are known included.

    `picks`: rows to be measured by body, nothing else.  `proposed`: rows by body that are tried early.  `fill`: only
    bodies of which rows are known, and as many more as are missing of UNIFORM that are drawn uniformly.
    """

    executor: Executor
    store: Store
    bodies: Sequence[Found]
    card: Target
    rows: int
    budget: float
    seed: int = 0
    workers: int | None = None
    size: int = 48
    picks: Mapping[str, Sequence[str]] | None = None
    proposed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    golden: GoldenFile | None = None
    fill: bool = False

    def __post_init__(self) -> None:
        from emmy.runtime.cache import CubinCache

        self.regime = regime_of(self.executor)
        self.cache = CubinCache().folder.parent
        self.builders = Builders(self.workers)
        self.began = self.said = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.open: list[Site] = []
        self.tasks: dict[Future[list[Json]], Site] = {}
        known = self.store.snapshot([f.body for f in self.bodies], self.regime)
        self.known = {body: list(found) for body, found in known.measurements.items()}
        self.early = {body: set(rows) for body, rows in self.proposed.items()}
        self.broken = known.failures
        if self.golden is not None and self.golden.regime == self.regime:
            for m in self.golden.measurements:
                self.known.setdefault(m.body, []).append(m)
            for r in self.golden.proposals:
                self.early.setdefault(r.body, set()).add(r.row)

    # ---- the loop --------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        return self.budget - (time.monotonic() - self.began)

    def run(self) -> None:
        waiting = [f for f in self.bodies if self._wanted(f)]
        self.store.record_kernels(
            KernelRecord(f.body, f.text, f.name, {"programs": ";".join(f.programs)}) for f in waiting
        )
        print(f"{len(waiting)} of {len(self.bodies)} bodies have rows to measure", flush=True)
        try:
            while (waiting or self.open or self.tasks) and self.left > 0:
                while waiting and len(self.open) < OPEN:
                    f = waiting.pop(0)
                    site = Site(f, self.builders.pool.submit(survey, f, self.card.arch))
                    site.picks = list((self.picks or {}).get(f.body, ()))
                    self.open.append(site)
                for site in list(self.open):
                    self._advance(site)
                self._collect()
                self._say()
        finally:
            self._salvage()
            self.builders.close()

    def _wanted(self, f: Found) -> bool:
        if self.picks is not None:
            return f.body in self.picks
        known = {m.row for m in self.known.get(f.body, ()) if m.sizes == tuple(sorted(f.sizes.items()))}
        return bool(known) if self.fill else len(known) < self.rows

    def _advance(self, site: Site) -> None:
        """One step for a body: rows known, batch proposed, batch built, or done."""
        if site.running:
            return
        if site.space is None:
            if site.surveyed.done():
                self._begin(site, site.surveyed.result())
            return
        if site.batch is None:
            numbers = self._propose(site)
            if not numbers:
                self.open.remove(site)
                self.counts["bodies"] += 1
                return
            self._build(site, numbers)
        elif len(self.tasks) < AHEAD * self.executor.slots and all(f.done() for f in site.batch.building.values()):
            self._launch(site, site.batch)

    def _begin(self, site: Site, found: Survey | str) -> None:
        from emmy.ir.parse import parse_body

        if isinstance(found, str) or not found.rows:
            self.failures[found if isinstance(found, str) else "no row is short enough"] += 1
            self.open.remove(site)
            return
        first = min(range(len(found.rows)), key=lambda k: (found.predicted[k], found.rows[k].row.text))
        mix = replace(MIXES["full"], most=min(self.rows, len(found.rows)))
        site.space = space = Space(found.rows, np.array(found.predicted), found.floor, first, mix, self.seed)
        early = self.early.get(site.found.body, ())
        space.proposed = [k for k, r in enumerate(found.rows) if is_named(r.row.text, early)]
        site.check, site.legal = found.check, found.legal
        site.group = Group(
            parse_body(site.found.text), site.found.sizes, self.card, site.found.name, {**found.group, "check": ""}
        )
        for m in sorted(self.known.get(site.found.body, ()), key=standing):  # the last one of a row counts
            k = space.number(m.family, m.row)
            if k is not None and m.sizes == site.key and m.regime == self.regime:
                space.measured(k, m.median)
                if m.drawn == "uniform":
                    space.uniform.add(k)
        arches = (STAND_IN,) if self.regime.gpu == STAND_IN else ("", self.card.arch)
        failed = {f.row: f.stage for f in self.broken.get(site.found.body, ()) if f.arch in arches}
        for k, r in enumerate(found.rows):
            if r.row.text in failed and k not in space.times:
                space.broke(k, failed[r.row.text])
        if self.fill:
            space.mix = replace(mix, most=space.tried + max(0, UNIFORM - len(space.uniform)))

    def _propose(self, site: Site) -> list[int]:
        space = site.space
        assert space is not None
        if self.picks is not None:
            named = {r.row.text: k for k, r in enumerate(space.rows)}
            wanted = [named[row] for row in site.picks if row in named]
            site.picks = []
            site.why.update(dict.fromkeys(wanted, "pick"))
            return [k for k in wanted if k not in space.times]
        chosen = space.propose(self.size)
        site.why.update({k: "pick" if why == "first" else why for k, why in chosen})
        return [k for k, _ in chosen]

    def _build(self, site: Site, numbers: list[int]) -> None:
        assert site.space is not None and site.group is not None
        jobs: dict[int | str, Scheduled] = {k: site.space.rows[k] for k in numbers}
        if site.check is not None and "check" not in site.held:
            jobs["check"] = site.check
        if "anchor" not in site.held and site.space.first not in jobs:
            jobs["anchor"] = site.space.rows[site.space.first]
        g = site.group
        site.batch = Batch(numbers, {
            k: self.builders.submit(
                job_of(g.body, r.family, r.row.text, self.card.arch, g.name, g.sizes, {}, self.cache)
            )
            for k, r in jobs.items()
        })  # fmt: skip

    def _launch(self, site: Site, batch: Batch) -> None:
        space, group = site.space, site.group
        assert space is not None and group is not None
        kernels: dict[str, Json] = {}
        failures: list[Failure] = []
        for k, future in batch.building.items():
            built = result(future)
            if built.launch is None or built.kernel is None:
                self.failures[f"{built.kind}"] += 1
                if isinstance(k, int):
                    batch.numbers.remove(k)
                    space.broke(k, built.kind)
                    if built.kind != "setup":
                        failures.append(self._failure(site, k, {"kind": built.kind, "reason": built.reason}))
                continue
            number = k if isinstance(k, int) else space.first
            scheduled = site.check if k == "check" else space.rows[number]
            assert scheduled is not None
            id = group.take(scheduled, float(space.predicted[number]), built.launch)
            kernels[built.source_id] = built.kernel
            if k == "check":
                group.json["check"] = id
                site.held["check"] = {built.source_id: built.kernel}
            elif number == space.first and "anchor" not in site.held:
                group.json["anchor"] = id
                site.held["anchor"] = {built.source_id: built.kernel}
        self.store.record_failures(failures)
        site.batch = None
        if not group.json["expected"] and "check" not in site.held:
            self.failures["its check kernel was not built"] += 1
            self.open.remove(site)
            return
        if not batch.numbers:
            return
        for held in site.held.values():
            kernels.update(held)
        wanted = [candidate_id(space.rows[k]) for k in batch.numbers]
        site.batch, site.running = batch, True
        self.tasks[self.executor.submit(task_of(group.json, kernels, wanted, warm=False))] = site

    # ---- results ---------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        waiting: list[Future[Any]] = list(self.tasks)
        if len(self.tasks) < AHEAD * self.executor.slots:
            for site in self.open:
                if site.space is None:
                    waiting.append(site.surveyed)
                elif site.batch is not None and not site.running:
                    waiting += [f for f in site.batch.building.values() if not f.done()]
        if waiting:
            wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
        for future in [f for f in self.tasks if f.done()]:
            self._take(self.tasks.pop(future), future.result())

    def _take(self, site: Site, results: Sequence[Json]) -> None:
        space, batch = site.space, site.batch
        assert space is not None and batch is not None
        by_id, now = {r["id"]: r for r in results}, time.time()
        found: list[Measurement] = []
        failures: list[Failure] = []
        reference = space.times.get(space.first)
        for k in batch.numbers:
            r = by_id[candidate_id(space.rows[k])]
            if not r["ok"]:
                self.failures[r["kind"]] += 1
                space.broke(k, r["kind"])
                if r["kind"] not in INNOCENT:
                    failures.append(self._failure(site, k, r))
                continue
            r = steadied(r, reference)
            space.measured(k, r["median"])
            self.counts["rows"] += 1
            s, source = space.rows[k], STAND_IN if self.regime.gpu == STAND_IN else "tune"
            made = measurements_of(r, site.found.body, site.key, s.family, s.row.text, self.regime, source, now)
            found += [replace(m, drawn=site.why.get(k, "")) for m in made]
        site.batch, site.running = None, False
        self.store.record_measurements(found)
        self.store.record_failures(failures)

    def _failure(self, site: Site, k: int, r: Json) -> Failure:
        assert site.space is not None
        row = site.space.rows[k].row.text
        return failure_of(r, site.found.body, site.key, row, self.regime, self.card.arch, time.time())

    def _salvage(self) -> None:
        """What the GPU is at is waited for: it takes a few seconds."""
        for future, site in self.tasks.items():
            self._take(site, future.result())
        self.tasks.clear()

    def _say(self, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self.said < SAY:
            return
        self.said, spent = now, now - self.began
        failed = f"; failed: {dict(self.failures)}" if self.failures else ""
        rate = self.counts["rows"] / spent
        names = ", ".join(s.found.name for s in self.open if s.running)
        print(
            f"{spent:5.0f} s  {self.counts['rows']} rows ({rate:.1f} a second) of {self.counts['bodies']} bodies done"
            f"{failed}  [{names}]",
            flush=True,
        )


def main() -> int:
    """Exit codes as those of `emmy`: 1 a failure, 2 wrong usage, 130 interrupted."""
    try:
        return gather()
    except EmmyError as error:
        print(f"gather: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("gather: interrupted: what was measured is kept, the same command goes on from there", file=sys.stderr)
        return 130


def gather() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--bodies", type=Path, default=BODIES)
    parser.add_argument("--only", default="", help="only bodies of programs whose name this regular expression finds")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--rows", type=int, default=110, help="rows a body")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--picks", type=Path, help="output of `emmy eval regret --json`: measure its unmeasured picks")
    parser.add_argument("--propose", type=Path, help="JSON: rows to try early by a regular expression of programs")
    some.add_argument("--fill", action="store_true", help="what known bodies lack of 100 uniform rows, despite --rows")
    parser.add_argument("--no-golden", action="store_true", help="measure what the golden file holds as well")
    parser.add_argument("--workers", type=int, help="processes that compile (default: one a core; 0: threads)")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stand-in", action="store_true", help="no GPU: times are made up")
    o = parser.parse_args()
    if not 0 < o.budget < math.inf or o.rows < 1 or o.seed < 0:
        raise UsageError("--budget and --rows must be above 0, --seed at least 0", "see --help")
    only = pattern(o.only, "--only")
    bodies = [f for f in read(o.bodies) if any(only.search(p) for p in f.programs)]
    if not bodies:
        raise UsageError(f"no body of {o.bodies} has a program that {o.only!r} finds", "leave --only out")
    picks, proposed = wanted_picks(o.picks) if o.picks else None, wanted_rows(o.propose, bodies) if o.propose else {}
    executor: Executor = StandIn() if o.stand_in else Local([o.device])
    store = Store(o.db)
    run = Run(f"gather-{os.getpid()}-{time.time():.0f}", "experiments.gather", os.uname().nodename, "", time.time())
    try:
        store.record_run(run)
        gathering = Gathering(
            executor, store, bodies, target(arch_of(executor)), o.rows, o.budget, o.seed, o.workers,
            picks=picks, proposed=proposed, golden=None if o.no_golden else golden_of(executor), fill=o.fill,
        )  # fmt: skip
        gathering.run()
        gathering._say(last=True)
        store.record_run(replace(run, ended=time.time()))
    finally:
        executor.close()
    print(f"{store.stats().rows['measurement']} measurements in {o.db}")
    return 0 if gathering.counts["rows"] or not gathering.left <= 0 else 1


def golden_of(executor: Executor) -> GoldenFile | None:
    """The file of the card that measures, where there is one."""
    from emmy.resources import golden

    path = golden_path(regime_of(executor), golden())
    return read_golden(path) if path is not None else None


def regime_of(executor: Executor) -> Regime:
    from emmy.runtime.nvrtc import nvrtc_version

    facts = executor.facts
    gpu = STAND_IN if facts["gpu"] == STAND_IN else card_name(facts["gpu"])
    return Regime(gpu, facts["capability"], f"nvrtc-{nvrtc_version()}")


def arch_of(executor: Executor) -> str:
    return f"sm_{executor.facts['capability']}"


if __name__ == "__main__":
    sys.exit(main())
