"""A score taken apart for online softmax: a positive factor, conditions, and what is left to compute.

    where(t <= i, 0.125 * dot, -inf)  ->  factor 0.125, conditions (t <= i), inner dot

The factor joins the exponent's log2(e); a score whose condition fails is -inf.
"""

from __future__ import annotations

from dataclasses import dataclass

from emmy.ir.loop import Const, Expr, Op


@dataclass(frozen=True, slots=True)
class Score:
    """score = factor * inner where every condition holds, else -inf."""

    factor: float
    conditions: tuple[Expr, ...]
    inner: Expr


def peel(score: Expr) -> Score:
    """Positive constant factors and `where(…, -inf)` from the outside in."""
    factor, conditions, e = 1.0, [], score
    while isinstance(e, Op):
        if e.name == "mul" and e.dtype == "f32" and (pair := _scaled(e)) is not None:
            factor, e = factor * pair[0], pair[1]
        elif e.name == "where" and isinstance(e.args[2], Const) and e.args[2].value == float("-inf"):
            conditions += _conjuncts(e.args[0])
            e = e.args[1]
        else:
            break
    return Score(factor, tuple(conditions), e)


def _scaled(e: Op) -> tuple[float, Expr] | None:
    for c, x in (e.args, e.args[::-1]):
        if isinstance(c, Const) and 0 < float(c.value) < float("inf"):
            return float(c.value), x
    return None


def _conjuncts(cond: Expr) -> list[Expr]:
    if isinstance(cond, Op) and cond.name == "and":
        return [c for a in cond.args for c in _conjuncts(a)]
    return [cond]
