"""Vector clocks: which accesses happen before which.

The warps of a domain (a block, or the blocks of a cluster) and the asynchronous agents that serve them each have an
epoch, which grows whenever something is published.  Row w of `seen` says up to which epoch of each agent everything is
ordered before what warp w does next.  A warp's own column says up to which of its epochs its *other lanes* are ordered:
it moves at barriers and `WarpSync` only, so lanes of one warp race as warps do.  What only some lanes of a warp have
waited for is theirs alone (`extra`) until the warp's next barrier.  An access carries its agent's epoch.

The asynchronous proxy (TMA, wgmma) needs more than order.  `fenced` is like `seen` for it, with two planes: WRITES that
a proxy fence of the writer covers, and READS that are done when TMA overwrites what was read, because a proxy fence of
the reader or a barrier of the block covers them.

Blocks that no barrier joins are ordered by atomics alone: `far` has a column a warp of the grid and three rows a warp:
what it KNOWS of other blocks, what an atomic told it that a device fence has yet to admit (PENDING), and what device
fences have made VISIBLE of what it knows and did, which its next atomic tells.
(Vector clocks as in Flanagan and Freund, "FastTrack", PLDI 2009.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]
WRITES, READS = 0, 1  # planes of `fenced`
KNOWN, PENDING, VISIBLE, SHARED = 0, 1, 2, 3  # planes of `far`; SHARED: what all lanes of the warp know


@dataclass(frozen=True, slots=True)
class News:
    """What an arrival tells a wait: rows of `seen`, `fenced` and `far`."""

    seen: Ints
    fenced: Ints
    far: Ints

    def joined(self, *others: News) -> News:
        every = (self, *others)
        return News(
            np.maximum.reduce([n.seen for n in every]), np.maximum.reduce([n.fenced for n in every]),
            np.maximum.reduce([n.far for n in every]),
        )  # fmt: skip


class Clocks:
    """`warps` a domain, then `agents` asynchronous ones; warps and lanes are numbered through all domains."""

    def __init__(self, domains: int, warps: int, agents: int, grid_warps: int = 0) -> None:
        self.domains, self.warps, self.width = domains, warps, warps + agents
        self.seen: Ints = np.zeros((domains * warps, self.width), np.int32)
        self.fenced: Ints = np.zeros((domains * warps, 2, self.width), np.int32)
        self.far: Ints = np.zeros((domains * warps, 4, grid_warps), np.int32)
        self.hears: npt.NDArray[np.bool_] = np.ones((domains * warps, 32), np.bool_)  # lanes that know all of KNOWN
        self.epoch: Ints = np.ones(domains * warps, np.int32)
        self.column = np.arange(domains * warps) % warps
        self.touched: npt.NDArray[np.bool_] = np.zeros((domains * warps, 32), np.bool_)
        self.split: npt.NDArray[np.bool_] = np.zeros(domains * warps, np.bool_)  # warps with lanes that know more
        self.extra: Ints = np.zeros((0, 0, 3, 0), np.int32)  # [warp, lane, seen and fenced, agent], made when needed

    # ---- what threads know

    def known(self, lanes: Positions, agents: Ints, fenced: bool = False) -> Ints:
        """[threads, n] epochs of agents [threads, n]; `fenced`: of their writes, for the asynchronous proxy."""
        warps = lanes >> 5
        out: Ints = (self.fenced[:, WRITES] if fenced else self.seen)[warps[:, None], agents]
        if self.split[warps].any():
            plane = 1 + WRITES if fenced else 0
            more: Ints = self.extra[warps[:, None], (lanes & 31)[:, None], plane, agents]
            return np.maximum(out, more)
        return out

    def view(self, lanes: Positions) -> Ints:
        """[threads, agents]."""
        warps = lanes >> 5
        out: Ints = self.seen[warps]
        if self.split[warps].any():
            out = np.maximum(out, self.extra[warps, lanes & 31, 0])
        return out

    def read(self, lanes: Positions) -> Ints:
        """[threads, agents]: up to which epoch the agents' reads are done when TMA writes."""
        warps = lanes >> 5
        out: Ints = self.fenced[warps, READS]
        if self.split[warps].any():
            out = np.maximum(out, self.extra[warps, lanes & 31, 1 + READS])
        return out

    # ---- barriers among whole warps

    def gather(self, warps: Positions) -> None:
        """What single lanes know is known to their warp."""
        for w in warps[self.split[warps]]:
            self.seen[w] = np.maximum(self.seen[w], self.extra[w, :, 0].max(axis=0))
            self.fenced[w] = np.maximum(self.fenced[w], self.extra[w, :, 1:].max(axis=0))
            self.extra[w], self.split[w] = 0, False

    def sync_lanes(self, warps: Positions) -> None:
        """A warp-level barrier: what any lane did is ordered before what any lane does."""
        self.gather(warps)
        self.seen[warps, self.column[warps]] = self.epoch[warps]
        self.touched[warps] = False
        self.epoch[warps] += 1
        self.far[warps, SHARED] = self.far[warps, KNOWN]
        self.hears[warps] = True

    def drain(self, warps: Positions) -> None:
        """A barrier of the block is passed when what its threads read has been read."""
        self.fenced[warps, READS, self.column[warps]] = self.epoch[warps]

    def heard(self, lanes: Positions, warps: Ints) -> Ints:
        """[threads, n] epochs of warps of the grid [threads, n] that atomics and fences have told the threads."""
        own, plane = lanes >> 5, np.where(self.hears[lanes >> 5, lanes & 31], KNOWN, SHARED)
        out: Ints = self.far[own[:, None], plane[:, None], warps]
        return out

    def meet(self, groups: Positions) -> None:
        """A barrier of the block among the warps of each row of `groups`."""
        flat, count = groups.reshape(-1), groups.shape[1]
        self.drain(flat)
        self.sync_lanes(flat)
        for table in (self.seen, self.fenced, self.far):
            joined = table[flat].reshape(*groups.shape, *table.shape[1:]).max(axis=1)
            table[flat] = np.repeat(joined, count, axis=0)

    # ---- arrivals and waits of threads

    def publish(self, lanes: Positions) -> News:
        """What these threads know and did, joined.

        Epochs are a warp's: where lanes that do not arrive have used memory since the last warp barrier, only what was
        done before that barrier is published.
        """
        warps = np.unique(lanes >> 5)
        seen, fenced = np.zeros(self.width, np.int32), np.zeros((2, self.width), np.int32)
        for w in warps:
            mine = lanes[lanes >> 5 == w] & 31
            others = self.touched[w].copy()
            others[mine] = False
            row = self.seen[w].copy()
            if not others.any():
                row[self.column[w]] = self.epoch[w]
            seen, fenced = np.maximum(seen, row), np.maximum(fenced, self.fenced[w])
            if self.split[w]:
                seen = np.maximum(seen, self.extra[w, mine, 0].max(axis=0))
                fenced = np.maximum(fenced, self.extra[w, mine, 1:].max(axis=0))
        self.epoch[warps] += 1
        return News(seen, fenced, self.far[warps].max(axis=0))

    def nothing(self) -> News:
        row = np.zeros(self.width, np.int32)
        return News(row, np.zeros_like(self.fenced[0]), np.zeros(self.far.shape[1:], np.int32))

    def acquire(self, lanes: Positions, news: News) -> None:
        """What these threads have waited for."""
        seen, fenced = news.seen, news.fenced
        for w in np.unique(lanes >> 5):
            self.far[w] = np.maximum(self.far[w], news.far)
            mine = lanes[lanes >> 5 == w] & 31
            if len(mine) == 32:
                self.seen[w] = np.maximum(self.seen[w], seen)
                self.fenced[w] = np.maximum(self.fenced[w], fenced)
                continue
            if not len(self.extra):
                self.extra = np.zeros((len(self.seen), 32, 3, self.width), np.int32)
            self.split[w] = True
            self.extra[w, mine, 0] = np.maximum(self.extra[w, mine, 0], seen)
            self.extra[w, mine, 1:] = np.maximum(self.extra[w, mine, 1:], fenced)

    def fence_proxy(self, lanes: Positions) -> None:
        """A proxy fence covers what these threads have written and read so far."""
        for w in np.unique(lanes >> 5):
            others = self.touched[w].copy()
            others[lanes[lanes >> 5 == w] & 31] = False
            at = self.column[w]
            done = self.seen[w, at] if others.any() else self.epoch[w]
            self.fenced[w, :, at] = np.maximum(self.fenced[w, :, at], done)
        self.epoch[np.unique(lanes >> 5)] += 1

    def fence_device(self, lanes: Positions, columns: Positions) -> None:
        """Fence(device) by some threads: what atomics told them is known, what they know may be told.

        What other lanes of their warp did since the last warp barrier is not, and what they get to know the others
        know after the next one.  `columns`: of the domain's warps.
        """
        warps = np.unique(lanes >> 5)
        for w in warps:
            far, mine = self.far[w], lanes[lanes >> 5 == w] & 31
            if len(mine) < 32 and (far[PENDING] > far[KNOWN]).any():
                self.hears[w] = False
                self.hears[w, mine] = True
            far[KNOWN] = np.maximum(far[KNOWN], far[PENDING])
            if len(mine) == 32:
                far[SHARED] = far[KNOWN]
                self.hears[w] = True
            others = self.touched[w].copy()
            others[mine] = False
            own = self.seen[w, : self.warps].copy()
            if not others.any():
                own[self.column[w]] = self.epoch[w]
            far[VISIBLE] = np.maximum(far[VISIBLE], far[KNOWN])
            far[VISIBLE, columns] = np.maximum(far[VISIBLE, columns], own)
        self.epoch[warps] += 1
