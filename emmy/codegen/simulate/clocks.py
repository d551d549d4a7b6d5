"""Vector clocks: which accesses happen before which.

The warps of a domain (a block, or the blocks of a cluster) and the asynchronous agents that serve them each have an
epoch, which grows whenever something is published.  Row w of `seen` says up to which epoch of each agent everything is
ordered before what warp w does next.  A warp's own column says up to which of its epochs its *other lanes* are ordered:
it moves at barriers and `WarpSync` only, so lanes of one warp race as warps do.  An access carries its agent's epoch.
(Vector clocks as in Flanagan and Freund, "FastTrack", PLDI 2009.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Positions = npt.NDArray[np.int64]


class Clocks:
    """`warps` a domain, then `agents` asynchronous ones; warps are numbered through all domains."""

    def __init__(self, domains: int, warps: int, agents: int) -> None:
        self.domains, self.warps = domains, warps
        self.seen: Ints = np.zeros((domains * warps, warps + agents), np.int32)
        self.fenced: Ints = np.zeros_like(self.seen)  # generic writes that a proxy fence covers, known to each warp
        self.epoch: Ints = np.ones(domains * warps, np.int32)
        self.column = np.arange(domains * warps) % warps
        self.touched: npt.NDArray[np.bool_] = np.zeros((domains * warps, 32), np.bool_)

    def rows(self, warps: Positions, whole: npt.NDArray[np.bool_] | bool = True) -> Ints:
        """What the warps publish: all that they know and did, or (not `whole`) did before their last warp sync."""
        out = self.seen[warps]
        own = np.where(whole, self.epoch[warps], self.seen[warps, self.column[warps]])
        out[np.arange(len(warps)), self.column[warps]] = own
        return out

    def tick(self, warps: Positions) -> None:
        self.epoch[warps] += 1

    def sync_lanes(self, warps: Positions) -> None:
        """A warp-level barrier: what any lane did is ordered before what any lane does."""
        self.seen[warps, self.column[warps]] = self.epoch[warps]
        self.touched[warps] = False
        self.tick(warps)

    def meet(self, groups: npt.NDArray[np.int64]) -> None:
        """A barrier among the warps of each row of `groups`."""
        flat = groups.reshape(-1)
        published = self.rows(flat).reshape(*groups.shape, -1).max(axis=1)
        fenced = self.fenced[flat].reshape(*groups.shape, -1).max(axis=1)
        self.seen[flat] = np.repeat(published, groups.shape[1], axis=0)
        self.fenced[flat] = np.repeat(fenced, groups.shape[1], axis=0)
        self.touched[flat] = False
        self.tick(flat)

    def acquire(self, warps: Positions, seen: Ints, fenced: Ints) -> None:
        self.seen[warps] = np.maximum(self.seen[warps], seen)
        self.fenced[warps] = np.maximum(self.fenced[warps], fenced)

    def fence_proxy(self, warps: Positions) -> None:
        """A proxy fence by the writing warps covers what they have written so far."""
        at = self.column[warps]
        self.fenced[warps, at] = self.epoch[warps]
        self.tick(warps)
