"""Arrivals and bytes of a ring's phase and threads of a named barrier add up, where the kernel's text decides them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emmy.ir.kernel import (
    Advance,
    Builtin,
    CopyArrive,
    Cursor,
    Kernel,
    Lit,
    NamedBarrier,
    RingArrive,
    RingWait,
    S,
    TmaLoad,
    walk,
)
from emmy.ir.verify.facts import failure
from emmy.ir.verify.threads import Mask, Path, Step, Unknown

# what cursor, of what: arrivals on a side, bytes announced or brought
Key = tuple[str, str]


class Phases:
    """What the threads of one role do between two steps of a cursor; None where that cannot be told."""

    def __init__(self, kernel: Kernel, path: Path) -> None:
        self.k = kernel
        self.maps = {m.name: m for m in kernel.maps}
        self.open: dict[Key, int | None] = {}
        self.closed: dict[Key, set[int | None]] = {}
        for step in path.steps:
            self.step(step)

    def step(self, step: Step) -> None:
        s = step.statement
        if isinstance(s, Advance):
            for key in [k for k in self.open if k[0] == s.cursor]:
                self.closed.setdefault(key, set()).add(self.open.pop(key))
            if s.by is not None:  # others may fill or use the slots that it passes over
                for what in ("full", "empty", "announced", "brought"):
                    self.closed.setdefault((s.cursor, what), set()).add(None)
        elif isinstance(s, RingArrive):
            count = self.arrivals(step, s)
            self.add(s.cursor, s.side, count)
            if s.bytes:
                self.add(s.cursor, "announced", None if count is None else count * s.bytes)
        elif isinstance(s, CopyArrive):
            self.add(s.cursor, "full", None if step.threads is None else int(step.threads.sum()))
        elif isinstance(s, TmaLoad):
            self.add(s.cursor, "brought", self.bytes(step, s))

    def add(self, cursor: str, what: str, n: int | None) -> None:
        have = self.open.get((cursor, what), 0)
        self.open[cursor, what] = None if n is None or have is None else have + n

    def arrivals(self, step: Step, s: RingArrive) -> int | None:
        """With a rank: every block does the same, so that each gets what one sends when it sends to all alike."""
        if step.threads is None:
            return None
        count = int(step.threads.sum())
        if s.rank is None or s.rank == Builtin("cluster_rank"):
            return count
        rank = step.number(s.rank)
        if isinstance(rank, Unknown):
            return None
        blocks = int(np.prod(self.k.cluster))
        sent = np.bincount(np.broadcast_to(rank, step.threads.shape)[step.threads].astype(np.int64), minlength=blocks)
        return count if len(set(sent.tolist())) == 1 else None

    def bytes(self, step: Step, s: TmaLoad) -> int | None:
        if step.threads is None:
            return None
        if s.multicast is not None and not isinstance(s.multicast, Lit):
            return None
        copies = 1 if s.multicast is None else int(s.multicast.value).bit_count()
        return self.maps[s.map].bytes * int(step.threads.sum()) * copies

    def each(self) -> dict[Key, int | None]:
        """The one count of every phase in which there is anything."""
        found: dict[Key, int | None] = {}
        for key in {*self.closed, *self.open}:
            counts = {*self.closed.get(key, set()), *([self.open[key]] if key in self.open else [])} - {0}
            if counts:
                found[key] = next(iter(counts)) if len(counts) == 1 else None
        return found


def check_rings(kernel: Kernel, ways: Sequence[Path]) -> None:
    """`ways` are the paths on which conditions hold."""
    cursors = {s.name: s.ring for s in walk(kernel.body) if isinstance(s, Cursor)}
    totals: dict[Key, list[int | None]] = {}
    for path in ways:
        for (cursor, what), count in Phases(kernel, path).each().items():
            totals.setdefault((cursors[cursor], what), []).append(count)
    waits: dict[Key, S] = {(cursors[s.cursor], s.side): s for s in walk(kernel.body) if isinstance(s, RingWait)}
    for ring in kernel.rings:
        for side, expected in (("full", ring.full), ("empty", ring.empty)):
            counts = totals.get((ring.name, side), [])
            wait = waits.get((ring.name, side))
            if wait is not None and not counts:
                raise failure(kernel, wait, f"nothing arrives on the {side} side of ring {ring.name}")
            total = _sum(counts)
            if counts and total is not None and total != expected:
                what = f"{total} threads arrive on the {side} side of ring {ring.name} in a phase"
                raise failure(kernel, _arrival(kernel, cursors, ring.name, side), f"{what}, it counts {expected}")
        announced, brought = (_sum(totals.get((ring.name, w), [])) for w in ("announced", "brought"))
        if announced is not None and brought is not None and announced != brought:
            what = f"{announced} bytes are announced on ring {ring.name} in a phase, TMA brings {brought}"
            raise failure(kernel, _arrival(kernel, cursors, ring.name, "full"), what)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [c for c in counts if c is not None]
    return sum(known) if len(known) == len(counts) else None


def _arrival(kernel: Kernel, cursors: dict[str, str], ring: str, side: str) -> S | None:
    for s in walk(kernel.body):
        if isinstance(s, RingArrive | CopyArrive | TmaLoad) and cursors[s.cursor] == ring:
            if (s.side if isinstance(s, RingArrive) else "full") == side:
                return s
    return None


# ---- named barriers


def check_named(kernel: Kernel, ways: Sequence[Path]) -> None:
    """Those who come to a named barrier are as many as it waits for."""
    found: dict[int, list[tuple[NamedBarrier, Mask]]] = {}
    for path in ways:
        for step in path.steps:
            s = step.statement
            if not isinstance(s, NamedBarrier):
                continue
            ids = step.number(s.id)
            if step.threads is None or isinstance(ids, Unknown):
                return  # it may be any of them
            own = np.broadcast_to(ids, step.threads.shape)
            for id in np.unique(own[step.threads]):
                found.setdefault(int(id), []).append((s, step.threads & (own == id)))
    for id, sites in found.items():
        s = sites[0][0]
        if not 1 <= id <= 15:
            raise failure(kernel, s, f"barrier {id}: 1 to 15 are free, 0 is that of the block")
        if len({t.threads for t, _ in sites}) > 1:
            raise failure(
                kernel, s, f"barrier {id} is one of {' and of '.join(str(t.threads) for t, _ in sites)} threads"
            )
        most = max(int(mask.sum()) for _, mask in sites)
        everyone = int(np.logical_or.reduce([mask for _, mask in sites]).sum())
        if most > s.threads or everyone < s.threads:
            count = most if most > s.threads else everyone
            raise failure(kernel, s, f"{count} threads come to barrier {id}, which is one of {s.threads}")
