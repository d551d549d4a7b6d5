"""Shared memory of a wave's blocks: its bytes, and for every granule who wrote it, who read it and what is in flight.

A granule is as large as the smallest element of the kernel's buffers, so buffers that overlay one another share marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from emmy.codegen.simulate.clocks import Clocks
from emmy.codegen.simulate.numbers import NUMPY, Array
from emmy.ir.kernel import BYTES, Buffer, Kernel
from emmy.ir.kernel.layout import element_offset

if TYPE_CHECKING:
    from emmy.codegen.simulate.findings import Kind
    from emmy.codegen.simulate.gang import Gang, Positions

POISON: Final = 0xFF
MANY: Final = 32  # in place of a lane: several lanes of the warp
BITS: Final = 6


class Shared:
    """`blocks` copies of the kernel's shared memory.  Readers are marked a warp: epoch << 6 | lane."""

    def __init__(self, kernel: Kernel, blocks: int, cluster: int, room: int, clocks: Clocks) -> None:
        self.offsets, self.buffers = kernel.offsets, {b.name: b for b in kernel.shared}
        self.clocks = clocks
        self.grain = min((BYTES[b.type] for b in kernel.shared), default=4)
        self.size = -(-max(kernel.smem, 128) // 128) * 128  # bytes a block
        self.data = np.full(blocks * self.size, POISON, np.uint8)
        self.views = {t: self.data.view(t) for t in {*NUMPY.values(), np.dtype(np.uint8)}}
        n = blocks * self.size // self.grain
        self.writer = np.full(n, -1, np.int32)  # thread of the domain, or threads + agent
        self.epoch = np.zeros(n, np.int32)
        agents = clocks.seen.shape[1]
        self.readers = np.zeros((n, agents), np.int32)
        self.flight = np.zeros(n, np.int32)  # the operation in flight, 0: none
        self.flying = 0
        self.atomic = np.zeros(n, np.bool_)  # last written by an atomic
        self.room, self.cluster = room, cluster
        threads = room * cluster
        others = np.arange(agents - clocks.warps) + clocks.warps
        self.agent_of = np.r_[np.arange(threads) // 32, others, 0].astype(np.int32)
        self.threads = threads

    # ---- places

    def check_index(self, g: Gang, pos: Positions, buffer: Buffer, index: list[Array], count: int) -> Array:
        """Which accesses lie inside the buffer; others are findings."""
        good = np.ones(len(pos), np.bool_)
        for axis, (i, n) in enumerate(zip(index, buffer.shape, strict=True)):
            width = count if axis == len(buffer.shape) - 1 else 1
            good &= (i >= 0) & (i + width <= n)
        if not good.all():
            k = int(np.flatnonzero(~good)[0])
            at = ", ".join(str(int(i[k])) for i in index)
            shape = ", ".join(map(str, buffer.shape))
            detail = f"element [{at}]{f' and {count - 1} more' if count > 1 else ''} of [{shape}]"
            g.report("out of bounds", int(pos[k]), buffer.name, -1, detail)
        return good

    def start(self, g: Gang, pos: Positions, buffer: Buffer, index: list[Array], size: int) -> tuple[Array, Array]:
        """Byte of each access from the block's start, and which accesses are aligned to `size`."""
        element = BYTES[buffer.type]
        at = self.offsets[buffer.name] + np.broadcast_to(element_offset(buffer, index), len(pos)) * element
        good = at % size == 0
        if not good.all():
            k = int(np.flatnonzero(~good)[0])
            detail = f"byte {int(at[k])} for {size} bytes"
            g.report("misaligned", int(pos[k]), buffer.name, self.element(buffer.name, int(at[k])), detail)
        return at, good

    def base(self, g: Gang, pos: Positions) -> Array:
        """First byte of each thread's block."""
        return g.lanes[pos] // self.room * self.size

    def element(self, buffer: str, byte: int) -> int:
        """Storage number of the element in the buffer, swizzle and pad included."""
        return (byte - self.offsets[buffer]) // BYTES[self.buffers[buffer].type]

    def grains(self, byte: Array, size: int) -> Array:
        """[accesses, granules] of `size` bytes at bytes of the wave."""
        return (byte // self.grain)[:, None] + np.arange(max(1, size // self.grain))

    # ---- marks

    def order(self, lanes: Positions, grains: Array, fenced: bool = False) -> Array:
        """Whether the last write of each granule is ordered before what the threads do now (`fenced`: for TMA too)."""
        agent = self.agent_of[self.writer[grains]]
        return self.clocks.known(lanes, agent, fenced) >= self.epoch[grains]

    def check_read(self, g: Gang, pos: Positions, grains: Array, buffer: str) -> None:
        """Reads by threads of a gang."""
        blank = self.writer[grains] < 0
        self.tell(g, "uninitialized read", pos, grains, blank, buffer, "nothing has written it")
        self.check_order(g, pos, grains, buffer, False)

    def check_order(self, g: Gang, pos: Positions, grains: Array, buffer: str, collective: bool) -> None:
        """What a read must come after.  `collective`: by the warp as a whole."""
        warps, lane = g.warps[pos], g.lanes[pos]
        me = (lane % self.threads)[:, None]
        writer = self.writer[grains]
        if self.flying:
            self.tell(g, "read before wait", pos, grains, self.flight[grains] != 0, buffer, "the copy is in flight")
        race = ~self.order(lane, grains) & (writer >= 0)
        if not collective:
            race &= writer != me
        if race.any():
            self.tell(g, "shared race", pos, grains, race, buffer, self.who("read after a write", race, writer))
        self.mark_read(warps, np.full(len(pos), MANY) if collective else lane % 32, grains)

    def mark_read(self, warps: Array, lane: Array, grains: Array) -> None:
        column = self.clocks.column[warps][:, None]
        code = ((self.clocks.epoch[warps] << BITS) | lane)[:, None].astype(np.int32)
        before = self.readers[grains, column]
        # an earlier read by another lane since the last warp sync is not forgotten
        fresh = (before >> BITS) > self.clocks.seen[warps, self.clocks.column[warps]][:, None]
        many = (code & ~np.int32(63)) | MANY
        new = np.where(fresh & ((before ^ code) & 63 != 0), many, code)
        self.readers[grains, column] = new
        clash = self.readers[grains, column] != new
        if clash.any():
            self.readers[grains[clash], np.broadcast_to(column, grains.shape)[clash]] = np.broadcast_to(
                many, grains.shape
            )[clash]

    def check_write(
        self, g: Gang, pos: Positions, grains: Array, buffer: str, kind: Kind = "shared race", mark: bool = True
    ) -> None:
        """Writes by threads of a gang: against the last write and all reads since."""
        lane = g.lanes[pos]
        me = (lane % self.threads)[:, None]
        writer = self.writer[grains]
        if self.flying:
            self.tell(g, kind, pos, grains, self.flight[grains] != 0, buffer, "another copy to it is in flight")
        race = ~self.order(lane, grains) & (writer >= 0) & (writer != me)
        if race.any():
            self.tell(g, "shared race", pos, grains, race, buffer, self.who("write after a write", race, writer))
        self.check_readers(g, pos, grains, buffer, kind)
        if mark:
            self.mark_write(g, pos, grains, buffer)

    def check_atomic(self, g: Gang, pos: Positions, grains: Array, buffer: str) -> None:
        """Atomics by threads of a gang: among themselves they need no order."""
        lane = g.lanes[pos]
        writer = self.writer[grains]
        self.tell(g, "uninitialized read", pos, grains, writer < 0, buffer, "an atomic on what nothing has written")
        race = ~self.order(lane, grains) & (writer != (lane % self.threads)[:, None]) & ~self.atomic[grains]
        race &= writer >= 0
        if race.any():
            self.tell(g, "shared race", pos, grains, race, buffer, self.who("an atomic after a write", race, writer))
        self.check_readers(g, pos, grains, buffer, "shared race")
        self.writer[grains] = (lane % self.threads)[:, None]
        self.epoch[grains] = self.clocks.epoch[g.warps[pos]][:, None]
        self.atomic[grains] = True

    def check_readers(self, g: Gang, pos: Positions, grains: Array, buffer: str, kind: Kind) -> None:
        warps, lane = g.warps[pos], g.lanes[pos]
        read = self.readers[grains]
        late = (read >> BITS) > self.clocks.view(lane)[:, None, :]
        if not late.any():
            return
        column = self.clocks.column[warps][:, None, None]
        own = np.take_along_axis(read, np.broadcast_to(column, (*grains.shape, 1)), axis=2)[..., 0]
        mine = (own & 63) == (lane % 32)[:, None]
        here = np.take_along_axis(late, np.broadcast_to(column, (*grains.shape, 1)), axis=2)[..., 0] & ~mine
        np.put_along_axis(late, np.broadcast_to(column, (*grains.shape, 1)), here[..., None], axis=2)
        bad = np.asarray(late.any(axis=2))
        if bad.any():
            i, j = (int(v[0]) for v in np.nonzero(bad))
            agent = int(np.flatnonzero(late[i, j])[0])
            what = "a write of what" if kind == "shared race" else "an asynchronous write of what"
            self.tell(g, kind, pos, grains, bad, buffer, f"{what} {self.agent(agent)} may still read")

    def mark_write(self, g: Gang, pos: Positions, grains: Array, buffer: str, epoch: Array | None = None) -> None:
        me = np.broadcast_to((g.lanes[pos] % self.threads)[:, None], grains.shape).astype(np.int32)
        self.writer[grains] = me
        self.atomic[grains] = False
        self.epoch[grains] = (self.clocks.epoch[g.warps[pos]] if epoch is None else epoch)[:, None]
        clash = self.writer[grains] != me
        if clash.any():
            self.tell(g, "shared race", pos, grains, clash, buffer, "two threads write it in one statement")

    # ---- findings

    def agent(self, number: int) -> str:
        return f"warp {number}" if number < self.clocks.warps else f"asynchronous agent {number - self.clocks.warps}"

    def who(self, what: str, bad: Array, writer: Array) -> str:
        return f"{what} by {self.agent(int(self.agent_of[writer[bad][0]]))} without order"

    def tell(self, g: Gang, kind: Kind, pos: Positions, grains: Array, bad: Array, buffer: str, detail: str) -> None:
        if not bad.any():
            return
        i, j = (int(v[0]) for v in np.nonzero(bad))
        byte = int(grains[i, j]) * self.grain % self.size
        g.report(kind, int(pos[i]), buffer, self.element(buffer, byte), detail)
