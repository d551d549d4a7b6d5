"""One GPU: context, stream, clock, and the runner's own kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import kernels
from .compiler import compile_source
from .driver import cuda
from .launches import Call


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
        code = compile_source(kernels.SOURCE, "emmy_scale", f"sm_{self.capability}")
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
