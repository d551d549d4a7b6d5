"""Decomposition: each operation of PyTorch equals its primitives, and its relatives do not trigger its rule."""

from __future__ import annotations

import pytest

from tests.egraph.build import P
from tests.egraph.rules import Case, check_meaning, saturated


def rms_norm(p: P) -> int:
    return p.t.rms_norm(p.input(3, 4, dtype="bf16"), (1,), 0.25)


def layer_norm(p: P) -> int:
    return p.t.layer_norm(p.input(3, 4, dtype="bf16"), (1,), 0.25)


def softmax(p: P) -> int:
    return p.t.softmax(p.input(3, 4, dtype="bf16"), 0)


def log_softmax(p: P) -> int:
    return p.t.softmax(p.input(3, 4), 1, "LogSoftmax")


def safe_softmax(p: P) -> int:
    """One row is masked whole."""
    x = p.input(3, 4)
    mask = p.t.iota(_row_is_not_one(p, x), p.t.shape(x), "bool")
    return p.t.softmax(p.t.where(mask, x, p.t.full(float("-inf"), dtype="f32")), 1, "SafeSoftmax")


def _row_is_not_one(p: P, x: int):  # type: ignore[no-untyped-def]
    from emmy.ir.loop import const, op
    from emmy.ir.tensor import coordinates

    return op("ne", coordinates(p.t.shape(x))[0], const(1), dtype="bool")


def linear(p: P) -> int:
    return p.linear(p.input(3, 4, dtype="bf16"), p.input(2, 4, dtype="bf16"))


def linear_of_integers(p: P) -> int:
    return p.linear(p.input(3, 4, dtype="i64"), p.input(2, 4, dtype="i64"))


def gelu(p: P) -> int:
    return p.t.gelu(p.input(3, 4, dtype="bf16"), "none")


def gelu_tanh(p: P) -> int:
    return p.t.gelu(p.input(3, 4), "tanh")


def silu(p: P) -> int:
    return p.t.silu(p.input(3, 4, dtype="f16"))


def sigmoid(p: P) -> int:
    return p.t.un("sigmoid", p.input(3, 4, dtype="f16"))


def mean(p: P) -> int:
    return p.t.mean(p.input(3, 4, 2), (0, 2), True)


def var(p: P) -> int:
    return p.t.var(p.input(3, 4), (1,), 1.0, False)


def total(p: P) -> int:
    return p.t.reduce("sum", p.input(3, 4), (1,), True)


def arg_max(p: P) -> int:
    return p.t.arg_reduce("max", p.input(3, 4), 1, True)


def arg_min_of_integers(p: P) -> int:
    return p.t.arg_reduce("min", p.input(3, 4, dtype="i64"), 0, True)


def largest(p: P) -> int:
    return p.t.reduce("max", p.input(3, 4), (1,), True)


def _qkv(p: P) -> tuple[int, int, int]:
    """Four query heads over two key heads."""
    return p.input(4, 3, 2, dtype="f16"), p.input(2, 3, 2, dtype="f16"), p.input(2, 3, 5, dtype="f16")


def attention(p: P) -> int:
    return p.t.sdpa(*_qkv(p), None, False, 0.5)


def attention_causal(p: P) -> int:
    return p.t.sdpa(*_qkv(p), None, True, 0.5)


def attention_masked(p: P) -> int:
    q, k, v = _qkv(p)
    return p.t.sdpa(q, k, v, p.input(3, 3, dtype="bool"), False, 0.5)


def attention_biased(p: P) -> int:
    q, k, v = _qkv(p)
    return p.t.sdpa(q, k, v, p.input(4, 3, 3, dtype="f16"), False, 0.5)


CASES = {
    "decompose-rms-norm": Case(rms_norm, (layer_norm,)),
    "decompose-layer-norm": Case(layer_norm, (rms_norm,)),
    "decompose-softmax": Case(softmax, (log_softmax, safe_softmax)),
    "decompose-log-softmax": Case(log_softmax, (softmax, safe_softmax)),
    "decompose-safe-softmax": Case(safe_softmax, (softmax, log_softmax)),
    "decompose-contract": Case(linear, (linear_of_integers,)),
    "decompose-contract-int": Case(linear_of_integers, (linear,)),
    "decompose-gelu": Case(gelu, (gelu_tanh, silu)),
    "decompose-gelu-tanh": Case(gelu_tanh, (gelu,)),
    "decompose-silu": Case(silu, (sigmoid, gelu)),
    "decompose-mean": Case(mean, (total, var)),
    "decompose-var": Case(var, (mean,)),
    "decompose-arg-reduce": Case(arg_max, (arg_min_of_integers, largest)),
    "decompose-arg-reduce-int": Case(arg_min_of_integers, (arg_max,)),
    "decompose-sdpa": Case(attention, (attention_causal, attention_masked, attention_biased)),
    "decompose-sdpa-causal": Case(attention_causal, (attention, attention_masked)),
    "decompose-sdpa-bool": Case(attention_masked, (attention, attention_biased)),
    "decompose-sdpa-additive": Case(attention_biased, (attention_causal, attention_masked)),
}


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires_and_both_sides_are_equal(rule):
    p, model, counts = saturated(CASES[rule].fires)
    assert counts[rule]
    assert rule in model.numbering.rules.values()
    check_meaning(p, model)


@pytest.mark.parametrize(("rule", "near"), [(r, n) for r, c in CASES.items() for n in range(len(c.never))])
def test_rule_leaves_its_relatives_alone(rule, near):
    _, model, counts = saturated(CASES[rule].never[near])
    assert not counts[rule]
    assert rule not in model.numbering.rules.values()
