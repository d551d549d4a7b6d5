"""Tuning from end to end: search, then the whole plan before and after, then what compile chooses now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emmy.errors import LoweringError
from emmy.extract.records import Run, Snapshot
from emmy.extract.store import Store
from emmy.runtime.cache import CubinCache
from emmy.saturation import Saturation, as_timed, choose_again
from emmy.tune.asked import Observe, Outcome, TuneOptions
from emmy.tune.executors import Executor
from emmy.tune.packet import write_packet
from emmy.tune.plans import Compared, compare_plans, plan_group
from emmy.tune.space import MIXES
from emmy.tune.subjects import known_integers, make_subject, wanted_bodies
from emmy.tune.tuner import Tuner

# rows a body of a packet, where the effort would measure them all
PACKET_ROWS = 300


@dataclass(frozen=True)
class Tuned:
    """`saturation` is what compile chooses from now on: the tuned plan, or another that was faster as a whole."""

    outcome: Outcome
    plans: Compared
    saturation: Saturation


def tune(
    s: Saturation, executor: Executor, store: Store, options: TuneOptions, note: Callable[[str], None],
    observe: Observe | None = None, cache: CubinCache | None = None, command: str = "emmy tune",
    workers: int | None = None,
) -> Tuned:  # fmt: skip
    """Measure rows of a compiled program and time the plan that results.  StoreError where results were not kept.

    `workers` processes build kernels (None: one a core, 0: threads of this process).
    """
    tuner = Tuner(s, executor, store, options, note, observe, cache or CubinCache(), workers)
    began = tuner.recorder.now()
    # the first write: a store that takes nothing is reported before anything is measured
    store.record_run(_run(command, began, 0.0))
    try:
        outcome = tuner.run()
    finally:
        store.record_run(_run(command, began, tuner.recorder.now()))
    untuned = _untuned(s, tuner)
    plans = compare_plans(
        untuned,
        outcome.saturation,
        executor,
        store,
        tuner.known.regime,
        tuner.recorder.now(),
        tuner.cache,
        tuner.integers,
    )
    return Tuned(outcome, plans, as_timed(outcome.saturation, store, tuner.cache))


def _untuned(s: Saturation, tuner: Tuner) -> Saturation:
    """What compile would choose if nothing of its own had ever been measured here."""
    known = s.selection.evidence
    own = any(m.source != "golden" for ms in known.measurements.values() for m in ms)
    if not own and not known.failures:
        return s
    golden = {b: [m for m in ms if m.source == "golden"] for b, ms in known.measurements.items()}
    biases = tuple(m for m in known.biases if m.source == "golden")
    failures = {b: [*known.failed(b), *tuner.known.broken.get(b, ())] for b in {*known.failures, *tuner.known.broken}}
    return choose_again(s, Snapshot(golden, failures, {}, biases), s.regime, tuner.cache)


def _run(command: str, began: float, ended: float) -> Run:
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        mine = version("emmy-egraph")
    except PackageNotFoundError:
        mine = "checkout"
    return Run(f"{platform.node()}-{os.getpid()}-{began:.3f}", command, platform.node(), mine, began, ended)


def make_packet(s: Saturation, folder: Path, options: TuneOptions, note: Callable[[str], None]) -> tuple[int, int]:
    """Write a packet of the rows that a search would begin with, and the whole plan; (bodies, candidates)."""
    mix = options.mix if options.rows is not None else MIXES[options.effort]
    known = known_integers(s)
    groups = []
    for launch, body, weight in wanted_bodies(s, mix.plans):
        try:
            subject = make_subject(s, launch, body, weight, mix, options.seed, known)
        except LoweringError as e:
            note(e.what)
            continue
        wanted = min(mix.most, PACKET_ROWS)
        for k, _ in subject.space.propose(wanted):
            try:
                id = subject.group.add(subject.row(k), float(subject.space.predicted[k]))
            except LoweringError as e:
                note(f"{subject.name} {subject.row(k).row.text}: {e.what}")
                continue
            if not subject.group.json["anchor"]:
                subject.group.json["anchor"] = id
        groups.append(subject.group)
    extra = [] if s.opaque else [plan_group([s], known)]
    return len(groups), write_packet(folder, groups, s.options.target, s.regime.numerics, extra)
