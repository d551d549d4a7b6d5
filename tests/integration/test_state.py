"""A step that writes into its caches writes only what it changes, and reads what it wrote."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from emmy.frontend.capture import capture
from emmy.frontend.reference import interpret
from emmy.inspect.interpret_plan import interpret_plan
from emmy.ir.target import TARGETS
from emmy.runtime.flow import analyse
from emmy.saturation import Options, Saturation, saturate_program

HEADS, LENGTH, WIDTH = 8, 4096, 32  # large enough that a copy costs more than a launch


class Step(nn.Module):
    """One token of attention on filled caches, which it extends at `place`."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH, bias=False)

    def forward(self, x: torch.Tensor, place: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, HEADS, 1, WIDTH) for t in self.project(x).chunk(3, -1))
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        mask = torch.arange(LENGTH)[None, :] <= place[:, None]
        return nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def arguments(place: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(place)
    caches = (torch.randn(1, HEADS, LENGTH, WIDTH, generator=generator) for _ in range(2))
    return torch.randn(1, HEADS * WIDTH, generator=generator), torch.tensor([place]), *caches


def compiled(*held: str) -> Saturation:
    torch.manual_seed(0)
    program = capture(Step().eval(), arguments(5))
    return saturate_program(program, Options(TARGETS["sm_90a"], golden="", held=frozenset(held)))


@pytest.fixture(scope="module")
def step() -> Saturation:
    return compiled()


@pytest.mark.parametrize("place", (0, 40, LENGTH - 1))
def test_plan_computes_outputs_and_new_caches(step, place):
    given = arguments(place)
    expected = interpret(step.program.graph, step.program.weights, [t.clone() for t in given], torch.float64)
    found = interpret_plan(step, given)
    assert len(found) == len(expected) == 3
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)


def test_caches_are_updated_where_they_lie(step):
    updates = [c for c in step.launches if c.launch.in_place]
    assert {c.results for c in updates} == {("keys",), ("values",)}
    for c in updates:
        (out,) = c.priced.body.outs
        assert math.prod(a.size for a in out.axes) == HEADS * WIDTH
    sizes = [b.tensor.shape for b in step.plan.buffers if b.role in ("temporary", "output")]
    assert step.program.graph.tensors["keys"].shape not in sizes


def test_runtime_takes_the_plan_and_copies_nothing_back(step):
    flow = analyse(step.plan)
    assert {(m.value, m.target) for m in flow.mutations} == {("keys", "keys"), ("values", "values")}


def test_launches_that_read_a_new_cache_come_after_its_update(step):
    new = {t: x for l in step.launches if l.launch.in_place for t, x in [l.launch.in_place]}
    order = {t: k for k, c in enumerate(step.launches) for t in c.launch.results}
    for k, c in enumerate(step.launches):
        assert all(order[t] < k for t in c.launch.operands if t in new)


def test_without_the_rule_caches_are_copied():
    s = compiled("update-in-place")
    assert not any(c.launch.in_place for c in s.launches)
    given = arguments(7)
    expected = interpret(s.program.graph, s.program.weights, [t.clone() for t in given], torch.float64)
    for f, e in zip(interpret_plan(s, given), expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)
