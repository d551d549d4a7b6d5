"""Runs generated CUDA on the CPU: `run(kernel, arrays)` compiles the printed source with g++ and calls it.

Each thread of a block is a fiber.  Barriers and warp operations switch fibers; one that not every thread reaches is an
error.  Asynchronous copies land when they are waited for and until then their target holds NaN bits; shared memory and
results start as NaN bits; arrays have guard zones that must not change.  Helper functions with PTX inside are replaced
by host versions (`HOST_HELPERS`), everything else is the source that NVRTC gets.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from emmy.codegen.cuda import memory_type, source
from emmy.ir.evaluate import integer
from emmy.ir.kernel import Kernel, Param

NUMPY: Final[dict[str, Any]] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2, "i64": np.int64, "i32": np.int32,
    "i16": np.int16, "i8": np.int8, "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip
GUARD: Final = 256  # bytes before and after every array
COMPILER: Final = os.environ.get("CXX", "g++")


class HostError(AssertionError):
    """The kernel did something that it must not do: deadlock, out of bounds, a wrong launch."""


def available() -> bool:
    return shutil.which(COMPILER) is not None


def run(kernel: Kernel, arrays: Sequence[np.ndarray[Any, Any]], sizes: Mapping[str, int] | None = None,
        shapes: Sequence[tuple[int, ...]] = (),
        initial: Sequence[np.ndarray[Any, Any]] = ()) -> list[np.ndarray[Any, Any]]:  # fmt: skip
    """Results of one launch.

    `arrays` in the order of the kernel's operands, in the numpy type of their storage type (`NUMPY`); `shapes` of the
    results; `sizes` binds symbolic sizes (by the names of the kernel's size parameters).  `initial` is what the
    results hold before (NaN bits where not given).
    """
    entry = _load(kernel)
    ins = [p for p in kernel.params if p.role == "in"]
    outs = [p for p in kernel.params if p.role == "out"]
    names = [p.name for p in kernel.params if p.role == "size"]
    assert len(arrays) == len(ins) and len(shapes) == len(outs), "one array an operand, one shape a result"
    held = [
        _guarded(np.ascontiguousarray(a).astype(NUMPY[p.type], copy=False)) for a, p in zip(arrays, ins, strict=True)
    ]
    results = [_guarded(np.empty(s, NUMPY[p.type]), poison=True) for s, p in zip(shapes, outs, strict=True)]
    for r, a in zip(results, initial, strict=False):
        r.array[...] = a
    own = [_own(p, sizes) for p in kernel.params if p.count is not None]
    pointers = [ctypes.c_void_p(h.address) for h in (*held, *results, *own)]
    values = [ctypes.c_longlong((sizes or {})[n]) for n in names]
    slots = [ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in (*pointers, *values)]
    grid = [integer(e, sizes) for e in kernel.grid]
    message = entry((ctypes.c_void_p * len(slots))(*slots), *grid, kernel.threads)
    if message:
        raise HostError(message.decode())
    for h, p in zip((*held, *results), (*ins, *outs), strict=True):
        if not h.intact():
            raise HostError(f"{kernel.name} wrote outside of {p.name}")
    return [r.array for r in results]


def _own(p: Param, sizes: Mapping[str, int] | None) -> _Guarded:
    """Memory of the launch's own, zeros where it expects them."""
    assert p.count is not None
    made = np.zeros(integer(p.count, sizes or {}), NUMPY[p.type])
    return _guarded(made, poison=p.role == "scratch")


class _Guarded:
    def __init__(self, a: np.ndarray[Any, Any], poison: bool) -> None:
        raw = np.full(a.nbytes + 2 * GUARD + 64, 0xFF, np.uint8)
        start = -raw.ctypes.data % 64 + GUARD
        self.raw, self.start, self.bytes = raw, start, a.nbytes
        if not poison:
            raw[start : start + a.nbytes] = a.reshape(-1).view(np.uint8)
        self.address = raw.ctypes.data + start
        self.array = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)

    def intact(self) -> bool:
        return bool((self.raw[: self.start] == 0xFF).all() and (self.raw[self.start + self.bytes :] == 0xFF).all())


def _guarded(a: np.ndarray[Any, Any], poison: bool = False) -> _Guarded:
    return _Guarded(a, poison)


@functools.cache
def _folder() -> Path:
    path = Path(tempfile.gettempdir()) / f"emmy-host-cuda-{os.getuid()}"
    path.mkdir(exist_ok=True)
    return path


def _build(text: str, flags: Sequence[str], suffix: str) -> Path:
    key = hashlib.sha256("\0".join((text, *flags)).encode()).hexdigest()[:24]
    target = _folder() / f"{key}{suffix}"
    if target.exists():
        return target
    cpp = _folder() / f"{key}.{os.getpid()}.cpp"
    cpp.write_text(text)
    scratch = cpp.with_suffix(f".{os.getpid()}{suffix}")
    done = subprocess.run([COMPILER, "-std=c++17", "-O1", "-w", "-fPIC", *flags, str(cpp), "-o", str(scratch)],
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise HostError(f"{COMPILER} refused {cpp}:\n{done.stderr[:4000]}")
    scratch.replace(target)
    cpp.unlink()
    return target


@functools.cache
def _load_runtime() -> ctypes.CDLL:
    """One for all kernels of the process, which find its symbols: the stacks of a block's threads are large."""
    text = (Path(__file__).parent / "host" / "runtime.cpp").read_text()
    return ctypes.CDLL(str(_build(text, ["-shared"], ".so")), mode=ctypes.RTLD_GLOBAL)


def _load(kernel: Kernel) -> Any:
    here = Path(__file__).parent / "host"
    _load_runtime()
    text = source(kernel, HOST_HELPERS)
    text = text.replace("extern __shared__ __align__(1024) unsigned char shared_memory[];", "")
    arguments = ", ".join(
        f"*(const long long*)a[{i}]" if p.role == "size" else f"*({memory_type(p.type)}**)a[{i}]"
        for i, p in enumerate(kernel.params)
    )
    text = (
        f"{(here / 'shim.h').read_text()}\n{text}\nstatic void** arguments;\n"
        f"static void body() {{ void** a = arguments; {kernel.name}({arguments}); }}\n"
        f'extern "C" const char* launch(void** a, int x, int y, int z, int threads) {{\n'
        f"    arguments = a;\n    const long bytes = __stop_emmy_shared - __start_emmy_shared;\n"
        f"    return host_launch(body, __start_emmy_shared, bytes, x, y, z, threads);\n}}\n"
    )
    library = _build(text, ["-shared"], ".so")
    entry = ctypes.CDLL(str(library)).launch
    entry.restype = ctypes.c_char_p
    entry.argtypes = [ctypes.c_void_p, *[ctypes.c_int] * 4]
    return entry


_F: Final = "static inline"
HOST_HELPERS: Final[dict[str, str]] = {
    "fence_device": f"{_F} void fence_device() {{}}",
    "f32_to_bf16": f"""{_F} unsigned short f32_to_bf16(float x) {{
    const unsigned b = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}}""",
    "f16_to_f32": f"{_F} float f16_to_f32(unsigned short x) {{ return host_half_to_float(x); }}",
    "f32_to_f16": f"{_F} unsigned short f32_to_f16(float x) {{ return host_float_to_half(x); }}",
    "pack_bf16x2": f"""{_F} unsigned pack_bf16x2(float low, float high) {{
    return (unsigned)f32_to_bf16(low) | (unsigned)f32_to_bf16(high) << 16;
}}""",
    "pack_f16x2": f"""{_F} unsigned pack_f16x2(float low, float high) {{
    return (unsigned)f32_to_f16(low) | (unsigned)f32_to_f16(high) << 16;
}}""",
    "max_f32": f"{_F} float max_f32(float a, float b) {{ return a != a ? a : (b != b ? b : (a > b ? a : b)); }}",
    "min_f32": f"{_F} float min_f32(float a, float b) {{ return a != a ? a : (b != b ? b : (a < b ? a : b)); }}",
    "exp2_fast": f"{_F} float exp2_fast(float x) {{ return exp2f(x); }}",
    "exp_fast": f"{_F} float exp_fast(float x) {{ return expf(x); }}",
    "sigmoid_fast": f"{_F} float sigmoid_fast(float x) {{ return 1.0f / (1.0f + expf(-x)); }}",
    **{
        f"copy{n}": f"{_F} void copy{n}(void* d, const void* s) {{ host_aligned(d, {n}); host_aligned(s, {n}); "
        f"memcpy(d, s, {n}); }}"
        for n in (1, 2, 4, 8, 16)
    },
    **{
        f"async_copy{n}": f"{_F} void async_copy{n}(void* d, const void* s, bool full) {{ "
        f"host_async_copy(d, s, {n}, full); }}"
        for n in (4, 8, 16)
    },
    # launches run one after the other
    "dependent_launch": f"{_F} void dependent_launch() {{}}",
    "dependent_wait": f"{_F} void dependent_wait() {{}}",
    "async_commit": f"{_F} void async_commit() {{ host_async_commit(); }}",
    "async_wait": "template <int N> static inline void async_wait() { host_async_wait(N); }",
    **{
        f"ldmatrix_x{n}{t}": f"{_F} void ldmatrix_x{n}{t}({', '.join(f'unsigned& r{i}' for i in range(n))}, "
        f"const void* s) {{ unsigned r[{n}]; host_ldmatrix(r, {n}, s, {'true' if t else 'false'}); "
        + " ".join(f"r{i} = r[{i}];" for i in range(n)) + " }"
        for n in (1, 2, 4)
        for t in ("", "_trans")
    },
    **{
        f"mma_m16n8k16_{t}": f"""{_F} void mma_m16n8k16_{t}(float& d0, float& d1, float& d2, float& d3,
    unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
    float c0, float c1, float c2, float c3) {{
    const unsigned a[4] = {{a0, a1, a2, a3}}, b[2] = {{b0, b1}};
    const float c[4] = {{c0, c1, c2, c3}};
    float d[4];
    host_mma(d, a, b, c, {'true' if t == 'bf16' else 'false'});
    d0 = d[0]; d1 = d[1]; d2 = d[2]; d3 = d[3];
}}"""
        for t in ("bf16", "f16")
    },
}  # fmt: skip
