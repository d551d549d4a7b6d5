"""Stands for the CUDA driver: memory of this process, kernels that are Python functions, a clock that they move.

Every call goes through the real bindings first, which check the types of its arguments and then find no driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as d

from emmy.tune.runner import batch, buffers, candidate, card, launches
from emmy.tune.runner.driver import CudaError
from emmy.tune.runner.manifest import DTYPES

Kernel = Callable[[list[int]], None]
CODES = {code: name for name, (_, code, _) in DTYPES.items()}


# modules that call the driver, each by its own name `cuda`
CALLERS = (batch, buffers, candidate, card, launches)


def view(pointer: int, count: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """The numbers at an address."""
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype) if size else np.empty(0, dtype)


class FakeCuda:
    """`kernels` by entry name: (what it does to its arguments, seconds it takes)."""

    def __init__(self, kernels: dict[str, tuple[Kernel, float]], l2: int = 1 << 16) -> None:
        self.kernels, self.l2 = dict(kernels), l2
        self.time = 0.0
        self.held: dict[int, Any] = {}
        self.events: dict[int, float] = {}
        self.functions: dict[int, str] = {}
        self.graphs: dict[int, list[tuple[str, list[int]]]] = {}
        self.broken: tuple[int, str] | None = None
        self.flushes = 0
        self.clusters = 0
        self.maps: list[tuple[Any, ...]] = []
        self.serial = 100
        self.free = 1 << 40

    def __call__(self, name: str, *args: Any) -> Any:
        try:
            getattr(d, name)(*args)
        except RuntimeError:  # no driver; a TypeError would be ours
            pass
        else:
            raise AssertionError("there is a driver: this test would launch")
        if self.broken and name != "cuMemFree":
            raise CudaError(*self.broken, name)
        return getattr(self, name, lambda *_: None)(*args)

    def number(self) -> int:
        self.serial += 1
        return self.serial

    # -- the device

    def cuDeviceGet(self, k: int) -> Any:
        return d.CUdevice(k)

    def cuDevicePrimaryCtxRetain(self, _: Any) -> Any:
        return d.CUcontext(1)

    def cuDeviceGetAttribute(self, which: Any, _: Any) -> int:
        names = d.CUdevice_attribute
        return {
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
            names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: self.l2,
        }[which]

    def cuDeviceGetName(self, n: int, _: Any) -> bytes:
        return b"Fake H200".ljust(n, b"\0")

    def cuDeviceGetPCIBusId(self, n: int, _: Any) -> bytes:
        return b"0000:00:00.0".ljust(n, b"\0")

    def cuStreamCreate(self, _: int) -> Any:
        return d.CUstream(7)

    def cuMemGetInfo(self) -> list[int]:
        return [self.free, self.free]

    # -- memory

    def cuMemAlloc(self, n: int) -> Any:
        if n > self.free:
            raise CudaError(2, "CUDA_ERROR_OUT_OF_MEMORY", "cuMemAlloc")
        buffer = (ctypes.c_char * (n + 512))()
        address = -(-ctypes.addressof(buffer) // 256) * 256
        self.held[address] = buffer
        return d.CUdeviceptr(address)

    def cuMemFree(self, p: Any) -> None:
        del self.held[int(p)]

    def cuMemsetD8(self, p: Any, value: int, n: int) -> None:
        ctypes.memset(int(p), value, n)

    def cuMemsetD8Async(self, p: Any, value: int, n: int, _: Any) -> None:
        ctypes.memset(int(p), value, n)

    def cuMemcpyHtoD(self, to: Any, source: int, n: int) -> None:
        ctypes.memmove(int(to), source, n)

    def cuMemcpyDtoH(self, to: int, source: Any, n: int) -> None:
        ctypes.memmove(to, int(source), n)

    def cuMemcpyDtoDAsync(self, to: Any, source: Any, n: int, _: Any) -> None:
        ctypes.memmove(int(to), int(source), n)

    # -- kernels

    def cuModuleLoadData(self, _: bytes) -> Any:
        return d.CUmodule(self.number())

    def cuModuleGetFunction(self, _: Any, entry: bytes) -> Any:
        f = self.number()
        self.functions[f] = entry.decode()
        return d.CUfunction(f)

    def cuLaunchKernel(self, f: Any, *args: Any) -> None:
        self.run(self.functions[int(f)], self.arguments(args[-2]))

    def cuLaunchKernelEx(self, config: Any, f: Any, address: int, _: int) -> None:
        self.clusters += 1
        self.run(self.functions[int(f)], self.arguments(address))

    def arguments(self, address: int) -> list[int]:
        """The first eight arguments, each of 8 bytes; what lies behind the last one is not looked at."""
        places = (ctypes.c_void_p * 8).from_address(address)
        found = []
        for p in places:
            if not p or abs(p - places[0]) > 256:
                break
            found.append(ctypes.c_int64.from_address(p).value)
        return found

    def run(self, entry: str, values: list[int]) -> None:
        if entry.startswith("emmy_"):
            getattr(self, entry)(*values)
            return
        what, seconds = self.kernels[entry]
        what(values)
        self.time += seconds

    def emmy_flush(self, *_: int) -> None:
        self.flushes += 1
        self.time += 30e-6

    def emmy_scale(self, a: int, n: int, code: int, out: int, *_: int) -> None:
        x = np.abs(self.decoded(a, n, code))
        finite = np.isfinite(x)
        self.keep(out, x[finite].max(initial=0.0) if code < 6 else 0.0, int((~finite).sum()))

    def emmy_compare(self, a: int, b: int, n: int, code: int, other: int, out: int, *_: int) -> None:
        x, y = self.decoded(a, n, code), self.decoded(b, n, other)
        if code >= 6:
            self.keep(out, 0.0, int((x != y).sum()))
            return
        both = np.isfinite(x) & np.isfinite(y)
        wrong = ~both & ~(np.isnan(x) & np.isnan(y)) & (x != y)
        self.keep(out, np.abs(x - y)[both].max(initial=0.0), int(wrong.sum()))

    def emmy_changed(self, a: int, b: int, n: int, out: int, *_: int) -> None:
        self.keep(out, 0.0, int((view(a, n, np.uint8) != view(b, n, np.uint8)).sum()))

    def decoded(self, p: int, n: int, code: int) -> np.ndarray[Any, Any]:
        numpy = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64, "i32": np.int32}
        return view(p, n, numpy[CODES[code]]).astype(np.float64)

    def keep(self, out: int, most: float, count: int) -> None:
        view(out, 1, np.float64)[0] = most
        view(out + 8, 1, np.int64)[0] += count

    def cuTensorMapEncodeTiled(self, *args: Any) -> Any:
        self.maps.append(args)
        return d.CUtensorMap()

    # -- graphs and events

    def cuGraphCreate(self, _: int) -> Any:
        g = self.number()
        self.graphs[g] = []
        return d.CUgraph(g)

    def cuGraphAddKernelNode(self, g: Any, after: Sequence[Any], n: int, params: Any) -> Any:
        assert n == len(after)
        launch = (self.functions[int(params.func)], self.arguments(int(params.kernelParams)))
        self.graphs[int(g)].append(launch)
        return d.CUgraphNode(self.number())

    def cuGraphInstantiate(self, g: Any, _: int) -> Any:
        return d.CUgraphExec(int(g))

    def cuGraphLaunch(self, g: Any, _: Any) -> None:
        for entry, values in self.graphs[int(g)]:
            self.run(entry, values)

    def cuGraphExecDestroy(self, g: Any) -> None:
        del self.graphs[int(g)]

    def cuEventCreate(self, _: int) -> Any:
        return d.CUevent(self.number())

    def cuEventRecord(self, e: Any, _: Any) -> None:
        self.events[int(e)] = self.time

    def cuEventElapsedTime(self, a: Any, b: Any) -> float:
        return 1e3 * (self.events[int(b)] - self.events[int(a)])
