"""A kernel of wgmma, TMA and roles in Kernel IR passes the verifier and the compiler, for every choice of its knobs."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from emmy.codegen.cuda import source
from emmy.codegen.simulate import simulate
from emmy.ir.kernel import Kernel
from emmy.ir.show_kernel import show_kernel
from emmy.ir.target import target
from emmy.ir.verify.kernel import verify
from emmy.runtime.nvrtc import Compiled, Job, compile_job, compile_many
from tests.codegen.hopper_fixture import hopper_gemm

CARD = target("sm_90a")
KERNELS: dict[str, Kernel] = {
    "two groups": hopper_gemm(512, 512, 512),
    "wide": hopper_gemm(512, 512, 512, tile_n=256, stages=4, blocks=132),
    "one group": hopper_gemm(512, 512, 512, groups=1, stages=3, blocks=2),
    "direct": hopper_gemm(500, 504, 200, store="direct"),
    "narrow": hopper_gemm(100, 72, 64, tile_n=64, stages=8),
    "pairs": hopper_gemm(1024, 512, 512, tile_n=256, cluster=2, blocks=66),
    "early": hopper_gemm(512, 512, 512, tile_n=256, blocks=132, dependent=True),
    "pairs of narrow tiles": hopper_gemm(300, 512, 512, tile_n=192, groups=1, cluster=2, store="direct"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_it_passes_the_verifier(name: str) -> None:
    verify(KERNELS[name], CARD)


def test_it_is_shown() -> None:
    text = show_kernel(KERNELS["two groups"])
    assert "ring ab of 4  full=1  empty=8" in text
    assert "map bf16 map_b[512, 512] of b  strides (512, 1)  box (128, 64)  swizzle 128 bytes" in text
    assert "wgmma.m64n128.bf16 acc[0 +64] = a_s[q_slot, group * 64, 0] * b_s[q_slot, 0, 0]" in text


@pytest.mark.nvrtc
def test_it_compiles_without_the_notes_that_cost_its_speed() -> None:
    built = compile_many([Job(source(k), k.name, "sm_90a") for k in KERNELS.values()])
    for (name, kernel), binary in zip(KERNELS.items(), built, strict=True):
        assert isinstance(binary, Compiled), f"{name}: {binary}"
        assert binary.notes == () and "warning" not in binary.log, name
        assert binary.spill_bytes == 0, name
        # what the roles' registers are counted from
        assert binary.registers <= kernel.launch_registers, name


@pytest.mark.nvrtc
def test_what_costs_its_speed_is_noted() -> None:
    unbounded = re.sub(r"__launch_bounds__\(.*?\)", "", source(KERNELS["two groups"]))
    (note,) = compile_job(Job(unbounded, "k_hopper", "sm_90a")).notes
    assert "'setmaxnreg' ignored" in note
    unwaited = re.sub(r"wgmma_wait<0>\(\);", "", source(KERNELS["direct"]))
    (note,) = compile_job(Job(unwaited, "k_hopper", "sm_90a")).notes
    assert "wait_group is injected" in note


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((256, 256, 256), {"blocks": 2}),
        ((130, 136, 72), {"groups": 1, "stages": 3}),
        ((130, 136, 72), {"store": "direct"}),
        ((1, 8, 8), {"tile_n": 64}),
        ((256, 256, 320), {"cluster": 2, "groups": 1, "tile_n": 64, "stages": 3, "blocks": 2}),
        ((256, 128, 128), {"dependent": True}),
    ],
    ids=str,
)
def test_its_values_are_right_in_the_simulator(shape: tuple[int, int, int], options: dict[str, object]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-2, 3, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    kernel = hopper_gemm(m, n, k, **options)  # type: ignore[arg-type]
    done = simulate(kernel, CARD, {"a": a, "b": b}, {}, {"c": m * n})
    assert [str(f) for f in done.findings] == []
    expected = (a.astype(np.float64) @ b.astype(np.float64).T).astype(ml_dtypes.bfloat16)
    assert np.array_equal(done.outputs["c"].reshape(m, n), expected)
