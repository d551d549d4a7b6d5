"""The learned prior: what measurements of other bodies say about rows of this one.

Regression trees correct the analytic prior in logarithms.  For a row x with the analytic prediction a(x) and the
roofline f of its body, the members m of an ensemble (trained on different bodies) give corrections c_m(x), and

    spread(x) = standard deviation of c_m(x)        trust(x) = 1 / (1 + (spread(x) / DOUBT)^2)
    log(seconds(x) / f) = log(a(x) / f) + trust(x) * mean of c_m(x) + TIE * log(a(x) / f)

so that where the members disagree, because no body like this one was measured, the analytic prior answers.  Nothing is
cut off, so two rows tie only where the analytic prior says they are one; the last term keeps rows of one leaf apart
whatever the trees were trained to predict.

Trees cannot tell of a way of doing things that no training row took: for a row of a kind (`kinds`) that was not
measured the correction is its family's `caution`, what nine of ten measured rows stay below.  Such a row has to promise
more than one of a kind that is known, and tuning is what finds out.

A model whose report says that it ranks worse than the analytic prior, or that does not reproduce the answers it was
written with, is quarantined: the analytic prior answers, with a message.  Its file: `emmy.extract.prior_file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from emmy.extract.features import Featured, features
from emmy.extract.prior import roofline
from emmy.extract.trees import Forest
from emmy.extract.work import Work
from emmy.ir.config import KernelConfig
from emmy.ir.target import Target

Array = npt.NDArray[np.float64]

POOLED: Final = "all"  # the model of families with few rows
DOUBT: Final = 0.25
TIE: Final = 1e-3
MOST: Final = 4.0  # no correction is larger than a factor of e^4
CAUTION: Final = 0.5  # of a family of which nothing was measured, as a logarithm
# A model may rank a little worse than the analytic prior, which is noise; more than this is quarantined.
WORSE_RANK: Final = 0.05
WORSE_REGRET: Final = 1.02


@dataclass(frozen=True)
class HeldOut:
    """A body that a model never saw: rows measured, rank correlation and regret of the learned and analytic prior."""

    body: str
    family: str
    rows: int
    rank: float
    regret: float
    analytic_rank: float
    analytic_regret: float


@dataclass(frozen=True)
class LearnedPrior:
    """Models by family (or POOLED) for one card.  `report`: how it ranked bodies that were held out in turn.

    `kinds` of rows that were measured; `caution` by family, in logarithms of seconds.  `sample` [rows, features] and
    `answers` [rows, members]: what the pooled model said when it was written.
    """

    gpu: str
    capability: int
    forests: Mapping[str, Forest]
    kinds: frozenset[str] = frozenset()
    caution: Mapping[str, float] = field(default_factory=dict)
    report: tuple[HeldOut, ...] = ()
    sample: Array | None = None
    answers: Array | None = None

    def seconds(self, work: Work, configs: Sequence[KernelConfig], target: Target) -> Array:
        """Seconds of each config, in one pass."""
        floor = roofline(work, target)
        found = features(work, configs, target, floor)
        return self.corrected(found)

    def corrected(self, rows: Featured) -> Array:
        """Seconds of rows whose features are known."""
        base = np.log(rows.seconds / rows.floor)
        seconds: Array = rows.floor * np.exp(base * (1.0 + TIE) + self.correction(rows.matrix, rows.family, rows.kind))
        return seconds

    def correction(self, matrix: Array, family: npt.NDArray[np.str_], kind: npt.NDArray[np.str_]) -> Array:
        """What is added to the logarithm of the analytic prediction, disagreement taken off."""
        added = np.zeros(len(matrix))
        if not self.forests:
            return added
        for name in np.unique(family):
            forest = self.forests.get(str(name)) or self.forests.get(POOLED)
            if forest is None:
                continue
            mine = family == name
            values = forest.values(matrix[mine])
            spread = values.std(axis=1)
            added[mine] = np.clip(values.mean(axis=1), -MOST, MOST) / (1.0 + (spread / DOUBT) ** 2)
        new = np.fromiter((k not in self.kinds for k in kind.tolist()), bool, len(kind))
        added[new] = [self.caution.get(str(f), CAUTION) for f in family[new]]
        return added

    def doubt(self) -> str:
        """Why this model may not decide; empty where it may."""
        forest = self.forests.get(POOLED)
        if forest is not None and self.sample is not None and self.answers is not None:
            if not np.allclose(forest.values(self.sample), self.answers, atol=1e-6):
                return "it does not give the answers that it was written with"
        if not self.report:
            return ""
        rank, other = (float(np.median(x)) for x in zip(*((r.rank, r.analytic_rank) for r in self.report), strict=True))
        if rank < other - WORSE_RANK:
            return f"on held-out bodies its rank correlation is {rank:.2f}, the analytic prior's {other:.2f}"
        mine, theirs = (_geometric([getattr(r, n) for r in self.report]) for n in ("regret", "analytic_regret"))
        if mine > WORSE_REGRET * theirs:
            return f"on held-out bodies its regret is {mine:.3f}, the analytic prior's {theirs:.3f}"
        return ""


def _geometric(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
