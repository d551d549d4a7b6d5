"""Capture: composites stay whole, mutation becomes values, sizes become expressions, the rest is refused by line."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import emmy
from emmy.errors import UnsupportedError, UsageError
from emmy.frontend import interpret
from emmy.frontend.capture import capture
from emmy.frontend.lines import to_blame
from emmy.ir.graph import Ref, ScalarInput

# operation that must stay whole -> a function that uses it, and its operands' shapes
WHOLE = {
    "aten.linear.default": (lambda x, w: F.linear(x, w), [(4, 8), (3, 8)]),
    "aten.matmul.default": (torch.matmul, [(2, 4, 8), (8, 3)]),
    "aten.bmm.default": (torch.bmm, [(2, 4, 8), (2, 8, 3)]),
    "aten.addmm.default": (torch.addmm, [(3,), (4, 8), (8, 3)]),
    "aten.conv1d.default": (F.conv1d, [(1, 4, 9), (3, 4, 2)]),
    "aten.conv2d.default": (lambda x, w: F.conv2d(x, w, stride=2), [(1, 4, 8, 8), (3, 4, 2, 2)]),
    "aten.rms_norm.default": (lambda x: F.rms_norm(x, (8,)), [(4, 8)]),
    "aten.layer_norm.default": (lambda x: F.layer_norm(x, (8,)), [(4, 8)]),
    "aten.group_norm.default": (lambda x: F.group_norm(x, 2), [(4, 8, 3)]),
    "aten.softmax.int": (lambda x: F.softmax(x, -1), [(4, 8)]),
    "aten.log_softmax.int": (lambda x: F.log_softmax(x, -1), [(4, 8)]),
    "aten.scaled_dot_product_attention.default": (F.scaled_dot_product_attention, [(1, 2, 4, 8)] * 3),
    "aten.gelu.default": (F.gelu, [(4, 8)]),
    "aten.silu.default": (F.silu, [(4, 8)]),
    "aten.relu.default": (F.relu, [(4, 8)]),
    "aten.einsum.default": (lambda x, y: torch.einsum("ij,jk->ik", x, y), [(4, 8), (8, 3)]),
}


@pytest.mark.parametrize("op", WHOLE)
def test_composite_operation_stays_whole(op: str) -> None:
    function, shapes = WHOLE[op]
    program = capture(function, tuple(torch.randn(s) for s in shapes))
    assert [n.op for n in program.graph.nodes] == [op]


def test_batch_norm_in_eval_is_one_operation() -> None:
    program = capture(nn.BatchNorm1d(8).eval(), (torch.randn(4, 8),))
    assert len(program.graph.nodes) == 1
    assert "batch_norm" in program.graph.nodes[0].op


class Mutating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 8))
        self.register_buffer("unused", torch.zeros(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.cache[1:3] = x[1:3]
        self.cache.add_(1)
        x.mul_(2)
        y = x.masked_fill_(mask, 0.0).view(2, 16)
        y[0].copy_(y[1])
        return y + self.cache.view(2, 16)


def test_in_place_operations_become_values_and_mutated_inputs_are_outputs() -> None:
    x, mask = torch.randn(4, 8), torch.rand(4, 8) > 0.5
    module = Mutating()
    program = capture(module, (x.clone(), mask))
    assert not [n.op for n in program.graph.nodes if n.op.split(".")[1].endswith("_")]
    assert [o.mutates for o in program.graph.outputs] == ["b_cache", "x", ""]
    cache, new_x, y = interpret(program.graph, program.weights, [x.clone(), mask])
    given = x.clone()
    expected = module(given, mask)
    assert torch.equal(y, expected)
    assert torch.equal(new_x, given)
    assert torch.equal(cache, module.cache)


def test_unused_buffers_and_dead_nodes_are_dropped_but_user_inputs_stay() -> None:
    def function(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        torch.exp(x)
        return x + 1

    program = capture(function, (torch.randn(3), torch.randn(2)))
    assert [i.name for i in program.graph.inputs] == ["x", "unused"]
    assert [n.op for n in program.graph.nodes] == ["aten.add.Tensor"]
    assert "unused" not in capture(Mutating(), (torch.randn(4, 8), torch.rand(4, 8) > 0.5)).weights


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = F.relu(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(y)


def test_mode_regions_are_inlined_with_their_lines() -> None:
    module = Regions()
    x = torch.randn(4, 8)
    program = capture(module, (x,))
    ops = [n.op for n in program.graph.nodes]
    assert "aten.relu.default" in ops
    assert ops[-1] == "aten.linear.default"
    assert program.graph.nodes[-1].results[0].dtype == "bf16"
    relu = next(n for n in program.graph.nodes if n.op == "aten.relu.default")
    assert "y = F.relu(x)" in relu.source
    assert torch.equal(interpret(program.graph, program.weights, [x])[0], module(x))


def test_every_node_knows_its_line_and_its_module() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x) * 2

    linear, mul = capture(Outer(), (torch.randn(2, 8),)).graph.nodes
    assert linear.module == "layers.0"
    assert mul.module == ""
    assert "test_capture.py" in linear.source
    assert mul.source.endswith("return self.layers[0](x) * 2")


def test_several_results_are_named_by_number() -> None:
    program = capture(lambda x: torch.split(x, 2)[1] + 1, (torch.randn(6),))
    split, add = program.graph.nodes
    assert len(split.results) == 3
    assert add.args[0] == Ref("split#1")


def test_dynamic_size_is_named_and_flows_into_shapes_and_arguments() -> None:
    seq = torch.export.Dim("seq", min=1, max=2048)
    module = nn.Sequential(nn.Linear(8, 8), nn.Unflatten(-1, (2, 4)), nn.Flatten(0, 1))
    program = capture(module, (torch.randn(4, 16, 8),), dynamic_shapes=({1: seq},))
    (size,) = program.graph.sizes
    assert (size.name, size.low, size.high, size.example) == ("s0", 1, 2048, 16)
    assert program.graph.inputs[-1].tensor.text == "f32[4,$s0,8]"
    assert program.graph.nodes[-1].results[0].text == "f32[(mul i64 $s0 4),2,4]"
    for length in (1, 17, 2048):
        x = torch.randn(4, length, 8)
        assert torch.equal(interpret(program.graph, program.weights, [x])[0], module(x))


def test_wrong_shape_of_a_call_is_a_usage_error() -> None:
    program = capture(lambda x: x + 1, (torch.randn(4, 8),))
    with pytest.raises(UsageError, match=r"input x has shape \[4, 9\]"):
        interpret(program.graph, program.weights, [torch.randn(4, 9)])


def test_structure_of_arguments_and_results_is_kept() -> None:
    def function(pair: tuple[torch.Tensor, torch.Tensor], scale: float, *, other: torch.Tensor) -> dict[str, object]:
        return {"sum": pair[0] + pair[1] * scale, "parts": (other, None)}

    pair, other = (torch.ones(2), torch.ones(2)), torch.zeros(2)
    program = capture(function, (pair, 2.0), {"other": other})
    assert [type(s) for s in program.signature].count(ScalarInput) == 1
    tensors = program.flatten((pair, 2.0), {"other": other})
    result = program.unflatten(interpret(program.graph, program.weights, tensors))
    assert torch.equal(result["sum"], torch.full((2,), 3.0))
    assert result["parts"][1] is None
    with pytest.raises(UsageError, match=r"was 2.0 when the program was captured and is 3.0 now"):
        program.flatten((pair, 3.0), {"other": other})
    with pytest.raises(UsageError, match="keyword arguments"):
        program.flatten((pair, 2.0), {"another": other})


def test_dtypes_map_to_our_names() -> None:
    program = capture(lambda x: x.to(torch.float8_e4m3fn).to(torch.float16), (torch.randn(4),))
    assert [n.results[0].dtype for n in program.graph.nodes] == ["f8e4m3", "f16"]
    assert dict(program.graph.nodes[0].kwargs) == {"dtype": "f8e4m3"}


def test_placement_arguments_are_left_out() -> None:
    program = capture(lambda x: x + torch.full((4,), 2.0, device=x.device).to("cpu"), (torch.randn(4),))
    assert not [k for n in program.graph.nodes for k, _ in n.kwargs if k in ("device", "layout", "pin_memory")]


def branch(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))


def data_branch(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x


def data_size(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (branch, "torch.cond(x.sum() > 0"),
        (data_branch, "return x + 1 if x.sum() > 0"),
        (data_size, "return x.nonzero()"),
        (lambda x: torch.view_as_complex(x.reshape(2, 2)), "complex64"),
        (lambda x: x.to_sparse().to_dense(), "sparse"),
    ],
)
def test_what_cannot_be_compiled_names_the_users_line(function: object, line: str) -> None:
    with pytest.raises(UnsupportedError) as e:
        capture(function, (torch.randn(4),))  # type: ignore[arg-type]
    assert line in str(e.value)


def test_transform_that_pytorch_cannot_functionalize_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="cannot make the program functional"):
        capture(torch.func.grad(lambda v: (v * v).sum()), (torch.randn(4),))


def test_error_in_the_model_names_its_line() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 3)

    with pytest.raises(UsageError, match=r"test_capture.py:\d+: return x @ torch.ones"):
        capture(wrong, (torch.randn(4, 4),))


def test_a_number_taken_from_data_is_unsupported_and_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"while the model runs(.|\n)*\.item\(\)"):
        capture(lambda x: x * x.sum().item(), (torch.randn(4),))


def test_a_dynamic_size_that_cannot_be_says_why() -> None:
    size = torch.export.Dim("s", min=2, max=64)
    with pytest.raises(UsageError, match=r"Constraints violated(.|\n)*specified range s <= 64"):
        capture(nn.Conv1d(3, 4, 3, stride=2, padding=1), (torch.randn(1, 3, 10),), dynamic_shapes=({2: size},))


def through_the_standard_library(x: torch.Tensor) -> torch.Tensor:
    return x + len(json.dumps({"sum": x.sum()}))


def through_copy(x: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(x)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (through_the_standard_library, "return x + len(json.dumps"),
        (through_copy, "return copy.deepcopy(x)"),
        (lambda x: torch.from_numpy(x.numpy()), "torch.from_numpy(x.numpy())"),
    ],
)
def test_an_error_inside_a_library_names_the_users_line(function: Callable[..., Any], line: str) -> None:
    with pytest.raises(UsageError) as e:
        capture(function, (torch.randn(4),))
    assert "test_capture.py" in str(e.value) and line in str(e.value)
    assert "/json/" not in str(e.value) and "copy.py" not in str(e.value)


@pytest.mark.parametrize(
    ("paths", "blamed"),
    [
        (["/home/me/model.py", "/usr/lib/python3.12/json/encoder.py"], 0),
        (["/home/me/a.py", "/home/me/b.py", "/env/lib/python3.12/site-packages/torch/functional.py"], 1),
        (["/home/me/a.py", "/env/lib/python3.12/site-packages/timm/vit.py", torch.functional.__file__], 0),
        (["/env/lib/python3.12/site-packages/timm/vit.py", torch.functional.__file__, json.__file__], 0),
        (["<code>", "<string>", "<frozen importlib._bootstrap>"], 0),
        ([torch.functional.__file__, emmy.__file__], None),
    ],
)
def test_the_innermost_line_of_the_user_is_blamed_then_that_of_a_package(paths: list[str], blamed: int | None) -> None:
    assert to_blame(paths) == blamed


def test_a_branch_on_data_prints_our_error_alone_and_what_the_model_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        print("the model speaks", file=sys.stderr)
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(UnsupportedError):
        capture(talks, (torch.randn(4),))
    streams = capsys.readouterr()
    assert streams.out == "" and set(streams.err.split("\n")) == {"the model speaks", ""}


class Holds(nn.Module):
    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "said"),
    [
        (torch.exp, (torch.eye(3).to_sparse(),), {}, r"argument \[0\] is a sparse tensor \(sparse_coo\)\n.*to_dense"),
        (torch.add, (torch.eye(3), torch.eye(3).to_sparse()), {}, r"argument \[1\] is a sparse tensor"),
        (lambda d: d["a"], ({"a": torch.eye(3).to_sparse()},), {}, r"argument \[0\]\['a'\] is a sparse tensor"),
        (lambda *, a: a, (), {"a": torch.eye(3).to_sparse()}, r"argument \['a'\] is a sparse tensor"),
        (torch.exp, (torch.zeros(3, dtype=torch.complex64),), {}, r"type complex64 at argument \[0\]"),
        (Holds(torch.eye(3).to_sparse()), (torch.eye(3),), {}, "table is a sparse tensor"),
    ],
)
def test_a_tensor_that_no_kernel_reads_is_named(
    module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        capture(module, args, kwargs)


def test_held_tensors_come_before_the_users() -> None:
    program = capture(lambda x: x + torch.tensor([1.0, 2.0]), (torch.randn(2),))
    assert [i.kind for i in program.graph.inputs] == ["constant", "user"]
