"""Which rows of a body to measure next, and when there is nothing left that is worth it.

What a row is expected to take is its prediction, corrected by how far the predictions of measured rows were off: those
that differ from it in few knobs count most (Nadaraya-Watson regression of log(measured / predicted) over the number of
knobs that differ, drawn toward 0).  How sure that is falls with the distance to what was measured.  A batch mixes

    first       the row that compile takes without a measurement
    family      the row of each family that is predicted to be fastest
    proposed    rows that somebody proposed, such as those of a golden file without times
    kind        the same of each kind of rows (`emmy.extract.kinds`) of which none was tried
    top         the least expected times
    uncertain   the least times that are still likely: the expectation's lower 5 % quantile
    neighbour   one knob changed from one of the three fastest rows so far
    uniform     drawn from all rows that were not tried, so that what prediction ignores is seen as well
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from emmy.extract.columns import Columns
from emmy.extract.kinds import kinds
from emmy.ir.schedule import Scheduled

Why = Literal["first", "proposed", "family", "kind", "top", "uncertain", "neighbour", "uniform"]
Effort = Literal["quick", "normal", "full"]
Array = npt.NDArray[np.float64]

WON: Final = 0.98  # a row that cannot take less than this share of the best is not worth trying
NEAR: Final = 1.2  # weight of a measured row: exp(-NEAR * knobs that differ)
DRAWN: Final = 0.3  # weight of "the prediction is right"
SPREAD: Final = 0.35  # of log(measured / predicted), as long as little is measured
LEAST_SPREAD: Final = 0.08
QUANTILE: Final = 1.645  # deviations below the mean: 5 %
UNIFORM: Final = 100  # rows a body that `full` draws uniformly, where there are as many
UNIFORM_SHARE: Final = 0.35


@dataclass(frozen=True, slots=True)
class Mix:
    """How many of a batch come from where; `most` rows a body, `plans` different plans."""

    kind: int
    top: int
    uncertain: int
    neighbour: int
    uniform: int
    most: int
    plans: int

    @property
    def batch(self) -> int:
        """Rows of a batch beside those that every search begins with."""
        return self.kind + self.top + self.uncertain + self.neighbour + self.uniform

    @property
    def surveys(self) -> bool:
        """Whether a share of all that is measured is drawn uniformly, so that it is a fair sample of the legal rows."""
        return self.uniform / self.batch >= UNIFORM_SHARE


MIXES: Final[dict[Effort, Mix]] = {
    "quick": Mix(kind=1, top=5, uncertain=2, neighbour=4, uniform=0, most=24, plans=1),
    "normal": Mix(kind=2, top=4, uncertain=3, neighbour=4, uniform=1, most=200, plans=4),
    "full": Mix(kind=2, top=2, uncertain=2, neighbour=3, uniform=5, most=1_000_000, plans=8),
}


@dataclass
class Space:
    """The legal rows of one body.  Times in seconds; `floor` is what no row can beat."""

    rows: Sequence[Scheduled]
    predicted: Array
    floor: float
    first: int
    mix: Mix
    seed: int = 0
    # rows that somebody proposed: up to half of each batch until they are through
    proposed: Sequence[int] = ()
    times: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    uniform: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.codes = _codes(self.rows)
        self.kinds = kinds(Columns([s.config for s in self.rows])).tolist()
        self.random = random.Random(self.seed)
        self._number = {(s.family, s.row.text): k for k, s in enumerate(self.rows)}

    def number(self, family: str, row: str) -> int | None:
        return self._number.get((family, row))

    @property
    def tried(self) -> int:
        return len(self.times) + len(self.failed)

    @property
    def best(self) -> int | None:
        """The fastest row that was measured."""
        return min(self.times, key=lambda k: (self.times[k], self.rows[k].row.text), default=None)

    @property
    def best_seconds(self) -> float:
        """Of the fastest measured row; the first pick's prediction as long as there is none."""
        return self.times[self.best] if self.best is not None else float(self.predicted[self.first])

    def untried(self) -> list[int]:
        return [
            k for k in range(len(self.rows)) if k not in self.times and k not in self.failed and k not in self.pending
        ]

    # ---- expectations ----------------------------------------------------------------------------------------------

    def expected(self) -> tuple[Array, Array]:
        """(expected seconds, their lower 5 % quantile) of every row; of a measured one, its time."""
        known = sorted(self.times)
        logs = np.log(self.predicted)
        if not known:
            return self.predicted, np.maximum(self.floor, self.predicted * math.exp(-QUANTILE * SPREAD))
        off = np.array([math.log(self.times[k]) for k in known]) - logs[known]
        distance = np.zeros((len(self.rows), len(known)), np.int8)
        for column in self.codes.T:
            distance += column[:, None] != column[None, known]
        weights = np.exp(-NEAR * distance)
        total = weights.sum(axis=1)
        mean = logs + (weights @ off) / (total + DRAWN)
        spread = max(LEAST_SPREAD, float(off.std())) if len(known) >= 8 else SPREAD
        deviation = spread * np.sqrt(DRAWN / (DRAWN + total) + 0.1)
        expected, low = np.exp(mean), np.exp(mean - QUANTILE * deviation)
        for k in known:
            expected[k] = low[k] = self.times[k]
        return np.maximum(expected, self.floor), np.maximum(low, self.floor)

    def promise(self) -> float:
        """Seconds that the best untried row may still save, by the estimate; 0 where there is none."""
        rest = self.untried()
        if not rest:
            return 0.0
        _, low = self.expected()
        return max(0.0, self.best_seconds - float(low[rest].min()))

    def finished(self) -> str:
        """Why no further row of this body is worth measuring; empty as long as one is."""
        rest = self.untried()
        if not rest:
            return "every row was tried"
        if self.tried + len(self.pending) >= self.mix.most:
            return f"{self.mix.most} rows were tried"
        if self.mix.surveys and len(self.uniform) < min(UNIFORM, len(self.rows)):
            return ""
        if self.best is None:
            return ""
        if self.floor >= WON * self.best_seconds:
            return f"the best is within {1 / WON - 1:.0%} of the roofline"
        _, low = self.expected()
        if float(low[rest].min()) >= WON * self.best_seconds:
            return "no other row is likely to win by 2 % (an estimate)"
        return ""

    # ---- proposals -------------------------------------------------------------------------------------------------

    def propose(self, count: int) -> list[tuple[int, Why]]:
        """The next rows to measure, marked as pending; fewer where fewer are left or worth it."""
        chosen: dict[int, Why] = {}
        room = min(count, self.mix.most - self.tried - len(self.pending))
        rest = self.untried()
        if room <= 0 or not rest:
            return []
        mean, low = self.expected()

        def take(order: Iterable[int], most: int, why: Why) -> None:
            for k in order:
                if most <= 0 or len(chosen) >= room:
                    return
                if k not in chosen:
                    chosen[k] = why
                    most -= 1

        def by(values: Array) -> Callable[[int], tuple[float, str]]:
            return lambda k: (float(values[k]), self.rows[k].row.text)

        if not self.tried and not self.pending:
            take([k for k in (self.first,) if k in rest], 1, "first")
            take(self._family_bests(rest), room, "family")
        take([k for k in self.proposed if k in rest], math.ceil(room / 2), "proposed")
        scale = count / self.mix.batch
        drawn = math.ceil(self.mix.uniform * scale)
        if self.mix.surveys:
            seen, missing = self.tried + len(self.pending), UNIFORM - len(self.uniform)
            owed = max(UNIFORM_SHARE * (seen + room) - len(self.uniform), missing - (self.mix.most - seen - room))
            drawn = max(math.ceil(owed), drawn if len(self.uniform) < UNIFORM else 0)
        take(self.random.sample(rest, len(rest)), drawn, "uniform")
        self.uniform.update(k for k, why in chosen.items() if why == "uniform")
        take(self._new_kinds(rest), math.ceil(self.mix.kind * scale), "kind")
        take(self._neighbours(rest, mean), math.ceil(self.mix.neighbour * scale), "neighbour")
        take(sorted(rest, key=by(low)), math.ceil(self.mix.uncertain * scale), "uncertain")
        take(sorted(rest, key=by(mean)), room, "top")
        self.pending.update(chosen)
        return list(chosen.items())

    def _family_bests(self, rest: Sequence[int]) -> list[int]:
        # a family that is expected to take many times as long is no alternative
        best = self._bests(rest, [s.family for s in self.rows])
        return [k for k in best if self.predicted[k] <= 20 * self.predicted[self.first]]

    def _new_kinds(self, rest: Sequence[int]) -> list[int]:
        """The predicted best of each kind of which nothing was tried, if a mistake of 4 could make it one."""
        tried = {self.kinds[k] for k in (*self.times, *self.failed, *self.pending)}
        best = self._bests([k for k in rest if self.kinds[k] not in tried], self.kinds)
        return [k for k in best if self.predicted[k] <= 4 * self.best_seconds]

    def _bests(self, rest: Sequence[int], group: Sequence[str]) -> list[int]:
        """The row of each group that is predicted to be fastest, fastest first."""
        best: dict[str, int] = {}
        for k in sorted(rest, key=lambda k: (float(self.predicted[k]), self.rows[k].row.text)):
            best.setdefault(group[k], k)
        return list(best.values())

    def _neighbours(self, rest: Sequence[int], mean: Array) -> list[int]:
        if self.best is None:
            return []
        fastest = sorted(self.times, key=lambda k: self.times[k])[:3]
        one = {k for b in fastest for k in rest if (self.codes[k] != self.codes[b]).sum() == 1}
        return sorted(one, key=lambda k: (float(mean[k]), self.rows[k].row.text))

    # ---- results ---------------------------------------------------------------------------------------------------

    def measured(self, k: int, seconds: float) -> None:
        self.pending.discard(k)
        self.failed.pop(k, None)
        self.times[k] = seconds

    def broke(self, k: int, kind: str) -> None:
        self.pending.discard(k)
        self.failed[k] = kind

    def give_back(self, k: int) -> None:
        """Not measured after all, and no fault of the row's."""
        self.pending.discard(k)


def _codes(rows: Sequence[Scheduled]) -> npt.NDArray[np.int64]:
    """One line of small numbers a row: its family, each part of each knob, and what its steps set apart."""
    tables: list[dict[str, int]] = []
    lines = []
    for s in rows:
        parts = _parts(s)
        while len(tables) < len(parts):
            tables.append({})
        lines.append([tables[c].setdefault(text, len(tables[c])) for c, text in enumerate(parts)])
    return np.array(lines, np.int64).reshape(len(rows), len(tables))


def _parts(s: Scheduled) -> tuple[str, ...]:
    r = s.row
    steps = ",".join(f"{k}@{n}={v.text}" for k, n, v in r.steps)
    tile = f"{r.tile.instruction}/{r.tile.fragment}"
    return s.family, r.work.text, tile, str(r.tile.k), r.reduce.text, r.stage.text, r.raster.text, steps
