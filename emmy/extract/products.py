"""Reads a fold as a product of two matrices: which axes belong to which factor."""

from __future__ import annotations

from dataclasses import dataclass

from emmy.ir.loop import Ax, Const, Expr, Fold, Load, Online, Op


@dataclass(frozen=True, slots=True)
class ProductAxes:
    """Axes of the first factor alone, of the second alone, of both, and those summed over."""

    m: frozenset[Ax]
    n: frozenset[Ax]
    batch: frozenset[Ax]
    k: frozenset[Ax]

    def turned(self) -> ProductAxes:
        """The same product with its factors exchanged."""
        return ProductAxes(self.n, self.m, self.batch, self.k)


def product_axes(node: Expr) -> ProductAxes | None:
    """The product that a fold computes, None where it is none.

    A sum is a product when two factors of its body each depend on loads and one has an axis that the other lacks.  The
    outermost of nested sums over several axes is meant, so an inner one is read with its own axis alone by its caller.
    An online sum of a loaded value is a product of the weights and the value.
    """
    if isinstance(node, Online):
        return _online(node)
    if not (isinstance(node, Fold) and node.kind == "sum"):
        return None
    k, body = {node.axis}, node.body
    while isinstance(body, Fold) and body.kind == "sum":
        k.add(body.axis)
        body = body.body
    body = _unmasked(body)
    factors = [f for f in _factors(body) if _loads(f)]
    if len(factors) < 2:
        return None
    return _split(factors, frozenset(k))


def _online(node: Online) -> ProductAxes | None:
    score, value = node.score.free | {node.axis}, node.value.free
    if not value - score:
        return None
    k = frozenset((node.axis,))
    return ProductAxes(score - value - k, value - score - k, (score & value) - k, k)


def _split(factors: list[Expr], k: frozenset[Ax]) -> ProductAxes | None:
    ranked = sorted(factors, key=lambda f: (-len(f.free - k), f.text))
    first = ranked[0].free - k
    others = [f.free - k for f in ranked[1:] if k & f.free]
    second = next((f for f in others if f - first), None)
    if second is None:
        # the smaller factor may still lack axes of the larger: a matrix times a vector
        narrow = [f for f in others if first - f]
        if not narrow:
            return None
        second = narrow[0]
    rest = frozenset[Ax]().union(*(f.free for f in factors)) - k - first - second
    return ProductAxes(first - second, second - first, (first & second) | rest, k)


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Op) and e.name == "mul":
        return [f for a in e.args for f in _factors(a)]
    return [e]


def _unmasked(e: Expr) -> Expr:
    """The product under a mask that puts zeros in its place."""
    while isinstance(e, Op) and e.name == "where" and isinstance(e.args[2], Const) and not e.args[2].value:
        e = e.args[1]
    return e


def _loads(e: Expr) -> bool:
    return isinstance(e, Load) or any(_loads(c) for c in e.children)


__all__ = ["ProductAxes", "product_axes"]
