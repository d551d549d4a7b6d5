"""Where temporaries live: offsets in one arena, by lifetime.

Placement is greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020):
the largest buffer first, each into the smallest gap that holds it among the buffers that live at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# one sector line of every access width and of a TMA base; also what cudaMalloc promises
ALIGNMENT: Final = 256


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `bytes` that is written by launch `first` and last used by launch `last`, both inclusive."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Layout:
    """Byte offsets in an arena of `bytes`."""

    offsets: Mapping[str, int]
    bytes: int


def place(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> Layout:
    """Offsets, multiples of `alignment`, such that buffers which live at the same time do not overlap."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, Lifetime]] = []  # (offset, end, lifetime), sorted by offset
    for life in sorted(lifetimes, key=lambda b: (-b.bytes, b.first, b.name)):
        size = -(-life.bytes // alignment) * alignment
        at = _best_gap([(a, b) for a, b, other in placed if other.meets(life)], size)
        offsets[life.name] = at
        if size:
            placed.append((at, at + size, life))
            placed.sort(key=lambda p: p[0])
    return Layout({b.name: offsets[b.name] for b in lifetimes}, max((end for _, end, _ in placed), default=0))


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Start of the smallest gap of at least `size` between taken ranges (sorted by start), else the end of all."""
    best, best_gap, end = -1, 0, 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, stop)
    return best if best >= 0 else end


def peak(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes alive at once at the worst launch: no arena can be smaller."""
    moments = {b.first for b in lifetimes}
    return max((sum(b.bytes for b in lifetimes if b.first <= t <= b.last) for t in moments), default=0)
