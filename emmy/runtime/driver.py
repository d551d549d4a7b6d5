"""The few calls of the CUDA driver that launching needs.  Importing this module touches no driver."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from emmy.errors import DeviceError

# what a block may use of shared memory, static and dynamic together, without asking (CUDA C++ Programming Guide)
_SMEM_UNASKED: Final = 48 << 10


@dataclass(frozen=True, slots=True)
class Function:
    """A loaded kernel.  `static_smem` is bytes a block."""

    name: str
    handle: Any
    static_smem: int


class Arguments:
    """A kernel's parameters, each of 8 bytes (a pointer or a `long long`), in memory that the driver reads."""

    __slots__ = ("_places", "address", "values")

    def __init__(self, values: Sequence[int]) -> None:
        n = max(1, len(values))
        self.values = (c_uint64 * n)(*values)
        first = addressof(self.values)
        self._places = (c_void_p * n)(*(first + 8 * k for k in range(n)))
        self.address = addressof(self._places)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One launch; `block` is threads, `smem` dynamic shared memory in bytes.  Its arguments' values may change."""

    function: Function
    grid: tuple[int, int, int]
    block: int
    smem: int
    arguments: Arguments

    def launch(self, stream: int) -> None:
        _call(
            "cuLaunchKernel", self.function.handle, *self.grid, self.block, 1, 1, self.smem, stream,
            self.arguments.address, 0, what=self.function.name,
        )  # fmt: skip


class KernelGraph:
    """Invocations one after the other as an executable CUDA graph.

    Built node by node rather than captured, so that a node's arguments can be set again when a caller's tensors lie
    elsewhere: nothing is copied into static buffers.
    """

    def __init__(self, invocations: Sequence[Invocation]) -> None:
        self._graph = _call("cuGraphCreate", 0)
        self._nodes: list[Any] = []
        # each holds the address of its invocation's arguments, whose values the driver reads at each use
        self._params = [_node_params(invocation) for invocation in invocations]
        for invocation, params in zip(invocations, self._params, strict=True):
            after = self._nodes[-1:]
            node = _call("cuGraphAddKernelNode", self._graph, after, len(after), params, what=invocation.function.name)
            self._nodes.append(node)
        self._exec = _call("cuGraphInstantiate", self._graph, 0)

    def update(self, k: int) -> None:
        """Take the arguments of invocation `k` again.  Launches already enqueued keep theirs."""
        _call("cuGraphExecKernelNodeSetParams", self._exec, self._nodes[k], self._params[k])

    def launch(self, stream: int) -> None:
        _call("cuGraphLaunch", self._exec, stream)

    def close(self) -> None:
        """Free the graph; the driver waits by itself for launches that are under way."""
        _call("cuGraphExecDestroy", self._exec)
        _call("cuGraphDestroy", self._graph)


def driver_version() -> str:
    """The newest CUDA that the installed driver runs, `13.0`.  Raises DeviceError when there is no driver."""
    version = _call("cuDriverGetVersion")
    return f"{version // 1000}.{version % 1000 // 10}"


def device_capability(device: int) -> tuple[int, int]:
    """(9, 0) for sm_90.  Raises DeviceError when there is no driver or no such device."""
    from cuda.bindings import driver

    names = driver.CUdevice_attribute
    _call("cuInit", 0)
    handle = _call("cuDeviceGet", device)
    major = _call("cuDeviceGetAttribute", names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle)
    return major, _call("cuDeviceGetAttribute", names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle)


def load(cubin: bytes, entry: str, static_smem: int) -> Function:
    """Load machine code into the current context; it stays loaded as long as the process lives."""
    module = _call("cuModuleLoadData", cubin, what=entry)
    handle = _call("cuModuleGetFunction", module, entry.encode(), what=entry)
    return Function(entry, handle, static_smem)


def allow_smem(function: Function, smem: int) -> None:
    """Ask for `smem` bytes of dynamic shared memory a block, where that takes asking."""
    if smem + function.static_smem <= _SMEM_UNASKED:
        return
    from cuda.bindings import driver

    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _call("cuFuncSetAttribute", function.handle, most, smem, what=f"{function.name}, {smem} bytes")


def primary_context(device: int) -> Any:
    """The device's primary context, the one that PyTorch uses."""
    _call("cuInit", 0)
    return _call("cuDevicePrimaryCtxRetain", _call("cuDeviceGet", device))


def enter(context: Any) -> None:
    """Make the context current in this thread."""
    _call("cuCtxSetCurrent", context)


def _node_params(invocation: Invocation) -> Any:
    from cuda.bindings import driver

    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = invocation.function.handle
    params.gridDimX, params.gridDimY, params.gridDimZ = invocation.grid
    params.blockDimX, params.blockDimY, params.blockDimZ = invocation.block, 1, 1
    params.sharedMemBytes = invocation.smem
    params.kernelParams = invocation.arguments.address
    params.extra = 0
    return params


def _call(name: str, *args: Any, what: str = "") -> Any:
    """Call the driver; the value that it returns beside its status, if any."""
    from cuda.bindings import driver

    try:
        status, *values = getattr(driver, name)(*args)
    except RuntimeError as error:  # how the bindings say that libcuda is not there
        raise DeviceError(f"{name}: {error}", "install the NVIDIA driver, or check it with `emmy doctor`") from error
    if int(status) != 0:
        _, text = driver.cuGetErrorString(status)
        reason = text.decode() if text else "unknown error"
        raise DeviceError(f"{name}{f' ({what})' if what else ''}: {status.name}, {reason}", _hint(status.name))
    return values[0] if values else None


def _hint(status: str) -> str:
    if status in ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"):
        return "the code is for another GPU, or the driver is older than NVRTC's major version: see `emmy doctor`"
    if status in ("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_MISALIGNED_ADDRESS"):
        return "an earlier kernel failed: run again under `compute-sanitizer` with graph=False"
    return ""
