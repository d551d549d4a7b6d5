"""Every prefix of the passes compiles: also where values of parameters are made in several steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import emmy


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * ((self.weight + 1) * torch.arange(8))


@pytest.mark.parametrize("passes", ["d", "dol", "dolf", "dolfstpkc"])
def test_a_prefix_of_the_passes_compiles(passes: str) -> None:
    s = emmy.saturate(Scaled(), (torch.randn(4, 8),), target="sm_90a", passes=passes, golden="")
    at_build = [c for c in s.launches if c.at_build]
    user = {b.name for b in s.plan.buffers if b.role == "input"}
    assert not [c.name for c in at_build if user & set(c.operands)]
    assert any(user & set(c.operands) for c in s.launches if not c.at_build)
    if "f" not in passes:
        assert len(at_build) > 1
