"""Why each launch of a plan is as it is: its schedules in their places, the launches that could stand in its stead, and
what was refused.

A launch that could stand in its stead is priced with all that it brings along: the cheapest plan is sought in which the
chosen launch is left out (and, to see it cut further, every launch that computes as much), or in which a larger launch
is taken, and the two plans are compared launch by launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from emmy.egraph.fusion import Launch
from emmy.errors import UsageError
from emmy.extract.choice import Choice
from emmy.extract.evidence import Ranked
from emmy.ir.loop import Body
from emmy.planning import Chosen
from emmy.saturation import Saturation, opaque_candidates

Kind = Literal["fused", "cut", "other"]
# How many schedule rows and larger launches are told of each launch.
ROWS: Final = 5
LARGER: Final = 2
# How many plans are sought for one that cuts a launch.
TRIES: Final = 6
# How long each of them is sought.
SECONDS: Final = 2.0
# Decided by: what the plan says of a launch that runs once.
AT_BUILD: Final = "at build"


@dataclass(frozen=True, slots=True)
class RowChoice:
    """A legal schedule: its place among all, microseconds, what they rest on, samples; `refused`: why it cannot run."""

    place: int
    family: str
    row: str
    us: float
    tier: str
    n: int
    solid: bool
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A launch of a plan that was not chosen; `tier` is `guess` where none of its rows can run as far as is known."""

    name: str
    makes: tuple[str, ...]
    us: float
    tier: str
    family: str
    row: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """`added` launches instead of `removed` ones: `us` more in all.

    `kind`: the plan with it has fewer launches at each call (`fused`), more (`cut`), or as many (`other`).
    """

    kind: Kind
    us: float
    added: tuple[Part, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """`what`: `row`, `family`, `fuse` or `roofline`; `of` names it; `count` refusals are alike."""

    what: str
    of: str
    why: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Explained:
    """One kernel of the plan, in `launches` launches.  `us`, `tier`, `row`: what was chosen and on what it rests."""

    name: str
    launches: int
    rule: str
    body: str
    family: str
    row: str
    us: float
    tier: str
    decided: str
    why: str
    legal: int
    measured: int
    rows: tuple[RowChoice, ...]
    instead: tuple[Alternative, ...]
    refused: tuple[Refusal, ...]


def explain(s: Saturation, kernel: str = "") -> list[Explained]:
    """Every kernel of the plan (or the one of that name) in order of first launch.  UsageError for an unknown name."""
    first = {c.name: c for c in reversed(s.launches)}
    names = list(dict.fromkeys(c.name for c in s.launches))
    if kernel and kernel not in first:
        raise UsageError(f"no kernel is called {kernel!r}", f"there are {', '.join(names) or 'none'}")
    counts = Counter(c.name for c in s.launches)
    asked = _Asked(s)
    return [asked.explained(first[n], counts[n]) for n in names if kernel in ("", n)]


class _Asked:
    """Answers questions about one saturation, on a copy of its search."""

    def __init__(self, s: Saturation) -> None:
        self.s, self.selection = s, s.selection.copy()
        self.chosen = {c.launch.id: c for c in s.launches}
        self.by_id = {l.id: l for l in (*self.selection.candidates(), *(c.launch for c in s.launches))}
        self.opaque = opaque_candidates(s)
        # (rule, consumer, slot, producer, why)
        self.refusals = sorted(s.model.egg.freeze().rows("refused"))

    def explained(self, c: Chosen, launches: int) -> Explained:
        body, decision = c.priced.body, c.priced.decision
        ranking = self.selection.ranking(body)
        failing = _failing(self.s, body)
        rows = [_row(k, r, failing.get(r.row, "")) for k, r in enumerate(ranking, 1)]
        chosen = next(r for r in rows if (r.row, r.family) == (decision.row, decision.family))
        shown = rows[:ROWS] if chosen.place <= ROWS else [*rows[: ROWS - 1], chosen]
        return Explained(
            c.name, launches, c.launch.rule, body.hash, decision.family, decision.row, decision.cost * 1e6,
            AT_BUILD if c.at_build else decision.tier, self.s.selection.decided(decision),
            _why(self.s, c, chosen, rows), len(rows), sum(r.n > 0 for r in rows), tuple(shown),
            () if c.at_build else self.instead(c.launch),
            (*_row_refusals(rows), *self.declined(body.hash), *self.fusions(c.launch), *self.ruled_out(c.launch)),
        )  # fmt: skip

    # ---- what could stand in its stead
    def instead(self, launch: Launch) -> tuple[Alternative, ...]:
        """The next best plan without the launch, the best that cuts it, and plans with larger launches."""
        found: dict[tuple[tuple[Part, ...], tuple[str, ...]], Alternative] = {}
        for plan in (*self._without(launch), *(self._with(l) for l in self._larger(launch))):
            a = None if plan is None else self._alternative(plan)
            if a is not None:
                found.setdefault((a.added, a.removed), a)
        return tuple(sorted(found.values(), key=lambda a: (a.us, a.kind, a.removed, [p.name for p in a.added])))

    def _without(self, launch: Launch) -> list[Choice]:
        """The cheapest plan without the launch, then one of more launches: what takes its place is left out as well."""
        dropped = {launch.id}
        plans: list[Choice] = []
        for _ in range(TRIES):
            plan = self._plan(launch, dropped)
            if plan is None:
                break
            plans.append(plan)
            if self._count(plan) > self._count(self.s.choice):
                break
            makers = [
                self.by_id[c.id] for c in plan.candidates if c.id in self.by_id and set(c.outs) & set(launch.results)
            ]
            dropped |= {l.id for l in self.by_id.values() for m in makers if m.covers <= l.covers}
        return plans[:1] + [p for p in plans[1:] if self._count(p) > self._count(self.s.choice)]

    def _count(self, plan: Choice) -> int:
        """Launches at each call."""
        folded = self.s.model.anchors.folded
        return sum(not all(t in folded for t in c.outs) for c in plan.candidates)

    def _larger(self, launch: Launch) -> list[Launch]:
        """Launches that compute what this one does and more, those first that promise most."""
        kept = [l for l in self.by_id.values() if launch.covers < l.covers and l.id not in self.chosen]

        def promise(l: Launch) -> tuple[float, str, tuple[int, ...]]:
            inside = [c for c in self.chosen.values() if c.launch.covers <= l.covers and not c.at_build]
            estimate = self.selection.estimate(l)
            cost = estimate[0] if estimate else float("inf")
            return cost - sum(c.priced.decision.cost for c in inside), l.body.hash, l.operands

        return sorted(kept, key=promise)[:LARGER]

    def _with(self, launch: Launch) -> Choice | None:
        """The cheapest plan that takes this launch for what it makes."""
        rivals = {l.id for l in self.by_id.values() if l.id != launch.id and set(l.results) & set(launch.results)}
        return self._plan(launch, rivals)

    def _plan(self, launch: Launch, dropped: set[int]) -> Choice | None:
        """The cheapest plan without some launches.

        What does not touch the values of `launch` stays as it is, if that can be, so that only what must change does.
        """
        left = [l for l in self.by_id.values() if l.id not in dropped]
        near = [l for l in left if l.id in self.chosen or l.covers & launch.covers]
        found = self.selection.plan_of(self.opaque, near, SECONDS)
        return found or self.selection.plan_of(self.opaque, left, SECONDS)

    def _alternative(self, plan: Choice) -> Alternative | None:
        """The plan's difference from the chosen one, its launches scheduled; None where there is none."""
        order = [c.id for c in plan.candidates if c.id in self.by_id and c.id not in self.chosen]
        used = {c.id for c in plan.candidates}
        gone = [c for i, c in self.chosen.items() if i not in used]
        if not gone or not order:
            return None
        self.selection.schedule(e[1] for i in order if (e := self.selection.estimate(self.by_id[i])) is not None)
        parts = tuple(self._part(self.by_id[i]) for i in order)
        us = sum(p.us for p in parts) - sum(c.priced.decision.cost * 1e6 for c in gone if not c.at_build)
        more = self._count(plan) - self._count(self.s.choice)
        kind: Kind = "other" if not more else "cut" if more > 0 else "fused"
        return Alternative(kind, us, parts, tuple(c.name for c in gone))

    def _part(self, l: Launch) -> Part:
        name = self.s.names.kernel(l.covers - self.s.model.anchors.fixed, l.results, self.s.model.anchors.padded)
        makes = tuple(self.s.names.tensor(t) for t in l.results)
        at_build = all(t in self.s.model.anchors.folded for t in l.results)
        priced = self.selection.cheapest(l)
        if priced is None:
            estimate = self.selection.estimate(l)
            return Part(name, makes, estimate[0] * 1e6 if estimate else float("inf"), "guess", "", "")
        d = priced.decision
        return Part(name, makes, 0.0 if at_build else d.cost * 1e6, AT_BUILD if at_build else d.tier, d.family, d.row)

    # ---- what was refused
    def declined(self, body: str) -> list[Refusal]:
        return [Refusal("family", f, why) for f, why in sorted(self.selection.declined.get(body, {}).items())]

    def fusions(self, launch: Launch) -> list[Refusal]:
        """Rules that declined to compute an operand in this launch, or its results in a launch that reads them.

        A rule declines for the launches from which these were composed; each reason is told once for each tensor.
        """
        launches, tensor = self.s.model.launches, self.s.names.tensor
        readers = [c.launch for c in self.chosen.values() if set(c.launch.operands) & set(launch.results)]
        found = Counter[tuple[str, str]]()
        for _, consumer, _, producer, why in self.refusals:
            l, value = launches[consumer], launches[producer].results[0]
            if value in launch.operands and l.covers <= launch.covers:
                found[(f"the computation of {tensor(value)} into it", why)] += 1
            if value in launch.results and any(l.covers <= r.covers for r in readers):
                found[(f"it into the launch of {tensor(l.results[0])}", why)] += 1
        return [Refusal("fuse", of, why, n) for (of, why), n in sorted(found.items())]

    def ruled_out(self, launch: Launch) -> list[Refusal]:
        """Larger launches that their roofline rules out: they cannot beat the launches that they are made of."""
        closed = [l for l in self.s.model.closed if launch.covers < l.covers and l.id not in self.by_id]
        listed = sorted(closed, key=lambda l: (min(map(self.selection.bound, self.selection.forms(l))), l.id))
        bounds = [min(map(self.selection.bound, self.selection.forms(l))) * 1e6 for l in listed[:1]]
        return [
            Refusal(
                "roofline", ", ".join(self.s.names.tensor(t) for t in l.results),
                f"a larger launch would take {us:.2f} us at least, its parts less", len(listed),
            )
            for l, us in zip(listed[:1], bounds, strict=True)
        ]  # fmt: skip


def _failing(s: Saturation, body: Body) -> dict[str, str]:
    """Rows of a body that cannot run: refused in this compile, or known to fail on this architecture."""
    sizes, arch = tuple((n, s.selection.sizes[n]) for n in body.sizes), s.options.target.arch
    known = [f for f in s.selection.evidence.failed(body.hash) if f.sizes in ((), sizes) and f.arch in ("", arch)]
    failed = {f.row: f"{f.stage}: {f.reason}" for f in known}
    refused = {row: why for (b, _, row), why in s.selection.refused.items() if b == body.hash}
    return {row: why.splitlines()[0] for row, why in {**failed, **refused}.items() if why}


def _row(place: int, r: Ranked, refused: str) -> RowChoice:
    return RowChoice(place, r.family, r.row, r.cost * 1e6, r.tier, r.n, r.solid, refused)


def _row_refusals(rows: Iterable[RowChoice]) -> list[Refusal]:
    return [Refusal("row", r.row, r.refused) for r in rows if r.refused]


def _why(s: Saturation, c: Chosen, chosen: RowChoice, rows: Sequence[RowChoice]) -> str:
    """In words: what decided, and by how much."""
    if any(p.matches(c.priced.scheduled.row) for p in s.options.pins):
        return "pinned"
    if s.selection.only:
        return "whole plans of this program were timed, and the one with it was the fastest"
    rest = [r for r in rows if r is not chosen and not r.refused]
    if not rest:
        return "the only row that can run"
    second = rest[0]
    lost = sum(bool(r.refused) for r in rows[: chosen.place - 1])
    after = f"; {lost} better ones cannot run" if lost else ""
    if second.tier != chosen.tier:
        return f"{chosen.tier} goes before {second.tier}{after}"
    if second.solid != chosen.solid:
        return f"{chosen.tier} well, where the next has few or widely spread samples{after}"
    if second.us == chosen.us:
        return f"equal to the next; the smaller spelling decides{after}"
    return f"least {chosen.tier} time, by {second.us - chosen.us:.2f} us ({second.us / chosen.us - 1:.1%}){after}"
