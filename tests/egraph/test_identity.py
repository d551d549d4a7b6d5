"""What a body's identity is made of, and how few bodies a repeated model has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from emmy.egraph.model import ModelGraph
from emmy.ir.loop import Load, Op, size
from tests.egraph.build import P


def whole(build: Callable[[P], int], dtype: str = "f32", shape: tuple[object, ...] = (6, 4), **options: object) -> str:
    """Identity of the one launch that computes an element-wise program from its inputs alone."""
    return whole_body(build, dtype, shape, **options).hash


def whole_body(build, dtype="f32", shape=(6, 4), **options):  # type: ignore[no-untyped-def]
    p = P()
    for _ in range(3):
        p.input(*shape, dtype=dtype)
    model = p.saturate(build(p), **options)
    (launch,) = (l for l in model.closed if set(l.operands) <= set(model.inputs) and l.results == model.outputs)
    return launch.body


X, Y, Z = 0, 1, 2


def test_order_of_a_sum_does_not_matter():
    left = whole(lambda p: p.t.bin("add", p.t.bin("add", X, X), Y))
    assert left == whole(lambda p: p.t.bin("add", Y, p.t.bin("add", X, X)))
    assert left != whole(lambda p: p.t.bin("add", p.t.bin("add", X, Y), Z))


def test_names_of_operands_do_not_matter():
    same = {whole(lambda p, a=a, b=b: p.t.bin("sub", p.t.un("exp", a), b)) for a, b in ((X, Y), (Y, X), (Z, X))}
    assert len(same) == 1


def test_equal_operands_are_one_operand():
    assert whole(lambda p: p.t.bin("mul", X, X)) != whole(lambda p: p.t.bin("mul", X, Y))


def test_repeated_product_is_loaded_and_multiplied_once():
    body = whole_body(lambda p: p.t.bin("add", p.t.bin("mul", X, X), p.t.bin("mul", X, X)))
    nodes = body.nodes
    assert sum(isinstance(n, Load) for n in nodes) == 1
    assert [n.name for n in nodes if isinstance(n, Op)] == ["mul", "add"]


def norm(p: P) -> int:
    return p.t.softmax(p.t.bin("add", X, Y), 1)


@pytest.mark.parametrize(
    "other", [{"dtype": "bf16"}, {"shape": (6, 5)}, {"shape": (7, 4)}, {"shape": (size("n"), 4), "sizes": {"n": 6}}]
)
def test_types_and_extents_are_part_of_the_identity(other):
    assert whole(norm) != whole(norm, **other)
    assert whole(norm, **other) == whole(norm, **other)


def test_layout_is_part_of_the_identity():
    assert whole(lambda p: p.t.bin("add", X, Y), shape=(4, 4)) != whole(
        lambda p: p.t.bin("add", X, p.t.permute(Y, (1, 0))), shape=(4, 4)
    )


def test_reshapes_leave_no_trace_in_an_element_wise_body():
    def through_a_view(p: P) -> int:
        shape = p.t.shape(X)
        return p.t.reshape(p.t.un("exp", p.t.reshape(X, (shape[1], shape[0]))), shape)

    assert whole(lambda p: p.t.un("exp", X)) == whole(through_a_view)


# ---- repetition


def layers(n: int) -> ModelGraph:
    """Layers of two residual blocks: a projection of the normed stream, and a gated one, with their own parameters."""
    p = P()
    x = p.input(3, 4, dtype="bf16")
    weights = [(p.param(4, 4, dtype="bf16"), p.param(4, 4, dtype="bf16")) for _ in range(n)]
    for v, w in weights:
        x = p.t.bin("add", x, p.linear(p.t.rms_norm(x, (1,), 1e-6), v))
        x = p.t.bin("add", x, p.t.silu(p.linear(p.t.rms_norm(x, (1,), 1e-6), w)))
    return p.saturate(x)


def test_more_equal_layers_have_no_more_bodies():
    two, three, five = (layers(n) for n in (2, 3, 5))
    assert {b.hash for b in five.bodies()} == {b.hash for b in three.bodies()} == {b.hash for b in two.bodies()}
    assert len({l.body.hash for l in five.launches}) == len({l.body.hash for l in two.launches})


def test_launches_grow_with_the_number_of_layers_and_no_faster():
    two, three, five = (len(layers(n).launches) for n in (2, 3, 5))
    assert five - three == 2 * (three - two)
