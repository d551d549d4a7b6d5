"""The walk itself: fallback and its reasons, errors, pruning, origins, promotion, and programs in core ATen."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from emmy.errors import UnsupportedError
from emmy.frontend import interpret
from emmy.frontend.capture import capture, from_exported
from emmy.frontend.translate import HANDLERS, translate
from emmy.frontend.translate.histogram import op_names
from emmy.frontend.translate.promotion import promote
from emmy.frontend.translate.samples import NOT_TENSORS, SAMPLES
from emmy.frontend.translate.samples import operands as sample_operands
from emmy.ir.graph import Graph
from emmy.ir.torch_types import NAMES, TORCH
from tests.frontend.translate.reference import check_all, compare, operands, run, to_numpy

# Samples that no rule of ours expresses: random numbers, sorting, complex numbers.
NOT_OURS = {"topk", "sort", "rand", "randn", "fft_fftn", "fft_rfft", "fft_irfft", "attr.real"}


def graph_of(fn: object, *args: torch.Tensor) -> Graph:
    return capture(fn, args).graph  # type: ignore[arg-type]


def test_an_operation_without_a_rule_becomes_an_opaque_call_with_its_reason() -> None:
    graph = graph_of(lambda x: (x + 1).sort(dim=0)[1] * 2, torch.randn(4))
    program = translate(graph)
    (call,) = program.opaque
    assert graph.nodes[call.node].op == "aten.sort.default"
    assert call.reason == "sorting"
    assert [program.terms[x].kind for x in call.operands] == ["Bin"]
    assert [program.terms[x].args for x in call.results] == [(1,), (2,)]
    assert [program.terms[x].tensor.dtype for x in call.results] == ["f32", "i64"]


def test_without_fallback_the_error_names_the_op_its_types_and_the_line() -> None:
    graph = graph_of(lambda x: x.topk(2)[0], torch.randn(3, 4))
    with pytest.raises(UnsupportedError) as error:
        translate(graph, fallback=False)
    text = str(error.value)
    assert "aten.topk.default(f32[3,4])" in text
    assert "test_program.py" in text and "x.topk(2)" in text


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: F.dropout(x, 0.5, True), "random"),
        (lambda x: x.double() * 2, "f64"),
        (lambda x: torch.rand(3) + x, "no rule"),
        (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5), "random"),
        (lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True), "statistics"),
        (lambda x: x.argsort(), "sorting"),
    ],
)
def test_cases_that_a_rule_declines_say_why(fn: object, reason: str) -> None:
    calls = translate(graph_of(fn, torch.randn(3, 3))).opaque
    assert calls and all(reason in c.reason for c in calls)


def test_a_held_rule_falls_back() -> None:
    graph = graph_of(lambda x: torch.exp(x), torch.randn(3))
    assert not translate(graph).opaque
    held = {k: v for k, v in HANDLERS.items() if k != "exp"}
    assert [graph.nodes[c.node].op for c in translate(graph, handlers=held).opaque] == ["aten.exp.default"]


def test_what_no_output_needs_is_dropped_and_ids_stay_positions() -> None:
    program = translate(graph_of(lambda x, y: x.max(1)[0], torch.randn(3, 4), torch.randn(2)))
    assert [t.id for t in program.terms] == list(range(len(program.terms)))
    assert "ArgReduce" not in {t.kind for t in program.terms}
    assert [t.args for t in program.terms if t.kind == "Input"] == [(0,), (1,)]


def test_terms_remember_the_node_they_came_from() -> None:
    graph = graph_of(lambda x: torch.exp(x).sum(0), torch.randn(3, 4))
    program = translate(graph)
    origins = {t.kind: graph.nodes[t.origin].op for t in program.terms if t.origin >= 0}
    assert origins["Un"] == "aten.exp.default" and origins["Reduce"] == "aten.sum.dim_IntList"


def test_mutated_inputs_are_outputs() -> None:
    def update(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1:3] = x
        return cache.sum()

    graph = graph_of(update, torch.zeros(4, 2), torch.ones(2, 2))
    program = translate(graph)
    assert [o.mutates for o in graph.outputs] == ["cache", ""]
    assert [program.terms[o].tensor.text for o in program.outputs] == ["f32[4,2]", "f32[]"]


def test_promotion_is_pytorchs() -> None:
    plain = [d for n, d in TORCH.items() if not n.startswith("f8")]
    for a in plain:
        for b in plain:
            assert promote(NAMES[a], NAMES[b]) == NAMES[torch.promote_types(a, b)], (a, b)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.norm = nn.Embedding(7, 8), nn.Conv2d(1, 4, 3, padding=1), nn.LayerNorm(8)
        self.bn, self.attention, self.out = (
            nn.BatchNorm2d(4),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 3),
        )

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.embed(i)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        y = F.max_pool2d(F.relu(self.bn(self.conv(x[:, None]))), (1, 2))
        y = F.interpolate(y, scale_factor=(1.0, 2.0)).mean(1)
        y = F.group_norm(self.norm(x + y).mT, 2).mT
        y = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], is_causal=True)[:, 0]
        return F.log_softmax(self.out(F.gelu(y)), -1).var(-1) + x.std((1, 2))[:, None]


def test_programs_decomposed_to_core_aten_are_ours_too() -> None:
    i = torch.tensor([[1, 2, 3, 4, 5], [0, 6, 2, 2, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        exported = torch.export.export(Small().eval(), (i,), strict=False).run_decompositions()
    captured = from_exported(exported)
    kinds = {n.op.split(".")[1] for n in captured.graph.nodes}
    assert kinds >= {"convolution", "native_layer_norm", "_native_batch_norm_legit_no_training", "native_group_norm"}
    program = translate(captured.graph, fallback=False)
    found = run(program, operands(captured, [i]))
    expected = interpret(captured.graph, captured.weights, [i], torch.float64)
    for f, e, o in zip(found, expected, program.outputs, strict=True):
        compare(f, to_numpy(e), program.terms[o].tensor, "output", 1e-4, 1e-5)


def test_every_surveyed_operation_has_a_sample() -> None:
    names = [op for _, op, _ in op_names()]
    assert len(names) == 176
    assert set(names) == set(SAMPLES) | set(NOT_TENSORS)
    assert not set(SAMPLES) & set(NOT_TENSORS)


@pytest.mark.parametrize("case", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_samples_agree_with_eager(dtype: torch.dtype, case: int) -> None:
    chosen = {k: s for k, s in SAMPLES.items() if k not in NOT_OURS and case < len(s.cases)}
    fns, args = {}, []
    for name, sample in chosen.items():
        given = sample_operands(sample.cases[case], dtype)
        at = slice(len(args), len(args) + len(given))
        fns[name] = lambda *x, f=sample.fn, at=at: f(*x[at])
        args += given
    check_all(fns, *args, rtol=2e-4, atol=2e-5)


def test_samples_that_are_not_ours_are_opaque_or_refused() -> None:
    for name in NOT_OURS:
        try:
            graph = graph_of(SAMPLES[name].fn, *sample_operands(SAMPLES[name].cases[0]))
        except UnsupportedError:
            assert name.startswith(("fft", "attr"))
            continue
        assert translate(graph).opaque, name
