"""A good plan quickly: each tensor's cheapest set of launches, then exchanges.

A tensor's set is the cheapest union of one candidate with the sets of its operands, so a launch shared by several
operands is counted once.  Sets are built from finished sets only, so a plan is acyclic however the candidates are
ordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from emmy.extract.prune import closure

if TYPE_CHECKING:
    from emmy.extract.choice import Candidate

Plan = frozenset[int]  # positions in the list of candidates


def greedy(
    candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int], exchanges: int = 4000
) -> list[Candidate]:
    """A feasible plan without superfluous launches; `outputs` must be reachable.  At most `exchanges` are tried."""
    sets = _tensor_sets(candidates, inputs)
    union: Plan = frozenset().union(*(sets[t][1] for t in outputs - inputs))
    plan = _without_superfluous(candidates, union, inputs, outputs)
    plan = _exchange(candidates, plan, inputs, outputs, exchanges)
    return [candidates[i] for i in sorted(plan)]


def _tensor_sets(candidates: Sequence[Candidate], inputs: frozenset[int]) -> Mapping[int, tuple[float, Plan]]:
    best: dict[int, tuple[float, Plan]] = {t: (0.0, frozenset()) for t in inputs}
    changed = True
    sweeps = 0
    while changed and sweeps < 8:
        changed, sweeps = False, sweeps + 1
        for i, c in enumerate(candidates):
            if not all(t in best for t in c.ops):
                continue
            plan = frozenset((i,)).union(*(best[t][1] for t in c.ops))
            cost = sum(candidates[j].cost for j in sorted(plan))
            for t in c.outs:
                if t not in best or cost < best[t][0] * (1 - 1e-12):
                    best[t] = (cost, plan)
                    changed = True
    # a long chain listed against its order needs more sweeps than the improvement is worth; reaching all is a must
    while len(best) < len(closure(candidates, inputs)[0]):
        for i, c in enumerate(candidates):
            if all(t in best for t in c.ops) and not all(t in best for t in c.outs):
                plan = frozenset((i,)).union(*(best[t][1] for t in c.ops))
                cost = sum(candidates[j].cost for j in sorted(plan))
                best.update({t: (cost, plan) for t in c.outs if t not in best})
    return best


def _feasible(
    candidates: Sequence[Candidate], plan: Sequence[int], inputs: frozenset[int], outputs: frozenset[int]
) -> bool:
    return outputs <= closure([candidates[i] for i in plan], inputs)[0]


def _without_superfluous(
    candidates: Sequence[Candidate], plan: Plan, inputs: frozenset[int], outputs: frozenset[int]
) -> Plan:
    """Drop launches, dearest first, as long as every output is still made."""
    kept = set(plan)
    for i in sorted(plan, key=lambda i: (-candidates[i].cost, i)):
        rest = sorted(kept - {i})
        if _feasible(candidates, rest, inputs, outputs):
            kept.discard(i)
    return frozenset(kept)


def _exchange(
    candidates: Sequence[Candidate], plan: Plan, inputs: frozenset[int], outputs: frozenset[int], limit: int
) -> Plan:
    """Add one launch that was not chosen, drop what it makes superfluous; keep what is cheaper, until nothing is."""
    cost = sum(candidates[i].cost for i in sorted(plan))
    tried, improved = 0, True
    while improved and tried < limit:
        improved = False
        made = closure([candidates[i] for i in sorted(plan)], inputs)[0]
        for i, c in enumerate(candidates):
            if i in plan or not c.ops <= made or tried >= limit:
                continue
            tried += max(1, len(plan) // 8)
            other = _without_superfluous(candidates, plan | {i}, inputs, outputs)
            total = sum(candidates[j].cost for j in sorted(other))
            if total < cost * (1 - 1e-12):
                plan, cost, improved = other, total, True
                made = closure([candidates[j] for j in sorted(plan)], inputs)[0]
    return plan


def chain_bound(candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int]) -> float:
    """Seconds that no plan can beat: the dearest chain of cheapest makers that ends in an output."""
    least: dict[int, float] = dict.fromkeys(inputs, 0.0)
    changed = True
    while changed:
        changed = False
        for c in candidates:
            if not all(t in least for t in c.ops):
                continue
            cost = c.cost + max((least[t] for t in c.ops), default=0.0)
            for t in c.outs:
                if cost < least.get(t, float("inf")):
                    least[t], changed = cost, True
    return max((least[t] for t in outputs), default=0.0)
