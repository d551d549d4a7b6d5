import re

import pytest

from emmy.errors import CompileError
from emmy.ir.target import TARGETS
from emmy.runtime.nvrtc import Job, compile_cubin, compile_many, nvrtc_version, resources

# every conversion that kernels need of 16- and 8-bit floats, without a header
HELPERS = r"""
typedef unsigned short u16;
__device__ __forceinline__ float bf16_to_f32(u16 x) { return __uint_as_float((unsigned)x << 16); }
__device__ __forceinline__ u16 f32_to_bf16(float x) {
    u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r;
}
__device__ __forceinline__ unsigned f32x2_to_bf16x2(float lo, float hi) {
    unsigned r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r;
}
__device__ __forceinline__ float f16_to_f32(u16 x) {
    float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r;
}
__device__ __forceinline__ u16 f32_to_f16(float x) {
    u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r;
}
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned char f32_to_e4m3(float x) {
    u16 r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.f), "f"(x)); return (unsigned char)r;
}
__device__ __forceinline__ unsigned char f32_to_e5m2(float x) {
    u16 r; asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.f), "f"(x)); return (unsigned char)r;
}
__device__ __forceinline__ float e4m3_to_f32(unsigned char x) {
    unsigned r; asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)x)); return f16_to_f32((u16)r);
}
#endif
extern "C" __global__ void __launch_bounds__(128) convert(const u16* __restrict__ x, u16* __restrict__ y, long long n) {
    __shared__ float stage[128];
    long long i = (long long)blockIdx.x * 128 + threadIdx.x;
    float v = i < n ? bf16_to_f32(x[i]) : 0.0f;
    stage[threadIdx.x] = v;
    __syncthreads();
    v += f16_to_f32(f32_to_f16(stage[127 - threadIdx.x])) + tanhf(v);
#if __CUDA_ARCH__ >= 890
    v += e4m3_to_f32(f32_to_e4m3(v)) + (float)f32_to_e5m2(v);
#endif
    if (i < n) y[i] = f32_to_bf16(v) + (u16)f32x2_to_bf16x2(v, v);
}
"""

# more live values than a thread of 1024 threads may hold in registers
SPILLING = r"""
extern "C" __global__ void __launch_bounds__(1024) spill(float* x, int n) {
    float a[160];
    #pragma unroll
    for (int i = 0; i < 160; i++) a[i] = x[threadIdx.x + i * 1024];
    for (int k = 0; k < n; k++) {
        #pragma unroll
        for (int i = 0; i < 160; i++) a[i] = a[i] * a[(i + 1) % 160] + x[k];
    }
    #pragma unroll
    for (int i = 0; i < 160; i++) x[threadIdx.x + i * 1024] = a[i];
}
"""


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", TARGETS)
def test_helpers_without_headers_compile_for_every_target(arch: str) -> None:
    compiled = compile_cubin(HELPERS, "convert", arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert b"convert" in compiled.cubin
    assert 0 < compiled.registers <= 255
    assert compiled.spill_bytes == 0
    # sm_90 and later reserve 1 KB a block for the system, which the assembler does not count here
    assert compiled.static_smem == 128 * 4


@pytest.mark.nvrtc
def test_spills_are_reported() -> None:
    assert compile_cubin(SPILLING, "spill", "sm_90a").spill_bytes > 0


@pytest.mark.nvrtc
def test_error_names_the_line_and_shows_it() -> None:
    source = 'extern "C" __global__ void k(float* x) {\n    int a = 1;\n    x[a] = undefined_name;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_cubin(source, "k", "sm_90a")
    assert "undefined_name" in caught.value.what
    assert re.search(r">\s+3 \|     x\[a\] = undefined_name;", caught.value.what)
    assert "refuses kernel 'k' for sm_90a" in caught.value.what
    assert "undefined_name" in caught.value.log


@pytest.mark.nvrtc
def test_error_of_the_assembler_has_its_reason() -> None:
    source = 'extern "C" __global__ void k(float* x) { __shared__ float s[60000]; s[threadIdx.x] = 1; x[0] = s[7]; }'
    with pytest.raises(CompileError, match="too much shared data"):
        compile_cubin(source, "k", "sm_80")


@pytest.mark.nvrtc
def test_missing_entry_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(CompileError, match=r"no entry 'other'.*it has: convert"):
        compile_cubin(HELPERS, "other", "sm_80")


@pytest.mark.nvrtc
def test_unknown_architecture_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="sm_1"):
        compile_cubin(HELPERS, "convert", "sm_1")


@pytest.mark.nvrtc
def test_many_keep_their_order_and_refusals_are_values() -> None:
    def kernel(name: str) -> str:
        return f'extern "C" __global__ void {name}(float* x) {{ x[threadIdx.x] += 1.0f; }}'

    jobs = [Job(kernel("a"), "a", "sm_80"), Job("not c++", "b", "sm_80"), Job(kernel("c"), "c", "sm_80")]
    first, second, third, again = compile_many([*jobs, jobs[0]], workers=2)
    assert not isinstance(first, CompileError) and b"a" in first.cubin
    assert isinstance(second, CompileError)
    assert not isinstance(third, CompileError) and first != third
    assert again is first
    assert compile_many([]) == []


@pytest.mark.nvrtc
def test_registers_do_not_need_the_log() -> None:
    source = """extern "C" __global__ void picks(const int* i, float* x) {
        float a[16];
        for (int k = 0; k < 16; ++k) a[k] = x[k];
        x[threadIdx.x] = a[i[threadIdx.x]];
    }"""
    compiled = compile_cubin(source, "picks", "sm_80")
    registers, _, _ = resources(compiled.cubin, compiled.log, "picks", "sm_80")
    assert registers == compiled.registers > 0
    assert resources(compiled.cubin, "", "picks", "sm_80")[0] == registers


@pytest.mark.nvrtc
def test_version_is_major_and_minor() -> None:
    assert re.fullmatch(r"\d+\.\d+", nvrtc_version())
