"""Smart constructors of Loop IR expressions: infer types, fold constants, keep integer expressions canonical.

Integer (i64) expressions are kept as sums of `coefficient * monomial + constant` with terms sorted by text, so that
equal index arithmetic is equal by spelling.  `//` and `%` use what is known of an axis' range: with `i < 8`,
`(j*8 + i) // 8` is `j` and `(j*8 + i) % 8` is `i`; a symbolic extent works the same way.  Division is floor division
(arguments here are never negative divisors).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from emmy.ir.dtype import DTYPES, register
from emmy.ir.loop import Ax, Const, Expr, Fold, Load, Online, Op, Scan, Size, const, fold, load, online, op, scan
from emmy.ir.scalar import SCALAR

# Interned nodes make pure constructors cheap to remember; a large program builds the same nodes many times.
MEMO: Final = 1 << 18

Linear = dict[tuple[Expr, ...], int]  # sorted monomial -> coefficient; the empty monomial is the constant


def _terms(e: Expr) -> Linear:
    if isinstance(e, Const):
        return {(): int(e.value)} if e.value else {}
    if isinstance(e, Op) and e.dtype == "i64":
        if e.name == "add":
            out: Linear = {}
            for a in e.args:
                for m, c in _terms(a).items():
                    out[m] = out.get(m, 0) + c
            return out
        if e.name == "mul":
            left, right = (_terms(a) for a in e.args)
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
            divisor = list(_terms(d).items())
            if len(divisor) != 1 or not c:
                continue
            rest, (factors, times) = (*m[:k], *m[k + 1 :]), divisor[0]
            partner = tuple(sorted((*rest, *factors, op("floordiv", e, d, dtype="i64")), key=lambda y: y.text))
            if terms.get(partner) != c * times:
                continue
            out = {n: v for n, v in terms.items() if n not in (m, partner)}
            for n, v in _terms(e).items():
                key = tuple(sorted((*rest, *n), key=lambda y: y.text))
                out[key] = out.get(key, 0) + c * v
            return _rejoin(out)
    return terms


def _from_terms(terms: Linear) -> Expr:
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
        for m, c in _terms(const(x) if isinstance(x, int) else x).items():
            out[m] = out.get(m, 0) + c
    return _from_terms(out)


@lru_cache(maxsize=MEMO)
def imul(*xs: Expr | int) -> Expr:
    """Canonical product of integer expressions."""
    out: Linear = {(): 1}
    for x in xs:
        new: Linear = {}
        for n, d in _terms(const(x) if isinstance(x, int) else x).items():
            for m, c in out.items():
                key = tuple(sorted((*m, *n), key=lambda y: y.text))
                new[key] = new.get(key, 0) + c * d
        out = new
    return _from_terms(out)


def isub(x: Expr | int, y: Expr | int) -> Expr:
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


def _within(e: Expr, divisor: Expr) -> bool:
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
    dt = _terms(d)
    if len(dt) != 1:
        return {}, _terms(e)
    (dm, dc), *_ = dt.items()
    q: Linear = {}
    r: Linear = {}
    for m, c in _terms(e).items():
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
    rest = _from_terms(r)
    if _within(rest, d):
        return _from_terms(q)
    if isinstance(rest, Op) and rest.name == "floordiv" and isinstance(d, Const) and isinstance(rest.args[1], Const):
        tail = idiv(rest.args[0], const(int(d.value) * int(rest.args[1].value)))
    else:
        g = _common(r, d)
        if g > 1:
            tail = idiv(_from_terms({m: c // g for m, c in r.items()}), const(int(d.value) // g))  # type: ignore[attr-defined]
        else:
            tail = op("floordiv", rest, d, dtype="i64")
    return iadd(_from_terms(q), tail)


def _common(r: Linear, d: Expr) -> int:
    """A factor > 1 of a constant divisor and of every term, else 1."""
    if not isinstance(d, Const) or not r:
        return 1
    g = math.gcd(int(d.value), *(abs(c) for c in r.values()))
    return g


@lru_cache(maxsize=MEMO)
def imod(e: Expr | int, d: Expr | int) -> Expr:
    """Floor remainder by a positive extent: always in 0 .. d-1."""
    e, d = (const(x) if isinstance(x, int) else x for x in (e, d))
    if isinstance(d, Const) and int(d.value) == 1:
        return const(0)
    if isinstance(e, Const) and isinstance(d, Const) and int(d.value):
        return const(int(e.value) % int(d.value))
    _, r = _split(e, d)
    rest = _from_terms(r)
    if _within(rest, d):
        return rest
    if isinstance(d, Const) and isinstance(rest, Op) and rest.name == "mod" and isinstance(rest.args[1], Const):
        if int(rest.args[1].value) % int(d.value) == 0:
            return imod(rest.args[0], d)
    g = _common(r, d)
    if g > 1:
        inner = imod(_from_terms({m: c // g for m, c in r.items()}), const(int(d.value) // g))  # type: ignore[attr-defined]
        return imul(inner, g)
    return op("mod", rest, d, dtype="i64")


def result_dtype(name: str, args: tuple[Expr, ...]) -> str:
    """Register type of a scalar operation on these operands (operands of one kind; the frontend casts before)."""
    row = SCALAR[name]
    if row.result == "bool":
        return "bool"
    if row.result == "float":
        return "f32"
    types = [a.type for a in (args[1:] if name == "where" else args)]
    for t in ("f64", "f32"):
        if t in types:
            return t
    ints = [t for t in types if DTYPES[t].kind == "int"]
    return max(ints, key=lambda t: DTYPES[t].bits) if ints else types[0]


@lru_cache(maxsize=MEMO)
def scalar(name: str, *args: Expr) -> Expr:
    """The operation on these operands, simplified where the result is exactly the same value."""
    if all(a.type == "i64" for a in args):
        if name == "add":
            return iadd(*args)
        if name == "sub":
            return isub(*args)
        if name == "mul":
            return imul(*args)
        if name == "neg":
            return imul(args[0], -1)
        if name in ("floordiv", "mod") and (bounds(args[1])[0] or 0) > 0:
            return idiv(*args) if name == "floordiv" else imod(*args)
        if name in ("lt", "le", "eq", "ne"):
            known = _compare(name, args[0], args[1])
            if known is not None:
                return const(known, "bool")
    if name == "where":
        cond, yes, no = args
        if isinstance(cond, Const):
            return yes if cond.value else no
        yes, no = assume(yes, cond, True), assume(no, cond, False)
        if yes is no:
            return yes
        if isinstance(cond, Op) and cond.name == "lt" and isinstance(cond.args[0], Ax) and cond.args[1] is const(1):
            if not no.has_fold and _at_zero(no, cond.args[0]) is yes:
                return no  # the first element of a prefix that continues the rest
    if name in ("and", "or"):
        for a, b in (args, args[::-1]):
            if isinstance(a, Const):
                return (b if a.value else a) if name == "and" else (a if a.value else b)
        if args[0] is args[1]:
            return args[0]
    if name == "not" and isinstance(args[0], Const):
        return const(not args[0].value, "bool")
    if name == "where":
        return op(name, cond, yes, no, dtype=result_dtype(name, (cond, yes, no)))
    return op(name, *args, dtype=result_dtype(name, args))


def assume(e: Expr, cond: Expr, truth: bool) -> Expr:
    """The expression where a condition is known to be true or false; folds and scans are left as they are."""
    if not e.chooses or isinstance(e, Fold | Scan | Online):
        return e
    if e is cond:
        return const(truth, "bool")
    if e.type == "bool" and isinstance(e, Op) and (known := _implied(e, cond, truth)) is not None:
        return const(known, "bool")
    children = tuple(assume(c, cond, truth) for c in e.children)
    return rebuild(e, children) if children != e.children else e


def _implied(e: Op, cond: Expr, truth: bool) -> bool | None:
    """Whether a comparison of integers holds, given that another does (or does not)."""
    mine, known = _margin(e), _margin(cond)
    if mine is None or known is None:
        return None
    if not truth:  # not (known >= 0) is -known - 1 >= 0
        known = isub(const(-1), known)
    above, below = isub(mine, known), iadd(mine, known)
    if isinstance(above, Const) and int(above.value) >= 0:
        return True
    if isinstance(below, Const) and int(below.value) < 0:
        return False
    return None


def _margin(cond: Expr) -> Expr | None:
    """An integer that is >= 0 exactly where the comparison holds."""
    if not isinstance(cond, Op) or cond.name not in ("lt", "le") or any(a.type != "i64" for a in cond.args):
        return None
    x, y = cond.args
    return isub(y, x) if cond.name == "le" else isub(isub(y, x), 1)


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.dtype != "bool" and e.value == 0


def _at_zero(e: Expr, axis: Ax) -> Expr:
    """The expression (without folds) where an axis is 0."""
    if e is axis:
        return const(0)
    if axis not in e.free or isinstance(e, Ax):
        return e
    return rebuild(e, tuple(_at_zero(c, axis) for c in e.children))


def _compare(name: str, x: Expr, y: Expr) -> bool | None:
    if name == "lt" and _within(x, y):
        return True
    lo, hi = bounds(isub(x, y))
    if name == "lt":
        return True if hi is not None and hi < 0 else False if lo is not None and lo >= 0 else None
    if name == "le":
        return True if hi is not None and hi <= 0 else False if lo is not None and lo > 0 else None
    if (lo is not None and lo > 0) or (hi is not None and hi < 0):
        return name == "ne"
    return (name == "eq") if lo == 0 and hi == 0 else None


def cast(x: Expr, dtype: str) -> Expr:
    """`x` as `dtype`.  A cast that changes no value (f32 to f32, i64 to i64, bf16 load to f32) is `x` itself."""
    if dtype == "f32" and x.type == "f32":
        return x
    if isinstance(x, Load) and x.dtype == dtype:
        return x
    if DTYPES[dtype].kind != "float" and x.type == dtype:
        return x
    if isinstance(x, Op) and x.name == "cast" and x.dtype == dtype:
        return x
    if isinstance(x, Const):
        if dtype == "f32":
            return const(float(x.value), "f32")
        if dtype == "i64" and x.dtype in ("i32", "i16", "i8", "u8", "bool"):
            return const(int(x.value))
        if DTYPES[dtype].kind == "int" and DTYPES[x.dtype].kind == "int" and abs(int(x.value)) < 128:
            return const(int(x.value), dtype)
    return op("cast", x, dtype=dtype)


def rebuild(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """The same node over other children, simplified again.  Binders keep their axis."""
    if isinstance(node, Load):
        return load(node.slot, children, node.dtype)
    if isinstance(node, Op):
        if node.name == "cast":
            return cast(children[0], node.dtype)
        return scalar(node.name, *children)
    if isinstance(node, Fold):
        return fold(node.kind, node.axis, children[0], node.operand)
    if isinstance(node, Scan) and node.kind == "sum" and _is_zero(children[1]):
        return children[1]
    if isinstance(node, Scan):
        return scan(node.kind, node.axis, children[0], children[1])
    if isinstance(node, Online):
        return online(node.axis, children[0], children[1], node.operand)
    return node
