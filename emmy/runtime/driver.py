"""The few calls of the CUDA driver that launching needs.  Importing this module touches no driver."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char, c_uint64, c_void_p, memmove, string_at
from dataclasses import dataclass
from typing import Any, Final

from emmy.errors import DeviceError

# what a block may use of shared memory, static and dynamic together, without asking (CUDA C++ Programming Guide)
_SMEM_UNASKED: Final = 48 << 10
# blocks of a cluster that every GPU with clusters supports (the same guide, "Thread Block Clusters")
_CLUSTER_UNASKED: Final = 8
MAP_BYTES: Final = 128
# element types of a tensor map; of 8-bit types only the width matters, and a load of tf32 rounds what is f32 in memory
_MAP_TYPES: Final = {
    "tf32": "TFLOAT32",
    "bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32", "u32": "UINT32",
    "i64": "INT64", "u64": "UINT64", "i16": "UINT16",
    **dict.fromkeys(("f8e4m3", "f8e5m2", "i8", "u8", "bool"), "UINT8"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """A loaded kernel.  `static_smem` is bytes a block."""

    name: str
    handle: Any
    static_smem: int


class Arguments:
    """A kernel's parameters in memory that the driver reads: `values` of 8 bytes (a pointer or a `long long`), then
    `maps` tensor maps of 128 bytes, which are zeros until they are set.
    """

    __slots__ = ("_maps", "_places", "address", "values")

    def __init__(self, values: Sequence[int], maps: int = 0) -> None:
        n = max(1, len(values))
        self.values = (c_uint64 * n)(*values)
        self._maps = (c_char * (MAP_BYTES * maps))()
        first, map = addressof(self.values), addressof(self._maps)
        places = [*(first + 8 * k for k in range(len(values))), *(map + MAP_BYTES * k for k in range(maps))]
        self._places = (c_void_p * max(1, len(places)))(*places)
        self.address = addressof(self._places)

    def set_map(self, k: int, encoded: bytes) -> None:
        memmove(addressof(self._maps) + MAP_BYTES * k, encoded, MAP_BYTES)

    def map(self, k: int) -> bytes:
        return self._maps.raw[MAP_BYTES * k : MAP_BYTES * (k + 1)]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One launch; `block` is threads, `smem` dynamic shared memory in bytes.  Its arguments' values may change.

    `cluster` blocks run together.  `dependent`: it may start before the kernel ahead of it in the stream has finished.
    """

    function: Function
    grid: tuple[int, int, int]
    block: int
    smem: int
    arguments: Arguments
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False

    def launch(self, stream: int) -> None:
        if self.dependent or self.cluster != (1, 1, 1):
            config = _launch_config(self, stream)
            _call("cuLaunchKernelEx", config, self.function.handle, self.arguments.address, 0, what=self.function.name)
            return
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
            self._nodes.append(self._add(invocation, params))
        self._exec = _call("cuGraphInstantiate", self._graph, 0)

    def _add(self, invocation: Invocation, params: Any) -> Any:
        """A node after the last one: after all of it, or once all of its blocks have let the next kernel start."""
        before, what = self._nodes[-1:], invocation.function.name
        after = [] if invocation.dependent else before
        node = _call("cuGraphAddKernelNode", self._graph, after, len(after), params, what=what)
        if invocation.dependent and before:
            _call("cuGraphAddDependencies", self._graph, before, [node], [_programmatic_edge()], 1, what=what)
        if invocation.cluster != (1, 1, 1):
            _call("cuGraphKernelNodeSetAttribute", node, *_node_cluster(invocation.cluster), what=what)
        return node

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


def allow_cluster(function: Function, blocks: int) -> None:
    """Ask for clusters of `blocks`, where that takes asking: every GPU that has clusters has those of eight."""
    if blocks <= _CLUSTER_UNASKED:
        return
    from cuda.bindings import driver

    large = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    _call("cuFuncSetAttribute", function.handle, large, 1, what=f"{function.name}, clusters of {blocks}")


def encode_map(
    type: str, pointer: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
) -> bytes:
    """The 128 bytes of a tensor map.  `strides` in bytes without the innermost; all from the outermost dimension on.

    Raises DeviceError where the driver refuses: base not at 16 bytes, a stride that is no multiple of 16.
    """
    from cuda.bindings import driver

    kind = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_TYPES[type]}")
    span = getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}")
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    encoded = _call(
        "cuTensorMapEncodeTiled", kind, len(shape), pointer, [wide(n) for n in reversed(shape)],
        [wide(n) for n in reversed(strides)], [narrow(n) for n in reversed(box)], [narrow(1)] * len(shape),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, span,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        what=f"{type} {list(shape)} at {pointer:#x}, strides of {list(strides)} bytes, box {list(box)}",
    )  # fmt: skip
    return string_at(encoded.getPtr(), MAP_BYTES)


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


def _launch_config(invocation: Invocation, stream: int) -> Any:
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = invocation.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = invocation.block, 1, 1
    config.sharedMemBytes = invocation.smem
    config.hStream = stream
    attributes = [_cluster_attribute(invocation.cluster)] if invocation.cluster != (1, 1, 1) else []
    if invocation.dependent:
        early = driver.CUlaunchAttribute()
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _cluster_attribute(cluster: tuple[int, int, int]) -> Any:
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    of = attribute.value.clusterDim
    of.x, of.y, of.z = cluster
    return attribute


def _node_cluster(cluster: tuple[int, int, int]) -> tuple[Any, Any]:
    """Identity and value of a graph node's cluster attribute."""
    from cuda.bindings import driver

    value = driver.CUkernelNodeAttrValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster
    return driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value


def _programmatic_edge() -> Any:
    """What a capture makes of a launch with programmatic stream serialization (CUDA C++ Programming Guide)."""
    from cuda.bindings import driver

    edge = driver.CUgraphEdgeData()
    edge.from_port = int(driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
    edge.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return edge


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
