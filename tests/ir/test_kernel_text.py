"""What Kernel IR prints, it reads back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings

from emmy.codegen.lower import FAMILIES, lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.kernel import (
    Assign,
    Bin,
    Builtin,
    Call,
    Convert,
    Declare,
    For,
    Kernel,
    Let,
    Lit,
    Param,
    S,
    Un,
    Var,
    X,
    walk,
)
from emmy.ir.loop import Body, const, size
from emmy.ir.parse import ParseError
from emmy.ir.parse_kernel import parse_kernel
from emmy.ir.show_kernel import show_kernel
from emmy.ir.target import allowing, target
from tests import bodies as B
from tests.codegen import small as K
from tests.codegen.hopper_fixture import hopper_gemm
from tests.codegen.statements import CASES, FLOAT, VALUES, V
from tests.kernel_strategies import kernels

RULESETS = Path(__file__).parents[2] / "rulesets"
ONE = const(1)
SIZE = size("s")


def parses_back(kernel: Kernel) -> None:
    text = show_kernel(kernel)
    assert parse_kernel(text) == kernel, text
    assert show_kernel(parse_kernel(text)) == text


def kernel(*body: S, **options: object) -> Kernel:
    params = (Param("x", "f32", "in"), Param("n", "i64", "size"))
    return replace(Kernel("k", "", params, (), (ONE, ONE, ONE), 128, body), **options)  # type: ignore[arg-type]


def lines(k: Kernel) -> list[str]:
    """The text of the body."""
    return dedent(show_kernel(k).split("size n\n")[1]).splitlines()


# ---- what is printed


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_statement_parses_back(name: str) -> None:
    parses_back(CASES[name].kernel())


def test_the_cases_have_every_kind_of_statement() -> None:
    found = {type(s) for c in CASES.values() for s in walk(c.kernel().body)}
    assert found == set(get_args(S))


@pytest.mark.parametrize("name", VALUES)
def test_values_parse_back(name: str) -> None:
    value = VALUES[name][0]
    parses_back(kernel(Let("tid", Builtin("tid")), V, Declare("u", "u32"), Let("e", value)))


OPTIONS: dict[str, dict[str, object]] = {
    "two groups": {},
    "one group": {"groups": 1, "stages": 3, "blocks": 2},
    "direct": {"store": "direct"},
    "narrow": {"tile_n": 64, "stages": 8},
    "pairs": {"tile_n": 256, "cluster": 2, "blocks": 66},
    "early": {"tile_n": 256, "blocks": 132, "dependent": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_kernels_of_roles_rings_and_tensor_maps_parse_back(name: str) -> None:
    parses_back(hopper_gemm(500, 504, 200, **OPTIONS[name]))  # type: ignore[arg-type]


BODIES: dict[str, tuple[Body, Mapping[str, int]]] = {
    "rms norm": (K.rms_norm(5, 2304), {}),
    "residual and rms norm": (K.add_rms_norm(5, 512), {}),
    "softmax, length by name": (K.softmax(3, SIZE), {"s": 515}),
    "softmax, one pass in vectors": (K.softmax(5, 1536, "bf16", twisted=True), {}),
    "layer norm": (K.layer_norm(6, 768, "f16"), {}),
    "column sums": (K.column_sum(33, 64, "bf16"), {}),
    "integers and booleans": (K.integer_folds(9, 70), {}),
    "cumulative sum": (K.cumulative(3, 1500), {}),
    "cumulative product": (K.cumulative(2, 20, "prod"), {}),
    "bias and gelu": (K.bias_gelu(SIZE, 64), {"s": 17}),
    "rotary": (K.rotary(6, 3, 64), {}),
    "embedding": (K.embedding(11, 50, 48), {}),
    "transpose": (K.added_transpose(40, 136, "bf16"), {}),
    "positions": (K.positions(9, 7), {}),
    "linear": (B.linear(SIZE, 96, 128), {"s": 37}),
    "linear on an H100": (B.linear(256, 512, 256), {}),
    "linear with all": (B.linear(40, 96, 72, bias=True, batch=3, trans_b=False, act=True), {}),
    "rms norm and linear": (B.rms_linear(70, 96, 128, factored=False), {}),
    "dequantized": (B.dequant(8, 16, 40), {}),
    "guarded halves": (B.rotated(40, 24, 64), {}),
    "linear of f32": (B.linear(40, 24, 65, "f32"), {}),
    "aligned linear of f32": (B.linear(40, 24, 68, "f32"), {}),
    "scaled linear of f32": (B.prologue(40, 24, 68, "row", "f32"), {}),
    "attention": (B.attention(1, 4, 2, 40, 40, 24, causal=True), {}),
    "attention by name": (B.attention(1, 2, 1, SIZE, SIZE, 16, mask="add"), {"s": 77}),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", BODIES)
def test_kernels_of_sampled_rows_parse_back(name: str, arch: str) -> None:
    body, sizes = BODIES[name]
    card = allowing(target(arch), "tf32")
    rng = random.Random(f"{name} {arch}")
    found = schedule_rows([body], card, sizes, RULESETS).rows[body.hash]
    for family in sorted({s.family for s in found}):
        of = [s for s in found if s.family == family]
        for s in rng.sample(of, min(2, len(of))):
            parses_back(lower(body, family, s.row, card, "k_test"))


def test_the_sampled_bodies_have_every_family() -> None:
    card = allowing(target("sm_90a"), "tf32")
    found = {s.family for b, sizes in BODIES.values() for s in schedule_rows([b], card, sizes, RULESETS).rows[b.hash]}
    assert found == set(FAMILIES)


@given(kernels())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_kernels_parse_back(k: Kernel) -> None:
    parses_back(k)


# ---- types


def test_types_that_follow_stay_unprinted() -> None:
    i, n = Var("i", "i64"), Var("n", "i64")
    step = Bin("+", FLOAT, Lit(2.0, "f32"), "f32")
    k = kernel(V, For(i, Lit(0, "i64"), Bin("*", n, Lit(2, "i64"), "i64"), Lit(1, "i64"), (Assign(FLOAT, step),)))
    assert lines(k) == ["f32 v = 1.5", "for i64 i in 0..(n * 2)", "    v = v + 2"]
    parses_back(k)


VALUE_TEXTS: list[tuple[X, str]] = [
    (Lit(3, "i32"), "3"),
    (Lit(3, "i64"), "3_i64"),
    (Lit(3.0, "f32"), "3.0"),
    (Lit(0.1, "f64"), "0.1_f64"),
    (Lit(-0.0, "f32"), "-0.0"),
    (Lit(float("-inf"), "f32"), "-inf"),
    (Lit(True, "bool"), "true"),
    (Bin("+", Var("n", "i64"), Lit(1, "i32"), "i64"), "n + 1_i32"),
    (Bin("+", Var("n", "i64"), Lit(1, "i64"), "i32"), "(n + 1)_i32"),
    (Bin("-", Lit(1, "i32"), Lit(-1, "i32"), "i32"), "1 - -1"),
    (Un("-", Lit(1, "i32"), "i32"), "-(1)"),
    (Un("-", Un("-", FLOAT, "f32"), "f32"), "--v"),
    (Call("max", (FLOAT, Lit(0.0, "f32")), "f32"), "max(v, 0)"),
    (Call("max", (FLOAT, FLOAT), "f16"), "max(v, v)_f16"),
    (Convert(Lit(2.0, "f32"), "bf16"), "bf16(2.0)"),
]


@pytest.mark.parametrize(("value", "text"), VALUE_TEXTS, ids=[t for _, t in VALUE_TEXTS])
def test_types_that_do_not_follow_are_printed(value: X, text: str) -> None:
    k = kernel(V, Let("a", value))
    assert lines(k)[1] == f"a = {text}"
    parses_back(k)


def test_literals_that_are_read_are_the_same_number() -> None:
    for value in (float("nan"), -0.0, 1e-45, 3.4e38, 1e300):
        (made,) = parse_kernel(show_kernel(kernel(Let("a", Lit(value, "f64"))))).body
        assert isinstance(made, Let) and isinstance(made.value, Lit) and repr(made.value.value) == repr(value)


def test_nan_equals_itself_in_literals_only() -> None:
    assert Lit(float("nan"), "f32") == Lit(float("nan"), "f32") != Lit(float("nan"), "f64")
    assert len({Lit(float("nan"), "f32"), Lit(float("nan"), "f32")}) == 1
    assert Lit(float("nan"), "f32") != Lit(0.0, "f32")


def test_assignments_tell_operators_from_words() -> None:
    v = FLOAT
    k = kernel(V, *(Assign(v, x) for x in (Bin("+", v, v, "f32"), Bin("-", v, v, "f32"), Call("add", (v, v), "f32"))))
    assert lines(k)[1:] == ["v = v + v", "v -= v", "v += v"]
    parses_back(k)


def test_the_number_of_the_thread_is_told_from_a_register_of_its_name() -> None:
    tid = Builtin("tid")
    assert lines(kernel(Let("a", tid))) == ["a = tid"]
    k = kernel(Let("tid", tid), Let("a", Bin("+", Var("tid", "i32"), tid, "i32")))
    assert lines(k) == ["tid = thread.x", "a = tid + thread.x"]
    parses_back(k)
    parses_back(kernel(Let("a", tid), params=(Param("tid", "i64", "size"),)))


def test_roles_end_with_the_last_warp_of_the_block() -> None:
    (roles,) = CASES["one role"].body
    k = kernel(roles, roles)
    assert len(parse_kernel(show_kernel(k)).body) == 2
    parses_back(k)


# ---- text that people write


def test_indented_text_and_empty_lines_are_read() -> None:
    k = CASES["if"].kernel()
    text = show_kernel(k)
    assert parse_kernel(indent(text, "    ").replace("\n", "\n\n")) == k


def test_the_bytes_of_shared_memory_may_be_left_out() -> None:
    k = CASES["load shared"].kernel()
    assert parse_kernel(show_kernel(k).replace("  smem=8192", "")) == k


def test_the_page_shows_text_that_is_printed() -> None:
    page = (RULESETS.parent / "docs" / "kernel-ir.md").read_text()
    (text,) = (block for block in page.split("```\n") if block.startswith("kernel k_rms_norm"))
    assert show_kernel(parse_kernel(text)) == text.rstrip()


TEXT = """\
kernel k  grid=(1, 1, 1)  threads=128  smem=160
    // comment
    in f32 x
    out f32 y
    smem f32 s[32]
    ring ab of 2  full=1  empty=1
    map f32 m[64, 32] of x  strides (32, 1)  box (8, 32)
    a = 1
    f32 acc[4] = 0
    for i in 0..4
        acc[i] = 0.5
    y[tid] = acc[0]
"""


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("kernel k", "k", "expected 'kernel', found 'k' in line 1, column 1"),
        ("(1, 1, 1)", "(1, 1)", "a grid .* of three numbers"),
        ("threads=128", "threads=many", "expected a whole number, found 'many' in line 1"),
        ("smem=160", "smem=64", "expected smem=160, which its buffers and rings take, found smem=64"),
        ("in f32 x", "in f33 x", "expected a type, found 'f33' in line 3, column 8"),
        ("out f32 y", "out f32 x", "x is declared twice in line 4"),
        ("f32 s[32]", "f32 s[32", "expected ',', found the end of the line in line 5"),
        ("full=1", "full", "expected '=', found 'empty' in line 6"),
        ("of x", "of z", "expected a parameter of the kernel, found 'z' in line 7"),
        ("a = 1", "a = 1_f33", "expected a type behind the number, found 'f33' in line 8"),
        ("a = 1", "a = 1 + 2 + 3", "brackets around one of two operations, found '[+]' in line 8, column 15"),
        ("a = 1", "a = b", "there is no register 'b' here in line 8, column 9"),
        ("a = 1", "a = x[0]", "x is memory, which only a load reads in line 8"),
        ("a = 1", "a = frob(1)", "there is no word 'frob' in line 8"),
        ("a = 1", "a = max(1)", "max takes 2 operands, found 1 in line 8"),
        ("a = 1", "a =", "expected a value, found the end of the line in line 8, column 8"),
        ("a = 1", "a = load x[0] then", "expected the end of the line, found 'then' in line 8"),
        ("a = 1", "jump there", "expected a statement, found 'jump' in line 8, column 5"),
        ("a = 1", "wait p full", "expected a cursor of the kernel, found 'p' in line 8"),
        ("a = 1", "mma.m1.f32 (a) = (a) * (a) + (a)", "there is no mma.m1.f32 in line 8"),
        ("a = 1", "a = 1\n    a = 2", "a is not declared as a register that is assigned again in line 9"),
        ("0.5", "true ? 1", "expected ':', found the end of the line in line 11"),
        ("        acc[i]", "      acc[i]", "blocks indented by 4 columns, found 6 in line 11"),
        ("    a = 1", "        a = 1", "at most 4 columns of indentation, found more in line 8"),
        ("    y[tid]", "y[tid]", "a line that belongs to none of its blocks in line 12"),
    ],
)  # fmt: skip
def test_text_that_is_not_kernel_ir_says_what_is_wrong(good: str, bad: str, said: str) -> None:
    assert good in TEXT
    with pytest.raises(ParseError, match=said):
        parse_kernel(TEXT.replace(good, bad, 1))


def test_no_text_is_no_kernel() -> None:
    with pytest.raises(ParseError, match="there is no text"):
        parse_kernel(" \n")


def test_the_text_that_the_errors_are_made_of_is_right() -> None:
    k = parse_kernel(TEXT)
    assert show_kernel(k) == TEXT.rstrip()
    assert k.maps[0].box == (8, 32) and k.comment == "comment"
