"""What translation makes, the model rules decompose: every sample through the e-graph has eager's values."""

from __future__ import annotations

import torch

from emmy.egraph.model import saturate
from emmy.frontend import interpret
from emmy.frontend.capture import capture
from emmy.frontend.translate import translate
from emmy.frontend.translate.samples import SAMPLES, operands
from emmy.resources import rulesets
from tests.egraph.build import values
from tests.frontend.translate import reference
from tests.frontend.translate.test_program import NOT_OURS


def test_every_row_of_every_class_has_the_value_that_eager_has() -> None:
    chosen = {k: s for k, s in SAMPLES.items() if k not in NOT_OURS}
    given = {k: operands(s.cases[0]) for k, s in chosen.items()}
    counts: list[int] = []

    def every(*x: torch.Tensor) -> list[torch.Tensor]:
        rest, out = list(x), []
        counts.clear()
        for name, sample in chosen.items():
            mine, rest = rest[: len(given[name])], rest[len(given[name]) :]
            result = sample.fn(*mine)
            flat = list(result) if isinstance(result, tuple | list) else [result]
            counts.append(len(flat))
            out += flat
        return out

    args = tuple(x for some in given.values() for x in some)
    captured = capture(every, args)
    program = translate(captured.graph, fallback=False)
    model = saturate(program, rulesets(), parameters=frozenset(), sizes={}, stages="dol")
    found = values(model, reference.operands(captured, args))
    expected = interpret(captured.graph, captured.weights, list(args), torch.float64)
    names = [name for name, n in zip(chosen, counts, strict=True) for _ in range(n)]
    for name, number, term, e in zip(names, model.outputs, program.outputs, expected, strict=True):
        reference.compare(found[number], reference.to_numpy(e), program.terms[term].tensor, name, 2e-4, 2e-5)
