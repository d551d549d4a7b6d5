"""Answers the sibling rules: linears over one input become slices of one wider linear."""

from __future__ import annotations

from collections import defaultdict

from emmy.egraph.egg import Egg
from emmy.egraph.loading import ORD_GAP, Shapes, load_terms
from emmy.ir.build import iadd, isub
from emmy.ir.loop import Const, Expr, const, op
from emmy.ir.tensor import Program, Terms, coordinates


def merge_siblings(egg: Egg, program: Program, shapes: Shapes) -> bool:
    """Run the sibling rules and answer what they ask.  True when e-nodes were added."""
    egg.facts("vector-over", shapes.vectors())
    before = egg.freeze().size()
    egg.run("siblings")
    groups: dict[int, dict[int, int]] = defaultdict(dict)
    for x, weight, product in sorted(egg.freeze().rows("sibling")):
        groups[x].setdefault(product, weight)
    builder = Terms(list(program.terms))
    builder.inputs = sum(t.kind == "Input" for t in program.terms)
    order: dict[int, int] = {}
    slices: list[tuple[int, int]] = []
    weights: list[int] = []
    for x, members in sorted(groups.items()):
        if len(members) > 1:
            slices += _wide(builder, x, sorted(members.items()), order, weights)
    new = builder.terms[len(program.terms) :]
    if new:
        load_terms(egg, new, builder.facts, order, shapes, weights, rule="sibling-linears")
        egg.facts("wide-slice", slices)
        egg.facts("vector-over", shapes.vectors())
    for _ in range(3):  # unite, then move scales into the wide weights, then nothing
        egg.run("analysis", saturate=True)
        egg.run("siblings")
    return egg.freeze().size() != before or bool(new)


def _wide(
    t: Terms, x: int, members: list[tuple[int, int]], order: dict[int, int], weights: list[int]
) -> list[tuple[int, int]]:
    """Terms of the wide product; (slice, product) pairs.  `members` are (product, weight) in order of definition."""
    if not all(isinstance(t.shape(w)[0], Const) for _, w in members):
        return []
    first = len(t.terms)
    lead, k = t.shape(x)[:-1], t.shape(x)[-1]
    n = iadd(*(t.shape(w)[0] for _, w in members))
    whole = (n, k)
    offset: Expr = const(0)
    d = coordinates(whole)
    weight = -1
    offsets = []
    for _, w in members:
        part = t.map(w, (isub(d[0], offset), d[1]), whole, 0.0)
        if weight < 0:
            weight = part
        else:
            before = t.iota(op("lt", d[0], offset, dtype="bool"), whole, "bool")
            weight = t.where(before, weight, part)
        offsets.append(offset)
        offset = iadd(offset, t.shape(w)[0])
    full, out = (*lead, k, n), (*lead, n)
    m = len(lead)
    c, o = coordinates(full), coordinates(out)
    product = t.contract("linear", x, c[: m + 1], weight, (c[m + 1], c[m]), full, (m,), out, (*o[:m], const(0), o[m]))
    pairs = [(t.slice(product, m, at, 1, t.shape(w)[0]), p) for (p, w), at in zip(members, offsets, strict=True)]
    weights.append(weight)
    below = (min(p for p, _ in members) + 1) * ORD_GAP - ORD_GAP
    made = t.terms[first:]
    for i, term in enumerate(made):
        order[term.id] = 0 if term.kind == "Iota" else below + (i + 1) * ORD_GAP // (len(made) + 2)
    return pairs
