"""What Loop IR prints, it reads back."""

import pytest
from hypothesis import given

from emmy.ir.loop import Body, Out, Tensor, ax, const, load, size
from emmy.ir.normal import normalize
from emmy.ir.parse import ParseError, parse_body, parse_expr
from tests.strategies import bodies


@given(bodies())
def test_bodies_and_their_values_read_back(body: Body):
    assert parse_body(body.text) == body
    for out in body.outs:
        assert parse_expr(out.value.text) is out.value
    normal, _ = normalize(body.outs, body.slots)
    assert parse_body(normal.text).hash == normal.hash


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"), 7.0])
def test_float_constants_read_back(value: float):
    e = const(value, "f32")
    assert parse_expr(e.text) is e


@pytest.mark.parametrize(("value", "dtype"), [(-3, "i32"), (255, "u8"), (True, "bool"), (2**62, "i64"), (-1, "i64")])
def test_integer_constants_read_back(value: int, dtype: str):
    e = const(value, dtype)
    assert parse_expr(e.text) is e


def test_symbolic_extents_read_back():
    from emmy.ir.build import iadd

    n = iadd(size("s"), 1)
    i = ax("i", n)
    body = Body((Out((i,), (i,), load(0, (i,), "f32"), Tensor("f32", (n,))),), (Tensor("f32", (n,)),))
    assert parse_body(body.text) == body


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(frob f32 1 2)", "unknown operation 'frob'"),
        ("(add f32 1)", "add takes 2 operands, found 1"),
        ("(fold mean k:3 1)", "unknown fold 'mean'"),
        ("(load 0 f33 [1])", "unknown type 'f33'"),
        ("(load 0 f32 [1", "missing ']'"),
        ("1 2", "text after the end"),
        ("", "ends too early"),
    ],
)
def test_text_that_is_not_loop_ir_says_what_is_wrong(text: str, message: str):
    with pytest.raises(ParseError, match="character") as caught:
        parse_expr(text)
    assert message in str(caught.value)
