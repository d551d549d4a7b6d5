"""Vectors begin at multiples of their size, as the verifier proves by how their indices are computed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.codegen.expr import TID, add, convert, div, i32, mod, mul, select, sub
from emmy.ir.kernel import (
    Assign,
    Bin,
    Buffer,
    Convert,
    Declare,
    For,
    Kernel,
    Layout,
    Let,
    Lit,
    LoadVector,
    Param,
    Place,
    S,
    Select,
    StoreVector,
    Var,
    X,
)
from emmy.ir.loop import const
from emmy.ir.verify.alignment import Divisors, check_alignment
from emmy.ir.verify.facts import KernelError

N = Var("n", "i64")
PARAMS = (Param("x", "bf16", "in"), Param("y", "bf16", "out"), Param("n", "i64", "size"))
ONE = (const(1), const(1), const(1))


def kernel(*body: S, pad: int = 8) -> Kernel:
    tile = Buffer("tile", "bf16", (2, 8, 64), Layout(pad=pad))
    return Kernel("k", "", PARAMS, (tile,), ONE, 32, (Declare("v", "bf16", None, 8), *body))


def stored(index: X, count: int) -> S:
    return StoreVector(Place("global", "y", (index,), "bf16"), "v", i32(0), count)


def proved(*body: S, pad: int = 8) -> bool:
    try:
        check_alignment(kernel(*body, pad=pad))
    except KernelError:
        return False
    return True


@pytest.mark.parametrize(
    ("index", "count"),
    [
        (mul(TID, 8), 8),
        (add(mul(TID, 8), mul(convert(N, "i32"), 16)), 8),
        (mul(div(add(convert(N, "i32"), 1), 2), 2), 2),  # the next even element
        (sub(convert(N, "i32"), mod(convert(N, "i32"), 1)), 1),
        (select(Bin("<", TID, i32(3), "bool"), i32(24), mul(TID, 8)), 8),
        (mod(mul(TID, 8), 64), 8),
        (div(mul(TID, 32), 4), 8),
        (Bin("&", TID, i32(-4), "i32"), 4),
    ],
)
def test_an_index_that_is_a_multiple_by_how_it_is_computed_is_proved(index: X, count: int) -> None:
    assert proved(stored(index, count))
    assert not proved(stored(add(index, 1), max(2, count)))


@pytest.mark.parametrize("index", [TID, convert(N, "i32"), mul(TID, 4), div(mul(TID, 8), 2), add(mul(TID, 8), 4)])
def test_an_index_that_may_be_none_is_refused(index: X) -> None:
    with pytest.raises(KernelError, match="16 bytes of y that may begin at"):
        check_alignment(kernel(stored(index, 8)))


@pytest.mark.parametrize(("step", "fine"), [(8, True), (64, True), (4, False), (1, False)])
def test_a_register_that_is_advanced_stays_a_multiple_of_what_it_is_advanced_by(step: int, fine: bool) -> None:
    at, k = Var("at", "i32"), Var("k", "i32")
    moved = (stored(add(at, mul(k, 8)), 8), Assign(at, add(at, step)))
    body = (Declare("at", "i32", mul(TID, 8)), For(k, i32(0), convert(N, "i32"), i32(1), moved))
    assert proved(*body) == fine


def test_a_register_of_another_type_may_be_any_number() -> None:
    at = Var("at", "u32")
    body = (Declare("at", "u32", Lit(1, "u32")), Assign(at, Bin("+", at, Lit(8, "u32"), "u32")))
    assert not proved(*body, stored(Convert(at, "i32"), 8))


def test_a_register_that_memory_fills_may_be_any_number() -> None:
    fill = LoadVector("found", i32(0), 1, Place("global", "x", (TID,), "bf16"))
    body = (Declare("found", "i32", i32(0), 4), fill, stored(Var("found", "i32"), 8))
    assert proved(*body[:1], stored(Var("found", "i32"), 8)) and not proved(*body)


@pytest.mark.parametrize(("pad", "fine"), [(8, True), (0, True), (4, False), (1, False)])
def test_rows_of_a_shared_buffer_begin_where_its_pad_lets_them(pad: int, fine: bool) -> None:
    row = Place("shared", "tile", (i32(1), TID, i32(8)), "bf16")
    assert proved(LoadVector("v", i32(0), 8, row), pad=pad) == fine


# expressions over an index that is a multiple of 8 (`a`), one of any value (`b`) and literals, none negative
LEAVES = st.one_of(st.integers(0, 70).map(i32), st.sampled_from([Var("a", "i32"), Var("b", "i32")]))


def grown(inner: st.SearchStrategy[X]) -> st.SearchStrategy[X]:
    by = st.sampled_from([1, 2, 3, 4, 8, 12, 16]).map(i32)
    return st.one_of(
        st.builds(lambda x, y: Bin("+", x, y, "i32"), inner, inner),
        st.builds(lambda x, y: Bin("*", x, y, "i32"), inner, by),
        st.builds(lambda op, x, y: Bin(op, x, y, "i32"), st.sampled_from(["/", "%", "&"]), inner, by),
        st.builds(lambda op, x, n: Bin(op, x, i32(n), "i32"), st.sampled_from([">>", "<<"]), inner, st.integers(0, 4)),
        st.builds(lambda x, y: Select(Bin("<", x, y, "bool"), y, x, "i32"), inner, inner),
        st.builds(lambda x: Convert(x, "i64"), inner),
    )


def value(x: X, env: dict[str, int]) -> int:
    if isinstance(x, Lit):
        return int(x.value)
    if isinstance(x, Var):
        return env[x.name]
    if isinstance(x, Convert):
        return value(x.a, env)
    if isinstance(x, Select):
        return value(x.yes if value(x.cond, env) else x.no, env)
    assert isinstance(x, Bin)
    a, b = value(x.a, env), value(x.b, env)
    words = {
        "+": a + b, "*": a * b, "<": int(a < b), "&": a & b, "/": a // max(1, b), "%": a % max(1, b),
        "<<": a << min(b, 9), ">>": a >> min(b, 64),
    }  # fmt: skip
    return words[x.op]


@given(st.recursive(LEAVES, grown, max_leaves=12), st.integers(0, 1000), st.integers(0, 1000))
def test_what_is_said_to_divide_a_value_divides_it(x: X, a: int, b: int) -> None:
    known = Divisors(kernel(Let("a", mul(TID, 8))))
    assert value(x, {"a": 8 * a, "b": b}) % known.of(x) == 0
