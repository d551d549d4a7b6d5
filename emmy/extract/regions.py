"""Solves a program in pieces: cuts it where few tensors are read across, and solves equal pieces once.

A cut is a place in the order of tensors that no candidate straddles.  Its frontier is the set of tensors made below
that some candidate above may read; with one such tensor it is an articulation of the program.  Which subset of the
frontier the upper part demands is the only thing that the lower part must know, so the optimum of the whole is a
dynamic program over demanded subsets.  A piece is solved once for each (candidates up to renaming, wanted, available).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from emmy.extract import ilp
from emmy.extract.greedy import chain_bound, greedy
from emmy.extract.prune import prune, unreachable

if TYPE_CHECKING:
    from emmy.extract.choice import Candidate

FRONTIER = 7  # tensors read across a cut: 2^7 demanded subsets at most
PIECE = 60  # candidates: below this a region is not cut at a frontier of several tensors

# Exchanges that a greedy plan may try before the solver takes over; none when there is no time.
EXCHANGES = 400

Demand = frozenset[int]
Memo = dict[tuple[object, ...], "Answer"]  # region up to renaming -> its plan


@dataclass(frozen=True, slots=True)
class Region:
    """Tensors between two cuts: `low` <= position < `high`; `below` is the frontier of the lower cut."""

    candidates: tuple[Candidate, ...]
    tensors: tuple[int, ...]
    below: Demand


@dataclass(frozen=True, slots=True)
class Answer:
    """A region's plan as positions in its canonical list of candidates, so that it fits every equal region."""

    picks: tuple[int, ...]
    cost: float
    bound: float
    proved: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """The parts of a plan, highest region first."""

    part: tuple[Candidate, ...]
    below: Chain | None


@dataclass(frozen=True, slots=True)
class Option:
    reads: Demand
    plan: tuple[Candidate, ...]
    cost: float
    bound: float
    proved: bool


class Solver:
    """Solves pruned problems.  Equal regions are solved once; what was proved stays in `memo` for the next solver."""

    def __init__(self, order: Mapping[int, int], deadline: float, memo: Memo) -> None:
        self.order, self.deadline, self.proved = order, deadline, memo
        self.answers: Memo = {}
        self.regions = 0

    @property
    def distinct(self) -> int:
        return len(self.answers)

    def solve(
        self, candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int]
    ) -> tuple[list[Candidate], float, bool]:
        """(plan, lower bound, proved).  `outputs` must be reachable."""
        regions = split(candidates, inputs, outputs, self.order)
        self.regions = len(regions)
        options: list[dict[Demand, list[Option]]] = []
        demands: set[Demand] = {frozenset()}
        for region in reversed(regions):
            table = {d: self._options(region, d, inputs, outputs) for d in sorted(demands, key=sorted)}
            options.append(table)
            demands = {o.reads for group in table.values() for o in group}
        return _combine(options[::-1])

    def _options(self, region: Region, demand: Demand, inputs: frozenset[int], outputs: frozenset[int]) -> list[Option]:
        """The best plan of a region for every set of frontier tensors that it may read, dominated sets left out."""
        inside = frozenset(region.tensors)
        wanted = (demand | outputs) & inside
        through = demand - inside
        found: dict[Demand, Option] = {}
        skipped: list[tuple[Demand, Demand]] = []
        for size in range(len(region.below), -1, -1):
            for subset in combinations(sorted(region.below, key=lambda t: (self.order.get(t, 0), t)), size):
                available = frozenset(subset)
                if not through <= available:
                    continue
                # a plan found with more available that reads no more than this is this set's plan too
                if any(reads <= available <= offered for reads, offered in skipped):
                    continue
                option = self._region(region, wanted, available, through)
                if option is not None:
                    skipped.append((option.reads, available))
                    held = found.get(option.reads)
                    if held is None or option.cost < held.cost:
                        found[option.reads] = option
        return list(found.values())

    def _region(self, region: Region, wanted: Demand, available: Demand, through: Demand) -> Option | None:
        if unreachable(region.candidates, available, wanted):
            return None
        kept = prune(region.candidates, available, wanted)
        names = {t: k for k, t in enumerate(region.tensors)}
        names.update({t: -1 - k for k, t in enumerate(sorted(available, key=lambda t: (self.order.get(t, 0), t)))})
        rows = sorted(
            ((tuple(sorted(names[t] for t in c.outs)), tuple(sorted(names[t] for t in c.ops)), c.cost, c.key, k), c)
            for k, c in enumerate(kept)
        )
        signature = (
            tuple(row[:3] for row, _ in rows), tuple(sorted(names[t] for t in wanted)), len(available)
        )  # fmt: skip
        ranked = [c for _, c in rows]
        answer = self.answers.get(signature) or self.proved.get(signature) or self._answer(ranked, available, wanted)
        self.answers[signature] = answer
        if answer.proved:
            self.proved[signature] = answer
        plan = tuple(ranked[i] for i in answer.picks)
        reads = through | (frozenset[int]().union(*(c.ops for c in plan)) & available)
        return Option(reads, plan, answer.cost, answer.bound, answer.proved)

    def _answer(self, candidates: list[Candidate], available: Demand, wanted: Demand) -> Answer:
        hurried = time.monotonic() >= self.deadline
        start = greedy(candidates, available, wanted, 0 if hurried else EXCHANGES)
        plan, bound, proved = start, 0.0, False
        if not hurried:
            plan, bound, proved = ilp.solve(candidates, available, wanted, start, self.deadline)
        cost = sum(c.cost for c in plan)
        chosen = {c.id for c in plan}
        picks = tuple(i for i, c in enumerate(candidates) if c.id in chosen)
        bound = cost if proved else min(cost, max(bound, chain_bound(candidates, available, wanted)))
        return Answer(picks, cost, bound, proved)


def split(
    candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int], order: Mapping[int, int]
) -> list[Region]:
    """Regions from the lowest tensors to the highest; one region where there is no good cut."""
    ranked = sorted({t for c in candidates for t in c.outs} - inputs, key=lambda t: (order.get(t, 0), t))
    position = {t: k for k, t in enumerate(ranked)}
    spans = [_span(c, position) for c in candidates]
    last_reader: dict[int, int] = {}
    straddled = [0] * (len(ranked) + 2)
    for c, (low, high) in zip(candidates, spans, strict=True):
        straddled[low + 1] += 1
        straddled[high + 1] -= 1
        for t in c.ops:
            last_reader[t] = max(last_reader.get(t, 0), low)
    frontier: list[set[int]] = [set() for _ in range(len(ranked) + 1)]
    for t, last in last_reader.items():
        for place in range(position[t] + 1, last + 1):
            if len(frontier[place]) <= FRONTIER:
                frontier[place].add(t)
    begins = [0] * (len(ranked) + 1)
    for low, _ in spans:
        begins[low] += 1
    cuts = _cuts(straddled, frontier, begins)
    regions = []
    for low, high in zip([0, *cuts], [*cuts, len(ranked)], strict=True):
        inside = tuple(c for c, (lo, _) in zip(candidates, spans, strict=True) if low <= lo < high)
        regions.append(Region(inside, tuple(ranked[low:high]), frozenset(frontier[low]) if low else frozenset()))
    return regions


def _span(c: Candidate, position: Mapping[int, int]) -> tuple[int, int]:
    """The lowest tensor that a candidate makes and the highest that it makes or reads."""
    made = [position[t] for t in c.outs if t in position]
    return min(made), max(made + [position[t] for t in c.ops])


def _cuts(straddled: Sequence[int], frontier: Sequence[set[int]], begins: Sequence[int]) -> list[int]:
    """Every articulation, and inside what is still large the narrowest other places, PIECE candidates apart."""
    places, depth = [], 0
    for place in range(1, len(frontier) - 1):
        depth += straddled[place]
        if depth == 0 and len(frontier[place]) <= FRONTIER:
            places.append(place)
    before = [0]
    for n in begins:
        before.append(before[-1] + n)
    cuts: list[int] = []
    for width in range(FRONTIER + 1):
        for place in (p for p in places if len(frontier[p]) == width):
            below = max((c for c in cuts if c < place), default=0)
            above = min((c for c in cuts if c > place), default=len(frontier) - 1)
            small = min(before[place] - before[below], before[above] - before[place]) < PIECE
            if place not in cuts and not (width > 1 and small):
                cuts.append(place)
    return sorted(cuts)


def _combine(options: Sequence[Mapping[Demand, Sequence[Option]]]) -> tuple[list[Candidate], float, bool]:
    """The cheapest chain of options from the lowest region to the highest."""
    best: dict[Demand, tuple[float, float, bool, Chain | None]] = {frozenset(): (0.0, 0.0, True, None)}
    for table in options:
        following: dict[Demand, tuple[float, float, bool, Chain | None]] = {}
        for demand, group in table.items():
            reached = [(o, best[o.reads]) for o in group if o.reads in best]
            if not reached:
                continue
            bound = min(o.bound + below[1] for o, below in reached)
            proved = all(o.proved and below[2] for o, below in reached)
            option, below = min(reached, key=lambda p: (p[0].cost + p[1][0], [c.key for c in p[0].plan]))
            following[demand] = (option.cost + below[0], bound, proved, Chain(option.plan, below[3]))
        best = following
    _, bound, proved, link = best[frozenset()]
    plan: list[Candidate] = []
    while link is not None:
        plan.extend(link.part)
        link = link.below
    return plan, bound, proved


__all__ = ["Region", "Solver", "split"]
