"""Small kernels with roles, rings, TMA and wgmma, written in Kernel IR, that tests of the simulator break."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from emmy.codegen.expr import BID, TID, Code, Names, add, compare, div, elem, i32, mod, mul
from emmy.ir.kernel import (
    Advance,
    Barrier,
    Buffer,
    BulkCommit,
    BulkWait,
    Cursor,
    InitRings,
    Kernel,
    Lit,
    Matrix,
    NamedBarrier,
    Param,
    Place,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    Role,
    Roles,
    S,
    TensorMap,
    TmaLoad,
    TmaStore,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import const

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
TILE_K, DEPTH = 64, 2


def matrix_map(name: str, param: str, rows: int, columns: int, box: int) -> TensorMap:
    """A row-major bf16 matrix in boxes of `box` rows of 128 bytes."""
    return TensorMap(name, param, "bf16", (const(rows), const(columns)), (const(columns), const(1)), (box, TILE_K), 128)


def tile(name: str, *shape: int) -> Buffer:
    return Buffer(name, "bf16", (*shape, TILE_K), swizzle_of(128), align=1024)


def producer(steps: int) -> tuple[S, ...]:
    """One thread fills the ring with tiles of a and b."""
    code = Code(Names())
    with code.when(compare("==", TID, 0)) as one, one.loop("t", steps) as (body, t):
        body.emit(
            RingWait("fill", "empty"),
            RingArrive("fill", "full", (128 + 64) * 128),
            TmaLoad(Place("shared", "a", (slot("fill"), i32(0), i32(0)), "bf16"), "map_a",
                    (mul(BID, 128), mul(t, TILE_K)), "fill"),
            TmaLoad(Place("shared", "b", (slot("fill"), i32(0), i32(0)), "bf16"), "map_b",
                    (i32(0), mul(t, TILE_K)), "fill"),
            Advance("fill"),
        )  # fmt: skip
    return tuple(code.statements)


def slot(cursor: str) -> X:
    from emmy.ir.kernel import Var

    return Var(f"{cursor}_slot", "i32")


def consumer(steps: int, staged: bool) -> tuple[S, ...]:
    """Each of two warpgroups multiplies 64 rows."""
    code = Code(Names())
    group = code.let("group", add(div(TID, 128), -1))
    acc = code.declare("acc", "f32", count=32)
    with code.loop("zero", 32, unroll=0) as (body, i):
        body.assign(elem(acc, i), Lit(0.0, "f32"))
    with code.loop("step", steps) as (body, _):
        body.emit(RingWait("use", "full"), WgmmaFence())
        for k in range(0, TILE_K, 16):
            a = Matrix(Place("shared", "a", (slot("use"), mul(group, 64), i32(k)), "bf16"))
            b = Matrix(Place("shared", "b", (slot("use"), i32(0), i32(k)), "bf16"))
            body.emit(Wgmma("acc", i32(0), 64, "bf16", a, b))
        body.emit(WgmmaCommit(), WgmmaWait(0))
        with body.when(compare("==", mod(TID, 128), 0)) as one:
            one.emit(RingArrive("use", "empty"))
        body.emit(Advance("use"))
    lane, warp = mod(TID, 32), div(mod(TID, 128), 32)
    with code.loop("r", 32, unroll=0) as (body, r):
        row = body.let("row", add(mul(warp, 16), div(lane, 4), mul(mod(div(r, 2), 2), 8)))
        column = body.let("column", add(mul(div(r, 4), 8), mul(mod(lane, 4), 2), mod(r, 2)))
        if staged:
            body.store(Place("shared", "out", (group, row, column), "bf16"), elem(acc, r))
        else:
            at = add(mul(add(mul(BID, 128), mul(group, 64), row), 64), column)
            body.store(Place("global", "y", (at,), "bf16"), elem(acc, r))
    if staged:
        code.emit(ProxyFence(), NamedBarrier(add(group, 1), 128))
        with code.when(compare("==", mod(TID, 128), 0)) as one:
            first = add(mul(BID, 128), mul(group, 64))
            one.emit(
                TmaStore("map_y", (first, i32(0)), Place("shared", "out", (group, i32(0), i32(0)), "bf16")),
                BulkCommit(),
                BulkWait(0, True),
            )
    return tuple(code.statements)


def product(m: int = 256, k: int = 256, staged: bool = False) -> Kernel:
    """y[m, 64] = a[m, k] * b[64, k].T, blocks of 128 rows: a producer and two consumer warpgroups."""
    steps = -(-k // TILE_K)
    shared = (tile("a", DEPTH, 128), tile("b", DEPTH, 64), *((tile("out", 2, 64),) if staged else ()))
    maps = (
        matrix_map("map_a", "x", m, k, 128),
        matrix_map("map_b", "w", 64, k, 64),
        matrix_map("map_y", "y", m, 64, 64),
    )
    roles = Roles((Role("producer", 4, 40, producer(steps)), Role("consumer", 8, 232, consumer(steps, staged))))
    body = (InitRings(), Cursor("fill", "ring"), Cursor("use", "ring"), Barrier(), roles)
    params = (Param("x", "bf16", "in"), Param("w", "bf16", "in"), Param("y", "bf16", "out"))
    return Kernel("k_product", "hopper", params, shared, (const(-(-m // 128)), const(1), const(1)), 384, body,
                  rings=(Ring("ring", DEPTH, 1, 2),), maps=maps)  # fmt: skip


def operands(m: int, k: int, seed: int = 0) -> dict[str, Array]:
    """Small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    return {n: rng.integers(-3, 4, s).astype(np.float32).astype(BF16) for n, s in (("x", (m, k)), ("w", (64, k)))}


def expected(given: dict[str, Array]) -> Array:
    total = given["x"].astype(np.float32) @ given["w"].astype(np.float32).T
    return total.astype(BF16)
