"""Which rule made what: recorded for every e-node and launch, and taken away with the rule that is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from emmy.egraph.fusion import Fusion, Launch
from emmy.egraph.loading import SOURCE
from emmy.egraph.loop import LoopGraph
from emmy.egraph.model import ModelGraph
from emmy.ir.tensor import SIGNATURES
from emmy.resources import rulesets
from tests.egraph.build import P, Registry, alternatives, keys

Array = Any


def rms_linear(p: P) -> tuple[int, ...]:
    x, g, w = p.input(3, 4, dtype="bf16"), p.param(4, dtype="bf16"), p.param(5, 4, dtype="bf16")
    return (p.linear(p.t.bin("mul", p.t.rms_norm(x, (1,), 0.25), g), w),)


def attention(p: P) -> tuple[int, ...]:
    q, k, v = p.input(2, 4, 6, dtype="f16"), p.input(2, 4, 6, dtype="f16"), p.input(2, 4, 3, dtype="f16")
    return (p.t.sdpa(q, k, v, None, True, 0.5),)


def swiglu(p: P) -> tuple[int, ...]:
    x, g, u = p.input(3, 4, dtype="bf16"), p.param(6, 4, dtype="bf16"), p.param(6, 4, dtype="bf16")
    return (p.t.bin("mul", p.t.silu(p.linear(x, g)), p.linear(x, u)),)


def residual(p: P) -> tuple[int, ...]:
    """A sum that is an output and feeds a norm and a gate."""
    x, y = p.input(3, 4), p.input(3, 4)
    s = p.t.bin("add", x, y)
    return s, p.t.un("tanh", p.t.layer_norm(s, (1,), 0.25))


PROGRAMS: dict[str, Callable[[P], tuple[int, ...]]] = {f.__name__: f for f in (rms_linear, attention, swiglu, residual)}


@cache
def full(program: str) -> ModelGraph:
    p = P()
    return p.saturate(*PROGRAMS[program](p))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_e_node_says_which_rule_made_it(program):
    model = full(program)
    frozen = model.egg.freeze()
    known = model.egg.rules.keys()
    for kind in (*SIGNATURES, "Launch"):
        made = frozen.makers(kind)
        for row in frozen.rows(kind):
            assert row[:-1] in made, (kind, row)
        assert set(made.values()) <= known | {SOURCE}, kind


@pytest.mark.parametrize("program", PROGRAMS)
def test_e_nodes_that_the_program_did_not_write_come_from_a_rewriting_rule(program):
    model = full(program)
    rules = {r for r in model.numbering.rules.values() if r != SOURCE}
    assert rules
    assert rules <= {
        name for name, ruleset in model.egg.rules.items() if ruleset in ("decompose", "algebra", "siblings")
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_launch_is_an_e_node_of_its_result(program):
    model = full(program)
    frozen = model.egg.freeze()
    made = frozen.makers("Launch")
    assert set(made.values()) == {l.rule for l in model.launches if l.rule in made.values()}
    assert 0 < len(frozen.rows("Launch")) <= len(model.launches) <= len(frozen.rows("Out"))
    assert {l.rule for l in model.launches} <= model.egg.rules.keys()


# ---- holding a rule


RULES = {
    "rms_linear": (
        "decompose-rms-norm", "decompose-contract", "scale-into-weight-right", "sibling-linears", "as-same",
        "lift-reduce", "lift-map", "grow", "fuse", "admit", "admit-grown",
    ),
    "attention": (
        "decompose-sdpa-causal", "decompose-safe-softmax", "decompose-contract", "map-map", "lift-where",
        "grow", "fuse", "admit",
    ),
    "swiglu": (
        "decompose-silu", "decompose-contract", "sibling-linears", "unite-sibling-linears", "fuse", "lift-bin", "admit",
    ),
    "residual": ("fuse", "fuse-keep", "decompose-layer-norm", "as-same", "lift-un"),
}  # fmt: skip
LOOP_RULES = {
    "rms_linear": ("scale-leaves-sum", "scale-through-product-left", "scale-through-product-right"),
    "attention": ("twist-sum", "twist-product-left", "twist-product-right", "divide-by-scale", "scale-leaves-sum"),
}
# Rules without which these programs keep all that they have: the same is reached on the other side of a product, or the
# classes that the rule unites make no launch.
IDLE = {
    ("rms_linear", "sibling-linears"), ("rms_linear", "as-same"), ("attention", "map-map"), ("residual", "as-same"),
}  # fmt: skip


@cache
def named(program: str) -> tuple[Registry, dict[int, int], list[Array]]:
    """Names of the full run's tensors, by what they hold for some inputs."""
    p = P()
    PROGRAMS[program](p)
    registry, arrays = Registry(), p.arrays()
    return registry, registry.names(full(program), arrays), arrays


def held(program: str, rule: str) -> tuple[ModelGraph, dict[int, int]]:
    registry, _, arrays = named(program)
    p = P()
    model = p.saturate(*PROGRAMS[program](p), held=(rule,))
    return model, registry.names(model, arrays)


def ancestors(model: ModelGraph, l: Launch) -> list[Launch]:
    """The launch and all that it was composed from."""
    found, stack = {l.id: l}, [l]
    while stack:
        for i in stack.pop().parents:
            if i not in found:
                found[i] = model.launches[i]
                stack.append(model.launches[i])
    return list(found.values())


def derivation(model: ModelGraph, l: Launch) -> set[str]:
    """Rules that the launch, what it was composed from, or the tensors in it and around it came from."""
    rules = {"admit", "admit-grown"}
    for a in ancestors(model, l):
        rules.add(a.rule)
    tensors = {t for a in ancestors(model, l) for t in (*a.covers, *a.operands, *a.results)}
    for p in model.numbering.prims:
        if p.result in tensors:
            rules |= {model.numbering.rules[p.id], f"lift-{p.kind.lower()}"}
    return rules


@pytest.mark.parametrize(("program", "rule"), [(p, r) for p, rules in RULES.items() for r in rules])
def test_held_rule_takes_away_exactly_what_was_built_on_it(program, rule):
    """What goes was derived with the rule, or stood at a cut, or kept a value for a reader, that only the rule made."""
    model, names = full(program), named(program)[1]
    less, less_names = held(program, rule)
    before, after = keys(model.closed, names), keys(less.closed, less_names)
    assert not keys(alternatives(less), less_names).keys() - before.keys(), "holding a rule added something"
    gone = [l for k, l in before.items() if k not in after]
    assert gone or (program, rule) in IDLE
    apart = {n for n, count in Counter(less_names.values()).items() if count > 1}  # classes that the rule unites
    stored, shared = (
        {less_names[t] for t in ts if t in less_names} for ts in (less.anchors.stored, less.anchors.shared)
    )
    for l in gone:
        touched = {names[t] for a in ancestors(model, l) for t in (*a.covers, *a.operands, *a.results)}
        lost_cut = any(names[t] not in stored for a in ancestors(model, l) for t in (*a.operands, *a.results))
        lost_reader = any(names[t] not in shared for t in l.results[1:])
        assert rule in derivation(model, l) or touched & apart or lost_cut or lost_reader, l


@pytest.mark.parametrize(("program", "rule"), [(p, r) for p, rules in LOOP_RULES.items() for r in rules])
def test_held_loop_rule_takes_away_what_was_built_on_a_better_body(program, rule):
    """A better body makes recomputation cheaper, so that holding a loop rule can also take launches away."""
    model, names = full(program), named(program)[1]
    less, less_names = held(program, rule)
    before, after = keys(model.closed, names), keys(less.closed, less_names)
    assert not keys(alternatives(less), less_names).keys() - before.keys(), "holding a rule added something"
    for k, l in before.items():
        if k not in after:
            assert any(model.loops.best(a.body) is not less.loops.best(a.body) for a in ancestors(model, l)), l


@pytest.mark.parametrize(
    ("program", "rules"),
    [("attention", ("twist-sum",)), ("rms_linear", ("scale-leaves-sum",)), ("attention", ("scale-leaves-sum",))],
)
def test_held_loop_rule_takes_away_its_better_bodies(program, rules):
    model = full(program)
    less, _ = held(program, rules[0])
    better = {b.hash for l in model.closed if (b := model.loops.best(l.body)) is not l.body}
    left = {b.hash for l in less.closed if (b := less.loops.best(l.body)) is not l.body}
    assert better - left


# ---- nothing more to add


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_more_round_of_every_ruleset_adds_nothing(program):
    p = P()
    model = p.saturate(*PROGRAMS[program](p))
    facts = ("request", "want", "want-compose", "sibling", "admit", "declined", "refused", "parameter")
    before = model.egg.freeze()
    counted = {f: sorted(before.rows(f), key=str) for f in facts if f != "parameter"}
    for ruleset in ("decompose", "algebra", "siblings", "analysis", "lift", "fuse", "load", "analysis"):
        model.egg.run(ruleset)
    after = model.egg.freeze()
    assert after.size() == before.size()
    assert {f: sorted(after.rows(f), key=str) for f in counted} == counted
    assert model.egg.run("fuse").updated is False


@pytest.mark.parametrize("program", PROGRAMS)
def test_second_saturation_of_the_launches_asks_for_nothing_new(program):
    p = P()
    model = p.saturate(*PROGRAMS[program](p))
    fusion = Fusion(model.egg, model.numbering, model.anchors, model.loops, {})
    fusion.launches = list(model.launches)
    fusion._known = {(l.body.hash, l.operands, l.results): l.id for l in model.launches}
    fusion._loaded = len(model.launches)
    for l in model.launches:
        if l.rule.startswith("lift"):
            fusion._lifted[l.results[0]].append(l.id)
    enodes, count = model.enodes(), len(model.launches)
    fusion.saturate(False, lambda _: True)
    assert (len(fusion.launches), model.enodes()) == (count, enodes)


@pytest.mark.parametrize("program", PROGRAMS)
def test_second_look_at_every_body_finds_no_better_one(program):
    model = full(program)
    again = LoopGraph(rulesets() / "loop")
    bodies = list({b.hash: b for l in model.launches for b in (model.loops.best(l.body),)}.values())
    again.improve(bodies)
    assert [again.best(b).hash for b in bodies] == [b.hash for b in bodies]
