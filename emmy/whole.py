"""Plans of a program that were timed as a whole: which of them is asked for in place of the plan that sums choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emmy.extract.evidence import PlanOption, rank_plans
from emmy.extract.records import Regime, Sizes, plan_key
from emmy.extract.store import Store
from emmy.ir.graph import Graph
from emmy.planning import Chosen, ChosenOpaque

# `body family row` of every launch that is a kernel of ours and runs at each call, in order.
Pieces = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """What timing whole plans decided: the chosen plan took `seconds` (median of `n`), the best of `plans` timed ones.

    `instead`: the sum in seconds of the launches of the plan that would have been chosen by sums, and `predicted`, the
    share of it that rests on predictions; both 0 where that is the same plan.
    """

    seconds: float
    n: int
    plans: int
    instead: float = 0.0
    predicted: float = 0.0

    @property
    def text(self) -> str:
        what = f"{self.seconds * 1e6:.2f} us as a whole (n={self.n}), the best of {self.plans} timed"
        if not self.instead:
            return what
        return f"{what}; by sums of launches another: {self.instead * 1e6:.2f} us, {self.predicted:.0%} predicted"


def pieces_of(chosen: Iterable[Chosen | ChosenOpaque]) -> Pieces:
    """The launches of a plan as texts, by which it is found again."""
    ours = [c.priced for c in chosen if isinstance(c, Chosen) and not c.at_build]
    return tuple(f"{p.body.hash} {p.scheduled.family} {p.scheduled.row.text}" for p in ours)


def split_piece(piece: str) -> tuple[str, str, str]:
    """(body, family, row) of one launch."""
    body, family, row = piece.split(" ", 2)
    return body, family, row


def key_of_pieces(pieces: Sequence[str]) -> str:
    """Identity of a launch list in the store: `plan_key` of its bodies, families and rows."""
    return plan_key([split_piece(p) for p in pieces])


def sizes_of(graph: Graph) -> Sizes:
    """The example sizes that a plan of the graph is timed at, by name."""
    return tuple(sorted((v.name, v.example) for v in graph.sizes))


def better_plans(
    store: Store, program: str, mine: Sequence[Chosen | ChosenOpaque], regime: Regime, sizes: Sizes
) -> list[tuple[Pieces, Timed]]:
    """Plans that go before `mine`, best first, each with what timing it says; `mine` ends the list where it was timed.

    StoreError where the store cannot be read.
    """
    known = {key_of_pieces(r.pieces): r.pieces for r in store.routings(program)}
    if not known:
        return []
    pieces = pieces_of(mine)
    key = key_of_pieces(pieces)
    decisions = [c.priced.decision for c in mine if isinstance(c, Chosen) and not c.at_build]
    total = sum(d.cost for d in decisions)
    guessed = sum(d.cost for d in decisions if d.tier in ("predicted", "safe"))
    option = PlanOption(key, total, all(d.tier == "measured" for d in decisions))
    # the sum of another plan is not asked for: only its time counts
    others = [PlanOption(k, float("inf")) for k in known if k != key]
    ranked = rank_plans([option, *others], store.snapshot([], regime, [key, *known]).plans, regime, sizes)
    timed = sum(d.timed for d in ranked)
    found: list[tuple[Pieces, Timed]] = []
    for d in ranked:
        if d.key == key:
            return [*found, (pieces, Timed(d.total, d.n, timed))] if d.timed else found
        found.append((known[d.key], Timed(d.total, d.n, timed, total, guessed / total if total else 0.0)))
    return found
