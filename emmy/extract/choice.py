"""Which launches exist: the cheapest set of candidates that makes every required tensor.

A candidate is a launch that may exist: it reads `ops` and makes `outs` at `cost`.  A plan is a set of candidates in an
order in which every operand is made before it is read; a producer that several read is paid once, and a launch that
makes several tensors is paid once.  This is a shortest hyperpath with sharing, which is NP-hard, so it is cut down and
then solved:

1. prune candidates that can never help (`emmy.extract.prune`);
2. cut the program where few tensors are read across (`emmy.extract.regions`), e.g. at the residual stream between two
   layers, and solve each distinct region once for each set of tensors that may be asked of it;
3. solve a region by a greedy search with exchanges, then prove or improve it by HiGHS (`emmy.extract.ilp`).

The result is `optimal` when every region that it used was proved, else `greedy` with a lower bound.  It never depends
on the order or the numbering of the input: candidates are taken by (order of their outputs, key), and where the time
limit strikes the greedy plan is returned, not whatever the solver held at that moment.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from emmy.errors import LoweringError
from emmy.extract.prune import lacking, order_candidates, prune, unreachable

if TYPE_CHECKING:
    from emmy.extract.regions import Memo

Method = Literal["optimal", "greedy"]


class Unmade(LoweringError):
    """Tensors that no candidate makes, lowest first: `tensors` of the outputs, and the `roots` that they wait for."""

    def __init__(self, tensors: Sequence[int], roots: Sequence[int]) -> None:
        super().__init__(f"no launch makes tensors {list(tensors)}: nothing makes {list(roots)}")
        self.tensors, self.roots = tuple(tensors), tuple(roots)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A launch that may exist.  `cost` in seconds, its constant per launch included (0 for work done at build).

    `id` names it for the caller.  `key` is a text that is the same in every process (body and operands) and breaks
    ties.  `structure` is equal for candidates that are the same launch in different places (the body's hash), so that
    diverse plans differ in kind, not in place; empty means `key`.
    """

    id: int
    outs: tuple[int, ...]
    ops: frozenset[int]
    cost: float
    key: str = ""
    structure: str = ""

    @property
    def kind(self) -> str:
        return self.structure or self.key


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan in execution order.  `total`, `bound` (no plan can cost less) and `seconds` (spent choosing) in seconds.

    `gap` = (total - bound) / total.  `makers[t]` is the id of the candidate whose result readers of `t` use: where two
    chosen launches make one tensor, the first in execution order.
    """

    candidates: tuple[Candidate, ...]
    total: float
    method: Method
    bound: float
    gap: float
    seconds: float
    makers: Mapping[int, int] = field(default_factory=dict)
    regions: int = 1
    distinct_regions: int = 1


def choose(
    candidates: Iterable[Candidate],
    inputs: Iterable[int],
    outputs: Iterable[int],
    order: Mapping[int, int],
    *,
    time_limit: float = 20.0,
) -> Choice:
    """The cheapest plan that makes `outputs` from `inputs`.

    `order` ranks tensors (a producer's operands usually rank below its results; where they do not, cycles are cut).
    Unmade (a LoweringError) holds the tensors that nothing makes.
    """
    return _choose(candidates, frozenset(inputs), frozenset(outputs), order, time_limit, {})


def _choose(
    candidates: Iterable[Candidate],
    given: frozenset[int],
    wanted: frozenset[int],
    order: Mapping[int, int],
    time_limit: float,
    memo: Memo,
) -> Choice:
    from emmy.extract.regions import Solver  # imports the solver library

    began = time.monotonic()
    originals = {c.id: c for c in candidates}
    listed = order_candidates(originals.values(), given, order)
    missing = unreachable(listed, given, wanted)
    if missing:
        both = (missing, lacking(listed, given, missing))
        raise Unmade(*(sorted(ts, key=lambda t: (order.get(t, 0), t)) for ts in both))
    kept = prune(listed, given, wanted)
    solver = Solver(order, began + time_limit, memo)
    plan, bound, proved = solver.solve(kept, given, wanted)
    ordered = execution_order([originals[c.id] for c in plan], given, wanted, order)
    total = sum(c.cost for c in ordered)
    bound = total if proved else min(bound, total)
    return Choice(
        ordered, total, "optimal" if proved else "greedy", bound, (total - bound) / total if total > 0 else 0.0,
        time.monotonic() - began, makers_of(ordered, given), solver.regions, solver.distinct,
    )  # fmt: skip


def k_best(
    candidates: Iterable[Candidate],
    inputs: Iterable[int],
    outputs: Iterable[int],
    order: Mapping[int, int],
    k: int,
    *,
    time_limit: float = 20.0,
    expansions: int = 64,
) -> list[Choice]:
    """Up to `k` plans of different structure, cheapest first; the first is `choose`'s.

    Best-first over sets of held structures: the plan without structure s is the best plan that differs in s everywhere
    (Lawler's partition, over kinds of launches rather than launches).  At most `expansions` problems are solved and no
    new one is begun after `time_limit`, so the list may be shorter, and is then not exhaustive.
    """
    listed, given, wanted = list(candidates), frozenset(inputs), frozenset(outputs)
    began = time.monotonic()
    memo: Memo = {}
    first = _choose(listed, given, wanted, order, time_limit, memo)
    heap: list[tuple[float, tuple[str, ...], Choice]] = [(first.total, (), first)]
    tried: set[tuple[str, ...]] = {()}
    found: dict[tuple[tuple[str, int], ...], Choice] = {}
    while heap and len(found) < k:
        _, held, choice = heapq.heappop(heap)
        found.setdefault(structure(choice), choice)
        for kind in sorted({c.kind for c in choice.candidates}):
            branch = tuple(sorted((*held, kind)))
            left = time_limit - (time.monotonic() - began)
            if branch in tried or len(tried) >= expansions or left <= 0:
                continue
            tried.add(branch)
            rest = [c for c in listed if c.kind not in branch]
            if unreachable(rest, given, wanted):
                continue
            other = _choose(rest, given, wanted, order, left, memo)
            heapq.heappush(heap, (other.total, branch, other))
    return sorted(found.values(), key=lambda c: (c.total, structure(c)))[:k]


def structure(choice: Choice) -> tuple[tuple[str, int], ...]:
    """Kinds of launches of a plan and how often each occurs: plans are diverse when this differs."""
    return tuple(sorted(Counter(c.kind for c in choice.candidates).items()))


def makers_of(plan: Sequence[Candidate], inputs: frozenset[int]) -> dict[int, int]:
    makers: dict[int, int] = {}
    for c in plan:
        for t in c.outs:
            if t not in inputs:
                makers.setdefault(t, c.id)
    return makers


def execution_order(
    plan: Iterable[Candidate], inputs: frozenset[int], outputs: frozenset[int], order: Mapping[int, int]
) -> tuple[Candidate, ...]:
    """The plan in a runnable order, lowest tensors first.  A plan that cannot run is a bug: LoweringError."""
    made = set(inputs)
    rest = sorted(plan, key=lambda c: (min(order.get(t, 0) for t in c.outs), c.key, c.id))
    ordered: list[Candidate] = []
    while rest:
        ready = next((c for c in rest if c.ops <= made), None)
        if ready is None:
            raise LoweringError(
                f"the chosen launches wait for each other: {[c.key or c.id for c in rest]}", "this is a bug: report it"
            )
        rest.remove(ready)
        ordered.append(ready)
        made.update(ready.outs)
    if not outputs <= made:
        raise LoweringError(f"the plan does not make tensors {sorted(outputs - made)}", "this is a bug: report it")
    return tuple(ordered)
