"""cp.async: copies that land when the thread that issued them waits for their group, and not before.

From issue to landing the target is in flight: whoever touches it is found.  Global data is read at the landing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from emmy.codegen.simulate.numbers import spread
from emmy.codegen.simulate.places import Access, locate
from emmy.codegen.simulate.program import Build, Compiled, Compiler
from emmy.codegen.simulate.statements import optional
from emmy.ir.kernel import AsyncCommit, AsyncCopy, AsyncWait, S

if TYPE_CHECKING:
    from emmy.codegen.simulate.clocks import Ints
    from emmy.codegen.simulate.gang import Gang, Positions
    from emmy.codegen.simulate.wave import Wave

Lanes = npt.NDArray[np.int64]


@dataclass(slots=True)
class Copy:
    """Copies of one statement by some threads.  `source` is an element, -1 where zeros arrive."""

    gang: Gang
    number: int
    at: S
    lanes: Lanes  # of the wave
    group: Lanes
    target: Lanes  # byte of the wave's shared memory
    source: Lanes
    tensor: str
    buffer: str
    size: int

    def part(self, keep: npt.NDArray[np.bool_]) -> Copy:
        return Copy(self.gang, self.number, self.at, self.lanes[keep], self.group[keep], self.target[keep],
                    self.source[keep], self.tensor, self.buffer, self.size)  # fmt: skip


class AsyncGroups:
    """The copies in flight of a wave, and the number of each thread's open group."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.open: Lanes = np.zeros(wave.lanes, np.int64)
        self.flying: list[Copy] = []
        self.number = 0

    def issue(self, copy: Copy) -> None:
        self.flying.append(copy)

    def land(self, g: Gang, pos: Positions, pending: int) -> None:
        """Groups of these threads but the last `pending` that are closed."""
        here = np.zeros(self.wave.lanes, np.bool_)
        here[g.lanes[pos]] = True
        left = []
        for copy in self.flying:
            done = here[copy.lanes] & (copy.group < self.open[copy.lanes] - pending)
            if not done.any():
                left.append(copy)
                continue
            self.arrive(copy if done.all() else copy.part(done))
            if not done.all():
                left.append(copy.part(~done))
        self.flying = left

    def taken(self, lanes: Positions) -> list[Copy]:
        """The copies of these threads that are in flight, which something else than their groups now waits for."""
        here = np.zeros(self.wave.lanes, np.bool_)
        here[lanes] = True
        out = [c.part(here[c.lanes]) for c in self.flying if here[c.lanes].any()]
        self.flying = [c.part(~here[c.lanes]) for c in self.flying if not here[c.lanes].all()]
        return out

    def arrive(self, copy: Copy, epoch: Ints | None = None) -> None:
        """The bytes are there, written by the threads that asked for them (now, or in an epoch of their warps)."""
        g, shared = copy.gang, self.wave.shared
        grains = shared.grains(copy.target, copy.size)
        shared.flight[grains] = 0
        shared.flying -= len(copy.lanes)
        tensor = self.wave.memory.tensors[copy.tensor]
        count = copy.size // tensor.bytes
        real = copy.source >= 0
        before = g.at
        g.at = copy.at
        data = np.zeros((len(copy.lanes), count), tensor.data.dtype)
        if real.any():
            data[real] = self.wave.memory.read(g, copy.lanes[real] - g.lo, tensor, copy.source[real], count)
        shared.mark_write(g, copy.lanes - g.lo, grains, copy.buffer, epoch)
        g.at = before
        shared.views[np.dtype(np.uint8)][copy.target[:, None] + np.arange(copy.size)] = data.view(np.uint8).reshape(
            len(data), -1
        )

    def finish(self) -> None:
        """At the end of the kernel nothing may be in flight but zeros for stages that do not exist."""
        for copy in (f for f in self.flying if (f.source >= 0).any()):
            lane = int(copy.lanes[copy.source >= 0][0])
            self.wave.report("never waited", copy.at, lane, copy.buffer, -1, "the copy is in flight as the kernel ends")


def _copy(c: Compiler, s: AsyncCopy) -> Compiled:
    target, source, guard = Access(s.dst), Access(s.src), optional(s.guard)

    def run(g: Gang) -> None:
        wave, shared = g.wave, g.wave.shared
        pos, at = locate(g, target, g.running(), s.bytes // target.bytes)
        if not len(pos):
            return
        first = np.full(g.n, -1, np.int64)
        where = True if guard is None else guard(g)
        if where is not False:
            with g.narrowed(spread(where, g.n, "bool")):
                good, element = locate(g, source, g.running(), s.bytes // source.bytes)
            first[good] = element
            if wave.kernel.dependent:
                wave.check_depend(g, good, s.src.buffer, element, False)
        grains = shared.grains(at, s.bytes)
        shared.check_write(g, pos, grains, target.buffer, "refill before read")
        wave.touch(g, pos)
        wave.tally.shared_access(g.lanes[pos], at % shared.size, s.bytes)
        wave.copies.number += 1
        shared.flight[grains] = wave.copies.number
        shared.flying += len(pos)
        shared.data[at[:, None] + np.arange(s.bytes)] = 0xFF
        lanes = g.lanes[pos]
        wave.copies.issue(
            Copy(g, wave.copies.number, s, lanes, wave.copies.open[lanes].copy(), at, first[pos], s.src.buffer,
                 target.buffer, s.bytes)
        )  # fmt: skip

    return Compiled(run)


def _commit(c: Compiler, s: AsyncCommit) -> Compiled:
    def run(g: Gang) -> None:
        g.wave.copies.open[g.lanes[g.running()]] += 1

    return Compiled(run)


def _wait(c: Compiler, s: AsyncWait) -> Compiled:
    def run(g: Gang) -> None:
        g.wave.copies.land(g, g.running(), s.pending)

    return Compiled(run)


COPIES: Final[dict[type, Build]] = {
    AsyncCopy: _copy, AsyncCommit: _commit, AsyncWait: _wait,
}  # fmt: skip
