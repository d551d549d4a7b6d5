"""Integer arithmetic of indices: sums, products, floor division and remainder in one canonical spelling.

Integer (i64) expressions are kept as sums of `coefficient * monomial + constant` with terms sorted by text, so that
equal index arithmetic is equal by spelling.  `//` and `%` use what is known of an axis' range: with `i < 8`,
`(j*8 + i) // 8` is `j` and `(j*8 + i) % 8` is `i`; a symbolic extent works the same way.  Division is floor division
(arguments here are never negative divisors).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from emmy.ir.loop import Ax, Const, Expr, Op, Size, const, op

# Interned nodes make pure constructors cheap to remember; a large program builds the same nodes many times.
MEMO: Final = 1 << 18

Linear = dict[tuple[Expr, ...], int]  # sorted monomial -> coefficient; the empty monomial is the constant


def terms_of(e: Expr) -> Linear:
    """The sum that an integer expression is: coefficients of monomials; what is no sum or product is one factor."""
    if isinstance(e, Const):
        return {(): int(e.value)} if e.value else {}
    if isinstance(e, Op) and e.dtype == "i64":
        if e.name == "add":
            out: Linear = {}
            for a in e.args:
                for m, c in terms_of(a).items():
                    out[m] = out.get(m, 0) + c
            return out
        if e.name == "mul":
            left, right = (terms_of(a) for a in e.args)
            out = {}
            for m, c in left.items():
                for n, d in right.items():
                    key = tuple(sorted((*m, *n), key=lambda x: x.text))
                    out[key] = out.get(key, 0) + c * d
            return out
    return {(e,): 1}


def _rejoin(terms: Linear) -> Linear:
    """c*d * (e // d) + c * (e % d)  ->  c * e, as where an axis is split and put together again."""
    for m, c in terms.items():
        for k, x in enumerate(m):
            if not (isinstance(x, Op) and x.name == "mod"):
                continue
            e, d = x.args
            divisor = list(terms_of(d).items())
            if len(divisor) != 1 or not c:
                continue
            rest, (factors, times) = (*m[:k], *m[k + 1 :]), divisor[0]
            partner = tuple(sorted((*rest, *factors, op("floordiv", e, d, dtype="i64")), key=lambda y: y.text))
            if terms.get(partner) != c * times:
                continue
            out = {n: v for n, v in terms.items() if n not in (m, partner)}
            for n, v in terms_of(e).items():
                key = tuple(sorted((*rest, *n), key=lambda y: y.text))
                out[key] = out.get(key, 0) + c * v
            return _rejoin(out)
    return terms


def from_terms(terms: Linear) -> Expr:
    """The expression of a sum of monomials in canonical order: the inverse of `terms_of`."""
    terms = _rejoin(terms)
    parts: list[Expr] = []
    for m in sorted((m for m in terms if m), key=lambda m: tuple(x.text for x in m)):
        c = terms[m]
        if c == 0:
            continue
        e = m[0]
        for x in m[1:]:
            e = op("mul", e, x, dtype="i64")
        parts.append(e if c == 1 else op("mul", e, const(c), dtype="i64"))
    c0 = terms.get((), 0)
    if c0 or not parts:
        parts.append(const(c0))
    e = parts[0]
    for p in parts[1:]:
        e = op("add", e, p, dtype="i64")
    return e


@lru_cache(maxsize=MEMO)
def iadd(*xs: Expr | int) -> Expr:
    """Canonical sum of integer expressions."""
    out: Linear = {}
    for x in xs:
        for m, c in terms_of(const(x) if isinstance(x, int) else x).items():
            out[m] = out.get(m, 0) + c
    return from_terms(out)


@lru_cache(maxsize=MEMO)
def imul(*xs: Expr | int) -> Expr:
    """Canonical product of integer expressions."""
    out: Linear = {(): 1}
    for x in xs:
        new: Linear = {}
        for n, d in terms_of(const(x) if isinstance(x, int) else x).items():
            for m, c in out.items():
                key = tuple(sorted((*m, *n), key=lambda y: y.text))
                new[key] = new.get(key, 0) + c * d
        out = new
    return from_terms(out)


def isub(x: Expr | int, y: Expr | int) -> Expr:
    """Canonical difference of integer expressions."""
    return iadd(x, imul(y, -1))


def bounds(e: Expr) -> tuple[int | None, int | None]:
    """Smallest and largest value an integer expression can take, None where unknown."""
    if isinstance(e, Const):
        return int(e.value), int(e.value)
    if isinstance(e, Ax):
        return 0, None if e.size is None else max(0, e.size - 1)
    if isinstance(e, Size):
        return 0, None
    if isinstance(e, Op) and e.dtype == "i64":
        if e.name in ("add", "mul", "min", "max"):
            (a, b), (c, d) = bounds(e.args[0]), bounds(e.args[1])
            if e.name == "add":
                return _plus(a, c), _plus(b, d)
            if e.name == "mul":
                if isinstance(e.args[1], Const) and int(e.args[1].value) < 0:
                    k = int(e.args[1].value)
                    return (None if b is None else b * k), (None if a is None else a * k)
                if a is not None and c is not None and a >= 0 and c >= 0:
                    return a * c, None if b is None or d is None else b * d
                return None, None
            if e.name == "min":
                lo = min(a, c) if a is not None and c is not None else None
                return lo, min((x for x in (b, d) if x is not None), default=None)
            lo = max((x for x in (a, c) if x is not None), default=None)
            return lo, max(b, d) if b is not None and d is not None else None
        if e.name == "floordiv" and isinstance(e.args[1], Const) and int(e.args[1].value) > 0:
            a, b = bounds(e.args[0])
            k = int(e.args[1].value)
            return (None if a is None else a // k), (None if b is None else b // k)
        if e.name == "floordiv":
            a, _ = bounds(e.args[0])
            return (0 if a is not None and a >= 0 else None), None
        if e.name == "mod":
            _, d = bounds(e.args[1])
            return 0, None if d is None else d - 1
        if e.name == "where":
            (a, b), (c, d) = bounds(e.args[1]), bounds(e.args[2])
            return (
                min(a, c) if a is not None and c is not None else None,
                max(b, d) if b is not None and d is not None else None,
            )
    return None, None


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def is_within(e: Expr, divisor: Expr) -> bool:
    """True when 0 <= e < divisor is certain."""
    lo, hi = bounds(e)
    if lo is None or lo < 0:
        return False
    if isinstance(divisor, Const):
        return hi is not None and hi < int(divisor.value)
    if isinstance(e, Ax):
        return e.extent is divisor
    return isinstance(e, Op) and e.name == "mod" and e.args[1] is divisor


def _split(e: Expr, d: Expr) -> tuple[Linear, Linear]:
    """(q, r) with e = q*d + r, where q takes every term that d divides (and whole multiples out of the constant)."""
    dt = terms_of(d)
    if len(dt) != 1:
        return {}, terms_of(e)
    (dm, dc), *_ = dt.items()
    q: Linear = {}
    r: Linear = {}
    for m, c in terms_of(e).items():
        rest = _without(m, dm)
        fits = rest is not None
        if fits and not dm and not m:
            if c // dc:
                q[()] = c // dc
            if c % dc:
                r[()] = c % dc
        elif rest is not None and c % dc == 0:
            q[rest] = q.get(rest, 0) + c // dc
        else:
            r[m] = c
    return q, r


def _without(m: tuple[Expr, ...], factors: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """The monomial divided by `factors`, None where it does not hold them all."""
    rest = list(m)
    for f in factors:
        if f not in rest:
            return None
        rest.remove(f)
    return tuple(rest)


@lru_cache(maxsize=MEMO)
def idiv(e: Expr | int, d: Expr | int) -> Expr:
    """Floor division by a positive extent."""
    e, d = (const(x) if isinstance(x, int) else x for x in (e, d))
    if isinstance(d, Const) and int(d.value) == 1:
        return e
    if isinstance(e, Const) and isinstance(d, Const) and int(d.value):
        return const(int(e.value) // int(d.value))
    q, r = _split(e, d)
    rest = from_terms(r)
    if is_within(rest, d):
        return from_terms(q)
    if isinstance(rest, Op) and rest.name == "floordiv" and isinstance(d, Const) and isinstance(rest.args[1], Const):
        tail = idiv(rest.args[0], const(int(d.value) * int(rest.args[1].value)))
    else:
        g = _common(r, d)
        if isinstance(d, Const) and g > 1:
            tail = idiv(from_terms({m: c // g for m, c in r.items()}), const(int(d.value) // g))
        else:
            tail = op("floordiv", rest, d, dtype="i64")
    return iadd(from_terms(q), tail)


def _common(r: Linear, d: Expr) -> int:
    """A factor > 1 of a constant divisor and of every term, else 1."""
    if not isinstance(d, Const) or not r:
        return 1
    return math.gcd(int(d.value), *(abs(c) for c in r.values()))


@lru_cache(maxsize=MEMO)
def imod(e: Expr | int, d: Expr | int) -> Expr:
    """Floor remainder by a positive extent: always in 0 .. d-1."""
    e, d = (const(x) if isinstance(x, int) else x for x in (e, d))
    if isinstance(d, Const) and int(d.value) == 1:
        return const(0)
    if isinstance(e, Const) and isinstance(d, Const) and int(d.value):
        return const(int(e.value) % int(d.value))
    _, r = _split(e, d)
    rest = from_terms(r)
    if is_within(rest, d):
        return rest
    if isinstance(d, Const) and isinstance(rest, Op) and rest.name == "mod" and isinstance(rest.args[1], Const):
        if int(rest.args[1].value) % int(d.value) == 0:
            return imod(rest.args[0], d)
    g = _common(r, d)
    if isinstance(d, Const) and g > 1:
        inner = imod(from_terms({m: c // g for m, c in r.items()}), const(int(d.value) // g))
        return imul(inner, g)
    return op("mod", rest, d, dtype="i64")
