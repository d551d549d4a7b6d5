"""Row scalars of a contraction that are made before its products, unless tiles give them as they pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from emmy.ir.loop import Ax, Body, Fold
from emmy.ir.views.contraction_view import contraction_view
from emmy.ir.views.gather import ordered, passing


@dataclass(frozen=True, slots=True)
class Statistic:
    """A fold of `length` elements for each row of the first factor (`along_m`), else for each column of the second.

    `passing`: a tensor-core kernel whose blocks, or clusters of blocks, see whole rows may add it up from tiles that it
    stages anyway.
    """

    along_m: bool
    length: int
    passing: bool


def statistics(body: Body, product: Callable[[Iterable[Ax]], int]) -> tuple[Statistic, ...]:
    """Of a contraction's results and factors; `product` gives the number of points of axes."""
    view = contraction_view(body)
    if isinstance(view, str):
        return ()
    given = set(passing(view))
    sides = ((True, view.scalars_m), (False, view.scalars_n))
    return tuple(
        Statistic(along_m, product((s.axis,)), s in given)
        for along_m, scalars in sides for s in ordered(scalars) if isinstance(s, Fold)
    )  # fmt: skip


__all__ = ["Statistic", "statistics"]
