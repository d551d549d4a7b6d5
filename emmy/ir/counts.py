"""Counts on a body that bound fusion: contractions, reductions, and how often an inlined value would be computed."""

from __future__ import annotations

from collections.abc import Mapping

from emmy.ir.build import bounds
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Scan, Size, visit

# Points that one tile of a kernel holds of an axis before a value that lacks the axis is computed again.
TILE = 256


def extent(e: Expr, sizes: Mapping[str, int]) -> int:
    """An extent as a number; symbolic sizes are taken from `sizes` (their example values)."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Size):
        return sizes[e.name]
    if isinstance(e, Op) and e.dtype == "i64":
        x, y = (extent(a, sizes) for a in e.args[:2])
        values = {
            "add": x + y,
            "mul": x * y,
            "floordiv": x // max(y, 1),
            "mod": x % max(y, 1),
            "max": max(x, y),
            "min": min(x, y),
        }
        return values[e.name]
    hi = bounds(e)[1]
    return 1 if hi is None else hi


def written(body: Body) -> int:
    """Nodes of the body as a tree, as its text has them: a shared node counts at each use."""
    size: dict[Expr, int] = {}
    for n in body.nodes:  # operands before what reads them
        size[n] = 1 + sum(size[c] for c in n.children)
    return sum(size[o.value] for o in body.outs)


def steering(body: Body, slot: int) -> bool:
    """True when the operand only says which elements of other operands are read."""
    seen: set[Expr] = set()
    stack: list[Expr] = [o.value for o in body.outs]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if not isinstance(n, Load):
            stack += n.children
        elif n.slot == slot:
            return False
    return True


def contractions(body: Body) -> int:
    """Sums of products that came from a contraction (nested sums of one count once), and attention's value sums."""
    inner = {n.body for n in body.nodes if isinstance(n, Fold) and n.operand}
    plain = sum(isinstance(n, Fold) and bool(n.operand) and n not in inner for n in body.nodes)
    return plain + sum(isinstance(n, Online) and not isinstance(n.value, Const) for n in body.nodes)


def apart(body: Body) -> int:
    """Pairs of contractions of which neither is inside the other and that read no common operand."""
    inner = {n.body for n in body.nodes if isinstance(n, Fold) and n.operand}
    products = [n for n in body.nodes if isinstance(n, Fold) and n.operand and n not in inner]
    below = [_under(n) for n in products]
    slots = [{n.slot for n in nodes if isinstance(n, Load)} for nodes in below]
    return sum(
        products[i] not in below[j] and products[j] not in below[i] and not slots[i] & slots[j]
        for i in range(len(products))
        for j in range(i)
    )


def _under(root: Expr) -> set[Expr]:
    seen: dict[Expr, None] = {}
    visit(root, seen)
    return set(seen)


def reductions(body: Body) -> int:
    """Folds and scans; a nest of sums over several axes counts once."""
    inner = {n.body for n in body.nodes if isinstance(n, Fold)}
    return sum(isinstance(n, Fold | Scan | Online) and n not in inner for n in body.nodes)


def recomputation(body: Body, slot: int, sizes: Mapping[str, int]) -> int:
    """How often a value inlined at `slot` would be computed: tiles over the output axes that its load lacks."""
    worst = 1
    for out in body.outs:
        loads = (n for n in body.nodes if isinstance(n, Load) and n.slot == slot)
        worst = max(worst, *(_repeats(out.axes, n, sizes) for n in loads), 1)
    return worst


def _repeats(axes: tuple[Ax, ...], node: Expr, sizes: Mapping[str, int]) -> int:
    missing = 1
    for a in axes:
        if a not in node.free:
            missing *= extent(a.extent, sizes)
    return -(-missing // TILE)
