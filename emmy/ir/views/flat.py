"""Bodies over linear axes: how addresses look when several axes are walked as one, and in vectors.

`flatten` rewrites an expression for other axes and turns every load into one with a flat element index, simplified as
far as mixed radices allow: with o0 = i // 77 and o1 = i % 77, element [o0, o1] of an [n, 77] tensor is element i.  With
i = q*8 + u and u < 8, a load whose index becomes (multiple of 8) + u can move as one vector of 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from emmy.ir.build import cast, scalar
from emmy.ir.integer import bounds, from_terms, iadd, idiv, imod, imul, isub, terms_of
from emmy.ir.loop import Ax, Const, Expr, Fold, Load, Online, Op, Scan, Tensor, const, fold, load, online, scan

Env = Mapping[Ax, Expr]
Terms = dict[tuple[Expr, ...], int]  # as emmy.ir.build has them: monomial -> coefficient


def divided(e: Expr, d: Expr) -> tuple[Expr, Expr]:
    """(e // d, e % d) for an extent d; with d = g*n and e = g*A + r, 0 <= r < g, that is (A // n, g*(A % n) + r)."""
    if isinstance(d, Const) and int(d.value) > 1:
        n = int(d.value)
        terms = terms_of(e)
        for g in sorted({math.gcd(n, c) for c in terms.values()} - {1}, reverse=True):
            rest = {m: c for m, c in terms.items() if c % g}
            low, high = bounds(from_terms(rest))
            if rest and low is not None and low >= 0 and high is not None and high < g:
                whole = from_terms({m: c // g for m, c in terms.items() if c % g == 0})
                q, r = divided(whole, const(n // g))
                return q, iadd(imul(r, g), from_terms(rest))
    return idiv(e, d), imod(e, d)


def recombined(e: Expr) -> Expr:
    """`(x // n)*n*k + (x % n)*k` becomes `x*k`, and `((x // n) % m)*n*k + (x % n)*k` becomes `(x % (n*m))*k`."""
    terms = dict(terms_of(e))
    changed = True
    while changed:
        changed = False
        for monomial in list(terms):
            better = _joined(terms, monomial)
            if better is not None:
                terms, changed = better, True
                break
    return from_terms(terms)


def _joined(terms: Terms, monomial: tuple[Expr, ...]) -> Terms | None:
    """The terms with one remainder and its quotient joined, None where they do not match."""
    c = terms[monomial]
    for f in dict.fromkeys(monomial):
        if not (isinstance(f, Op) and f.name == "mod" and f.dtype == "i64"):
            continue
        x, n = f.args
        others = list(monomial)
        others.remove(f)
        k = imul(const(c), *others)
        quotient = divided(x, n)[0]
        for whole, joined in _partners(terms, quotient, x, n):
            need = terms_of(imul(k, n, whole))
            if need and all(terms.get(m) == v for m, v in need.items()) and monomial not in need:
                rest = {m: v for m, v in terms.items() if m not in need and m != monomial}
                return terms_of(iadd(from_terms(rest), imul(k, joined)))
    return None


def _partners(terms: Terms, quotient: Expr, x: Expr, n: Expr) -> list[tuple[Expr, Expr]]:
    """What may stand for the quotient, and what it then joins to."""
    found = [(quotient, x)]
    for m in terms:
        for g in m:
            if isinstance(g, Op) and g.name == "mod" and g.dtype == "i64" and g.args[0] is quotient:
                found.append((g, divided(x, imul(n, g.args[1]))[1]))
    return found


class Flatten:
    """Rewrites expressions for new axes; loads get flat indices.  One instance keeps what is shared shared."""

    def __init__(self, slots: Sequence[Tensor]) -> None:
        self.slots = slots
        self.memo: dict[tuple[Expr, tuple[tuple[Ax, Expr], ...]], Expr] = {}

    def apply(self, node: Expr, env: Env) -> Expr:
        relevant = tuple(sorted(((a, env[a]) for a in node.free if a in env), key=lambda p: p[0].text))
        key = (node, relevant)
        done = self.memo.get(key)
        if done is None:
            done = self.memo[key] = self._apply(node, env)
        return done

    def offset(self, index: Sequence[Expr], shape: Sequence[Expr], env: Env) -> Expr:
        """The row-major element offset of an index, in the new axes."""
        total: Expr = const(0)
        for i, n in zip(index, shape, strict=True):
            total = iadd(imul(total, n), self.apply(i, env))
        return recombined(total)

    def _apply(self, node: Expr, env: Env) -> Expr:
        if isinstance(node, Ax):
            return env.get(node, node)
        if isinstance(node, Load):
            if len(node.index) == len(self.slots[node.slot].shape):
                return load(node.slot, (self.offset(node.index, self.slots[node.slot].shape, env),), node.dtype)
            return load(node.slot, (recombined(self.apply(node.index[0], env)),), node.dtype)
        if isinstance(node, Fold):
            return fold(node.kind, node.axis, self.apply(node.body, _without(env, node.axis)), node.operand)
        if isinstance(node, Scan):
            inner = _without(env, node.axis)
            return scan(node.kind, node.axis, self.apply(node.at, env), self.apply(node.body, inner))
        if isinstance(node, Online):
            inner = _without(env, node.axis)
            return online(node.axis, self.apply(node.score, inner), self.apply(node.value, inner), node.operand)
        if not isinstance(node, Op):
            return node
        args = tuple(self.apply(a, env) for a in node.args)
        if node.name in ("floordiv", "mod") and node.dtype == "i64" and (bounds(args[1])[0] or 0) > 0:
            return divided(*args)[0 if node.name == "floordiv" else 1]
        if node.name == "cast":
            return cast(args[0], node.dtype)
        return scalar(node.name, *args)


def _without(env: Env, axis: Ax) -> Env:
    return {a: e for a, e in env.items() if a is not axis} if axis in env else env


def decode(linear: Expr, axes: Sequence[Ax]) -> dict[Ax, Expr]:
    """The axes of a mixed-radix number, the last one fastest."""
    env: dict[Ax, Expr] = {}
    rest = linear
    for a in reversed(axes[1:]):
        rest, env[a] = divided(rest, a.extent)
    if axes:
        env[axes[0]] = rest
    return env


def total(axes: Sequence[Ax]) -> Expr:
    """The number of points of some axes."""
    return imul(const(1), *(a.extent for a in axes))


def lane_step(e: Expr, lane: Ax) -> int | None:
    """c where the integer `e` is (something without `lane`) + c*lane, None where it is anything else."""
    step = 0
    for m, c in terms_of(e).items():
        if lane in m:
            if m != (lane,):
                return None
            step = c
        elif any(lane in f.free for f in m):
            return None
    return step


def multiple(e: Expr, n: int) -> bool:
    """True when the integer is certainly a multiple of n: every coefficient is, or a factor of the term is."""
    return all(c % n == 0 or any(_factor(f, n) for f in m) for m, c in terms_of(e).items())


def _factor(f: Expr, n: int) -> bool:
    return isinstance(f, Op) and f.name == "cast" and multiple(f.args[0], n)


def vector(node: Load, lane: Ax) -> bool:
    """True when the lanes 0 .. extent-1 read one aligned run of elements (alignment counted in elements)."""
    return unit_run(node.index[0], lane)


def unit_run(index: Expr, lane: Ax) -> bool:
    """True when a flat index is (multiple of the lanes) + lane."""
    n = lane.size
    if n is None or lane_step(index, lane) != 1:
        return False
    return multiple(isub(index, lane), n)


def uniform(cond: Expr, lane: Ax) -> bool:
    """True when a condition is the same for all lanes of a group."""
    if lane not in cond.free:
        return True
    if not isinstance(cond, Op):
        return False
    if cond.name in ("and", "or", "not", "xor"):
        return all(uniform(a, lane) for a in cond.args)
    if cond.name not in ("lt", "le") or any(a.type != "i64" for a in cond.args):
        return False
    # x < y  <=>  d < 0 with d = x - y; d = n*m + lane or n*m - lane - 1 has the sign of m for every lane
    d = isub(cond.args[0], cond.args[1])
    if cond.name == "le":
        d = iadd(d, -1)
    step, n = lane_step(d, lane), lane.size
    if n is None or step not in (1, -1):
        return False
    return multiple(isub(d, lane), n) if step == 1 else multiple(iadd(d, lane, 1), n)
