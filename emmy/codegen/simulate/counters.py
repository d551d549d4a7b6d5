"""What a run counts: memory traffic, conflicts, instructions, arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]
SECTOR: Final = 32  # bytes that DRAM and L2 move at once


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one launch.  Bytes are those that threads asked for; sectors are of 32 bytes, counted a warp's access.

    `instructions` counts warps that executed a statement of a kind (`alu`: operations inside values).  `conflicts` are
    passes over shared memory beyond the first that an access needs.  `registers` is an estimate a thread.
    """

    sectors_read: int
    sectors_written: int
    bytes_read: int
    bytes_written: int
    shared_bytes: int
    shared_accesses: int
    conflicts: int
    instructions: dict[str, int]
    flops: int
    barriers: int
    registers: int

    @property
    def efficiency(self) -> float:
        """Share of the bytes of the sectors that were asked for (above 1 where lanes read the same bytes)."""
        sectors = self.sectors_read + self.sectors_written
        return (self.bytes_read + self.bytes_written) / (SECTOR * sectors) if sectors else 1.0


def distinct(keys: Array) -> Array:
    """Sorted, each once.  Lanes mostly ask for ascending addresses, which need no sort."""
    step = np.diff(keys)
    if (step < 0).any():
        keys = np.sort(keys)
        step = np.diff(keys)
    out: Array = keys[np.concatenate([[True], step > 0])]
    return out


@dataclass(slots=True)
class Tally:
    """Counters while they grow."""

    on: bool
    sectors: list[int] = field(default_factory=lambda: [0, 0])  # read, written
    bytes: list[int] = field(default_factory=lambda: [0, 0])
    shared_bytes: int = 0
    shared_accesses: int = 0
    conflicts: int = 0
    flops: int = 0
    barriers: int = 0
    instructions: Counter[str] = field(default_factory=Counter)

    def global_access(self, warps: Array, start: Array, size: int, write: bool) -> None:
        """One access of each lane: `size` bytes at byte `start`; lanes of a warp share sectors."""
        if not self.on or not len(start):
            return
        self.bytes[write] += len(start) * size
        keys = warps.astype(np.int64) << 40 | start // SECTOR
        self.sectors[write] += len(distinct(keys))

    def shared_access(self, rows: Array, start: Array, size: int) -> None:
        """`rows`: which warp; 4 or fewer bytes a lane take one pass a warp, 8 two, 16 four (of 32 banks of 4 bytes)."""
        if not self.on or not len(start):
            return
        self.shared_bytes += len(start) * size
        words = max(1, size // 4)
        lane = rows & 31
        phase = (rows >> 5) * words + lane * words // 32
        self.passes(phase, start // 4, words)

    def passes(self, phase: Array, word: Array, words: int) -> None:
        """`words` consecutive words at `word` in each of a list of phases: the fullest bank says how many passes."""
        key = (phase[:, None] << 20 | (word[:, None] + np.arange(words))).reshape(-1)
        key = distinct(key)
        bank = (key >> 20) << 5 | (key & 31)
        uses, count = np.unique(bank, return_counts=True)
        row = uses >> 5
        first = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        most = np.maximum.reduceat(count, first)
        self.shared_accesses += len(first)
        self.conflicts += int((most - 1).sum())
