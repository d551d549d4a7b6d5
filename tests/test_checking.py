"""What `emmy run` takes for right: tolerance from the plan, eager's own rounding as the other measure."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

import emmy
from emmy.checking import Checked, example_inputs, longest_chain, longest_sum, results_in_order
from emmy.frontend.capture import capture
from emmy.runtime.numerics import compare
from emmy.saturation import Saturation


def saturated(module: nn.Module, *inputs: torch.Tensor, **options: object) -> Saturation:
    return emmy.saturate(module, inputs, target="sm_89", check=False, **options)


def comparison(error: float, nonfinite: int = 0):
    made = compare(torch.ones(4), torch.ones(4, dtype=torch.float64))
    return dataclasses.replace(made, error=error, nonfinite=nonfinite, tolerance=1e-3)


def test_an_error_within_tolerance_is_right() -> None:
    assert Checked("y", comparison(1e-3), comparison(0.0)).ok


def test_an_error_as_large_as_eagers_is_right_and_a_larger_one_wrong() -> None:
    assert Checked("y", comparison(0.02), comparison(0.01)).ok
    assert not Checked("y", comparison(0.021), comparison(0.01)).ok


def test_a_missing_nan_is_wrong_whatever_the_error() -> None:
    assert not Checked("y", comparison(0.0, nonfinite=1), comparison(1.0)).ok


def test_sums_of_all_launches_count() -> None:
    module = nn.Sequential(nn.Linear(64, 128, bias=False), nn.Linear(128, 32, bias=False))
    cut = saturated(module, torch.randn(4, 64), place="cut")
    assert longest_sum(cut) == 64 + 128
    assert longest_sum(saturated(nn.ReLU(), torch.randn(4))) == 1


def test_stored_values_on_the_way_count_and_the_result_does_not() -> None:
    module = nn.Sequential(nn.Linear(64, 128, bias=False), nn.Linear(128, 32, bias=False), nn.Linear(32, 8, bias=False))
    cut = saturated(module, torch.randn(4, 64), place="cut")
    assert len(cut.launches) == 3 and longest_chain(cut) == 2
    assert longest_chain(saturated(nn.ReLU(), torch.randn(4))) == 0


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.add_(x)
        cache.mul_(2)
        return x + cache, x * 3


def test_updated_buffers_and_inputs_are_results_beside_what_is_returned() -> None:
    graph = capture(Counter(), (torch.randn(3), torch.randn(3))).graph
    given = [torch.tensor([1.0]), torch.tensor([2.0])]
    found = results_in_order(graph, ["sum", "triple"], given, {"seen": torch.tensor([4.0])})
    by_target = {o.mutates or f"returned {k}": v for k, (o, v) in enumerate(zip(graph.outputs, found, strict=True))}
    assert by_target.pop("cache") is given[1]
    assert [v for k, v in by_target.items() if k.startswith("returned")] == ["sum", "triple"]
    (seen,) = (v for k, v in by_target.items() if not k.startswith("returned"))
    assert seen.item() == 4.0


def test_a_seed_shuffles_floating_inputs_and_nothing_else() -> None:
    x, index = torch.randn(4, 8), torch.tensor([2, 0, 1])
    program = capture(lambda x, index: x[index], (x, index))
    cpu = torch.device("cpu")
    plain, one, again = (example_inputs(program, cpu, seed) for seed in (None, 1, 1))
    assert torch.equal(plain[0], x) and torch.equal(one[0], again[0]) and not torch.equal(one[0], x)
    assert torch.equal(one[0].flatten().sort().values, x.flatten().sort().values)
    assert all(torch.equal(found[1], index) for found in (plain, one))
