"""A kernel: its parameters, shared memory, grid and statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from emmy.ir.kernel.memory import Buffer, Ring, TensorMap
from emmy.ir.kernel.statements import S
from emmy.ir.loop import Expr

STATIC_SMEM: Final = 48 * 1024


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter.  `count` elements of memory of the launch's own, where it is no tensor and no size:

    scratch  what it holds before the launch means nothing
    zeroed   zeros before the launch, and zeros again after it: the kernel clears what it has used

    Nobody else uses either while the kernel runs.
    """

    name: str
    type: str
    role: Literal["in", "out", "size", "scratch", "zeroed"]
    count: Expr | None = None

    @property
    def is_work(self) -> bool:
        return self.role in ("scratch", "zeroed")


@dataclass(frozen=True, slots=True)
class Kernel:
    """`grid` is in blocks, as Loop IR integers over `Size`; `comment` states the body and the schedule row.

    `rings` and `maps` are the mbarrier rings and tensor maps that statements name.  `cluster` blocks run together and
    divide the grid.  `dependent`: launched while the kernel before may still run (it executes a DependentWait).
    """

    name: str
    comment: str
    params: tuple[Param, ...]
    shared: tuple[Buffer, ...]
    grid: tuple[Expr, Expr, Expr]
    threads: int
    body: tuple[S, ...]
    min_blocks: int = 0
    rings: tuple[Ring, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False

    @property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every shared buffer, then of every ring.  A buffer has room for whatever overlays it."""
        at: dict[str, int] = {}
        end = 0
        for b in self.shared:
            if b.overlays:
                at[b.name] = at[b.overlays]
                continue
            at[b.name] = -(-end // b.align) * b.align
            end = at[b.name] + self.room(b)
        for r in self.rings:
            at[r.name] = end
            end += r.bytes
        return at

    def room(self, buffer: Buffer) -> int:
        """Bytes set aside for a buffer that overlays none: the most that it or its overlays take, in lines of 128."""
        need = max(b.bytes for b in self.shared if buffer.name in (b.name, b.overlays))
        return -(-need // 128) * 128

    @property
    def smem(self) -> int:
        """Bytes of shared memory a block."""
        at = self.offsets
        ends = [at[b.name] + self.room(b) for b in self.shared if not b.overlays]
        return max([*ends, *(at[r.name] + r.bytes for r in self.rings)], default=0)

    @property
    def dynamic_smem(self) -> int:
        """Bytes to ask for at launch: all of it where it exceeds the 48 KiB that need no permission, else none."""
        return self.smem if self.smem > STATIC_SMEM else 0

    @property
    def launch_registers(self) -> int:
        """Registers a thread has before roles move any: the 64 Ki of a multiprocessor over the threads it must hold."""
        return min(256, 65536 // (self.threads * max(1, self.min_blocks)) // 8 * 8)
