import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.errors import InputError, PlanError
from emmy.ir.build import iadd, idiv, imod, imul, isub
from emmy.ir.graph import SizeVar
from emmy.ir.loop import Expr, Tensor, ax, const, load, op, size
from emmy.runtime.sizes import Argument, bind_sizes, count, evaluate, shape

S, T = size("s"), size("t")


def tensor(*extents: Expr | int) -> Tensor:
    return Tensor("f32", tuple(const(e) if isinstance(e, int) else e for e in extents))


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_expressions_are_python_arithmetic(s: int, t: int) -> None:
    sizes = {"s": s, "t": t}
    assert evaluate(iadd(imul(S, T, 3), 5), sizes) == 3 * s * t + 5
    assert evaluate(idiv(isub(iadd(S, 127), T), 128), sizes) == (s + 127 - t) // 128
    assert evaluate(imod(iadd(S, T), 7), sizes) == (s + t) % 7
    assert evaluate(op("max", S, op("min", T, const(9), dtype="i64"), dtype="i64"), sizes) == max(s, min(t, 9))
    assert evaluate(op("where", op("lt", S, T, dtype="bool"), S, const(-1), dtype="i64"), sizes) == (s if s < t else -1)


def test_expression_errors_name_the_part() -> None:
    with pytest.raises(PlanError, match="size 't' has no value"):
        evaluate(iadd(S, T), {"s": 1})
    with pytest.raises(PlanError, match="divides by zero"):
        evaluate(op("floordiv", S, T, dtype="i64"), {"s": 1, "t": 0})
    with pytest.raises(PlanError, match="not an integer expression over sizes"):
        evaluate(ax("i", 4), {})
    with pytest.raises(PlanError, match="not an integer expression over sizes"):
        evaluate(load(0, (), "i64"), {})


def test_shape_and_count() -> None:
    assert shape(tensor(2, imul(S, 3)), {"s": 5}) == (2, 15)
    assert count((2, 15)) == 30
    assert count(()) == 1
    assert count((4, 0)) == 0


SIZES = (SizeVar("s", 1, 64, 8), SizeVar("t", 0, None, 4))


def test_plain_dimensions_bind_in_declared_order() -> None:
    args = [Argument("x", tensor(T, 4), (7, 4)), Argument("y", tensor(2, S), (2, 9))]
    assert list(bind_sizes(args, SIZES).items()) == [("s", 9), ("t", 7)]


@given(st.integers(1, 64), st.integers(0, 100))
def test_linear_dimensions_bind(s: int, t: int) -> None:
    args = [Argument("x", tensor(iadd(imul(S, 3), 1)), (3 * s + 1,)), Argument("y", tensor(iadd(S, T)), (s + t,))]
    assert bind_sizes(args, SIZES) == {"s": s, "t": t}


def test_wrong_dimension_says_which_and_what() -> None:
    with pytest.raises(InputError, match=r"input 'x', dimension 1: expected 4, found 5"):
        bind_sizes([Argument("x", tensor(S, 4), (3, 5))], SIZES[:1])
    with pytest.raises(InputError, match=r"input 'y', dimension 0: expected \$s = 3, found 4"):
        bind_sizes([Argument("x", tensor(S), (3,)), Argument("y", tensor(S), (4,))], SIZES[:1])
    with pytest.raises(InputError, match=r"input 'y', dimension 0: expected .*\$s.* = 6, found 7"):
        bind_sizes([Argument("x", tensor(S), (3,)), Argument("y", tensor(imul(S, 2)), (7,))], SIZES[:1])


def test_wrong_rank_says_which_and_what() -> None:
    with pytest.raises(InputError, match=r"input 'x' has 1 dimensions \[3\], expected 2: f32\[\$s,4\]"):
        bind_sizes([Argument("x", tensor(S, 4), (3,))], SIZES[:1])


def test_size_out_of_bounds_is_refused() -> None:
    with pytest.raises(InputError, match=r"size 's' is 65, the program was exported for 1 \.\. 64"):
        bind_sizes([Argument("x", tensor(S), (65,))], SIZES[:1])


def test_undetermined_size_is_refused() -> None:
    with pytest.raises(InputError, match="no input's shape determines size 't'"):
        bind_sizes([Argument("x", tensor(S), (6,))], SIZES)
    # an indivisible product has no solution
    with pytest.raises(InputError, match="no input's shape determines size 's'"):
        bind_sizes([Argument("x", tensor(imul(S, 2)), (7,))], SIZES[:1])
