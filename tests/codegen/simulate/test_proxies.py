"""What lies between ordinary accesses of shared memory and TMA's: order alone is not enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emmy.codegen.expr import TID, Code, Names, add, compare, convert, i32, lt, mod, mul
from emmy.codegen.lower import lower
from emmy.codegen.simulate import Simulation, simulate
from emmy.ir.kernel import (
    Advance,
    Barrier,
    Cursor,
    Elem,
    If,
    InitRings,
    Kernel,
    LdMatrix,
    Lit,
    NamedBarrier,
    Param,
    Place,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    S,
    TmaLoad,
    WarpSync,
    with_bodies,
)
from emmy.ir.loop import Body, const
from emmy.ir.schedule import Row
from emmy.ir.target import target
from emmy.ir.verify.kernel import KernelError, verify
from tests import bodies as B
from tests.codegen.simulate import check
from tests.codegen.simulate.hopper import BF16, TILE_K, matrix_map, slot, tile

THREADS, ROWS, DEPTH, STEPS = 64, 8, 2, 5
CARD = target("sm_90a")
ARRIVE = "arrive"  # stands for the warp's arrival among the statements of a release
USE = "use"  # and for the use of what was read
Release = tuple[S | str, ...]
FENCED: Release = (USE, ProxyFence(), WarpSync(), ARRIVE)


def kernel(release: Release, matrix: bool = False, before: tuple[S, ...] = ()) -> Kernel:
    """y[thread] = sum over the steps of an element of each step's tile of x[rows, steps * 64], read by all warps."""
    code = Code(Names())
    code.emit(InitRings(), *before, Barrier(), Cursor("fill", "ring"), Cursor("take", "ring"))
    total = code.declare("total", "i32", Lit(0, "i32"))
    words = code.declare("words", "u32", count=1)
    with code.loop("t", STEPS) as (loop, t):
        with loop.when(compare("==", TID, 0)) as one:
            place = Place("shared", "a", (slot("fill"), i32(0), i32(0)), "bf16")
            one.emit(
                RingWait("fill", "empty"), RingArrive("fill", "full", ROWS * 128),
                TmaLoad(place, "map", (i32(0), mul(t, TILE_K)), "fill"), Advance("fill"),
            )  # fmt: skip
        loop.emit(RingWait("take", "full"))
        if matrix:
            row = Place("shared", "a", (slot("take"), mod(TID, ROWS), i32(0)), "bf16")
            loop.emit(LdMatrix((Elem(words.name, i32(0), "u32"),), row))
            value = convert(Elem(words.name, i32(0), "u32"), "i32")
        else:
            read = loop.load("read", "f32", Place("shared", "a", (slot("take"), i32(0), TID), "bf16"))
            value = convert(read, "i32")
        for s in release:
            if s == USE:
                loop.assign(total, add(total, value))
            elif s == ARRIVE:
                with loop.when(compare("==", mod(TID, 32), 0)) as first:
                    first.emit(RingArrive("take", "empty"))
            else:
                loop.emit(s)  # type: ignore[arg-type]
        loop.emit(Advance("take"))
    code.store(Place("global", "y", (TID,), "i32"), total)
    params = (Param("x", "bf16", "in"), Param("y", "i32", "out"))
    maps = (matrix_map("map", "x", ROWS, STEPS * TILE_K, ROWS),)
    return Kernel("k_sum", "hopper", params, (tile("a", DEPTH, ROWS),), (const(1), const(1), const(1)), THREADS,
                  tuple(code.statements), rings=(Ring("ring", DEPTH, 1, THREADS // 32),), maps=maps)  # fmt: skip


def run(k: Kernel) -> Simulation:
    x = np.random.default_rng(0).integers(-8, 8, (ROWS, STEPS * TILE_K)).astype(np.float32).astype(BF16)
    return simulate(k, CARD, {"x": x}, {}, {"y": THREADS})


def kinds(release: Release, matrix: bool = False, before: tuple[S, ...] = ()) -> set[str]:
    return {f.kind for f in run(kernel(release, matrix, before)).findings}


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize(
    "release",
    [
        FENCED,
        (ProxyFence(), WarpSync(), ARRIVE, USE),
        (WarpSync(), ProxyFence(), WarpSync(), ARRIVE, USE),
        (Barrier(), ARRIVE, USE),
        (NamedBarrier(i32(1), THREADS), ARRIVE, USE),
    ],
    ids=["use, fence", "fence", "sync, fence", "barrier", "named barrier"],
)
def test_a_fence_or_a_barrier_behind_the_read_lets_tma_refill(release: Release, matrix: bool) -> None:
    assert kinds(release, matrix) == set()


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize(
    "release",
    [
        (WarpSync(), ARRIVE, USE),
        (USE, WarpSync(), ARRIVE),
        (WarpSync(), ARRIVE, USE, ProxyFence()),
    ],
    ids=["no fence", "a use is no fence", "fence behind the arrival"],
)
def test_an_arrival_covers_no_read_of_what_tma_refills(release: Release, matrix: bool) -> None:
    assert kinds(release, matrix) == {"missing proxy fence"}


def test_the_finding_names_reader_and_slot() -> None:
    (found,) = run(kernel((USE, WarpSync(), ARRIVE))).findings
    assert found.buffer == "a" and found.statement.startswith("tma a[fill_slot") and found.thread == 0
    assert "warp 0 has read" in found.detail


def test_a_fence_by_other_lanes_covers_no_read() -> None:
    """Lane 0 fences before the others' reads are ordered before it."""
    code = Code(Names())
    with code.when(lt(mod(TID, 32), 1)) as one:
        one.emit(ProxyFence())
    early = tuple(code.statements)
    assert kinds((*early, WarpSync(), ARRIVE, USE)) == {"missing proxy fence"}
    assert kinds((WarpSync(), *early, WarpSync(), ARRIVE, USE)) == set()


# family, row and body of kernels whose threads read what TMA refills, in several turns of their ring
READERS = {
    "mma": (
        "mma", "WORK=w2x1,TILE=mma_m16n8k16_bf16_f32/f1x2/k4,REDUCE=,STAGE=d2/smem-tma,RASTER=",
        B.linear(33, 40, 328),
    ),
    "wgmma, left factors in registers": (
        "wgmma", "WORK=w4x1+p4,TILE=wgmma_m64n40k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d3/smem-tma/reg,RASTER=",
        B.prologue(33, 40, 392, "gate"),
    ),
    "wgmma, statistics of passing tiles": (
        "wgmma", "WORK=w4x1+p4,TILE=wgmma_m64n40k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d3/smem-tma,RASTER=",
        B.scaled_linear(33, 40, 392),
    ),
}  # fmt: skip


def _lowered(name: str) -> tuple[Body, Kernel]:
    family, row, body = READERS[name]
    return body, lower(body, family, Row.parse(row), CARD, "k_test")


def _edited(body: tuple[S, ...], fence: bool) -> tuple[S, ...]:
    """Without proxy fences; `fence`: they come behind the release instead."""
    kept = tuple(with_bodies(s, lambda b: _edited(b, fence)) for s in body if not isinstance(s, ProxyFence))
    if not fence:
        return kept
    frees = [isinstance(s, If) and any(isinstance(i, RingArrive) and i.side == "empty" for i in s.then) for s in kept]
    return tuple(t for s, f in zip(kept, frees, strict=True) for t in ((s, ProxyFence()) if f else (s,)))


@pytest.mark.parametrize("name", READERS)
def test_emitted_kernels_fence_what_they_read_before_they_release_it(name: str) -> None:
    body, right = _lowered(name)
    error, found = check.compare(body, right, CARD)
    assert found.findings == () and error < 2
    for fence in (False, True):
        broken = replace(right, body=_edited(right.body, fence))
        _, found = check.compare(body, broken, CARD)
        assert {f.kind for f in found.findings} == {"missing proxy fence"}
        with pytest.raises(KernelError, match="is released that threads have read"):
            verify(broken, CARD)


def _cleared() -> tuple[S, ...]:
    """Ordinary stores to the first slot."""
    code = Code(Names())
    code.store(Place("shared", "a", (i32(0), i32(0), TID), "bf16"), Lit(0.0, "f32"))
    return tuple(code.statements)


def test_tma_overwrites_what_ordinary_stores_have_written() -> None:
    assert kinds(FENCED, before=_cleared()) == {"missing proxy fence"}
    assert kinds(FENCED, before=(ProxyFence(), *_cleared())) == {"missing proxy fence"}
    assert kinds(FENCED, before=(*_cleared(), ProxyFence())) == set()
