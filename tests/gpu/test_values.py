"""Compiled programs on the GPU against a float64 reference: operations over types and odd shapes, and random rows.

Outputs are poisoned before each run, inputs are fresh in each of two runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.frontend.code import load_code
from emmy.frontend.opaque import run_node
from emmy.frontend.reference import interpret
from emmy.ir.graph import Node
from emmy.ir.plan import KernelLaunch, Plan, kernel_launch
from emmy.ir.target import TARGETS, Target
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module, runs_on
from emmy.runtime.numerics import compare
from emmy.saturation import Options, Saturation, saturate_program

pytestmark = pytest.mark.gpu

# operation -> (code after x, the longest sum as a function of rows and columns, values rounded on the way)
OPERATIONS: dict[str, tuple[str, Callable[[int, int], int], int]] = {
    "rms_norm": ("w=torch.randn({n}, dtype={t})\nF.rms_norm(x, ({n},), w, 1e-6)", lambda m, n: n, 0),
    "layer_norm": ("w, b=torch.randn(2, {n}, dtype={t})\nF.layer_norm(x, ({n},), w, b)", lambda m, n: n, 0),
    "softmax": ("F.softmax(x, -1)", lambda m, n: n, 0),
    "linear": ("w=torch.randn(33, {n}, dtype={t})\nb=torch.randn(33, dtype={t})\nF.linear(x, w, b)", lambda m, n: n, 0),
    "swiglu": ("y=torch.randn({m}, {n}, dtype={t})\nF.silu(x) * y", lambda m, n: 1, 1),
    "gelu": ("F.gelu(x, approximate='tanh')", lambda m, n: 1, 0),
    "sum_rows": ("x.sum(0)", lambda m, n: m, 0),
    "argmax": ("x.argmax(-1)", lambda m, n: 1, 0),
    "cumsum": ("x.cumsum(-1)", lambda m, n: n, 0),
    "add_transposed": ("y=torch.randn({n}, {m}, dtype={t})\nx + y.t()", lambda m, n: 1, 0),
    "embedding": ("i=torch.randint({m}, (2, 5))\nF.embedding(i, x)", lambda m, n: 1, 0),
}
SHAPES = {"f32": ((1, 1), (33, 2304)), "f16": ((7, 5), (33, 77)), "bf16": ((7, 4097),)}
BODIES = {
    "map": "x, y=torch.randn(2, 64, 1024, dtype=torch.bfloat16)\nx + y.exp()",
    "row": "x=torch.randn(33, 2304)\nF.softmax(x, -1)",
    "tile": "x=torch.randn(33, 77)\nw=torch.randn(130, 77)\nF.linear(x, w)",
    "mma": "x=torch.randn(77, 264, dtype=torch.float16)\nw=torch.randn(136, 264, dtype=torch.float16)\nF.linear(x, w)",
    "wgmma": "x=torch.randn(264, 264, dtype=torch.bfloat16)\ny=torch.randn(264, 392, dtype=torch.bfloat16)\nx @ y",
    "wgmma, computed": "x, y=torch.randn(2, 264, 264, dtype=torch.bfloat16)\n"
    "w=torch.randn(136, 264, dtype=torch.bfloat16)\nF.linear(F.silu(x) * y, w)",
    "wgmma, dequantized": "x=torch.randn(72, 272, dtype=torch.bfloat16)\nw=torch.ones(136, 272, dtype=torch.int8)\n"
    "s=torch.randn(136, 1, dtype=torch.bfloat16)\nF.linear(x, w.to(torch.bfloat16) * s)",
    "wgmma, 8 bits": "x, w=(torch.randn(n, 272).to(torch.float8_e4m3fn) for n in (264, 136))\n"
    "a, b=torch.rand(2, 1)\ntorch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)",
    "attention": "q, k, v=torch.randn(3, 1, 4, 96, 64, dtype=torch.bfloat16)\n"
    "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "plain": "x=torch.randn(7, 77)\nF.layer_norm(x, (77,))",
}
TORCH = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}


@pytest.fixture(scope="module")
def card() -> Target:
    capability = torch.cuda.get_device_capability()
    return TARGETS[next(a for a in reversed(TARGETS) if runs_on(a, capability))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


def saturated(code: str, card: Target, folder: Path, place: str = "") -> Saturation:
    options = Options(card, place=place, golden="", database=folder / "none.duckdb")
    return saturate_program(load_code(code), options, cache=CubinCache(folder))


def opaque(node: Node, tensors: list[Tensor], sizes: dict[str, int]) -> tuple[Tensor, ...]:
    return run_node(node, tensors, sizes)


def fresh(example: Tensor, generator: torch.Generator) -> Tensor:
    if example.is_floating_point():
        return torch.randn(example.shape, generator=generator).to("cuda", example.dtype)
    return example.reshape(-1)[torch.randperm(example.numel(), generator=generator)].reshape(example.shape).cuda()


def assert_right(s: Saturation, plan: Plan, folder: Path, terms: int, stores: int) -> None:
    module = Module(plan, s.program.weights, opaque=opaque, poison=True, cache=CubinCache(folder))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        inputs = [fresh(t, generator) for t in s.program.example_tensors()]
        wanted = interpret(s.program.graph, s.program.weights, inputs, torch.float64)
        for found, reference in zip(module(*inputs), wanted, strict=True):
            assert isinstance(found, Tensor) and isinstance(reference, Tensor)
            comparison = compare(found, reference, terms=terms, stores=stores)
            assert comparison.ok, str(comparison)
    module.close()


def grid() -> Sequence[tuple[str, str, int, int]]:
    return [(op, dtype, m, n) for op in OPERATIONS for dtype, shapes in SHAPES.items() for m, n in shapes]


@pytest.mark.parametrize(("op", "dtype", "m", "n"), grid())
def test_operation_is_within_tolerance_of_float64(
    op: str, dtype: str, m: int, n: int, card: Target, folder: Path
) -> None:
    code, terms, stores = OPERATIONS[op]
    lines = f"x=torch.randn({m}, {n}, dtype={TORCH[dtype]})\n" + code.format(m=m, n=n, t=TORCH[dtype])
    s = saturated(lines, card, folder)
    extra = len([l for l in s.plan.launches if isinstance(l, KernelLaunch) and not l.at_build]) - 1
    assert_right(s, s.plan, folder, terms(m, n), stores + max(0, extra))


@pytest.mark.parametrize("name", BODIES)
def test_random_rows_are_within_tolerance_of_float64(name: str, card: Target, folder: Path) -> None:
    family = name.split(",")[0]
    if family == "wgmma" and card.capability != 90:
        pytest.skip("only Hopper multiplies by warpgroups")
    s = saturated(BODIES[name], card, folder, place="fuse")
    legal = [
        (chosen, body, row)
        for chosen in s.launches
        for body in s.selection.forms(chosen.launch)
        for row in s.selection.legal(body)
        if row.family == family
    ]
    assert legal, f"no row of {family}: {[c.priced.scheduled.family for c in s.launches]}"
    for chosen, body, row in random.Random(0).sample(legal, min(4, len(legal))):
        kernel = lower(body, row.family, row.row, card, chosen.name, chosen.operands, chosen.results)
        text = source(kernel)
        launches = tuple(
            kernel_launch(kernel, text, l.operands, l.results, body.hash, row.family, row.row.text, l.at_build)
            if isinstance(l, KernelLaunch) and l.results == chosen.results
            else l
            for l in s.plan.launches
        )
        assert_right(s, replace(s.plan, launches=launches), folder, terms=2304, stores=2)


def test_a_buffer_that_the_model_updates_holds_its_new_value(card: Target, folder: Path) -> None:
    code = (
        "class Counter(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('total', torch.zeros(33))\n"
        "    def forward(self, x):\n"
        "        self.total += x.sum(0)\n"
        "        return x * 2\n"
        "x=torch.randn(7, 33)\nCounter()(x)"
    )
    s = saturated(code, card, folder)
    module = Module(s.plan, s.program.weights, opaque=opaque, poison=True, cache=CubinCache(folder))
    x = torch.randn(7, 33, device="cuda")
    for _ in range(3):
        module(x)
    wanted = 3 * x.to(torch.float64).sum(0)
    assert compare(module.state["total"], wanted, terms=21, stores=3).ok
