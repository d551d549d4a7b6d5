"""Hypothesis strategies shared by all tests: integer arithmetic, bodies of Loop IR, programs of Tensor IR.

Everything is small (extents up to 12 or the symbolic size `s`, a few axes), in range (no load leaves its operand) and
tame (values stay finite, so that two orders of the same sum agree to a tolerance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from emmy.ir.build import cast, iadd, idiv, imod, imul, isub, scalar
from emmy.ir.dtype import is_float
from emmy.ir.evaluate import integer, numpy_dtype
from emmy.ir.loop import Ax, Body, Const, Expr, Out, Size, Tensor, ax, const, fold, load, online, op, scan, size
from emmy.ir.tensor import Program, Term, Terms, broadcast, coordinates

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


# ---- programs of Tensor IR -------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class RandomProgram:
    """A program, the term ids of its parameters, values of its inputs, and how it was made.  `smooth`: no rounding
    step, comparison or index depends on computed values, so that rounding moves the results by little."""

    program: Program
    parameters: frozenset[int]
    arrays: tuple[np.ndarray, ...]
    steps: tuple[str, ...]
    smooth: bool

    def __repr__(self) -> str:
        return "\n".join(self.steps)


class _Writer:
    """Draws one operation after another over a pool of tensors."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.t, self.steps = draw, Terms(), []  # type: ignore[var-annotated]
        self.smooth = True
        self.parameters: set[int] = set()
        a, b, c = (draw(st.sampled_from((2, 3, 4, 6, 1))) for _ in range(3))
        main = draw(st.sampled_from(("f32", "bf16", "f16")))
        self.extents = (a, b, c)
        self.pool = [self.input(main, a, b), self.input(main, a, b), self.input(main, 2, a, b)]
        self.vectors = [self.input(main, n, parameter=True) for n in dict.fromkeys((a, b, c))]
        self.weights = [self.input(main, c, b, parameter=True), self.input(main, b, b, parameter=True)]
        self.weights.append(self.input(main, b, c, parameter=True))
        self.index = self.input("i64", draw(st.integers(1, 4)))
        self.mask = self.input("bool", a, b)

    def input(self, dtype: str, *shape: int, parameter: bool = False) -> int:
        x = self.t.input(Tensor(dtype, tuple(map(const, shape))))
        if parameter:
            self.parameters.add(x)
        self.steps.append(f"{x} = input {self.t.tensor(x).text}{' parameter' if parameter else ''}")
        return x

    def one(self, *options: object) -> Any:
        return self.draw(st.sampled_from(options))

    def any(self, least: int = 0) -> int:
        """A tensor of the pool of at least that rank; late ones are drawn more often."""
        found = [x for x in self.pool if len(self.t.shape(x)) >= least]
        return int(self.one(*found, *found[-2:] * 2, *found[-1:] * 12))

    def axis(self, x: int) -> int:
        return int(self.draw(st.integers(0, len(self.t.shape(x)) - 1)))

    def step(self, forms: Sequence[str]) -> None:
        name = self.one(*forms)
        before = len(self.t.terms)
        made = getattr(self, f"do_{name}")()
        if made is None or len(self.t.terms) == before:
            return
        self.steps.append(f"{made} = {name} -> " + "; ".join(_show(t) for t in self.t.terms[before:]))
        self.pool.append(made)

    # ---- element-wise
    def do_unary(self) -> int:
        return self.t.un(self.one("neg", "abs", "tanh", "sigmoid", "sin", "erf"), self.any())

    def do_power(self) -> int:
        x = self.any()
        square = self.t.bin("add", self.t.bin("mul", x, x), self.t.full(0.5))
        return self.t.un(self.one("rsqrt", "sqrt", "log", "recip"), square)

    def do_exp(self) -> int:
        return self.t.un("exp", self.t.un("tanh", self.any()))

    def do_binary(self) -> int:
        x = self.any()
        return self.t.bin(self.one("add", "sub", "mul", "max", "min"), x, self.partner(x))

    def do_product(self) -> int:
        x = self.any()
        return self.t.bin("mul", x, self.partner(x))

    def do_constant(self) -> int:
        return self.t.bin(self.one("add", "mul"), self.any(), self.t.full(self.one(0.5, -1.25, 2.0)))

    def partner(self, x: int) -> int:
        """A tensor that broadcasts with `x`: itself, another, a vector over the last axis, or a statistic."""
        found = [y for y in (*self.pool, *self.vectors) if _broadcasts(self.t.shape(x), self.t.shape(y))]
        return int(self.one(*found))

    def do_where(self) -> int | None:
        x = self.any()
        y = self.partner(x)
        kind = self.one("mask", "causal", "compare")
        shape = broadcast(self.t.shape(x), self.t.shape(y))
        if kind == "mask":
            return self.t.where(self.mask, x, y) if _broadcasts(shape, self.t.shape(self.mask)) else None
        if kind == "causal" and len(shape) >= 2:
            d = coordinates(shape)
            return self.t.where(self.t.iota(op("le", d[-1], d[-2], dtype="bool"), shape, "bool"), x, y)
        self.smooth = False
        return self.t.where(self.t.bin(self.one("lt", "le"), x, y), x, y)

    def do_cast(self) -> int:
        self.smooth = False  # rounds in the middle of a launch
        return self.t.cast(self.any(), self.one("f32", "bf16", "f16"))

    def do_store_as(self) -> int:
        return self.t.store_as(self.any(), "f32")

    def do_gelu(self) -> int:
        return self.t.gelu(self.any(), self.one("none", "tanh"))

    def do_silu(self) -> int:
        return self.t.silu(self.any())

    # ---- reductions
    def do_reduce(self) -> int:
        x = self.t.store_as(self.any(1), "f32")
        rank = len(self.t.shape(x))
        axes = self.one(*[(a,) for a in range(rank)], tuple(range(rank)), tuple(range(1, rank)) or (0,))
        return self.t.reduce(self.one("sum", "sum", "max", "min"), x, axes, self.draw(st.booleans()))

    def do_mean(self) -> int:
        x = self.any(1)
        return self.t.mean(x, (self.axis(x),), self.draw(st.booleans()))

    def do_var(self) -> int:
        x = self.any(1)
        return self.t.var(x, (self.axis(x),), 0.0, self.draw(st.booleans()))

    def do_rms_norm(self) -> int:
        x = self.any(1)
        return self.t.rms_norm(x, (len(self.t.shape(x)) - 1,), 0.25)

    def do_layer_norm(self) -> int:
        x = self.any(1)
        return self.t.layer_norm(x, (len(self.t.shape(x)) - 1,), 0.25)

    def do_softmax(self) -> int:
        x = self.any(1)
        return self.t.softmax(x, self.axis(x), self.one("Softmax", "LogSoftmax", "SafeSoftmax"))

    def do_arg(self) -> int:
        """Of values that lie apart: which of two equal ones is taken depends on the last bit of a sum."""
        self.smooth = False
        x = self.any(1)
        d = coordinates(self.t.shape(x))
        place = self.t.cast(self.t.iota(iadd(*(imul(e, 3 + k) for k, e in enumerate(d))), self.t.shape(x)), "f32")
        x = self.t.bin("add", self.t.un("tanh", x), self.t.bin("mul", place, self.t.full(0.37)))
        found = self.t.arg_reduce(self.one("max", "min"), x, self.axis(x), self.draw(st.booleans()))
        return self.t.cast(found, "f32")

    def do_scan(self) -> int:
        x = self.any(1)
        return self.t.scan(self.one("sum", "max"), self.t.store_as(x, "f32"), self.axis(x))

    # ---- contractions
    def do_linear(self) -> int | None:
        x = self.any(2)
        fits = [w for w in self.weights if self.t.shape(w)[1] is self.t.shape(x)[-1]]
        return self._linear(x, self.one(*fits)) if fits else None

    def do_siblings(self) -> int | None:
        x = self.any(2)
        fits = [w for w in self.weights if self.t.shape(w)[1] is self.t.shape(x)[-1]]
        if len(fits) < 2:
            return None
        products = [self._linear(x, w) for w in fits[:2]]
        self.pool += products[:1]
        return products[1]

    def _linear(self, x: int, w: int) -> int:
        (*lead, k), n, m = self.t.shape(x), self.t.shape(w)[0], len(self.t.shape(x)) - 1
        full, out = (*lead, k, n), (*lead, n)
        d, o = coordinates(full), coordinates(out)
        return self.t.contract("linear", x, d[: m + 1], w, (d[m + 1], d[m]), full, (m,), out, (*o[:m], const(0), o[m]))

    def do_matmul(self) -> int | None:
        """x times the transpose of another tensor of the pool."""
        x = self.any(2)
        pairs = [y for y in self.pool if len(self.t.shape(y)) == 2 and self.t.shape(y)[1] is self.t.shape(x)[-1]]
        return self._linear(x, self.one(*pairs)) if pairs else None

    def do_attention(self) -> int | None:
        """Two products with a softmax between, written whole or by hand."""
        x = self.any(2)
        same = [y for y in self.pool if self.t.shape(y) == self.t.shape(x) and self.t.dtype(y) == self.t.dtype(x)]
        k, v = self.one(*same), self.one(*same)
        mask = self.one("full", "causal")
        return self.t.sdpa(x, k, v, None, mask == "causal", 0.5)

    # ---- layout and access
    def do_transpose(self) -> int:
        x = self.any(2)
        order = self.draw(st.permutations(range(len(self.t.shape(x)))))
        return self.t.permute(x, order)

    def do_reshape(self) -> int:
        x = self.any(1)
        shape = self.t.shape(x)
        flat = self.one((imul(*shape),), (*shape[:-2], imul(*shape[-2:])), (const(1), *shape), tuple(reversed(shape)))
        return self.t.reshape(x, flat)

    def do_slice(self) -> int | None:
        x = self.any(1)
        axis = self.axis(x)
        n = number(self.t.shape(x)[axis])
        start = self.draw(st.integers(0, n - 1))
        step = self.one(1, 2)
        return self.t.slice(x, axis, const(start), step, const(-(-(n - start) // step)))

    def do_pad(self) -> int:
        x = self.any(1)
        axis, before, after = self.axis(x), self.one(0, 1), self.one(1, 2)
        shape = list(self.t.shape(x))
        shape[axis] = iadd(shape[axis], before + after)
        d = coordinates(tuple(shape))
        return self.t.map(x, [isub(e, before) if k == axis else e for k, e in enumerate(d)], tuple(shape), 0.0)

    def do_flip(self) -> int:
        x = self.any(1)
        axis, shape = self.axis(x), self.t.shape(x)
        d = coordinates(shape)
        return self.t.map(x, [isub(isub(shape[k], 1), e) if k == axis else e for k, e in enumerate(d)], shape)

    def do_expand(self) -> int:
        x = self.any()
        return self.t.expand(x, (const(2), *self.t.shape(x)))

    def do_gather(self) -> int:
        """Rows of a tensor by an input of indices."""
        x = self.any(1)
        (n, *rest), (m,) = self.t.shape(x), self.t.shape(self.index)
        shape = (m, *rest)
        d = coordinates(shape)
        return self.t.gather(x, (imod(load(1, (d[0],), "i64"), n), *d[1:]), [self.index], shape)

    def do_scatter(self) -> int:
        """Rows of a tensor added to (or written over) those of another that an input of indices names."""
        x = self.any(1)
        n, (m,) = self.t.shape(x)[0], self.t.shape(self.index)
        j, d = ax("j", m), coordinates(self.t.shape(x))
        hit = scalar("eq", imod(load(1, (j,), "i64"), n), d[0])
        mode = self.one("set", "sum", "amax")
        return self.t.scatter(mode, m, hit, (imod(j, n), *d[1:]), x, [self.index], self.any_like(x))

    def any_like(self, x: int) -> int:
        return int(self.one(*(y for y in self.pool if self.t.tensor(y) == self.t.tensor(x))))

    def do_position(self) -> int:
        """Adds an expression of the coordinates, such as a position encoding."""
        x = self.any(1)
        d = coordinates(self.t.shape(x))
        return self.t.bin("add", x, self.t.cast(self.t.iota(iadd(*d), self.t.shape(x)), "f32"))


# Every other operation is one that a launch boundary can stand beside, so that most programs have something to fuse.
LIGHT = (
    "unary", "power", "exp", "binary", "product", "constant", "where", "cast", "store_as", "gelu", "silu",
    "transpose", "reshape", "slice", "pad", "flip", "expand", "gather", "scatter", "position",
)  # fmt: skip
HEAVY = (
    "linear", "softmax", "rms_norm", "reduce", "siblings", "mean", "layer_norm", "matmul", "var", "attention", "arg",
    "scan",
)  # fmt: skip


def _show(term: Term) -> str:
    args = " ".join(f"[{','.join(e.text for e in a)}]" if isinstance(a, tuple) else str(a) for a in term.args)
    return f"{term.id}:{term.kind} {args}"


def _broadcasts(x: Sequence[Expr], y: Sequence[Expr]) -> bool:
    """Whether the common shape is that of `x`."""
    if len(y) > len(x):
        return False
    return all(b is a or b is const(1) for a, b in zip(reversed(x), reversed(y), strict=False))


@st.composite
def programs(draw: st.DrawFn, least: int = 4, most: int = 7) -> RandomProgram:
    """A small program of the supported operations; its outputs are what nothing reads, and sometimes one more."""
    from emmy.frontend.translate.program import prune

    w = _Writer(draw)
    first = len(w.pool)
    for k in range(draw(st.integers(least, most))):
        w.step(HEAVY if k % 2 else LIGHT)
    made = w.pool[first:] or [w.t.un("tanh", w.pool[0])]
    read = {x for term in w.t.terms for x in term.operands}
    outputs = [x for x in made if x not in read] or made[-1:]
    if draw(st.booleans()):
        outputs.append(draw(st.sampled_from(made)))
    program = prune(Program(tuple(w.t.terms), tuple(dict.fromkeys(outputs)), frozenset(w.t.facts)))
    inputs = [t for t in program.terms if t.kind == "Input"]
    arrays = tuple(operand(t.tensor, {}, k) for k, t in enumerate(inputs))
    w.steps.append(f"outputs {outputs}")
    return RandomProgram(program, frozenset(w.parameters), arrays, tuple(w.steps), w.smooth)


__all__ = [
    "SIZES", "Arith", "RandomProgram", "arithmetic", "bodies", "operand", "operands", "outputs", "programs", "tensors",
    "values",
]  # fmt: skip
