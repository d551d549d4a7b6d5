"""A map in which some operand runs along another axis than the results do (a transposed operand).

`along` is the axis in which results are neighbours in memory, `across` the one in which the turned operands are.  A
tile over both is read along `across` and written along `along`.
"""

from __future__ import annotations

from dataclasses import dataclass

from emmy.ir.build import iadd, idiv, imul
from emmy.ir.loop import Ax, Body, Expr, Load, ax
from emmy.ir.views.flat import Flatten, decode, lane_step, total, unit_run
from emmy.ir.views.map_view import Staged, map_view, staged_loads, stored_order


@dataclass(frozen=True, slots=True)
class TurnView:
    body: Body
    axes: tuple[Ax, ...]  # all, in the order of memory; `along` is the last
    across: Ax
    along: Ax

    @property
    def others(self) -> tuple[Ax, ...]:
        return tuple(a for a in self.axes if a is not self.across and a is not self.along)


@dataclass(frozen=True, slots=True)
class Turned:
    """The view at (other, across = high*tile + row, along = low*tile + column) of a grid of square tiles, in vectors.

    A turned operand is read in vectors along `row = row_group*width + lane`: `sources[i]` is the load there.  Results
    are made in vectors along `column = column_group*width + lane`: `values`, flat `stores`, and `known[i]`, what the
    i-th turned load is in the values.  `direct` loads move as vectors beside the results.
    """

    other: Ax
    high: Ax
    low: Ax
    row: Ax
    column: Ax
    row_group: Ax
    column_group: Ax
    lane: Ax
    width: int
    values: tuple[Expr, ...]
    stores: tuple[Expr, ...]
    wide_stores: tuple[bool, ...]
    sources: tuple[Staged, ...]
    known: tuple[Load, ...]
    direct: tuple[Staged, ...]


def turn_view(body: Body) -> TurnView | str:
    """The body as a map with turned operands, or why it is none."""
    view = map_view(body)
    if isinstance(view, str):
        return view
    axes = stored_order(body.outs[0])
    flatten = Flatten(body.slots)
    for staged in staged_loads([flatten.apply(o.value, {}) for o in body.outs], ax("u", 1), axes[-1]) if axes else ():
        index = staged.load.index[0]
        unit = [a for a in axes[:-1] if lane_step(index, a) == 1]
        if unit and lane_step(index, axes[-1]) not in (0, 1):
            return TurnView(body, axes, unit[0], axes[-1])
    return "no operand runs along another axis than the results"


def turned(view: TurnView, tile: int, width: int = 1) -> Turned | str:
    """The view in square tiles of `tile` by `tile` and vectors of `width`, or why it has none of these."""
    if width > 1 and any(a.size is None or a.size % width for a in (view.across, view.along)):
        return f"an axis is no multiple of {width}"
    row, column = ax("row", tile), ax("column", tile)
    high = ax("high", idiv(iadd(view.across.extent, tile - 1), tile))
    low = ax("low", idiv(iadd(view.along.extent, tile - 1), tile))
    other = ax("other", total(view.others))
    env: dict[Ax, Expr] = {
        **decode(other, view.others),
        view.across: iadd(imul(high, tile), row),
        view.along: iadd(imul(low, tile), column),
    }
    flatten = Flatten(view.body.slots)
    plain = tuple(flatten.apply(o.value, env) for o in view.body.outs)
    loads = [s.load for s in staged_loads(plain, ax("u", 1), column) if _runs_across(s.load, row, column)]
    row_group, column_group, lane = ax("v", tile // width), ax("q", tile // width), ax("u", width)
    along_row: dict[Ax, Expr] = {row: iadd(imul(row_group, width), lane) if width > 1 else row_group}
    along_column: dict[Ax, Expr] = {column: iadd(imul(column_group, width), lane) if width > 1 else column_group}
    moved = {s.load: s for s in staged_loads([flatten.apply(v, along_row) for v in plain], lane, row_group)}
    turned = [flatten.apply(x, along_row) for x in loads]
    sources = [moved[x] for x in turned if isinstance(x, Load) and x in moved]
    if not loads or len(sources) < len(loads):
        return f"no turned operand moves in vectors of {width}"
    known = tuple(x for x in (flatten.apply(x, along_column) for x in loads) if isinstance(x, Load))
    values = tuple(flatten.apply(v, along_column) for v in plain)
    at = {a: flatten.apply(e, along_column) for a, e in env.items()}
    stores = tuple(flatten.offset(o.index, o.tensor.shape, at) for o in view.body.outs)
    wide = tuple(width > 1 and unit_run(s, lane) for s in stores)
    direct = tuple(s for s in staged_loads(values, lane, column_group) if s.load not in known)
    return Turned(
        other, high, low, row, column, row_group, column_group, lane, width, values, stores, wide,
        tuple(sources), known, direct,
    )  # fmt: skip


def _runs_across(node: Load, row: Ax, column: Ax) -> bool:
    index = node.index[0]
    return lane_step(index, row) == 1 and lane_step(index, column) not in (0, 1)
