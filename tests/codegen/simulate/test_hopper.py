"""The kernel of TMA, roles and wgmma that is written by hand: exact for integers, whatever its knobs and the order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emmy.codegen.simulate import Simulation, simulate
from emmy.ir.kernel import ClusterBarrier, DependentWait, Kernel
from emmy.ir.target import target
from tests.codegen.hopper_fixture import hopper_gemm

CARD = target("sm_90a")
KNOBS: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "two groups": ((256, 256, 256), {}),
    "persistent": ((256, 512, 128), {"tile_n": 256, "blocks": 1}),
    "one group": ((256, 128, 192), {"groups": 1, "stages": 3}),
    "direct": ((250, 264, 200), {"store": "direct"}),
    "narrow": ((100, 72, 64), {"tile_n": 64, "stages": 8}),
    "pairs": ((300, 256, 256), {"tile_n": 256, "cluster": 2, "blocks": 2}),
    "pairs of narrow tiles": ((300, 192, 128), {"tile_n": 192, "groups": 1, "cluster": 2, "store": "direct"}),
    "dependent": ((128, 128, 64), {"dependent": True}),
}


def run(kernel: Kernel, shape: tuple[int, int, int], seed: int = 0) -> tuple[Simulation, bool]:
    m, n, k = shape
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-3, 4, s).astype(np.float32) for s in ((m, k), (n, k)))
    given = {name: v.astype(ml_dtypes.bfloat16) for name, v in (("a", a), ("b", b))}
    simulation = simulate(kernel, CARD, given, {}, {"c": m * n}, seed=seed)
    expected = (a @ b.T).astype(ml_dtypes.bfloat16).astype(np.float32)
    return simulation, np.array_equal(simulation.outputs["c"].reshape(m, n).astype(np.float32), expected)


@pytest.mark.parametrize("name", KNOBS)
def test_it_is_right(name: str) -> None:
    shape, knobs = KNOBS[name]
    simulation, right = run(hopper_gemm(*shape, **knobs), shape, seed=len(name))
    assert simulation.findings == ()
    assert right


def test_a_block_leaves_last() -> None:
    shape, knobs = KNOBS["pairs"]
    kernel = hopper_gemm(*shape, **knobs)
    assert isinstance(kernel.body[-1], ClusterBarrier)
    simulation, _ = run(replace(kernel, body=kernel.body[:-1]), shape)
    assert {f.kind for f in simulation.findings} == {"block ended"}


def test_memory_is_used_after_the_kernel_before() -> None:
    shape, knobs = KNOBS["dependent"]
    kernel = hopper_gemm(*shape, **knobs)
    early = tuple(s for s in kernel.body if not isinstance(s, DependentWait))
    simulation, _ = run(replace(kernel, body=early), shape)
    found = {(f.kind, f.buffer) for f in simulation.findings}
    assert found == {("dependent read", "a"), ("dependent read", "b"), ("dependent write", "c")}


def test_it_counts_what_the_tiles_say() -> None:
    shape = (256, 256, 256)
    simulation, _ = run(hopper_gemm(*shape), shape)
    c = simulation.counters
    assert c.flops == 2 * 256**3
    assert c.bytes_read == 2 * 2 * 2 * 256 * 256  # each operand by two blocks of columns or rows
    assert c.bytes_written == 2 * 256 * 256
    assert c.instructions["Wgmma"] == 4 * (256 // 16) * 2 * 4  # blocks, steps, warpgroups, warps
