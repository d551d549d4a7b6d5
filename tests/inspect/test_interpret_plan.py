"""What the interpreter of plans hands back has the shapes of the program's results."""

from __future__ import annotations

import torch

import emmy
from emmy.inspect.interpret_plan import interpret_plan


def test_results_and_operands_of_opaque_calls_without_dimensions_have_none() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.sum()
        return total, torch.special.i1(total)

    x = torch.randn(5)
    s = emmy.saturate(function, (x,), target="sm_90a", check=False)
    found = interpret_plan(s, [x])
    for value, expected in zip(found, function(x), strict=True):
        assert isinstance(value, torch.Tensor) and value.shape == ()
        torch.testing.assert_close(value.float(), expected)
