"""NVRTC accepts kernels of every simple family for every target."""

from __future__ import annotations

import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.ir.target import TARGETS, target
from emmy.runtime.nvrtc import Compiled, Job, compile_many
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
