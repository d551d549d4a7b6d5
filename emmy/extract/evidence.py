"""Which schedule row a body gets, and on what evidence: one ranking for measurements, predictions and the safe option.

    measured     a row of this regime, with enough samples, close together
    measured     a row of this regime with few or widely spread samples (marked to be measured again)
    aged         a row measured with another compiler version, the same two ways
    predicted    the prior, times its family's measured bias
    safe         the rule's first option, where there is no prediction

A better class beats a worse one whatever the times are; within a class the least time wins, and equal times go to the
smaller row text.  Rows that are known to fail are never chosen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from emmy.errors import EvidenceError, LoweringError
from emmy.extract.records import Failure, Measurement, PlanMeasurement, Regime, Sizes

Tier = Literal["measured", "aged", "predicted", "safe"]

FEW: Final = 5  # fewer samples may not decide over a well measured row
WIDE: Final = 0.3  # (p90 - p10) / median above this is widely spread
SHRINK: Final = 4.0  # samples of "no bias" that a family's bias starts with


@dataclass(frozen=True, slots=True)
class RowOption:
    """A legal row.  `predicted` in seconds, None where the prior has no answer; `safe`: the rule's first option."""

    row: str
    family: str
    predicted: float | None
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """A legal row in its place: its cost in seconds, what that rests on, the samples behind it (`solid`: enough)."""

    row: str
    family: str
    cost: float
    tier: Tier
    n: int = 0
    solid: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen row with its cost in seconds and what decided, the next best, and how many rows there were.

    `remeasure` lists rows whose measurements are too few or too spread to decide.  `skipped` rows are known to fail.
    """

    body: str
    row: str
    family: str
    cost: float
    tier: Tier
    runner_up: str
    runner_up_cost: float
    runner_up_tier: Tier | Literal[""]
    n_alternatives: int
    remeasure: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanOption:
    """A launch list: its key (`plan_key`) and the sum of its launches in seconds; `measured`: each of them was measured
    in this regime.
    """

    key: str
    total: float
    measured: bool = False


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """`timed`: the plan was timed as a whole, and that time (of `n` samples) replaces the sum of its launches."""

    key: str
    total: float
    timed: bool
    n: int = 0


def decide(
    body: str,
    rows: Sequence[RowOption],
    measured: Iterable[Measurement],
    regime: Regime,
    *,
    failures: Iterable[Failure] = (),
    sizes: Sizes = (),
    bias: Mapping[str, float] | None = None,
    arch: str = "",
    floor: float = 0.0,
) -> Decision:
    """The row for `body` at `sizes`.  LoweringError when every row is known to fail.

    Measurements of other bodies, sizes, cards or rows that are not legal are ignored.  `floor` is the cost in seconds
    of a row that nothing predicts (its roofline).
    """
    broken = {f.row for f in failures if f.body == body and f.sizes in ((), sizes) and f.arch in ("", arch)}
    live = [r for r in rows if r.row not in broken]
    if not live:
        reasons = sorted({f"{f.row}: {f.stage}: {f.reason}" for f in failures if f.body == body})
        raise LoweringError(f"every schedule row of {body} is known to fail: {'; '.join(reasons)}")
    ranked = ranking(body, live, measured, regime, sizes=sizes, bias=bias, floor=floor)
    best = ranked[0]
    second = ranked[1] if len(ranked) > 1 else None
    return Decision(
        body=body,
        row=best.row,
        family=best.family,
        cost=best.cost,
        tier=best.tier,
        runner_up=second.row if second else "",
        runner_up_cost=second.cost if second else math.inf,
        runner_up_tier=second.tier if second else "",
        n_alternatives=len(live),
        remeasure=tuple(sorted(r.row for r in ranked if not r.solid)),
        skipped=tuple(sorted(r.row for r in rows if r.row in broken)),
    )


def ranking(
    body: str,
    rows: Iterable[RowOption],
    measured: Iterable[Measurement],
    regime: Regime,
    *,
    sizes: Sizes = (),
    bias: Mapping[str, float] | None = None,
    floor: float = 0.0,
) -> list[Ranked]:
    """Every row in the order in which `decide` prefers them."""
    found = _by_row(body, measured, regime, sizes)
    ranked = sorted((*_rank(o, found.get(o.row), regime, bias or {}, floor), o.family) for o in rows)
    return [
        Ranked(row, family, cost, _TIERS[level], m.n if (m := found.get(row)) else 0, m is None or solid(m))
        for level, cost, row, family in ranked
    ]


def solid(m: Measurement | PlanMeasurement) -> bool:
    """Enough samples, close together: may decide."""
    spread = (m.p90 - m.p10) / m.median if m.median > 0 else math.inf
    return m.n >= FEW and spread <= WIDE


def standing(m: Measurement) -> tuple[bool, float, int, float]:
    """Of several measurements of one row in one regime the greatest counts: solid before not, the newest, the one with
    most samples."""
    return solid(m), m.when, m.n, -m.median


def require_measured(decisions: Iterable[tuple[str, Decision]], regime: Regime | None = None, hint: str = "") -> None:
    """EvidenceError that names every kernel whose row was not measured, with what it was predicted to take.

    `regime` is where it was to be measured, `hint` what to do about it.
    """
    guessed = {name: d for name, d in decisions if d.tier in ("predicted", "safe")}
    if not guessed:
        return
    where = f" on {regime.gpu} with {regime.compiler}" if regime else ""
    listed = ", ".join(f"{name} ({d.tier}, {d.cost * 1e6:.2f} us)" for name, d in sorted(guessed.items()))
    raise EvidenceError(
        f"no measurement{where} decides: {listed}",
        hint or "measure them with `emmy tune`, or leave out --strict-evidence",
    )


def family_bias(samples: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """How much longer launches of a family take than predicted: from (family, measured, predicted) in seconds.

    The geometric mean of measured / predicted, shrunk toward 1 as if SHRINK launches had met their prediction.
    """
    logs: dict[str, list[float]] = defaultdict(list)
    for family, seen, predicted in samples:
        if seen > 0 and predicted > 0:
            logs[family].append(math.log(seen / predicted))
    return {family: math.exp(math.fsum(sorted(xs)) / (len(xs) + SHRINK)) for family, xs in sorted(logs.items())}


def rank_plans(
    plans: Iterable[PlanOption], timed: Mapping[str, Iterable[PlanMeasurement]], regime: Regime, sizes: Sizes = ()
) -> list[PlanDecision]:
    """The plans, best first.

    A plan that was timed as a whole in this regime counts with that time, one whose launches were all measured with
    their sum; both go before plans that rest on predictions, as rows do within one body.  Ties go to the smaller key.
    """
    ranked = [(_plan(p, timed.get(p.key, ()), regime, sizes), p) for p in plans]
    ranked.sort(key=lambda dp: (not (dp[0].timed or dp[1].measured), dp[0].total, dp[0].key))
    return [d for d, _ in ranked]


def predicted_share(decisions: Iterable[Decision]) -> float:
    """Share of the summed time that rests on predictions, 0 to 1."""
    listed = list(decisions)
    total = sum(d.cost for d in listed)
    return sum(d.cost for d in listed if d.tier in ("predicted", "safe")) / total if total > 0 else 0.0


def _plan(plan: PlanOption, found: Iterable[PlanMeasurement], regime: Regime, sizes: Sizes) -> PlanDecision:
    usable = [m for m in found if m.regime == regime and m.sizes == sizes and solid(m)]
    if not usable:
        return PlanDecision(plan.key, plan.total, False)
    newest = max(usable, key=lambda m: (m.when, m.n, -m.median))
    return PlanDecision(plan.key, newest.median, True, newest.n)


_TIERS: Final[tuple[Tier, ...]] = ("measured", "measured", "aged", "aged", "predicted", "safe", "safe")


def _by_row(body: str, measured: Iterable[Measurement], regime: Regime, sizes: Sizes) -> dict[str, Measurement]:
    """The one measurement of each row that counts: of this compiler before others, solid before not, newest."""
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for m in measured:
        if m.body == body and m.sizes == sizes and regime.same_card(m.regime) and m.median > 0:
            groups[m.row].append(m)

    def weight(m: Measurement) -> tuple[bool, bool, float, int, float]:
        return m.regime == regime, *standing(m)

    return {row: max(group, key=weight) for row, group in groups.items()}


def _rank(
    option: RowOption, found: Measurement | None, regime: Regime, bias: Mapping[str, float], floor: float
) -> tuple[int, float, str]:
    if found is not None:
        level = (0 if found.regime == regime else 2) + (0 if solid(found) else 1)
        return level, found.median, option.row
    if option.predicted is not None and math.isfinite(option.predicted):
        return 4, option.predicted * bias.get(option.family, 1.0), option.row
    return (5 if option.safe else 6), floor, option.row
