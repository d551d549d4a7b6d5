"""Index arithmetic of `emmy.ir.build` against Python's integers."""

from hypothesis import given
from hypothesis import strategies as st

from emmy.ir.build import bounds, iadd, idiv, imod, imul, isub
from emmy.ir.evaluate import integer
from emmy.ir.loop import ax, const, size
from emmy.ir.parse import parse_expr
from tests.strategies import Arith, arithmetic

I, J, K, S = ax("i", 8), ax("j", 12), ax("k", 5), size("s")
SYMBOLIC = ax("p", S)
AXES = (I, J, K, SYMBOLIC)


def points(data: st.DataObject) -> tuple[dict, dict]:
    s = data.draw(st.integers(1, 9), label="s")
    return {a: data.draw(st.integers(0, (a.size or s) - 1), label=a.name) for a in AXES}, {"s": s}


@given(arithmetic(AXES, (S,)), st.data())
def test_built_arithmetic_agrees_with_python(tree: Arith, data: st.DataObject):
    axes, sizes = points(data)
    assert integer(tree.expr(), sizes, axes) == tree.at(axes, sizes)


@given(arithmetic(AXES, (S,)), st.data())
def test_bounds_hold_at_every_point(tree: Arith, data: st.DataObject):
    axes, sizes = points(data)
    low, high = bounds(tree.expr())
    value = tree.at(axes, sizes)
    assert low is None or low <= value
    assert high is None or value <= high


@given(arithmetic(AXES, (S,)))
def test_integer_expressions_read_back(tree: Arith):
    assert parse_expr(tree.expr().text) is tree.expr()


@given(arithmetic(AXES), arithmetic(AXES), arithmetic(AXES))
def test_sums_do_not_depend_on_order(x: Arith, y: Arith, z: Arith):
    a, b, c = x.expr(), y.expr(), z.expr()
    assert iadd(a, iadd(b, c)) is iadd(iadd(c, a), b)
    assert imul(a, iadd(b, c)) is iadd(imul(b, a), imul(c, a))
    assert isub(iadd(a, b), b) is a


def test_division_uses_the_range_of_an_axis():
    flat = iadd(imul(J, 8), I)
    assert idiv(flat, 8) is J
    assert imod(flat, 8) is I
    symbolic = iadd(imul(J, S), SYMBOLIC)
    assert idiv(symbolic, S) is J
    assert imod(symbolic, S) is SYMBOLIC
    assert imod(imod(I, 4), 2) is imod(I, 2)
    assert idiv(idiv(J, 2), 3) is idiv(J, 6)
    assert idiv(I, 8) is const(0)
