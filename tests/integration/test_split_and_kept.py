"""Launches that the cost model may or may not choose: partial results with a finishing launch, several results at once.

Each program is compiled from launches of the wanted kind wherever there are some, so that the kind runs whatever it is
thought to cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.frontend.code import load_code
from emmy.ir.counts import contractions, reductions
from tests.integration.machine import Compiled, Machine, launches_where


def linear(rows: int, inner: int, columns: int, dtype: str, call: str) -> str:
    """A program with a linear layer `l`, its operand `x` and a residual `r`."""
    return (
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.l, self.m = (nn.Linear({inner}, {columns}, dtype=torch.{dtype}) for _ in range(2))\n"
        "    def forward(self, x, r):\n"
        f"        {call}\n"
        f"x=torch.randn({rows}, {inner}, dtype=torch.{dtype})\n"
        f"r=torch.randn({rows}, {columns}, dtype=torch.{dtype})\n"
        "M()(x, r)"
    )


def function(body: str, shape: str, dtype: str) -> str:
    return f"def f(x, r):\n    {body}\nx, r=torch.randn(2, {shape}, dtype=torch.{dtype})\nf(x, r)"


SPLIT = {
    "sums of few rows": "x=torch.randn(3, 1 << 18)\nx.exp().sum(-1)",
    "mean over all": "x=torch.randn(33, 3, 4096)\n(x * x).mean()",
    "maxima of bf16": "x=torch.randn(2, 5, 1 << 15, dtype=torch.bfloat16)\nx.amax(-1, keepdim=True)",
    "softmax of long rows": "x=torch.randn(2, 1 << 17)\ntorch.softmax(x, -1)",
    "linear of one row": linear(1, 8192, 96, "bfloat16", "return self.l(F.silu(x)) + r"),
    "linear of some rows": linear(16, 4096, 264, "float16", "return F.gelu(self.l(x), approximate='tanh') * r"),
    "linear in f32": linear(2, 4096, 130, "float32", "return self.l(x) - r"),
}
SEVERAL = {
    "sum and maximum": "x=torch.randn(600, 1024)\nx.sum(-1), x.amax(-1)",
    "cosine and sine": "x=torch.randn(500, 1)\nf=torch.randn(1, 77)\n(x * f).cos(), (x * f).sin()",
    "norm with its residual": function("h = x + r; return h, F.rms_norm(h, (1000,))", "65, 1000", "bfloat16"),
    "norm that others read": function("h = F.layer_norm(x + r, (72,)); return h, h.sigmoid() * r", "33, 72", "float32"),
    "linear that others read": linear(33, 256, 136, "bfloat16", "h = self.l(x); return h, F.silu(h) * r"),
    "two linears of one operand": linear(40, 256, 128, "float16", "a = self.l(x); return a, F.silu(a) * self.m(x)"),
}  # fmt: skip


def split(model: ModelGraph, launch: Launch) -> bool:
    """What makes or reads partial results; and what reduces nothing."""
    reduces = contractions(launch.body) + reductions(launch.body)
    return not reduces or bool(model.anchors.partial & {*launch.results, *launch.operands})


def several(model: ModelGraph, launch: Launch) -> bool:
    """What makes several tensors; and the only way to make one."""
    together = {t for l in model.closed if len(l.results) > 1 for t in l.results}
    return len(launch.results) > 1 or not together & set(launch.results)


KINDS = [(kind, name) for kind, programs in ((split, SPLIT), (several, SEVERAL)) for name in programs]


@pytest.fixture(scope="module", params=KINDS, ids=lambda k: k[1])
def compiled(machine: Machine, request: pytest.FixtureRequest) -> Compiled:
    kind, name = request.param
    with launches_where(kind):
        made = machine.compile(load_code((SPLIT | SEVERAL)[name]))
    assert any(wanted(kind, made))  # else another kind would be tested
    return made


def wanted(kind: object, c: Compiled) -> Iterator[Launch]:
    """The launches of the plan that are of the kind."""
    partial = c.saturation.model.anchors.partial
    for l in (chosen.launch for chosen in c.saturation.launches):
        if partial & set(l.operands) if kind is split else len(l.results) > 1:
            yield l


def test_results_are_within_tolerance_of_float64(compiled: Compiled, machine: Machine) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        examples = compiled.saturation.program.example_tensors()
        inputs = [torch.randn(t.shape, generator=generator).to(machine.device, t.dtype) for t in examples]
        exact = compiled.exact(inputs)
        compiled.assert_right(compiled.run(inputs), exact)
