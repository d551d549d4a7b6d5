"""What the measurements say about choices: the variants of a body, the failures, the regret of the untuned pick.

Regret of a body: seconds of the row that is chosen when nothing of the body was measured, over those of its best
measured row.  The pick is the least prediction over all legal rows, ties by the row's text, as a compile takes it.
Where the pick was not measured, the best-predicted measured row stands for it, and the body says so (`exact` False).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emmy.egraph.schedule import schedule_rows
from emmy.evidence.measured import Folds, MeasuredBody, Predict, Seconds
from emmy.extract.records import Failure
from emmy.ir.schedule import Scheduled
from emmy.resources import rulesets

# What the untuned pick is held to on bodies that its prior never saw: median, 95th percentile, worst.
LIMITS: Final = (1.10, 1.5, 2.0)
# Stages at which a compile itself finds that a row fails, so that it goes on to the next.
AT_COMPILE: Final = ("lowering", "compile")


@dataclass(frozen=True, slots=True)
class Variant:
    """A measured row: seconds, times the best, what the prior says, whether it is legal today."""

    family: str
    row: str
    seconds: float
    ratio: float
    predicted: float
    legal: bool
    n: int
    drawn: str
    source: str


@dataclass(frozen=True, slots=True)
class Variants:
    """The measured rows of one body, fastest first, and how many rows are legal."""

    body: str
    name: str
    programs: tuple[str, ...]
    sizes: Mapping[str, int]
    gpu: str
    compiler: str
    legal: int
    rows: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class BodyRegret:
    """`regret` >= 1 where the pick was measured in the same set; `rank` is Spearman's correlation (nan: < 3 rows).

    `rows` measured, `uniform` of them drawn uniformly, `legal` in all; `ties` measured rows that share their
    prediction with another one.
    """

    body: str
    name: str
    programs: tuple[str, ...]
    sizes: Mapping[str, int]
    gpu: str
    family: str
    rows: int
    uniform: int
    legal: int
    best: float
    best_row: str
    pick: float
    pick_row: str
    pick_family: str
    exact: bool
    regret: float
    rank: float
    ties: int


@dataclass(frozen=True, slots=True)
class FamilyRegret:
    """Bodies whose best row is of `family` (`all`: every body)."""

    family: str
    bodies: int
    rows: int
    uniform: int
    median: float
    p95: float
    worst: float
    rank: float
    inexact: int

    @property
    def within(self) -> bool:
        """True where the limits hold."""
        return all(x <= limit for x, limit in zip((self.median, self.p95, self.worst), LIMITS, strict=True))


@dataclass(frozen=True, slots=True)
class FailureKind:
    stage: str
    arch: str
    reason: str
    count: int
    bodies: int
    example: str


def variants(found: MeasuredBody, predict: Predict) -> Variants:
    """A body's measured rows beside the prior's opinion of them."""
    sizes = dict(found.sizes)
    legal = _legal(found)
    spelled = {(s.family, s.row.text) for s in legal}
    predicted = predict(found.body, [r.scheduled for r in found.rows], found.target, sizes)
    rows = tuple(
        Variant(
            r.scheduled.family, r.scheduled.row.text, r.seconds, r.seconds / found.best.seconds, float(p),
            (r.scheduled.family, r.scheduled.row.text) in spelled, r.measurement.n,
            "uniform" if r.measurement.uniform else r.measurement.drawn, r.measurement.source,
        )
        for r, p in zip(found.rows, predicted, strict=True)
    )  # fmt: skip
    return Variants(
        found.body.hash, found.name, found.programs, sizes, found.regime.gpu, found.regime.compiler, len(legal), rows
    )


def _legal(found: MeasuredBody) -> list[Scheduled]:
    return schedule_rows([found.body], found.target, dict(found.sizes), rulesets()).rows[found.body.hash]


def regrets(bodies: Iterable[MeasuredBody], folds: Folds, failures: Iterable[Failure] = ()) -> list[BodyRegret]:
    """The regret of each body's untuned pick, worst first.

    `folds` gives the predictor that has not seen the body.  Rows that a compile itself refuses (recorded failures of
    lowering and NVRTC) are no picks.
    """
    refused: dict[str, set[str]] = defaultdict(set)
    for f in failures:
        if f.stage in AT_COMPILE:
            refused[f.body].add(f.row)
    found = [_regret(b, folds(b), refused[b.body.hash]) for b in bodies]
    return sorted(found, key=lambda r: (-r.regret, r.name, r.body))


def _regret(found: MeasuredBody, predict: Predict, refused: set[str]) -> BodyRegret:
    sizes, schedules = dict(found.sizes), [r.scheduled for r in found.rows]
    legal = [s for s in _legal(found) if s.row.text not in refused]
    pick = _least(legal, predict(found.body, legal, found.target, sizes)) if legal else None
    predicted = predict(found.body, schedules, found.target, sizes)
    measured = {(r.scheduled.family, r.scheduled.row.text): r for r in found.rows}
    exact = pick is not None and (pick.family, pick.row.text) in measured
    chosen = pick if exact and pick is not None else _least(schedules, predicted)
    seconds = measured[(chosen.family, chosen.row.text)].seconds
    best = found.best
    shared = Counter(map(float, predicted))
    return BodyRegret(
        found.body.hash, found.name, found.programs, sizes, found.regime.gpu, best.scheduled.family, len(found.rows),
        found.uniform, len(legal), best.seconds, best.scheduled.row.text, seconds,
        (pick or chosen).row.text, (pick or chosen).family, exact, seconds / best.seconds,
        spearman(predicted, np.array([r.seconds for r in found.rows])), sum(n for n in shared.values() if n > 1),
    )  # fmt: skip


def _least(rows: Sequence[Scheduled], seconds: Seconds) -> Scheduled:
    return min(zip(seconds, rows, strict=True), key=lambda pair: (float(pair[0]), pair[1].row.text))[1]


def spearman(a: Seconds, b: Seconds) -> float:
    """Spearman's rank correlation, ties at their mean rank; nan for fewer than three values or equal ones."""
    if len(a) < 3:
        return math.nan
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float((x * x).sum()) * float((y * y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else math.nan


def _ranks(values: Seconds) -> Seconds:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle: Seconds = ends - (counts - 1) / 2.0
    return middle[inverse]


def by_family(bodies: Sequence[BodyRegret]) -> list[FamilyRegret]:
    """The table: a line a family, then `all`."""
    groups: dict[str, list[BodyRegret]] = defaultdict(list)
    for b in bodies:
        groups[b.family].append(b)
    lines = [_family(name, members) for name, members in sorted(groups.items())]
    return [*lines, _family("all", bodies)] if bodies else []


def _family(name: str, members: Sequence[BodyRegret]) -> FamilyRegret:
    regret = np.array([b.regret for b in members])
    ranks = [b.rank for b in members if not math.isnan(b.rank)]
    return FamilyRegret(
        name, len(members), sum(b.rows for b in members), sum(b.uniform for b in members), float(np.median(regret)),
        float(np.quantile(regret, 0.95)), float(regret.max()), float(np.median(ranks)) if ranks else math.nan,
        sum(not b.exact for b in members),
    )  # fmt: skip


def failure_kinds(failures: Iterable[Failure]) -> list[FailureKind]:
    """Failures by stage, architecture and the first line of the reason, most frequent first."""
    groups: dict[tuple[str, str, str], list[Failure]] = defaultdict(list)
    for f in failures:
        groups[(f.stage, f.arch, (f.reason.splitlines() or [""])[0])].append(f)
    kinds = [
        FailureKind(stage, arch, reason, len(fs), len({f.body for f in fs}), min(f"{f.body} {f.row}" for f in fs))
        for (stage, arch, reason), fs in groups.items()
    ]
    return sorted(kinds, key=lambda k: (-k.count, k.stage, k.arch, k.reason))
