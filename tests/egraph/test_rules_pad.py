"""Pad: factors of products whose lines are misaligned equal views of copies whose lines are not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from emmy.egraph.egg import Egg
from emmy.egraph.fusion import Launch
from emmy.egraph.model import BOUNDS, ModelGraph
from emmy.egraph.pads import pitch
from emmy.ir.counts import contractions
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import const, size
from emmy.ir.tensor import coordinates
from emmy.resources import rulesets
from tests.egraph.build import P, agree, execute, extents, plans, values
from tests.frontend.translate.reference import run

Facts = dict[str, list[tuple[object, ...]]]
READS, PRODUCTS = BOUNDS["PAD_READS"], BOUNDS["PAD_PRODUCTS"]
OFTEN = PRODUCTS // READS  # elements that products read often enough


def misaligned(elements: int = OFTEN, products: int = PRODUCTS, parameter: int = 0, row: int = 7) -> Facts:
    return {"misaligned": [(row, elements, products, parameter)]}


def alone(facts: Facts, row: int = 7) -> Facts:
    return {**facts, "runs-alone": [(row,)]}


def along(*rows: int) -> Facts:
    return {
        "misaligned": [(r, OFTEN, PRODUCTS, 0) for r in rows],
        "runs-along": [(1, 7, 8)],
    }


# rule -> (relation of its answer, facts in which it fires, its answer, facts in which it must not)
CASES: dict[str, tuple[str, Facts, tuple[int, ...], tuple[Facts, ...]]] = {
    "pad-read-often": (
        "pays", misaligned(), (7,),
        (misaligned(OFTEN + 1), misaligned(products=PRODUCTS - 1)),
    ),
    "pad-parameter": (
        "pays", misaligned(PRODUCTS, parameter=1), (7,),
        (misaligned(PRODUCTS), misaligned(1, PRODUCTS - 1, 1)),
    ),
    "pad-factor": (
        "want-padded", alone(misaligned()), (7,),
        (misaligned(), alone(misaligned(), 8), alone(misaligned(OFTEN + 1)), along(7, 8)),
    ),
    "pad-sum": (
        "want-padded-sum", along(7, 8), (1, 7, 8),
        (along(7), along(8), alone(misaligned())),
    ),
    "unite-padded": ("pad-of", {}, (), ()),
}  # fmt: skip
ASK = [r for r in CASES if r != "unite-padded"]


def answers(relation: str, facts: Facts, *held: str) -> list[Any]:
    egg = Egg(constants=dict(BOUNDS), held=frozenset(held))
    egg.load(*(rulesets() / "model" / f"{n}.egg" for n in ("model", "pad")))
    for name, rows in facts.items():
        egg.facts(name, rows)
    egg.run("pad", saturate=True)
    return sorted(egg.freeze().rows(relation))


@pytest.mark.parametrize("rule", ASK)
def test_pad_rule_fires(rule):
    relation, facts, answer, _ = CASES[rule]
    assert answers(relation, facts) == [answer]
    assert not answers(relation, facts, rule)


@pytest.mark.parametrize(("rule", "near"), [(r, k) for r in ASK for k in range(len(CASES[r][3]))])
def test_pad_rule_leaves_near_misses_alone(rule, near):
    assert not answers(CASES[rule][0], CASES[rule][3][near])


# ---- programs


def linear(p: P, dtype: str = "bf16", k: int = 129, parameter: bool = False) -> int:
    x = p.input(130, k, dtype=dtype)
    return p.linear(x, (p.param if parameter else p.input)(131, k, dtype=dtype))


def matmul(p: P) -> int:
    return p.matmul(p.input(97, 129, dtype="bf16"), p.input(129, 131, dtype="bf16"))


def one_aligned(p: P) -> int:
    """Only the right factor's lines are misaligned."""
    return p.matmul(p.input(97, 128, dtype="bf16"), p.input(128, 131, dtype="bf16"))


def activated(p: P) -> int:
    """A misaligned value with arithmetic before it, a weight, and a product whose result is misaligned."""
    x, w, v = (
        p.input(97, 129, dtype="bf16"), p.param(131, 129, dtype="bf16"), p.param(99, 131, dtype="bf16")
    )  # fmt: skip
    return p.linear(p.t.silu(p.linear(p.t.silu(x), w)), v)


def normalized(p: P) -> int:
    x, w = p.input(97, 129, dtype="bf16"), p.param(131, 129, dtype="bf16")
    return p.linear(p.t.rms_norm(x, (1,), 1e-6), w)


def batched(p: P) -> int:
    """[b, m, k] times [b, k, n]: one summed along its lines, one across them."""
    x, y = p.input(3, 65, 77, dtype="f16"), p.input(3, 77, 99, dtype="f16")
    full, out = extents(3, 65, 77, 99), extents(3, 65, 99)
    d, o = coordinates(full), coordinates(out)
    return p.t.contract("bmm", x, d[:3], y, (d[0], *d[2:]), full, (2,), out, (*o[:2], const(0), o[2]))


def squared(p: P) -> int:
    """Both factors are one tensor."""
    x = p.input(97, 129)
    return p.linear(x, x)


PROGRAMS = {f.__name__: f for f in (linear, matmul, one_aligned, activated, normalized, batched, squared)}


def saturated(name: str, *held: str) -> tuple[P, ModelGraph]:
    p = P()
    return p, p.saturate(PROGRAMS[name](p), held=held)


def readers(model: ModelGraph) -> list[Launch]:
    return [l for l in model.closed if model.anchors.padded & set(l.operands)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_padded_plans_compute_the_program(name):
    p, model = saturated(name)
    assert model.anchors.padded and readers(model)
    arrays = p.arrays()
    found, expected = values(model, arrays), run(p.program(), arrays)
    for t, e in zip(model.outputs, expected, strict=True):
        agree(found[t], e, "a row")
    padded = 0
    for steps in plans(model, random.Random(3), 40):
        padded += any(model.anchors.padded & set(s.launch.operands) for s in steps)
        for f, e in zip(execute(model, steps, arrays), expected, strict=True):
            agree(f, e, str([s.body.text for s in steps]))
    assert padded


@pytest.mark.parametrize("name", PROGRAMS)
def test_copies_have_aligned_lines_and_are_made_apart(name):
    _, model = saturated(name)
    for t in model.anchors.padded:
        tensor = model.numbering.tensors[t]
        assert tensor.shape[-1].value * DTYPES[tensor.dtype].bytes % 16 == 0
    for l in readers(model):
        assert contractions(l.body), "a launch that reads a copy is a product"


@pytest.mark.parametrize("name", PROGRAMS)
def test_held_pad_rules_take_away_the_padded_launches_alone(name):
    _, model = saturated(name)
    _, held = saturated(name, "pad-factor", "pad-sum")
    assert not held.anchors.padded
    rest = {(l.body.hash, l.rule) for l in model.closed if not model.anchors.padded & {*l.operands, *l.results}}
    assert rest == {(l.body.hash, l.rule) for l in held.closed}


@pytest.mark.parametrize(("held", "united"), [((), True), (("unite-padded",), False)])
def test_what_reads_a_copy_and_the_value_that_it_equals_are_one_class_where_a_rule_unites_them(held, united):
    _, model = saturated("linear", *held)
    frozen = model.egg.freeze()
    classes = dict(frozen.rows("node"))
    ((made, value),) = frozen.rows("pad-of")
    assert (classes[made] == classes[value]) == united


def test_a_launch_may_write_what_it_computes_into_the_copy():
    _, model = saturated("activated")
    makers = [l for l in model.closed if set(l.results) & model.anchors.padded]
    assert any(contractions(l.body) for l in makers), "the first product stores aligned lines"
    assert any(not contractions(l.body) and "sigmoid" in l.body.text for l in makers)


def test_copies_of_parameters_are_made_when_the_plan_is():
    p = P()
    model = p.saturate(linear(p, parameter=True))
    (weight,) = model.anchors.padded & model.anchors.folded
    assert model.numbering.tensors[weight].shape[0] is const(131)


def test_sum_runs_over_whole_lines_where_both_factors_are_copies():
    _, model = saturated("linear")
    assert any("r1:136" in l.body.text for l in readers(model))
    _, model = saturated("matmul")
    assert all("r1:129" in l.body.text for l in readers(model))


@pytest.mark.parametrize(
    "build",
    [
        lambda p: linear(p, k=136),  # 16-byte lines
        lambda p: linear(p, "f32", k=132),
        lambda p: p.linear(p.input(16, 129, dtype="bf16"), p.input(33, 129, dtype="bf16")),  # few products
        lambda p: p.t.bin("mul", p.input(1024, 1025), p.input(1024, 1025)),  # no product
        lambda p: p.t.reduce("sum", p.input(1024, 1025), (1,)),
        lambda p: linear(p, k=size("k")),  # type: ignore[arg-type]
    ],
    ids=["aligned", "aligned f32", "few products", "element-wise", "sum", "unknown pitch"],
)
def test_nothing_is_copied(build):
    p = P()
    model = p.saturate(build(p), sizes={"k": 129})
    assert not model.anchors.padded


def test_rows_by_name_are_copied_with_the_lines_of_their_tensor():
    p = P()
    x, w = p.input(size("s"), 129, dtype="bf16"), p.param(131, 129, dtype="bf16")
    model = p.saturate(p.linear(x, w), sizes={"s": 130})
    shapes = {model.numbering.tensors[t].shape for t in model.anchors.padded}
    assert shapes == {(size("s"), const(136)), (const(131), const(136))}


@pytest.mark.parametrize(
    ("extent", "dtype", "elements"),
    [(4095, "bf16", 4096), (1333, "bf16", 1344), (2049, "f16", 2112), (1001, "f32", 1024), (65, "bf16", 72),
     (3, "f32", 4), (500, "f8e4m3", 512), (4096, "bf16", 4096)],
)  # fmt: skip
def test_pitch_fills_cache_lines_where_that_costs_little(extent, dtype, elements):
    assert pitch(extent, dtype) == elements
