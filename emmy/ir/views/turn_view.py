"""A map in which some operand runs along another axis than the results do (a transposed operand).

`along` is the axis in which results are neighbours in memory, `across` the one in which the turned operands are.  A
tile over both is read along `across` and written along `along`.
"""

from __future__ import annotations

from dataclasses import dataclass

from emmy.ir.build import iadd, idiv, imul
from emmy.ir.loop import Ax, Body, Expr, ax
from emmy.ir.views.flat import Flatten, decode, lane_step, total
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
    """The view at point (other, across = high*tile + row, along = low*tile + column) of a grid of square tiles.

    `values`, `stores` (flat) of the results; `turned` loads run along `row`.
    """

    other: Ax
    high: Ax
    low: Ax
    row: Ax
    column: Ax
    values: tuple[Expr, ...]
    stores: tuple[Expr, ...]
    turned: tuple[Staged, ...]


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


def turned(view: TurnView, tile: int) -> Turned:
    """The view in square tiles of `tile` by `tile`."""
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
    values = tuple(flatten.apply(o.value, env) for o in view.body.outs)
    stores = tuple(flatten.offset(o.index, o.tensor.shape, env) for o in view.body.outs)
    loads = tuple(
        s
        for s in staged_loads(values, ax("u", 1), column)
        if lane_step(s.load.index[0], row) == 1 and lane_step(s.load.index[0], column) not in (0, 1)
    )
    return Turned(other, high, low, row, column, values, stores, loads)
