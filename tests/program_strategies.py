"""Hypothesis strategies of random programs of Tensor IR, small and tame as those of `tests.strategies`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from emmy.ir.build import iadd, imod, imul, isub, scalar
from emmy.ir.loop import Expr, Tensor, ax, const, load, op
from emmy.ir.tensor import Program, Term, Terms, broadcast, coordinates
from tests.strategies import number, operand


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


__all__ = ["RandomProgram", "programs"]
