"""Values that results show in 16 bits only: their functions may be off by more than f32's last place.

A value is coarse where everything that reads it rounds it to bf16 or f16, or passes its relative error on unchanged
(a product, a quotient, a sign) to a value that is coarse.  A sum is no such reader: what cancels shows every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emmy.ir.loop import Body, Expr, Op, visit

HALVES: Final = ("bf16", "f16")
ROUNDED: Final = (*HALVES, "tf32")  # as many bits of mantissa as f16
PASSING: Final = ("mul", "div", "neg", "abs")


def coarse(body: Body) -> frozenset[Expr]:
    """The f32 operations of a body that are coarse."""
    return _coarse_under({o.value: {p.tensor.dtype for p in body.outs if p.value is o.value} for o in body.outs})


def coarse_factor(value: Expr, type: str) -> frozenset[Expr]:
    """The f32 operations of a factor that a schedule rounds to `type` which are coarse there."""
    return _coarse_under({value: {type}})


def _coarse_under(stored: dict[Expr, set[str]]) -> frozenset[Expr]:
    """`stored`: values with the types to which they are rounded."""
    seen: dict[Expr, None] = {}
    for value in stored:
        visit(value, seen)
    readers: dict[Expr, list[Expr]] = {}
    for node in seen:
        for child in node.children:
            readers.setdefault(child, []).append(node)
    found: dict[Expr, bool] = {}
    return frozenset(n for n in seen if isinstance(n, Op) and n.type == "f32" and _coarse(n, readers, stored, found))


def _coarse(node: Expr, readers: dict[Expr, list[Expr]], stored: dict[Expr, set[str]], found: dict[Expr, bool]) -> bool:
    if node not in found:
        by = readers.get(node, ())
        found[node] = all(t in ROUNDED for t in stored.get(node, ())) and all(
            _passes(r, readers, stored, found) for r in by
        )
    return found[node]


def _passes(
    reader: Expr, readers: dict[Expr, list[Expr]], stored: dict[Expr, set[str]], found: dict[Expr, bool]
) -> bool:
    if not isinstance(reader, Op):
        return False
    if reader.name == "cast" and reader.dtype in HALVES:
        return True
    return reader.type == "f32" and reader.name in PASSING and _coarse(reader, readers, stored, found)


def one_plus_tanh(e: Expr) -> Expr | None:
    """u where `e` is 1 + tanh(u), which is 2 / (1 + exp(-2u)): half of GELU's approximation."""
    if not isinstance(e, Op) or e.name != "add":
        return None
    pairs: Sequence[tuple[Expr, Expr]] = ((e.args[0], e.args[1]), (e.args[1], e.args[0]))
    for one, other in pairs:
        if getattr(one, "value", None) == 1.0 and isinstance(other, Op) and other.name == "tanh":
            return other.args[0]
    return None


__all__ = ["coarse", "coarse_factor", "one_plus_tanh"]
