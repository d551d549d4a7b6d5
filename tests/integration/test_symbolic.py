"""One compilation serves every length of a dynamic dimension, with one body a kernel."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from emmy.frontend.files import load_file
from emmy.inspect.interpret_plan import interpret_plan
from emmy.ir.dtype import is_float
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.loop import Fold, Load, Online
from emmy.ir.target import TARGETS
from emmy.saturation import Options, Saturation, saturate_program
from tests import host_cuda

LENGTHS = (1, 17, 128, 511, 2048)
DIM, HEADS, GROUPS, INNER = 64, 4, 2, 160
HEAD = DIM // HEADS


class Layer(nn.Module):
    """A decoder layer: RMSNorm, grouped causal attention with rotary positions, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(DIM, eps=1e-6), nn.RMSNorm(DIM, eps=1e-6)
        self.q, self.o = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.k, self.v = (nn.Linear(DIM, GROUPS * HEAD, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(DIM, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, DIM, bias=False)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[2], dtype=torch.float32)
        angle = torch.outer(place, 10000.0 ** (-torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD))
        cos, sin = (f(torch.cat((angle, angle), -1)).to(x.dtype) for f in (torch.cos, torch.sin))
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        h = self.before(x)
        q, k, v = (w(h).view(b, s, -1, HEAD).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, -1))
        h = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


@pytest.fixture(scope="module")
def layer() -> nn.Module:
    torch.manual_seed(1)
    return Layer().eval()


@pytest.fixture(scope="module", params=["f32", "bf16"])
def compiled(request, layer, tmp_path_factory) -> tuple[nn.Module, Saturation]:
    model = copy.deepcopy(layer).to({"f32": torch.float32, "bf16": torch.bfloat16}[request.param])
    x = torch.randn(1, 24, DIM, dtype=next(model.parameters()).dtype)
    length = torch.export.Dim("length", min=1, max=4096)
    path = tmp_path_factory.mktemp("model") / "layer.pt2"
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes={"x": {1: length}}), path)
    return model, saturate_program(load_file(path), Options(TARGETS["sm_89"], golden=""))


def given(model: nn.Module, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(1, length, DIM, generator=generator).to(next(model.parameters()).dtype)


@pytest.mark.parametrize("length", LENGTHS)
def test_plan_is_right_for_every_length(compiled, length):
    model, s = compiled
    x = given(model, length)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
    (found,) = interpret_plan(s, [x])
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", (1, 17))
def test_plan_rounds_no_worse_than_its_type(compiled, length):
    model, s = compiled
    x = given(model, length)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
    (found,) = interpret_plan(s, [x], rounding=True)
    assert (found - expected).abs().max() < (1e-4 if x.dtype == torch.float32 else 4e-2)


def test_every_kernel_has_one_body_and_no_body_holds_the_example_length(compiled):
    _, s = compiled
    assert not s.opaque
    bodies = {}
    for c in s.launches:
        assert bodies.setdefault(c.name, c.priced.body) is c.priced.body
    assert len({b.hash for b in bodies.values()}) == len(bodies)
    for b in bodies.values():
        axes = [a for o in b.outs for a in o.axes] + [n.axis for n in b.nodes if isinstance(n, Fold | Online)]
        assert all(a.size not in (24, 24 * HEADS, 24 * DIM) for a in axes), b.text
    assert any(b.sizes for b in bodies.values())


def test_every_kernel_takes_the_sizes_that_it_reads(compiled):
    _, s = compiled
    for c in s.launches:
        assert {p.name for p in c.kernel.params if p.role == "size"} >= set(c.priced.body.sizes)


@pytest.mark.parametrize("arch", ["sm_90a"])
def test_every_card_takes_the_kernels(compiled, arch):
    _, s = compiled
    other = saturate_program(s.program, Options(TARGETS[arch], golden=""))
    for each in (s, other):
        assert each.compiled.keys() == {c.name for c in each.launches}
        assert not each.selection.refused


@pytest.mark.skipif(not host_cuda.available(), reason="no C++ compiler")
@pytest.mark.parametrize("length", (1, 17))
def test_kernels_compute_their_bodies_on_the_host(compiled, length):
    _, s = compiled
    (size,) = s.plan.sizes
    sizes = {size.name: length}
    rng = np.random.default_rng(length)
    for c in {c.name: c for c in s.launches if not c.at_build}.values():
        body = c.priced.body
        shapes = [evaluated_shape(t.shape, length) for t in body.slots]
        types = [host_cuda.NUMPY[t.dtype] for t in body.slots]
        arrays = [rng.standard_normal(n).astype(t) for n, t in zip(shapes, types, strict=True)]
        expected = evaluate(body, [a.astype(np.float64) for a in arrays], sizes)
        found = host_cuda.run(c.kernel, arrays, sizes, [e.shape for e in expected])
        folds = tuple(n.axis.extent for n in body.nodes if isinstance(n, Fold | Online))
        terms = max([1, *evaluated_shape(folds, length)])
        for f, e, o in zip(found, expected, body.outs, strict=True):
            scale = np.abs(e[np.isfinite(e)]).max(initial=1.0)
            rounded = {o.tensor.dtype, *(n.dtype for n in body.nodes if isinstance(n, Load) and is_float(n.dtype))}
            error = 2e-2 if rounded & {"bf16", "f16"} else 1e-5
            np.testing.assert_allclose(f.astype(np.float64), e, rtol=0, atol=error * scale * terms**0.5, err_msg=c.name)


def evaluated_shape(shape, length: int) -> tuple[int, ...]:
    return tuple(integer(e, dict.fromkeys(e.sizes, length)) for e in shape)
