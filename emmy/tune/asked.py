"""What a search is asked, and what it says on the way and at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from emmy.extract.records import Regime
from emmy.saturation import Saturation
from emmy.tune.space import MIXES, Effort, Mix
from emmy.tune.subjects import Subject


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
