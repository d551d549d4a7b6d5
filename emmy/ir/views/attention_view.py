"""A loop body read as attention: online sums over keys of one score.

    out[b, m, c] = epilogue(O_1[b, m, c], …, L[b, m], …)
    O_i = Online(t, score, V_i[b, t, c])     L = Online(t, score, W[b, t])     optionally  max over t of score
    score[b, m, t] = elementwise(sum over d of Q[b, m, d] * K[b, t, d], masks over (b, m, t))

b, m, c, d are lists of axes; t is one axis.  Grouped heads need no case: the axis of a group is in Q only, hence in m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from emmy.ir.integer import isub, terms_of
from emmy.ir.loop import Ax, Body, Expr, Fold, Online, Op, Scan
from emmy.ir.views.memo import VIEWS
from emmy.ir.views.product import HALVES, Part, Sum, half_type, outside_folds, split, sum_of_products, top_folds
from emmy.ir.views.scores import peel

# query fragments stay in registers over all keys up to this many a lane; longer ones are read for every key tile
QUERY_REGISTERS = 32


@dataclass(frozen=True)
class AttentionView:
    """`score` holds the fold `dot`, whose parts `sum` has.

    `values` are the online sums with an axis of their own, `weights` the others.
    """

    body: Body
    batch: tuple[Ax, ...]
    m: tuple[Ax, ...]
    c: tuple[Ax, ...]
    t: Ax
    d: tuple[Ax, ...]
    score: Expr
    sum: Sum
    query: Part
    key: Part
    values: tuple[Online, ...]
    weights: tuple[Online, ...]
    maxima: tuple[Fold, ...]

    @property
    def dot(self) -> Fold:
        return self.sum.node

    @cached_property
    def half(self) -> str | None:
        """The 16-bit type in which tensor cores may take queries, keys, probabilities and values; None where not."""
        types = {half_type(self.sum, self.query, self.key)}
        for v in self.values:
            types.add(v.operand if v.operand in HALVES else None)
        return types.pop() if len(types) == 1 else None

    @cached_property
    def scalars(self) -> tuple[Expr, ...]:
        """Folds that are neither the dot product nor over t: one a query row (or a key)."""
        found = dict.fromkeys(s for p in (self.query, self.key) for s in p.scalars)
        known = {*self.values, *self.weights, *self.maxima}
        for o in self.body.outs:
            found.update(dict.fromkeys(s for s in top_folds(o.value) if s not in known))
        for v in (*self.values, *self.weights):
            found.update(dict.fromkeys(top_folds(v.value)))
        found.update(dict.fromkeys(s for s in top_folds(self.score) if s is not self.dot))
        return tuple(found)

    @cached_property
    def limits(self) -> tuple[tuple[Expr, Ax, int], ...]:
        """Conditions of the score that read t <= i + c for an m axis i, as (condition, i, c)."""
        found = ((c, _bound(c, self.t, set(self.m))) for c in peel(self.score).conditions)
        return tuple((c, *b) for c, b in found if b is not None)


@lru_cache(maxsize=VIEWS)
def attention_view(body: Body) -> AttentionView | str:
    """The body as attention, or why it is not."""
    axes = body.outs[0].axes
    if any(o.axes != axes for o in body.outs):
        return "results over different axes"
    tops = list(dict.fromkeys(f for o in body.outs for f in top_folds(o.value)))
    onlines = [f for f in tops if isinstance(f, Online)]
    if not onlines:
        return "no online sum"
    t, score = onlines[0].axis, onlines[0].score
    if any(o.axis is not t or o.score is not score for o in onlines):
        return "online sums over different scores"
    maxima = [f for f in tops if isinstance(f, Fold) and f.kind == "max" and f.axis is t and f.body is score]
    return _parts(body, axes, t, score, onlines, maxima)


def _parts(
    body: Body, axes: tuple[Ax, ...], t: Ax, score: Expr, onlines: Sequence[Online], maxima: Sequence[Fold]
) -> AttentionView | str:
    dots = [f for f in top_folds(score) if t in f.free]
    if len(dots) != 1:
        return f"the score holds {len(dots)} folds over keys, not one"
    s = sum_of_products(dots[0])
    if s is None:
        return "the score's fold is not a sum of products"
    found = split(s, (*axes, t), t)
    if isinstance(found, str):
        return f"score: {found}"
    if t not in found.n:
        return "both factors of the score depend on the key axis"
    values = [o for o in onlines if o.value.free - score.free]
    weights = [o for o in onlines if o not in values]
    own = {a for o in values for a in o.value.free if a not in score.free}
    # an axis that the keys or the values share with the queries selects a set of keys: it is a batch axis
    shared = {a for o in onlines for a in o.value.free} | found.right.value.free
    m = {a for a in score.free - {t} if a not in shared}
    batch = {a for a in axes if a not in m and a not in own}
    if not values or not m | batch:
        return "no values with an axis of their own"
    if any(isinstance(n, Fold | Scan | Online) for o in onlines for n in outside_folds(o.value)):
        return "a value that holds a fold"
    view = AttentionView(
        body, _order(axes, batch), _order(axes, m), _order(axes, own), t, s.axes, score, s,
        found.left, found.right, tuple(values), tuple(weights), tuple(maxima),
    )  # fmt: skip
    wrong = [x for x in view.scalars if x.free & own or (x.free & m and t in x.free)]
    return "a fold that depends on rows of two operands" if wrong else view


def _order(axes: Sequence[Ax], chosen: set[Ax]) -> tuple[Ax, ...]:
    return tuple(a for a in axes if a in chosen)


def _bound(cond: Expr, t: Ax, m: set[Ax]) -> tuple[Ax, int] | None:
    """`t <= i + c`, also spelled t < i + c and with terms moved across."""
    if not (isinstance(cond, Op) and cond.name in ("le", "lt")):
        return None
    # right - left >= 0 (or > 0)
    terms = terms_of(isub(cond.args[1], cond.args[0]))
    rows = [a for a in m if terms.get((a,)) == 1]
    if terms.pop((t,), 0) != -1 or len(rows) != 1:
        return None
    terms.pop((rows[0],))
    c = terms.pop((), 0)
    return None if terms else (rows[0], c - (1 if cond.name == "lt" else 0))


__all__ = ["AttentionView", "attention_view"]
