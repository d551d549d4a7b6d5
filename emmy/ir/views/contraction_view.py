"""A loop body read as a contraction.

    out[b, m, n] = epilogue(C_1, C_2, …, loads, row scalars)
    C_j[b, m, n] = sum over k of A_j[b, m, k] * B_j[b, n, k]

Each of b, m, n, k is a list of axes, linearized by mixed radix with the last axis fastest.  The parts A_j and B_j are
element-wise expressions; a fold inside a part or the epilogue that does not depend on k is a row scalar, computed by a
block before its sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Ax, Body, Expr, Fold, Out, const
from emmy.ir.views.affine import offset_form
from emmy.ir.views.memo import VIEWS
from emmy.ir.views.product import (
    Part,
    Split,
    Sum,
    eighth_type,
    half_type,
    outside_folds,
    split,
    sum_of_products,
    top_folds,
)

MOST_SUMS = 3


@dataclass(frozen=True, slots=True)
class Accumulator:
    """`node` is the fold in the epilogue that holds the sum of `parts_a[a] * parts_b[b]`."""

    sum: Sum
    a: int
    b: int

    @property
    def node(self) -> Fold:
        return self.sum.node


@dataclass(frozen=True)
class ContractionView:
    body: Body
    batch: tuple[Ax, ...]
    m: tuple[Ax, ...]
    n: tuple[Ax, ...]
    k: tuple[Ax, ...]
    parts_a: tuple[Part, ...]
    parts_b: tuple[Part, ...]
    sums: tuple[Accumulator, ...]
    # f32 factors are taken in tf32, which is nothing that a body says: a compile allows it
    narrowed: bool = False

    def in_tf32(self) -> ContractionView:
        """The same contraction, its factors taken in tf32; of f32 (or narrower) ones of no one type of 16 bits."""
        return replace(self, narrowed=True)

    def swapped(self) -> ContractionView:
        """The same contraction with its sides exchanged."""
        sums = tuple(Accumulator(s.sum, s.b, s.a) for s in self.sums)
        return replace(self, m=self.n, n=self.m, parts_a=self.parts_b, parts_b=self.parts_a, sums=sums)

    @cached_property
    def half(self) -> str | None:
        """The 16-bit type in which tensor cores may take every factor; None where they may not."""
        types = {half_type(s.sum, self.parts_a[s.a], self.parts_b[s.b]) for s in self.sums}
        return types.pop() if len(types) == 1 else None

    @cached_property
    def eighth(self) -> str | None:
        """The 8-bit type in which every factor is stored and its product is asked for; None where there is none.

        Tensor cores add such products with fewer bits than f32 has, which results of 16 bits or fewer do not show.
        """
        types = {eighth_type(s.sum, self.parts_a[s.a], self.parts_b[s.b]) for s in self.sums}
        hidden = all(
            DTYPES[o.tensor.dtype].kind == "float" and DTYPES[o.tensor.dtype].bits <= 16 for o in self.body.outs
        )
        return types.pop() if len(types) == 1 and hidden else None

    @property
    def factor(self) -> str | None:
        """The narrowest type in which tensor cores may take every factor."""
        return "tf32" if self.narrowed else self.eighth or self.half

    @cached_property
    def scalars(self) -> tuple[Expr, ...]:
        """Every row scalar of the parts and the epilogue, each once."""
        found = dict.fromkeys(s for p in (*self.parts_a, *self.parts_b) for s in p.scalars)
        mine = {s.node for s in self.sums}
        for o in self.body.outs:
            found.update(dict.fromkeys(s for s in top_folds(o.value) if s not in mine))
        return tuple(found)

    @cached_property
    def scalars_m(self) -> tuple[Expr, ...]:
        """Row scalars that no n axis changes."""
        return tuple(s for s in self.scalars if not s.free & set(self.n))

    @cached_property
    def scalars_n(self) -> tuple[Expr, ...]:
        return tuple(s for s in self.scalars if s.free & set(self.n))


@lru_cache(maxsize=VIEWS)
def contraction_view(body: Body) -> ContractionView | str:
    """The body as a contraction, or why it is not one."""
    axes = body.outs[0].axes
    if any(o.axes != axes for o in body.outs):
        return "results over different axes"
    if any(
        not i.free <= set(axes) or any(isinstance(n, Fold) for n in outside_folds(i))
        for o in body.outs
        for i in o.index
    ):
        return "a store index that is not arithmetic on the axes"
    sums = _sums(body.outs)
    if isinstance(sums, str):
        return sums
    found: list[Split] = []
    for s in sums:
        one = split(s, axes, contiguous_axis(body.outs[0]))
        if isinstance(one, str):
            return one
        found.append(one)
    return _assemble(body, axes, sums, found)


def contiguous_axis(out: Out) -> Ax | None:
    """The axis along which the result's elements are neighbours; None for a single element."""
    form = offset_form(out.index, out.tensor.shape)
    strides = () if form is None else form.strides
    ones = [a for a, s in strides if s is const(1)]
    return ones[-1] if ones else (out.axes[-1] if out.axes else None)


def _sums(outs: Sequence[Out]) -> list[Sum] | str:
    """The sums of largest rank in the results; smaller ones are row scalars."""
    folds = list(dict.fromkeys(f for o in outs for f in top_folds(o.value)))
    ranks = {f: f.free for f in folds}
    tops = [f for f in folds if not any(ranks[f] < ranks[g] for g in folds)]
    sums: list[Sum] = []
    for f in tops:
        s = sum_of_products(f)
        if s is None:
            return "a fold of full rank that is not a sum of f32 products"
        sums.append(s)
    if not sums:
        return "no sum"
    if len(sums) > MOST_SUMS:
        return f"more than {MOST_SUMS} sums of full rank"
    if any(s.axes != sums[0].axes for s in sums):
        return "sums over different axes"
    return sums


def _assemble(body: Body, axes: tuple[Ax, ...], sums: Sequence[Sum], found: Sequence[Split]) -> ContractionView | str:
    sides = _consistent(found)
    if sides is None:
        return "sums whose parts disagree on the axes"
    m, n, batch, parts = sides
    # an axis that no sum depends on repeats the sums: it counts as a row axis of the left part
    m |= {a for a in axes if a not in m | n | batch}
    if not m and not n:
        return "no axis belongs to one part only"
    parts_a = tuple(dict.fromkeys(a for a, _ in parts))
    parts_b = tuple(dict.fromkeys(b for _, b in parts))
    accumulators = tuple(
        Accumulator(s, parts_a.index(a), parts_b.index(b)) for s, (a, b) in zip(sums, parts, strict=True)
    )
    view = ContractionView(
        body, _order(axes, batch), _order(axes, m), _order(axes, n), sums[0].axes, parts_a, parts_b, accumulators
    )
    mixed = [s for s in view.scalars if s.free & m and s.free & n]
    return "a fold that depends on rows of both parts" if mixed else view


def _order(axes: Iterable[Ax], chosen: Iterable[Ax]) -> tuple[Ax, ...]:
    wanted = set(chosen)
    return tuple(a for a in axes if a in wanted)


def _consistent(found: Sequence[Split]) -> tuple[set[Ax], set[Ax], set[Ax], list[tuple[Part, Part]]] | None:
    """One assignment of axes to m, n and batch for all sums: parts may swap sides, a batch axis may be absent."""
    m, n, batch = set(found[0].m), set(found[0].n), set(found[0].batch)
    parts = [(found[0].left, found[0].right)]
    for s in found[1:]:
        left, right = s.left, s.right
        if (s.m & n or s.n & m) and not (s.m & m or s.n & n):
            left, right = right, left
        a, b = left.value.free & (m | n | batch), right.value.free & (m | n | batch)
        if a & n or b & m:
            return None
        parts.append((left, right))
    return m, n, batch, parts
