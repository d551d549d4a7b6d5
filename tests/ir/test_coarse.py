"""Which values results show in 16 bits only."""

from __future__ import annotations

from emmy.ir.build import cast, scalar
from emmy.ir.loop import Body, Expr, Op, Out, Tensor, ax, const, fold, load, op
from emmy.ir.views.coarse import coarse, coarse_factor, one_plus_tanh

N = 64
I, K = ax("i", N), ax("k", N)


def body(value: Expr, dtype: str) -> Body:
    tensor = Tensor(dtype, (const(N),))
    return Body((Out((I,), (I,), value, tensor),), (tensor,))


def x(dtype: str) -> Expr:
    return cast(load(0, (I,), dtype), "f32")


def names(b: Body) -> set[str]:
    return {n.name for n in coarse(b) if isinstance(n, Op)}


def silu(v: Expr) -> Expr:
    return scalar("mul", v, scalar("sigmoid", v))


def test_a_product_that_is_stored_in_16_bits_is_coarse() -> None:
    assert names(body(cast(silu(x("bf16")), "bf16"), "bf16")) >= {"sigmoid", "mul"}


def test_results_of_32_bits_are_not() -> None:
    assert not names(body(silu(x("f32")), "f32"))


def test_a_sum_shows_every_bit_of_its_terms() -> None:
    one = scalar("sub", scalar("exp", x("f16")), load(0, (I,), "f16"))
    assert "exp" not in names(body(cast(one, "f16"), "f16"))


def test_terms_of_a_sum_over_an_axis_are_not_coarse() -> None:
    term = scalar("exp", cast(load(0, (K,), "bf16"), "f32"))
    assert "exp" not in names(body(cast(fold("sum", K, term), "bf16"), "bf16"))


def test_a_factor_that_is_rounded_to_16_bits_is_coarse_though_its_sum_is_not() -> None:
    value = silu(cast(load(0, (K,), "bf16"), "f32"))
    b = body(cast(fold("sum", K, value), "bf16"), "bf16")
    assert "sigmoid" not in names(b)
    assert "sigmoid" in {n.name for n in coarse_factor(value, "bf16") if isinstance(n, Op)}
    assert not coarse_factor(value, "f32")


def test_the_factor_of_gelu_is_recognized_either_way_round() -> None:
    u = x("bf16")
    t = scalar("tanh", u)
    one = const(1.0, "f32")
    assert one_plus_tanh(op("add", t, one, dtype="f32")) is u and one_plus_tanh(op("add", one, t, dtype="f32")) is u
    assert one_plus_tanh(scalar("add", t, const(2.0, "f32"))) is None
