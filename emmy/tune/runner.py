"""Measures CUDA kernels: reads a packet (a folder with `manifest.json`), writes one JSON line a candidate.

    python runner.py [PACKET] [--out FILE] [--devices 0,1] [--jobs N] [--seconds S]

This one file needs Python, numpy and the CUDA bindings (`pip install numpy cuda-bindings nvidia-cuda-nvrtc`), and is
copied into every packet.  A group of a packet holds buffers and candidates, each a list of launches over them.

- Sources are compiled ahead by threads (NVRTC releases the interpreter's lock), so that the GPU does not wait.
- A worker process a GPU does everything that touches it.  One that hangs or dies is replaced; the candidate that it was
  at is recorded as failed, with the kind of failure, and the others go on.
- A candidate is checked before it is timed: outputs are poisoned with 0xFF bytes, then compared on the GPU with the
  packet's expected values or with the results of its check candidate; operands must be as they were before.
- A sample is the time between two CUDA events around a graph of launches, each on a copy of the buffers of its own.
  L2 is cold: copies that do not exceed twice the L2 together are preceded by a read of as many other bytes.  Warm
  samples, a second figure for the best, launch on one copy again and again.
- Candidates of a batch are sampled in turns, the anchor among them, the order turned around every other round:
  3 samples each; 7 more within 1.3 of the best; 20 more within 1.05 (successive halving).
- A median below what the card needs for the bytes and operations of a group is rejected.

Times are seconds, clocks Hz, sizes bytes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import hashlib
import json
import math
import os
import queue
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

Json = dict[str, Any]
FORMAT: Final = "emmy-packet"
VERSION: Final = 1
NVRTC_OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v")
# (bytes, code of the compare kernel, largest finite value)
DTYPES: Final[dict[str, tuple[int, int, float]]] = {
    "f32": (4, 0, 3.4028234663852886e38), "f16": (2, 1, 65504.0), "bf16": (2, 2, 3.3895313892515355e38),
    "f8e4m3": (1, 3, 448.0), "f8e5m2": (1, 4, 57344.0), "f64": (8, 5, 1.7976931348623157e308), "i64": (8, 6, 0.0),
    "i32": (4, 7, 0.0), "i16": (2, 8, 0.0), "i8": (1, 9, 0.0), "u8": (1, 10, 0.0), "bool": (1, 11, 0.0),
}  # fmt: skip
BATCH: Final = 12
ROUNDS: Final = ((3, math.inf), (7, 1.3), (20, 1.05))  # samples, and up to how much slower than the best
SAMPLE_SECONDS: Final = 200e-6
MOST_COPIES: Final = 64
GUARD: Final = 512  # bytes behind every output that must stay poisoned
FAR: Final = 10.0
CHECK_SECONDS: Final = 10.0
SETUP_SECONDS: Final = 120.0
FATAL: Final = {700: "illegal address", 714: "launch failure", 715: "illegal instruction", 716: "misaligned address",
                717: "illegal address", 718: "launch failure", 719: "launch failure", 710: "assertion"}  # fmt: skip

# ---- packets ---------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,199}")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_FILE = re.compile(r"(sources/[0-9a-f]{16}\.cu|data/[0-9a-f]{16}\.npy)")
_GRID = (2**31 - 1, 65535, 65535)
_MOST_BYTES: Final = 1 << 40
_MOST_MANIFEST: Final = 256 << 20


class BadPacket(Exception):
    """A packet that is not one of ours; says which field is wrong and what was expected."""


class _Field:
    """A JSON value with its place in the manifest."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def bad(self, expected: str) -> BadPacket:
        shown = repr(self.value)
        return BadPacket(f"{self.where} must be {expected}, found {shown[:80]}")

    def get(self, key: str, default: Any = None) -> _Field:
        if not isinstance(self.value, dict):
            raise self.bad("an object")
        if key not in self.value and default is None:
            raise BadPacket(f"{self.where} lacks {key!r}")
        return _Field(self.value.get(key, default), f"{self.where}.{key}")

    def items(self, most: int = 1_000_000) -> list[_Field]:
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.bad(f"a list of at most {most}")
        return [_Field(v, f"{self.where}[{k}]") for k, v in enumerate(self.value)]

    def pairs(self) -> list[tuple[str, _Field]]:
        if not isinstance(self.value, dict):
            raise self.bad("an object")
        return [(k, _Field(v, f"{self.where}.{k}")) for k, v in self.value.items()]

    def text(self, pattern: re.Pattern[str] | None = None, expected: str = "a short text") -> str:
        ok = isinstance(self.value, str) and len(self.value) <= 2000
        if not ok or (pattern is not None and not pattern.fullmatch(self.value)):
            raise self.bad(expected)
        return str(self.value)

    def integer(self, low: int, high: int) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.bad(f"a whole number from {low} to {high}")
        return int(self.value)

    def number(self, low: float, high: float) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not low <= self.value <= high:
            raise self.bad(f"a number from {low:g} to {high:g}")
        return float(self.value)

    def one_of(self, allowed: Sequence[str] | Mapping[str, Any]) -> str:
        if not isinstance(self.value, str) or self.value not in allowed:
            raise self.bad(f"one of {', '.join(list(allowed)[:20])}")
        return self.value


def read_manifest(folder: Path) -> Json:
    """The manifest of a packet, every field checked; nothing outside of the folder is named by it."""
    path = folder / "manifest.json"
    try:
        if path.stat().st_size > _MOST_MANIFEST:
            raise BadPacket(f"{path} is larger than {_MOST_MANIFEST >> 20} MiB")
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadPacket(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise BadPacket(f"{path} is not JSON: {e}") from e
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadPacket(f"{path} is no packet (no format {FORMAT!r})")
    if manifest.get("version") != VERSION:
        raise BadPacket(f"{path} has version {manifest.get('version')!r}, this runner reads {VERSION}")
    check_manifest(manifest, folder)
    return manifest


def check_manifest(manifest: Json, folder: Path | None = None) -> None:
    """BadPacket where a field is wrong, or a file that it names is not in `folder`."""
    root = _Field(manifest, "manifest")
    target = root.get("target")
    target.get("gpu").text()
    target.get("capability").integer(50, 999)
    target.get("arch").text(re.compile(r"sm_\d{2,3}[af]?"), "like sm_90a")
    sources = {}
    for name, s in root.get("sources").pairs():
        s.get("entry").text(_ENTRY, "a C identifier")
        sources[name] = s.get("file").text(_FILE, "a file of the packet, sources/<16 hex digits>.cu")
        _present(folder, sources[name], s)
    ids: set[str] = set()
    for g in root.get("groups").items():
        _check_group(g, sources, folder)
        for c in g.get("candidates").items():
            key = g.value["id"] + "/" + c.value["id"]
            if key in ids:
                raise BadPacket(f"{c.where}: a second candidate {key!r}")
            ids.add(key)


def _present(folder: Path | None, name: str, field: _Field) -> None:
    if folder is not None and ((folder / name).is_symlink() or not (folder / name).is_file()):
        raise BadPacket(f"{field.where}: the packet has no file {name}")


def _check_group(g: _Field, sources: Mapping[str, str], folder: Path | None) -> None:
    g.get("id").text(_NAME, "a name")
    g.get("least_seconds").number(0, 1e6)
    for key in ("body", "name"):
        g.get(key, "").text()
    buffers: dict[str, str] = {}
    total = 0
    for b in g.get("buffers").items(100_000):
        name = b.get("name").text(_NAME, "a name")
        if name in buffers:
            raise BadPacket(f"{b.where}: a second buffer {name!r}")
        buffers[name] = b.get("role").one_of(("in", "out", "update", "temp"))
        total += b.get("count").integer(0, 1 << 40) * DTYPES[b.get("dtype").one_of(DTYPES)][0]
        _check_fill(b.get("fill", {"kind": "zeros"}), folder)
    if total > _MOST_BYTES:
        raise BadPacket(f"{g.where}: its buffers take {total} bytes")
    written = {n for n, role in buffers.items() if role in ("out", "update")}
    for name, t in g.get("tolerance").pairs():
        if name not in written:
            raise BadPacket(f"{t.where}: no output is called {name!r}")
        t.number(0, 1)
    for name, f in g.get("expected", {}).pairs():
        if name not in written:
            raise BadPacket(f"{f.where}: no output is called {name!r}")
        _present(folder, f.text(_FILE, "a file of the packet, data/<16 hex digits>.npy"), f)
    ids = {c.get("id").text(_NAME, "a name") for c in g.get("candidates").items()}
    for key in ("anchor", "check"):
        if g.get(key, "").text() not in ids | {""}:
            raise g.get(key).bad("the id of a candidate of the group")
    if not g.value.get("check") and set(g.value.get("expected", {})) != written:
        raise BadPacket(f"{g.where}: neither a check candidate nor expected values of all outputs")
    for c in g.get("candidates").items():
        for key in ("family", "row"):
            c.get(key, "").text()
        for l in [*c.get("launches").items(100_000), *c.get("setup", []).items(100_000)]:
            _check_launch(l, sources, buffers)


def _check_fill(f: _Field, folder: Path | None) -> None:
    kind = f.get("kind").one_of(("normal", "integers", "file", "zeros"))
    if kind == "normal":
        f.get("mean").number(-1e6, 1e6)
        f.get("std").number(0, 1e6)
    elif kind == "integers":
        high = f.get("high").integer(-(1 << 62), 1 << 62)
        f.get("low").integer(-(1 << 62), high)
    elif kind == "file":
        _present(folder, f.get("file").text(_FILE, "a file of the packet, data/<16 hex digits>.npy"), f)


def _check_launch(l: _Field, sources: Mapping[str, str], buffers: Mapping[str, str]) -> None:
    l.get("kernel").one_of(sources)
    for a in l.get("args").items(1000):
        if a.text() not in buffers:
            raise a.bad("a buffer of the group")
    for s in l.get("sizes").items(100):
        s.integer(-(1 << 62), 1 << 62)
    grid = l.get("grid").items(3)
    if len(grid) != 3:
        raise l.get("grid").bad("three numbers")
    for extent, limit in zip(grid, _GRID, strict=True):
        extent.integer(0, limit)
    l.get("block").integer(1, 1024)
    l.get("smem").integer(0, 1 << 20)
    cluster = l.get("cluster", [1, 1, 1]).items(3)
    if len(cluster) != 3 or math.prod(c.integer(1, 16) for c in cluster) > 16:
        raise l.get("cluster").bad("three numbers whose product is at most 16")
    for m in l.get("maps", []).items(16):
        m.get("arg").integer(0, len(l.value["args"]) - 1)
        m.get("dtype").one_of(DTYPES)
        m.get("offset").integer(0, 1 << 40)
        m.get("swizzle").integer(0, 128)
        ranks = {len(m.get(k).items(5)) for k in ("shape", "strides", "box")}
        if len(ranks) != 1 or 0 in ranks:
            raise m.bad("a tensor map of 1 to 5 dimensions")
        for k in ("shape", "strides", "box"):
            for e in m.get(k).items(5):
                e.integer(1, 1 << 40)


# ---- compiling -------------------------------------------------------------------------------------------------------


def nvrtc_version() -> str:
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if int(status):
        raise RuntimeError(f"NVRTC: {status}")
    return f"{major}.{minor}"


def compile_source(source: str, entry: str, arch: str) -> bytes | str:
    """Machine code, or the compiler's first complaint."""
    from cuda.bindings import nvrtc

    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{entry}.cu".encode(), 0, [], [])
    if int(status):
        return f"NVRTC: {status}"
    try:
        options = [o.encode() for o in (f"--gpu-architecture={arch}", *NVRTC_OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytes(max(2, size))
            nvrtc.nvrtcGetProgramLog(program, log)
            lines = log.rstrip(b"\0").decode(errors="replace").splitlines()
            return next((l for l in lines if "error" in l), lines[0] if lines else str(status))[:500]
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytes(max(2, size))
        (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        return f"NVRTC: {status}" if int(status) else cubin[:size]
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# ---- the GPU, in a worker process ------------------------------------------------------------------------------------

_HELPERS: Final = r"""
typedef unsigned long long u64;
__device__ double small_float(unsigned v, int e, int m, bool no_inf) {
    unsigned sign = v >> (e + m), exp = (v >> m) & ((1u << e) - 1), man = v & ((1u << m) - 1);
    int bias = (1 << (e - 1)) - 1;
    double x;
    if (exp == (1u << e) - 1 && (!no_inf || man == (1u << m) - 1))
        x = (man || no_inf) ? __longlong_as_double(0x7ff8000000000000ll) : __longlong_as_double(0x7ff0000000000000ll);
    else if (exp == 0) x = ldexp((double)man, 1 - bias - m);
    else x = ldexp((double)(man | (1u << m)), (int)exp - bias - m);
    return sign ? -x : x;
}
__device__ double decode(const void* p, long long i, int code) {
    switch (code) {
        case 0: return ((const float*)p)[i];
        case 1: return small_float(((const unsigned short*)p)[i], 5, 10, false);
        case 2: return __int_as_float((int)((unsigned)((const unsigned short*)p)[i] << 16));
        case 3: return small_float(((const unsigned char*)p)[i], 4, 3, true);
        case 4: return small_float(((const unsigned char*)p)[i], 5, 2, false);
        default: return ((const double*)p)[i];
    }
}
__device__ long long whole(const void* p, long long i, int code) {
    switch (code) {
        case 6: return ((const long long*)p)[i];
        case 7: return ((const int*)p)[i];
        case 8: return ((const short*)p)[i];
        case 9: return ((const signed char*)p)[i];
        default: return ((const unsigned char*)p)[i];
    }
}
__device__ void keep(u64* out, double most, u64 count) {
    for (int s = 16; s; s >>= 1) {
        most = fmax(most, __shfl_xor_sync(~0u, most, s));
        count += __shfl_xor_sync(~0u, count, s);
    }
    if ((threadIdx.x & 31) == 0) {
        if (most > 0) atomicMax(out, (u64)__double_as_longlong(most));
        if (count) atomicAdd(out + 1, count);
    }
}
#define EACH(i) for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; \
                     i += gridDim.x * (long long)blockDim.x)
extern "C" __global__ void emmy_scale(const void* a, long long n, long long code, u64* out) {
    double most = 0; u64 odd = 0;
    if (code < 6) EACH(i) {
        double x = fabs(decode(a, i, (int)code));
        if (isfinite(x)) most = fmax(most, x); else ++odd;
    }
    keep(out, most, odd);
}
extern "C" __global__ void emmy_compare(const void* a, const void* b, long long n, long long code, long long other,
                                        u64* out, long long border_bits) {
    double most = 0, border = __longlong_as_double(border_bits); u64 wrong = 0;
    EACH(i) {
        if (code >= 6) { wrong += whole(a, i, (int)code) != whole(b, i, (int)other); continue; }
        double x = decode(a, i, (int)code), y = decode(b, i, (int)other);
        if (isfinite(x) && isfinite(y)) { most = fmax(most, fabs(x - y)); continue; }
        if (isnan(x) && isnan(y)) continue;
        // next to the largest value of the type, infinity and that value are both right
        wrong += isnan(x) || isnan(y) || (x < 0) != (y < 0) || fmin(fabs(x), fabs(y)) < border;
    }
    keep(out, most, wrong);
}
extern "C" __global__ void emmy_changed(const unsigned char* a, const unsigned char* b, long long n, u64* out) {
    u64 wrong = 0;
    EACH(i) wrong += a[i] != b[i];
    keep(out, 0, wrong);
}
extern "C" __global__ void emmy_flush(const uint4* a, long long n, u64* out) {
    unsigned s = 0;
    EACH(i) { uint4 v = a[i]; s ^= v.x ^ v.y ^ v.z ^ v.w; }
    if (s == 0x9e3779b9u) out[0] = s;
}
"""


class CudaError(Exception):
    def __init__(self, code: int, name: str, call: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code

    @property
    def kind(self) -> str:
        return FATAL.get(self.code, "memory" if self.code == 2 else "launch")

    @property
    def fatal(self) -> bool:
        return self.code in FATAL


def cuda(name: str, *args: Any) -> Any:
    from cuda.bindings import driver

    status, *values = getattr(driver, name)(*args)
    if int(status):
        raise CudaError(int(status), status.name, name)
    return values[0] if len(values) == 1 else values


class Call:
    """One launch with its arguments in memory that the driver reads.  `early`: may start before the last one ends."""

    def __init__(self, function: Any, launch: Json, pointers: Sequence[int], early: bool = False) -> None:
        self.function, self.launch, self.early = function, launch, early
        self.cluster = tuple(launch.get("cluster", (1, 1, 1)))
        values = [*pointers, *launch["sizes"]]
        self.values = (ctypes.c_int64 * max(1, len(values)))(*values)
        self.maps = [_tensor_map(m, pointers[m["arg"]]) for m in launch.get("maps", ())]
        first = ctypes.addressof(self.values)
        places = [*(first + 8 * k for k in range(len(values))), *(int(m.getPtr()) for m in self.maps)]
        self.places = (ctypes.c_void_p * max(1, len(places)))(*places)
        self.address = ctypes.addressof(self.places)

    def start(self, stream: Any) -> None:
        l = self.launch
        if self.cluster != (1, 1, 1):
            cuda("cuLaunchKernelEx", self.config(stream), self.function, self.address, 0)
            return
        cuda("cuLaunchKernel", self.function, *l["grid"], l["block"], 1, 1, l["smem"], stream, self.address, 0)

    def config(self, stream: Any) -> Any:
        from cuda.bindings import driver as d

        c, l, a = d.CUlaunchConfig(), self.launch, d.CUlaunchAttribute()
        c.gridDimX, c.gridDimY, c.gridDimZ = l["grid"]
        c.blockDimX, c.blockDimY, c.blockDimZ = l["block"], 1, 1
        c.sharedMemBytes, c.hStream = l["smem"], stream
        a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z = self.cluster
        c.attrs, c.numAttrs = [a], 1
        return c

    def node(self) -> Any:
        from cuda.bindings import driver

        p, l = driver.CUDA_KERNEL_NODE_PARAMS(), self.launch
        p.func = self.function
        p.gridDimX, p.gridDimY, p.gridDimZ = l["grid"]
        p.blockDimX, p.blockDimY, p.blockDimZ = l["block"], 1, 1
        p.sharedMemBytes, p.kernelParams, p.extra = l["smem"], self.address, 0
        return p


def _tensor_map(m: Json, pointer: int) -> Any:
    """The driver's 128 bytes for one map; dimensions are given from the outermost on, strides in elements."""
    from cuda.bindings import driver as d

    t, size = d.CUtensorMapDataType, DTYPES[m["dtype"]][0]
    types = {"f32": t.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "f16": t.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             "bf16": t.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, "f64": t.CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
             "i32": t.CU_TENSOR_MAP_DATA_TYPE_INT32, "i64": t.CU_TENSOR_MAP_DATA_TYPE_INT64}  # fmt: skip
    swizzles = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
    swizzle = getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzles[m['swizzle']]}")
    shape, box = m["shape"][::-1], m["box"][::-1]
    return cuda(
        "cuTensorMapEncodeTiled", types.get(m["dtype"], t.CU_TENSOR_MAP_DATA_TYPE_UINT8), len(shape),
        pointer + size * m["offset"], [d.cuuint64_t(n) for n in shape],
        [d.cuuint64_t(size * s) for s in m["strides"][::-1][1:]], [d.cuuint32_t(n) for n in box],
        [d.cuuint32_t(1)] * len(shape), d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip


class Graph:
    """Calls one after the other as an executable CUDA graph."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls  # their arguments stay alive with the graph
        self.graph = cuda("cuGraphCreate", 0)
        last: list[Any] = []
        for c in calls:
            after = [] if c.early else last
            node = cuda("cuGraphAddKernelNode", self.graph, after, len(after), c.node())
            if c.early and last:
                cuda("cuGraphAddDependencies", self.graph, last, [node], [self.edge()], 1)
            if c.cluster != (1, 1, 1):
                cuda("cuGraphKernelNodeSetAttribute", node, *self.attribute(c.cluster))
            last = [node]
        self.exec = cuda("cuGraphInstantiate", self.graph, 0)

    def edge(self) -> Any:
        from cuda.bindings import driver as d

        edge = d.CUgraphEdgeData()
        edge.from_port = int(d.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
        edge.type = int(d.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        return edge

    def attribute(self, cluster: Sequence[int]) -> tuple[Any, Any]:
        from cuda.bindings import driver as d

        value = d.CUkernelNodeAttrValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster
        return d.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value

    def start(self, stream: Any) -> None:
        cuda("cuGraphLaunch", self.exec, stream)

    def close(self) -> None:
        cuda("cuGraphExecDestroy", self.exec)
        cuda("cuGraphDestroy", self.graph)


class Clocks:
    """The SM clock by NVML; 0 where NVML is not there."""

    def __init__(self, bus: str) -> None:
        self.handle: ctypes.c_void_p | None = None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        handle = ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() == 0:
            if self.nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)) == 0:
                self.handle = handle

    def now(self) -> float:
        mhz = ctypes.c_uint()
        if self.handle is None or self.nvml.nvmlDeviceGetClockInfo(self.handle, 1, ctypes.byref(mhz)):
            return 0.0
        return mhz.value * 1e6


class Card:
    """One GPU: its context, stream, memory and helper kernels."""

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver as d

        cuda("cuInit", 0)
        device = cuda("cuDeviceGet", ordinal)
        cuda("cuCtxSetCurrent", cuda("cuDevicePrimaryCtxRetain", device))
        a = d.CUdevice_attribute
        major, minor, self.l2 = (
            cuda("cuDeviceGetAttribute", x, device)
            for x in (a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                      a.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        )  # fmt: skip
        self.capability = 10 * major + minor
        self.gpu = cuda("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        self.stream = cuda("cuStreamCreate", d.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        code = compile_source(_HELPERS, "emmy_scale", f"sm_{self.capability}")
        if isinstance(code, str):
            raise RuntimeError(f"the runner's own kernels do not compile: {code}")
        self.helpers = self.load(code)
        self.clocks = Clocks(cuda("cuDeviceGetPCIBusId", 32, device).split(b"\0")[0].decode())
        self.events = (self.event(), self.event())
        self.out = cuda("cuMemAlloc", 64)
        self.flushed = -(-2 * self.l2 // 16) * 16
        self.filler = cuda("cuMemAlloc", self.flushed)
        cuda("cuMemsetD8", self.filler, 0, self.flushed)
        cuda("cuCtxSynchronize")

    def load(self, cubin: bytes) -> Any:
        return cuda("cuModuleLoadData", cubin)

    def helper(self, name: str, *values: int) -> None:
        f = cuda("cuModuleGetFunction", self.helpers, name.encode())
        Call(f, {"grid": [1024, 1, 1], "block": 256, "smem": 0, "sizes": list(values)}, ()).start(self.stream)

    def flush(self) -> None:
        self.helper("emmy_flush", int(self.filler), self.flushed // 16, int(self.out))

    def counts(self, name: str, *values: int) -> tuple[float, int]:
        """Runs a helper that leaves (largest value, count) behind `values` and its output."""
        cuda("cuMemsetD8Async", self.out, 0, 16, self.stream)
        self.helper(name, *values)
        both = self.read(int(self.out), 16)
        return float(both.view(np.float64)[0]), int(both.view(np.uint64)[1])

    def read(self, pointer: int, n: int) -> np.ndarray[Any, Any]:
        self.sync()
        host = np.empty(n, np.uint8)
        cuda("cuMemcpyDtoH", host.ctypes.data, pointer, n)
        return host

    def sync(self) -> None:
        cuda("cuStreamSynchronize", self.stream)

    def event(self) -> Any:
        return cuda("cuEventCreate", 0)

    def free_bytes(self) -> int:
        return int(cuda("cuMemGetInfo")[0])


class Buffers:
    """A group's buffers: pristine operands, references, and `copies` of all for the launches."""

    def __init__(self, card: Card, group: Json) -> None:
        self.card, self.group = card, group
        self.held: list[Any] = []
        self.by_name = {b["name"]: b for b in group["buffers"]}
        self.bytes = {n: b["count"] * DTYPES[b["dtype"]][0] for n, b in self.by_name.items()}
        self.shared = [n for n, b in self.by_name.items() if b["role"] != "temp"]
        self.written = [n for n, b in self.by_name.items() if b["role"] in ("out", "update")]
        self.footprint = max(1, sum(self.bytes[n] for n in self.shared))
        every = sum(self.bytes.values()) + 1024 * len(self.bytes)
        wanted = max(-(-2 * card.l2 // self.footprint), 4 if self.footprint <= 512 << 20 else 1)
        room = int(0.8 * card.free_bytes()) - 2 * self.footprint
        self.copies = max(1, min(MOST_COPIES, wanted, room // every))
        self.pristine: dict[str, int] = {}
        for k, n in enumerate(self.shared):
            if self.by_name[n]["role"] in ("in", "update"):
                self.pristine[n] = self.allocate(self.bytes[n])
                self.upload(self.pristine[n], fill(self.by_name[n], 1 + k))
        self.sets = [{n: self.allocate(self.bytes[n] + GUARD) for n in self.by_name} for _ in range(self.copies)]
        for s in self.sets:
            for n in self.by_name:
                self.reset(n, s)
        self.reference: dict[str, tuple[int, int]] = {}  # pointer, code of its type
        self.scale: dict[str, float] = {}

    def allocate(self, n: int) -> int:
        p = int(cuda("cuMemAlloc", max(16, n)))
        self.held.append(p)
        return p

    def upload(self, pointer: int, data: np.ndarray[Any, Any]) -> None:
        if data.nbytes:
            cuda("cuMemcpyHtoD", pointer, data.ctypes.data, data.nbytes)
            cuda("cuCtxSynchronize")  # our stream does not wait for the default one

    def reset(self, name: str, copy: Mapping[str, int]) -> None:
        """Operands as they were, results and temporaries poisoned."""
        n = self.bytes[name]
        if name in self.pristine and n:
            cuda("cuMemcpyDtoDAsync", copy[name], self.pristine[name], n, self.card.stream)
            cuda("cuMemsetD8Async", copy[name] + n, 0xFF, GUARD, self.card.stream)
        else:
            cuda("cuMemsetD8Async", copy[name], 0xFF, n + GUARD, self.card.stream)

    def take_expected(self, files: Mapping[str, str]) -> None:
        for name, data in files.items():
            array = np.frombuffer(base64.b64decode(data), np.uint8)
            b = self.by_name[name]
            real = DTYPES[b["dtype"]][1] < 6
            if array.nbytes != b["count"] * (8 if real else DTYPES[b["dtype"]][0]):
                raise BadPacket(f"expected values of {name} have {array.nbytes} bytes")
            pointer = self.allocate(array.nbytes)
            self.upload(pointer, array)
            self.refer(name, pointer, 5 if real else DTYPES[b["dtype"]][1])

    def take_reference(self, copy: Mapping[str, int]) -> None:
        """What the check candidate has left in the outputs is right from now on."""
        for name in self.written:
            pointer = self.allocate(self.bytes[name])
            if self.bytes[name]:
                cuda("cuMemcpyDtoDAsync", pointer, copy[name], self.bytes[name], self.card.stream)
            self.refer(name, pointer, DTYPES[self.by_name[name]["dtype"]][1])

    def refer(self, name: str, pointer: int, code: int) -> None:
        self.reference[name] = pointer, code
        n = self.by_name[name]["count"]
        self.scale[name] = self.card.counts("emmy_scale", pointer, n, code, int(self.card.out))[0]

    def close(self) -> None:
        for p in self.held:
            cuda("cuMemFree", p)


def fill(buffer: Json, seed: int) -> np.ndarray[Any, Any]:
    """The bytes of an operand, the same in every process."""
    f, dtype, count = buffer.get("fill", {"kind": "zeros"}), buffer["dtype"], buffer["count"]
    size, code, _ = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    # a prime period, so that no two rows or tiles of an operand are equal
    some = min(count, 1_000_003)
    if f["kind"] == "data":
        data = np.frombuffer(base64.b64decode(f["base64"]), np.uint8)
        if data.nbytes != count * size:
            raise BadPacket(f"buffer {buffer['name']} takes {count * size} bytes, its data has {data.nbytes}")
        return data
    if f["kind"] == "zeros":
        return np.zeros(count * size, np.uint8)
    if f["kind"] == "integers":
        block = rng.integers(f["low"], f["high"], some, endpoint=True, dtype=np.int64)
        block = block.astype({6: "i8", 7: "i4", 8: "i2", 9: "i1", 10: "u1", 11: "u1"}.get(code, "i8"))
    elif code in (3, 4):  # bytes whose exponent is small
        block = rng.integers(0, 0x3C if code == 3 else 0x3E, some, dtype=np.uint8) | (
            np.uint8(0) if f.get("positive") else rng.integers(0, 2, some, dtype=np.uint8) << np.uint8(7)
        )
    else:
        real = rng.standard_normal(some) * f["std"] + f["mean"]
        real = np.abs(real) + 0.1 if f.get("positive") else real
        block = _stored(real, dtype)
    return np.resize(block.view(np.uint8), count * size)


def _stored(real: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bf16":
        bits = real.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return real.astype({"f64": np.float64, "f16": np.float16}.get(dtype, np.float32))


class Checked:
    """A candidate that is loaded, checked and ready to be timed."""

    def __init__(self, runs: Runs, c: Json) -> None:
        self.id = c["id"]
        card, buffers = runs.card, runs.buffers
        loaded: dict[str, Any] = {}
        self.modules = []
        for l in [*c.get("setup", ()), *c["launches"]]:
            if l["kernel"] in loaded:
                continue
            kernel = runs.kernels[l["kernel"]]
            module = card.load(base64.b64decode(kernel["cubin"]))
            self.modules.append(module)
            loaded[l["kernel"]] = f = cuda("cuModuleGetFunction", module, kernel["entry"].encode())
            smem = max(x["smem"] for x in [*c.get("setup", ()), *c["launches"]] if x["kernel"] == l["kernel"])
            if smem:
                from cuda.bindings import driver as d

                most = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                cuda("cuFuncSetAttribute", f, most, smem)
            if math.prod(l.get("cluster", (1, 1, 1))) > 8:
                from cuda.bindings import driver as d

                large = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                cuda("cuFuncSetAttribute", f, large, 1)
        live = [l for l in c["launches"] if 0 not in l["grid"]]
        self.sets = [
            [
                # the first launch of a run does not overlap with the run before, which is another sample's
                Call(loaded[l["kernel"]], l, [s[a] for a in l["args"]], bool(k and l.get("dependent")))
                for k, l in enumerate(live)
            ]
            for s in buffers.sets
        ]
        for s in buffers.sets if c.get("setup") else ():
            for l in c["setup"]:
                Call(loaded[l["kernel"]], l, [s[a] for a in l["args"]]).start(card.stream)
        self.cold: Graph | None = None
        self.warm: Graph | None = None
        self.samples: list[float] = []
        self.warm_samples: list[float] = []
        self.errors: dict[str, float] = {}
        self.estimate = 0.0
        self.nodes = 1
        self.flushes = True

    def run(self, stream: Any, copy: int = 0) -> None:
        for call in self.sets[copy]:
            call.start(stream)

    def build(self, buffers: Buffers) -> None:
        self.nodes = max(1, min(len(self.sets), math.ceil(SAMPLE_SECONDS / max(self.estimate, 1e-7))))
        self.flushes = self.nodes * buffers.footprint < 2 * buffers.card.l2
        self.cold = Graph([c for s in self.sets[: self.nodes] for c in s])

    def build_warm(self) -> None:
        self.warm_nodes = max(1, min(100, math.ceil(SAMPLE_SECONDS / max(self.estimate, 1e-7))))
        self.warm = Graph([c for _ in range(self.warm_nodes) for c in self.sets[0]])

    def close(self) -> None:
        for g in (self.cold, self.warm):
            if g is not None:
                g.close()
        for m in self.modules:
            cuda("cuModuleUnload", m)


class Runs:
    """One batch of one group."""

    def __init__(self, card: Card, task: Json, buffers: Buffers, say: Callable[[Json], None]) -> None:
        self.card, self.group, self.kernels, self.say = card, task["group"], task["kernels"], say
        self.buffers = buffers
        self.candidates = {c["id"]: c for c in self.group["candidates"]}

    def run(self, wanted: Sequence[str], warm: bool) -> None:
        clock = self.card.clocks.now()
        if not self.buffers.reference:
            self.refer()
        ready: list[Checked] = []
        for name in dict.fromkeys([*([self.group["anchor"]] if self.group.get("anchor") else ()), *wanted]):
            checked = self.attempt(name)
            if checked is not None:
                ready.append(checked)
        # what is far from the best is not worth more than the one launch that it had
        fastest = min((c.estimate for c in ready), default=0.0)
        alive = [c for c in ready if c.estimate <= max(FAR * fastest, 1e-3)]
        for c in ready:
            if c not in alive:
                c.samples.append(c.estimate)
        for samples, within in ROUNDS:
            self.say({"at": "", "stage": "time"})
            best = min((quantile(c.samples, 0.5) for c in alive if c.samples), default=math.inf)
            alive = [c for c in alive if not c.samples or quantile(c.samples, 0.5) <= within * best]
            slow = max((c.estimate for c in alive), default=0.0)
            # long kernels need fewer samples: their times vary less
            self.sample(alive, samples if slow < 5e-3 else max(2, samples // 3))
        if warm:
            self.sample_warm(alive[:4])
        after = self.card.clocks.now()
        anchor = next((quantile(c.samples, 0.5) for c in ready if c.id == self.group.get("anchor")), 0.0)
        for c in ready:
            self.say(self.result(c, clock, after, anchor))
            c.close()

    def refer(self) -> None:
        """The right values: the packet's, or what the check candidate computes."""
        self.say({"at": "", "stage": "reference"})
        if self.group.get("expected"):
            self.buffers.take_expected(self.group["expected"])
            return
        self.say({"at": self.group["check"], "stage": "reference"})
        c = Checked(self, self.candidates[self.group["check"]])
        self.launch(c)
        self.buffers.take_reference(self.buffers.sets[0])
        c.close()

    def launch(self, c: Checked) -> None:
        for name in self.buffers.shared:
            self.buffers.reset(name, self.buffers.sets[0])
        c.run(self.card.stream)
        self.card.sync()

    def attempt(self, name: str) -> Checked | None:
        """Load, check and time once; None where it failed, which is said."""
        self.say({"at": name, "stage": "check"})
        try:
            c = Checked(self, self.candidates[name])
            self.launch(c)
            wrong = self.wrong(c)
            if wrong:
                self.fail(name, "wrong result", wrong)
                c.close()
                return None
            c.estimate = self.once(c)
            c.build(self.buffers)
            return c
        except CudaError as e:
            self.fail(name, e.kind, str(e))
            if e.fatal:
                raise
            return None

    def once(self, c: Checked) -> float:
        start, end = self.card.events
        cuda("cuEventRecord", start, self.card.stream)
        c.run(self.card.stream)
        cuda("cuEventRecord", end, self.card.stream)
        self.card.sync()
        return float(cuda("cuEventElapsedTime", start, end)) * 1e-3

    def wrong(self, c: Checked) -> str:
        """Why the results in the first copy are not right; empty where they are."""
        b, copy = self.buffers, self.buffers.sets[0]
        for name in b.written:
            spec = b.by_name[name]
            _, code, largest = DTYPES[spec["dtype"]]
            pointer, other = b.reference[name]
            border = int(np.float64(0.98 * largest).view(np.int64))
            most, odd = self.card.counts(
                "emmy_compare", copy[name], pointer, spec["count"], code, other, int(self.card.out), border
            )
            scale = b.scale[name]
            error = most / scale if scale > 0 else most
            c.errors[name] = error
            if odd:
                return f"{name}: {odd} of {spec['count']} elements differ" + (" in NaN or infinity" if code < 6 else "")
            if not error <= self.group["tolerance"].get(name, 0.0):
                return f"{name}: error {error:.2e} of {scale:.3g}, allowed {self.group['tolerance'].get(name, 0.0):.2e}"
            if (self.card.read(copy[name] + b.bytes[name], GUARD) != 0xFF).any():
                return f"{name}: bytes behind the result were written"
        for name, pristine in b.pristine.items():
            if b.by_name[name]["role"] != "in" or not b.bytes[name]:
                continue
            _, changed = self.card.counts("emmy_changed", copy[name], pristine, b.bytes[name], int(self.card.out))
            if changed:
                return f"{name}: {changed} bytes of an operand were changed"
        return ""

    def sample(self, alive: Sequence[Checked], rounds: int) -> None:
        events: list[tuple[Checked, Any, Any]] = []
        for r in range(rounds):
            for c in alive if r % 2 == 0 else reversed(alive):
                start, end = self.card.event(), self.card.event()
                if c.flushes:
                    self.card.flush()
                cuda("cuEventRecord", start, self.card.stream)
                assert c.cold is not None
                c.cold.start(self.card.stream)
                cuda("cuEventRecord", end, self.card.stream)
                events.append((c, start, end))
        self.card.sync()
        for c, start, end in events:
            c.samples.append(float(cuda("cuEventElapsedTime", start, end)) * 1e-3 / c.nodes)
            cuda("cuEventDestroy", start)
            cuda("cuEventDestroy", end)

    def sample_warm(self, alive: Sequence[Checked]) -> None:
        for c in alive:
            c.build_warm()
        start, end = self.card.events
        for _ in range(10):
            for c in alive:
                assert c.warm is not None
                cuda("cuEventRecord", start, self.card.stream)
                c.warm.start(self.card.stream)
                cuda("cuEventRecord", end, self.card.stream)
                self.card.sync()
                c.warm_samples.append(float(cuda("cuEventElapsedTime", start, end)) * 1e-3 / c.warm_nodes)
        for c in alive:
            del c.warm_samples[:2]

    def result(self, c: Checked, before: float, after: float, anchor: float) -> Json:
        times = summary(c.samples)
        if times["median"] < self.group["least_seconds"]:
            reason = f"{times['median']:.3e} s, but no kernel of this card can take less than"
            return {"id": c.id, "ok": False, "kind": "implausible",
                    "reason": f"{reason} {self.group['least_seconds']:.3e} s"}  # fmt: skip
        warm = summary(c.warm_samples) if c.warm_samples else None
        return {"id": c.id, "ok": True, **times, "warm": warm, "clock_before": before, "clock_after": after,
                "anchor": anchor, "copies": c.nodes, "errors": c.errors}  # fmt: skip

    def fail(self, name: str, kind: str, reason: str) -> None:
        self.say({"id": name, "ok": False, "kind": kind, "reason": reason})


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear between neighbours."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def summary(samples: Sequence[float]) -> Json:
    p10, median, p90 = (quantile(samples, q) for q in (0.1, 0.5, 0.9))
    return {"n": len(samples), "median": median, "p10": p10, "p90": p90}


def work(ordinal: int) -> int:
    """The worker process: a task a line on standard input, lines of results on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print must not mix with the answers

    def say(line: Json) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    card = Card(ordinal)
    say({"gpu": card.gpu, "capability": card.capability, "l2": card.l2})
    held: tuple[str, Buffers] | None = None
    for line in sys.stdin:
        task = json.loads(line)
        group = task["group"]
        try:
            say({"at": "", "stage": "setup"})
            key = group_key(group)
            if held is None or held[0] != key:
                if held is not None:
                    held[1].close()
                held = None
                held = key, Buffers(card, group)
            Runs(card, task, held[1], say).run(task["wanted"], bool(task.get("warm")))
        except CudaError as e:
            if e.fatal:
                return 3  # the context is lost: the parent starts another process
            if held is not None:
                held[1].close()
            held = None
            say({"at": "", "stage": "setup", "kind": e.kind, "reason": str(e)})
        say({"done": True})
    return 0


def group_key(group: Json) -> str:
    """Equal for batches that can share buffers and references."""
    shared = [group["id"], group["buffers"], group.get("check"), group.get("expected")]
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


# ---- the parent ------------------------------------------------------------------------------------------------------


class Died(Exception):
    """The worker ended or was silent for too long; `kind` of the failure."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class Lost:
    """Where a worker was when it died: at which candidate (empty: at none) and in which stage."""

    at: str
    stage: str
    kind: str
    reason: str


class Worker:
    """A child process for one GPU."""

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        self.data = b""
        self.log = log
        sink: Any = subprocess.DEVNULL if log is None else log.open("ab")
        try:
            # in a session of its own: Ctrl-C is for the parent, which ends it
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, start_new_session=True
            )
        finally:
            if log is not None:
                sink.close()

    def send(self, task: Json) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as e:
            raise Died("crash", self.why()) from e

    def line(self, seconds: float) -> Json:
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self.data:
            left = deadline - time.monotonic()
            try:
                if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                    raise Died("timeout", f"no answer in {seconds:.0f} s")
                more = os.read(self.process.stdout.fileno(), 1 << 16)
            except ValueError as e:  # another thread has closed it
                raise Died("crash", self.why()) from e
            if not more:
                self.process.wait()
                raise Died("crash", self.why())
            self.data += more
        first, _, self.data = self.data.partition(b"\n")
        answer: Json = json.loads(first)
        return answer

    def why(self) -> str:
        tail = ""
        if self.log is not None and self.log.exists():
            lines = self.log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
            tail = ": " + " | ".join(lines[-2:]) if lines else ""
        return f"the worker ended with {self.process.poll()}{tail}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a pipe whose reader is gone cannot take what is left
                    pipe.close()


class Device:
    """One GPU with a worker process that is replaced when it dies.  Not for use by two threads at once."""

    def __init__(
        self, ordinal: int, log: Path | None = None, check_seconds: float = CHECK_SECONDS,
        setup_seconds: float = SETUP_SECONDS, command: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.ordinal, self.log = ordinal, log
        self.check_seconds, self.setup_seconds = check_seconds, setup_seconds
        self.command = list(command or [sys.executable, str(Path(__file__).resolve()), "--worker", str(ordinal)])
        self.worker: Worker | None = None
        self.facts: Json = {}
        self.replaced = 0
        self.closed = False

    def start(self) -> Json:
        """Facts of the card: gpu, capability, l2.  RuntimeError where there is none."""
        if self.closed:
            raise RuntimeError(f"GPU {self.ordinal} was given back")
        if self.worker is None:
            self.worker = Worker(self.command, self.log)
            try:
                self.facts = self.worker.line(self.setup_seconds)
            except Died as e:
                self.drop()
                raise RuntimeError(f"GPU {self.ordinal} cannot be used: {e}") from e
        return self.facts

    def measure(self, task: Json) -> list[Json]:
        """A result for every candidate in `task["wanted"]`, in that order; the anchor's too where it is another."""
        results: dict[str, Json] = {}
        todo, group = list(task["wanted"]), task["group"]
        alone = False
        for _ in range(2 * len(todo) + 4):
            left = [c for c in todo if c not in results]
            if not left:
                break
            if not results.get(group.get("anchor", ""), {"ok": True})["ok"]:
                group = {**group, "anchor": ""}
            batch = left[:1] if alone else left
            lost = self.attempt({**task, "group": group, "wanted": batch}, results)
            if lost is None:
                continue
            if lost.stage in ("setup", "reference"):
                why = f"{lost.kind}: {lost.reason}"
                results.update({c: {"ok": False, "kind": lost.stage, "reason": why} for c in left})
            elif lost.at or len(batch) == 1:
                results.setdefault(lost.at or batch[0], {"ok": False, "kind": lost.kind, "reason": lost.reason})
            else:
                alone = True  # one by one, so that whoever is to blame is found
        for c in todo:
            results.setdefault(c, {"ok": False, "kind": "crash", "reason": "the worker died over and over"})
        return [{**results[c], "id": c} for c in dict.fromkeys([*todo, *results])]

    def attempt(self, task: Json, results: dict[str, Json]) -> Lost | None:
        """Adds to `results`; where and why the worker was lost, or could not go on, before all were measured."""
        at, stage, seconds = "", "setup", self.setup_seconds
        lost = None
        try:
            self.start()
            worker = self.worker
            if worker is None:
                raise RuntimeError(f"GPU {self.ordinal} was given back")
            worker.send(task)
            while not (line := worker.line(seconds)).get("done"):
                if "at" not in line:
                    results.setdefault(line["id"], line)
                    continue
                at, stage = line["at"], line["stage"]
                seconds = self.setup_seconds if stage in ("setup", "reference") else self.check_seconds
                if line.get("kind"):
                    lost = Lost(at, stage, line["kind"], line["reason"])
        except Died as e:
            self.drop()
            return None if at in results else Lost(at, stage, e.kind, str(e))
        return lost

    def drop(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.stop()
            self.replaced += 1

    def close(self) -> None:
        """End the worker; a measurement that goes on in another thread ends with a RuntimeError."""
        self.closed = True
        self.drop()


# ---- a packet on this machine ----------------------------------------------------------------------------------------


def task_of(group: Json, kernels: Mapping[str, Json], wanted: Sequence[str], warm: bool = True) -> Json:
    """What a worker is sent: the group cut down to what these candidates, the anchor and the check need."""
    named = {*wanted, group.get("anchor"), group.get("check")}
    candidates = [c for c in group["candidates"] if c["id"] in named]
    used = {l["kernel"] for c in candidates for l in [*c["launches"], *c.get("setup", ())]}
    return {"group": {**group, "candidates": candidates}, "kernels": {k: kernels[k] for k in sorted(used)},
            "wanted": list(wanted), "warm": warm}  # fmt: skip


def with_data(group: Json, folder: Path) -> Json:
    """The group with the content of its data files in place of their names."""

    def content(name: str) -> str:
        array = np.load(folder / name, allow_pickle=False)
        return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()

    buffers = []
    for b in group["buffers"]:
        f = b.get("fill", {})
        buffers.append({**b, "fill": {"kind": "data", "base64": content(f["file"])}} if f.get("kind") == "file" else b)
    return {**group, "buffers": buffers, "expected": {n: content(f) for n, f in group.get("expected", {}).items()}}


def batches(group: Json, done: set[str]) -> Iterator[list[str]]:
    rest = [c["id"] for c in group["candidates"] if f"{group['id']}/{c['id']}" not in done]
    for k in range(0, len(rest), BATCH):
        yield rest[k : k + BATCH]


def measured_before(path: Path) -> set[str]:
    """Candidates that a results file has; a line that a killed run left unfinished is cut off."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    lines = [json.loads(l) for l in whole.splitlines() if l.strip()]
    return {f"{l['group']}/{l['id']}" for l in lines if "group" in l}


class Results:
    """Appends lines from several threads."""

    def __init__(self, path: Path) -> None:
        self.lock, self.path = threading.Lock(), path
        self.ok = self.failed = 0

    def write(self, lines: Sequence[Json]) -> None:
        if not lines:
            return
        with self.lock, self.path.open("a") as f:
            f.write("".join(json.dumps(l) + "\n" for l in lines))
            self.ok += sum(bool(l.get("ok")) for l in lines)
            self.failed += sum(l.get("ok") is False for l in lines)


def measure_packet(
    folder: Path, out: Path, ordinals: Sequence[int] = (0,), jobs: int | None = None, seconds: float = math.inf
) -> Results:
    """Measure what `out` does not hold yet; lines are written batch by batch.  BadPacket, RuntimeError (no GPU)."""
    manifest = read_manifest(folder)
    done, results = measured_before(out), Results(out)
    devices = [Device(k, out.with_suffix(f".gpu{k}.log")) for k in ordinals]
    deadline = time.monotonic() + seconds
    ready: queue.Queue[tuple[Json, Json] | None] = queue.Queue(2 * len(devices))
    failures: list[BaseException] = []

    def serve(device: Device) -> None:
        try:
            while (item := ready.get()) is not None:
                if failures or time.monotonic() > deadline:
                    continue
                group, task = item
                wanted = set(task["wanted"])
                found = [l for l in device.measure(task) if l["id"] in wanted]
                stamp = {"group": group["id"], "device": device.ordinal, "when": time.time()}
                results.write([{**stamp, **l} for l in found])
        except Exception as e:  # noqa: BLE001 - told to the caller below, in its own thread
            failures.append(e)
            while ready.get() is not None:
                pass

    try:
        facts = devices[0].start()
        host = {"host": os.uname().nodename, "compiler": f"nvrtc-{nvrtc_version()}", **facts}
        results.write([{"packet": manifest["target"], "numerics": manifest.get("numerics", ""), **host}])
        threads = [threading.Thread(target=serve, args=(d,)) for d in devices]
        for t in threads:
            t.start()
        try:
            _feed(manifest, folder, done, results, ready, jobs, deadline)
        finally:
            for _ in threads:
                ready.put(None)
            for t in threads:
                t.join()
    finally:
        for d in devices:
            d.close()
    if failures:
        raise failures[0]
    return results


def _feed(
    manifest: Json, folder: Path, done: set[str], results: Results, ready: queue.Queue[tuple[Json, Json] | None],
    jobs: int | None, deadline: float,
) -> None:  # fmt: skip
    """Compile ahead, in the order of the packet, and queue batches whose kernels are there."""
    arch = manifest["target"]["arch"]
    pool = ThreadPoolExecutor(jobs or os.cpu_count() or 1, "nvrtc")
    building: dict[str, Future[bytes | str]] = {}

    def build(name: str) -> Future[bytes | str]:
        if name not in building:
            s = manifest["sources"][name]
            building[name] = pool.submit(compile_source, (folder / s["file"]).read_text(), s["entry"], arch)
        return building[name]

    def needed(c: Json) -> list[str]:
        return [l["kernel"] for l in [*c["launches"], *c.get("setup", ())]]

    try:
        for group in manifest["groups"]:
            for c in group["candidates"]:
                if f"{group['id']}/{c['id']}" not in done or c["id"] in (group.get("anchor"), group.get("check")):
                    for k in needed(c):
                        build(k)
        for group in manifest["groups"]:
            whole = with_data(group, folder)
            by_id = {c["id"]: c for c in group["candidates"]}
            for wanted in batches(group, done):
                if time.monotonic() > deadline:
                    return
                kernels, good, bad = {}, [], []
                for name in dict.fromkeys([*wanted, *(x for x in (group.get("anchor"), group.get("check")) if x)]):
                    built = {k: build(k).result() for k in needed(by_id[name])}
                    wrong = next((b for b in built.values() if isinstance(b, str)), "")
                    if wrong:
                        bad += [{"group": group["id"], "id": name, "ok": False, "kind": "compile", "reason": wrong}]
                        continue
                    kernels.update({k: _kernel(manifest, k, b) for k, b in built.items() if isinstance(b, bytes)})
                    good += [name]
                results.write([l for l in bad if l["id"] in wanted])
                usable = {**whole, "anchor": group.get("anchor") if group.get("anchor") in good else ""}
                if group.get("check") in good or whole["expected"]:
                    still = [c for c in wanted if c in good]
                    if still:
                        ready.put((group, task_of(usable, kernels, still)))
    finally:
        pool.shutdown(cancel_futures=True)


def _kernel(manifest: Json, name: str, cubin: bytes) -> Json:
    return {"entry": manifest["sources"][name]["entry"], "cubin": base64.b64encode(cubin).decode()}


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("packet", nargs="?", type=Path, default=Path(__file__).resolve().parent)
    p.add_argument("--out", type=Path, help="results, one JSON line a candidate (default: PACKET/results.jsonl)")
    p.add_argument("--devices", default="0", help="GPUs to use: 0,1")
    p.add_argument("--jobs", type=int, help="sources compiled at once (default: one a core)")
    p.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; the same command resumes")
    p.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    o = p.parse_args(arguments)
    if o.worker is not None:
        return work(o.worker)
    out = o.out or o.packet / "results.jsonl"
    began = time.monotonic()
    try:
        ordinals = [int(d) for d in o.devices.split(",")]
        results = measure_packet(o.packet, out, ordinals, o.jobs, o.seconds)
    except (BadPacket, RuntimeError, ValueError, OSError) as e:
        print(f"runner: {e}", file=sys.stderr)
        return 2 if isinstance(e, BadPacket) else 1
    except KeyboardInterrupt:
        print(f"runner: interrupted; {out} keeps what was measured, the same command resumes", file=sys.stderr)
        return 130
    seconds = time.monotonic() - began
    print(f"{results.ok} measured, {results.failed} failed in {seconds:.1f} s: {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
