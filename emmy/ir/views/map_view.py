"""A body without folds: every result element depends on a fixed number of operand elements.

All results share their axes, which are walked as one linear index in the order in which the first result is stored.
`Vectors` says what happens when a thread takes `width` neighbours at once: which loads and stores are one aligned run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from emmy.ir.build import iadd, idiv, imul, scalar
from emmy.ir.dtype import dtype
from emmy.ir.integer import bounds
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Out, Scan, Tensor, ax, const, load, size
from emmy.ir.views.affine import Affine, affine
from emmy.ir.views.flat import Flatten, decode, lane_step, total, uniform, unit_run, vector
from emmy.ir.views.memo import VIEWS

VECTOR_BYTES: Final = 16  # of the vectors around a run that begins anywhere
Guard = tuple[Expr, bool]  # a condition, and the value that it must have


@dataclass(frozen=True, slots=True)
class MapView:
    """`axes` of every result, outermost first; `count` points in all."""

    body: Body
    axes: tuple[Ax, ...]

    @property
    def count(self) -> Expr:
        return total(self.axes)


@lru_cache(maxsize=VIEWS)
def map_view(body: Body) -> MapView | str:
    """The body as a map, or why it is none."""
    if any(o.value.has_fold for o in body.outs):
        return "it has folds"
    axes = body.outs[0].axes
    if any(set(o.axes) != set(axes) for o in body.outs):
        return "its results have different axes"
    return MapView(body, stored_order(body.outs[0]))


def stored_order(out: Out) -> tuple[Ax, ...]:
    """The axes of a result, the one with the largest stride first (as they are where strides are symbolic)."""
    form: Affine | None = affine(load(0, out.index, out.tensor.dtype), out.tensor)
    strides = {a: form.stride(a) for a in out.axes} if form is not None else {}
    known = {a: int(s.value) for a, s in strides.items() if isinstance(s, Const)}
    if len(known) < len(out.axes):
        return out.axes
    return tuple(sorted(out.axes, key=lambda a: -known[a]))


@dataclass(frozen=True, slots=True)
class Staged:
    """A load that moves as one vector; `guards` must hold for it to be in range (they are the same for all lanes)."""

    load: Load
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """A map over (`group`, `lane`): values and flat store indices rewritten, and what moves as vectors."""

    group: Ax
    lane: Ax
    values: tuple[Expr, ...]
    stores: tuple[Expr, ...]
    staged: tuple[Staged, ...]
    wide_stores: tuple[bool, ...]
    # where a result may be stored, by its number: an update stores nothing out of range
    inside: tuple[tuple[int, Expr], ...] = ()
    # loads of one run that may begin at any element
    shifted: tuple[Staged, ...] = ()


def vectors(view: MapView, width: int) -> Vectors:
    """The map with `width` neighbours a thread."""
    lane = ax("u", width)
    group = ax("q", idiv(iadd(view.count, width - 1), width))
    found = rewrite(view.body.outs, Flatten(view.body.slots), view.axes, group, lane)
    updated = {o.into for o in view.body.outs}
    return replace(found, shifted=shifted_loads(found, view.body.slots, updated))


def rewrite(outs: Sequence[Out], flatten: Flatten, axes: Sequence[Ax], group: Ax, lane: Ax) -> Vectors:
    """Results over `axes` as functions of group*width + lane."""
    width = lane.size or 1
    linear = iadd(imul(group, width), lane) if width > 1 else group
    env = decode(linear, axes)
    values = tuple(flatten.apply(o.value, env) for o in outs)
    stores = tuple(flatten.offset(o.index, o.tensor.shape, env) for o in outs)
    inside = tuple((k, flatten.apply(within(o), env)) for k, o in enumerate(outs) if o.into >= 0)
    if width == 1:
        return Vectors(group, lane, values, stores, (), tuple(False for _ in outs), inside)
    uneven = {k for k, condition in inside if not uniform(condition, lane)}
    wide = tuple(unit_run(s, lane) and k not in uneven for k, s in enumerate(stores))
    return Vectors(group, lane, values, stores, staged_loads(values, lane, group), wide, inside)


def within(out: Out) -> Expr:
    """True where the index of a result is in range."""
    inside: Expr = const(True, "bool")
    for e, extent in zip(out.index, out.tensor.shape, strict=True):
        inside = scalar("and", inside, scalar("le", const(0), e))
        inside = scalar("and", inside, scalar("lt", e, extent))
    return inside


def staged_loads(values: Sequence[Expr], lane: Ax, group: Ax) -> tuple[Staged, ...]:
    """Loads that are one aligned run over the lanes, each with the conditions under which it is reached.

    With one lane these are all loads that depend on the group and on no other load.  Loads inside folds are not seen.
    """
    found = []
    for node, ways in _paths(values).items():
        if not _moves(node, lane, group):
            continue
        way = () if () in ways else next(iter(ways)) if len(ways) == 1 else None
        if way is not None and all(uniform(c, lane) and not _reads(c) for c, _ in way):
            found.append(Staged(node, way))
    return tuple(sorted(found, key=lambda s: s.load.text))


def _paths(values: Sequence[Expr]) -> dict[Load, set[tuple[Guard, ...]]]:
    """The conditions under which each load is reached, in every way; loads inside folds are left out."""
    paths: dict[Load, set[tuple[Guard, ...]]] = {}
    seen: set[tuple[Expr, tuple[Guard, ...]]] = set()
    stack: list[tuple[Expr, tuple[Guard, ...]]] = [(v, ()) for v in values]
    while stack:
        node, guards = stack.pop()
        if (node, guards) in seen:
            continue
        seen.add((node, guards))
        if isinstance(node, Load):
            paths.setdefault(node, set()).add(guards)
        if isinstance(node, Op) and node.name == "where":
            cond, yes, no = node.args
            stack += [(cond, guards), (yes, (*guards, (cond, True))), (no, (*guards, (cond, False)))]
        elif not isinstance(node, Fold | Scan | Online):
            stack += [(c, guards) for c in node.children]
    return paths


def _moves(node: Load, lane: Ax, group: Ax) -> bool:
    if lane.size == 1:
        return group in node.free and not _reads(node.index[0])
    return vector(node, lane)


def shifted_loads(v: Vectors, slots: Sequence[Tensor], updated: Collection[int]) -> tuple[Staged, ...]:
    """Loads of neighbours that do not begin at multiples of the lanes, as vectors around them can be read.

    They make up vectors of 16 bytes and never begin before their operand, which has two such vectors at least and is
    not one of those `updated`, of which no thread reads what another may write.  Nor do they for groups behind the
    last, which threads that have several ask for, too.  The vectors are read whatever conditions say, so that none of
    these may hang on data: it could hold for a few of all points.
    """
    flatten, beyond = Flatten(slots), {v.group: ax(v.group.name, size("groups"))}
    found = []
    for x, ways in _paths(v.values).items():
        by_data = any(_reads(c) for way in ways for c, _ in way)
        if by_data or x.slot in updated or not _runs(x, v.lane) or not _holds(slots[x.slot], v.lane):
            continue
        low = bounds(flatten.apply(x.index[0], beyond))[0]
        if low is not None and low >= 0:
            found.append(x)
    return tuple(Staged(x, ()) for x in sorted(found, key=lambda x: x.text))


def _runs(node: Load, lane: Ax) -> bool:
    (index,) = node.index
    return lane_step(index, lane) == 1 and not vector(node, lane) and not _reads(index)


def _holds(operand: Tensor, lane: Ax) -> bool:
    bytes, least = dtype(operand.dtype).bytes, 1
    for e in operand.shape:
        least *= int(e.value) if isinstance(e, Const) else 1
    return (lane.size or 1) * bytes % VECTOR_BYTES == 0 and bytes <= 4 and least * bytes >= 2 * VECTOR_BYTES


def _reads(e: Expr) -> bool:
    return isinstance(e, Load) or any(_reads(c) for c in e.children)


def access_bytes(view: MapView, width: int) -> tuple[int, ...]:
    """Bytes that a thread moves at once in each vector load and store of the map at this width."""
    v = vectors(view, width)
    loads = [width * dtype(s.load.dtype).bytes for s in v.staged]
    stores = [
        width * dtype(o.tensor.dtype).bytes for o, wide in zip(view.body.outs, v.wide_stores, strict=True) if wide
    ]
    return (*loads, *stores)


__all__ = ["VECTOR_BYTES", "MapView", "Staged", "Vectors", "access_bytes", "map_view", "rewrite", "vectors"]
