"""Rewrites of the chosen derivation: complete, each once, and under the names that the plan has."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import emmy
from emmy.inspect.derivation import Rewrite, derive, rewrites
from emmy.inspect.views import show_ir
from emmy.saturation import Saturation


class Block(nn.Module):
    """A norm, an attention and a gate: fused, grown, cut and improved launches in one program."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32)
        self.qkv = nn.Linear(32, 96, bias=False)
        self.gate, self.up = nn.Linear(32, 64), nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        y = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.silu(self.gate(y)) * self.up(y)


@pytest.fixture(scope="module")
def block() -> Saturation:
    return emmy.saturate(Block(), (torch.randn(2, 16, 32),), target="sm_89", check=False)


@pytest.fixture(scope="module")
def found(block: Saturation) -> list[Rewrite]:
    return list(rewrites(block))


def test_a_composed_launch_computes_what_its_parts_compute(block: Saturation) -> None:
    d = derive(block)
    composed = [l for l in d.launches if not l.rule.startswith("lift")]
    assert {l.rule for l in composed} >= {"grow", "fuse"}
    for l in composed:
        parts = d.parts(l)
        assert len(parts) > 1
        assert frozenset().union(*(p.covers for p in parts)) == l.covers


def test_what_a_launch_was_composed_from_comes_before_it(block: Saturation) -> None:
    d = derive(block)
    place = {l.id: k for k, l in enumerate(d.launches)}
    assert len(place) == len(d.launches)
    assert all(place[p.id] < place[l.id] for l in d.launches for p in d.parts(l))
    assert {c.launch.id for c in block.launches} <= place.keys()


def test_every_kernel_is_stamped_scheduled_lowered_and_rendered_once(block: Saturation, found: list[Rewrite]) -> None:
    kernels = sorted({c.name for c in block.launches})
    for letter in "kc":
        assert sorted(r.at for r in found if r.letter == letter) == kernels
    assert sorted(r.at for r in found if r.letter == "t" and r.rule != "equal-body") == kernels
    assert sum(r.letter == "s" for r in found) == len(kernels)


def test_a_decomposition_is_of_the_operation_that_it_names(found: list[Rewrite]) -> None:
    by_rule = {r.rule: r for r in found if r.letter == "d"}
    assert by_rule["decompose-rms-norm"].at == "rms_norm"
    assert by_rule["decompose-sdpa-causal"].at == "scaled_dot_product_attention"
    assert all(r.before and f"let {r.at}: " in r.before[0] for r in by_rule.values())


def test_a_diff_gives_the_after_text_from_the_before_text(found: list[Rewrite]) -> None:
    for r in found:
        body = [line for line in r.text.splitlines()[2:-1] if not line.startswith("@@")]
        assert set(r.after) >= {line[1:] for line in body if line[0] == "+"}
        assert set(r.before) >= {line[1:] for line in body if line[0] == "-"}


def test_the_plans_buffers_have_their_names_in_the_tensor_ir(block: Saturation) -> None:
    defined = set(re.findall(r"^let (\w+):", show_ir(block, "tensor"), re.M))
    made = {b.name for b in block.plan.buffers if b.role in ("temporary", "folded", "output")}
    assert made and made <= defined


def test_passes_that_did_not_run_rewrite_nothing() -> None:
    s = emmy.saturate(Block(), (torch.randn(2, 16, 32),), target="sm_89", check=False, passes="dol")
    assert {r.letter for r in rewrites(s)} <= set("dol")
    assert all(len(c.launch.covers) == 1 for c in s.launches)
