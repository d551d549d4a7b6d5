"""A wave: blocks that run at the same time, with their memories and clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from emmy.codegen.simulate.clocks import PENDING, VISIBLE, Clocks, Ints
from emmy.codegen.simulate.counters import Tally
from emmy.codegen.simulate.findings import Findings, Kind
from emmy.codegen.simulate.globals import ATOMIC, Globals
from emmy.codegen.simulate.numbers import Array
from emmy.codegen.simulate.shared import Shared
from emmy.codegen.simulate.stream import Stream
from emmy.ir.kernel import Kernel, S
from emmy.ir.show_kernel import show_statement

if TYPE_CHECKING:
    from emmy.codegen.simulate.copies import AsyncGroups
    from emmy.codegen.simulate.gang import Gang, Positions
    from emmy.codegen.simulate.rings import Rings
    from emmy.codegen.simulate.scheduler import Meeting, Scheduler
    from emmy.codegen.simulate.tma import BulkGroups


class Wave:
    """`blocks`: numbers of the blocks in the grid.  Threads of a block are padded to whole warps (`room`).

    A domain is a block or, with clusters, a cluster: threads of one domain can be ordered, by clocks.
    """

    copies: AsyncGroups
    rings: Rings
    bulk: BulkGroups
    scheduler: Scheduler

    def __init__(
        self, kernel: Kernel, grid: tuple[int, int, int], blocks: npt.NDArray[np.int64], memory: Globals,
        findings: Findings, tally: Tally, agents: int, talking: bool,
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.blocks = kernel, grid, blocks
        self.memory, self.findings, self.tally = memory, findings, tally
        x, y = grid[0], grid[1]
        self.ids = np.stack([blocks % x, blocks // x % y, blocks // (x * y)], axis=1)
        self.threads, self.room = kernel.threads, -(-kernel.threads // 32) * 32
        a, b, c = kernel.cluster
        self.cluster = a * b * c
        self.domain = self.cluster * self.room  # threads
        grid_warps = grid[0] * grid[1] * grid[2] * self.room // 32 if talking else 0
        self.clocks = Clocks(len(blocks) // self.cluster, self.domain // 32, agents, grid_warps)
        self.shared = Shared(kernel, len(blocks), self.cluster, self.room, self.clocks)
        self.before = self.clocks.width - 1  # column of the kernels before, whose epoch is 1
        self.products: dict[tuple[int, int], Stream] = {}  # of the gang at (first thread, threads)
        self.streams = 0  # first column of the clocks that belongs to a warpgroup's products
        self.meetings: dict[object, Meeting] = {}
        self.clock = 0
        self.used: dict[tuple[int, int], tuple[int, S, int]] = {}  # (block, warp of another) -> its last use
        self.talking = talking  # blocks tell one another by atomics
        self.partial = bool(kernel.rings) or talking
        self.warps = self.room // 32

    @property
    def lanes(self) -> int:
        return len(self.blocks) * self.room

    def touch(self, g: Gang, pos: Positions) -> None:
        """Notes which lanes used memory since their warp's last barrier (arrivals publish what they did)."""
        if self.partial:
            lanes = g.lanes[pos]
            self.clocks.touched[lanes >> 5, lanes & 31] = True

    def fence(self, g: Gang) -> None:
        """Fence(device): inside of a block it orders nothing beyond what barriers do."""
        if self.talking:
            columns = (self.blocks[:, None] * self.warps + np.arange(self.warps)).reshape(-1)
            self.clocks.fence_device(g.lanes[g.running()], columns)

    def depend(self, lanes: Positions) -> None:
        """DependentWait: the kernels before have ended."""
        news = self.clocks.nothing()
        seen = news.seen.copy()
        seen[self.before] = 1
        self.clocks.acquire(lanes, replace(news, seen=seen))

    def check_depend(self, g: Gang, pos: Positions, tensor: str, index: Array, write: bool) -> None:
        """Nothing that the kernels before may use is touched before they have ended."""
        column = np.full((len(pos), 1), self.before, np.int32)
        early = self.clocks.known(g.lanes[pos], column)[:, 0] < 1
        if early.any():
            k = int(np.flatnonzero(early)[0])
            kind: Kind = "dependent write" if write else "dependent read"
            detail = f"the kernel before may still {'use' if write else 'write'} it"
            g.report(kind, int(pos[k]), tensor, int(index[k]), detail)

    def uses(self, g: Gang, lanes: Positions, blocks: Array) -> None:
        """Threads use the shared memory of other blocks of the cluster, which must not have ended."""
        for lane, block in zip(lanes.tolist(), blocks.tolist(), strict=True):
            self.used[block, lane >> 5] = int(self.clocks.epoch[lane >> 5]), g.at, lane

    def check_ends(self) -> None:
        """A block ends after every use of its memory by others: one of its warps has waited for it."""
        for (block, warp), (epoch, at, lane) in self.used.items():
            rows = self.clocks.seen[block * self.warps : (block + 1) * self.warps]
            if rows[:, self.clocks.column[warp]].max() < epoch:
                detail = f"block {block} of the cluster may have ended before"
                self.report("block ended", at, lane, "", -1, detail)

    def tell_atomic(self, g: Gang, pos: Positions, news: dict[object, Ints], keys: list[object]) -> None:
        """Atomics of threads on locations: what earlier ones told, and what these tell."""
        for w, key in dict.fromkeys(zip(g.warps[pos].tolist(), keys, strict=True)):
            far = self.clocks.far[w]
            told = news.get(key, np.zeros_like(far[PENDING]))
            news[key] = np.maximum(told, far[VISIBLE])
            far[PENDING] = np.maximum(far[PENDING], told)

    def threads_of(self, lanes: Array) -> Array:
        """Numbers of threads in the grid, with the block's padded size."""
        out: Array = self.blocks[lanes // self.room] * self.room + lanes % self.room
        return out

    def thread_name(self, thread: int) -> str:
        if thread == ATOMIC:
            return "an atomic"
        return f"block {thread // self.room} thread {thread % self.room}"

    def ordered(self, lanes: Positions, threads: Array, epoch: Array) -> Array:
        """Whether what `threads` of the grid did in an epoch is ordered before what `lanes` do now: [lanes, n]."""
        block = threads // self.room
        own = np.minimum(np.searchsorted(self.blocks, block), len(self.blocks) - 1)
        lane = own * self.room + threads % self.room
        same = (self.blocks[own] == block) & (lane // self.domain == lanes[:, None] // self.domain)
        agent = np.where(same, lane % self.domain // 32, 0)
        return np.where(same, self.clocks.known(lanes, agent) >= epoch, self.foreign(lanes, threads, epoch))

    def foreign(self, lanes: Positions, threads: Array, epoch: Array) -> Array:
        """Order between blocks: none without atomics."""
        if not self.talking:
            return np.zeros(threads.shape, np.bool_)
        return np.asarray(self.clocks.heard(lanes, np.maximum(threads, 0) // 32) >= epoch)

    def report(self, kind: Kind, at: S, lane: int, buffer: str, index: int, detail: str) -> None:
        block = int(self.blocks[lane // self.room])
        self.findings.add(kind, show_statement(at), block, lane % self.room, buffer, index, detail)
