"""Candidates that can be dropped without losing any optimum, and the canonical order of the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emmy.extract.choice import Candidate


def order_candidates(
    candidates: Iterable[Candidate], inputs: frozenset[int], order: Mapping[int, int]
) -> list[Candidate]:
    """Candidates in an order that does not depend on how they were numbered.

    Inputs are free, so they are dropped from `ops` and `outs`, and a candidate does not make what it reads; the
    caller's candidate is found again by `id`.
    """

    def rank(t: int) -> tuple[int, int]:
        return order.get(t, 0), t

    kept = []
    for c in candidates:
        ops = c.ops - inputs
        outs = tuple(sorted(frozenset(c.outs) - inputs - ops, key=rank))
        if outs:
            kept.append(replace(c, outs=outs, ops=ops))

    def key(c: Candidate) -> tuple[object, ...]:
        return sorted(map(rank, c.outs)), c.key, c.cost, sorted(map(rank, c.ops)), c.id

    return sorted(kept, key=key)


def closure(candidates: Sequence[Candidate], made: Iterable[int]) -> tuple[set[int], list[Candidate]]:
    """Tensors that can be made, and the candidates that can run, by forward chaining in linear time."""
    have = set(made)
    waiting = [len(c.ops - have) for c in candidates]
    readers: dict[int, list[int]] = defaultdict(list)
    for i, c in enumerate(candidates):
        for t in c.ops - have:
            readers[t].append(i)
    ready = [i for i, w in enumerate(waiting) if w == 0]
    ran: list[int] = []
    while ready:
        i = ready.pop()
        ran.append(i)
        for t in candidates[i].outs:
            if t in have:
                continue
            have.add(t)
            for j in readers[t]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    ready.append(j)
    return have, [candidates[i] for i in sorted(ran)]


def unreachable(candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int]) -> frozenset[int]:
    """Required tensors that no set of candidates makes."""
    have, _ = closure(candidates, inputs)
    return outputs - have


def lacking(candidates: Sequence[Candidate], inputs: frozenset[int], missing: Iterable[int]) -> frozenset[int]:
    """What `missing` tensors wait for in the end: those that no candidate makes (`missing` where they are a cycle)."""
    have, _ = closure(candidates, inputs)
    makers: dict[int, list[Candidate]] = defaultdict(list)
    for c in candidates:
        for t in c.outs:
            makers[t].append(c)
    seen, stack = set(missing), list(missing)
    while stack:
        fresh = {t for c in makers[stack.pop()] for t in c.ops} - have - seen
        seen |= fresh
        stack.extend(fresh)
    return frozenset(t for t in seen if not makers[t]) or frozenset(missing)


def prune(candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int]) -> list[Candidate]:
    """Drop what cannot run, what no output needs, and what another candidate beats.

    A beats B when it makes at least B's tensors, reads at most B's, and costs no more: in any plan A can stand where B
    stood.  Of two that beat each other the smaller key stays.
    """
    kept = _undominated(closure(candidates, inputs)[1])
    return _relevant(kept, inputs, outputs)


def _undominated(candidates: Sequence[Candidate]) -> list[Candidate]:
    position = {id(c): i for i, c in enumerate(candidates)}
    by_out: dict[int, list[Candidate]] = defaultdict(list)
    kept: list[Candidate] = []
    ranked = sorted(candidates, key=lambda c: (c.cost, len(c.ops), -len(c.outs), position[id(c)]))
    for c in ranked:
        if any(_beats(other, c) for other in by_out[c.outs[0]]):
            continue
        kept.append(c)
        for t in c.outs:
            by_out[t].append(c)
    return sorted(kept, key=lambda c: position[id(c)])


def _beats(a: Candidate, b: Candidate) -> bool:
    return a.cost <= b.cost and a.ops <= b.ops and set(a.outs) >= set(b.outs)


def _relevant(candidates: Sequence[Candidate], inputs: frozenset[int], outputs: frozenset[int]) -> list[Candidate]:
    makers: dict[int, list[Candidate]] = defaultdict(list)
    for c in candidates:
        for t in c.outs:
            makers[t].append(c)
    needed, stack, used = set(outputs), list(outputs - inputs), set()
    while stack:
        for c in makers[stack.pop()]:
            if c.id in used:
                continue
            used.add(c.id)
            fresh = c.ops - needed
            needed |= fresh
            stack.extend(fresh)
    return [c for c in candidates if c.id in used]
