"""What the interpreter of plans hands back has the shapes of the program's results."""

from __future__ import annotations

import pytest
import torch

import emmy
from emmy.errors import UsageError
from emmy.frontend.capture import capture
from emmy.frontend.reference import interpret
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


def bits(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (x + 1).view(torch.int32), y.view(torch.int16) + 1, torch.nextafter(x, x + 1)


@pytest.mark.parametrize("rounding", [False, True])
def test_bits_are_those_of_the_stored_type(rounding: bool) -> None:
    inputs = (torch.randn(4, 6), torch.randn(5).bfloat16())
    s = emmy.saturate(bits, inputs, target="sm_90a", check=False)
    wanted = bits(*inputs)
    for found, expected in zip(interpret_plan(s, inputs, rounding), wanted, strict=True):
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.to(expected.dtype), expected)
    program = s.program
    for found, expected in zip(interpret(program.graph, {}, inputs, torch.float64), wanted, strict=True):
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.to(expected.dtype), expected)


def test_sizes_beyond_their_bounds_are_refused() -> None:
    rows = torch.export.Dim("rows", min=3, max=8)
    program = capture(torch.exp, (torch.randn(4, 2),), dynamic_shapes=({0: rows},))
    s = emmy.saturate(program, target="sm_90a", check=False)
    for n in (3, 8):
        (found,) = interpret_plan(s, [torch.zeros(n, 2)])
        assert isinstance(found, torch.Tensor) and found.shape == (n, 2)
    for n in (2, 9):
        with pytest.raises(UsageError, match=rf"size s0 is {n}, .*3\.\.=8"):
            interpret_plan(s, [torch.zeros(n, 2)])
        with pytest.raises(UsageError, match=rf"size s0 is {n}, .*3\.\.=8"):
            interpret(program.graph, program.weights, [torch.zeros(n, 2)])
