"""Tensor IR: a few primitives over whole tensors, and the Torch-level operations that stay whole beside them.

    Program = Program(terms, outputs, facts, opaque)
    Term    = Term(id, kind, args, tensor, origin)      origin: index of the Torch IR node, -1 for inputs

Primitives (the argument letters are those of `SIGNATURES`: s text, n number, h shape, t tensor):

    Input n                       the n-th input of the graph, or a result of an opaque call (numbered after the inputs)
    Full s s h                    a constant: value, type (`weak` takes the type of what it meets), shape
    Iota s s h                    an integer expression of the coordinates d0, d1 …: text, type, shape
    Un s t                        a scalar operation of one operand
    Bin s t t h                   of two operands, broadcast (numpy's rule, aligned on the right) to the shape
    Where t t t h                 choice, broadcast
    Cast s t                      a change of type that the user wrote: rounds
    As s t                        the storage type of an interior value: rounds only if it is stored
    Reduce s s t h                kind and axes `0,2`; reduced axes stay with extent 1; `sum:bf16`: a contraction's sum
    Scan s n t                    inclusive prefix fold along one axis
    Map s s t h                   value(d) = x[map(d)]; where the index is out of range: the fill (empty: never happens)
    Gather1..3 s t t.. h          value(d) = x[map(d)]; the map may hold `(load k …)` of the k-th index tensor
    Scatter1..2 s s s s t t.. t h  mode, extent of j, condition over d and j, index of the source: the sources j whose
                                  condition holds at d are folded into base[d] (`set`: the last one wins)

Index maps are spelled in Loop IR text over axes `d0:extent …`.  Shapes are tuples of Loop IR extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from emmy.ir.build import iadd, idiv, imod, imul, isub, scalar
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Ax, Expr, Tensor, ax, const, op
from emmy.ir.parse import index_text
from emmy.ir.scalar import SCALAR

Shape = tuple[Expr, ...]

SIGNATURES: Final[dict[str, str]] = {
    # primitives
    "Input": "n", "Full": "ssh", "Iota": "ssh",
    "Un": "st", "Bin": "stth", "Where": "ttth", "Cast": "st", "As": "st",
    "Reduce": "ssth", "Scan": "snt", "Map": "ssth",
    "Gather1": "stth", "Gather2": "sttth", "Gather3": "stttth",
    "Scatter1": "ssssttth", "Scatter2": "sssstttth",
    # Torch-level operations, each decomposed by a rule of rulesets/model/decompose.egg
    "Contract": "sssssstthhhs",
    "RmsNorm": "sst", "LayerNorm": "sst", "Softmax": "nt", "LogSoftmax": "nt", "SafeSoftmax": "nt",
    "Gelu": "st", "Silu": "t", "Mean": "st", "Var": "sst", "ArgReduce": "snt",
    "Sdpa": "nsttt", "SdpaMask": "nstttt",
}  # fmt: skip

PRIMITIVES: Final = frozenset(list(SIGNATURES)[: list(SIGNATURES).index("Contract")])


@dataclass(frozen=True, slots=True)
class Term:
    """`args` follow the kind's signature: text, numbers, shapes, and term ids for `t`."""

    id: int
    kind: str
    args: tuple[object, ...]
    tensor: Tensor
    origin: int

    @property
    def operands(self) -> tuple[int, ...]:
        pairs = zip(self.args, SIGNATURES[self.kind], strict=True)
        return tuple(a for a, k in pairs if k == "t" and isinstance(a, int))


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """A Torch IR node that PyTorch executes: index in the graph, tensor operands and results as term ids, and why."""

    node: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    reason: str = ""


@dataclass(slots=True)
class Terms:
    """Builds a program bottom-up; equal terms are one.  `origin` is set by the translator before each Torch node."""

    terms: list[Term] = field(default_factory=list)
    facts: set[tuple[object, ...]] = field(default_factory=set)
    origin: int = -1
    calls: list[OpaqueCall] = field(default_factory=list)
    inputs: int = 0
    _known: dict[tuple[str, tuple[object, ...]], int] = field(default_factory=dict)

    def tensor(self, x: int) -> Tensor:
        return self.terms[x].tensor

    def shape(self, x: int) -> Shape:
        return self.terms[x].tensor.shape

    def dtype(self, x: int) -> str:
        return self.terms[x].tensor.dtype

    def is_weak(self, x: int) -> bool:
        t = self.terms[x]
        return t.kind == "Full" and t.args[1] == "weak"

    def add(self, kind: str, args: tuple[object, ...], tensor: Tensor) -> int:
        key = (kind, args)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self.terms)
            self.terms.append(Term(known, kind, args, tensor, self.origin))
        return known

    # ---- sources
    def input(self, tensor: Tensor) -> int:
        """The next input of the graph; all inputs are made before anything else."""
        self.inputs += 1
        return self.add("Input", (self.inputs - 1,), tensor)

    def opaque(
        self, node: int, operands: Sequence[int], results: Sequence[Tensor], reason: str = ""
    ) -> tuple[int, ...]:
        """Results of a node that PyTorch executes."""
        made = tuple(self.input(t) for t in results)
        self.calls.append(OpaqueCall(node, tuple(operands), made, reason))
        return made

    def full(self, value: float | int | bool, shape: Shape = (), dtype: str = "weak") -> int:
        return self.add("Full", (repr(value), dtype, shape), Tensor("f32" if dtype == "weak" else dtype, shape))

    def iota(self, value: Expr, shape: Shape, dtype: str = "i64") -> int:
        """An integer expression of the coordinates (axes made by `coordinates(shape)`), stored as `dtype`."""
        return self.add("Iota", (value.text, dtype, shape), Tensor(dtype, shape))

    # ---- element-wise
    def un(self, name: str, x: int) -> int:
        return self.add("Un", (name, x), Tensor(scalar_dtype(name, [self._typed(x)]), self.shape(x)))

    def bin(self, name: str, x: int, y: int) -> int:
        """Operands of one kind (cast integers to float before mixing); shapes broadcast."""
        shape = broadcast(self.shape(x), self.shape(y))
        dtype = scalar_dtype(name, [self._typed(x), self._typed(y)])
        return self.add("Bin", (name, x, y, shape), Tensor(dtype, shape))

    def where(self, cond: int, x: int, y: int) -> int:
        shape = broadcast(self.shape(cond), broadcast(self.shape(x), self.shape(y)))
        return self.add("Where", (cond, x, y, shape), Tensor(promote([self._typed(x), self._typed(y)]), shape))

    def cast(self, x: int, dtype: str) -> int:
        if self.dtype(x) == dtype and not self.is_weak(x):
            return x
        return self.add("Cast", (dtype, x), Tensor(dtype, self.shape(x)))

    def store_as(self, x: int, dtype: str) -> int:
        if self.dtype(x) == dtype and not self.is_weak(x):
            return x
        return self.add("As", (dtype, x), Tensor(dtype, self.shape(x)))

    def _typed(self, x: int) -> str:
        return "weak" if self.is_weak(x) else self.dtype(x)

    # ---- reductions
    def reduce(self, kind: str, x: int, axes: Sequence[int], keepdim: bool = False) -> int:
        """Fold over `axes` (non-negative).  `kind`: sum prod max min or and."""
        if not axes:
            return x
        shape, kept = self.shape(x), self.reduced(x, axes)
        y = self.add("Reduce", (kind, axes_text(axes), x, kept), Tensor(self.dtype(x), kept))
        return y if keepdim else self.squeeze(y, axes, shape)

    def reduced(self, x: int, axes: Sequence[int]) -> Shape:
        """The shape with `axes` of extent 1; also told to the rules as a fact, with the number of reduced elements."""
        shape = self.shape(x)
        kept = tuple(const(1) if i in axes else e for i, e in enumerate(shape))
        self.facts.add(("reduced", shape, axes_text(axes), kept, imul(*(shape[a] for a in axes)).text))
        return kept

    def squeeze(self, x: int, axes: Sequence[int], _shape: Shape | None = None) -> int:
        old = self.shape(x)
        kept = [i for i in range(len(old)) if i not in axes]
        shape = tuple(old[i] for i in kept)
        d = coordinates(shape)
        index: list[Expr] = [const(0)] * len(old)
        for k, i in enumerate(kept):
            index[i] = d[k]
        return self.map(x, tuple(index), shape)

    def scan(self, kind: str, x: int, axis: int) -> int:
        return self.add("Scan", (kind, axis, x), self.tensor(x))

    # ---- layout and data-dependent access
    def map(self, x: int, index: Sequence[Expr], shape: Shape, fill: float | int | bool | None = None) -> int:
        """value(d) = x[index(d)], with `d = coordinates(shape)`; out of range it is `fill` (None: cannot happen)."""
        if fill is None and shape == self.shape(x) and tuple(index) == coordinates(shape):
            return x
        text = "" if fill is None else repr(fill)
        return self.add("Map", (index_text(tuple(index)), text, x, shape), Tensor(self.dtype(x), shape))

    def reshape(self, x: int, shape: Shape) -> int:
        """Row-major reinterpretation (view, flatten, unflatten, squeeze, unsqueeze)."""
        d, old = coordinates(shape), self.shape(x)
        flat: Expr = const(0)
        for a, e in zip(d, shape, strict=True):
            flat = iadd(imul(flat, e), a)
        index: list[Expr] = []
        for k in range(len(old)):
            inner = imul(*old[k + 1 :]) if old[k + 1 :] else const(1)
            q = idiv(flat, inner)
            index.append(q if k == 0 else imod(q, old[k]))
        if old and old[0] is const(1):
            index[0] = const(0)
        return self.map(x, tuple(index), shape)

    def permute(self, x: int, order: Sequence[int]) -> int:
        """Result dimension k is dimension order[k] of x."""
        old = self.shape(x)
        shape = tuple(old[i] for i in order)
        d = coordinates(shape)
        index: list[Expr] = [const(0)] * len(old)
        for k, i in enumerate(order):
            index[i] = d[k]
        return self.map(x, tuple(index), shape)

    def expand(self, x: int, shape: Shape) -> int:
        """Broadcast to `shape`, aligned on the right."""
        old, d = self.shape(x), coordinates(shape)
        lead = len(shape) - len(old)
        index = tuple(
            const(0) if e is const(1) and shape[lead + i] is not const(1) else d[lead + i] for i, e in enumerate(old)
        )
        return self.map(x, index, shape)

    def slice(self, x: int, axis: int, start: Expr, step: int, extent: Expr) -> int:
        old = self.shape(x)
        shape = (*old[:axis], extent, *old[axis + 1 :])
        d = coordinates(shape)
        index = tuple(iadd(imul(a, step), start) if i == axis else a for i, a in enumerate(d))
        return self.map(x, index, shape)

    def gather(self, x: int, index: Sequence[Expr], indices: Sequence[int], shape: Shape) -> int:
        """value(d) = x[index(d)]; `index` may hold `load(k, …)` of `indices[k-1]`, k = 1 … 3."""
        kind = f"Gather{len(indices)}"
        args = (index_text(tuple(index)), x, *indices, shape)
        return self.add(kind, args, Tensor(self.dtype(x), shape))

    def scatter(
        self,
        mode: str,
        extent: Expr,
        condition: Expr,
        source: Sequence[Expr],
        base: int,
        indices: Sequence[int],
        src: int,
    ) -> int:
        """base[d] folded with src[source(j)] over the j < extent whose condition(d, j) holds.

        `mode`: set sum prod amax amin.  The condition may load `indices[k-1]` as slot k; `j` is `ax("j", extent)`.
        """
        kind, shape = f"Scatter{len(indices)}", self.shape(base)
        args = (mode, extent.text, condition.text, index_text(tuple(source)), base, *indices, src, shape)
        return self.add(kind, args, self.tensor(base))

    # ---- Torch-level operations
    def contract(
        self, name: str, x: int, x_map: Sequence[Expr], y: int, y_map: Sequence[Expr], full: Shape, axes: Sequence[int],
        out_shape: Shape, out_map: Sequence[Expr],
    ) -> int:  # fmt: skip
        """Sum over `axes` of x[x_map(d)] * y[y_map(d)] over the iteration space `full`, then seen through `out_map`.

        Where an index is out of range the factor is zero (padding).  `out_map` leads from coordinates of `out_shape`
        to those of `full` with the summed axes of extent 1.
        """
        reduced = tuple(const(1) if i in axes else e for i, e in enumerate(full))
        args = (
            name, index_text(tuple(x_map)), self._zero_fill(x, x_map), index_text(tuple(y_map)),
            self._zero_fill(y, y_map), axes_text(axes), x, y, full, reduced, out_shape, index_text(tuple(out_map)),
        )  # fmt: skip
        return self.add("Contract", args, Tensor(promote([self.dtype(x), self.dtype(y)]), out_shape))

    def _zero_fill(self, x: int, index: Sequence[Expr]) -> str:
        """The fill of a factor: none where every index is certain to be in range."""
        return "" if in_range(index, self.shape(x)) else "0" if DTYPES[self.dtype(x)].kind == "int" else "0.0"

    def rms_norm(self, x: int, axes: Sequence[int], eps: float) -> int:
        """x * rsqrt(mean(x^2) + eps) over `axes`, statistics in f32, result in x's type (no weight)."""
        self.reduced(x, axes)
        return self.add("RmsNorm", (axes_text(axes), repr(float(eps)), x), self.tensor(x))

    def layer_norm(self, x: int, axes: Sequence[int], eps: float) -> int:
        """(x - mean) * rsqrt(var + eps) over `axes`, statistics in f32, result in x's type (no weight, no bias)."""
        self.reduced(x, axes)
        return self.add("LayerNorm", (axes_text(axes), repr(float(eps)), x), self.tensor(x))

    def softmax(self, x: int, axis: int, kind: str = "Softmax") -> int:
        """`kind`: Softmax, LogSoftmax, or SafeSoftmax (a row of only -inf gives zeros, as in attention)."""
        self.reduced(x, (axis,))
        return self.add(kind, (axis, x), self.tensor(x))

    def gelu(self, x: int, approximate: str) -> int:
        return self.add("Gelu", (approximate, x), self.tensor(x))

    def silu(self, x: int) -> int:
        return self.add("Silu", (x,), self.tensor(x))

    def mean(self, x: int, axes: Sequence[int], keepdim: bool) -> int:
        kept = self.reduced(x, axes)
        y = self.add("Mean", (axes_text(axes), x), Tensor(self.dtype(x), kept))
        return y if keepdim else self.squeeze(y, axes)

    def var(self, x: int, axes: Sequence[int], correction: float, keepdim: bool) -> int:
        kept = self.reduced(x, axes)
        y = self.add("Var", (axes_text(axes), repr(float(correction)), x), Tensor(self.dtype(x), kept))
        return y if keepdim else self.squeeze(y, axes)

    def arg_reduce(self, kind: str, x: int, axis: int, keepdim: bool) -> int:
        """Index (i64) of the first `max` or `min` along an axis; a NaN counts as the extreme, as in PyTorch."""
        kept, shape = self.reduced(x, (axis,)), self.shape(x)
        self.facts.add(("coordinate", shape, axis, coordinates(shape)[axis].text))
        y = self.add("ArgReduce", (kind, axis, x), Tensor("i64", kept))
        return y if keepdim else self.squeeze(y, (axis,))

    def sdpa(self, q: int, k: int, v: int, mask: int | None, causal: bool, scale: float) -> int:
        """Attention: q[..,S,D], k[..,T,D], v[..,T,C] -> [..,S,C]; equal leading dims or grouped heads (dim -3)."""
        spec = self._sdpa_spec(q, k, v, mask, causal)
        lead = self.shape(q)[:-2]
        out = Tensor(self.dtype(q), (*lead, self.shape(q)[-2], self.shape(v)[-1]))
        if mask is None:
            return self.add("Sdpa", (spec, repr(float(scale)), q, k, v), out)
        return self.add("SdpaMask", (spec, repr(float(scale)), q, k, v, mask), out)

    def _sdpa_spec(self, q: int, k: int, v: int, mask: int | None, causal: bool) -> int:
        """Facts that the attention rule reads: index maps and shapes of its two products."""
        lead = self.shape(q)[:-2]
        (s, d), t, c = self.shape(q)[-2:], self.shape(k)[-2], self.shape(v)[-1]
        scores, out = (*lead, s, t), (*lead, s, c)
        full1, full2 = (*lead, s, d, t), (*lead, s, t, c)
        p, o = coordinates(full1), coordinates(full2)
        n = len(lead)

        def heads(x: int, at: tuple[Ax, ...]) -> tuple[Expr, ...]:
            own = self.shape(x)[:-2]
            skip = len(lead) - len(own)
            index: list[Expr] = []
            for i, e in enumerate(own):
                a, whole = at[skip + i], lead[skip + i]
                if e is whole:
                    index.append(a)
                elif e is const(1):
                    index.append(const(0))
                else:  # grouped heads: consecutive query heads share one
                    index.append(idiv(a, idiv(whole, e)))
            return tuple(index)

        e1, e2 = coordinates(scores), coordinates(out)
        row = (
            index_text((*p[:n], p[n], p[n + 1])), index_text((*heads(k, p), p[n + 2], p[n + 1])), str(n + 1), full1,
            (*lead, s, const(1), t), scores, index_text((*e1[: n + 1], const(0), e1[n + 1])),
            index_text((*o[:n], o[n], o[n + 1])), index_text((*heads(v, o), o[n + 1], o[n + 2])), str(n + 1), full2,
            (*lead, s, const(1), c), out, index_text((*e2[: n + 1], const(0), e2[n + 1])),
            (*lead, s, const(1)), n + 1,
            "causal" if causal else "full" if mask is None else self.dtype(mask),
            scalar_text("le", e1[n + 1], e1[n]),
        )  # fmt: skip
        number = len([f for f in self.facts if f[0] == "sdpa"])
        for f in self.facts:
            if f[0] == "sdpa" and f[2:] == row:
                return f[1]  # type: ignore[return-value]
        self.facts.add(("reduced", scores, str(n + 1), (*lead, s, const(1)), t.text))
        self.facts.add(("sdpa", number, *row))
        return number


@dataclass(frozen=True, slots=True)
class Program:
    """A model in Tensor IR: terms in order of definition, output term ids, facts for the rules."""

    terms: tuple[Term, ...]
    outputs: tuple[int, ...]
    facts: frozenset[tuple[object, ...]]
    opaque: tuple[OpaqueCall, ...] = ()


def scalar_text(name: str, x: Expr, y: Expr) -> str:
    return op(name, x, y, dtype="bool").text


def coordinates(shape: Shape) -> tuple[Ax, ...]:
    """The axes d0, d1 … of a shape, in which index maps are written."""
    return tuple(ax(f"d{i}", e) for i, e in enumerate(shape))


def in_range(index: Sequence[Expr], shape: Shape) -> bool:
    """True when each index is certain to lie within its extent."""
    inside: Expr = const(True, "bool")
    for e, extent in zip(index, shape, strict=True):
        inside = scalar("and", inside, scalar("le", const(0), e))
        inside = scalar("and", inside, scalar("lt", e, extent))
    return inside is const(True, "bool")


def axes_text(axes: Sequence[int]) -> str:
    return ",".join(map(str, sorted(axes)))


def parse_axes(text: str) -> tuple[int, ...]:
    return tuple(int(a) for a in text.split(",") if a)


def broadcast(x: Shape, y: Shape) -> Shape:
    """Numpy's rule; extents that are not equal and not 1 are a programming error of the caller."""
    n = max(len(x), len(y))
    one = const(1)
    xs, ys = (one,) * (n - len(x)) + x, (one,) * (n - len(y)) + y
    out: list[Expr] = []
    for a, b in zip(xs, ys, strict=True):
        if a is not b and a is not one and b is not one:
            raise ValueError(f"shapes do not broadcast: {[e.text for e in x]} and {[e.text for e in y]}")
        out.append(b if a is one else a)
    return tuple(out)


_ORDER: Final = ("bool", "u8", "i8", "i16", "i32", "i64", "f8e5m2", "f8e4m3", "f16", "bf16", "f32", "f64")


def promote(types: Sequence[str]) -> str:
    """The common type: the widest, where f16 with bf16 gives f32; `weak` gives way to any other type."""
    strong = [t for t in types if t != "weak"]
    if not strong:
        return "f32"
    if {"f16", "bf16"} <= set(strong):
        strong.append("f32")
    return max(strong, key=_ORDER.index)


def scalar_dtype(name: str, types: Sequence[str]) -> str:
    """Storage type of a scalar operation's result."""
    row = SCALAR[name]
    if row.result == "bool":
        return "bool"
    t = promote(types)
    return "f32" if row.result == "float" and DTYPES[t].kind != "float" else t


__all__ = [
    "PRIMITIVES",
    "SIGNATURES",
    "Program",
    "Shape",
    "Term",
    "Terms",
    "axes_text",
    "broadcast",
    "coordinates",
    "isub",
]
