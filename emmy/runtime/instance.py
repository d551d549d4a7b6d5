"""A plan bound to concrete sizes: shapes, arena layout, and launches with their arguments, grouped into CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from emmy.errors import PlanError
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Tensor
from emmy.ir.plan import Buffer, KernelLaunch, Launch, OpaqueLaunch, Workspace
from emmy.runtime.arena import Layout, Lifetime, place
from emmy.runtime.driver import Arguments, Function, Invocation, KernelGraph, encode_map
from emmy.runtime.maps import BoundMap, Encode
from emmy.runtime.sizes import Sizes, count, evaluate, shape

# CUDA C++ Programming Guide, technical specifications of every compute capability
_GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
# one kernel is launched as fast by itself
_GRAPH_FROM: Final = 2

Functions = Mapping[tuple[str, str], Function]


class Segment:
    """Kernels in a row.  Arguments that are pointers are set by buffer name, and only what changed is set again.

    `maps` are the tensor maps of each kernel, which follow the pointers of their tensors.
    """

    def __init__(
        self, invocations: Sequence[Invocation], buffers: Sequence[Sequence[str]], maps: Sequence[Sequence[BoundMap]]
    ) -> None:
        self.invocations = tuple(invocations)
        self._maps = tuple(tuple(m) for m in maps)
        self._users: dict[str, list[tuple[int, int]]] = {}
        for k, names in enumerate(buffers):
            for slot, name in enumerate(names):
                self._users.setdefault(name, []).append((k, slot))
        self._stale: set[int] = set()
        self._graph: KernelGraph | None = None

    def point(self, name: str, pointer: int) -> None:
        for k, slot in self._users.get(name, ()):
            arguments = self.invocations[k].arguments
            arguments.values[slot] = pointer
            for number, map in enumerate(self._maps[k]):
                if map.argument == slot:
                    arguments.set_map(number, map.at(pointer))
            self._stale.add(k)

    def run(self, stream: int, graph: bool) -> None:
        if not graph or len(self.invocations) < _GRAPH_FROM:
            for invocation in self.invocations:
                invocation.launch(stream)
            return
        if self._graph is None:
            self._graph = KernelGraph(self.invocations)
            self._stale.clear()
        for k in sorted(self._stale):
            self._graph.update(k)
        self._stale.clear()
        self._graph.launch(stream)

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None


class Instance:
    """`shapes` of every buffer whose sizes are given, the arena's `layout`, and `steps` in order.

    `lives` names the buffers of the arena, each with the first and last launch that uses it.  Workspaces live in the
    arena while their launch runs; those that are zeros between launches have `zeros.bytes` of their own, where no two
    launches share any.
    """

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        lives: Mapping[str, tuple[int, int]],
        launches: Sequence[Launch],
        sizes: Sizes,
        functions: Functions,
        encode: Encode = encode_map,
    ) -> None:
        self.sizes = dict(sizes)
        self.shapes = {name: shape(b.tensor, sizes) for name, b in buffers.items() if _known(b.tensor, sizes)}
        work = [(k, name, w) for k, n in enumerate(launches) for name, w in workspaces_of(n, k)]
        sized = [(k, name, _work_bytes(w, sizes), w.zeroed) for k, name, w in work]
        self.lifetimes = (
            *(Lifetime(n, self._bytes(buffers[n]), *span) for n, span in lives.items()),
            *(Lifetime(name, bytes, k, k) for k, name, bytes, zeroed in sized if not zeroed),
        )
        self.layout: Layout = place(self.lifetimes)
        self.zeros: Layout = place([Lifetime(name, bytes, 0, 0) for _, name, bytes, zeroed in sized if zeroed])
        self.steps = tuple(_steps(launches, sizes, functions, encode))
        self._segments = [s for s in self.steps if isinstance(s, Segment)]
        self._pointers: dict[str, int] = {}
        self._base = self._zeros_base = -1

    def _bytes(self, buffer: Buffer) -> int:
        return count(self.shapes[buffer.name]) * DTYPES[buffer.tensor.dtype].bytes

    def point(self, name: str, pointer: int) -> None:
        """From now on `name` lies at `pointer`, a device address."""
        if self._pointers.get(name) == pointer:
            return
        self._pointers[name] = pointer
        for segment in self._segments:
            segment.point(name, pointer)

    def rebase(self, base: int) -> None:
        """From now on the arena begins at `base`."""
        if base == self._base:
            return
        self._base = base
        for name, offset in self.layout.offsets.items():
            self.point(name, base + offset)

    def put_zeros(self, base: int) -> None:
        """From now on the memory that is zeros between launches begins at `base`."""
        if base == self._zeros_base:
            return
        self._zeros_base = base
        for name, offset in self.zeros.offsets.items():
            self.point(name, base + offset)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


def workspaces_of(launch: Launch, number: int) -> list[tuple[str, Workspace]]:
    """The workspaces of the plan's launch `number`, by names that no buffer has."""
    if not isinstance(launch, KernelLaunch):
        return []
    return [(f"{launch.name}/{number}.{k}", w) for k, w in enumerate(launch.work)]


def _work_bytes(w: Workspace, sizes: Sizes) -> int:
    return max(1, evaluate(w.count, sizes)) * DTYPES[w.type].bytes


def _known(tensor: Tensor, sizes: Sizes) -> bool:
    return all(e.sizes <= sizes.keys() for e in tensor.shape)


def _steps(
    launches: Sequence[Launch], sizes: Sizes, functions: Functions, encode: Encode
) -> Iterator[Segment | OpaqueLaunch]:
    """Runs of kernels between opaque launches, without the kernels that have nothing to do."""
    row: list[tuple[Invocation, KernelLaunch, int]] = []
    for number, launch in enumerate(launches):
        if isinstance(launch, KernelLaunch):
            grid = grid_of(launch, sizes)
            if 0 not in grid:
                row.append((_prepare(launch, grid, sizes, functions), launch, number))
            continue
        if row:
            yield _segment(row, sizes, encode)
        row = []
        yield launch
    if row:
        yield _segment(row, sizes, encode)


def _segment(row: Sequence[tuple[Invocation, KernelLaunch, int]], sizes: Sizes, encode: Encode) -> Segment:
    maps = [[BoundMap(m, sizes, encode) for m in n.maps] for _, n, _ in row]
    names = [(*n.operands, *n.results, *(name for name, _ in workspaces_of(n, k))) for _, n, k in row]
    return Segment([i for i, _, _ in row], names, maps)


def grid_of(launch: KernelLaunch, sizes: Sizes) -> tuple[int, int, int]:
    """Blocks in x, y, z; PlanError where that is more than any GPU takes."""
    x, y, z = (evaluate(e, sizes) for e in launch.grid)
    for extent, limit in zip((x, y, z), _GRID_LIMITS, strict=True):
        if not 0 <= extent <= limit:
            grid = f"launch {launch.name!r} has grid {(x, y, z)} for {dict(sizes)}"
            raise PlanError(grid, f"the limit is {_GRID_LIMITS}")
    if any(extent % blocks for extent, blocks in zip((x, y, z), launch.cluster, strict=True)):
        raise PlanError(
            f"launch {launch.name!r} has grid {(x, y, z)}, which clusters of {launch.cluster} do not divide"
        )
    return x, y, z


def _prepare(launch: KernelLaunch, grid: tuple[int, int, int], sizes: Sizes, functions: Functions) -> Invocation:
    function = functions[launch.source, launch.name]
    pointers = [0] * (len(launch.operands) + len(launch.results) + len(launch.work))
    arguments = Arguments([*pointers, *(sizes[name] for name in launch.sizes)], len(launch.maps))
    return Invocation(function, grid, launch.block, launch.smem, arguments, launch.cluster, launch.dependent)
