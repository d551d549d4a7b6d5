"""The chosen program: buffers and an ordered list of launches.  What the runtime executes and `plan.json` holds.

    Plan   = Plan(buffers, launches, outputs, sizes)
    Buffer = Buffer(name, tensor, role, source)
    Launch = KernelLaunch(...) | OpaqueLaunch(...)

A kernel's parameters are: a pointer to each operand in slot order, a pointer to each result in order, a pointer to each
workspace in the order of `work`, then each symbolic size (`long long`) in the order of `sizes`, then each tensor map in
the order of `maps`.  Grid extents are Loop
IR integer expressions over `Size`, bound when the plan is instantiated for concrete sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emmy.ir.graph import Node, Output, SizeVar
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Expr, Tensor, const

# folded: a temporary that depends on parameters only, computed once when the plan is built
Role = Literal["input", "parameter", "buffer", "constant", "temporary", "folded", "output"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """`source` is the qualified name of a parameter, buffer or constant, or the user input's name."""

    name: str
    tensor: Tensor
    role: Role
    source: str = ""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A parameter that describes a tensor to TMA: 128 bytes that the host encodes once it knows where the tensor lies.

    `argument` numbers the tensor among the launch's operands and results.  `shape`, `strides` (elements, the last is 1)
    and `box` go from the outermost dimension to the innermost; `swizzle` is 0, 32, 64 or 128 bytes; the map's origin is
    element `offset` of the tensor.  They are those of `emmy.ir.kernel.TensorMap`, `type` among them.
    """

    argument: int
    type: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    box: tuple[int, ...]
    swizzle: int
    offset: Expr


@dataclass(frozen=True, slots=True)
class Workspace:
    """`count` elements of memory that one launch has for itself while it runs.

    `zeroed`: zeros when it begins, which it leaves behind, so that they are set once.  Otherwise its contents before
    and after mean nothing.  They are those of `emmy.ir.kernel.Param`.
    """

    type: str
    count: Expr
    zeroed: bool


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One generated kernel.  `operands[i]` is the buffer of the body's slot i, `results[k]` of its output k.

    `block` counts threads; `smem` is dynamic shared memory in bytes; `cluster` blocks run together and divide the grid;
    `dependent`: may start while the kernel before still runs, for which it waits itself.  `body` is the identity of the
    loop body and `row` the schedule's canonical spelling, `family` the code generator that made it.
    """

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[str, ...]
    grid: tuple[Expr, Expr, Expr]
    block: int
    smem: int
    source: str
    body: str
    family: str
    row: str
    # runs once when the plan is built: reads parameters and constants only
    at_build: bool = False
    maps: tuple[TensorMap, ...] = ()
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False
    work: tuple[Workspace, ...] = ()


@dataclass(frozen=True, slots=True)
class OpaqueLaunch:
    """An operation that PyTorch executes: `node` with its tensor arguments taken from `operands`, by name."""

    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    node: Node


Launch = KernelLaunch | OpaqueLaunch


@dataclass(frozen=True)
class Plan:
    """`launches` are in an order in which every operand is made before it is read.  `outputs` name buffers by Ref."""

    arch: str
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    outputs: tuple[Output, ...]
    sizes: tuple[SizeVar, ...] = ()


def kernel_launch(
    kernel: Kernel, source: str, operands: tuple[str, ...], results: tuple[str, ...], body: str, family: str, row: str,
    at_build: bool = False,
) -> KernelLaunch:  # fmt: skip
    """The launch of a kernel on these buffers, with all that it needs of its launch."""
    sizes = tuple(p.name for p in kernel.params if p.role == "size")
    return KernelLaunch(
        kernel.name, operands, results, sizes, kernel.grid, kernel.threads, kernel.dynamic_smem, source, body, family,
        row, at_build, tensor_maps(kernel), kernel.cluster, kernel.dependent, workspaces(kernel),
    )  # fmt: skip


def workspaces(kernel: Kernel) -> tuple[Workspace, ...]:
    """The memory that the kernel's launch has for itself, in the order of its parameters."""
    return tuple(Workspace(p.type, p.count, p.role == "zeroed") for p in kernel.params if p.count is not None)


def tensor_maps(kernel: Kernel) -> tuple[TensorMap, ...]:
    """The kernel's maps, with their tensors numbered among its operands and results."""
    tensors = [p.name for p in kernel.params if p.role in ("in", "out")]
    return tuple(
        TensorMap(tensors.index(m.param), m.type, m.shape, m.strides, m.box, m.swizzle, m.offset or const(0))
        for m in kernel.maps
    )
