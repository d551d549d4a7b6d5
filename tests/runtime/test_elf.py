"""What a cubin says of its kernels agrees with what the assembler says of them."""

import re

import pytest

from emmy.ir.target import TARGETS
from emmy.runtime.elf import entries
from emmy.runtime.nvrtc import compile_cubin

SOURCE = """extern "C" __global__ void first(const float* x, float* y) {
    __shared__ float s[300];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = expf(s[255 - threadIdx.x]);
}
extern "C" __global__ void second(float* y) { y[threadIdx.x] = 1.0f; }
"""


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", TARGETS)
def test_registers_of_each_entry_are_those_of_the_assembler(arch: str) -> None:
    compiled = compile_cubin(SOURCE, "first", arch)
    found = entries(compiled.cubin)
    said = dict(re.findall(r"entry function '(\w+)'.*?Used (\d+) registers", compiled.log, re.S))
    assert {n: e.registers for n, e in found.items()} == {n: int(r) for n, r in said.items()}
    assert compiled.static_smem == 1200
    assert compile_cubin(SOURCE, "second", arch).static_smem == 0


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"no cubin at all" * 10])
def test_bytes_that_are_no_cubin_hold_no_entries(data: bytes) -> None:
    assert entries(data) == {}
