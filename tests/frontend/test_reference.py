"""The reference interpreter: the program's own types give eager's bits; float64 gives the function over the reals."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from emmy.errors import UnsupportedError
from emmy.frontend import interpret, run_node
from emmy.frontend.capture import capture
from emmy.frontend.opaque import rms_norm_eps
from emmy.ir.graph import Node, Ref
from emmy.ir.loop import Tensor, const, size


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + self.down(F.gelu(self.up(self.norm(x))))
        mask = torch.arange(4)[None] <= torch.arange(4)[:, None]
        scores = (h @ h.mT).masked_fill(~mask, float("-inf")).softmax(-1)
        return scores @ h + torch.full((16,), 0.5), h[index]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_own_types_equal_eager_bit_for_bit(dtype: torch.dtype) -> None:
    module = Block().to(dtype).eval()
    inputs = torch.randn(4, 16).to(dtype), torch.tensor([2, 0])
    program = capture(module, inputs)
    with torch.no_grad():
        expected = module(*inputs)
    for found, wanted in zip(interpret(program.graph, program.weights, inputs), expected, strict=True):
        assert torch.equal(found, wanted)


def test_float64_equals_the_same_model_in_float64() -> None:
    module = Block().to(torch.bfloat16).eval()
    inputs = torch.randn(4, 16).to(torch.bfloat16), torch.tensor([2, 0])
    program = capture(module, inputs)
    found = interpret(program.graph, program.weights, inputs, torch.float64)
    wide = Block().double().eval()
    wide.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    wide.norm.eps = rms_norm_eps("bf16")
    with torch.no_grad():
        expected = wide(inputs[0].double(), inputs[1])
    assert [f.dtype for f in found] == [torch.float64, torch.float64]
    for f, e in zip(found, expected, strict=True):
        assert torch.allclose(f, e, rtol=1e-13, atol=1e-13)


def test_casts_that_round_vanish_in_float64() -> None:
    program = capture(lambda x: x.to(torch.bfloat16).float() * 1.0, (torch.tensor([1.001]),))
    x = torch.tensor([1.001])
    assert interpret(program.graph, {}, [x])[0].item() == 1.0
    assert interpret(program.graph, {}, [x], torch.float64)[0].item() == x.double().item()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_default_eps_of_rms_norm_is_pytorchs(dtype: str) -> None:
    x = torch.full((1, 4), 2e-4, dtype={"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype])
    found = F.rms_norm(x, (4,)).double()
    expected = x.double() / (x.double().square().mean() + rms_norm_eps(dtype)).sqrt()
    assert torch.allclose(found, expected, rtol=1e-2)


def test_run_node_takes_tensors_in_order_of_reference_and_symbolic_arguments() -> None:
    out = (Tensor("f32", (size("s0"), const(2))),)
    node = Node("view", "aten.view.default", (Ref("x"), (size("s0"), 2)), (), out)
    (found,) = run_node(node, [torch.arange(6.0)], {"s0": 3})
    assert found.shape == (3, 2)
    cat = Node("cat", "aten.cat.default", ((Ref("a"), Ref("b"), Ref("a")),), (("dim", 0),), out)
    a, b = torch.zeros(1), torch.ones(2)
    (found,) = run_node(cat, [a, b, a], {})
    assert found.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_results_are_contiguous_whatever_pytorch_returns() -> None:
    node = Node("t", "aten.transpose.int", (Ref("x"), 0, 1), (), (Tensor("f32", (const(3), const(2))),))
    (found,) = run_node(node, [torch.arange(6.0).view(2, 3)], {})
    assert found.is_contiguous()
    assert found.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_unknown_operation_says_so() -> None:
    node = Node("n", "aten.no_such_thing.default", (), (), ())
    with pytest.raises(UnsupportedError, match="has no operation aten"):
        run_node(node, [], {})
