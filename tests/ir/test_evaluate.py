"""The evaluator against the same functions written directly in numpy."""

import numpy as np
import pytest

from emmy.ir import evaluate as module
from emmy.ir.build import cast, iadd, imul, scalar
from emmy.ir.evaluate import EvaluationError, evaluate, integer
from emmy.ir.loop import Body, Out, Tensor, ax, const, fold, load, online, op, scan, size

I, J, K, H = ax("i", 3), ax("j", 5), ax("k", 7), ax("h", 2)


def f32(value: float):
    return const(value, "f32")


def tensor(dtype: str, *shape) -> Tensor:
    return Tensor(dtype, tuple(const(n) if isinstance(n, int) else n for n in shape))


def body(value, axes, *slots: Tensor, dtype: str = "f32") -> Body:
    return Body((Out(tuple(axes), tuple(axes), value, Tensor(dtype, tuple(a.extent for a in axes))),), slots)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def product(*xs):
    value = xs[0]
    for x in xs[1:]:
        value = scalar("mul", value, x)
    return value


def test_sum_of_products_is_the_matrix_product():
    b = body(
        fold("sum", K, product(load(0, (I, K), "bf16"), load(1, (J, K), "bf16"))),
        (I, J),
        tensor("bf16", 3, 7),
        tensor("bf16", 5, 7),
    )
    x, w = normal(3, 7), normal(5, 7, seed=1)
    np.testing.assert_allclose(evaluate(b, [x, w])[0], x @ w.T)


def test_batched_product_with_a_factor_of_each_row_and_a_cast_inside():
    row = scalar("rsqrt", load(2, (H, I), "f32"))
    left = cast(product(load(0, (H, I, K), "f32"), row), "bf16")
    b = body(
        fold("sum", K, product(left, load(1, (H, J, K), "f32"))),
        (H, I, J),
        tensor("f32", 2, 3, 7),
        tensor("f32", 2, 5, 7),
        tensor("f32", 2, 3),
    )
    x, w, s = normal(2, 3, 7), normal(2, 5, 7, seed=1), normal(2, 3, seed=2) ** 2
    np.testing.assert_allclose(evaluate(b, [x, w, s])[0], np.einsum("hik,hjk->hij", x / np.sqrt(s)[..., None], w))


def test_sum_over_two_axes_and_over_an_axis_that_only_one_factor_has():
    value = fold("sum", H, fold("sum", K, product(load(0, (I, H, K), "f32"), load(1, (J, K), "f32"))))
    b = body(value, (I, J), tensor("f32", 3, 2, 7), tensor("f32", 5, 7))
    x, w = normal(3, 2, 7), normal(5, 7, seed=1)
    np.testing.assert_allclose(evaluate(b, [x, w])[0], np.einsum("ihk,jk->ij", x, w))


def test_sum_over_an_axis_that_the_body_does_not_read_counts_its_points():
    assert evaluate(body(fold("sum", K, load(0, (I,), "f32")), (I,), tensor("f32", 3)), [np.array([1.0, 2, 3])])[
        0
    ].tolist() == [7, 14, 21]


def test_cutting_into_pieces_changes_no_value(monkeypatch: pytest.MonkeyPatch):
    x, w = load(0, (I, K), "f32"), load(1, (J, K), "f32")
    values = [
        fold("sum", K, scalar("exp", product(x, w))),
        fold("max", K, scalar("sub", x, w)),
        fold("m2", K, product(x, w)),
        online(K, product(x, f32(2.0)), w),
        scalar("add", scan("sum", K, iadd(J, 1), product(x, w)), fold("prod", K, x)),
    ]
    arrays = [normal(3, 7), normal(5, 7, seed=1)]
    for value in values:
        b = body(value, (I, J), tensor("f32", 3, 7), tensor("f32", 5, 7))
        whole = evaluate(b, arrays)[0]
        for limit in (1, 40, 100):
            monkeypatch.setattr(module, "LIMIT", limit)
            np.testing.assert_allclose(evaluate(b, arrays)[0], whole, err_msg=f"{value} {limit}")
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sum", lambda x: x.sum(-1)),
        ("prod", lambda x: x.prod(-1)),
        ("max", lambda x: x.max(-1)),
        ("min", lambda x: x.min(-1)),
        ("m2", lambda x: ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1)),
    ],
)
def test_fold_and_scan_of_each_kind(kind, expected):
    x = normal(3, 7)
    np.testing.assert_allclose(
        evaluate(body(fold(kind, K, load(0, (I, K), "f32")), (I,), tensor("f32", 3, 7)), [x])[0], expected(x)
    )
    c = ax("c", 7)
    got = evaluate(body(scan(kind, K, c, load(0, (I, K), "f32")), (I, c), tensor("f32", 3, 7)), [x])[0]
    np.testing.assert_allclose(got, np.stack([expected(x[:, : n + 1]) for n in range(7)], axis=1), atol=1e-12)


def test_scan_whose_body_also_depends_on_where_it_stops():
    c = ax("c", 7)
    value = scan("sum", K, c, product(load(0, (K,), "f32"), load(0, (c,), "f32")))
    x = normal(7)
    np.testing.assert_allclose(evaluate(body(value, (c,), tensor("f32", 7)), [x])[0], np.cumsum(x) * x)


@pytest.mark.parametrize(
    ("kind", "expected"), [("sum", 0.0), ("prod", 1.0), ("max", -np.inf), ("min", np.inf), ("m2", 0.0)]
)
def test_fold_over_nothing_is_the_identity(kind, expected):
    empty = ax("k", 0)
    assert (
        evaluate(body(fold(kind, empty, load(0, (I, empty), "f32")), (I,), tensor("f32", 3, 0)), [np.empty((3, 0))])[
            0
        ].tolist()
        == [expected] * 3
    )


def test_logical_folds():
    x = np.array([[True, False], [True, True], [False, False]])
    k = ax("k", 2)
    for kind, expected in (("or", x.any(1)), ("and", x.all(1))):
        b = body(fold(kind, k, load(0, (I, k), "bool")), (I,), tensor("bool", 3, 2), dtype="bool")
        np.testing.assert_array_equal(evaluate(b, [x])[0], expected)


def test_online_is_the_softmax_numerator_and_nan_for_a_row_without_a_finite_score():
    q, v = normal(3, 7), normal(7, 5, seed=1)
    q[1, 2], q[2] = -np.inf, -np.inf
    top = online(K, load(0, (I, K), "f32"), load(1, (K, J), "f32"))
    low = online(K, load(0, (I, K), "f32"), f32(1.0))
    got = evaluate(body(scalar("div", top, low), (I, J), tensor("f32", 3, 7), tensor("f32", 7, 5)), [q, v])[0]
    with np.errstate(invalid="ignore"):
        p = np.exp(q - q.max(1, keepdims=True))
        expected = p / p.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(got, expected)
    assert np.isnan(got[2]).all() and not np.isnan(got[:2]).any()


def test_maximum_propagates_nan():
    x = np.array([[1.0, np.nan, 2.0]])
    i, k = ax("i", 1), ax("k", 3)
    assert np.isnan(evaluate(body(fold("max", k, load(0, (i, k), "f32")), (i,), tensor("f32", 1, 3)), [x])[0]).all()
    assert np.isnan(
        evaluate(body(scalar("max", load(0, (i, k), "f32"), f32(9.0)), (i, k), tensor("f32", 1, 3)), [x])[0][0, 1]
    )


def test_where_may_read_out_of_range_in_the_branch_that_is_not_chosen():
    shifted = scalar("where", scalar("lt", J, const(2)), f32(0.0), load(0, (iadd(J, -2),), "f32"))
    x = normal(3)
    np.testing.assert_array_equal(evaluate(body(shifted, (J,), tensor("f32", 3)), [x])[0], [0, 0, *x])


def test_where_over_an_empty_operand_takes_the_other_branch():
    value = scalar("where", scalar("lt", J, const(9)), f32(4.0), load(0, (J,), "f32"))
    raw = op("where", op("lt", J, const(9), dtype="bool"), f32(4.0), load(0, (J,), "f32"), dtype="f32")
    for v in (value, raw):
        assert evaluate(body(v, (J,), tensor("f32", 0)), [np.empty(0)])[0].tolist() == [4.0] * 5


def test_gather_reads_where_the_index_operand_says():
    table, ids = normal(4, 7), np.array([3, 0, 3])
    b = body(load(0, (load(1, (I,), "i64"), K), "f32"), (I, K), tensor("f32", 4, 7), tensor("i64", 3))
    np.testing.assert_array_equal(evaluate(b, [table, ids])[0], table[ids])


def test_integers_wrap_in_their_own_width():
    x = np.array([120, -128, 5], dtype=np.int8)
    twice = scalar("add", load(0, (I,), "i8"), load(0, (I,), "i8"))
    got = evaluate(body(twice, (I,), tensor("i8", 3), dtype="i8"), [x])[0]
    assert got.dtype == np.int8 and got.tolist() == [-16, 0, 10]
    total = evaluate(
        body(fold("sum", I, load(0, (I,), "u8")), (), tensor("u8", 3), dtype="u8"), [np.array([200, 100, 0], np.uint8)]
    )[0]
    assert total.dtype == np.uint8 and int(total) == 44


def test_a_float_becomes_an_integer_towards_zero_and_a_bool_by_being_nonzero():
    x = np.array([-1.9, 0.4, np.nan])
    assert evaluate(body(cast(load(0, (I,), "f32"), "i32"), (I,), tensor("f32", 3), dtype="i32"), [x])[0][
        :2
    ].tolist() == [-1, 0]
    assert evaluate(body(cast(load(0, (I,), "f32"), "bool"), (I,), tensor("f32", 3), dtype="bool"), [x])[
        0
    ].tolist() == [True, True, True]


def test_rounding_happens_at_casts_and_stores_only_when_asked():
    x = np.array([1 + 2.0**-9, 1 + 2.0**-20, 1.0])
    value = scalar("sub", cast(load(0, (I,), "f32"), "bf16"), f32(1.0))
    b = body(value, (I,), tensor("f32", 3))
    np.testing.assert_array_equal(evaluate(b, [x])[0], x - 1)
    np.testing.assert_array_equal(evaluate(b, [x], rounding=True)[0], [0, 0, 0])
    stored = body(load(0, (I,), "f32"), (I,), tensor("f32", 3), dtype="f8e4m3")
    np.testing.assert_array_equal(
        evaluate(stored, [np.array([1.06, 300.0, -448.0])], rounding=True)[0], [1.0, 288.0, -448.0]
    )


def test_an_axis_bound_again_inside_its_own_fold_runs_over_everything(monkeypatch: pytest.MonkeyPatch):
    inner = fold("sum", I, load(0, (I,), "f32"))
    b = body(scalar("div", load(0, (I,), "f32"), inner), (I,), tensor("f32", 3))
    x = np.array([1.0, 2.0, 5.0])
    for limit in (1, 1000):
        monkeypatch.setattr(module, "LIMIT", limit)
        np.testing.assert_allclose(evaluate(b, [x])[0], x / 8)


def test_symbolic_sizes_come_from_the_shapes_or_from_the_caller():
    n = size("s")
    i = ax("i", n)
    b = body(fold("sum", i, scalar("mul", load(0, (i,), "f32"), cast(n, "f32"))), (), Tensor("f32", (n,)))
    assert evaluate(b, [np.ones(4)])[0] == 16.0
    assert evaluate(b, [np.ones(5)], {"s": 5})[0] == 25.0
    with pytest.raises(EvaluationError, match="operand 0"):
        evaluate(b, [np.ones(4)], {"s": 5})
    out = Body((Out((i,), (i,), f32(1.0), Tensor("f32", (n,))),), ())
    with pytest.raises(EvaluationError, match=r"\$s is not bound"):
        evaluate(out, [])


def test_a_store_goes_where_its_index_says_and_leaves_the_rest_poisoned():
    out = Out((I, H), (iadd(imul(I, 2), H),), load(0, (H, I), "f32"), tensor("f32", 7))
    x = normal(2, 3)
    got = evaluate(Body((out,), (tensor("f32", 2, 3),)), [x])[0]
    np.testing.assert_array_equal(got[:6], x.T.reshape(-1))
    assert np.isnan(got[6])


def test_integer_evaluates_launch_arithmetic():
    assert integer(iadd(imul(size("s"), 3), I), {"s": 4}, {I: 2}) == 14
