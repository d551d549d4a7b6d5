"""Lift and fuse on bare facts: each rule fires on the least that it asks for, and not when one premise fails."""

from __future__ import annotations

import pytest

from emmy.egraph.egg import Egg
from emmy.egraph.model import BOUNDS
from emmy.ir.build import imod
from emmy.ir.evaluate import evaluate
from emmy.ir.loop import ax, const, load, op
from emmy.ir.tensor import coordinates
from emmy.resources import rulesets
from tests.egraph.build import P, agree, bind, values

Facts = dict[str, list[tuple[object, ...]]]


def run(facts: Facts, ruleset: str) -> Egg:
    egg = Egg(constants=dict(BOUNDS))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "lift", "fuse")))
    for relation, rows in facts.items():
        egg.facts(relation, rows)
    egg.run("analysis", saturate=True)
    for _ in range(2):
        egg.run(ruleset)
    return egg


def rows(egg: Egg, relation: str) -> list[tuple[object, ...]]:
    return sorted(egg.freeze().rows(relation))


# ---- lift: rule -> kind and number of operands

LIFT = {
    "lift-full": ("Full", 0), "lift-iota": ("Iota", 0), "lift-un": ("Un", 1), "lift-cast": ("Cast", 1),
    "lift-as": ("As", 1), "lift-reduce": ("Reduce", 1), "lift-scan": ("Scan", 1), "lift-map": ("Map", 1),
    "lift-bin": ("Bin", 2),
    "lift-gather1": ("Gather1", 2), "lift-where": ("Where", 3), "lift-gather2": ("Gather2", 3),
    "lift-scatter1": ("Scatter1", 3), "lift-gather3": ("Gather3", 4), "lift-scatter2": ("Scatter2", 4),
}  # fmt: skip


def primitive(kind: str, arity: int, late: int = -1) -> Facts:
    """Row 7: tensor 50 of `arity` operands that come before it, but for operand `late`."""
    operands = [100 if i == late else i for i in range(arity)]
    places = [(t, t) for t in (*operands, 50)]
    return {f"prim{arity}": [(7, kind, 50, *operands)], "at": places}


@pytest.mark.parametrize("rule", LIFT)
def test_primitive_is_lifted(rule):
    assert rows(run(primitive(*LIFT[rule]), "lift"), "want") == [(7,)]


@pytest.mark.parametrize(("rule", "late"), [(r, i) for r, (_, n) in LIFT.items() for i in range(n)])
def test_primitive_that_reads_a_later_tensor_is_not_lifted(rule, late):
    assert not rows(run(primitive(*LIFT[rule], late), "lift"), "want")


@pytest.mark.parametrize("rule", LIFT)
def test_held_lift_rule_lifts_nothing(rule):
    egg = Egg(constants=dict(BOUNDS), held=frozenset({rule}))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "lift")))
    for relation, facts in primitive(*LIFT[rule]).items():
        egg.facts(relation, facts)
    egg.run("lift", saturate=True)
    assert not rows(egg, "want")


# ---- fuse: launch 1 reads tensor 20 at slot 0 and tensor 10; launch 2 makes 20


def pair(
    contractions: tuple[int, int] = (1, 0), repeats: int = 1, last: int = 1 << 60, **more: list[tuple[object, ...]]
) -> Facts:
    facts: Facts = {
        "at": [(10, 10), (20, 20), (30, 30)],
        "reads": [(1, 0, 20)], "makes": [(20, 2, contractions[1])], "inlined": [(1, last)],
        "recomputes": [(1, 0, repeats)], "contractions": [(1, contractions[0])],
        "steers": [(1, 0, 0)], "reduced-in": [(2, 1)],
    }  # fmt: skip
    return {**facts, **more}


def keepable(other: int = 10, repeats: int = 1, **more: list[tuple[object, ...]]) -> Facts:
    """The same, where tensor 20 has another reader."""
    return pair(repeats=repeats, **{"shared": [(20,)], "single": [(1,)], "others-at": [(1, 0, other)], **more})


def test_a_value_of_a_row_is_kept_though_folds_read_it_too():
    facts = keepable(repeats=BOUNDS["MAX_RECOMPUTE"], contractions=(0, 0))
    egg = Egg(constants=dict(BOUNDS))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "lift", "fuse")))
    for relation, found in facts.items():
        egg.facts(relation, found)
    egg.run("analysis", saturate=True)
    egg.run("fuse")
    assert (1, 0, 2, "keep") in rows(egg, "request")


def composed(
    kind: str, contractions: int = 1, reductions: int = 1, wide: int = 0, copies: int = 0, apart: int = 0,
    written: int = BOUNDS["MAX_WRITTEN"],
) -> Facts:  # fmt: skip
    return {"composed": [(9, kind, contractions, reductions, wide, copies, apart)], "written": [(9, written)]}


GROW: Facts = {"opens": [(1, 0, 20)], "lifted": [(20, 2)]}
FUSE, KEEP, GROWN = (1, 0, 2, "fuse"), (1, 0, 2, "keep"), (1, 0, 2, "grow")
MOST, INLINED = BOUNDS["MAX_CONTRACTIONS"], BOUNDS["MAX_CONTRACTIONS_INLINED"]
RELAXED: Facts = {"relaxed": [(0,)]}

REDUCED = "an index that is reduced is stored: it would be reduced again for every element that it leads to"
STRANDED = "the value in the middle has another reader: it is kept or recomputed, never lost"

# rule -> (facts in which it fires, the row that it adds, facts in which it must not)
FUSES: dict[str, tuple[Facts, str, tuple[object, ...], tuple[Facts, ...]]] = {
    "grow": (GROW, "request", GROWN, ({**GROW, "lifted": [(21, 2)]},)),
    "fuse": (
        pair(), "request", FUSE,
        (
            pair(last=10),  # what was inlined last comes before this tensor: reached by another path
            pair(repeats=BOUNDS["MAX_RECOMPUTE"] + 1),
            pair(contractions=(1, 1), repeats=2),
            pair(contractions=(INLINED, 1)),
            pair(makes=[(10, 2, 0)]),  # nothing makes what is read
            pair(steers=[(1, 0, 1)]),  # an index that is reduced
        ),
    ),
    "fuse-relaxed": (
        pair(repeats=1000, **RELAXED), "request", FUSE,
        (pair(repeats=1000), pair(contractions=(INLINED, 1), **RELAXED)),
    ),
    "fuse-keep": (
        keepable(), "request", KEEP,
        (
            pair(single=[(1,)], **{"others-at": [(1, 0, 10)]}),  # nobody else reads the value
            keepable(other=25),  # a kept value would be made after what the launch reads
            keepable(single=[]),
            keepable(steers=[(1, 0, 1)]),
            keepable(repeats=2),  # beside a contraction each tile would make the value again
            keepable(repeats=2, contractions=(0, 1)),
            keepable(repeats=BOUNDS["MAX_RECOMPUTE"] + 1, contractions=(0, 0)),
            {**keepable(), "contractions": [(1, INLINED + 1)]},
        ),
    ),
    "refuse-recomputed-contraction": (
        pair(contractions=(1, 1), repeats=2), "refused",
        ("fuse", 1, 0, 2, "a contraction would be computed more than once"),
        (pair(contractions=(1, 1)), pair(repeats=2)),
    ),
    "refuse-recomputed-value": (
        pair(repeats=BOUNDS["MAX_RECOMPUTE"] + 1), "refused",
        ("fuse", 1, 0, 2, "a value would be recomputed too often"),
        (pair(repeats=BOUNDS["MAX_RECOMPUTE"]),),
    ),
    "refuse-reduced-index": (
        pair(steers=[(1, 0, 1)]), "refused",
        ("fuse", 1, 0, 2, REDUCED),
        (pair(), pair(**{"steers": [(1, 0, 1)], "reduced-in": [(2, 0)]})),
    ),
    "refuse-contractions": (
        pair(contractions=(INLINED, 1)), "refused", ("fuse", 1, 0, 2, "too many contractions in one launch"),
        (pair(contractions=(INLINED, 0)),),
    ),
    "refuse-stranded-reader": (
        keepable(), "refused",
        ("single-consumer", 1, 0, 2, STRANDED),
        (pair(),),
    ),
    "admit-grown": (
        composed("grow", 99, 99, 9), "admit", (9,),
        (composed("fuse", 99, 99, 9), composed("grow", copies=1)),
    ),
    "admit": (
        composed("fuse", MOST, BOUNDS["MAX_REDUCTIONS"], BOUNDS["MAX_WIDE"]), "admit", (9,),
        (
            composed("fuse", MOST + 1), composed("keep", 1, BOUNDS["MAX_REDUCTIONS"] + 1),
            composed("fuse", 1, 1, BOUNDS["MAX_WIDE"] + 1), composed("fuse", copies=1),
            composed("fuse", written=BOUNDS["MAX_WRITTEN"] + 1),
        ),
    ),
    "decline-contractions": (
        composed("fuse", MOST + 1), "declined", (9, "too many contractions in one launch"),
        (composed("fuse", MOST), composed("grow", MOST + 1)),
    ),
    "decline-reductions": (
        composed("keep", 1, BOUNDS["MAX_REDUCTIONS"] + 1), "declined", (9, "too many reductions in one launch"),
        (composed("keep", 1, BOUNDS["MAX_REDUCTIONS"]), composed("grow", 1, 99)),
    ),
    "decline-wide": (
        composed("fuse", 1, 1, BOUNDS["MAX_WIDE"] + 1), "declined", (9, "a second residual sum would be recomputed"),
        (composed("fuse", 1, 1, BOUNDS["MAX_WIDE"]), composed("grow", 1, 1, 9)),
    ),
    "decline-apart": (
        composed("fuse", contractions=2, apart=1), "declined",
        (9, "two contractions that share nothing would run one after the other"),
        (composed("fuse", contractions=2), composed("grow", contractions=2, apart=1)),
    ),
    "decline-long": (
        composed("fuse", written=BOUNDS["MAX_WRITTEN"] + 1), "declined",
        (9, "the launch would be too long to write down"),
        (composed("fuse"), composed("grow", written=BOUNDS["MAX_WRITTEN"] + 1)),
    ),
    "decline-copies": (
        composed("grow", copies=1), "declined", (9, "one value would be read from two tensors"),
        (composed("grow", 99, 99, 9), composed("fuse")),
    ),
}  # fmt: skip

CASES = {**LIFT, **FUSES}


@pytest.mark.parametrize("rule", FUSES)
def test_fuse_rule_fires(rule):
    facts, relation, row, _ = FUSES[rule]
    assert row in rows(run(facts, "fuse"), relation)


@pytest.mark.parametrize(("rule", "near"), [(r, n) for r, c in FUSES.items() for n in range(len(c[3]))])
def test_fuse_rule_leaves_near_misses_alone(rule, near):
    _, relation, row, never = FUSES[rule]
    assert row not in rows(run(never[near], "fuse"), relation)


# ---- what composed launches compute


def rms_linear(p: P) -> tuple[int, ...]:
    x, g, w = p.input(3, 4, dtype="bf16"), p.param(4, dtype="bf16"), p.param(5, 4, dtype="bf16")
    return (p.linear(p.t.bin("mul", p.t.rms_norm(x, (1,), 0.25), g), w),)


def attention(p: P) -> tuple[int, ...]:
    x, w = p.input(4, 6, dtype="f16"), p.param(6, 6, dtype="f16")
    q = p.linear(x, w)
    return (p.t.sdpa(q, x, x, None, True, 0.5),)


def residual(p: P) -> tuple[int, ...]:
    """A sum that is an output and feeds a norm: the sum is kept."""
    x, y = p.input(3, 4), p.input(3, 4)
    s = p.t.bin("add", x, y)
    return s, p.t.layer_norm(s, (1,), 0.25)


def constants_and_choices(p: P) -> tuple[int, ...]:
    x = p.input(3, 4)
    d = coordinates(p.t.shape(x))
    mask = p.t.iota(op("le", d[1], d[0], dtype="bool"), p.t.shape(x), "bool")
    y = p.t.where(mask, p.t.cast(x, "bf16"), p.t.full(0.5, (const(3), const(4)), "bf16"))
    return (p.t.scan("sum", p.t.store_as(y, "f32"), 1),)


def indexed(p: P) -> tuple[int, ...]:
    x, i, y = p.input(4, 3), p.input(2, dtype="i64"), p.input(2, 3)
    d, j = coordinates((const(2), const(3))), ax("j", const(2))
    rows = p.t.gather(x, (imod(load(1, (d[0],), "i64"), 4), d[1]), [i], (const(2), const(3)))
    hit = op("eq", imod(load(1, (j,), "i64"), 4), coordinates(p.t.shape(x))[0], dtype="bool")
    return (p.t.scatter("sum", const(2), hit, (j, coordinates(p.t.shape(x))[1]), x, [i], p.t.bin("mul", rows, y)),)


PROGRAMS = {f.__name__: f for f in (rms_linear, attention, residual, constants_and_choices, indexed)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_launch_computes_the_tensors_that_it_names(program):
    p = P()
    model = p.saturate(*PROGRAMS[program](p))
    arrays = p.arrays()
    found = values(model, arrays)
    assert bind(model, arrays).keys() <= found.keys()
    for l in model.launches:
        for body in {l.body.hash: l.body, model.loops.best(l.body).hash: model.loops.best(l.body)}.values():
            made = evaluate(body, [found[x] for x in l.operands])
            for t, value in zip(l.results, made, strict=True):
                agree(value, found[t], f"{l.rule}: {body.text}")


def test_programs_together_use_every_kind_of_launch():
    made = set()
    for build in PROGRAMS.values():
        p = P()
        made |= {l.rule for l in p.saturate(*build(p)).launches}
    assert {"lift-full", "lift-iota", "lift-map", "lift-where", "lift-scan", "lift-gather1", "lift-scatter1"} <= made
    assert {"grow", "fuse", "fuse-keep"} <= made


def test_operands_of_every_launch_come_before_each_of_its_results():
    for build in PROGRAMS.values():
        p = P()
        model = p.saturate(*build(p))
        order = model.numbering.order
        for l in model.launches:
            assert all(order[x] < order[t] for x in l.operands for t in l.results), l
