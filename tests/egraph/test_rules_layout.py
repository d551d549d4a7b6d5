"""Algebra, layout, sibling linears and scales that meet a weight."""

from __future__ import annotations

import pytest

from tests.egraph.build import P
from tests.egraph.rules import Case, check_meaning, saturated

# ---- types and index maps


def f32_silu(p: P) -> int:
    return p.t.silu(p.input(3, 4))


def bf16_silu(p: P) -> int:
    return p.t.silu(p.input(3, 4, dtype="bf16"))


def transposed_slice(p: P) -> int:
    x = p.t.permute(p.input(3, 4, 2), (2, 0, 1))
    return p.t.permute(x, (1, 0, 2))


def reshaped_twice(p: P) -> int:
    x = p.input(3, 4)
    return p.t.reshape(p.t.reshape(x, (p.t.shape(x)[1], p.t.shape(x)[0])), p.t.shape(x))


def padded_then_transposed(p: P) -> int:
    from emmy.ir.build import isub
    from emmy.ir.loop import const
    from emmy.ir.tensor import coordinates

    shape = (const(5), const(4))
    d = coordinates(shape)
    return p.t.permute(p.t.map(p.input(3, 4), (isub(d[0], 1), d[1]), shape, 0.0), (1, 0))


def transposed_around_a_cast(p: P) -> int:
    return p.t.permute(p.t.cast(p.t.permute(p.input(3, 4), (1, 0)), "bf16"), (1, 0))


def transposed_twice(p: P) -> int:
    return p.t.un("neg", p.t.permute(p.t.permute(p.input(3, 4), (1, 0)), (1, 0)))


def rotated_twice(p: P) -> int:
    return p.t.permute(p.t.permute(p.input(2, 2, 2), (1, 2, 0)), (1, 2, 0))


def square_transposed(p: P) -> int:
    return p.t.permute(p.input(3, 3), (1, 0))


# ---- siblings and scales


def siblings(p: P) -> tuple[int, int]:
    x, v, w = p.input(3, 4), p.param(2, 4), p.param(5, 4)
    return p.linear(x, v), p.linear(x, w)


def siblings_over_inputs(p: P) -> tuple[int, int]:
    x, v, w = p.input(3, 4), p.input(2, 4), p.input(5, 4)
    return p.linear(x, v), p.linear(x, w)


def products_of_matrices(p: P) -> tuple[int, int]:
    x, v, w = p.input(3, 4), p.param(4, 2), p.param(4, 5)
    return p.matmul(x, v), p.matmul(x, w)


def linears_of_two_inputs(p: P) -> tuple[int, int]:
    x, y, v, w = p.input(3, 4), p.input(3, 4), p.param(2, 4), p.param(5, 4)
    return p.linear(x, v), p.linear(y, w)


def _scaled(p: P, scale: tuple[int, ...], weight: bool = True, parameter: bool = True, left: bool = False) -> int:
    x = p.input(3, 4)
    g = (p.param if parameter else p.input)(*scale)
    w = (p.param if weight else p.input)(2, 4)
    return p.linear(p.t.bin("mul", g, x) if left else p.t.bin("mul", x, g), w)


def scaled_right(p: P) -> int:
    return _scaled(p, (4,))


def scaled_left(p: P) -> int:
    return _scaled(p, (4,), left=True)


def added(p: P) -> int:
    x, g, w = p.input(3, 4), p.param(4), p.param(2, 4)
    return p.linear(p.t.bin("add", x, g), w)


NO_SCALES = (
    lambda p: _scaled(p, (3, 1)),  # over the rows, not the summed axis
    lambda p: _scaled(p, (3, 4)),  # over both
    lambda p: _scaled(p, (4,), parameter=False),
    lambda p: _scaled(p, (4,), weight=False),
    added,
)


def product_of_parameters(p: P) -> int:
    x, v, w = p.input(3, 4), p.param(2, 4), p.param(2, 4)
    return p.linear(x, p.t.bin("mul", v, w))


def product_with_an_input(p: P) -> int:
    x, v, w = p.input(3, 4), p.param(2, 4), p.input(2, 4)
    return p.linear(x, p.t.bin("mul", v, w))


CASES = {
    "as-same": Case(f32_silu, (bf16_silu,)),
    "ask-compose": Case(transposed_slice, (padded_then_transposed, transposed_around_a_cast)),
    "map-map": Case(reshaped_twice, (padded_then_transposed, transposed_around_a_cast)),
    "map-identity": Case(transposed_twice, (rotated_twice, square_transposed)),
    "sibling-linears": Case(siblings, (siblings_over_inputs, products_of_matrices)),
    "unite-sibling-linears": Case(siblings, (linears_of_two_inputs, siblings_over_inputs)),
    "scale-into-weight-right": Case(scaled_right, NO_SCALES),
    "scale-into-weight-left": Case(scaled_left, (scaled_right, *(_left for _left in (
        lambda p: _scaled(p, (3, 1), left=True), lambda p: _scaled(p, (4,), parameter=False, left=True),
        lambda p: _scaled(p, (4,), weight=False, left=True),
    )))),
    "parameter-product": Case(product_of_parameters, (product_with_an_input,)),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires_and_both_sides_are_equal(rule):
    p, model, counts = saturated(CASES[rule].fires)
    assert counts[rule]
    check_meaning(p, model)


@pytest.mark.parametrize(("rule", "near"), [(r, n) for r, c in CASES.items() for n in range(len(c.never))])
def test_rule_leaves_near_misses_alone(rule, near):
    p, model, counts = saturated(CASES[rule].never[near])
    assert not counts[rule]
    check_meaning(p, model)


def test_transposing_twice_is_the_tensor_itself():
    p = P()
    x = p.input(3, 4)
    y = p.t.permute(p.t.permute(x, (1, 0)), (1, 0))
    numbers = p.saturate(y, p.t.un("neg", y), stages="do").numbering.numbers
    assert numbers[x] == numbers[y]


def test_rotating_twice_is_one_index_map_of_the_tensor():
    _, model, _ = saturated(rotated_twice)
    rows = [q for q in model.numbering.prims if q.result == model.outputs[0]]
    assert any(q.operands == (model.inputs[0],) for q in rows)


def test_sibling_linears_are_slices_of_one_wide_product():
    _, model, _ = saturated(siblings)
    made = {q.result: q for q in model.numbering.prims if q.kind == "Map" and q.result in model.outputs}
    wide = [{q.operands[0] for q in model.numbering.prims if q.kind == "Map" and q.result == t} for t in model.outputs]
    assert made.keys() == set(model.outputs)
    assert wide[0] & wide[1]


def test_scale_is_paid_once_when_the_plan_is_built():
    _, model, _ = saturated(scaled_right, stages="dolf")
    assert any(l.results[0] in model.anchors.folded for l in model.closed)
    readers = [l for l in model.closed if l.results == model.outputs and set(l.operands) & model.anchors.folded]
    assert readers
    _, plain, _ = saturated(scaled_right, stages="dolf", held=("scale-into-weight-right",))
    assert not plain.anchors.folded
