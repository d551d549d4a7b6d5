"""A body whose folds are closed over row axes: each row is reduced, and the results are swept over the row again.

    rows    the axes on which folds depend; every result has them
    passes  folds of one level (a fold that needs another's result is one level higher) over equally many elements
    sweeps  results that share their remaining axes (none: one value a row)

Nested folds of one kind are one fold over several axes.  Column sums and sums of a whole tensor are row views too: how
a row lies in memory shows in `Passes`, where rows and elements are linear indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from emmy.ir.build import iadd, idiv, imul, rebuild, scalar
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Out, Scan, ax, fold, visit
from emmy.ir.views.flat import Flatten, decode, lane_step, total, unit_run
from emmy.ir.views.map_view import Staged, staged_loads, stored_order
from emmy.ir.views.memo import VIEWS


@dataclass(frozen=True, slots=True)
class RowFold:
    """`node` folds `elements` (score and value of an online sum, else one) over `axes`, outermost first."""

    node: Fold | Online
    axes: tuple[Ax, ...]
    elements: tuple[Expr, ...]
    level: int


@dataclass(frozen=True, slots=True)
class RowView:
    """`passes`: folds that share a walk over the row, in order.  `sweeps`: (axes, numbers of results)."""

    body: Body
    rows: tuple[Ax, ...]
    passes: tuple[tuple[RowFold, ...], ...]
    sweeps: tuple[tuple[tuple[Ax, ...], tuple[int, ...]], ...]

    @property
    def count(self) -> Expr:
        """Number of rows."""
        return total(self.rows)

    @property
    def folds(self) -> tuple[RowFold, ...]:
        return tuple(f for p in self.passes for f in p)


@lru_cache(maxsize=VIEWS)
def row_view(body: Body) -> RowView | str:
    """The body as reduced rows, or why it is none."""
    folds = _folds(body)
    if isinstance(folds, str):
        return folds
    if not folds:
        return "it has no folds"
    needed = frozenset().union(*(f.node.free for f in folds))
    if any(not needed <= set(o.axes) for o in body.outs):
        return "a result lacks an axis on which its folds depend"
    order = stored_order(body.outs[0])
    sweeps: dict[frozenset[Ax], list[int]] = {}
    for k, o in enumerate(body.outs):
        sweeps.setdefault(frozenset(o.axes) - needed, []).append(k)
    walks = []
    for axes, ks in sweeps.items():
        walks.append((tuple(a for a in stored_order(body.outs[ks[0]]) if a in axes), tuple(ks)))
    return RowView(body, tuple(a for a in order if a in needed), _passes(folds), tuple(walks))


@lru_cache(maxsize=VIEWS)
def held_body(body: Body) -> Body:
    """The body for rows that stay in registers: an online sum there is a maximum, then a sum of exponentials.

    Walking over registers again costs less than rescaling, and the exponentials can be kept for the results.
    """
    if not any(isinstance(e, Online) for e in body.nodes):
        return body
    made: dict[Expr, Expr] = {}
    for node in body.nodes:
        made[node] = _without_online(node, made)
    outs = tuple(Out(o.axes, tuple(made[i] for i in o.index), made[o.value], o.tensor) for o in body.outs)
    return Body(outs, body.slots)


def _without_online(node: Expr, made: dict[Expr, Expr]) -> Expr:
    if isinstance(node, Online):
        score, value = made[node.score], made[node.value]
        weight = scalar("exp", scalar("sub", score, fold("max", node.axis, score)))
        one = isinstance(value, Const) and value.value == 1
        return fold("sum", node.axis, weight if one else scalar("mul", weight, value), node.operand)
    children = tuple(made[c] for c in node.children)
    return node if children == node.children else rebuild(node, children)


def _passes(folds: Sequence[RowFold]) -> tuple[tuple[RowFold, ...], ...]:
    groups: dict[tuple[int, str], list[RowFold]] = {}
    for f in folds:
        groups.setdefault((f.level, total(f.axes).text), []).append(f)
    return tuple(tuple(groups[key]) for key in sorted(groups, key=lambda k: k[0]))


def _folds(body: Body) -> list[RowFold] | str:
    """Every fold of the body once, operands first, or the reason why one does not close over rows."""
    seen: dict[Expr, None] = {}
    for o in body.outs:
        visit(o.value, seen)
    inner: set[Expr] = set()
    found: list[RowFold] = []
    level: dict[Expr, int] = {}
    for node in seen:
        level[node] = max((level.get(c, 0) for c in node.children), default=0)
        if isinstance(node, Scan):
            return "it has scans"
        if isinstance(node, Fold | Online):
            level[node] += 1
    for node in reversed(list(seen)):
        if not isinstance(node, Fold | Online) or node in inner:
            continue
        axes, elements = _nest(node, inner)
        below = max(level[e] for e in elements)
        found.append(RowFold(node, axes, elements, below + 1))
    found.reverse()
    for f in found:
        for e in f.elements:
            for g in found:
                if g.node.free & set(f.axes) and _under(e, g.node):
                    return "a fold depends on the axis of another"
    return found


def _nest(node: Fold | Online, inner: set[Expr]) -> tuple[tuple[Ax, ...], tuple[Expr, ...]]:
    """The axes of a nest of equal folds and what it folds; the folds inside are added to `inner`."""
    if isinstance(node, Online):
        return (node.axis,), (node.score, node.value)
    axes, body = [node.axis], node.body
    # a sum whose inner sum does not depend on it is no nest: the inner one is a fold of its own
    while isinstance(body, Fold) and body.kind == node.kind != "m2" and set(axes) & body.free:
        inner.add(body)
        axes.append(body.axis)
        body = body.body
    return tuple(axes), (body,)


def _under(root: Expr, node: Expr) -> bool:
    seen: dict[Expr, None] = {}
    visit(root, seen)
    return node in seen


# ---- linear passes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """A walk over `count` elements of a row, `width` neighbours at a time: element = group * width + lane.

    A reducing pass has `folds` and, for each, its rewritten node and elements; a sweep has results (`outs`), their
    values and flat store indices.  `staged` loads move as vectors (or as one element where the width is 1).
    """

    count: Expr
    width: int
    group: Ax
    lane: Ax
    folds: tuple[RowFold, ...]
    nodes: tuple[Expr, ...]
    values: tuple[Expr, ...]
    outs: tuple[int, ...]
    stores: tuple[Expr, ...]
    wide_stores: tuple[bool, ...]
    staged: tuple[Staged, ...]

    @property
    def groups(self) -> Expr:
        return idiv(self.count, self.width)


@dataclass(frozen=True, slots=True)
class Passes:
    """The reducing passes in order, then the sweeps; `row` is the linear row index that all of them use."""

    row: Ax
    reducing: tuple[Pass, ...]
    sweeps: tuple[Pass, ...]


def passes(view: RowView, width: int) -> Passes:
    """The view over linear rows and elements, in vectors of `width` where that divides a pass."""
    row = ax("row", view.count)
    flatten = Flatten(view.body.slots)
    env = decode(row, view.rows)
    reducing = []
    for folds in view.passes:
        count = total(folds[0].axes)
        w, group, lane = _walk(count, width)
        point = _point(group, lane, w)
        values: list[Expr] = []
        for f in folds:
            inner = {**env, **decode(point, f.axes)}
            values += [flatten.apply(e, inner) for e in f.elements]
        nodes = tuple(flatten.apply(f.node, env) for f in folds)
        staged = staged_loads(values, lane, group)
        reducing.append(Pass(count, w, group, lane, folds, nodes, tuple(values), (), (), (), staged))
    sweeps = tuple(_sweep(view, flatten, env, axes, ks, width) for axes, ks in view.sweeps)
    return Passes(row, tuple(reducing), sweeps)


def _sweep(
    view: RowView, flatten: Flatten, env: dict[Ax, Expr], axes: tuple[Ax, ...], ks: tuple[int, ...], width: int
) -> Pass:
    count = total(axes)
    w, group, lane = _walk(count, width)
    inner = {**env, **decode(_point(group, lane, w), axes)}
    outs = [view.body.outs[k] for k in ks]
    values = tuple(flatten.apply(o.value, inner) for o in outs)
    stores = tuple(flatten.offset(o.index, o.tensor.shape, inner) for o in outs)
    wide = tuple(w > 1 and unit_run(s, lane) for s in stores)
    return Pass(count, w, group, lane, (), (), values, ks, stores, wide, staged_loads(values, lane, group))


def _walk(count: Expr, width: int) -> tuple[int, Ax, Ax]:
    """Width (1 where it does not divide the count), group axis and lane axis; equal counts share their axes."""
    from emmy.ir.views.flat import multiple

    w = width if multiple(count, width) else 1
    return w, ax("q", idiv(count, w)), ax("u", w)


def _point(group: Ax, lane: Ax, width: int) -> Expr:
    return iadd(imul(group, width), lane) if width > 1 else group


def kept(p: Passes) -> tuple[dict[Staged, int], dict[Expr, int]]:
    """What a later walk over equally many elements needs again, with the number of the pass that first has it.

    Staged loads, and folded elements that cost more than a load to compute again (exponentials).  A load that later
    passes need only through such an element is not kept.
    """
    order = [*p.reducing, *p.sweeps]
    computed: dict[Expr, int] = {}
    for n, a in enumerate(p.reducing):
        for e in a.values:
            if _costly(e) and any(_under(v, e) for _, v in _later(order, n)):
                computed.setdefault(e, n)
    loads: dict[Staged, int] = {}
    seen: set[Load] = set()
    for n, a in enumerate(p.reducing):
        for s in a.staged:
            again = any(needs(v, s.load, computed, m) for m, v in _later(order, n))
            # reached under other conditions elsewhere: those passes read it themselves
            same = all(t == s for b in order for t in b.staged if t.load is s.load)
            if s.load not in seen and again and same:
                loads[s] = n
            seen.add(s.load)
    return loads, computed


def alive(p: Passes) -> list[tuple[list[Staged], list[Expr]]]:
    """What each walk after the first finds in registers of all that is kept: loads, and computed elements.

    A row whose elements turn into others takes the room of one of them: an element is read for the last time where its
    successor is made.
    """
    order = [*p.reducing, *p.sweeps]
    loads, computed = kept(p)
    found = []
    for m in range(1, len(order)):
        rest = [(at, v) for at in range(m, len(order)) for v in order[at].values]
        held = [s for s, n in loads.items() if n < m and any(needs(v, s.load, computed, at) for at, v in rest)]
        found.append((held, [e for e, n in computed.items() if n < m and any(_under(v, e) for _, v in rest)]))
    return found


def _later(order: Sequence[Pass], n: int) -> list[tuple[int, Expr]]:
    """(number, value) of the passes after pass n that walk as it does."""
    a = order[n]
    return [
        (m, v) for m, b in enumerate(order) if m > n and b.group is a.group and b.width == a.width for v in b.values
    ]


def needs(root: Expr, node: Load, computed: dict[Expr, int], at: int) -> bool:
    """True when pass `at` reads `node` other than through an element that an earlier pass kept."""
    if root in computed and computed[root] < at:
        return False
    if root is node:
        return True
    if isinstance(root, Fold | Online | Scan):
        return False
    return any(needs(c, node, computed, at) for c in root.children)


def _costly(e: Expr) -> bool:
    from emmy.ir.scalar import SCALAR

    return isinstance(e, Op) and SCALAR[e.name].slots >= 4


def across_rows(view: RowView) -> bool:
    """True when neighbouring rows, not neighbouring elements, are neighbours in memory (column reductions)."""
    p = passes(view, 1)
    along = across = 0
    for a in p.reducing:
        for s in a.staged:
            index = s.load.index[0]
            element, row = lane_step(index, a.group), lane_step(index, p.row)
            along += element == 1
            across += row == 1 and element != 1
    return across > along


__all__ = [
    "Pass",
    "Passes",
    "RowFold",
    "RowView",
    "across_rows",
    "alive",
    "held_body",
    "kept",
    "needs",
    "passes",
    "row_view",
]
