"""Fused and cut forms stand side by side, each with its price, and a measurement decides between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.extract.records import Measurement, Regime
from emmy.extract.store import Store
from emmy.frontend.code import load_code
from emmy.ir.counts import contractions, reductions
from emmy.ir.loop import Body
from emmy.ir.target import TARGETS
from emmy.saturation import Options, Saturation, saturate_program
from emmy.selection import Selection
from tests.egraph.build import P, makers

# Rules that would give further forms: several launches for one linear, or a weight that absorbs the scale.
FURTHER = ("sibling-linears", "scale-into-weight-right", "scale-into-weight-left")
TARGET = TARGETS["sm_90a"]


def rms_linear(rows: int = 512, columns: int = 1024, features: int = 256) -> tuple[P, int]:
    p = P()
    x, g, w = (
        p.input(rows, columns, dtype="bf16"),
        p.param(columns, dtype="bf16"),
        p.param(features, columns, dtype="bf16"),
    )
    return p, p.linear(p.t.bin("mul", p.t.rms_norm(x, (1,), 1e-6), g), w)


def forms(model: ModelGraph) -> list[tuple[Launch, ...]]:
    """Every set of launches that makes the outputs, with one maker for each tensor that is read."""
    made = makers(model)
    found: dict[tuple[int, ...], tuple[Launch, ...]] = {}
    stack: list[tuple[frozenset[int], tuple[Launch, ...]]] = [(frozenset(model.outputs) - set(model.inputs), ())]
    while stack:
        wanted, chosen = stack.pop()
        if not wanted:
            ordered = tuple(sorted(chosen, key=lambda l: l.id))
            found[tuple(l.id for l in ordered)] = ordered
            continue
        t = max(wanted, key=lambda t: model.numbering.order[t])
        for l in made[t]:
            have = {r for c in (*chosen, l) for r in c.results} | set(model.inputs)
            stack.append(((wanted | set(l.operands)) - have, (*chosen, l)))
    return [found[k] for k in sorted(found)]


def priced(model: ModelGraph) -> Selection:
    """With a price for every launch, those that their roofline rules out included."""
    selection = Selection(model, TARGET, {}, Regime(TARGET.gpu, TARGET.capability, "none"), unpruned=True)
    selection.schedule(b for l in model.closed for b in selection.forms(l))
    return selection


def test_rms_norm_and_linear_have_exactly_four_forms_each_with_its_cost():
    p, y = rms_linear()
    model = p.saturate(y, held=FURTHER)
    selection = priced(model)
    listed = []
    for form in forms(model):
        decisions = [p.decision for l in form if (p := selection.cheapest(l)) is not None]
        assert len(decisions) == len(form)
        parts = sorted((contractions(l.body), reductions(l.body)) for l in form)
        listed.append((parts, sum(d.cost for d in decisions)))
        print(
            f"{len(form)} launches {parts}: {listed[-1][1] * 1e6:.2f} us:",
            "; ".join(f"{d.family} {d.row}" for d in decisions),
        )
    assert sorted(parts for parts, _ in listed) == [
        [(0, 0), (0, 1), (1, 1)],  # the row's statistic, the scaled rows, the product
        [(0, 1), (1, 1)],  # the norm and the product, or
        [(0, 1), (1, 1)],  # the row's statistic and the product with its scale
        [(1, 2)],  # one kernel
    ]
    assert all(0 < cost < 1 for _, cost in listed)


def test_one_kernel_form_and_cut_forms_stand_in_the_class_of_the_result():
    p, y = rms_linear(3, 4, 5)
    model = p.saturate(y, held=FURTHER)
    frozen = model.egg.freeze()
    value = dict(frozen.rows("node"))[y]
    launches = {row[0] for row in frozen.rows("Out") if row[-1] == value}
    rows = [r for r in frozen.rows("Launch") if r[-1] in launches]
    closed = [l for l in model.closed if l.results == model.outputs]
    assert {len(l.operands) for l in closed} == {2, 3, 4}
    assert len(rows) >= len(closed) == 3
    assert {frozenset(l.operands) & set(model.inputs) for l in closed} >= {frozenset(model.inputs)}


def test_scale_in_the_weight_and_wide_linear_add_forms():
    p, y = rms_linear()
    assert len(forms(p.saturate(y))) > len(forms(p.saturate(y, held=FURTHER))) == 4


@pytest.mark.parametrize("rule", ["scale-into-weight-right", "scale-leaves-sum"])
def test_each_rule_adds_what_it_is_for(rule):
    p, y = rms_linear()
    full, less = p.saturate(y), p.saturate(y, held=(rule,))
    names = [{l.body.hash for l in m.closed} | {m.loops.best(l.body).hash for l in m.closed} for m in (full, less)]
    assert names[0] - names[1]


# ---- a measurement flips the choice

CODE = """
x = torch.randn(64, 1024).bfloat16()
nn.Sequential(nn.RMSNorm(1024), nn.Linear(1024, 256, bias=False)).bfloat16()(x)
"""


def compiled(database, code: str = CODE) -> Saturation:
    options = Options(TARGET, check=False, database=database, golden="")
    return saturate_program(load_code(code), options)


def launches(s: Saturation) -> list[tuple[str, ...]]:
    return sorted((c.priced.body.hash, *c.results) for c in s.launches)


def timed(s: Saturation, body: Body, seconds: float) -> Measurement:
    """The first row of a body, as if it had been timed here."""
    s.selection.schedule([body])
    row = s.selection.legal(body)[0]
    return Measurement(body.hash, (), row.family, row.row.text, s.regime, 50, seconds, seconds, seconds)


def fused_bodies(s: Saturation) -> list[Body]:
    """Bodies that hold both the norm and the product."""
    bodies = {b.hash: b for l in s.model.closed for b in s.selection.forms(l)}
    return [b for b in bodies.values() if contractions(b) and reductions(b) > contractions(b)]


def kernels(s: Saturation) -> int:
    return sum(not c.at_build for c in s.launches)


def test_measured_rows_flip_fused_to_cut_and_deleting_them_flips_back(tmp_path):
    path = tmp_path / "evidence.duckdb"
    before = compiled(path)
    assert kernels(before) == 1
    store = Store(path)
    slow = [timed(before, b, 1.0) for b in fused_bodies(before)]
    store.record_measurements(slow)
    flipped = compiled(path)
    assert kernels(flipped) > 1
    assert not {m.body for m in slow} & {c.priced.body.hash for c in flipped.launches}
    assert store.delete(source="own") == len(slow)
    assert launches(compiled(path)) == launches(before)


def test_measurement_makes_a_losing_form_win(tmp_path):
    path = tmp_path / "evidence.duckdb"
    before = compiled(path)
    inputs, chosen = set(before.model.inputs), {c.launch.id for c in before.launches}
    whole = [l for l in before.model.closed if l.results == before.model.outputs and set(l.operands) <= inputs]
    losing = [l for l in whole if l.id not in chosen]
    body, store = before.selection.forms(losing[0])[-1], Store(path)
    store.record_measurements([timed(before, body, 1e-9)])
    decided = next(c for c in compiled(path).launches if c.priced.body.hash == body.hash)
    assert (decided.priced.decision.tier, decided.priced.decision.cost) == ("measured", 1e-9)
    assert store.delete(body=body.hash) == 1
    assert launches(compiled(path)) == launches(before)


def test_measurement_of_another_card_flips_nothing(tmp_path):
    path = tmp_path / "evidence.duckdb"
    before = compiled(path)
    other = Regime("A100", 80, before.regime.compiler)
    slow = [replace(timed(before, b, 1.0), regime=other) for b in fused_bodies(before)]
    Store(path).record_measurements(slow)
    assert launches(compiled(path)) == launches(before)
