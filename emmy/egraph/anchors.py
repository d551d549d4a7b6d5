"""Where a cut may lie: which tensors can be stored between launches.

Anchors are results of reductions, scans, gathers and scatters (after the layout changes that only they feed), graph
outputs, operands of opaque calls, values with several readers that depend on more than one stored tensor of their own
size, and ends of element-wise chains that a contraction reads.  A chain over one tensor of its size (and smaller ones,
such as a row's statistic) is not stored for element-wise readers: reading that tensor again costs no more.  Values that
depend on parameters alone are stored where they begin to meet other values: they are computed once, when the plan is
built.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from emmy.egraph.numbering import Prim
from emmy.ir.counts import extent
from emmy.ir.loop import Tensor

LAYOUT = ("Map", "As")
ELEMENTWISE = ("Un", "Bin", "Where", "Cast", *LAYOUT)
BREAKERS = ("Reduce", "Scan", "Gather1", "Gather2", "Gather3", "Scatter1", "Scatter2")


@dataclass(frozen=True, slots=True)
class Anchors:
    """Numbers of tensors.  `wide`: sums of several tensors of their own size that several launches read.

    `folded` depend on parameters alone, `fixed` on no input at all; `partial` are those of split reductions,
    `padded` copies with aligned lines.
    """

    stored: frozenset[int]
    shared: frozenset[int]
    wide: frozenset[int]
    folded: frozenset[int]
    fixed: frozenset[int] = frozenset()
    partial: frozenset[int] = frozenset()
    padded: frozenset[int] = frozenset()


def elements(t: Tensor, sizes: Mapping[str, int]) -> int:
    n = 1
    for e in t.shape:
        n *= extent(e, sizes)
    return n


class _Graph:
    def __init__(
        self, prims: Iterable[Prim], tensors: Mapping[int, Tensor], order: Mapping[int, int], sizes: Mapping[str, int]
    ) -> None:
        self.made: dict[int, list[Prim]] = defaultdict(list)
        self.readers: dict[int, list[Prim]] = defaultdict(list)
        for p in prims:
            if all(order[x] < order[p.result] for x in p.operands):
                self.made[p.result].append(p)
                for x in dict.fromkeys(p.operands):
                    self.readers[x].append(p)
        self.elements = {i: elements(t, sizes) for i, t in tensors.items()}

    def is_layout(self, t: int) -> bool:
        rows = self.made[t]
        return bool(rows) and all(p.kind in LAYOUT for p in rows)

    def through(self, t: int) -> set[tuple[int, str]]:
        """Readers of a tensor, seen through layout changes: (result, kind)."""
        found: set[tuple[int, str]] = set()
        seen: set[int] = set()
        stack = [t]
        while stack:
            x = stack.pop()
            if x in seen:
                continue
            seen.add(x)
            for p in self.readers[x]:
                if p.kind in LAYOUT and self.is_layout(p.result):
                    stack.append(p.result)
                else:
                    found.add((p.result, p.kind))
        return found

    def source(self, t: int) -> int:
        """The tensor behind a chain of layout changes."""
        while self.is_layout(t) and self.made[t]:
            t = min(self.made[t], key=lambda p: p.id).operands[0]
        return t

    def top(self, t: int) -> int:
        """The last of the layout changes that only this tensor feeds and that keep its size."""
        while True:
            readers = {p.result for p in self.readers[t]}
            if len(readers) != 1:
                return t
            (r,) = readers
            if not self.is_layout(r) or self.elements[r] != self.elements[t]:
                return t
            t = r


def find_anchors(
    prims: Iterable[Prim], tensors: Mapping[int, Tensor], order: Mapping[int, int], inputs: frozenset[int],
    parameters: frozenset[int], outputs: Iterable[int], sizes: Mapping[str, int],
) -> Anchors:  # fmt: skip
    """`inputs` holds all inputs, `parameters` those whose values are known when the plan is built."""
    g = _Graph(prims, tensors, order, sizes)
    ordered = sorted(g.made, key=lambda t: (order[t], t))
    anchor = {t for t in outputs if t not in inputs}
    constant, works, fixed = _constants(g, ordered, parameters)
    for t in ordered:
        if t not in fixed and any(p.kind in BREAKERS for p in g.made[t]):
            anchor.add(g.top(t))
    folded = {
        t
        for t in ordered
        if t in works and not g.is_layout(t) and (t in anchor or any(r not in constant for r, _ in g.through(t)))
    }
    anchor |= folded
    feet = _Feet(g, anchor, inputs)
    products = _contraction_products(g)
    for t in ordered:
        if t in anchor or g.is_layout(t) or t in products:
            continue
        if len(g.through(t)) > 1 and len(feet.large(t)) > 1:
            anchor.add(g.top(t))
            feet.memo.clear()
    shared = {t for t in anchor if len(g.through(t)) > 1 or (t in set(outputs) and g.through(t))}
    ends = set()
    for t in ordered:
        if t in anchor or t in products or g.is_layout(t):
            continue
        if not any(r in products for r, _ in g.through(t)):
            continue
        f = feet.of(t)
        if len(f) == 1 and next(iter(f)) in shared | inputs:
            continue
        if f:
            ends.add(g.top(t))
    wide = {t for t in shared if _is_wide(g, feet, t)}
    return Anchors(
        frozenset(anchor | ends | inputs), frozenset(shared), frozenset(wide), frozenset(folded), frozenset(fixed)
    )


def every_tensor(
    prims: Sequence[Prim], tensors: Mapping[int, Tensor], order: Mapping[int, int], inputs: frozenset[int],
    parameters: frozenset[int], sizes: Mapping[str, int],
) -> Anchors:  # fmt: skip
    """For launches of one operation each: all is stored, and what needs no user's input is made when the plan is."""
    g = _Graph(prims, tensors, order, sizes)
    constant, _, fixed = _constants(g, sorted(g.made, key=lambda t: (order[t], t)), parameters)
    stored = frozenset(p.result for p in prims) | inputs
    return Anchors(stored, frozenset(), frozenset(), frozenset((constant | fixed) - inputs), frozenset(fixed))


def _contraction_products(g: _Graph) -> set[int]:
    """Products that a contraction sums: whole iteration spaces, never stored."""
    return {
        x for rows in g.made.values() for p in rows if p.kind == "Reduce" and ":" in str(p.args[0]) for x in p.operands
    }


class _Feet:
    """Stored tensors that the element-wise chain ending in a tensor starts from."""

    def __init__(self, g: _Graph, anchor: set[int], inputs: frozenset[int]) -> None:
        self.g, self.anchor, self.inputs = g, anchor, inputs
        self.memo: dict[int, frozenset[int]] = {}

    def of(self, t: int) -> frozenset[int]:
        """Feet of the value: of its operands, although it may itself be stored."""
        found: set[int] = set()
        for p in self.g.made[t]:
            for x in p.operands:
                found |= self.below(x)
        return frozenset(found)

    def large(self, t: int) -> set[int]:
        """Feet of at least the value's own size: with only one, reading that again costs no more than the value."""
        return {x for x in self.of(t) if self.g.elements[x] >= self.g.elements[t]}

    def below(self, t: int) -> frozenset[int]:
        if t in self.anchor or t in self.inputs:
            return frozenset((t,))
        done = self.memo.get(t)
        if done is None:
            done = self.memo[t] = self.of(t)
        return done


def _constants(g: _Graph, ordered: list[int], parameters: frozenset[int]) -> tuple[set[int], set[int], set[int]]:
    """Values of parameters alone; those of them with some arithmetic; and values of no input at all.

    The last kind (constants, index arithmetic) is cheaper to compute than to read, and is never stored.
    """
    constant, works, fixed = set(parameters), set[int](), set[int]()
    for t in ordered:
        row = next((p for p in g.made[t] if all(x in constant or x in fixed for x in p.operands)), None)
        if row is None:
            continue
        if not any(x in constant for x in row.operands):
            fixed.add(t)
            continue
        constant.add(t)
        if row.kind not in LAYOUT or any(x in works for x in row.operands):
            works.add(t)
    return constant, works, fixed


def _is_wide(g: _Graph, feet: _Feet, t: int) -> bool:
    rows = [p for p in g.made[g.source(t)] if p.kind in ELEMENTWISE]
    if not rows or len(rows) != len(g.made[g.source(t)]):
        return False
    return len(feet.large(t)) > 1
