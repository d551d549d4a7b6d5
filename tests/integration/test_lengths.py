"""A saved program with a symbolic length, compiled once, is right for every length: the same kernels serve all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import emmy
from emmy.ir.plan import KernelLaunch
from tests.integration.machine import Compiled, Machine

DIM, INNER, HEADS = 128, 320, 2
# up and down, so that what an earlier length left behind would be seen; the evaluator is slow
LENGTHS = {True: (2048, 1, 511, 17, 128, 1, 2048), False: (130, 1, 17)}


class Mixed(nn.Module):
    """RMSNorm, a gated MLP with its residual, and a softmax over features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIM, eps=1e-6)
        self.gate, self.up, self.down = (nn.Linear(*n) for n in ((DIM, INNER), (DIM, INNER), (INNER, DIM)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return torch.softmax(x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)), -1)


class Attention(nn.Module):
    """Causal attention of a few heads between projections, with what surrounds it in a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIM, eps=1e-6)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(a.transpose(1, 2).reshape(b, s, DIM))


CASES = [*((Mixed, t) for t in ("float32", "float16")), *((Attention, t) for t in ("float32", "float16", "bfloat16"))]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def compiled(machine: Machine, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    make, dtype = request.param
    torch.manual_seed(1)
    module = make().eval().to(getattr(torch, dtype))
    x = torch.randn(1, 24, DIM, dtype=getattr(torch, dtype))
    length = torch.export.Dim("length", min=1, max=4096)
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    torch.export.save(torch.export.export(module, (x,), dynamic_shapes={"x": {1: length}}), path)
    return machine.compile(emmy.load(str(path)))


def given(c: Compiled, length: int) -> torch.Tensor:
    (example,) = c.saturation.program.example_tensors()
    generator = torch.Generator().manual_seed(length)
    return torch.randn(1, length, DIM, generator=generator).to(example.dtype)


def test_every_length_is_right_and_none_builds_a_kernel(compiled: Compiled, machine: Machine) -> None:
    assert not compiled.saturation.opaque
    built = compiled.cache.misses, sorted(machine.folder.rglob("*.cubin"))
    for length in LENGTHS[machine.card]:
        x = given(compiled, length).to(machine.device)
        compiled.assert_right(compiled.run([x]), compiled.exact([x]), terms=length)
    assert (compiled.cache.misses, sorted(machine.folder.rglob("*.cubin"))) == built


def test_a_kernel_has_one_body_and_a_grid_that_depends_on_the_length(compiled: Compiled) -> None:
    kernels, launches = compiled.kernels, compiled.saturation.plan.launches
    assert len({name for name, _, _ in kernels}) == len(kernels)
    assert len({body for _, body, _ in kernels}) == len(kernels)
    every_call = [l for l in launches if isinstance(l, KernelLaunch) and not l.at_build]
    assert every_call and all(l.sizes for l in every_call)


def test_a_prefix_is_right_alone_and_before_more(compiled: Compiled, machine: Machine) -> None:
    """Rows see none that come later: what a kernel reads past the end of a length would show."""
    long = given(compiled, 130).to(machine.device)
    (whole,), (part,) = compiled.run([long]), compiled.run([long[:, :17].contiguous()])
    assert isinstance(whole, torch.Tensor) and isinstance(part, torch.Tensor)
    exact = compiled.exact([long])[0]
    assert isinstance(exact, torch.Tensor)
    compiled.assert_right([whole[:, :17]], [exact[:, :17]], terms=130)
    compiled.assert_right([part], [exact[:, :17]], terms=130)
