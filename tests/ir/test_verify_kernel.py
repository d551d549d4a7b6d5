"""The Kernel IR verifier accepts what families make and names each rule that a changed kernel breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from emmy.codegen.lower import lower
from emmy.ir.kernel import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    Call,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Lit,
    Load,
    LoadVector,
    Mma,
    Param,
    Place,
    S,
    Shuffle,
    Store,
    Var,
    WarpSync,
)
from emmy.ir.loop import const
from emmy.ir.schedule import Row
from emmy.ir.target import target
from emmy.ir.verify.kernel import KernelError, verify
from tests.codegen import small as K

CARD = target("sm_86")
ROW = Row.parse("WORK=t256,TILE=f4,REDUCE=coop,STAGE=reg,RASTER=")
TID, ONE = Let("tid", Builtin("tid")), const(1)
ZERO, HALF = Lit(0, "i32"), Lit(0.5, "f32")
T = Var("tid", "i32")
FIRST = Bin("==", T, ZERO, "bool")
X = Place("global", "x", (T,), "f32")
Y = Place("global", "y", (T,), "f32")
TILE = Buffer("tile", "f32", (2, 32))
CELL = Place("shared", "tile", (ZERO, T), "f32")
COPY = AsyncCopy(Place("shared", "tile", (ZERO, T), "f32"), X, 4)


def kernel(*body: S, shared: tuple[Buffer, ...] = (TILE,), threads: int = 64) -> Kernel:
    params = (Param("x", "f32", "in"), Param("y", "f32", "out"), Param("n", "i64", "size"))
    return Kernel("k", "", params, shared, (ONE, ONE, ONE), threads, (TID, *body))


def reduction() -> Kernel:
    return lower(K.rms_norm(8, 2048), "row", ROW, CARD, "k_rms_norm")


def test_a_reduction_passes() -> None:
    verify(reduction(), CARD)


def test_a_ring_of_copies_passes() -> None:
    read = (Load("v", "f32", CELL), Store(Y, Var("v", "f32")))
    verify(kernel(COPY, AsyncCommit(), AsyncWait(0), Barrier(), *read), CARD)


def test_uniform_and_warp_conditions_pass() -> None:
    warp = Bin("==", Bin(">>", T, Lit(5, "i32"), "i32"), ZERO, "bool")
    named = Bin("<", Var("n", "i64"), Lit(3, "i64"), "bool")
    verify(kernel(If(named, (Barrier(),)), If(warp, (Shuffle("o", HALF, "xor", Lit(1, "i32")),))), CARD)


BROKEN: dict[str, tuple[Callable[[], Kernel], str]] = {
    "too many threads": (lambda: kernel(threads=2048), "2048 threads"),
    "too much shared memory": (lambda: kernel(shared=(Buffer("tile", "f32", (40000,)),)), "bytes of shared memory"),
    "shuffle in part of a warp": (lambda: kernel(WarpSync(), threads=48), "warp operations in a block of 48"),
    "unknown name": (lambda: kernel(Store(Y, Var("v", "f32"))), "v is used before it is declared"),
    "name of a finished block": (
        lambda: kernel(Let("v", HALF), If(FIRST, (Let("v", HALF),))), "v is declared twice"),
    "assignment to a constant": (lambda: kernel(Let("v", HALF), Assign(Var("v", "f32"), HALF)), "v is assigned"),
    "wrong type": (
        lambda: kernel(Declare("v", "f32", HALF), Assign(Var("v", "f32"), ZERO)), "a i32 is assigned to a f32"),
    "store to an operand": (lambda: kernel(Store(X, HALF)), "x is an operand and is written"),
    "unknown buffer": (lambda: kernel(Load("v", "f32", Place("global", "z", (T,), "f32"))), "z is no f32 operand"),
    "buffer of another type": (lambda: kernel(Load("v", "f32", Place("global", "x", (T,), "bf16"))), "x is no bf16"),
    "dimension missing": (lambda: kernel(Load("v", "f32", Place("shared", "tile", (T,), "f32"))), "of 1 dimensions"),
    "index out of a buffer": (
        lambda: kernel(Load("v", "f32", Place("shared", "tile", (Lit(2, "i32"), T), "f32"))), "index 2 of tile"),
    "barrier in one thread": (lambda: kernel(If(FIRST, (Barrier(),))), "a barrier under a condition"),
    "barrier in a loop of unequal length": (
        lambda: kernel(For(Var("i", "i32"), T, Lit(64, "i32"), Lit(64, "i32"), (Barrier(),))), "a barrier under"),
    "barrier behind a loaded condition": (
        lambda: kernel(Load("v", "f32", X), If(Bin("<", Var("v", "f32"), HALF, "bool"), (Barrier(),))),
        "a barrier under"),
    "shuffle in some lanes": (
        lambda: kernel(If(FIRST, (Shuffle("o", HALF, "xor", Lit(1, "i32")),))), "a warp operation under"),
    "read before the wait": (
        lambda: kernel(COPY, AsyncCommit(), Barrier(), Load("v", "f32", CELL)), "tile is read before"),
    "read before the barrier": (
        lambda: kernel(COPY, AsyncCommit(), AsyncWait(0), Load("v", "f32", CELL)), "tile is read before"),
    "no commit": (lambda: kernel(COPY, AsyncWait(0)), "without a commit"),
    "odd copy": (lambda: kernel(replace(COPY, bytes=12), AsyncCommit()), "cp.async of 12 bytes"),
    "vector past its array": (
        lambda: kernel(Declare("a", "f32", count=2), LoadVector("a", ZERO, 4, X)), "a has 2 elements"),
    "vector of three": (lambda: kernel(Declare("a", "f32", count=4), LoadVector("a", ZERO, 3, X)), "12 bytes"),
    "unknown word": (lambda: kernel(Let("v", Call("gamma", (HALF,), "f32"))), "unknown word gamma"),
    "wrong fragment": (
        lambda: kernel(Declare("d", "f32"), Mma("m16n8k16", "bf16", (Var("d", "f32"),), (), (), ())),
        "takes 4, 4, 2 and 4"),
    "no such instruction": (lambda: kernel(Mma("m8n8k4", "f64", (), (), (), ())), "no instruction m8n8k4"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_kernels_are_named(case: str) -> None:
    build, says = BROKEN[case]
    with pytest.raises(KernelError, match=says):
        verify(build(), CARD)


def test_a_reduction_whose_barrier_moves_under_a_condition_is_found() -> None:
    k = reduction()
    body = tuple(If(Bin("<", T, Lit(7, "i32"), "bool"), (s,)) if isinstance(s, Barrier) else s for s in k.body)
    with pytest.raises(KernelError, match="a barrier under a condition"):
        verify(replace(k, body=body), CARD)
