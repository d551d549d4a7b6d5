"""The rules as a whole: each is named once, says what it does, has its tests, and may be left out by name."""

from __future__ import annotations

from collections import Counter

import pytest

from emmy.egraph.egg import ANALYSES, NUMERICS, Egg, Rule, read_sexps, rules_in
from emmy.egraph.model import BOUNDS
from emmy.resources import rulesets
from tests.egraph import (
    test_rules_decompose,
    test_rules_launches,
    test_rules_layout,
    test_rules_loop,
    test_rules_pad,
    test_rules_share,
    test_rules_split,
    test_rules_update,
)

CASES = {
    **test_rules_decompose.CASES, **test_rules_layout.CASES, **test_rules_launches.CASES, **test_rules_loop.CASES,
    **test_rules_pad.CASES, **test_rules_split.CASES, **test_rules_update.CASES, **test_rules_share.CASES,
}  # fmt: skip
FILES = sorted(rulesets().glob("*/*.egg"))


def rules() -> list[Rule]:
    return [r for path in FILES for r in rules_in(path)]


def covered() -> list[Rule]:
    """Rules of the model and loop e-graphs that are no analyses (schedule rules are tested by their families)."""
    names = {p.name for p in FILES if p.parent.name != "schedule"}
    return [r for r in rules() if r.file in names and r.numerics != "analysis"]


def test_every_rule_of_the_model_and_loop_has_a_case_that_fires_and_one_that_must_not():
    assert {r.name for r in covered()} <= CASES.keys()


def test_every_case_names_a_rule():
    assert CASES.keys() <= {r.name for r in rules()}


def test_rule_names_are_unique():
    assert not [name for name, n in Counter(r.name for r in rules()).items() if n > 1]


def test_every_rule_in_a_file_is_found():
    for path in FILES:
        commands = [c for c in read_sexps(path.read_text()) if c[0] == "rule"]
        assert len(rules_in(path)) == len(commands), path.name
        assert all(r.name and r.ruleset for r in rules_in(path)), path.name


def test_every_rule_that_rewrites_says_before_after_and_its_numerics_class():
    for r in rules():
        if r.ruleset in ANALYSES:
            continue
        assert r.doc and r.numerics in NUMERICS, r.name
        assert r.doc.split()[-1] in NUMERICS, r.name
    rewriting = [r for r in rules() if r.numerics != "analysis" and r.ruleset not in ("siblings", "fuse", "schedule")]
    assert not [r.name for r in rewriting if "->" not in r.doc]


def test_nothing_approximates_unless_asked_for():
    """A product of 8-bit floats is asked for by the operation's name: no fact of the rule is there otherwise."""
    approximates = {r.name: r.text for r in rules() if r.numerics == "approximates"}
    assert '(allowed "tf32")' in approximates.pop("tf32-shape")
    assert '(allowed "tf32")' in approximates.pop("wgmma-tf32")
    assert "(wgmma-named b type)" in approximates.pop("wgmma-eighths") and not approximates
    atomic = [r for r in rules() if r.name.endswith("-atomic")]
    assert len(atomic) == 3 and all('(allowed "atomics")' in r.text for r in atomic)


@pytest.mark.parametrize("name", sorted(r.name for r in covered()))
def test_held_rule_is_left_out_of_its_e_graph(name):
    folder = next(p.parent.name for p in FILES if name in {r.name for r in rules_in(p)})
    egg = Egg(held=frozenset({name}), constants=dict(BOUNDS))
    order = (
        ("model", "decompose", "algebra", "siblings", "pad", "split", "lift", "update", "fuse", "share")
        if folder == "model"
        else ("terms", "factor", "twist", "moments")
    )
    egg.load(*(rulesets() / folder / f"{n}.egg" for n in order))
    everything = {r.name for p in FILES if p.parent.name == folder for r in rules_in(p)}
    assert everything - egg.rules.keys() == {name}
