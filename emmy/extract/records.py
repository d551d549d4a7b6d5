"""What is known from the past: measurements, failures, and the regime in which a measurement holds.

All are plain data, compared by content.  Times are seconds, clocks Hz, `when` seconds since 1970 (UTC).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

L2State = Literal["cold", "warm"]
# the card and the source of times that were made up for tests: they are no evidence for anything real
STAND_IN: Final = "stand-in"
Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, order=True)
class Regime:
    """Where a measurement is evidence.  `compiler`: version and flags; `numerics`: the options that change results."""

    gpu: str
    capability: int
    compiler: str
    numerics: str = ""
    l2: L2State = "cold"

    def same_card(self, other: Regime) -> bool:
        """Equal but for the compiler: a measurement of `other` is aged here, not foreign."""
        mine = (self.gpu, self.capability, self.numerics, self.l2)
        return mine == (other.gpu, other.capability, other.numerics, other.l2)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One schedule row of one body, timed.  `sizes` binds the body's symbolic sizes, sorted by name.

    `drawn`: how the row came to be measured: `uniform` where it was drawn at random from the legal rows, `pick` where
    it was the untuned choice, or a tuner's own word.
    """

    body: str
    sizes: Sizes
    family: str
    row: str
    regime: Regime
    n: int
    median: float
    p10: float
    p90: float
    clock_before: float = 0.0
    clock_after: float = 0.0
    source: str = "own"
    when: float = 0.0
    drawn: str = ""

    @property
    def uniform(self) -> bool:
        """Drawn uniformly from the legal rows; `emmy tune` says so in the source."""
        return "uniform" in (self.drawn, self.source.removeprefix("tune-"))

    @property
    def spread(self) -> float:
        return (self.p90 - self.p10) / self.median if self.median > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class PlanMeasurement:
    """A whole launch list, timed together.  `plan` is `plan_key` of its launches."""

    plan: str
    sizes: Sizes
    regime: Regime
    n: int
    median: float
    p10: float
    p90: float
    source: str = "own"
    when: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that did not become a kernel, or that ran wrong.  `stage`: compile, launch, check, timeout …;
    `arch` empty: whatever the card.
    """

    body: str
    row: str
    stage: str
    reason: str
    arch: str = ""
    sizes: Sizes = ()
    when: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A body that was compiled: its Loop IR text, its name, and features as JSON-able numbers and texts.

    The feature `programs` lists the programs in which it was seen, by name, separated by `;`.
    """

    body: str
    text: str
    name: str
    features: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(p for p in str(self.features.get("programs", "")).split(";") if p)


@dataclass(frozen=True, slots=True)
class Routing:
    """A structural choice: the launches (bodies) that one tensor program was cut into."""

    program: str
    pieces: tuple[str, ...]
    total: float
    method: str
    when: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """Who measured, when, with what.  `run` is unique."""

    run: str
    command: str
    host: str
    version: str
    began: float
    ended: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """What one brief look at the store (and at golden files) found about some bodies."""

    measurements: Mapping[str, Sequence[Measurement]] = field(default_factory=dict)
    failures: Mapping[str, Sequence[Failure]] = field(default_factory=dict)
    plans: Mapping[str, Sequence[PlanMeasurement]] = field(default_factory=dict)
    biases: Sequence[Measurement] = ()
    # (family, row) of schedules that were good for a body like this one once, and wait to be measured, by body
    proposals: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def measured(self, body: str) -> Sequence[Measurement]:
        return self.measurements.get(body, ())

    def failed(self, body: str) -> Sequence[Failure]:
        return self.failures.get(body, ())


def plan_key(launches: Sequence[tuple[str, str, str]]) -> str:
    """Identity of a launch list: (body, family, row) of each launch in order; families may spell rows alike."""
    import hashlib

    text = "\n".join(f"{body} {family} {row}" for body, family, row in launches)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
