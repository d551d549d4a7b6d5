"""Answers the split rules: a long reduction becomes partial results over an axis of parts, and their finishing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from emmy.egraph.anchors import Anchors, elements
from emmy.egraph.appended import Appended
from emmy.egraph.egg import Egg
from emmy.egraph.loading import Shapes
from emmy.egraph.numbering import Numbering, Prim
from emmy.ir.build import iadd, imul
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Const, Expr, Tensor, const
from emmy.ir.parse import index_text
from emmy.ir.tensor import axes_text, coordinates, parse_axes

# Bounds of the rules in rulesets/model/split.egg.  A block of threads a result fills a card of 100 to 150 SMs from some
# hundred results on; a contraction's output points need a warp each, and 32 warps an SM.
SPLIT_BOUNDS: Final = {
    "SPLIT_ELEMENTS": 4096, "SPLIT_RESULTS": 128, "SPLIT_FILL": 512,
    "SPLIT_K_ELEMENTS": 1024, "SPLIT_K_RESULTS": 65536, "SPLIT_K_FILL": 262144,
}  # fmt: skip
# A part is no shorter than a few loads of a block of threads, nor are there more parts than a warp finishes at once.
SHORTEST: Final = 256
MOST: Final = 512
MOST_K: Final = 16


def split_reductions(
    egg: Egg, numbering: Numbering, anchors: Anchors, parameters: frozenset[int], shapes: Shapes,
    sizes: Mapping[str, int],
) -> Anchors:  # fmt: skip
    """Run the split rules and answer them.

    `parameters` are numbers of inputs known when the plan is built.  New tensors and rows are appended to the
    numbering; partial results can be stored, so the anchors that are returned hold them.
    """
    found = {p.id: p for p in numbering.prims if _is_candidate(p, numbering, anchors)}
    egg.facts("partial", [(k, d) for k in ("sum", "prod", "max", "min", "or", "and") for d in DTYPES if _exact(k, d)])
    egg.facts("reduction", [_fact(p, numbering, sizes) for p in found.values()])
    egg.facts("weighs", [(p.id,) for p in found.values() if _has_weight(p, numbering, parameters | anchors.folded)])
    egg.run("split", saturate=True)
    stored: set[int] = set()
    united, new = [], Appended(numbering, shapes)
    for row, fill in sorted(egg.freeze().rows("want-split")):
        p = found[row]
        parts = _parts(p, numbering, fill // max(1, elements(numbering.tensors[p.result], sizes)))
        if parts:
            partial, pair = _split(new, p, parts, "split-contraction" if _operand(p) else "split-reduction")
            stored.add(partial)
            united.append(pair)
    new.load(egg)
    egg.facts("split-of", united)
    egg.run("split", saturate=True)
    egg.run("analysis", saturate=True)
    new.lift(egg)
    return replace(anchors, stored=anchors.stored | stored, partial=frozenset(stored))


def _operand(p: Prim) -> str:
    return str(p.args[0]).partition(":")[2]


def _exact(kind: str, dtype: str) -> bool:
    """True where storing a partial result rounds nothing that the whole would keep."""
    return kind not in ("sum", "prod") or DTYPES[dtype].kind != "float" or DTYPES[dtype].bits >= 32


def _longest(p: Prim, n: Numbering) -> int:
    """The reduced axis of the largest fixed extent, -1 where there is none."""
    shape = n.tensors[p.operands[0]].shape
    extents = [(shape[a], a) for a in parse_axes(str(p.args[1]))]
    fixed = [(int(e.value), a) for e, a in extents if isinstance(e, Const)]
    return max(fixed)[1] if fixed else -1


def _extent(e: Expr) -> int:
    assert isinstance(e, Const)  # only fixed axes are split
    return int(e.value)


def _is_candidate(p: Prim, n: Numbering, anchors: Anchors) -> bool:
    """A reduction that runs at each call, along an axis of fixed extent."""
    if p.kind != "Reduce" or p.result in anchors.folded | anchors.fixed or _longest(p, n) < 0:
        return False
    return n.order[p.operands[0]] < n.order[p.result]


def _has_weight(p: Prim, n: Numbering, weights: frozenset[int]) -> bool:
    """True where a factor of the product that the row sums is a view of a weight."""
    made = defaultdict(list)
    for q in n.prims:
        made[q.result].append(q)
    factors = {x for q in made[p.operands[0]] if q.kind == "Bin" for x in q.operands}
    sources = {x for f in factors for q in made[f] if q.kind == "Map" for x in q.operands}
    return bool((factors | sources) & weights)


def _fact(p: Prim, n: Numbering, sizes: Mapping[str, int]) -> tuple[object, ...]:
    kind, _, operand = str(p.args[0]).partition(":")
    result = n.tensors[p.result]
    each, results = elements(n.tensors[p.operands[0]], sizes), elements(result, sizes)
    return (p.id, kind, operand, result.dtype, each // max(1, results), results)


def _parts(p: Prim, n: Numbering, wanted: int) -> int:
    """The divisor of the split axis next to what fills a card; 0 where no divisor leaves parts of a useful length."""
    extent = _extent(n.tensors[p.operands[0]].shape[_longest(p, n)])
    most = min(MOST_K if _operand(p) else MOST, extent // SHORTEST)
    fitting = [d for d in range(2, most + 1) if extent % d == 0]
    return min(fitting, key=lambda d: (abs(d - wanted), d), default=0)


def _split(new: Appended, p: Prim, parts: int, rule: str) -> tuple[int, tuple[int, int]]:
    """Rows of one split reduction: x seen in parts, partial results, those without the axis of extent 1, the whole.

    The number of the partial results, and what is to be united.
    """
    n = new.n
    (x,), axis, axes = p.operands, _longest(p, n), parse_axes(str(p.args[1]))
    source, result = n.tensors[x], n.tensors[p.result]
    length = _extent(source.shape[axis]) // parts
    cut = (*source.shape[:axis], const(parts), const(length), *source.shape[axis + 1 :])
    d = coordinates(cut)
    index = (*d[:axis], iadd(imul(d[axis], length), d[axis + 1]), *d[axis + 2 :])
    inner = [a + (a >= axis) for a in axes]
    kept = tuple(const(1) if a in inner else e for a, e in enumerate(cut))
    flat = (*kept[: axis + 1], *kept[axis + 2 :])
    f = coordinates(flat)
    place = n.order[x]
    seen = new.row(rule, "Map", (index_text(index), "", cut), (x,), Tensor(source.dtype, cut), place + 1)
    part = new.row(rule, "Reduce", (p.args[0], axes_text(inner), kept), (seen,), Tensor(result.dtype, kept), place + 2)
    squeezed = index_text((*f[: axis + 1], const(0), *f[axis + 1 :]))
    partial = new.row(rule, "Map", (squeezed, "", flat), (part,), Tensor(result.dtype, flat), place + 3)
    kind = str(p.args[0]).partition(":")[0]
    return partial, new.equal(rule, "Reduce", (kind, axes_text((axis,)), result.shape), (partial,), p.result)
