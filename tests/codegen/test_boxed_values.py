"""Tensor-core rows whose operands TMA brings, in the simulator: the evaluator's values without a finding."""

from __future__ import annotations

import random

import numpy as np
import pytest

from emmy.codegen.lower import lower
from emmy.codegen.simulate import simulate
from emmy.egraph.schedule import schedule_rows
from emmy.ir.evaluate import evaluate
from emmy.ir.kernel import Barrier, For, Kernel, LoadVector, TmaLoad, walk
from emmy.ir.loop import Body, size
from emmy.ir.target import target
from emmy.resources import rulesets
from tests import bodies
from tests.codegen import check

CARDS = {arch: target(arch) for arch in ("sm_90a", "sm_120a")}
LAYOUTS = {
    "k_k": {}, "k_mn": {"trans_b": False}, "mn_k": {"trans_a": True}, "mn_mn": {"trans_a": True, "trans_b": False},
    "bias": {"bias": True, "act": True}, "batches": {"batch": 2, "trans_b": False},
}  # fmt: skip


def sampled(body: Body, arch: str, count: int, part: str = "", **sizes: int) -> list:
    found = schedule_rows([body], CARDS[arch], sizes, rulesets()).rows[body.hash]
    rows = [s for s in found if s.family == "mma" and s.row.stage.where == "smem-tma" and part in s.row.text]
    assert rows, f"no row has {part}"
    return random.Random(body.hash + part).sample(rows, min(count, len(rows)))


def kernel_of(body: Body, arch: str, scheduled) -> Kernel:
    return lower(body, scheduled.family, scheduled.row, CARDS[arch], "k")


def assert_right(body: Body, arch: str, scheduled, seed: int = 0, **sizes: int) -> None:
    kernel = kernel_of(body, arch, scheduled)
    given = check.operands(body, sizes, seed)
    expected = evaluate(body, given, sizes)
    names = [p.name for p in kernel.params if p.role in ("in", "out")]
    results = {n: int(np.prod(e.shape)) for n, e in zip(names[len(given) :], expected, strict=True)}
    done = simulate(kernel, CARDS[arch], dict(zip(names, given, strict=False)), sizes, results)
    assert not done.findings, scheduled.row.text + "\n" + "\n".join(map(str, done.findings))
    found = [done.outputs[n].reshape(e.shape) for n, e in zip(results, expected, strict=True)]
    assert check.distance(body, found, expected) < 1.0, scheduled.row.text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(64, 64, 64), (72, 56, 136), (56, 72, 120), (16, 8, 8)])
def test_every_layout_is_right_on_and_beside_whole_tiles(shape: tuple[int, int, int], layout: str) -> None:
    body = bodies.linear(*shape, **LAYOUTS[layout])
    for scheduled in sampled(body, "sm_120a", 2):
        assert_right(body, "sm_120a", scheduled)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("shape", [(1, 64, 64), (65, 33, 72), (63, 31, 56), (128, 256, 64)])
def test_one_row_and_odd_counts_of_rows_are_right(shape: tuple[int, int, int], dtype: str) -> None:
    body = bodies.linear(*shape, dtype)
    for scheduled in sampled(body, "sm_90a", 2):
        assert_right(body, "sm_90a", scheduled)


@pytest.mark.parametrize("part", ["/k2,", "/k4,", "/k8,", "d2/", "d3/", "d4/", "gm8", "/f1x1/", "/f4x8/"])
def test_kinds_of_rows_are_right(part: str) -> None:
    body = bodies.linear(264, 136, 136, trans_b=False)
    for scheduled in sampled(body, "sm_90a", 2, part):
        assert_right(body, "sm_90a", scheduled)


@pytest.mark.parametrize("by", ["rms", "max", "min"])
@pytest.mark.parametrize("shape", [(64, 64, 128), (65, 40, 136)])
def test_row_scalars_of_the_results_are_gathered_from_the_boxes(shape: tuple[int, int, int], by: str) -> None:
    body = bodies.scaled_linear(*shape, by=by)
    for scheduled in sampled(body, "sm_120a", 2, "REDUCE=,"):
        assert_right(body, "sm_120a", scheduled)
        loop = next(s for s in kernel_of(body, "sm_120a", scheduled).body if isinstance(s, For) and s.var.name == "t")
        assert any(isinstance(s, LoadVector) and s.place.space == "shared" for s in walk(loop.body))


BODIES = {
    "two sums": (bodies.swiglu(33, 40, 64), {}),
    "head split": (bodies.head_split(40, 2, 16, 64), {}),
    "rows by name": (bodies.linear(size("s"), 48, 64), {"s": 37}),
    "columns by name": (bodies.linear(24, size("s"), 64), {"s": 65}),
    "sum by name": (bodies.linear(40, 48, size("s"), trans_a=True, trans_b=False), {"s": 45}),
    "empty sum": (bodies.linear(8, 8, size("s"), trans_a=True, trans_b=False), {"s": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_every_sort_are_right(name: str) -> None:
    body, sizes = BODIES[name]
    for scheduled in sampled(body, "sm_90a", 3, **sizes):
        assert_right(body, "sm_90a", scheduled, **sizes)


def test_one_thread_asks_and_no_barrier_stands_in_the_loop() -> None:
    body = bodies.linear(128, 128, 512)
    for scheduled in sampled(body, "sm_120a", 3):
        kernel = kernel_of(body, "sm_120a", scheduled)
        loop = next(s for s in kernel.body if isinstance(s, For) and s.var.name == "t")
        assert any(isinstance(s, TmaLoad) for s in walk(loop.body))
        assert not any(isinstance(s, Barrier) for s in walk(loop.body))
        assert len(kernel.maps) == 2 and kernel.smem <= scheduled.config.smem
