"""A sum of products, taken apart: which factors and which axes belong to the left part, which to the right.

sum over K of  left(batch, M, K) * right(batch, N, K)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as choices

from emmy.ir.build import scalar
from emmy.ir.loop import Ax, Const, Expr, Fold, Load, Online, Op, Scan, const, visit

MOST_FACTORS = 8
HALVES = ("bf16", "f16")
EIGHTS = ("f8e4m3", "f8e5m2")
# casts that change no value of an 8-bit float
WIDER = (*HALVES, "f32")


@dataclass(frozen=True, slots=True)
class Sum:
    """`node` is the outermost fold, `axes` the summed axes from the outside in, `factors` of the innermost body."""

    node: Fold
    axes: tuple[Ax, ...]
    factors: tuple[Expr, ...]


@dataclass(frozen=True)
class Part:
    """One operand of a contraction: an element-wise expression over loads and row scalars.

    `scalars` are the maximal folds inside, which depend on no summed axis: a block computes each of them once a row.
    """

    value: Expr
    k: tuple[Ax, ...]

    @cached_property
    def scalars(self) -> tuple[Expr, ...]:
        return tuple(top_folds(self.value))

    @cached_property
    def plain(self) -> Load | None:
        """The one load that the part is, when it has no arithmetic and no gather."""
        return self.value if isinstance(self.value, Load) and not has_load(self.value.index) else None

    @cached_property
    def single(self) -> Load | None:
        """The one load that the part is, when it has no arithmetic; what it reads may be gathered."""
        return self.value if isinstance(self.value, Load) else None

    @cached_property
    def in_eighths(self) -> bool:
        """True when every value of the part is an 8-bit float."""
        return unwidened(self.value) is not None

    @cached_property
    def eighth(self) -> Load | None:
        """The one load of 8-bit floats that the part is, seen through casts to wider types; None where it is none."""
        node = unwidened(self.value)
        return node if isinstance(node, Load) and not has_load(node.index) else None

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Loads outside the row scalars, each once."""
        return tuple(n for n in outside_folds(self.value) if isinstance(n, Load))

    @cached_property
    def half(self) -> str | None:
        """The 16-bit type that holds every value of the part exactly, None where there is none."""
        v = self.value
        if isinstance(v, Load | Op) and v.dtype in HALVES and (isinstance(v, Load) or v.name == "cast"):
            return v.dtype
        return None


@dataclass(frozen=True, slots=True)
class Split:
    left: Part
    right: Part
    batch: frozenset[Ax]
    m: frozenset[Ax]
    n: frozenset[Ax]


def unwidened(e: Expr) -> Load | Op | None:
    """The 8-bit floats that casts to wider types leave as they are; None for any other value."""
    node = e
    while isinstance(node, Op) and node.name == "cast" and node.dtype in WIDER:
        node = node.args[0]
    return node if isinstance(node, Load | Op) and node.dtype in EIGHTS else None


def has_load(roots: Iterable[Expr]) -> bool:
    seen: dict[Expr, None] = {}
    for r in roots:
        visit(r, seen)
    return any(isinstance(n, Load) for n in seen)


def top_folds(root: Expr) -> list[Expr]:
    """The outermost folds, scans and online sums of an expression, each once, in evaluation order."""
    return [n for n in outside_folds(root) if isinstance(n, Fold | Scan | Online)]


def outside_folds(root: Expr) -> list[Expr]:
    """Nodes that are not under a binder (the binders themselves included), operands first, each once."""
    seen: dict[Expr, None] = {}
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done or isinstance(node, Fold | Scan | Online):
            seen.setdefault(node, None)
        elif node not in seen:
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(node.children))
    return list(seen)


def unconditional(root: Expr) -> set[Expr]:
    """Nodes outside binders that are computed whatever the conditions of the expression are."""
    found: set[Expr] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        if isinstance(node, Fold | Scan | Online):
            continue
        stack += node.args[:1] if isinstance(node, Op) and node.name == "where" else node.children
    return found


def sum_of_products(node: Expr) -> Sum | None:
    """The fold as a sum over one or more axes of a product of at least one factor; None for any other expression."""
    axes: list[Ax] = []
    body = node
    while isinstance(body, Fold) and body.kind == "sum" and body.axis not in axes:
        axes.append(body.axis)
        body = body.body
    if not axes or body.type != "f32" or not isinstance(node, Fold):
        return None
    return Sum(node, tuple(axes), tuple(_factors(body)))


def half_type(s: Sum, left: Part, right: Part) -> str | None:
    """The 16-bit type in which tensor cores may take the factors: the original product's, or one that holds them."""
    node: Expr = s.node
    while isinstance(node, Fold):
        if node.operand in EIGHTS:
            # every 16-bit type holds them
            return HALVES[0] if left.in_eighths and right.in_eighths else None
        if node.operand:
            return node.operand if node.operand in HALVES else None
        node = node.body
    return left.half if left.half == right.half else None


def eighth_type(s: Sum, left: Part, right: Part) -> str | None:
    """The 8-bit type in which both factors are stored, where the original product is one of 8-bit floats by name.

    Tensor cores add such products in short sums, for which conversions to a wider type do not ask.
    """
    a, b = left.eighth, right.eighth
    node: Expr = s.node
    while isinstance(node, Fold) and not node.operand:
        node = node.body
    named = isinstance(node, Fold) and node.operand in EIGHTS
    return a.dtype if named and a is not None and b is not None and a.dtype == b.dtype else None


def _factors(e: Expr) -> list[Expr]:
    if isinstance(e, Op) and e.name == "mul" and e.dtype == "f32":
        return [f for a in e.args for f in _factors(a)]
    return [e]


def join(factors: Sequence[Expr], k: tuple[Ax, ...]) -> Part:
    """The product of the factors as one part; the empty product is one."""
    value: Expr = const(1.0, "f32")
    for f in factors:
        value = f if isinstance(value, Const) and value.value == 1.0 else scalar("mul", value, f)
    return Part(value, k)


def split(s: Sum, free: Sequence[Ax], last: Ax | None) -> Split | str:
    """The best division of the factors into two parts: most axes in one part only, then the plainest parts.

    `last`, the axis along which results are contiguous, is never an own axis of the left part.  A factor that depends
    on no own axis goes where arithmetic stands already, else to the left.  Returns the reason where none fits.
    """
    if len(s.factors) < 2:
        return "the sum is over one factor"
    if len(s.factors) > MOST_FACTORS:
        return f"the sum is over more than {MOST_FACTORS} factors"
    k, among = set(s.axes), set(free)
    if any(isinstance(n, Fold | Scan | Online) and n.free & k for f in s.factors for n in outside_folds(f)):
        return "a factor holds a fold over the summed axis"
    best: tuple[tuple[int, ...], Split] | None = None
    for sides in choices((0, 1), repeat=len(s.factors)):
        found = _division(s, sides, among, last)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return "no division of the factors leaves each part axes of its own" if best is None else best[1]


def _division(s: Sum, sides: tuple[int, ...], among: set[Ax], last: Ax | None) -> tuple[tuple[int, ...], Split] | None:
    k = set(s.axes)
    left, right = (
        join([f for f, side in zip(s.factors, sides, strict=True) if side == which], s.axes) for which in (0, 1)
    )
    if not (left.value.free & k) or not (right.value.free & k):
        return None
    a, b = left.value.free & among, right.value.free & among
    m, n, batch = a - b, b - a, a & b
    if last in m or not m | n:
        return None
    plain = (left.plain is not None) + (right.plain is not None)
    score = (-len(batch), bool(m) + bool(n), plain, right.plain is not None, *(1 - side for side in sides))
    return score, Split(left, right, frozenset(batch), frozenset(m), frozenset(n))
