"""The oracle: what a Loop IR body means, computed with numpy over the reals (float64).

A node's value depends on its free axes only, so each distinct node is computed once, as an array with one named
dimension per free axis, and operands meet by broadcasting.  Sums of products become matrix products, and what would
not fit in memory is cut along the output's leading axes or along the folded axis; neither changes a value beyond the
order of a sum.  `where` is lazy in effect: indices of loads are clipped into range and the branch is chosen afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from emmy.errors import EmmyError
from emmy.ir.arrays import (
    REDUCE,
    Array,
    Factors,
    Frame,
    Value,
    identity,
    multiply,
    numpy_dtype,
    running_m2,
    union,
)
from emmy.ir.dtype import is_float, register
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Out, Scan, Size
from emmy.ir.scalar import SCALAR

# Elements of all intermediate arrays that are alive together: 512 MiB of float64.
LIMIT: Final = 1 << 26


class EvaluationError(EmmyError):
    """Operands that are not what the body says: wrong number, shape or an unbound size."""


def evaluate(
    body: Body, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None,
    rounding: bool = False, dtype: Any = np.float64,
) -> list[Array]:  # fmt: skip
    """The results of `body` on one array per slot.

    Arithmetic on floats happens in `dtype`; with `rounding`, casts and stores round to their storage type on the way
    (the value is returned in `dtype` all the same).  Integers and bool are returned in their own type, and wrap.
    Symbolic sizes that are not given are read from the arrays' shapes.  Elements that no axis reaches are NaN (floats).
    """
    machine = _Machine(body, arrays, dict(sizes or {}), rounding, np.dtype(dtype))
    with np.errstate(all="ignore"):
        return [machine.store(out) for out in body.outs]


def integer(expr: Expr, sizes: Mapping[str, int] | None = None, axes: Mapping[Ax, int] | None = None) -> int:
    """The value of an integer expression without loads, at one point."""
    machine = _Machine(Body((), ()), (), dict(sizes or {}), False, np.dtype(np.float64))
    frame = machine.root.over({a: (v, v + 1) for a, v in (axes or {}).items()})
    return int(machine.value(expr, frame).data.reshape(()))


class _Machine:
    def __init__(
        self, body: Body, arrays: Sequence[Array], sizes: dict[str, int], rounding: bool, real: np.dtype[Any]
    ) -> None:
        self.sizes, self.rounding, self.real = sizes, rounding, real
        self.root = Frame({})
        self.extents: dict[Ax, int] = {}
        if len(arrays) != len(body.slots):
            raise EvaluationError(f"the body has {len(body.slots)} operands, {len(arrays)} arrays were given")
        for slot, given in zip(body.slots, arrays, strict=True):
            if np.ndim(given) == len(slot.shape):
                named = zip(slot.shape, np.shape(given), strict=True)
                sizes.update({e.name: n for e, n in named if isinstance(e, Size) and e.name not in sizes})
        self.arrays: list[Array] = []
        for k, (slot, given) in enumerate(zip(body.slots, arrays, strict=True)):
            shape = self.shape(slot.shape)
            if np.shape(given) != shape:
                raise EvaluationError(f"operand {k} is {slot.text} = {shape}, the array is {np.shape(given)}")
            self.arrays.append(np.asarray(given).astype(self.held(slot.dtype), copy=False))

    # ---- types and extents -----------------------------------------------------------------------------------------

    def held(self, name: str) -> np.dtype[Any]:
        """The numpy type in which a register value is held."""
        kind = register(name)
        return self.real if kind == "f32" else numpy_dtype(kind)

    def rounded(self, data: Array, name: str) -> Array:
        if not self.rounding or not is_float(name) or numpy_dtype(name) == data.dtype:
            return data
        return data.astype(numpy_dtype(name)).astype(data.dtype)

    def shape(self, extents: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(int(self.value(e, self.root).data.reshape(())) for e in extents)

    def extent(self, axis: Ax) -> int:
        n = self.extents.get(axis)
        if n is None:
            n = self.extents[axis] = self.shape((axis.extent,))[0]
        return n

    def length(self, axis: Ax, frame: Frame) -> int:
        low, high = frame.ranges.get(axis, (0, self.extent(axis)))
        return high - low

    def volume(self, axes: frozenset[Ax], frame: Frame) -> int:
        return prod(self.length(a, frame) for a in axes)

    # ---- what is computed before what --------------------------------------------------------------------------------

    def value(self, root: Expr, frame: Frame) -> Value:
        """The value of a node where every axis runs over its range in `frame` (iterative: expressions can be deep)."""
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            home = frame.home(node)
            if node in home.memo:
                continue
            if ready:
                home.memo[node] = self.compute(node, home)
                continue
            stack.append((node, True))
            stack.extend((c, False) for c in self.needs(node, home))
        return frame.home(root).memo[root]

    def needs(self, node: Expr, frame: Frame) -> tuple[Expr, ...]:
        """Operands computed in the same frame; binders fetch the rest themselves."""
        if isinstance(node, Fold | Online | Scan) and node.axis in frame.ranges:
            return ()
        if isinstance(node, Fold) and self.factors(node, frame) is None and self.step(node, frame):
            return ()
        return self.operands(node, frame)

    def operands(self, node: Expr, frame: Frame) -> tuple[Expr, ...]:
        factors = self.factors(node, frame) if isinstance(node, Fold) else None
        return node.children if factors is None else factors[1]

    def closure(self, roots: Sequence[Expr], frame: Frame) -> list[Expr]:
        """Every node that computing the roots touches."""
        seen: dict[Expr, None] = {}
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in seen:
                seen[node] = None
                stack.extend(self.operands(node, frame))
        return list(seen)

    def step(self, node: Fold, frame: Frame) -> int:
        """How many points of the folded axis to take at once; 0 when all of them fit."""
        if node.kind == "m2":
            return 0
        total = sum(self.volume(n.free, frame) for n in self.closure((node.body,), frame) if node.axis in n.free)
        n = self.extent(node.axis)
        return max(1, int(n * LIMIT / total)) if total > LIMIT and n > 1 else 0

    def factors(self, node: Fold, frame: Frame) -> Factors | None:
        """Axes and factors of a sum of products that is cheaper as a matrix product, else None."""
        if node not in frame.factors:
            frame.factors[node] = self._factors(node, frame)
        return frame.factors[node]

    def _factors(self, node: Fold, frame: Frame) -> Factors | None:
        axes: list[Ax] = []
        inner: Expr = node
        while isinstance(inner, Fold) and inner.kind == "sum" and inner.axis not in axes:
            if inner.axis in frame.ranges:
                return None
            axes.append(inner.axis)
            inner = self.plain(inner.body)
        found = tuple(self.product(inner))
        groups = self.group([f.free for f in found], frame) if len(found) > 1 and node.type == "f32" else None
        if groups is None or not all(any(a in f.free for f in found) for a in axes):
            return None
        return tuple(axes), found

    def plain(self, node: Expr) -> Expr:
        """The node below casts between floats, which change nothing over the reals."""
        while not self.rounding and isinstance(node, Op) and node.name == "cast" and node.args[0].type == node.type:
            node = node.args[0]
        return node

    def product(self, node: Expr) -> Iterator[Expr]:
        stack = [node]
        while stack:
            e = self.plain(stack.pop())
            if isinstance(e, Op) and e.name == "mul":
                stack.extend(reversed(e.args))
            else:
                yield e

    def group(self, free: Sequence[frozenset[Ax]], frame: Frame) -> tuple[list[int], list[int]] | None:
        """Two sets of factors, each multiplied out first; None where that is no smaller than the whole product."""
        groups = [([k], f) for k, f in enumerate(free)]
        while len(groups) > 2:
            pairs = [(i, j) for i in range(len(groups)) for j in range(i)]
            i, j = min(pairs, key=lambda p: self.volume(groups[p[0]][1] | groups[p[1]][1], frame))
            merged = (groups[j][0] + groups[i][0], groups[j][1] | groups[i][1])
            groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [merged]
        (left, a), (right, b) = groups
        whole = self.volume(a | b, frame)
        return (left, right) if 2 * (self.volume(a, frame) + self.volume(b, frame)) < whole else None

    # ---- one node ----------------------------------------------------------------------------------------------------

    def compute(self, node: Expr, frame: Frame) -> Value:
        if isinstance(node, Const):
            return Value((), self.rounded(np.asarray(node.value).astype(self.held(node.dtype)), node.dtype))
        if isinstance(node, Ax):
            return Value((node,), np.arange(*frame.ranges.get(node, (0, self.extent(node))), dtype=np.int64))
        if isinstance(node, Size):
            if node.name not in self.sizes:
                raise EvaluationError(f"size ${node.name} is not bound", "pass it in `sizes`")
            return Value((), np.asarray(self.sizes[node.name], dtype=np.int64))
        if isinstance(node, Load):
            return self.load(node, frame)
        if isinstance(node, Op):
            return self.operation(node, frame)
        if isinstance(node, Fold):
            return self.fold(node, frame)
        if isinstance(node, Scan):
            return self.scan(node, frame)
        if isinstance(node, Online):
            return self.online(node, frame)
        raise TypeError(f"not a Loop IR node: {type(node).__name__}")

    def load(self, node: Load, frame: Frame) -> Value:
        array = self.arrays[node.slot]
        axes = [i for i in node.index if isinstance(i, Ax)]
        cut = [self.slice(i, n, frame) for i, n in zip(node.index, array.shape, strict=True)]
        if len(set(axes)) == len(axes) and None not in cut:
            return Value(tuple(axes), np.asarray(array[tuple(cut)]))
        index = [self.value(i, frame) for i in node.index]
        order = union(index)
        if array.size == 0:  # only a branch that is never chosen reads an empty array
            return Value(order, np.zeros([self.length(a, frame) for a in order], array.dtype))
        clipped = (np.clip(i.align(order), 0, n - 1) for i, n in zip(index, array.shape, strict=True))
        return Value(order, array[tuple(clipped)])

    def slice(self, index: Expr, n: int, frame: Frame) -> slice | int | None:
        """The index as numpy's basic indexing: a constant or an axis that stays in range; None for any other."""
        if isinstance(index, Ax):
            low, high = frame.ranges.get(index, (0, self.extent(index)))
            return slice(low, high) if high <= n else None
        return int(index.value) if isinstance(index, Const) and 0 <= int(index.value) < n else None

    def operation(self, node: Op, frame: Frame) -> Value:
        args = [self.value(a, frame) for a in node.args]
        order = union(args)
        data = [a.align(order) for a in args]
        if node.name == "cast":
            return Value(order, self.cast(data[0], node.dtype))
        row, held = SCALAR[node.name], self.held(node.dtype)
        if node.name == "where":
            data = [data[0].astype(bool, copy=False), *(d.astype(held, copy=False) for d in data[1:])]
        elif row.result in ("same", "float"):
            data = [d.astype(held, copy=False) for d in data]
        return Value(order, np.asarray(row.numpy(*data)).astype(held, copy=False))

    def cast(self, data: Array, name: str) -> Array:
        held = self.held(name)
        if data.dtype.kind == "f" and held.kind in "iu":  # through i64, so that narrow types wrap
            data = np.trunc(data).astype(np.int64)
        return self.rounded(data.astype(held, copy=False), name)

    def fold(self, node: Fold, frame: Frame) -> Value:
        inner = frame.without(node.axis)
        factors = self.factors(node, inner)
        if factors is not None:
            return self.contract(factors[0], [self.value(f, inner) for f in factors[1]], inner)
        step = self.step(node, inner)
        if not step:
            return self.reduce(node.kind, node.axis, self.value(node.body, inner), inner)
        total: Value | None = None
        for low in range(0, self.extent(node.axis), step):
            part = inner.over({node.axis: (low, min(low + step, self.extent(node.axis)))})
            piece = self.reduce(node.kind, node.axis, self.value(node.body, part), part)
            if total is not None:
                piece = Value(total.axes, REDUCE[node.kind](total.data, piece.align(total.axes)))
            total = piece
        assert total is not None
        return total

    def along(self, axis: Ax, value: Value, frame: Frame) -> tuple[tuple[Ax, ...], Array]:
        """The data with `axis` as its last dimension, and the axes before it."""
        rest = tuple(a for a in value.axes if a is not axis)
        data = value.align((*rest, axis))
        return rest, np.broadcast_to(data, (*data.shape[:-1], self.length(axis, frame)))

    def reduce(self, kind: str, axis: Ax, value: Value, frame: Frame) -> Value:
        rest, data = self.along(axis, value, frame)
        if kind == "m2":
            mean = data.mean(axis=-1, keepdims=True) if data.shape[-1] else 0.0
            return Value(rest, np.square(data - mean).sum(axis=-1))
        if data.shape[-1] == 0:
            return Value(rest, np.full(data.shape[:-1], identity(kind, data.dtype)))
        return Value(rest, np.asarray(REDUCE[kind].reduce(data, axis=-1)).astype(data.dtype, copy=False))

    def contract(self, axes: tuple[Ax, ...], values: Sequence[Value], frame: Frame) -> Value:
        """Sum over `axes` of the product of the values, as one batched matrix product."""
        groups = self.group([frozenset(v.axes) for v in values], frame)
        assert groups is not None
        left, right = (multiply([values[k] for k in g]) for g in groups)
        for axis in axes:  # an axis that only one side has is summed there
            left, right = (self.summed(a, b, axis, frame) for a, b in ((left, right), (right, left)))
        inner = [a for a in axes if a in left.axes and a in right.axes]
        batch = [a for a in left.axes if a in right.axes and a not in inner]
        rows = [a for a in left.axes if a not in right.axes]
        cols = [a for a in right.axes if a not in left.axes]
        shape = [self.length(a, frame) for a in batch]
        m, n, k = (self.volume(frozenset(some), frame) for some in (rows, cols, inner))
        a = left.align([*batch, *rows, *inner]).reshape(*shape, m, k)
        b = right.align([*batch, *inner, *cols]).reshape(*shape, k, n)
        order = (*batch, *rows, *cols)
        return Value(order, np.matmul(a, b).reshape([self.length(x, frame) for x in order]))

    def summed(self, value: Value, other: Value, axis: Ax, frame: Frame) -> Value:
        if axis not in value.axes or axis in other.axes:
            return value
        return self.reduce("sum", axis, value, frame)

    def scan(self, node: Scan, frame: Frame) -> Value:
        inner = frame.without(node.axis)
        rest, data = self.along(node.axis, self.value(node.body, inner), inner)
        at = self.value(node.at, frame)
        prefix = np.empty((*data.shape[:-1], data.shape[-1] + 1), data.dtype)  # entry k folds the first k elements
        prefix[..., 0] = identity(node.kind, data.dtype)
        if node.kind == "m2":
            running_m2(data, prefix)
        elif data.shape[-1]:
            accumulate = REDUCE[node.kind].accumulate
            prefix[..., 1:] = accumulate(
                data, axis=-1, **({"dtype": data.dtype} if node.kind in ("sum", "prod") else {})
            )
        order = tuple(dict.fromkeys((*rest, *at.axes)))
        where = [Value((a,), np.arange(self.length(a, frame))).align(order) for a in rest]
        return Value(order, prefix[(*where, np.clip(at.align(order) + 1, 0, data.shape[-1]))])

    def online(self, node: Online, frame: Frame) -> Value:
        inner = frame.without(node.axis)
        score = self.value(node.score, inner)
        rest, data = self.along(node.axis, score, inner)
        top = data.max(axis=-1, keepdims=True, initial=-np.inf)
        weight = Value((*rest, node.axis), np.exp(data - top))
        pair = (weight, self.value(node.value, inner))
        if self.group([frozenset(v.axes) for v in pair], inner) is None:
            return self.reduce("sum", node.axis, multiply(pair), inner)
        return self.contract((node.axis,), pair, inner)

    # ---- results -----------------------------------------------------------------------------------------------------

    def store(self, out: Out) -> Array:
        held = self.held(out.tensor.dtype)
        poison = np.nan if held.kind == "f" else 0
        shape = self.shape(out.tensor.shape)
        result = np.full(shape, poison, held) if out.into < 0 else self.arrays[out.into].astype(held)
        for ranges in self.pieces(out):
            frame = self.root.over(ranges)
            value = self.value(out.value, frame).align(out.axes)
            value = np.broadcast_to(value, [self.length(a, frame) for a in out.axes])
            index = tuple(self.value(i, frame).align(out.axes) for i in out.index)
            if out.into < 0:
                result[index] = self.cast(value, out.tensor.dtype)
                continue
            index = np.broadcast_arrays(*index, value)[:-1]
            inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(index, shape, strict=True)])
            result[tuple(i[inside] for i in index)] = self.cast(value[inside], out.tensor.dtype)
        return result

    def pieces(self, out: Out) -> Iterator[dict[Ax, tuple[int, int]]]:
        """Ranges of the output's axes, leading axes first, that keep the values alive together under LIMIT."""
        nodes = self.closure((*out.index, out.value), self.root)
        steps: dict[Ax, int] = {}
        for axis in out.axes:
            # an axis in `steps` is taken one point at a time
            share = [(axis in n.free, self.volume(n.free - steps.keys(), self.root)) for n in nodes]
            total, cut = sum(v for _, v in share), sum(v for depends, v in share if depends)
            if total <= LIMIT or not cut:
                break
            fits = int(self.extent(axis) * max(LIMIT - (total - cut), 0) / cut)
            steps[axis] = max(1, fits)
            if fits:
                break
        cuts = [
            [(a, (low, min(low + step, self.extent(a)))) for low in range(0, self.extent(a), step)]
            for a, step in steps.items()
        ]
        for choice in product(*cuts):
            yield dict(choice)


__all__ = ["LIMIT", "EvaluationError", "Value", "evaluate", "integer", "numpy_dtype"]
