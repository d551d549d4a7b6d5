"""How much a loop body has to do: bytes, products, scalar instructions and serial steps, at concrete sizes.

Every distinct value is counted once for each combination of the axes that it depends on, which is what a kernel does
that keeps what it can keep.  Two things force a value to be computed more often, and both are kept apart here so that a
schedule's shape can say how often: a value that lacks some of the output's axes is made again by every block (or
thread) that covers another part of those axes (`Group`), and a value that two passes over one axis need is made in each
(`passes`).
Folds over one axis that do not wait for each other are one pass; online sums over one (axis, score) share their
exponentials and their running maximum, so a maximum over the same (axis, score) is free beside them.  Rows held in
registers find that maximum in a pass of its own, never rescale, and keep their exponentials for the results.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from emmy.extract.before import Statistic, statistics
from emmy.extract.products import ProductAxes, product_axes
from emmy.ir.dtype import dtype
from emmy.ir.evaluate import integer
from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Out, Scan, Size
from emmy.ir.scalar import SCALAR
from emmy.ir.views.product import EIGHTS, sum_of_products, unwidened

# An online sum's step for each score: maximum, subtract, exponential.  A kernel that takes scores one by one rescales
# the running sum each time (another exponential and two comparisons), by vectors once a vector, by tiles hardly ever.
ONLINE_SLOTS: Final = 2.0 + SCALAR["exp"].slots
RESCALE_SLOTS: Final = 4.0 + SCALAR["exp"].slots
# Welford's update: two subtractions, three additions, a product and a division.
DEVIATION_SLOTS: Final = 6.0 + SCALAR["div"].slots


@dataclass(frozen=True, slots=True)
class Group:
    """Values that lack the same output axes.

    `m`, `n`, `b`: product of the missing axes that belong to the first factor of the main product, to its second, to
    both.  `rows`, `columns`: of those on which the body's folds depend, and of the others.  `extent`: of all; `inner`:
    of the axes inside the innermost missing one that are not missing (a run of that many points shares no value).
    """

    m: int = 1
    n: int = 1
    b: int = 1
    rows: int = 1
    columns: int = 1
    extent: int = 1
    inner: int = 1


@dataclass(frozen=True, slots=True)
class Read:
    """One load expression: `bytes` for each of its distinct values once, in `passes` passes.

    `strided`: neighbours along the axis that threads follow are not neighbours in memory; `walked`: those along a
    folded axis are.  `crossed`: those along a folded axis are not, while those of most other folded reads are, so that
    threads which share a row follow it.  `element` bytes of one value.
    """

    slot: int
    bytes: float
    group: int
    passes: int
    strided: bool
    walked: bool
    crossed: bool
    element: int


@dataclass(frozen=True, slots=True)
class Dot:
    """A sum of products whose factors have axes of their own: `batch` products of [m, k] by [k, n], `passes` times.

    `tensor`: its operands may be rounded to a 16-bit type, so tensor cores apply.  `main`: its m and n are output axes.
    `bits`: 8 where both factors are stored so, of which tensor cores may take twice as many.
    """

    m: int
    n: int
    k: int
    batch: int
    group: int
    passes: int
    tensor: bool
    main: bool
    bits: int = 16

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch * self.passes


@dataclass(frozen=True)
class Work:
    """A body's work.  Bytes, FLOPs and instruction slots of one launch; `slots[g]` belong to `groups[g]`.

    `footprint[s]` bytes of operand s are touched at all.  `points` output points; `rows` independent folds of
    `fold_length` elements in the widest; `depth` serial steps for one output point, in `levels` passes that wait for
    each other; `element` bytes of a typical operand element.

    `stepped[g]`: slots beside `slots[g]` where every element is a step of its own; a kernel that steps by vectors pays
    them once a vector, one that holds its row in registers pays none of an online sum's. `kept[g]`: slots among
    `slots[g]` that such a kernel saves, as the exponentials that it sums are those that its results need. `rescales`,
    `deviates`: online sums and folds of squared deviations are there, whose partial results take an exponential or a
    division to combine. Running folds are counted as one walk along each row; `replayed` slots more are spent where
    every output walks again from the beginning.  `before`: row scalars that a contraction's results or factors need.
    """

    points: int
    rows: int
    fold_length: int
    depth: float
    levels: int
    element: int
    footprint: tuple[float, ...]
    stored: float
    groups: tuple[Group, ...]
    slots: tuple[float, ...]
    stepped: tuple[float, ...]
    kept: tuple[float, ...]
    reads: tuple[Read, ...]
    dots: tuple[Dot, ...]
    strided_store: bool
    rescales: bool
    deviates: bool
    replayed: float
    before: tuple[Statistic, ...] = ()

    @property
    def bytes(self) -> float:
        return sum(self.footprint) + self.stored

    @property
    def tensor_flops(self) -> float:
        return sum(d.flops for d in self.dots if d.tensor)

    @property
    def tensor_time(self) -> float:
        """`tensor_flops` in units of those on 16-bit factors: the others of 8 bits take half as long."""
        return sum(d.flops * d.bits / 16 for d in self.dots if d.tensor)

    @property
    def scalar_flops(self) -> float:
        return sum(d.flops for d in self.dots if not d.tensor)


def analyse(body: Body, sizes: Mapping[str, int] | None = None) -> Work:
    """The work of a body at these sizes (every symbolic size of the body must be given: KeyError names one)."""
    return _Analysis(body, dict(sizes or {})).result()


class _Analysis:
    def __init__(self, body: Body, sizes: Mapping[str, int]) -> None:
        self.body, self.sizes = body, sizes
        self.extents: dict[Expr, int] = {}
        self.binders: dict[Expr, frozenset[Fold | Scan | Online]] = {}
        self.levels: dict[Expr, int] = {}
        self.depths: dict[Expr, float] = {}
        self.seen: set[tuple[Expr, tuple[tuple[Ax, int], ...]]] = set()
        self.passes: dict[Expr, int] = defaultdict(int)
        self.first_out: dict[Expr, Out] = {}
        self.index_only: set[Expr] = set()
        self.groups: dict[Group, int] = {}
        self.slots: dict[int, float] = defaultdict(float)
        self.stepped: dict[int, float] = defaultdict(float)
        self.kept: dict[int, float] = defaultdict(float)
        self.replayed = 0.0
        self.out = body.outs[0]

    # ---- axes ------------------------------------------------------------------------------------------------------

    def extent(self, e: Expr) -> int:
        known = self.extents.get(e)
        if known is None:
            known = self.extents[e] = self._extent(e)
        return known

    def _extent(self, e: Expr) -> int:
        if isinstance(e, Const):
            return int(e.value)
        if isinstance(e, Size):
            return int(self.sizes[e.name])
        return integer(e, self.sizes)

    def product(self, axes: Iterable[Ax]) -> int:
        return math.prod(self.extent(a.extent) for a in axes)

    # ---- result ----------------------------------------------------------------------------------------------------

    def result(self) -> Work:
        outs = sorted(self.body.outs, key=lambda o: -self.product(o.axes))
        self.out = outs[0]
        for out in outs:
            self._visit(out.value, {}, out, index=False)
        binders = list(dict.fromkeys(n for n in self.body.nodes if isinstance(n, Fold | Scan | Online)))
        nested = {inner for n in binders if isinstance(n, Fold) for inner in _product_nodes(n)}
        products: dict[Expr, ProductAxes] = {
            n: p for n in binders if n not in nested and (p := product_axes(n)) is not None
        }
        main = self._main(products)
        outer = [n for n in binders if not any(n is not o and n in self._inside(o) for o in binders)]
        row_axes = frozenset(a for n in outer for a in _rows(n))
        element = [dtype(n.dtype).bytes for n in self.passes if isinstance(n, Load)]
        roles = _Roles(self, main, row_axes)
        reads = self._reads(roles)
        dots = tuple(self._dot(n, p, roles) for n, p in products.items())
        self._scalar(roles, products)
        for a_out in self.body.outs:
            # a store is an instruction for each element, whatever the vector width (charged there by the prior)
            self.slots[self._group(Group())] += self.product(a_out.axes)
        groups = tuple(self.groups)
        return Work(
            points=self.product(self.out.axes),
            rows=max((self.product(_rows(n)) for n in outer), default=self.product(self.out.axes)),
            fold_length=max((self._length(n) for n in outer), default=1),
            depth=max(self._depth(o.value) for o in self.body.outs),
            levels=max((self._level(n) for n in binders), default=0),
            element=min(element, default=dtype(self.out.tensor.dtype).bytes),
            footprint=self._footprint(),
            stored=float(sum(self.product(o.axes) * dtype(o.tensor.dtype).bytes for o in self.body.outs)),
            groups=groups,
            slots=tuple(self.slots[g] for g in range(len(groups))),
            stepped=tuple(self.stepped[g] for g in range(len(groups))),
            kept=tuple(self.kept[g] for g in range(len(groups))),
            reads=reads,
            dots=dots,
            strided_store=_strided(self.out.index, self.out.axes[-1] if self.out.axes else None),
            rescales=any(isinstance(n, Online) for n in binders),
            deviates=any(isinstance(n, Fold) and n.kind == "m2" for n in binders),
            replayed=self.replayed,
            before=statistics(self.body, self.product),
        )

    def _main(self, products: Mapping[Expr, ProductAxes]) -> ProductAxes | None:
        output = {a for o in self.body.outs for a in o.axes}
        ranked = [
            (self.product((*p.m, *p.n, *p.k, *p.batch)), n.text, p)
            for n, p in products.items() if (p.m | p.n) <= output
        ]  # fmt: skip
        if not ranked:
            return None
        best = max(ranked, key=lambda r: r[:2])[2]
        # the second factor is the one that owns the output's innermost axis, as schedules tile it
        owned = [a for o in self.body.outs for a in o.axes if a in best.m | best.n]
        return best.turned() if owned and owned[-1] in best.m else best

    # ---- passes ----------------------------------------------------------------------------------------------------

    def _inside(self, node: Expr) -> frozenset[Fold | Scan | Online]:
        known = self.binders.get(node)
        if known is None:
            own = frozenset((node,)) if isinstance(node, Fold | Scan | Online) else frozenset()
            known = self.binders[node] = own.union(*(self._inside(c) for c in node.children))
        return known

    def _level(self, node: Fold | Scan | Online) -> int:
        """Which pass over its axis a fold belongs to: one after the folds that it waits for."""
        known = self.levels.get(node)
        if known is None:
            inside = frozenset[Fold | Scan | Online]().union(*(self._inside(c) for c in node.children))
            waits = [b for b in inside if b.axis is node.axis and node.axis not in b.free]
            known = self.levels[node] = 1 + max((self._level(b) for b in waits), default=0)
        return known

    def _visit(self, node: Expr, passes: Mapping[Ax, int], out: Out, index: bool) -> None:
        relevant = tuple(sorted(((a, p) for a, p in passes.items() if a in node.free), key=lambda x: (x[0].text, x[1])))
        if (node, relevant) in self.seen:
            if not index:
                self.index_only.discard(node)
            return
        self.seen.add((node, relevant))
        if index and node not in self.passes:
            self.index_only.add(node)
        if not index:
            self.index_only.discard(node)
        self.passes[node] += 1
        self.first_out.setdefault(node, out)
        inner = {**passes, node.axis: self._level(node)} if isinstance(node, Fold | Scan | Online) else passes
        for child in node.children:
            self._visit(child, inner, out, index or isinstance(node, Load))

    # ---- counts ----------------------------------------------------------------------------------------------------

    def _group(self, group: Group) -> int:
        return self.groups.setdefault(group, len(self.groups))

    def _scalar(self, roles: _Roles, products: Mapping[Expr, ProductAxes]) -> None:
        scored: set[tuple[Ax, Expr]] = {(n.axis, n.score) for n in self.passes if isinstance(n, Online)}
        charged: set[tuple[Ax, Expr]] = set()
        multiplied = {f for n in products if isinstance(n, Fold) for f in _product_nodes(n)}
        for node, passes in self.passes.items():
            if node in self.index_only or node in multiplied:
                continue
            slots, stepped = 0.0, 0.0
            if isinstance(node, Op):
                slots = SCALAR[node.name].slots * self.product(node.free)
                if _summed_exponential(node, scored):
                    group = self._group(roles.group(node))
                    self.kept[group] += (slots + self.product(node.free)) * passes
            elif isinstance(node, Online):
                if (node.axis, node.score) not in charged:
                    charged.add((node.axis, node.score))
                    steps = self.product(node.score.free | {node.axis})
                    slots, stepped = ONLINE_SLOTS * steps, RESCALE_SLOTS * steps
                if node not in products:
                    slots += self.product(node.free | {node.axis})
            elif isinstance(node, Scan):
                slots = self.product(node.body.free | {node.axis})
                # on average a result stands in the middle of its row
                self.replayed += 0.5 * self.product(node.free | node.body.free | {node.axis}) - slots
            elif isinstance(node, Fold) and node not in products:
                free_maximum = node.kind == "max" and (node.axis, node.body) in scored
                slots = 0.0 if free_maximum else self.product(node.free | node.body.free | {node.axis})
                stepped = DEVIATION_SLOTS * slots if node.kind == "m2" else 0.0
            if slots:
                group = self._group(roles.group(node))
                self.slots[group] += slots * passes
                self.stepped[group] += stepped * passes

    def _dot(self, node: Expr, p: ProductAxes, roles: _Roles) -> Dot:
        half = node.operand in ("bf16", "f16", "f8e4m3", "f8e5m2") if isinstance(node, Fold | Online) else False
        main = roles.main is not None and p.m | p.n == roles.main.m | roles.main.n
        if main and roles.main is not None and p.m != roles.main.m:
            p = p.turned()
        m, n, k, batch = (self.product(axes) for axes in (p.m, p.n, p.k, p.batch))
        bits = 8 if isinstance(node, Fold) and _in_eighths(node) else 16
        return Dot(m, n, k, batch, self._group(roles.group(node)), self.passes[node], half, main, bits)

    def _reads(self, roles: _Roles) -> tuple[Read, ...]:
        reads, folded = [], [self._walked(x) for x in self.passes if isinstance(x, Load) and self._bound(x)]
        across = 2 * sum(folded) < len(folded)  # threads of a row kernel follow the rows (`row_view.across_rows`)
        for node, passes in self.passes.items():
            if not isinstance(node, Load):
                continue
            out = self.first_out[node]
            fast = out.axes[-1] if out.axes and out.axes[-1] in node.free else None
            bound = self._bound(node)
            if fast is None and bound:
                fast = bound[-1]  # of folds over several axes threads follow the innermost
            element = dtype(node.dtype).bytes
            size = float(self.product(node.free) * element)
            walked, strided = self._walked(node), _strided(node.index, fast)
            crossed = bool(bound) and not walked and not across
            group = self._group(roles.group(node))
            reads.append(Read(node.slot, size, group, passes, strided, walked, crossed, element))
        return tuple(reads)

    def _bound(self, node: Load) -> list[Ax]:
        """The folded axes that a load is under."""
        return [a for a in node.axes if a not in self.first_out[node].axes]

    def _walked(self, node: Load) -> bool:
        return any(not _strided(node.index, a) for a in self._bound(node))

    def _footprint(self) -> tuple[float, ...]:
        touched: dict[int, float] = defaultdict(float)
        for node in self.passes:
            if isinstance(node, Load):
                touched[node.slot] += self.product(frozenset[Ax]().union(*(i.free for i in node.index)))
        sizes = []
        for k, slot in enumerate(self.body.slots):
            whole = math.prod(self.extent(e) for e in slot.shape)
            sizes.append(float(min(touched[k], whole) * dtype(slot.dtype).bytes))
        return tuple(sizes)

    # ---- serial steps ----------------------------------------------------------------------------------------------

    def _length(self, node: Fold | Scan | Online) -> int:
        """Elements that one value of a fold runs over; a sum over several axes counts with all of them."""
        length, body = self.extent(node.axis.extent), node.children[-1]
        while isinstance(body, Fold) and node.axis in body.free and isinstance(node, Fold) and body.kind == node.kind:
            length, body = length * self.extent(body.axis.extent), body.body
        return length

    def _depth(self, node: Expr) -> float:
        known = self.depths.get(node)
        if known is not None:
            return known
        depth = max((self._depth(c) for c in node.children), default=0.0)
        if isinstance(node, Fold | Scan | Online):
            inside = frozenset[Fold | Scan | Online]().union(*(self._inside(c) for c in node.children))
            nested = max((self._depth(b) for b in inside if node.axis in b.free), default=0.0)
            before = max((self._depth(b) for b in inside if node.axis not in b.free), default=0.0)
            depth = self.extent(node.axis.extent) * (1.0 + nested) + before
        self.depths[node] = depth
        return depth


def _in_eighths(node: Fold) -> bool:
    """True for a sum of products that the program takes of 8-bit floats, of two factors that are stored so."""
    found = sum_of_products(node) if node.operand in EIGHTS else None
    return found is not None and len(found.factors) == 2 and all(unwidened(f) is not None for f in found.factors)


class _Roles:
    """Sorts the output axes that a value lacks by what they are to the main product and to the folds."""

    def __init__(self, analysis: _Analysis, main: ProductAxes | None, row_axes: frozenset[Ax]) -> None:
        self.analysis, self.main, self.row_axes = analysis, main, row_axes

    def group(self, node: Expr) -> Group:
        axes = self.analysis.first_out[node].axes
        missing = [a for a in axes if a not in node.free]
        if not missing:
            return Group()
        product = self.analysis.product
        m, n = (self.main.m, self.main.n) if self.main else (frozenset[Ax](), frozenset(axes))
        last = max(axes.index(a) for a in missing)
        return Group(
            m=product(a for a in missing if a in m),
            n=product(a for a in missing if a in n),
            b=product(a for a in missing if a not in m and a not in n),
            rows=product(a for a in missing if a in self.row_axes),
            columns=product(a for a in missing if a not in self.row_axes),
            extent=product(missing),
            inner=product(axes[last + 1 :]),
        )


def _rows(node: Fold | Scan | Online) -> frozenset[Ax]:
    """Axes of which each point is an independent fold; the results of a running fold along its axis share one."""
    return node.body.free - {node.axis} if isinstance(node, Scan) else node.free


def _product_nodes(node: Fold) -> list[Expr]:
    """The nested sums and the multiplications of a sum of products: its FLOPs are counted as a product."""
    found: list[Expr] = []
    body: Expr = node.body
    while isinstance(body, Fold) and body.kind == "sum":
        found.append(body)
        body = body.body
    if isinstance(body, Op) and body.name == "mul":
        found.append(body)
    return found


def _summed_exponential(node: Op, scored: Collection[tuple[Ax, Expr]]) -> bool:
    """True for exp(x - maximum) where an online sum over that maximum's scores is there: one of its exponentials."""
    if node.name != "exp" or not (isinstance(node.args[0], Op) and node.args[0].name == "sub"):
        return False
    top = node.args[0].args[1]
    return isinstance(top, Fold) and top.kind == "max" and (top.axis, top.body) in scored and top.axis not in node.free


def _strided(index: tuple[Expr, ...], axis: Ax | None) -> bool:
    """True when a step along `axis` moves by more than one element of a row-major array."""
    if axis is None or not any(axis in i.free for i in index):
        return False
    if any(axis in i.free for i in index[:-1]):
        return True
    return _coefficient(index[-1], axis) not in (1, -1)


def _coefficient(e: Expr, axis: Ax) -> int | None:
    """How much `e` grows when `axis` grows by one; None where that is not one number."""
    if e is axis:
        return 1
    if axis not in e.free:
        return 0
    if isinstance(e, Op) and e.name == "add":
        parts = [_coefficient(a, axis) for a in e.args]
        return None if None in parts else sum(p for p in parts if p is not None)
    if isinstance(e, Op) and e.name == "mul" and isinstance(e.args[1], Const):
        inner = _coefficient(e.args[0], axis)
        return None if inner is None else inner * int(e.args[1].value)
    return None
