"""Smart constructors of Loop IR expressions: infer types, fold constants, use what conditions imply.

Integer expressions are kept canonical by `emmy.ir.integer`, whose constructors are offered here too.
"""

from __future__ import annotations

from functools import lru_cache

from emmy.ir.dtype import DTYPES
from emmy.ir.integer import MEMO, bounds, iadd, idiv, imod, imul, is_within, isub
from emmy.ir.loop import Ax, Const, Expr, Fold, Load, Online, Op, Scan, const, fold, load, online, op, scan
from emmy.ir.scalar import SCALAR

__all__ = [
    "assume",
    "bounds",
    "cast",
    "iadd",
    "idiv",
    "imod",
    "imul",
    "isub",
    "rebuild",
    "result_dtype",
    "scalar",
]


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
    if name == "lt" and is_within(x, y):
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
