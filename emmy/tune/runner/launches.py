"""Launches of kernels: one by one, and as CUDA graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .driver import cuda
from .manifest import MAP_TYPES

Json = dict[str, Any]


class Call:
    """One launch with its arguments in memory that the driver reads.  `early`: may start before the last one ends."""

    def __init__(self, function: Any, launch: Json, pointers: Sequence[int], early: bool = False) -> None:
        self.function, self.launch, self.early = function, launch, early
        self.cluster = tuple(launch.get("cluster", (1, 1, 1)))
        values = [*pointers, *launch["sizes"]]
        self.values = (ctypes.c_int64 * max(1, len(values)))(*values)
        self.maps = [tensor_map(m, pointers[m["arg"]]) for m in launch.get("maps", ())]
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


def tensor_map(m: Json, pointer: int) -> Any:
    """The driver's 128 bytes for one map; dimensions are given from the outermost on, strides in elements."""
    from cuda.bindings import driver as d

    t, size = d.CUtensorMapDataType, MAP_TYPES[m["dtype"]]
    types = {"f32": t.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "tf32": t.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
             "f16": t.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
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
