"""Products under a condition whose factors TMA brings: zeros arrive in place of rows that the operands do not have."""

from __future__ import annotations

from emmy.ir.loop import Body, Load
from emmy.ir.ranges import Ranges
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.converted import left_of, stored
from emmy.ir.views.reach import beyond, kept_in_range


def clipped_by_boxes(body: Body) -> bool:
    """True where no load of a warpgroup's kernel is made out of range, whatever the conditions around its sums are.

    Whichever side is the instruction's left one: every load that `kept_in_range` names is a tile of TMA's, and passes
    its extent by rows (or columns) of its own side alone, which its box leaves out (`emmy.ir.views.box`).
    """
    named = kept_in_range(body)
    view = contraction_view(body) if named else ""
    if isinstance(view, str):
        return not named
    # a compile that does not allow tf32 has no kernel of such factors
    view = view if view.factor is not None else view.in_tf32()
    return all(_clipped(v, named) for v in (view, view.swapped()))


def _clipped(v: ContractionView, named: tuple[Load, ...]) -> bool:
    assert v.factor is not None
    left = left_of(v)
    if isinstance(left, str):  # no kernel has this side on the left
        return True
    tiles = {*left.tiles, *(stored(p, v.factor) for p in v.parts_b)}
    for node in named:
        own = v.m if node.free & set(v.m) else v.n
        passed = [node.index[k] for k in beyond(node, v.body, Ranges({}))]
        if node not in tiles or len(own) != 1 or any(i is not own[0] for i in passed):
            return False
    return True


__all__ = ["clipped_by_boxes"]
