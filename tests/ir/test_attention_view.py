"""Which bodies are attention, and how scores are taken apart."""

from __future__ import annotations

import math

from emmy.ir.build import scalar
from emmy.ir.loop import Body, Out, ax, fold, load, online, size
from emmy.ir.views.attention_view import AttentionView, attention_view
from emmy.ir.views.scores import peel
from tests import bodies as B


def view(body: Body) -> AttentionView:
    found = attention_view(body)
    assert isinstance(found, AttentionView), found
    return found


def extents(axes: tuple[object, ...]) -> list[str]:
    return [a.extent.text for a in axes]  # type: ignore[attr-defined]


def test_heads_are_batch_and_queries_are_rows() -> None:
    v = view(B.attention(2, 3, 3, 20, 30, 16, value_dim=8))
    assert math.prod(int(e) for e in extents(v.batch)) == 6
    assert (extents(v.m), extents(v.c), v.t.extent.text, extents(v.d)) == (["20"], ["8"], "30", ["16"])
    assert len(v.values) == len(v.weights) == 1 and v.half == "bf16"


def test_the_axis_of_a_group_of_heads_belongs_to_the_queries() -> None:
    v = view(B.attention(1, 8, 2, 20, 30, 16))
    assert extents(v.batch) == ["2"] and sorted(extents(v.m)) == ["20", "4"]


def test_a_causal_condition_bounds_the_keys() -> None:
    v = view(B.attention(1, 2, 2, 20, 20, 16, causal=True))
    assert [(axis.extent.text, shift) for _, axis, shift in v.limits] == [("20", 0)]
    assert not view(B.attention(1, 2, 2, 20, 20, 16)).limits


def test_an_additive_mask_is_part_of_the_score() -> None:
    v = view(B.attention(1, 2, 2, 33, 70, 32, mask="add", token_major=True))
    assert not v.limits and len(v.body.slots) == 4


def test_token_major_results_have_the_same_parts() -> None:
    v = view(B.attention(1, 4, 2, 40, 90, 16, causal=True, token_major=True))
    assert sorted(extents(v.m)) == ["2", "40"] and [shift for _, _, shift in v.limits] == [0]


def test_symbolic_lengths_are_queries_and_keys() -> None:
    v = view(B.attention(1, 2, 2, size("s"), size("s"), 16))
    assert extents(v.m) == ["$s"] and v.t.extent.text == "$s"


def test_the_factor_and_conditions_leave_the_score() -> None:
    v = view(B.attention(1, 2, 2, 20, 20, 16, causal=True))
    score = peel(v.score)
    assert (score.factor, score.inner, len(score.conditions)) == (0.25, v.dot, 1)


def test_a_negative_factor_stays() -> None:
    x = load(0, (ax("i", 4),), "f32")
    assert peel(scalar("mul", x, B.f32(-2.0))).factor == 1.0


def test_sums_over_two_scores_decline() -> None:
    i, c, t, d = ax("i", 4), ax("c", 5), ax("t", 6), ax("d", 7)
    s = fold("sum", d, scalar("mul", load(0, (i, d), "f32"), load(1, (t, d), "f32")), "f32")
    top = online(t, s, load(2, (t, c), "f32"), "f32")
    other = online(t, scalar("mul", s, B.f32(2.0)), B.f32(1.0), "f32")
    body = B.body(
        [Out((i, c), (i, c), scalar("div", top, other), B.tensor("f32", 4, 5))],
        [B.tensor("f32", 4, 7), B.tensor("f32", 6, 7), B.tensor("f32", 6, 5)],
    )
    assert attention_view(body) == "online sums over different scores"


def test_a_softmax_without_a_product_declines() -> None:
    i, t = ax("i", 4), ax("t", 6)
    x = load(0, (i, t), "f32")
    body = B.body([Out((i,), (i,), online(t, x, B.f32(1.0)), B.tensor("f32", 4))], [B.tensor("f32", 4, 6)])
    assert attention_view(body) == "the score holds 0 folds over keys, not one"
    assert attention_view(B.linear(4, 4, 4)) == "no online sum"


def test_keys_and_values_of_one_head_axis_share_the_batch() -> None:
    v = view(B.attention(3, 4, 4, 5, 6, 16))
    assert math.prod(int(e) for e in extents(v.batch)) == 12
    assert v.key.value.free >= {v.t}
