"""What the simulator finds wrong, each with the statement, thread, buffer and index where it happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal[
    "uninitialized read",  # of a register, of shared memory or of a result that nothing has written
    "read before wait",  # memory or registers that an asynchronous operation is still writing
    "refill before read",  # an asynchronous write to memory that others may still read
    "shared race",  # two threads, at least one of which writes, without order between them
    "global race",
    "two owners",  # two unordered threads write one element of a result
    "not written",  # an element of a result that nobody wrote
    "not cleared",  # memory that the launch found zeroed and leaves otherwise
    "out of bounds",
    "misaligned",
    "missing proxy fence",  # between ordinary stores and TMA or wgmma, or loads and TMA that overwrites what they read
    "missing fence",  # wgmma on registers without WgmmaFence
    "divergent",  # a barrier or a warp's instruction that not all of its threads reach
    "wrong arrivals",  # more arrivals in a phase than a barrier counts
    "wrong bytes",  # TMA brings more or fewer bytes than were announced
    "never waited",  # an asynchronous operation that nobody waited for
    "block ended",  # shared memory of a block of the cluster that may have ended
    "dependent read",  # an operand read before DependentWait
    "dependent write",  # a result written before it: the kernels before may still use its memory
    "deadlock",
    "not supported",  # the statement does not do this on hardware
]
MOST: Final = 20  # findings that are kept


@dataclass(frozen=True, slots=True)
class Finding:
    """`block` and `thread` (in the block) are numbers; `index` is an element of `buffer` (-1: none)."""

    kind: Kind
    kernel: str
    statement: str
    block: int = -1
    thread: int = -1
    buffer: str = ""
    index: int = -1
    detail: str = ""

    def __str__(self) -> str:
        where = f" of {self.buffer}[{self.index}]" if self.index >= 0 else f" of {self.buffer}" if self.buffer else ""
        who = f", block {self.block} thread {self.thread}" if self.thread >= 0 else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.kernel}: {self.kind}{where}{who}, at `{self.statement}`{detail}"


@dataclass(slots=True)
class Findings:
    """One finding a (kind, statement, buffer), the first of them, at most `MOST`."""

    kernel: str
    kept: dict[tuple[str, str, str], Finding] = field(default_factory=dict)

    def add(
        self, kind: Kind, statement: str, block: int = -1, thread: int = -1, buffer: str = "", index: int = -1,
        detail: str = "",
    ) -> None:  # fmt: skip
        key = (kind, statement, buffer)
        if key not in self.kept and len(self.kept) < MOST:
            self.kept[key] = Finding(kind, self.kernel, statement, block, thread, buffer, index, detail)
