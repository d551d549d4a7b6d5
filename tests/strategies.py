"""Hypothesis strategies shared by all tests: integer arithmetic, bodies of Loop IR.  See also `program_strategies` and
`kernel_strategies`.

Everything is small (extents up to 12 or the symbolic size `s`, a few axes), in range (no load leaves its operand) and
tame (values stay finite, so that two orders of the same sum agree to a tolerance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from emmy.ir.build import cast, iadd, idiv, imod, imul, isub, scalar
from emmy.ir.dtype import is_float
from emmy.ir.evaluate import integer, numpy_dtype
from emmy.ir.loop import Ax, Body, Const, Expr, Out, Size, Tensor, ax, const, fold, load, online, scan, size

SIZES = {"s": 6}

# ---- integer arithmetic: a tree with two readings, ours and Python's -------------------------------------------------


@dataclass(frozen=True)
class Arith:
    """`op` over `args`; a leaf holds an axis, a size or a number."""

    op: str
    args: tuple[Arith, ...] = ()
    leaf: Ax | Size | int = 0

    def expr(self) -> Expr:
        if self.op == "leaf":
            return const(self.leaf) if isinstance(self.leaf, int) else self.leaf
        x, y = (a.expr() for a in self.args)
        build = {"add": iadd, "sub": isub, "mul": imul, "floordiv": idiv, "mod": imod}
        if self.op in build:
            return build[self.op](x, y)
        return scalar(self.op, x, y)

    def at(self, axes: Mapping[Ax, int], sizes: Mapping[str, int]) -> int:
        if self.op == "leaf":
            if isinstance(self.leaf, Ax):
                return axes[self.leaf]
            return sizes[self.leaf.name] if isinstance(self.leaf, Size) else self.leaf
        x, y = (a.at(axes, sizes) for a in self.args)
        if self.op == "add":
            return x + y
        if self.op == "sub":
            return x - y
        if self.op == "mul":
            return x * y
        if self.op == "floordiv":
            return x // y
        if self.op == "mod":
            return x % y
        return max(x, y) if self.op == "max" else min(x, y)

    def __repr__(self) -> str:
        return str(self.leaf) if self.op == "leaf" else f"{self.op}({', '.join(map(repr, self.args))})"


def arithmetic(axes: tuple[Ax, ...], sizes: tuple[Size, ...] = ()) -> st.SearchStrategy[Arith]:
    """Trees over these axes, sizes and small numbers; every divisor is positive."""
    leaves = st.one_of(
        st.sampled_from([Arith("leaf", leaf=a) for a in (*axes, *sizes)]),
        st.integers(-8, 24).map(lambda n: Arith("leaf", leaf=n)),
    )
    extents = [Arith("leaf", leaf=e) for e in sizes]
    divisors = st.one_of(
        st.integers(1, 12).map(lambda n: Arith("leaf", leaf=n)), *([st.sampled_from(extents)] if extents else [])
    )

    def grow(inner: st.SearchStrategy[Arith]) -> st.SearchStrategy[Arith]:
        any_two = st.tuples(st.sampled_from(("add", "sub", "mul", "min", "max")), st.tuples(inner, inner))
        divided = st.tuples(st.sampled_from(("floordiv", "mod")), st.tuples(inner, divisors))
        return st.one_of(any_two, divided).map(lambda p: Arith(p[0], p[1]))

    return st.recursive(leaves, grow, max_leaves=8)


# ---- expressions and bodies ------------------------------------------------------------------------------------------

S = size("s")
EXTENTS = (*map(const, (1, 2, 3, 4, 6, 8, 12)), S)
UNARY = ("neg", "abs", "tanh", "sigmoid", "sin", "floor")
BINARY = ("add", "sub", "mul", "max", "min")


def tensors(dtypes: tuple[str, ...] = ("f32", "bf16"), max_rank: int = 3) -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=max_rank)
    return st.builds(lambda d, s: Tensor(d, tuple(s)), st.sampled_from(dtypes), shapes)


@st.composite
def indices(draw: st.DrawFn, extent: Expr, scope: tuple[Ax, ...]) -> Expr:
    """An integer expression that stays in 0 .. extent-1."""
    form = draw(st.sampled_from(("axis", "axis", "axis", "const", "div", "mixed", "reverse")))
    if form == "const" or not scope:
        return const(draw(st.integers(0, number(extent) - 1)))
    axis = draw(st.sampled_from(scope))
    if form == "div":
        return imod(idiv(axis, draw(st.sampled_from((const(2), const(3), const(4), S)))), extent)
    if form == "mixed":
        other = draw(st.sampled_from(scope))
        return imod(iadd(imul(axis, other.extent), other), extent)
    if form == "reverse":
        return isub(isub(extent, 1), imod(axis, extent))
    fits = axis.extent is extent or (axis.size is not None and axis.size <= number(extent))
    return axis if fits else imod(axis, extent)


def number(extent: Expr) -> int:
    """The extent; the least one of a symbolic size."""
    return int(extent.value) if isinstance(extent, Const) else 1


@st.composite
def loads(draw: st.DrawFn, slots: tuple[Tensor, ...], scope: tuple[Ax, ...]) -> Expr:
    slot = draw(st.integers(0, len(slots) - 1))
    index = tuple(draw(indices(e, scope)) for e in slots[slot].shape)
    return load(slot, index, slots[slot].dtype)


@st.composite
def conditions(draw: st.DrawFn, scope: tuple[Ax, ...]) -> Expr:
    axis: Expr = draw(st.sampled_from(scope)) if scope else const(1)
    other = draw(st.sampled_from((*scope, const(1), const(3))))
    return scalar(draw(st.sampled_from(("lt", "le", "eq", "ne"))), axis, other)


@st.composite
def values(draw: st.DrawFn, slots: tuple[Tensor, ...], scope: tuple[Ax, ...], depth: int = 3, folds: int = 2) -> Expr:
    """A float expression over the operands and the axes in scope; sums are bounded by tanh inside."""
    forms = ["load", "load", "const", "axis"]
    if depth:
        forms += ["unary", "binary", "binary", "binary", "where", "cast"]
        forms += ["fold", "fold", "scan", "online"] if folds else []
    form = draw(st.sampled_from(forms))
    if form == "load" and slots:
        return draw(loads(slots, scope))
    if form == "axis" and scope:
        return cast(draw(st.sampled_from(scope)), "f32")
    if not depth or form in ("load", "axis", "const"):
        return const(draw(st.sampled_from((0.0, 1.0, -1.5, 0.25))), "f32")
    if form == "unary":
        return scalar(draw(st.sampled_from(UNARY)), draw(values(slots, scope, depth - 1, folds)))
    if form == "cast":
        return cast(draw(values(slots, scope, depth - 1, folds)), "bf16")
    if form in ("binary", "where"):
        x, y = (draw(values(slots, scope, depth - 1, folds)) for _ in range(2))
        if form == "where":
            return scalar("where", draw(conditions(scope)), x, y)
        return scalar(draw(st.sampled_from(BINARY)), x, y)
    axis = ax(draw(st.sampled_from(("u", "v", "w"))), draw(st.sampled_from(EXTENTS)))
    inner = (*(a for a in scope if a.name != axis.name), axis)
    bodies = values(slots, inner, depth - 1, folds - 1).map(lambda e: scalar("tanh", e))
    operand = draw(st.sampled_from(("", "bf16")))
    if form == "fold":
        kind = draw(st.sampled_from(("sum", "max", "min", "m2")))
        return fold(kind, axis, draw(bodies), operand if kind == "sum" else "")
    if form == "online":
        return online(axis, draw(bodies), draw(bodies), operand)
    at = imod(draw(st.sampled_from(scope)), axis.extent) if scope else isub(axis.extent, 1)
    return scan(draw(st.sampled_from(("sum", "max"))), axis, at, draw(bodies))


@st.composite
def outputs(draw: st.DrawFn, slots: tuple[Tensor, ...], max_rank: int = 3, depth: int = 3) -> Out:
    """One result stored plainly: element [i, j, …] at axes i, j, …"""
    shape = draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=max_rank))
    axes = tuple(ax(name, n) for name, n in zip("ijkl", shape, strict=False))
    value = draw(values(slots, axes, depth))
    return Out(axes, axes, value, Tensor(draw(st.sampled_from(("f32", "bf16"))), tuple(a.extent for a in axes)))


@st.composite
def bodies(draw: st.DrawFn, max_outs: int = 2, depth: int = 3) -> Body:
    """A body as a front end might write it: not normalized, some operands possibly unused."""
    slots = tuple(draw(st.lists(tensors(), min_size=1, max_size=3)))
    outs = draw(st.lists(outputs(slots, depth=depth), min_size=1, max_size=max_outs))
    return Body(tuple(outs), slots)


def operand(tensor: Tensor, sizes: Mapping[str, int] = SIZES, seed: int = 0) -> np.ndarray:
    """Values for an operand: standard normal, rounded to what the type can hold; small numbers for integers."""
    rng = np.random.default_rng(seed)
    shape = [integer(e, sizes) for e in tensor.shape]
    if not is_float(tensor.dtype):
        return rng.integers(0, 2 if tensor.dtype == "bool" else 5, shape).astype(numpy_dtype(tensor.dtype))
    return rng.standard_normal(shape).astype(numpy_dtype(tensor.dtype)).astype(np.float64)


def operands(body: Body, sizes: Mapping[str, int] = SIZES, seed: int = 0) -> list[np.ndarray]:
    return [operand(t, sizes, seed * 100 + k) for k, t in enumerate(body.slots)]


__all__ = ["SIZES", "Arith", "arithmetic", "bodies", "number", "operand", "operands", "outputs", "tensors", "values"]
