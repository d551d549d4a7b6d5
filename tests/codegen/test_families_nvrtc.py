"""NVRTC accepts kernels of every simple family for every target."""

from __future__ import annotations

import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.ir.kernel import ShiftVector, walk
from emmy.ir.target import TARGETS, target
from emmy.runtime.nvrtc import Compiled, Job, compile_many
from tests.codegen import small
from tests.codegen.test_families import CASES, rows

pytestmark = pytest.mark.nvrtc


# bytes a thread: the assembler gives up a register or two of its own accord to fit more blocks on an SM
FEW = 16


@pytest.mark.parametrize("arch", TARGETS)
def test_sampled_rows_compile(arch: str) -> None:
    jobs = []
    for name, (body, sizes) in CASES.items():
        for s in rows(body, sizes, 0, seed=len(name)):
            kernel = lower(body, s.family, s.row, target(arch), "k_test")
            jobs.append((f"{name}: {s.row.text}", Job(source(kernel), kernel.name, arch)))
    built = compile_many([job for _, job in jobs])
    for (what, _), binary in zip(jobs, built, strict=True):
        assert isinstance(binary, Compiled), f"{what}: {binary}"
        assert "warning" not in binary.log, what
        assert binary.spill_bytes <= FEW, what


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_runs_that_begin_anywhere_compile_and_do_not_spill(dtype: str, arch: str) -> None:
    body = small.padded_copy(4095, 4095, 4096, dtype)
    found = [s for s in rows(body, {}, 0, seed=1) if s.family == "map" and s.row.tile.fragment[-1] >= 8]
    kernels = [lower(body, s.family, s.row, target(arch), "k_test") for s in found]
    assert found and all(any(isinstance(x, ShiftVector) for x in walk(k.body)) for k in kernels)
    for s, binary in zip(found, compile_many([Job(source(k), k.name, arch) for k in kernels]), strict=True):
        assert isinstance(binary, Compiled), f"{s.row.text}: {binary}"
        assert "warning" not in binary.log and binary.spill_bytes == 0, s.row.text
