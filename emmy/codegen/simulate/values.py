"""Values of Kernel IR -> Python closures over a gang, compiled once a kernel.

A closure returns a value as `numbers` describes it.  Integers that all threads share stay Python ints, so that loop
counters and the indices that unrolled loops would make constant cost no array operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from emmy.codegen.simulate.numbers import (
    FLOATS,
    INTRINSIC,
    NUMPY,
    RAW,
    Value,
    convert,
    merge,
    promoted,
    tidy,
    uniform,
    wrap,
)
from emmy.ir.kernel import Bin, Builtin, Call, Convert, Elem, Lit, Select, Un, Var, X
from emmy.ir.scalar import SCALAR

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import Gang

Read = Callable[["Gang"], Value]
_COMPARE: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_LOGIC: Final[dict[str, Callable[[Value, Value], Value]]] = {"&&": operator.and_, "||": operator.or_}


def reader(x: X) -> Read:
    """The closure that computes a value."""
    if isinstance(x, Lit):
        constant = uniform(x.value, x.type)
        return lambda g: constant
    if isinstance(x, Var):
        return _register(x.name)
    if isinstance(x, Elem):
        return _element(x)
    if isinstance(x, Builtin):
        return operator.attrgetter(x.name)
    if isinstance(x, Bin):
        return _binary(x)
    if isinstance(x, Un):
        return _unary(x)
    if isinstance(x, Select):
        return _select(x)
    if isinstance(x, Convert):
        return converted(reader(x.a), x.a.type, x.type)
    return _call(x)


def converted(f: Read, old: str, new: str) -> Read:
    return f if old == new else lambda g: convert(f(g), old, new)


def _register(name: str) -> Read:
    def read(g: Gang) -> Value:
        if name in g.holes:
            g.check_set(name)
        return g.env[name]

    return read


def _element(x: Elem) -> Read:
    name, index = x.array, reader(x.index)

    def read(g: Gang) -> Value:
        return g.env[name].get(g, index(g))

    return read


def _binary(x: Bin) -> Read:
    if x.op in _LOGIC:
        return _plain(_LOGIC[x.op], *(converted(reader(v), v.type, "bool") for v in (x.a, x.b)))
    shift = x.op in ("<<", ">>")
    common = promoted(x.a.type, x.a.type) if shift else promoted(x.a.type, x.b.type)
    if x.a.type in RAW and x.b.type == x.a.type:
        common = x.a.type  # bits that are compared or masked
    a, b = (converted(reader(v), v.type, common) for v in (x.a, x.b))
    if x.op in _COMPARE:
        return _plain(_COMPARE[x.op], a, b)
    if common in FLOATS:
        return converted(_plain(_FLOAT[x.op], a, b), common, x.type)
    if common == "bool":
        return converted(_plain(_BITS[x.op], a, b), common, x.type)
    return converted(_integer(x.op, a, b, common), common, x.type)


def _plain(f: Callable[[Value, Value], Value], a: Read, b: Read) -> Read:
    return lambda g: f(a(g), b(g))


def truncated(a: Value, b: Value) -> Value:
    """C's integer quotient; a division by zero gives 0."""
    if isinstance(a, int) and isinstance(b, int):
        return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    q = np.floor_divide(a, b)
    return q + ((q * b != a) & ((np.less(a, 0)) != (np.less(b, 0)))).astype(q.dtype)


def remainder(a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return 0 if b == 0 else a - truncated(a, b) * b
    return np.fmod(a, b)


def _divided(a: Value, b: Value) -> Value:
    with np.errstate(all="ignore"):
        return np.true_divide(a, b)


_BITS: Final[dict[str, Callable[[Value, Value], Value]]] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
_FLOAT: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided, "%": np.fmod,
}  # fmt: skip
_INTEGER: Final[dict[str, Callable[[Value, Value], Value]]] = {
    **_BITS, "+": operator.add, "-": operator.sub, "*": operator.mul, "/": truncated, "%": remainder,
    "<<": lambda a, b: a << min(b, 64) if isinstance(b, int) and isinstance(a, int) else np.left_shift(a, b),
    ">>": operator.rshift,
}  # fmt: skip


def _integer(op: str, a: Read, b: Read, type: str) -> Read:
    f = _INTEGER[op]
    low, high = int(np.iinfo(NUMPY[type]).min), int(np.iinfo(NUMPY[type]).max)

    def read(g: Gang) -> Value:
        out = f(a(g), b(g))
        if isinstance(out, int) and not low <= out <= high:
            return wrap(out, type)
        return out

    return read


def _unary(x: Un) -> Read:
    if x.op == "!":
        a = converted(reader(x.a), x.a.type, "bool")
        return lambda g: not v if isinstance(v := a(g), bool) else ~v
    common = promoted(x.a.type, x.a.type)
    a = converted(reader(x.a), x.a.type, common)
    f = operator.neg if x.op == "-" else operator.invert
    if common in FLOATS:
        return converted(lambda g: f(a(g)), common, x.type)
    return converted(
        lambda g: wrap(f(v), common) if isinstance(v := a(g), int) else f(v), common, x.type
    )  # fmt: skip


def _select(x: Select) -> Read:
    cond = converted(reader(x.cond), x.cond.type, "bool")
    yes, no = (converted(reader(v), v.type, x.type) for v in (x.yes, x.no))

    def read(g: Gang) -> Value:
        c = cond(g)
        if isinstance(c, bool):
            return yes(g) if c else no(g)
        return merge(c, yes(g), no(g), x.type)

    return read


def _call(x: Call) -> Read:
    if x.name == "clock":
        return lambda g: g.ticks()
    args = [reader(a) for a in x.args]
    if x.name in ("floordiv_index", "floormod_index"):
        f = np.floor_divide if x.name == "floordiv_index" else np.mod
        a, b = (converted(r, v.type, x.type) for r, v in zip(args, x.args, strict=True))
        return lambda g: tidy(f(a(g), b(g)), x.type)
    if x.name in INTRINSIC:
        function = INTRINSIC[x.name]
        return lambda g: function(*(a(g) for a in args))
    if x.name == "cast":
        return converted(args[0], x.args[0].type, x.type)
    row = SCALAR[x.name]
    # operands arrive as arrays of their type (integers that threads share would not wrap)
    types = [v.type for v in x.args]

    def read(g: Gang) -> Value:
        values = [np.asarray(a(g), NUMPY[t]) for a, t in zip(args, types, strict=True)]
        return tidy(row.numpy(*values), x.type)

    return read
