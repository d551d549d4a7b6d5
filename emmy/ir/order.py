"""The order of operands of commuting operations, chosen without looking at slot numbers.

Operands are sorted by a hash of their content in which a slot stands for its colour.  A slot's colour is its tensor
type at first.  Where that leaves two different operands equal, colours are refined by where each slot is used, and what
is still equal then is told apart one slot at a time: colour refinement with individualization (McKay and Piperno,
"Practical graph isomorphism, II", 2014), without its search, since slots that refinement cannot tell apart are
interchangeable in any body that a model gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from emmy.ir.build import rebuild
from emmy.ir.loop import Expr, Fold, Load, Online, Op, Scan, Tensor, visit
from emmy.ir.scalar import SCALAR

Colours = dict[int, str]


def sort_operands(values: Sequence[Expr], slots: Sequence[Tensor]) -> list[Expr]:
    """The values with the operands of every commuting operation in canonical order (i64 sums keep their own)."""
    colours = {k: t.text for k, t in enumerate(slots)}
    nodes = _nodes(values)
    values = _sorted(values, nodes, _hashes(nodes, colours))
    nodes = _nodes(values)
    hashes = _hashes(nodes, colours)
    if not any(_tied(n, hashes) for n in nodes):
        return values
    return _sorted(values, nodes, _hashes(nodes, _discrete(values, nodes, colours)))


def _sorted(values: Sequence[Expr], nodes: Sequence[Expr], hashes: dict[Expr, str]) -> list[Expr]:
    done: dict[Expr, Expr] = {}
    for n in nodes:
        kids = n.children
        if isinstance(n, Op) and _commutes(n):
            kids = tuple(sorted(kids, key=lambda c: hashes[c]))
        done[n] = rebuild(n, tuple(done[c] for c in kids)) if kids else n
    return [done[v] for v in values]


def _nodes(values: Sequence[Expr]) -> tuple[Expr, ...]:
    seen: dict[Expr, None] = {}
    for v in values:
        visit(v, seen)
    return tuple(seen)


def _commutes(node: Op) -> bool:
    return SCALAR[node.name].commutes and node.dtype != "i64"


def _tied(node: Expr, hashes: dict[Expr, str]) -> bool:
    if not (isinstance(node, Op) and _commutes(node)):
        return False
    x, y = node.args
    return x is not y and hashes[x] == hashes[y]


def _digest(*parts: str) -> str:
    return hashlib.sha1("|".join(parts).encode(), usedforsecurity=False).hexdigest()[:20]


def _label(n: Expr, colours: Colours) -> str:
    """What a node says beside its operands."""
    if isinstance(n, Load):
        return f"load {colours[n.slot]} {n.dtype}"
    if isinstance(n, Op):
        return f"{n.name} {n.dtype}"
    if isinstance(n, Fold | Scan | Online):
        return f"{type(n).__name__} {getattr(n, 'kind', '')} {getattr(n, 'operand', '')} {n.axis.text}"
    return n.text


def _hashes(nodes: Sequence[Expr], colours: Colours) -> dict[Expr, str]:
    memo: dict[Expr, str] = {}
    for n in nodes:
        kids = [memo[c] for c in n.children]
        if isinstance(n, Op) and _commutes(n):
            kids.sort()
        memo[n] = _digest(_label(n, colours), *kids)
    return memo


def _discrete(values: Sequence[Expr], nodes: Sequence[Expr], colours: Colours) -> Colours:
    """Colours under which every slot that is used has its own."""
    used = {n.slot for n in nodes if isinstance(n, Load)}
    colours = {k: c for k, c in colours.items() if k in used}
    while True:
        refined = _refine(values, nodes, colours)
        if len(set(refined.values())) > len(set(colours.values())):
            colours = refined
            continue
        groups: dict[str, list[int]] = {}
        for k, c in refined.items():
            groups.setdefault(c, []).append(k)
        shared = sorted(c for c, members in groups.items() if len(members) > 1)
        if not shared:
            return refined
        chosen = groups[shared[0]][0]
        colours = {**refined, chosen: _digest("chosen", refined[chosen])}


def _refine(values: Sequence[Expr], nodes: Sequence[Expr], colours: Colours) -> Colours:
    """Each slot's colour together with the places where its loads are used."""
    hashes = _hashes(nodes, colours)
    places: dict[Expr, list[str]] = {n: [] for n in nodes}
    for k, v in enumerate(values):
        places[v].append(f"out {k}")
    at_slot: dict[int, list[str]] = {k: [] for k in colours}
    for n in reversed(nodes):  # users before operands
        place = _digest(hashes[n], *sorted(places[n]))
        if isinstance(n, Load):
            at_slot[n.slot].append(place)
        for position, c in enumerate(n.children):
            places[c].append(place if isinstance(n, Op) and _commutes(n) else f"{position} {place}")
    return {k: _digest(c, *sorted(at_slot[k])) for k, c in colours.items()}
