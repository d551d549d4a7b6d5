"""Answers the pad rules: factors of products whose lines are misaligned are read from copies whose lines are not.

Neither TMA nor asynchronous copies move lines that do not begin at multiples of 16 bytes (CUDA driver API,
cuTensorMapEncodeTiled; PTX ISA, cp.async).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from emmy.egraph.anchors import Anchors, elements
from emmy.egraph.appended import Appended
from emmy.egraph.egg import Egg
from emmy.egraph.loading import Shapes
from emmy.egraph.numbering import Numbering, Prim
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Ax, Const, Expr, Tensor, const
from emmy.ir.normal import Substitution
from emmy.ir.parse import index_text, parse_index
from emmy.ir.tensor import Shape, coordinates, parse_axes
from emmy.ir.views.affine import divides, offset_form

# Bounds of the rules in rulesets/model/pad.egg: a million products take about as long as a launch, and a block reads an
# element for a tile of at least 16 results.
PAD_BOUNDS: Final = {"PAD_PRODUCTS": 1 << 20, "PAD_READS": 16}
ALIGNMENT: Final = 16  # bytes
# Lines that begin at multiples of a cache line take no sector that they do not fill, where that costs them little.
LINE: Final = 128
MOST_ADDED: Final = 8  # at most this part of a line more


@dataclass(frozen=True, slots=True)
class Factor:
    """A misaligned factor: the row of its index map, and the coordinate along which its lines run."""

    row: Prim
    run: Ax


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products: its row and that of the product, and the factors that are misaligned."""

    sum: Prim
    product: Prim
    factors: tuple[Factor | None, Factor | None]


def pad_factors(
    egg: Egg, numbering: Numbering, anchors: Anchors, parameters: frozenset[int], shapes: Shapes,
    sizes: Mapping[str, int],
) -> Anchors:  # fmt: skip
    """Run the pad rules and answer them.

    `parameters` are numbers of inputs known when the plan is built.  New tensors and rows are appended to the
    numbering; copies can be stored, so the anchors that are returned hold them.
    """
    found = {p.sum.id: p for p in _products(numbering, anchors)}
    if not found:
        return anchors
    factors = {f.row.id: f for p in found.values() for f in p.factors if f is not None}
    known = parameters | anchors.folded
    egg.facts("misaligned", [_fact(f.row, numbering, known, sizes) for f in factors.values()])
    along = {i: p for i, p in found.items() if _runs_along(p)}
    egg.facts("runs-along", [(i, *(f.row.id for f in p.factors if f)) for i, p in along.items()])
    alone = {f.row.id for i, p in found.items() if i not in along for f in p.factors if f}
    egg.facts("runs-alone", [(r,) for r in sorted(alone)])
    egg.run("pad", saturate=True)
    frozen = egg.freeze()
    new = _Pads(Appended(numbering, shapes))
    united = [new.factor(factors[r]) for (r,) in sorted(frozen.rows("want-padded"))]
    united += [new.sum(along[r]) for r, *_ in sorted(frozen.rows("want-padded-sum"))]
    new.rows.load(egg)
    egg.facts("pad-of", united)
    egg.run("pad", saturate=True)
    egg.run("analysis", saturate=True)
    new.rows.lift(egg)
    copies = new.copies
    folded = {copy for x, copy in copies.items() if x in known}
    return replace(
        anchors, stored=anchors.stored | set(copies.values()), folded=anchors.folded | folded,
        padded=frozenset(copies.values()),
    )  # fmt: skip


def pitch(extent: int, dtype: str) -> int:
    """Elements from one line of a copy to the next."""
    bytes = DTYPES[dtype].bytes
    row = extent * bytes
    whole = -(-row // LINE) * LINE
    if MOST_ADDED * (whole - row) > row:
        whole = -(-row // ALIGNMENT) * ALIGNMENT
    return whole // bytes


def _products(n: Numbering, anchors: Anchors) -> Iterator[Product]:
    """Sums of products with a misaligned factor, of those that run at each call."""
    made = defaultdict(list)
    for p in n.prims:
        made[p.result].append(p)
    for s in n.prims:
        if s.kind != "Reduce" or ":" not in str(s.args[0]) or s.result in anchors.folded | anchors.fixed:
            continue
        for u in made[s.operands[0]]:
            if u.kind != "Bin" or u.args[0] != "mul":
                continue
            left, right = (_factor(made[x], n) for x in u.operands)
            if left or right:
                yield Product(s, u, (left, right))
                break


def _factor(rows: Iterable[Prim], n: Numbering) -> Factor | None:
    """The factor's map, if it is misaligned and would not be so over a copy."""
    for row in rows:
        if row.kind != "Map" or row.args[1] != "" or n.order[row.operands[0]] >= n.order[row.result]:
            continue
        x = n.tensors[row.operands[0]]
        if len(x.shape) < 2 or not isinstance(x.shape[-1], Const) or DTYPES[x.dtype].bytes > 4:
            continue
        index, extent = parse_index(str(row.args[0])), int(x.shape[-1].value)
        chunk = ALIGNMENT // DTYPES[x.dtype].bytes
        run = _run(index, (*x.shape[:-1], const(pitch(extent, x.dtype))), chunk)
        if run is not None and run in index[-1].free and _run(index, x.shape, chunk) is None:
            return Factor(row, run)
    return None


def _run(index: Sequence[Expr], shape: Shape, chunk: int) -> Ax | None:
    """The coordinate along which elements are neighbours, if all lines begin at multiples of `chunk` elements."""
    form = offset_form(tuple(index), shape)
    if form is None or not divides(chunk, form.base):
        return None
    moving = [(a, s) for a, s in form.strides if a.extent is not const(1)]
    ones = [a for a, s in moving if s is const(1)]
    if len(ones) != 1 or not all(divides(chunk, s) for a, s in moving if a is not ones[0]):
        return None
    return ones[0]


def _runs_along(p: Product) -> bool:
    """True where the lines of both factors are whole ranges of the one summed axis, so that they may be longer."""
    left, right = p.factors
    axes = parse_axes(str(p.sum.args[1]))
    if left is None or right is None or left.run is not right.run or len(axes) != 1:
        return False
    return left.run.name == f"d{axes[0]}" and all(
        index[-1] is left.run and not any(left.run in e.free for e in index[:-1])
        for index in (parse_index(str(f.row.args[0])) for f in (left, right))
    )


def _fact(row: Prim, n: Numbering, known: frozenset[int], sizes: Mapping[str, int]) -> tuple[object, ...]:
    (x,) = row.operands
    return row.id, elements(n.tensors[x], sizes), elements(n.tensors[row.result], sizes), int(x in known)


class _Pads:
    """Rows over copies; `copies` maps a tensor to its copy."""

    def __init__(self, rows: Appended) -> None:
        self.rows, self.n = rows, rows.n
        self.copies: dict[int, int] = {}

    def copy(self, x: int, rule: str) -> int:
        if x not in self.copies:
            tensor = self.n.tensors[x]
            *lead, last = tensor.shape
            assert isinstance(last, Const)
            shape = (*lead, const(pitch(int(last.value), tensor.dtype)))
            args = index_text(coordinates(shape)), "0.0", shape
            self.copies[x] = self.rows.row(
                rule, "Map", args, (x,), Tensor(tensor.dtype, shape), self.n.order[x] + 1
            )  # fmt: skip
        return self.copies[x]

    def factor(self, f: Factor) -> tuple[int, int]:
        """The factor's map over the copy of its tensor."""
        (x,) = f.row.operands
        return self.rows.equal("pad-factor", "Map", f.row.args, (self.copy(x, "pad-factor"),), f.row.result)

    def sum(self, p: Product) -> tuple[int, int]:
        """The sum over whole lines of both copies."""
        rule, n = "pad-sum", self.n
        factors = [f for f in p.factors if f is not None]
        copies = [self.copy(f.row.operands[0], rule) for f in factors]
        (axis,) = parse_axes(str(p.sum.args[1]))
        old = n.tensors[p.product.result].shape
        full = (*old[:axis], n.tensors[copies[0]].shape[-1], *old[axis + 1 :])
        move = dict(zip(coordinates(old), coordinates(full), strict=True))
        maps = []
        for f, copy in zip(factors, copies, strict=True):
            at = Substitution({})
            index = tuple(at.apply(e, {a: move[a] for a in e.free}) for e in parse_index(str(f.row.args[0])))
            tensor = Tensor(n.tensors[copy].dtype, full)
            maps.append(
                self.rows.row(rule, "Map", (index_text(index), "", full), (copy,), tensor, n.order[f.row.result])
            )
        dtype, place = n.tensors[p.product.result].dtype, n.order[p.product.result]
        product = self.rows.row(rule, "Bin", ("mul", full), tuple(maps), Tensor(dtype, full), place)
        return self.rows.equal(rule, "Reduce", p.sum.args, (product,), p.sum.result)
