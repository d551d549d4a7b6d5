"""Loads that only a condition around a whole fold keeps in range.

A `where` around a fold says for which results the fold exists at all (a padded or joined result, say).  Families that
compute a fold for every point of a tile, whatever the conditions around it are, would read out of range there.
Conditions inside a fold are another matter: they are part of the value that is folded, and every family honours them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from emmy.ir.loop import Body, Expr, Fold, Load, Online, Op, Scan
from emmy.ir.ranges import Ranges
from emmy.ir.views.memo import VIEWS


@lru_cache(maxsize=VIEWS)
def kept_in_range(body: Body) -> tuple[Load, ...]:
    """Loads inside folds under a condition's branch of which an index certainly passes its extent somewhere.

    An index that is data, or whose range is not known, counts as one in range; so does one that a condition inside the
    fold guards, if the fold's own axes move it.  The place of what is sought in data (a greatest or least one of what
    conditions choose) has the range of what is chosen: -1, say, where nothing is found.
    """
    ranges = Ranges({})
    found: dict[Load, None] = {}
    for outer in (f for o in body.outs for f in _guarded(o.value)):
        for node, inside in _loads(outer):
            passed = [node.index[k] for k in beyond(node, body, ranges)]
            if any(not inside or i.free <= outer.free for i in passed):
                found[node] = None
    return tuple(found)


def beyond(node: Load, body: Body, ranges: Ranges) -> tuple[int, ...]:
    """The dimensions of the operand that an index of the load passes."""
    pairs = enumerate(zip(node.index, body.slots[node.slot].shape, strict=True))
    return tuple(k for k, (i, n) in pairs if not _is_data(i) and _passes(ranges, i, n))


def _passes(ranges: Ranges, index: Expr, extent: Expr) -> bool:
    low, high = ranges.of(_sought(index))
    most = ranges.of(extent)[1]
    return (low is not None and low < 0) or (high is not None and most is not None and high >= most)


def _sought(e: Expr) -> Expr:
    """What has the range of an index: of a greatest or least element, the elements."""
    while isinstance(e, Fold) and e.kind in ("max", "min"):
        e = e.body
    return e


def _is_data(e: Expr) -> bool:
    """True where an index has the value of something that is read; conditions only choose among values."""
    e = _sought(e)
    if isinstance(e, Op) and e.name == "where":
        return any(map(_is_data, e.args[1:]))
    return isinstance(e, Load | Fold | Scan | Online) or any(map(_is_data, e.children))


def _walk(root: Expr, into: bool) -> Iterator[tuple[Expr, bool]]:
    """Nodes, each with whether a condition's branch holds it; binders are entered where `into` says so."""
    seen: set[tuple[Expr, bool]] = set()
    stack = [(root, False)]
    while stack:
        node, guarded = stack.pop()
        if (node, guarded) in seen:
            continue
        seen.add((node, guarded))
        yield node, guarded
        if isinstance(node, Op) and node.name == "where":
            stack += [(node.args[0], guarded), (node.args[1], True), (node.args[2], True)]
        elif into or not isinstance(node, Fold | Scan | Online):
            stack += [(c, guarded) for c in node.children]


def _guarded(root: Expr) -> list[Expr]:
    """Outermost binders that stand in a branch of a condition."""
    return [n for n, guarded in _walk(root, False) if guarded and isinstance(n, Fold | Scan | Online)]


def _loads(root: Expr) -> Iterator[tuple[Load, bool]]:
    """Loads inside a binder, each with whether a condition inside it guards the load."""
    return ((n, guarded) for n, guarded in _walk(root, True) if isinstance(n, Load))


__all__ = ["beyond", "kept_in_range"]
