"""Vector clocks: which accesses happen before which.

The warps of a domain (a block, or the blocks of a cluster) and the asynchronous agents that serve them each have an
epoch, which grows whenever something is published.  Row w of `seen` says up to which epoch of each agent everything is
ordered before what warp w does next.  A warp's own column says up to which of its epochs its *other lanes* are ordered:
it moves at barriers and `WarpSync` only, so lanes of one warp race as warps do.  What only some lanes of a warp have
waited for is theirs alone (`extra`) until the warp's next barrier.  An access carries its agent's epoch.
(Vector clocks as in Flanagan and Freund, "FastTrack", PLDI 2009.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]


class Clocks:
    """`warps` a domain, then `agents` asynchronous ones; warps and lanes are numbered through all domains."""

    def __init__(self, domains: int, warps: int, agents: int) -> None:
        self.domains, self.warps, self.width = domains, warps, warps + agents
        self.seen: Ints = np.zeros((domains * warps, self.width), np.int32)
        self.fenced: Ints = np.zeros_like(self.seen)  # generic writes that a proxy fence covers, known to each warp
        self.epoch: Ints = np.ones(domains * warps, np.int32)
        self.column = np.arange(domains * warps) % warps
        self.touched: npt.NDArray[np.bool_] = np.zeros((domains * warps, 32), np.bool_)
        self.split: npt.NDArray[np.bool_] = np.zeros(domains * warps, np.bool_)  # warps with lanes that know more
        self.extra: Ints = np.zeros((0, 0, 2, 0), np.int32)  # [warp, lane, seen or fenced, agent], made when needed

    # ---- what threads know

    def known(self, lanes: Positions, agents: Ints, fenced: bool = False) -> Ints:
        """[threads, n] epochs of agents [threads, n]."""
        warps = lanes >> 5
        out: Ints = (self.fenced if fenced else self.seen)[warps[:, None], agents]
        if self.split[warps].any():
            more: Ints = self.extra[warps[:, None], (lanes & 31)[:, None], int(fenced), agents]
            return np.maximum(out, more)
        return out

    def view(self, lanes: Positions) -> Ints:
        """[threads, agents]."""
        warps = lanes >> 5
        out: Ints = self.seen[warps]
        if self.split[warps].any():
            out = np.maximum(out, self.extra[warps, lanes & 31, 0])
        return out

    # ---- barriers among whole warps

    def gather(self, warps: Positions) -> None:
        """What single lanes know is known to their warp."""
        for w in warps[self.split[warps]]:
            self.seen[w] = np.maximum(self.seen[w], self.extra[w, :, 0].max(axis=0))
            self.fenced[w] = np.maximum(self.fenced[w], self.extra[w, :, 1].max(axis=0))
            self.extra[w], self.split[w] = 0, False

    def sync_lanes(self, warps: Positions) -> None:
        """A warp-level barrier: what any lane did is ordered before what any lane does."""
        self.gather(warps)
        self.seen[warps, self.column[warps]] = self.epoch[warps]
        self.touched[warps] = False
        self.epoch[warps] += 1

    def meet(self, groups: Positions) -> None:
        """A barrier among the warps of each row of `groups`."""
        flat, count = groups.reshape(-1), groups.shape[1]
        self.sync_lanes(flat)
        for table in (self.seen, self.fenced):
            joined = table[flat].reshape(*groups.shape, -1).max(axis=1)
            table[flat] = np.repeat(joined, count, axis=0)

    # ---- arrivals and waits of threads

    def publish(self, lanes: Positions) -> tuple[Ints, Ints]:
        """What these threads know and did (seen, fenced), joined.

        Epochs are a warp's: where lanes that do not arrive have used memory since the last warp barrier, only what was
        done before that barrier is published.
        """
        warps = np.unique(lanes >> 5)
        seen, fenced = np.zeros(self.width, np.int32), np.zeros(self.width, np.int32)
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
                fenced = np.maximum(fenced, self.extra[w, mine, 1].max(axis=0))
        self.epoch[warps] += 1
        return seen, fenced

    def acquire(self, lanes: Positions, seen: Ints, fenced: Ints) -> None:
        """What these threads have waited for."""
        for w in np.unique(lanes >> 5):
            mine = lanes[lanes >> 5 == w] & 31
            if len(mine) == 32:
                self.seen[w] = np.maximum(self.seen[w], seen)
                self.fenced[w] = np.maximum(self.fenced[w], fenced)
                continue
            if not len(self.extra):
                self.extra = np.zeros((len(self.seen), 32, 2, self.width), np.int32)
            self.split[w] = True
            self.extra[w, mine, 0] = np.maximum(self.extra[w, mine, 0], seen)
            self.extra[w, mine, 1] = np.maximum(self.extra[w, mine, 1], fenced)

    def fence_proxy(self, lanes: Positions) -> None:
        """A proxy fence covers what these threads have written so far."""
        for w in np.unique(lanes >> 5):
            others = self.touched[w].copy()
            others[lanes[lanes >> 5 == w] & 31] = False
            at = self.column[w]
            self.fenced[w, at] = self.seen[w, at] if others.any() else self.epoch[w]
        self.epoch[np.unique(lanes >> 5)] += 1
