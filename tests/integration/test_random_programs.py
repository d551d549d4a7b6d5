"""Rewritten equals original: plans sampled from the e-graph of random programs compute what the program says.

`EMMY_TEST_SEED` names another seed than the default; it is printed first, so that a failure can be replayed.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

from emmy.egraph.model import ModelGraph, saturate
from emmy.ir.dtype import is_float
from emmy.resources import rulesets
from emmy.runtime.numerics import tolerance
from tests.egraph.build import agree, execute, plans, values
from tests.frontend.translate.reference import run
from tests.strategies import RandomProgram, programs

SEED = int(os.environ.get("EMMY_TEST_SEED", "20260129"))
EXAMPLES, PARTS, PLANS = 200, 4, 6


def saturated(case: RandomProgram) -> ModelGraph:
    return saturate(case.program, rulesets(), parameters=case.parameters, sizes={})


@pytest.mark.parametrize("part", range(PARTS))
def test_every_sampled_plan_computes_the_program(part):
    print(f"EMMY_TEST_SEED={SEED}")
    seen: Counter[str] = Counter()

    @seed(SEED + part)
    @settings(max_examples=EXAMPLES // PARTS, database=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def check(case: RandomProgram) -> None:
        model = saturated(case)
        assert not model.notes
        expected = run(case.program, case.arrays)
        found = values(model, case.arrays)
        for t, e in zip(model.outputs, expected, strict=True):
            agree(found[t], e, "a row of the e-graph")
        sampled = list(plans(model, random.Random(SEED), PLANS))
        assert sampled
        for steps in sampled:
            text = "\n".join(f"{s.launch.rule} {s.launch.operands} -> {s.launch.results}: {s.body.text}" for s in steps)
            for f, e in zip(execute(model, steps, case.arrays), expected, strict=True):
                agree(f, e, text)
            if case.smooth:
                near(case, execute(model, steps, case.arrays, rounding=True), expected, text)
        fused = sum(any(s.fused for s in steps) for steps in sampled)
        seen.update({"programs": 1, "plans": len(sampled), "fused": fused, "some fused": fused > 0})

    check()
    print(dict(seen))
    assert seen["programs"] >= EXAMPLES // PARTS
    assert seen["plans"] >= 4 * seen["programs"]
    assert 2 * seen["some fused"] >= seen["programs"] and 2 * seen["fused"] >= seen["plans"]


def near(case: RandomProgram, found: list[np.ndarray], expected: list[np.ndarray], what: str) -> None:
    """In f32 with rounded stores: within what the types and the number of stores allow, times the program's condition."""
    types = {t.tensor.dtype for t in case.program.terms if is_float(t.tensor.dtype)}
    stores, terms = len(case.program.terms), 64
    allowed = max(tolerance(d, terms, stores) for d in types)
    for f, e in zip(found, expected, strict=True):
        finite = np.abs(e[np.isfinite(e)])
        scale = max(1.0, float(finite.max()) if finite.size else 1.0)
        np.testing.assert_allclose(f, e, rtol=0, atol=allowed * scale, err_msg=what)
