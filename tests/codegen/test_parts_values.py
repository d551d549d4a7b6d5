"""Sums that several blocks share, in the simulator: values, any order of blocks, a second launch, and what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from emmy.codegen.lower import lower
from emmy.codegen.simulate import Simulation, simulate
from emmy.errors import LoweringError
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.kernel import (
    Atomic,
    Bin,
    DependentWait,
    Fence,
    For,
    If,
    Kernel,
    Lit,
    LoadVector,
    S,
    Store,
    StoreVector,
    WarpSync,
    walk,
)
from emmy.ir.loop import Body, size
from emmy.ir.parse_kernel import parse_kernel
from emmy.ir.schedule import Row
from emmy.ir.show_kernel import show_kernel
from emmy.ir.target import target
from emmy.ir.verify.kernel import verify
from tests import bodies as B
from tests.codegen import check
from tests.simulate.edits import Site, replaced, sites

CARD = target("sm_90a")
MMA = "WORK=w2x2,TILE=mma_m16n8k16_{t}_f32/f1x1/k{k},REDUCE={r},STAGE={s},RASTER="
TILE = "WORK=t8x8,TILE=f2x2/k16,REDUCE={r},STAGE=d2/smem,RASTER="
WGMMA = "WORK={w}+p4,TILE=wgmma_m64n{n}k16_bf16_f32/f1x1/k4,REDUCE={r},STAGE=d3/smem-tma,RASTER="
SMALL = replace(CARD, sms=3)  # a card of few multiprocessors, on which few tiles are more than a wave
KINDS: dict[str, tuple[str, str, Body, dict[str, int]]] = {
    "copies, two parts": (
        "mma",
        MMA.format(t="bf16", k=2, r="g2", s="d3/smem-async"),
        B.linear(33, 40, 200),
        {},
    ),
    "boxes, uneven parts": ("mma", MMA.format(t="f16", k=2, r="g3", s="d2/smem-tma"), B.linear(17, 24, 328, "f16"), {}),
    "by hand, odd sum": ("mma", MMA.format(t="bf16", k=2, r="g4", s="d2/smem"), B.linear(17, 24, 299), {}),
    "two sums": ("mma", MMA.format(t="bf16", k=2, r="g4", s="d2/smem-async"), B.swiglu(17, 24, 264), {}),
    "row scalars": ("mma", MMA.format(t="bf16", k=2, r="g2", s="d3/smem-async"), B.rms_linear(17, 24, 256), {}),
    "scaled factor": (
        "mma",
        MMA.format(t="bf16", k=2, r="g2", s="d2/smem"),
        B.rms_linear(17, 24, 256, factored=False),
        {},
    ),
    "scalars of passing tiles": (
        "mma",
        MMA.format(t="bf16", k=2, r="g2", s="d3/smem-tma"),
        B.scaled_linear(17, 24, 256, by="max"),
        {},
    ),
    "bias, activation, batches": (
        "mma",
        MMA.format(t="bf16", k=2, r="g2", s="d3/smem-async"),
        B.linear(8, 40, 200, bias=True, batch=3, trans_b=False, act=True),
        {},
    ),
    "rows by name": (
        "mma",
        MMA.format(t="bf16", k=2, r="g2", s="d3/smem-async"),
        B.linear(size("s"), 40, 200),
        {"s": 37},
    ),
    "one total": ("mma", MMA.format(t="bf16", k=2, r="g4a", s="d3/smem-async"), B.linear(33, 40, 264), {}),
    "one total of two sums": ("mma", MMA.format(t="bf16", k=2, r="g4a", s="d3/smem-async"), B.swiglu(17, 24, 264), {}),
    "warpgroups": ("wgmma", WGMMA.format(w="w4x1", n=64, r="g8"), B.linear(72, 72, 1024), {}),
    "warpgroups, one total": ("wgmma", WGMMA.format(w="w8x1", n=64, r="g4a"), B.linear(130, 72, 440), {}),
    "warpgroups, two sums": ("wgmma", WGMMA.format(w="w4x1", n=32, r="g8"), B.swiglu(17, 24, 1024), {}),
    "few rows": ("wgmma", WGMMA.format(w="w1x4", n=8, r="g8"), B.linear(5, 72, 1024), {}),
    "few rows, bias": (
        "wgmma",
        WGMMA.format(w="w1x8", n=16, r="g8"),
        B.linear(16, 136, 1016, bias=True, act=True),
        {},
    ),
    "few rows, one total": ("wgmma", WGMMA.format(w="w1x4", n=16, r="g4a"), B.linear(16, 72, 440), {}),
    "equal shares": (
        "wgmma",
        WGMMA.format(w="w8x1", n=64, r="sk") + "persist",
        B.linear(512, 72, 256),
        {},
    ),
    "equal shares, odd": (
        "wgmma",
        WGMMA.format(w="w4x1", n=64, r="sk") + "gm8/persist",
        B.linear(1100, 64, 328),
        {},
    ),
    "computed left factors": (
        "wgmma",
        "WORK=w4x1+p4,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k4,REDUCE=g8,STAGE=d4/smem-tma/reg,RASTER=",
        B.rms_linear(17, 72, 1016),
        {},
    ),
    "computed weight, one total": (
        "wgmma",
        "WORK=w1x4+p4,TILE=wgmma_m64n16k16_bf16_f32/f1x1/k4,REDUCE=g4a,STAGE=d4/smem-tma/reg,RASTER=",
        B.dequant(16, 72, 464),
        {},
    ),
    "computed left factors, equal shares": (
        "wgmma",
        "WORK=w4x1+p4,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k4,REDUCE=sk,STAGE=d4/smem-tma/reg,RASTER=persist",
        B.prologue(1100, 64, 328, "gate"),
        {},
    ),
    "8-bit floats": (
        "wgmma",
        "WORK=w4x1+p4,TILE=wgmma_m64n64k32_f8e4m3_f32/f1x1/k4,REDUCE=g8,STAGE=d4/smem-tma,RASTER=",
        B.f8_linear(17, 72, 2032, scaled="row"),
        {},
    ),
    "8-bit floats, equal shares": (
        "wgmma",
        "WORK=w4x1+p4,TILE=wgmma_m64n64k32_f8e4m3_f32/f1x1/k4,REDUCE=sk,STAGE=d4/smem-tma,RASTER=persist",
        B.f8_linear(1100, 64, 656),
        {},
    ),
    "threads": ("tile", TILE.format(r="g3"), B.linear(17, 40, 130, "f32"), {}),
    "threads, one total": ("tile", TILE.format(r="g4a"), B.linear(17, 40, 130, "f32"), {}),
    "threads, two sums": ("tile", TILE.format(r="g2"), B.swiglu(17, 24, 130), {}),
    "threads, one row": (
        "tile",
        "WORK=t1x64,TILE=f1x1/k32,REDUCE=g4,STAGE=d2/smem,RASTER=",
        B.linear(1, 65, 257, "f32"),
        {},
    ),
}


def kernel_of(kind: str) -> Kernel:
    family, row, body, _ = KINDS[kind]
    return lower(body, family, Row.parse(row), SMALL, "k_test")


def launched(kernel: Kernel, body: Body, sizes: dict[str, int], seed: int = 0, own: object = None) -> Simulation:
    given = check.operands(body, sizes)
    names = [p.name for p in kernel.params if p.role in ("in", "out")]
    shapes = [e.shape for e in evaluate(body, given, sizes)]
    results = {n: int(np.prod(s)) for n, s in zip(names[len(given) :], shapes, strict=True)}
    held = own if isinstance(own, dict) else {}
    return simulate(kernel, CARD, dict(zip(names, given, strict=False)), sizes, results | held, seed=seed)


def error(done: Simulation, body: Body, sizes: dict[str, int]) -> float:
    expected = evaluate(body, check.operands(body, sizes), sizes)
    found = [a.reshape(e.shape) for a, e in zip(done.outputs.values(), expected, strict=True)]
    return check.distance(body, found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_right_in_any_order_of_blocks_and_launch_after_launch(kind: str) -> None:
    _, row, body, sizes = KINDS[kind]
    kernel = kernel_of(kind)
    assert parse_kernel(show_kernel(kernel)) == kernel
    own, bits = None, set()
    for seed in range(3):
        # what one launch leaves is what the next finds
        done = launched(kernel, body, sizes, seed, own)
        assert not done.findings, [str(f) for f in done.findings]
        assert error(done, body, sizes) < 1.0
        own = done.work
        bits.add(b"".join(np.ascontiguousarray(a).tobytes() for a in done.outputs.values()))
        assert not any(np.any(own[p.name]) for p in kernel.params if p.role == "zeroed")
    assert len(bits) == 1 or Row.parse(row).reduce.finish == "a"


def test_parts_are_added_in_one_order_and_atomics_in_any() -> None:
    bits = {"threads": set[bytes](), "threads, one total": set[bytes]()}
    for kind, found in bits.items():
        for seed in range(10):
            done = launched(kernel_of(kind), KINDS[kind][2], {}, seed)
            found.add(b"".join(a.tobytes() for a in done.outputs.values()))
    assert len(bits["threads"]) == 1 < len(bits["threads, one total"])


def test_a_row_scalar_of_which_a_part_sees_a_part_is_computed_before() -> None:
    kernel = kernel_of("scalars of passing tiles")
    undivided = Row.parse(MMA.format(t="bf16", k=2, r="", s="d3/smem-tma"))
    whole = lower(KINDS["scalars of passing tiles"][2], "mma", undivided, CARD, "k_test")
    loops = [
        next(s for s in walk(k.body) if isinstance(s, For) and s.var.name.startswith("t")) for k in (kernel, whole)
    ]
    gathering = [any(isinstance(s, LoadVector) and s.place.space == "shared" for s in walk(l.body)) for l in loops]
    assert gathering == [False, True]


@pytest.mark.parametrize("tiles", range(3, 14))
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_equal_shares_cover_every_stage_of_every_tile_once(tiles: int, stages: int) -> None:
    """Integers: a stage twice or not at all is another value."""
    body = B.linear(64 * tiles, 16, 64 * stages)
    row = WGMMA.format(w="w4x1", n=16, r="sk") + "persist"
    kernel = lower(body, "wgmma", Row.parse(row), SMALL, "k_test")
    rng = np.random.default_rng(tiles)
    given = [rng.integers(-3, 4, e.shape).astype(e.dtype) for e in check.operands(body, {})]
    done = simulate(
        kernel, SMALL, dict(zip(("x0", "x1"), given, strict=True)), {}, {"y0": 64 * tiles * 16}, count=False
    )
    assert not done.findings
    (expected,) = evaluate(body, given, {})
    assert np.array_equal(done.outputs["y0"].reshape(expected.shape), expected.astype(done.outputs["y0"].dtype))
    # memory for as many meetings as there are blocks
    assert integer(kernel.grid[0], {}) == 3 and len(done.work["arrivals"]) == 3 * 4


# ---- what is found -------------------------------------------------------------------------------------------------


def changed(
    kernel: Kernel, pick: Callable[[S], bool], new: Callable[[S], tuple[S, ...]], count: int
) -> Iterator[Kernel]:
    """The kernel with each of the `count` picked statements replaced."""
    found: list[Site] = [s for s in sites(kernel) if pick(s.statement)]
    assert len(found) == count
    for s in found:
        yield replaced(kernel, s, *new(s.statement))


def gone(s: S) -> tuple[S, ...]:
    return ()


def one_fewer(s: S) -> tuple[S, ...]:
    assert isinstance(s, If) and isinstance(s.cond, Bin) and isinstance(s.cond.b, Lit)
    return (replace(s, cond=replace(s.cond, b=Lit(int(s.cond.b.value) - 1, "i32"))),)


def without_question(s: S) -> tuple[S, ...]:
    assert isinstance(s, If)
    return (replace(s, cond=Bin(">=", s.cond.a, Lit(0, "i32"), "bool")),) if isinstance(s.cond, Bin) else ()


def is_last(s: S) -> bool:
    return isinstance(s, If) and isinstance(s.cond, Bin) and getattr(s.cond.a, "name", "").startswith("arrived")


def clears(s: S) -> bool:
    return isinstance(s, Store) and s.place.buffer == "arrivals"


def clears_total(s: S) -> bool:
    return isinstance(s, Store) and s.place.buffer == "sums"


MUTATIONS: dict[str, tuple[str, Callable[[S], bool], Callable[[S], tuple[S, ...]], int, bool]] = {
    # kind, what, what instead, how often, whether the verifier sees it too
    "fence dropped": ("threads", lambda s: isinstance(s, Fence), gone, 2, True),
    "fence of the block": ("threads", lambda s: isinstance(s, Fence), lambda s: (Fence("block"),), 2, True),
    "sync dropped": ("threads", lambda s: isinstance(s, WarpSync), gone, 2, True),
    "one arrival fewer": ("threads", is_last, one_fewer, 1, False),
    "read by everybody": ("threads", is_last, without_question, 1, False),
    "counter not cleared": ("threads", clears, gone, 1, True),
    "fence dropped, total": ("threads, one total", lambda s: isinstance(s, Fence), gone, 2, True),
    "sync dropped, total": ("threads, one total", lambda s: isinstance(s, WarpSync), gone, 2, True),
    "total not cleared": ("threads, one total", clears_total, gone, 1, True),
    "two counted": (
        "threads",
        lambda s: isinstance(s, Atomic),
        lambda s: (replace(s, value=Lit(2, "i32")),),  # type: ignore[type-var]
        1,
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_arrival_is_found(name: str) -> None:
    kind, pick, new, count, seen = MUTATIONS[name]
    kernel, body = kernel_of(kind), KINDS[kind][2]
    for mutant in changed(kernel, pick, new, count):
        assert any(launched(mutant, body, {}, seed).findings for seed in range(2)), name
        if seen:
            with pytest.raises(LoweringError):
                verify(mutant, CARD)


def test_sums_that_are_announced_before_they_are_stored_are_found() -> None:
    kernel, body = kernel_of("threads"), KINDS["threads"][2]
    stored = next(k for k, s in enumerate(kernel.body) if any(_stores_sums(i) for i in walk((s,))))
    last = next(k for k, s in enumerate(kernel.body) if is_last(s))
    b = kernel.body
    late = replace(kernel, body=(*b[:stored], *b[stored + 1 : last], b[stored], *b[last:]))
    assert any(f.kind in ("global race", "uninitialized read") for f in launched(late, body, {}).findings)
    with pytest.raises(LoweringError, match=r"is used before the arrival"):
        verify(late, CARD)


def test_a_counter_is_not_touched_before_the_kernels_before_have_ended() -> None:
    kernel, body = kernel_of("threads"), KINDS["threads"][2]
    (early,) = changed(kernel, lambda s: isinstance(s, DependentWait), gone, 1)
    kinds = {(f.kind, f.buffer) for f in launched(early, body, {}).findings}
    assert ("dependent write", "arrivals") in kinds and ("dependent write", "sums") in kinds


def test_blocks_that_begin_with_their_own_part_differ_from_run_to_run() -> None:
    """Right values, other bits: the order of the parts matters."""
    body, text = KINDS["threads"][2], show_kernel(kernel_of("threads"))
    turned = text.replace("load sums[sums_at + (", "load sums[part_at + (").replace("(p * ", "(((p + part) % 3) * ")
    assert turned.count("part_at + (") > text.count("part_at + (") and "% 3) * " in turned
    bits = set()
    for seed in range(6):
        done = launched(parse_kernel(turned), body, {}, seed)
        assert not done.findings and error(done, body, {}) < 1.0
        bits.add(b"".join(a.tobytes() for a in done.outputs.values()))
    assert len(bits) > 1


def _stores_sums(s: S) -> bool:
    return isinstance(s, StoreVector) and s.place.buffer == "sums"
