"""mma.sync and wgmma compute products of integers exactly, whatever the types, majors and places of their operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emmy.codegen.expr import TID, Code, Names, add, div, elem, i32, mod, mul, shared_at
from emmy.codegen.simulate import simulate
from emmy.codegen.simulate.numbers import RAW
from emmy.ir.kernel import (
    WGMMA_K,
    Barrier,
    Buffer,
    Call,
    Convert,
    Elem,
    Kernel,
    LdMatrix,
    Lit,
    Matrix,
    Mma,
    Param,
    Place,
    ProxyFence,
    StMatrix,
    Var,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.kernel.values import BYTES
from emmy.ir.loop import const
from emmy.ir.target import target

CARD = target("sm_90a")
Array = np.ndarray[Any, Any]
GRID = (const(1), const(1), const(1))


def stored(type: str) -> str:
    return "f32" if type == "tf32" else type


def integers(rng: np.random.Generator, type: str, *shape: int) -> Array:
    values = rng.integers(-3, 4, shape)
    if type == "i8":
        return values.astype(np.int8)
    return values.astype(np.float32).astype(RAW.get(type, np.dtype(np.float32)))


def tile(name: str, type: str, major: str, rows: int, k: int, span: int) -> Buffer:
    """[rows][k], or for mn [blocks of rows][k][a span of rows], rows of one swizzle span."""
    wide = span // BYTES[stored(type)]
    shape = (max(8, rows), wide) if major == "k" else (-(-rows // wide), max(8, k), wide)
    return Buffer(name, stored(type), shape, swizzle_of(span), align=1024)


def copy_in(code: Code, buffer: Buffer, param: str, rows: int, k: int, major: str) -> None:
    """Every thread stores elements of a row-major operand [rows, k]."""
    wide = buffer.shape[-1]
    with code.loop(f"e_{param}", rows * k, start=TID, step=128) as (body, e):
        row, column = div(e, k), mod(e, k)
        place = shared_at(buffer, row, column)
        if major == "mn":
            place = shared_at(buffer, div(row, wide), column, mod(row, wide))
        value = body.load(f"v_{param}", buffer.type, Place("global", param, (e,), buffer.type))
        body.store(place, value)


def copy_out(code: Code, n: int) -> None:
    """acc of m64 to y[64, n]."""
    warp, lane = div(TID, 32), mod(TID, 32)
    with code.loop("r", n // 2, unroll=0) as (body, r):
        row = add(mul(warp, 16), div(lane, 4), mul(mod(div(r, 2), 2), 8))
        column = add(mul(div(r, 4), 8), mul(mod(lane, 4), 2), mod(r, 2))
        body.store(Place("global", "y", (add(mul(row, n), column),), "f32"), elem(Var("acc", "f32"), r))


def product(type: str, n: int, a: str, b: str, span: int) -> Kernel:
    """y[64, n] = x[64, 2k] * w[n, 2k].T as two wgmmas; a: k, mn or registers."""
    k = 2 * WGMMA_K[type]
    left, right = tile("a", type, "mn" if a == "mn" else "k", 64, k, span), tile("b", type, b, n, k, span)
    code = Code(Names())
    copy_in(code, left, "x", 64, k, "mn" if a == "mn" else "k")
    copy_in(code, right, "w", n, k, b)
    code.emit(ProxyFence(), Barrier())
    code.declare("acc", "f32", count=n // 2)
    code.declare("regs", "u32", count=8)
    for half in range(2) if a == "registers" else ():
        row = add(mul(div(TID, 32), 16), mod(TID, 16))
        at = shared_at(left, row, add(half * 16, mul(div(mod(TID, 32), 16), 8)))
        code.emit(LdMatrix(tuple(Elem("regs", i32(4 * half + i), "u32") for i in range(4)), at))
    code.emit(WgmmaFence())
    for half in range(2):
        at = half * k // 2
        operand: Matrix | tuple[X, ...] = tuple(Elem("regs", i32(4 * half + i), "u32") for i in range(4))
        if a != "registers":
            operand = matrix(left, "mn" if a == "mn" else "k", at)
        code.emit(Wgmma("acc", i32(0), n, type, operand, matrix(right, b, at), half > 0))  # type: ignore[arg-type]
    code.emit(WgmmaCommit(), WgmmaWait(0))
    copy_out(code, n)
    params = (Param("x", stored(type), "in"), Param("w", stored(type), "in"), Param("y", "f32", "out"))
    return Kernel("k", "test", params, (left, right), GRID, 128, tuple(code.statements))


def matrix(buffer: Buffer, major: Any, k: int) -> Matrix:
    return Matrix(shared_at(buffer, 0, k) if major == "k" else shared_at(buffer, 0, k, 0), major)


VARIANTS = [
    *((t, 64, "k", "k", 128) for t in WGMMA_K), *((t, n, a, b, 128) for t in ("bf16", "f16") for n, a, b in (
        (8, "k", "k"), (256, "k", "k"), (128, "k", "mn"), (64, "mn", "k"), (192, "mn", "mn"), (64, "registers", "mn"))),
    ("bf16", 32, "k", "k", 64), ("bf16", 64, "k", "mn", 64), ("bf16", 32, "mn", "mn", 32),
]  # fmt: skip


@pytest.mark.parametrize(("type", "n", "a", "b", "span"), VARIANTS)
def test_wgmma(type: str, n: int, a: str, b: str, span: int) -> None:
    k = 2 * WGMMA_K[type]
    rng = np.random.default_rng(n)
    x, w = integers(rng, type, 64, k), integers(rng, type, n, k)
    done = simulate(product(type, n, a, b, span), CARD, {"x": x, "w": w}, {}, {"y": 64 * n})
    assert done.findings == ()
    assert np.array_equal(done.outputs["y"].reshape(64, n), x.astype(np.float32) @ w.astype(np.float32).T)


def fragments(type: str) -> Kernel:
    """y[16, 8] = x[16, k] * w[8, k].T by one mma, its registers packed as the PTX manual draws them."""
    held, size = stored(type), BYTES[stored(type)]
    per = 4 // size
    k = {1: 32, 2: 16, 4: 8}[size]
    code = Code(Names())
    row, quad = div(TID, 4), mod(TID, 4)

    def word(param: str, row: X, column: X) -> X:
        """One register: `per` neighbours of a row."""
        bits: X = Lit(0, "u32")
        for e in range(per):
            one = code.load("v", held, Place("global", param, (add(mul(row, k), column, e),), held))
            raw: X = Call("bits_of_f32", (one,), "u32") if held == "f32" else Convert(one, "u32")
            if held in RAW:  # a conversion would give the number: the bits are joined from two halves
                raw = Call("join16", (one, Lit(0, "u8" if size == 1 else held)), "u32")
            if held == "i8":
                raw = Call("band", (raw, Lit(255, "u32")), "u32")
            bits = Call("bor", (bits, Call("shl", (raw, Lit(8 * size * e, "u32")), "u32")), "u32")
        return bits

    a = tuple(
        word("x", add(row, 8 * (i % 2)), add(mul(quad, per), 4 * per * (i // 2))) for i in range(4)
    )  # fmt: skip
    b = tuple(word("w", row, add(mul(quad, per), 4 * per * i)) for i in range(2))
    out = "i32" if type == "i8" else "f32"
    d = code.declare("d", out, Lit(0, out), 4)
    regs = tuple(elem(d, i) for i in range(4))
    shape = {8: "m16n8k8", 16: "m16n8k16", 32: "m16n8k32"}[k]
    code.emit(Mma(shape, type, regs, a, b, regs))
    for i in range(4):
        at = add(mul(add(row, 8 * (i // 2)), 8), mul(quad, 2), i % 2)
        code.store(Place("global", "y", (at,), out), elem(d, i))
    params = (Param("x", held, "in"), Param("w", held, "in"), Param("y", out, "out"))
    return Kernel("k", "test", params, (), GRID, 32, tuple(code.statements))


@pytest.mark.parametrize("type", ["bf16", "f16", "tf32", "f8e4m3", "f8e5m2", "i8"])
def test_mma(type: str) -> None:
    k = {1: 32, 2: 16, 4: 8}[BYTES[stored(type)]]
    rng = np.random.default_rng(k)
    x, w = integers(rng, type, 16, k), integers(rng, type, 8, k)
    done = simulate(fragments(type), CARD, {"x": x, "w": w}, {}, {"y": 128})
    assert done.findings == ()
    assert np.array_equal(done.outputs["y"].reshape(16, 8), x.astype(np.float32) @ w.astype(np.float32).T)


@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix_is_the_inverse_of_ldmatrix(trans: bool) -> None:
    """A tile of 16 x 16 goes through registers into another buffer unchanged."""
    source, target_ = (Buffer(name, "bf16", (16, 64), swizzle_of(128), align=1024) for name in "ab")
    code = Code(Names())
    with code.loop("e", 256, start=TID, step=32) as (body, e):
        value = body.load("v", "bf16", Place("global", "x", (e,), "bf16"))
        body.store(shared_at(source, div(e, 16), mod(e, 16)), value)
    code.emit(Barrier())
    code.declare("r", "u32", count=4)
    regs = tuple(Elem("r", i32(i), "u32") for i in range(4))
    row, column = mod(TID, 16), mul(div(TID, 16), 8)
    code.emit(
        LdMatrix(regs, shared_at(source, row, column), trans), StMatrix(shared_at(target_, row, column), regs, trans)
    )
    code.emit(Barrier())
    with code.loop("f", 256, start=TID, step=32) as (body, e):
        value = body.load("u", "bf16", shared_at(target_, div(e, 16), mod(e, 16)))
        body.store(Place("global", "y", (e,), "bf16"), value)
    params = (Param("x", "bf16", "in"), Param("y", "bf16", "out"))
    kernel = Kernel("k", "test", params, (source, target_), GRID, 32, tuple(code.statements))
    x = np.arange(256).astype(np.float32).astype(RAW["bf16"])
    done = simulate(kernel, CARD, {"x": x}, {}, {"y": 256})
    assert done.findings == ()
    assert np.array_equal(done.outputs["y"].view(np.uint16), x.view(np.uint16))
