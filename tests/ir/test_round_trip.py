"""What Torch IR and Tensor IR print parses back to what was printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn import functional as F

import emmy
from emmy.frontend.capture import capture
from emmy.frontend.translate.program import translate
from emmy.frontend.translate.samples import SAMPLES, operands
from emmy.inspect.views import tensor_rows
from emmy.ir.dtype import DTYPES
from emmy.ir.graph import Graph
from emmy.ir.infix import Scope, infix, parse_infix
from emmy.ir.loop import Ax, Tensor, ax, const, load, op, size
from emmy.ir.parse import ParseError
from emmy.ir.parse_graph import parse_torch
from emmy.ir.parse_rows import parse_rows
from emmy.ir.show import show_torch
from emmy.ir.show_tensor import TensorRow, explicit, show_tensor
from emmy.ir.tensor import PRIMITIVES, SIGNATURES, Program, Terms, coordinates
from tests.program_strategies import RandomProgram, programs
from tests.strategies import Arith, arithmetic


def unlocated(graph: Graph) -> Graph:
    """The graph without what its text does not say: where nodes come from."""
    return replace(graph, nodes=tuple(replace(n, source="", module="") for n in graph.nodes))


def program_rows(program: Program) -> list[TensorRow]:
    """The terms of a program that are no inputs, by the names `t0`, `t1` …"""
    terms = program.terms

    def row(k: int) -> TensorRow:
        t = terms[k]
        kinds = SIGNATURES[t.kind]
        plain = "sn" if t.kind in PRIMITIVES else "snh"
        args = tuple(a for a, s in zip(t.args, kinds, strict=True) if s in plain)
        return TensorRow(f"t{k}", t.tensor, t.kind, args, tuple((f"t{x}", terms[x].tensor) for x in t.operands))

    return [row(k) for k, t in enumerate(terms) if t.kind != "Input"]


AXES = (ax("i", 6), ax("j", size("s")))


# ---- index arithmetic


@given(arithmetic(AXES, (size("s"), size("t"))))
@settings(max_examples=300, deadline=None)
def test_index_arithmetic_parses_back_to_the_same_node(tree: Arith) -> None:
    e = tree.expr()
    names: dict[str, Ax] = {a.name: a for a in AXES}
    assert parse_infix(infix(e, {}), Scope(names)) is e


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_keep_their_type(dtype: str) -> None:
    values: tuple[Any, ...] = (True, False) if dtype == "bool" else (0, -3, 7)
    values += (0.5, -1e-30, float("inf"), float("-inf")) if DTYPES[dtype].kind == "float" else ()
    for value in values:
        e = const(value, dtype)
        assert parse_infix(infix(e, {})) is e


def test_brackets_tell_trees_apart() -> None:
    a, b, c = (size(n) for n in "abc")

    def add(x: Any, y: Any) -> Any:
        return op("add", x, y, dtype="i64")

    def mul(x: Any, y: Any) -> Any:
        return op("mul", x, y, dtype="i64")

    trees = [
        add(add(a, b), c),
        add(a, add(b, c)),
        add(a, mul(b, c)),
        mul(add(a, b), c),
        mul(mul(a, b), c),
        add(mul(a, b), c),
    ]
    assert len({infix(e, {}) for e in trees}) == len(trees)
    assert [parse_infix(infix(e, {})) for e in trees] == trees


# ---- Torch IR


class Everything(nn.Module):
    """Parameters, a buffer that is updated, constants, several results of one operation, text, numbers and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 6), nn.LayerNorm(6)
        self.register_buffer("cache", torch.zeros(4, 6))
        self.table = torch.arange(6.0)

    def forward(self, x: torch.Tensor, rows: torch.Tensor, scale: float) -> Any:
        y = F.softmax(self.norm(self.linear(x)) * scale, -1)
        left, right = torch.split(y, 3, -1)
        self.cache.add_(y[:4])
        kept = torch.where(left > right, left, float("-inf")).to(torch.bfloat16)
        sized = torch.full((x.shape[0], 2 * x.shape[0] + 1), True)
        return {
            "kept": kept, "right": right, "sized": sized, "none": None, "number": 3, "x": x,
            "gelu": F.gelu(y + self.table, approximate="tanh"), "rows": y[rows], "added": y.index_add(0, rows, y[rows]),
            "std": y.std(0), "range": torch.arange(x.shape[0]), "flat": torch.cat([left, right], 1).flatten(),
        }  # fmt: skip


def everything() -> Graph:
    sizes = ({0: torch.export.Dim("n", min=5, max=64)}, None, None)
    return capture(Everything(), (torch.randn(7, 8), torch.tensor([1, 2, 0]), 0.5), dynamic_shapes=sizes).graph


def unbounded() -> Graph:
    return capture(torch.exp, (torch.randn(4, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).graph


GRAPHS: dict[str, Callable[[], Graph]] = {
    "everything": everything,
    "unbounded": unbounded,
    "updated input": lambda: capture(lambda x: x.mul_(2).sum(), (torch.randn(3),)).graph,
    "nothing computed": lambda: capture(lambda x: (x, x), (torch.randn(3),)).graph,
    "attention": lambda: (
        capture(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25),
            (torch.randn(1, 2, 4, 8),) * 3,
        ).graph
    ),
    "layer": lambda: emmy.load("openai-community/gpt2", layer=0, seq_len=8).graph,
    "decoding": lambda: emmy.load("TinyLlama/TinyLlama-1.1B-Chat-v1.0", layer=0, cache_len=8).graph,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_torch_ir_parses_back(name: str) -> None:
    graph = GRAPHS[name]()
    text = show_torch(graph)
    assert parse_torch(text) == unlocated(graph)
    assert show_torch(parse_torch(text)) == text


# ---- Tensor IR


def parses_back(rows: list[TensorRow], types: dict[str, Tensor]) -> None:
    text = show_tensor(rows)
    found = parse_rows(text, types)
    assert found == list(explicit(rows))
    assert show_tensor(found) == text


def program_parses_back(program: Program) -> None:
    parses_back(program_rows(program), {f"t{t.id}": t.tensor for t in program.terms if t.kind == "Input"})


@pytest.mark.parametrize("name", GRAPHS)
def test_tensor_ir_of_a_captured_program_parses_back(name: str) -> None:
    program_parses_back(translate(GRAPHS[name]()))


def test_tensor_ir_of_a_chosen_derivation_parses_back() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> Any:
        y = F.rms_norm(x @ w, (8,)) * x.shape[0]
        return y[rows].bfloat16(), torch.linalg.inv(y.T @ y), y.masked_fill(y > 1, 3.0)

    x = (torch.randn(6, 4), torch.randn(4, 8), torch.tensor([1, 0]))
    s = emmy.saturate(function, x, target="sm_90a", check=False, golden="")
    inputs = {f"inputs.{i.name}": i.tensor for i in s.program.graph.inputs}
    results = {r: t for o in s.opaque for r, t in zip(o.results, o.node.results, strict=True)}
    for algebra in (False, True):
        parses_back(tensor_rows(s, algebra), inputs | results)


@given(programs())
@settings(max_examples=60, deadline=None)
def test_tensor_ir_of_random_programs_parses_back(p: RandomProgram) -> None:
    program_parses_back(p.program)


@pytest.mark.parametrize("name", sorted(SAMPLES)[::9])
def test_both_irs_of_an_operation_parse_back(name: str) -> None:
    sample = SAMPLES[name]
    for case in sample.cases:
        graph = capture(sample.fn, operands(case)).graph
        assert parse_torch(show_torch(graph)) == unlocated(graph)
        program_parses_back(translate(graph))


def test_index_operands_are_told_apart_where_one_tensor_is_read_twice() -> None:
    t = Terms()
    x, i = t.input(Tensor("f32", (const(4), const(4)))), t.input(Tensor("i64", (const(3),)))
    (d,) = coordinates((const(3),))
    t.gather(x, (load(1, (d,), "i64"), load(2, (d,), "i64")), [i, i], (const(3),))
    t.gather(x, (load(2, (d,), "i64"), load(1, (d,), "i64")), [i, i], (const(3),))
    program_parses_back(Program(tuple(t.terms), (2, 3), frozenset()))


# ---- what is no text of these


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("exp(inputs.x)", "exp(inputs.x", "expected ','"),
        ("exp(inputs.x)", "exp(inputs.y)", "no operand|text"),
        ("f32[s0,2] =", "f33[s0,2] =", "unknown type 'f33'"),
        ("fn main", "fn man", "expected 'main'"),
        ("Outputs { exp }\n}", "Outputs { exp }", "expected '}'"),
    ],
)
def test_a_mistake_in_torch_ir_is_told_with_its_place(good: str, bad: str, said: str) -> None:
    text = show_torch(unbounded())
    assert good in text
    with pytest.raises(ParseError, match=rf"not Torch IR: .*({said}).* at character \d+"):
        parse_torch(text.replace(good, bad))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("let a: f32[2] = x * y;", "nothing defines 'y'"),
        ("let a: f32[2] = x ^ x;", "expected an operation"),
        ("let a: f32[2] = foo(x);", "no operation 'foo' of 1"),
        ("let a: f32[2] = exp(x, x);", "no operation 'exp' of 2"),
        ("let a: f32[1] = bar(x, axis=-1);", "unknown fold 'bar'"),
        ("let a: f32[2] = emmy::index_map_simple(x, |j| [j]);", "expected '_i'"),
        ("let a: f32[2] = torch::Map(x);", "no torch::Map"),
        ("let a: f32[2] = exp(x)", "expected ';'"),
        ("let a: f32[2] = x as f3;", "unknown type 'f3'"),
    ],
)
def test_a_mistake_in_tensor_ir_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=rf"not Tensor IR: .*{said}.* at character \d+"):
        parse_rows(text, {"x": Tensor("f32", (const(2),))})
