"""Runs a generated CUDA kernel on the CPU: g++ compiles the same source, threads of a block are fibers.

Warp-wide operations (shuffles, ldmatrix, mma) meet as they do on the card: the last lane to arrive does the work for
all.  Asynchronous copies take effect at the latest moment that the thread's waits allow, so a read before its wait
sees stale memory.  Shared memory starts as NaN patterns; operands and results lie against unmapped pages, so that a
read or write past their end (of more than the 16 bytes they are rounded to) ends the process.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from emmy.codegen.cuda import source
from emmy.codegen.cuda_helpers import HELPERS
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Const, Expr, Op, Size

NUMPY: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i64": np.int64,
    "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip

_F = "static inline"
_MMA = """static inline void NAME(float& d0, float& d1, float& d2, float& d3,
    unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
    const unsigned mine[6] = {a0, a1, a2, a3, b0, b1};
    const float c[4] = {c0, c1, c2, c3};
    float d[4];
    warp_mma(mine, c, d, CONVERT);
    d0 = d[0]; d1 = d[1]; d2 = d[2]; d3 = d[3];
}"""


def _ldmatrix(count: int, trans: bool) -> str:
    refs = ", ".join(f"unsigned& r{i}" for i in range(count))
    takes = " ".join(f"r{i} = r[{i}];" for i in range(count))
    name = f"ldmatrix_x{count}{'_trans' if trans else ''}"
    return f"{_F} void {name}({refs}, const void* s) {{ unsigned r[4]; warp_ldmatrix(r, s, {count}, {int(trans)}); {takes} }}"


HOST: dict[str, str] = {
    "EMMY_INF": "#define EMMY_INF __builtin_inff()",
    "EMMY_NAN": '#define EMMY_NAN __builtin_nanf("")',
    "f32_to_bf16": f"{_F} unsigned short f32_to_bf16(float x) {{ return host_f32_to_bf16(x); }}",
    "f16_to_f32": f"{_F} float f16_to_f32(unsigned short x) {{ return host_f16_to_f32(x); }}",
    "f32_to_f16": f"{_F} unsigned short f32_to_f16(float x) {{ return host_f32_to_f16(x); }}",
    "pack_bf16x2": f"{_F} unsigned pack_bf16x2(float a, float b) {{ return host_f32_to_bf16(a) | (unsigned)host_f32_to_bf16(b) << 16; }}",
    "pack_f16x2": f"{_F} unsigned pack_f16x2(float a, float b) {{ return host_f32_to_f16(a) | (unsigned)host_f32_to_f16(b) << 16; }}",
    "max_f32": f"{_F} float max_f32(float a, float b) {{ return a != a ? a : b != b ? b : a > b ? a : b; }}",
    "min_f32": f"{_F} float min_f32(float a, float b) {{ return a != a ? a : b != b ? b : a < b ? a : b; }}",
    "exp2_fast": f"{_F} float exp2_fast(float x) {{ return exp2f(x); }}",
    "async_commit": f"{_F} void async_commit() {{ host_commit(); }}",
    "async_wait": "template <int N> static inline void async_wait() { host_wait(N); }",
    **{f"async_copy{n}": f"{_F} void async_copy{n}(void* d, const void* s, bool full) {{ host_copy(d, s, {n}, full); }}"
       for n in (4, 8, 16)},
    **{f"ldmatrix_x{n}{'_trans' if t else ''}": _ldmatrix(n, t) for n in (1, 2, 4) for t in (False, True)},
    "mma_m16n8k16_bf16": _MMA.replace("NAME", "mma_m16n8k16_bf16").replace("CONVERT", "host_bf16_to_f32"),
    "mma_m16n8k16_f16": _MMA.replace("NAME", "mma_m16n8k16_f16").replace("CONVERT", "host_f16_to_f32"),
}  # fmt: skip

PRELUDE = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static
struct dim3i { unsigned x, y, z; };
static dim3i threadIdx, blockIdx, gridDim, blockDim;
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
static inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
static inline float __uint_as_float(unsigned x) { float f; memcpy(&f, &x, 4); return f; }
static inline float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }
static inline unsigned __float_as_uint(float x) { unsigned f; memcpy(&f, &x, 4); return f; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
template <class T> static inline T atomicAdd(T* p, T v) { T o = *p; *p = o + v; return o; }
template <class T> static inline T atomicMax(T* p, T v) { T o = *p; *p = o > v ? o : v; return o; }
template <class T> static inline T atomicMin(T* p, T v) { T o = *p; *p = o < v ? o : v; return o; }
static inline float host_bf16_to_f32(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
static inline unsigned short host_f32_to_bf16(float x) {
    unsigned b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return (unsigned short)0x7fff;
    return (unsigned short)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}
static inline float host_f16_to_f32(unsigned short x) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
static inline unsigned short host_f32_to_f16(float x) { _Float16 h = (_Float16)x; unsigned short r; memcpy(&r, &h, 2); return r; }

// ---- fibers ----
struct Copy { void* d; const void* s; int n; bool full; };
struct Fiber { ucontext_t ctx; std::vector<char> stack; bool done; std::vector<std::vector<Copy>> groups; std::vector<Copy> open; };
struct Warp { int arrived = 0; long generation = 0; uint64_t slot[32]; unsigned words[32][6]; const void* rows[32]; uint64_t result[32]; };
static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static int current, block_arrived;
static long block_generation;
static long progress;
static inline void yield() { int me = current; swapcontext(&fibers[me].ctx, &scheduler); }
static inline Warp& warp() { return warps[current / 32]; }
static int lanes() { int n = (int)blockDim.x - current / 32 * 32; return n < 32 ? n : 32; }
template <class F> static inline void meet(F last) {
    Warp& w = warp();
    long g = w.generation;
    if (++w.arrived == lanes()) { last(w); w.arrived = 0; ++w.generation; ++progress; }
    else while (w.generation == g) yield();
}
static inline void __syncwarp(unsigned = 0xffffffffu) { meet([](Warp&) {}); }
static inline void __syncthreads() {
    long g = block_generation;
    if (++block_arrived == (int)blockDim.x) { block_arrived = 0; ++block_generation; ++progress; }
    else while (block_generation == g) yield();
}
template <class T> static inline T exchange(T v, int source) {
    Warp& w = warp();
    int lane = current % 32;
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof(T));
    w.slot[lane] = bits;
    meet([](Warp& x) { memcpy(x.result, x.slot, sizeof(x.slot)); });
    T r;
    memcpy(&r, &warp().result[source], sizeof(T));
    meet([](Warp&) {});
    return r;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    int base = current % 32 / width * width; return exchange(v, base + lane % width);
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask, int width = 32) { return exchange(v, (current % 32) ^ mask); }
template <class T> static inline T __shfl_up_sync(unsigned, T v, int by, int width = 32) {
    int l = current % 32; return exchange(v, l % width >= by ? l - by : l);
}
template <class T> static inline T __shfl_down_sync(unsigned, T v, int by, int width = 32) {
    int l = current % 32; return exchange(v, l % width + by < width ? l + by : l);
}
static inline void host_copy(void* d, const void* s, int n, bool full) {
    if ((uintptr_t)d % n || (full && (uintptr_t)s % n)) { fprintf(stderr, "misaligned asynchronous copy\n"); exit(3); }
    fibers[current].open.push_back({d, s, n, full});
}
static inline void host_commit() { Fiber& f = fibers[current]; f.groups.push_back(f.open); f.open.clear(); }
static inline void host_wait(int pending) {
    Fiber& f = fibers[current];
    while ((int)f.groups.size() > pending) {
        for (auto& c : f.groups.front()) { if (c.full) memcpy(c.d, c.s, c.n); else memset(c.d, 0, c.n); }
        f.groups.erase(f.groups.begin());
    }
}
static void warp_ldmatrix(unsigned* r, const void* s, int count, int trans) {
    int lane = current % 32;
    if (lane < count * 8 && (uintptr_t)s % 16) { fprintf(stderr, "misaligned ldmatrix row\n"); exit(3); }
    warp().rows[lane] = s;
    meet([](Warp&) {});
    Warp& w = warp();
    for (int i = 0; i < count; ++i) {
        unsigned short two[2];
        for (int h = 0; h < 2; ++h) {
            int row = lane / 4, column = lane % 4 * 2 + h;
            if (trans) { int t = row; row = column; column = t; }
            two[h] = ((const unsigned short*)w.rows[8 * i + row])[column];
        }
        r[i] = two[0] | (unsigned)two[1] << 16;
    }
    meet([](Warp&) {});
}
template <class C> static void warp_mma(const unsigned* mine, const float* c, float* d, C convert) {
    int lane = current % 32;
    memcpy(warp().words[lane], mine, 24);
    meet([](Warp&) {});
    Warp& w = warp();
    for (int q = 0; q < 4; ++q) {
        int row = lane / 4 + q / 2 * 8, column = lane % 4 * 2 + q % 2;
        float sum = c[q];
        for (int k = 0; k < 16; ++k) {
            unsigned a = w.words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], b = w.words[column * 4 + k % 8 / 2][4 + k / 8];
            sum += convert((unsigned short)(a >> k % 2 * 16)) * convert((unsigned short)(b >> k % 2 * 16));
        }
        d[q] = sum;
    }
    meet([](Warp&) {});
}
static unsigned char* emmy_shared;
"""

DRIVER = r"""
static void (*entry)();
static void body() { entry(); fibers[current].done = true; ++progress; yield(); }
static void* guarded(size_t bytes) {
    size_t page = 4096, round = (bytes + 15) / 16 * 16, span = (round + page - 1) / page * page;
    char* p = (char*)mmap(0, span + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(p, page, PROT_NONE);
    mprotect(p + page + span, page, PROT_NONE);
    return p + page + (span - round);
}
static bool run_block(int threads) {
    fibers.assign(threads, Fiber());
    warps.assign((threads + 31) / 32, Warp());
    block_arrived = 0;
    for (auto& f : fibers) {
        f.stack.resize(256 * 1024);
        f.done = false;
        getcontext(&f.ctx);
        f.ctx.uc_stack.ss_sp = f.stack.data();
        f.ctx.uc_stack.ss_size = f.stack.size();
        f.ctx.uc_link = &scheduler;
        makecontext(&f.ctx, body, 0);
    }
    for (;;) {
        bool left = false;
        long before = progress;
        for (int t = 0; t < threads; ++t) {
            if (fibers[t].done) continue;
            left = true;
            current = t;
            threadIdx = {(unsigned)t, 0, 0};
            swapcontext(&scheduler, &fibers[t].ctx);
        }
        if (!left) return true;
        if (progress == before) { fprintf(stderr, "deadlock in block %u\n", blockIdx.x); return false; }
    }
}
"""


def extent(e: Expr, sizes: Mapping[str, int]) -> int:
    """A grid extent at concrete sizes."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Size):
        return sizes[e.name]
    assert isinstance(e, Op)
    a, b = (extent(x, sizes) for x in e.args)
    return {"add": a + b, "mul": a * b, "floordiv": a // b if b else 0, "mod": a % b if b else 0}[e.name]


def program(kernel: Kernel, sizes: Mapping[str, int], nbytes: Sequence[int]) -> str:
    """The whole C++ program: reads operands from a file, runs every block, writes all pointers' memory back."""
    text = source(kernel, {**HELPERS, **HOST})
    text = text.replace("extern __shared__ __align__(1024) unsigned char shared_memory[];", "unsigned char* shared_memory = emmy_shared;")
    pointers = [p for p in kernel.params if p.role != "size"]
    numbers = [p for p in kernel.params if p.role == "size"]
    calls = ", ".join([f"(decltype(arg{i}()))pointers[{i}]" for i in range(len(pointers))] + [f"{sizes[p.name]}LL" for p in numbers])
    types = [f"static inline {c}* arg{i}() {{ return 0; }}" for i, c in enumerate(_pointer_types(text, kernel, len(pointers)))]
    grid = [extent(g, sizes) for g in kernel.grid]
    lengths = ", ".join(map(str, nbytes))
    main = f"""
static void* pointers[{max(1, len(pointers))}];
{chr(10).join(types)}
static void call() {{ {kernel.name}({calls}); }}
int main(int argc, char** argv) {{
    const size_t bytes[] = {{{lengths}}};
    FILE* in = fopen(argv[1], "rb");
    for (int i = 0; i < {len(pointers)}; ++i) {{ pointers[i] = guarded(bytes[i]); if (bytes[i] && fread(pointers[i], 1, bytes[i], in) != bytes[i]) return 4; }}
    fclose(in);
    emmy_shared = (unsigned char*)aligned_alloc(1024, {(kernel.smem // 1024 + 1) * 1024});
    gridDim = {{{grid[0]}, {grid[1]}, {grid[2]}}};
    blockDim = {{{kernel.threads}, 1, 1}};
    entry = call;
    for (unsigned z = 0; z < gridDim.z; ++z) for (unsigned y = 0; y < gridDim.y; ++y) for (unsigned x = 0; x < gridDim.x; ++x) {{
        blockIdx = {{x, y, z}};
        memset(emmy_shared, 0xff, {kernel.smem});
        if (!run_block({kernel.threads})) return 5;
    }}
    FILE* out = fopen(argv[2], "wb");
    for (int i = 0; i < {len(pointers)}; ++i) fwrite(pointers[i], 1, bytes[i], out);
    fclose(out);
    return 0;
}}
"""
    return PRELUDE + text + DRIVER + main


def _pointer_types(text: str, kernel: Kernel, count: int) -> list[str]:
    """C types of the pointer parameters, as the printer wrote them."""
    head = text[text.index(f"{kernel.name}(") + len(kernel.name) + 1 :]
    head = head[: head.index(") {")]
    return [p.split("*")[0].strip() for p in head.split(",")[:count]]


def run(
    kernel: Kernel, operands: Sequence[np.ndarray[Any, Any]], results: Sequence[np.ndarray[Any, Any]], sizes: Mapping[str, int] | None = None
) -> list[np.ndarray[Any, Any]]:
    """Launches the kernel on operands; `results` give shape, type and the former contents of each result (poison)."""
    arrays = [np.ascontiguousarray(a) for a in (*operands, *results)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "k.cpp").write_text(program(kernel, sizes or {}, [a.nbytes for a in arrays]))
        # the kernel runs on fibers: no stack protector, and no assumption that globals stay over a switch
        build = ["g++", "-O1", "-std=c++17", "-w", "-fno-strict-aliasing", "-o", str(root / "k"), str(root / "k.cpp")]
        built = subprocess.run(build, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[:4000]
        (root / "in").write_bytes(b"".join(a.tobytes() for a in arrays))
        done = subprocess.run([str(root / "k"), str(root / "in"), str(root / "out")], capture_output=True, text=True)
        assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[:2000]}"
        data = (root / "out").read_bytes()
    at = sum(a.nbytes for a in arrays[: len(operands)])
    found = []
    for r in arrays[len(operands) :]:
        found.append(np.frombuffer(data, r.dtype, r.size, at).reshape(r.shape))
        at += r.nbytes
    return found
