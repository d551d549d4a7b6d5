"""Row scalars that a contraction gets from the tiles that it stages anyway.

A fold over the summed axis that only the results use, of loads that one staged part reads at the same points, needs no
pass of its own: whoever moves or reads a row's chunks adds them up as they pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from emmy.ir.loop import Ax, Expr, Fold, Load
from emmy.ir.views.access import run_side
from emmy.ir.views.contraction_view import ContractionView
from emmy.ir.views.converted import left_of
from emmy.ir.views.product import Part, outside_folds, top_folds

# kinds of folds whose partial results combine, with the operation that does so and its neutral element
COMBINE: Final = {
    "sum": ("add", 0.0),
    "prod": ("mul", 1.0),
    "max": ("max", float("-inf")),
    "min": ("min", float("inf")),
}


def ordered(scalars: Sequence[Expr]) -> list[Expr]:
    """The folds and those inside their bodies that do not depend on the folded axis, inner ones first."""
    found: dict[Expr, None] = {}

    def add_all(e: Expr) -> None:
        inside = e.body if isinstance(e, Fold) else None
        if inside is not None:
            for f in top_folds(inside):
                if isinstance(e, Fold) and e.axis not in f.free:
                    add_all(f)
        found.setdefault(e, None)

    for s in scalars:
        add_all(s)
    return list(found)


def gathered(
    scalars: Sequence[Expr], part: Part, own: Sequence[Ax], k: Sequence[Ax], early: Iterable[Expr] = ()
) -> list[Fold]:
    """The folds among `scalars` (`ordered`) that `part`'s tiles give; `early` are needed before the loop over k."""
    if len(k) != 1:
        return []
    needed: Collection[Expr] = set(early) | {f for s in scalars if isinstance(s, Fold) for f in top_folds(s.body)}
    found = []
    for s in scalars:
        if not isinstance(s, Fold) or s in needed or s.kind not in COMBINE or s.axis is not k[0]:
            continue
        loads = [n for n in outside_folds(s.body) if isinstance(n, Load)]
        whole = bool(loads) and all(n in part.loads for n in loads) and not top_folds(s.body)
        if whole and s.free & set(own):
            found.append(s)
    return found


def passing(view: ContractionView) -> list[Fold]:
    """The row scalars of the results that the left factor's tiles give to Hopper's consumers.

    Where they lie as the product takes them, a tile's rows must run along the summed axis: who reads a row reads what
    belongs to one scalar.  A factor that consumers compute shows each of them its own rows' elements, however they lie;
    what the factor itself needs is computed before.
    """
    left = left_of(view) if view.factor is not None else "no tensor cores"
    if len(view.parts_a) != 1 or isinstance(left, str):
        return []
    part = view.parts_a[0]
    if not left.computed and (part.plain is None or run_side(part, view.body, view.m, view.k) != "k"):
        return []
    return gathered(ordered(view.scalars_m), part, view.m, view.k, part.scalars)


__all__ = ["COMBINE", "gathered", "ordered", "passing"]
