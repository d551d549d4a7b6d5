"""`-c CODE`: which tensors become inputs, and what they are called."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from emmy.errors import UnsupportedError, UsageError
from emmy.frontend import interpret
from emmy.frontend.code import load_code

RMS = "nn.RMSNorm(2048,eps=1e-6)(torch.randn(1,32,2048))"
GELU = "x=torch.randn(32,189);0.5*x*(1+torch.tanh(0.797*(x+0.044*x*x*x)))"
MATMUL = "torch.matmul(\n    torch.randn(16,16,dtype=torch.float16),\n    torch.randn(16,16,dtype=torch.float16))"
ATTENTION = (
    "q=torch.randn(1,1,16,16)\nk=torch.randn(1,1,16,16)\nv=torch.randn(1,1,16,16)\n"
    "torch.nn.functional.scaled_dot_product_attention(q,k,v)"
)
CUT = "a=torch.randn(16,64)\nb=torch.randn(64,64)\nc=torch.randn(64,16)\n(a@b)@c"

# code -> (user inputs, parameters, node names)
CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    RMS: (["x f32[1,32,2048]"], ["p_weight f32[2048]"], ["rms_norm"]),
    "torch.nn.RMSNorm(23,eps=1e-6)(torch.randn(1,5,23))": (["x f32[1,5,23]"], ["p_weight f32[23]"], ["rms_norm"]),
    "nn.Linear(3, 2, bias=False)(torch.randn(4, 3))": (["input f32[4,3]"], ["p_weight f32[2,3]"], ["linear"]),
    "x=torch.randn(4,3); w=torch.randn(3,2); x @ w": (["x f32[4,3]", "w f32[3,2]"], [], ["matmul"]),
    "torch.exp(torch.neg(torch.randn(8)))": (["x f32[8]"], [], ["neg", "exp"]),
    "x=torch.randn(8); (x*x)+(x*x)": (["x f32[8]"], [], ["mul", "mul_1", "add"]),
    "x=torch.randn(8); y=torch.randn(8); x+x+y": (["x f32[8]", "y f32[8]"], [], ["add", "add_1"]),
    "x=torch.randn(8); y=torch.randn(8); y+(x+x)": (["x f32[8]", "y f32[8]"], [], ["add", "add_1"]),
    MATMUL: (["x f16[16,16]", "y f16[16,16]"], [], ["matmul"]),
    CUT: (["a f32[16,64]", "b f32[64,64]", "c f32[64,16]"], [], ["matmul", "matmul_1"]),
    GELU: (["x f32[32,189]"], [], ["mul", "mul_1", "mul_2", "mul_3", "add", "mul_4", "tanh", "add_1", "mul_5"]),
    "torch.nn.Softmax(dim=-1)(torch.randn(1,2,8,8))": (["input f32[1,2,8,8]"], [], ["softmax"]),
    ATTENTION: (
        ["q f32[1,1,16,16]", "k f32[1,1,16,16]", "v f32[1,1,16,16]"], [], ["scaled_dot_product_attention"],
    ),
    # beyond the commands in the documents
    "x=torch.randn(2,3); nn.Linear(3,2,bias=False)(x)": (["x f32[2,3]"], ["p_weight f32[2,3]"], ["linear"]),
    "m=nn.Linear(3,2,bias=False); F.relu(m(torch.randn(4,3)))": (
        ["x f32[4,3]"], ["p_m_weight f32[2,3]"], ["linear", "relu"],
    ),
    "F.relu(nn.LayerNorm(3)(torch.randn(4,3)))": (
        ["x f32[4,3]"], ["p_layer_norm_weight f32[3]", "p_layer_norm_bias f32[3]"], ["layer_norm", "relu"],
    ),
    "torch.randn(4,3).half().sum(-1)": (["x f16[4,3]"], [], ["sum_1"]),
    "x=torch.randn(4); x.to(torch.bfloat16)": (["x f32[4]"], [], ["_to_copy"]),
    "xs=[torch.randn(2),torch.randn(3)]; torch.cat(xs)": (["xs_0 f32[2]", "xs_1 f32[3]"], [], ["cat"]),
    "def f(a, s=2):\n    return a*s\nf(torch.randn(3))": (["x f32[3]"], [], ["mul"]),
    "torch.cat([t*2 for t in (torch.randn(2),torch.randn(3))])": (
        ["x f32[2]", "y f32[3]"], [], ["mul", "mul_1", "cat"],
    ),
    "(lambda t: t + 1)(torch.randn(2))": (["x f32[2]"], [], ["add"]),
    "x=torch.randn(2); y=torch.randn(3); y*2": (["y f32[3]"], [], ["mul"]),
    "nn.Dropout(0.5)(torch.randn(4))": (["input f32[4]"], [], ["clone"]),
    "nn.LazyLinear(2,bias=False)(torch.randn(4,3))": (["input f32[4,3]"], ["p_weight f32[2,3]"], ["linear"]),
    "nn.Embedding(9,4)(torch.randint(9,(2,3)))": (["input i64[2,3]"], ["p_weight f32[9,4]"], ["embedding"]),
}  # fmt: skip


@pytest.mark.parametrize("code", CASES)
def test_inputs_parameters_and_operations_have_their_names(code: str) -> None:
    graph = load_code(code).graph
    inputs, parameters, nodes = CASES[code]
    assert [f"{i.name} {i.tensor.text}" for i in graph.inputs if i.kind == "user"] == inputs
    assert [f"{i.name} {i.tensor.text}" for i in graph.inputs if i.kind != "user"] == parameters
    assert [n.name for n in graph.nodes] == nodes


@pytest.mark.parametrize("code", CASES)
def test_graph_computes_what_the_code_computes(code: str) -> None:
    program = load_code(code)
    assert program.module is not None
    with torch.no_grad():
        expected = pytree.tree_leaves(program.module(*program.example_inputs))
    found = interpret(program.graph, program.weights, program.example_tensors())
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_tensors_are_the_same_each_time_and_the_callers_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = load_code(RMS), load_code(RMS)
    assert torch.equal(first.example_inputs[0], second.example_inputs[0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nodes_name_the_line_of_the_code() -> None:
    assert load_code(RMS).graph.nodes[0].source.startswith("<code>:1: nn.RMSNorm(2048")
    assert load_code(CUT).graph.nodes[1].source == "<code>:4: (a@b)@c"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x=", "line 1: invalid syntax"),
        ("x=1\ny=(", "line 2"),
        ("", "the code is empty"),
        ("# nothing", "no expression"),
        ("y=3", "no expression: 'y = 3'"),
        ("foo=bar\ntorch.exp(foo)", "line 1: foo=bar"),
        ("x=torch.randn(3)\nfoo(x)", "<code>:2: foo(x)"),
        ("torch.exp", "no tensor goes into"),
        ("nn.Linear(3,2)", "no tensor goes into"),
        ("nn.Linear(3)(torch.randn(3))", "line 1: nn.Linear(3)(torch.randn(3))"),
        ("torch.randn(4,3) @ torch.randn(2,2)", "<code>:1: torch.randn(4,3) @ torch.randn(2,2)"),
        ("x=torch.randn(3)\nraise ValueError('no')\nx", "ValueError: no"),
    ],
)
def test_mistakes_in_the_code_are_usage_errors_with_the_line(code: str, says: str) -> None:
    with pytest.raises(UsageError) as e:
        load_code(code)
    assert says in str(e.value)


def test_result_sizes_that_depend_on_data_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match=r"<code>:1: x=torch.randn\(3\); x.nonzero\(\)"):
        load_code("x=torch.randn(3); x.nonzero()")
