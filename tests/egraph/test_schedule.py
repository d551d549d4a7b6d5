"""Schedules: every body has the plain row, legality stands in rule premises, and the card's table decides it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

import emmy
from emmy.egraph.egg import rules_in
from emmy.egraph.schedule import FAMILIES, Schedules, schedule_rows
from emmy.ir.loop import Body
from emmy.ir.normal import normalize
from emmy.ir.schedule import Row, Work
from emmy.ir.target import TARGETS, Target
from emmy.resources import rulesets
from tests import bodies, strategies

TARGET = TARGETS["sm_90a"]
PACKAGE = Path(emmy.__file__).parent
LIMITS = {"threads_block", "smem_block", "registers_thread", "registers_sm", "smem_sm", "threads_sm"}
CASES = {
    "linear": bodies.linear(128, 256, 512), "f32 linear": bodies.linear(128, 256, 512, "f32"),
    "matvec": bodies.matvec(256, 512),
    "rms_linear": bodies.rms_linear(64, 128, 256), "swiglu": bodies.swiglu(64, 128, 256),
    "heads": bodies.head_split(64, 4, 32, 128),
}  # fmt: skip


def rows(*found: Body, target: Target = TARGET, held: frozenset[str] = frozenset()) -> Schedules:
    return schedule_rows(found, target, strategies.SIZES, rulesets(), held)


@pytest.fixture(scope="module")
def every() -> Schedules:
    return rows(*CASES.values())


# ---- every body has a row


@pytest.mark.parametrize("name", CASES)
def test_body_has_the_plain_row_last(every, name):
    found = every.rows[CASES[name].hash]
    assert found[-1].family == "plain"
    assert {s.row for s in found if s.family == "plain"} >= {Row(Work("t", (128,)))}


@settings(max_examples=20)
@given(strategies.bodies())
def test_any_body_has_a_row(body):
    normal, _ = normalize(body.outs, body.slots)
    found = rows(normal)
    assert any(s.family == "plain" for s in found.rows[normal.hash])
    declined = found.declined[normal.hash]
    families = {s.family for s in found.rows[normal.hash]}
    assert all(declined[f.name] for f in FAMILIES if f.name not in families and f.name in declined)


def test_rows_are_canonical_and_unique(every):
    for found in every.rows.values():
        spelled = [(s.family, s.row.text) for s in found]
        assert len(set(spelled)) == len(spelled)
        assert all(Row.parse(text).text == text for _, text in spelled)


def test_rows_do_not_depend_on_the_batch(every):
    for body in CASES.values():
        alone = rows(body).rows[body.hash]
        assert [(s.family, s.row.text) for s in alone] == [(s.family, s.row.text) for s in every.rows[body.hash]]


# ---- legality is in the rules


@pytest.mark.parametrize("name", CASES)
def test_smaller_card_has_a_subset_of_the_rows(every, name):
    """Nothing but the card's limits changes, and all of them are facts that premises read."""
    body = CASES[name]
    small = replace(TARGET, smem_block=24 << 10, threads_block=128, registers_thread=128)
    less = {(s.family, s.row.text) for s in rows(body, target=small).rows[body.hash]}
    full = {(s.family, s.row.text) for s in every.rows[body.hash]}
    assert less < full and ("plain", Row(Work("t", (128,))).text) in less
    for family, text in less:
        assert Row.parse(text).work.threads <= 128, (family, text)


def test_staged_rows_fit_the_shared_memory_of_the_card():
    body = CASES["linear"]
    for target in TARGETS.values():
        found = rows(body, target=target).rows[body.hash]
        assert all(s.config.smem <= target.smem_block for s in found), target.arch
        assert all(s.row.work.threads <= target.threads_block for s in found), target.arch


def test_held_schedule_rule_takes_its_rows_away(every):
    body = CASES["linear"]
    full = {(s.family, s.row.text) for s in every.rows[body.hash]}
    for rule, family in (("mma-shape", "mma"), ("mma-async", "mma"), ("tile-shape", "tile"), ("plain", "plain")):
        less = {(s.family, s.row.text) for s in rows(body, held=frozenset({rule})).rows[body.hash]}
        assert less < full
        assert {f for f, _ in full - less} == {family}, rule


def compares_with_a_limit(node: ast.AST) -> bool:
    parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    return any(isinstance(n, ast.Attribute) and n.attr in LIMITS for p in parts for n in ast.walk(p))


@pytest.mark.parametrize("folder", ["egraph", "codegen", "ir"])
def test_no_code_decides_legality_by_the_limits_of_a_card(folder):
    """Only rules compare with what a card has; Python hands the numbers over, and the verifier asserts them again."""
    found = []
    for path in sorted(p for p in (PACKAGE / folder).rglob("*.py") if "verify" not in f"{p.parent.name} {p.name}"):
        tree = ast.parse(path.read_text())
        found += [f"{path.name}:{n.lineno}" for n in ast.walk(tree) if compares_with_a_limit(n)]
    assert not found


def test_every_limit_of_a_card_is_read_by_some_rule():
    text = "\n".join(r.text for p in (rulesets() / "schedule").glob("*.egg") for r in rules_in(p))
    for limit in ("(max-threads)", "(max-smem)", "(max-registers)", "(sm-registers)"):
        assert limit in text


def test_complete_kernels_alone_are_united_with_a_body():
    """An option class that several bodies share would make each one's options the other's."""
    for path in (rulesets() / "schedule").glob("*.egg"):
        for rule in rules_in(path):
            if "(union (Of b)" in rule.text:
                head = rule.text.split("(union (Of b) (")[1]
                assert head.split()[1] == "b", f"{rule.name} makes a kernel without its body in the key"
