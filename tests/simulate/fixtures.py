"""Kernels written by hand for what no family uses yet: exchange within a warp, atomics, the last block finishes."""

from __future__ import annotations

from emmy.ir.build import scalar
from emmy.ir.kernel import (
    Assign,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    Call,
    Declare,
    Fence,
    For,
    If,
    Kernel,
    Let,
    Lit,
    Load,
    Param,
    Place,
    S,
    Store,
    Var,
    WarpSync,
    X,
)
from emmy.ir.loop import Body, Out, ax, const, fold, load
from tests import bodies as B
from tests.simulate.cases import Case, one

TID, BID = Builtin("tid"), Builtin("bid_x")


def _i(value: int) -> Lit:
    return Lit(value, "i32")


def _add(a: X, b: X) -> X:
    return Bin("+", a, b, a.type)


def _mul(a: X, b: int) -> X:
    return Bin("*", a, _i(b), "i32")


def _f(a: X, b: X) -> X:
    return Call("add", (a, b), "f32")


def _kernel(
    params: tuple[tuple[str, str, str], ...], shared: tuple[Buffer, ...], blocks: int, threads: int, *body: S
) -> Kernel:
    made = tuple(Param(n, t, r) for n, t, r in params)  # type: ignore[arg-type]
    return Kernel("k_fixture", "written by hand", made, shared, (const(blocks), const(1), const(1)), threads, body)


def warp_reverse() -> tuple[Case, Kernel]:
    """Each warp reverses 32 numbers twice through its own row of shared memory: x[i] + x[31 - i]."""
    warp, lane = Bin(">>", TID, _i(5), "i32"), Bin("&", TID, _i(31), "i32")
    own, other = (Place("shared", "s", (Var("warp", "i32"), x), "f32")
                  for x in (Var("lane", "i32"), Bin("-", _i(31), Var("lane", "i32"), "i32")))  # fmt: skip
    at = (Var("at", "i32"),)
    kernel = _kernel(
        (("x0", "f32", "in"), ("y0", "f32", "out")), (Buffer("s", "f32", (4, 32)),), 2, 128,
        Let("warp", warp), Let("lane", lane), Let("at", _add(_mul(BID, 128), TID)),
        Load("v", "f32", Place("global", "x0", at, "f32")),
        Store(own, Var("v", "f32")),
        WarpSync(),
        Load("w", "f32", other),
        WarpSync(),
        Store(own, _f(Var("v", "f32"), Var("w", "f32"))),
        WarpSync(),
        Load("z", "f32", other),
        Store(Place("global", "y0", at, "f32"), Var("z", "f32")),
    )  # fmt: skip
    i, j = B.axes(8, 32)
    value = scalar("add", load(0, (i, j), "f32"), load(0, (i, scalar("sub", const(31), j)), "f32"))
    body = B.body([Out((i, j), (i, j), value, B.tensor("f32", 8, 32))], [B.tensor("f32", 8, 32)])
    return one("reversed in warps", body, True), kernel


def last_block() -> tuple[Case, Kernel]:
    """Blocks store partial sums; the one that takes the last ticket adds them.  Workspace and ticket are results."""
    blocks, threads = 4, 64
    at = (_add(_mul(BID, threads), TID),)
    first = Bin("==", TID, _i(0), "bool")
    flag = Place("shared", "flag", (_i(0),), "i32")
    total = Declare("total", "f32", Lit(0.0, "f32"))
    gather = For(
        Var("p", "i32"), _i(0), _i(blocks), _i(1),
        (Load("part", "f32", Place("global", "y1", (_add(_mul(Var("p", "i32"), threads), TID),), "f32")),
         Assign(Var("total", "f32"), _f(Var("total", "f32"), Var("part", "f32")))),
    )  # fmt: skip
    kernel = _kernel(
        (("x0", "f32", "in"), ("y0", "f32", "out"), ("y1", "f32", "out"), ("y2", "i32", "out")),
        (Buffer("flag", "i32", (1,)),), blocks, threads,
        Load("v", "f32", Place("global", "x0", at, "f32")),
        Store(Place("global", "y1", at, "f32"), Var("v", "f32")),
        Fence(),
        Barrier(),
        If(first, (
            Atomic("add", Place("global", "y2", (_i(0),), "i32"), _i(1), None, "ticket"),
            Store(flag, Var("ticket", "i32")),
        )),
        Barrier(),
        Load("seen", "i32", flag),
        If(Bin("==", Var("seen", "i32"), _i(blocks - 1), "bool"), (
            Fence(),
            total,
            gather,
            Store(Place("global", "y0", (TID,), "f32"), Var("total", "f32")),
        )),
    )  # fmt: skip
    p, i = B.axes(blocks, threads)
    k, n = ax("k", const(blocks)), ax("n", const(1))
    (t,) = B.axes(threads, name="t")
    tensor = B.tensor("f32", blocks, threads)
    outs = [
        Out((t,), (t,), fold("sum", k, load(0, (k, t), "f32")), B.tensor("f32", threads)),
        Out((p, i), (p, i), load(0, (p, i), "f32"), tensor),
        Out((n,), (n,), const(blocks, "i32"), B.tensor("i32", 1)),
    ]
    return Case("the last block finishes", Body(tuple(outs), (tensor,)), {}, True, zeroed=(2,)), kernel


def atomic_sum() -> tuple[Case, Kernel]:
    """Every block adds its row to one row of results that starts at zero."""
    blocks, threads = 5, 64
    kernel = _kernel(
        (("x0", "f32", "in"), ("y0", "f32", "out")), (), blocks, threads,
        Load("v", "f32", Place("global", "x0", (_add(_mul(BID, threads), TID),), "f32")),
        Atomic("add", Place("global", "y0", (TID,), "f32"), Var("v", "f32")),
    )  # fmt: skip
    k = ax("k", const(blocks))
    (t,) = B.axes(threads, name="t")
    out = Out((t,), (t,), fold("sum", k, load(0, (k, t), "f32")), B.tensor("f32", threads))
    body = B.body([out], [B.tensor("f32", blocks, threads)])
    return Case("sums by atomics", body, {}, True, zeroed=(0,)), kernel


__all__ = ["atomic_sum", "last_block", "warp_reverse"]
