"""A body of running folds along one axis: every result element needs what stands before it in its row.

All scans end at one axis of the results (`along`) and start at its beginning; the other axes make rows.  Folds beside
the scans are not part of this form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from emmy.ir.build import iadd, idiv, imul
from emmy.ir.loop import Ax, Body, Expr, Fold, Load, Online, Scan, ax, visit
from emmy.ir.views.flat import Flatten, decode, lane_step, multiple, total, unit_run
from emmy.ir.views.map_view import Staged, staged_loads, stored_order
from emmy.ir.views.memo import VIEWS


@dataclass(frozen=True, slots=True)
class ScanView:
    body: Body
    rows: tuple[Ax, ...]
    along: Ax
    scans: tuple[Scan, ...]

    @property
    def count(self) -> Expr:
        """Number of rows."""
        return total(self.rows)


@lru_cache(maxsize=VIEWS)
def scan_view(body: Body) -> ScanView | str:
    """The body as scanned rows, or why it is none."""
    seen: dict[Expr, None] = {}
    for o in body.outs:
        visit(o.value, seen)
    scans = tuple(e for e in seen if isinstance(e, Scan))
    if not scans:
        return "it has no scans"
    if any(isinstance(e, Fold | Online) for e in seen) or any(s.body.has_fold for s in scans):
        return "it has folds beside its scans"
    along = scans[0].at
    if not isinstance(along, Ax) or any(s.at is not along or s.axis.extent is not along.extent for s in scans):
        return "its scans do not run over one axis from the beginning"
    if any(s.kind == "m2" or along in s.body.free for s in scans):
        return "a scan needs more than a running value"
    axes = set(body.outs[0].axes)
    if along not in axes or any(set(o.axes) != axes for o in body.outs):
        return "its results have different axes"
    return ScanView(body, tuple(a for a in stored_order(body.outs[0]) if a is not along), along, scans)


@dataclass(frozen=True, slots=True)
class Scanned:
    """The view over a linear row and element = group * width + lane.

    `nodes` are the rewritten scans, `elements` what each takes, `values` and `stores` the results with their flat
    indices; `staged` loads move as vectors.
    """

    row: Ax
    group: Ax
    lane: Ax
    count: Expr
    width: int
    nodes: tuple[Expr, ...]
    elements: tuple[Expr, ...]
    values: tuple[Expr, ...]
    stores: tuple[Expr, ...]
    wide_stores: tuple[bool, ...]
    staged: tuple[Staged, ...]

    @property
    def groups(self) -> Expr:
        return idiv(self.count, self.width)


def scanned(view: ScanView, width: int) -> Scanned:
    """The view in vectors of `width` (1 where that does not divide the axis)."""
    count = view.along.extent
    w = width if multiple(count, width) else 1
    row, group, lane = ax("row", view.count), ax("q", idiv(count, w)), ax("u", w)
    point = iadd(imul(group, w), lane) if w > 1 else group
    flatten = Flatten(view.body.slots)
    env: dict[Ax, Expr] = {**decode(row, view.rows), view.along: point}
    nodes = tuple(flatten.apply(s, env) for s in view.scans)
    elements = tuple(flatten.apply(s.body, {**env, s.axis: point}) for s in view.scans)
    values = tuple(flatten.apply(o.value, env) for o in view.body.outs)
    stores = tuple(flatten.offset(o.index, o.tensor.shape, env) for o in view.body.outs)
    wide = tuple(w > 1 and unit_run(s, lane) for s in stores)
    staged = staged_loads([*elements, *values], lane, group)
    return Scanned(row, group, lane, count, w, nodes, elements, values, stores, wide, staged)


def strided(view: ScanView) -> bool:
    """True when neighbouring rows, not neighbouring elements, are neighbours in memory."""
    s = scanned(view, 1)
    steps = [lane_step(i, s.group) for i in s.stores]
    steps += [lane_step(x.load.index[0], s.group) for x in s.staged if isinstance(x.load, Load)]
    return not any(step == 1 for step in steps)
