"""What was measured, with the meaning of its rows: bodies as Loop IR, rows as kernel configs, a prior's opinion.

    read_measured(store, golden files)  ->  Found: a `MeasuredBody` for each (body, sizes, regime), rows fastest first

A predictor gives seconds for schedules of a body; `analytic` is the prior that needs no training.  A predictor that was
trained comes by fold: `Folds` maps a body to the predictor that has not seen it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emmy.egraph.schedule import FAMILIES
from emmy.errors import EmmyError, UsageError
from emmy.extract.evidence import standing
from emmy.extract.golden import GoldenFile
from emmy.extract.prior import predict_many
from emmy.extract.priors import Score
from emmy.extract.records import KernelRecord, Measurement, Regime, Sizes
from emmy.extract.store import Store
from emmy.extract.work import analyse
from emmy.ir.loop import Body
from emmy.ir.parse import parse_body
from emmy.ir.schedule import Row, Scheduled
from emmy.ir.target import Target, target_of_gpu

Seconds = npt.NDArray[np.float64]
# (body, its schedules, target, symbolic sizes) -> seconds of each
Predict = Callable[[Body, Sequence[Scheduled], Target, Mapping[str, int]], Seconds]


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A schedule of a body with the one measurement of it that counts."""

    scheduled: Scheduled
    measurement: Measurement

    @property
    def seconds(self) -> float:
        return self.measurement.median


@dataclass(frozen=True, slots=True)
class MeasuredBody:
    """A body at some sizes in one regime; `rows` fastest first.  `programs`: names of where the body was seen."""

    body: Body
    name: str
    programs: tuple[str, ...]
    sizes: Sizes
    regime: Regime
    target: Target
    rows: tuple[MeasuredRow, ...]

    @property
    def best(self) -> MeasuredRow:
        return self.rows[0]

    @property
    def uniform(self) -> int:
        """Rows that were drawn uniformly from the legal ones."""
        return sum(r.measurement.uniform for r in self.rows)


Folds = Callable[[MeasuredBody], Predict]


@dataclass(frozen=True, slots=True)
class Found:
    """`skipped`: measurements that mean nothing today, counted by reason."""

    bodies: tuple[MeasuredBody, ...]
    skipped: Mapping[str, int]


def analytic(body: Body, rows: Sequence[Scheduled], target: Target, sizes: Mapping[str, int]) -> Seconds:
    """The analytic prior's seconds."""
    return predict_many(analyse(body, sizes), [s.config for s in rows], target)


def predictor(score: Score) -> Predict:
    """A prior as it is asked here."""

    def predict(body: Body, rows: Sequence[Scheduled], target: Target, sizes: Mapping[str, int]) -> Seconds:
        return score(analyse(body, sizes), [s.config for s in rows], target)

    return predict


def analytic_folds(body: MeasuredBody) -> Predict:
    """The analytic prior was trained on no body, so it answers for all."""
    return analytic


def read_measured(store: Store, golden: Iterable[GoldenFile] = (), regime: Regime | None = None) -> Found:
    """All measured rows of the store and of golden files, of one regime or of all.  StoreError."""
    kernels, measurements = store.kernels(), store.measurements()
    for file in golden:
        kernels += file.bodies
        measurements += file.measurements
    return measured_bodies(kernels, [m for m in measurements if regime in (None, m.regime)])


def measured_bodies(kernels: Iterable[KernelRecord], measurements: Iterable[Measurement]) -> Found:
    """Measurements by body, sizes and regime, in the order of names and hashes."""
    known: dict[str, KernelRecord] = {}
    for k in kernels:
        known.setdefault(k.body, k)
    groups: dict[tuple[str, Sizes, Regime], dict[tuple[str, str], list[Measurement]]] = {}
    for m in measurements:
        groups.setdefault((m.body, m.sizes, m.regime), defaultdict(list))[(m.family, m.row)].append(m)
    skipped: Counter[str] = Counter()
    bodies = [_measured_body(key, rows, known, skipped) for key, rows in groups.items()]
    listed = [b for b in bodies if b is not None]
    listed.sort(key=lambda b: (b.regime, b.name, b.body.hash, b.sizes))
    return Found(tuple(listed), dict(sorted(skipped.items())))


def _measured_body(
    key: tuple[str, Sizes, Regime],
    rows: Mapping[tuple[str, str], Sequence[Measurement]],
    known: Mapping[str, KernelRecord],
    skipped: Counter[str],
) -> MeasuredBody | None:
    number, (hash, sizes, regime) = len(rows), key
    if hash not in known:
        skipped["the body's Loop IR is not recorded"] += number
        return None
    kernel = known[hash]
    try:
        body, target = parse_body(kernel.text), target_of_gpu(regime.gpu)
    except EmmyError as e:
        skipped[e.what if isinstance(e, UsageError) else "the body's text is no Loop IR of today"] += number
        return None
    if body.hash != hash or not set(body.sizes) <= {n for n, _ in sizes}:
        skipped["the body's text, or its sizes, are of another body"] += number
        return None
    found = []
    for (family, row), measurements in rows.items():
        scheduled = scheduled_row(body, family, row, target, dict(sizes))
        if isinstance(scheduled, str):
            skipped[scheduled] += 1
            continue
        found.append(MeasuredRow(scheduled, max(measurements, key=standing)))
    found.sort(key=lambda r: (r.seconds, r.scheduled.row.text))
    if not found:
        return None
    return MeasuredBody(body, kernel.name, kernel.programs, sizes, regime, target, tuple(found))


def scheduled_row(body: Body, family: str, row: str, target: Target, sizes: Mapping[str, int]) -> Scheduled | str:
    """A row as a schedule of the body, or why it means nothing there.  Whether it is legal is not asked."""
    known = next((f for f in FAMILIES if f.name == family), None)
    if known is None:
        return f"no kernel family is called {family!r}"
    try:
        parsed = Row.parse(row)
    except EmmyError:
        return "a row that cannot be read"
    facts = known.facts(body, target, sizes)
    if isinstance(facts, str):
        return f"family {family} takes the body no more: {facts}"
    return Scheduled(family, parsed, known.config(body, parsed, target, sizes))
