"""TMA: boxes of a tensor into shared memory and back, as the tensor maps say, swizzled by address as the hardware does.

A load is checked where it is issued (nobody may still use its target) and is in flight until a wait for its slot
passes.  A store is checked there too; it reads its source when a BulkWait of the thread ends its group, at the latest
moment, and what overwrites the source before is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from emmy.codegen.simulate.numbers import Array, convert, nearest_tf32
from emmy.codegen.simulate.program import Build, Compiled, Compiler
from emmy.codegen.simulate.rings import MBarrier, slots
from emmy.codegen.simulate.shared import BITS, MANY
from emmy.codegen.simulate.values import Read, reader
from emmy.ir.evaluate import integer
from emmy.ir.kernel import BYTES, Buffer, BulkCommit, BulkWait, Place, S, TensorMap, TmaLoad, TmaStore
from emmy.ir.kernel.layout import plain_offset

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import Gang, Positions
    from emmy.codegen.simulate.wave import Wave

ALIGN: Final = 128  # bytes, of a box in shared memory
_MASK: Final = {0: 0, 32: 1, 64: 3, 128: 7}


def swizzled(address: Array, span: int) -> Array:
    """Bits 4-6 of a byte address are XORed with bits 7-9, as many of them as the span has."""
    return np.asarray(address ^ ((address >> 7 & _MASK[span]) << 4))


class Box:
    """A tensor map with its sizes known, and the box of it that a statement names."""

    def __init__(self, c: Compiler, map: TensorMap, at: tuple[Read, ...], place: Place) -> None:
        self.map, self.at = map, at
        self.buffer: Buffer = next(b for b in c.kernel.shared if b.name == place.buffer)
        self.place = [reader(x) for x in place.index]
        self.shape = [integer(e, c.sizes) for e in map.shape]
        self.strides = [integer(e, c.sizes) for e in map.strides]
        self.offset = 0 if map.offset is None else integer(map.offset, c.sizes)
        self.bytes = BYTES[map.element]
        self.steps = np.indices(map.box).reshape(len(map.box), -1)  # [dimensions, elements]

    def where(self, g: Gang, lane: int) -> list[int]:
        """The box's first element, outermost dimension first."""
        return [_of(read(g), lane - g.lo) for read in self.at]

    def elements(self, first: list[int]) -> tuple[Array, Array]:
        """Which elements lie inside of the tensor, and every one's number in the parameter."""
        at = self.steps + np.array(first)[:, None]
        inside = ((at >= 0) & (at < np.array(self.shape)[:, None])).all(axis=0)
        return inside, self.offset + (at * np.array(self.strides)[:, None]).sum(axis=0)

    def target(self, g: Gang, lane: int) -> Array | None:
        """Byte in the block's shared memory of each element of the box; None where the place is wrong."""
        index = [_of(read(g), lane - g.lo) for read in self.place]
        shared = g.wave.shared
        start = shared.offsets[self.buffer.name] + int(plain_offset(self.buffer, index)) * self.bytes
        size = prod(self.map.box) * self.bytes
        end = shared.offsets[self.buffer.name] + self.buffer.bytes
        if start < shared.offsets[self.buffer.name] or start + size > end:
            detail = f"a box of {size} bytes at byte {start}, the buffer ends at {end}"
            g.report("out of bounds", lane - g.lo, self.buffer.name, -1, detail)
            return None
        if start % ALIGN:
            g.report("misaligned", lane - g.lo, self.buffer.name, -1, f"a box at byte {start}, not a multiple of 128")
            return None
        return swizzled(start + np.arange(0, size, self.bytes), self.map.swizzle)

    def check_tensor(self, g: Gang, lane: int, inside: Array, number: Array) -> bool:
        """Whether the map is one that the driver would encode, and lies in the parameter."""
        strides = [s * self.bytes for s in self.strides[:-1]]
        if any(s % 16 for s in strides) or self.offset * self.bytes % 16:
            detail = f"strides of {strides} bytes, origin at byte {self.offset * self.bytes}: not multiples of 16"
            g.report("misaligned", lane - g.lo, self.map.param, -1, detail)
            return False
        tensor = g.wave.memory.tensors[self.map.param]
        bad = inside & ((number < 0) | (number >= len(tensor.data)))
        if bad.any():
            detail = f"the map {self.map.name} reaches beyond the tensor's {len(tensor.data)} elements"
            g.report("out of bounds", lane - g.lo, self.map.param, int(number[np.flatnonzero(bad)[0]]), detail)
        return not bad.any()


def _of(value: Any, position: int) -> int:
    return int(value[position] if isinstance(value, np.ndarray) else value)


def check_proxy(g: Gang, pos: Positions, grains: Array, buffer: str, what: str) -> None:
    """Ordinary stores are seen by the asynchronous proxy after a proxy fence of the thread that stored."""
    shared = g.wave.shared
    writer = shared.writer[grains]
    lanes = g.lanes[pos]
    bare = (writer >= 0) & (writer < shared.threads) & ~shared.order(lanes, grains, fenced=True)
    if bare.any():
        shared.tell(g, "missing proxy fence", pos, grains, bare, buffer, what)


def check_reads(g: Gang, pos: Positions, grains: Array, buffer: str) -> None:
    """What threads have read is overwritten by TMA after a proxy fence of those threads, or a barrier of the block.

    Order alone is not enough: an arrival of an mbarrier does not wait for loads whose registers nothing has used yet,
    and a use in the statements before it may stand behind it in the machine's code.
    """
    shared, clocks = g.wave.shared, g.wave.clocks
    lanes = g.lanes[pos]
    done, known = (t[:, None, : clocks.warps] for t in (clocks.read(lanes), clocks.view(lanes)))
    marks = shared.readers[grains][..., : clocks.warps]
    own = (clocks.column[lanes >> 5][:, None, None] == np.arange(clocks.warps)) & (
        (marks & (1 << BITS) - 1) == (lanes & 31)[:, None, None]
    )
    # what is not even ordered is found as such
    read = marks >> BITS
    bare = (read > done) & ((read <= known) | own)
    if bare.any():
        warp = int(np.nonzero(bare)[2][0])
        detail = f"TMA overwrites what {shared.agent(warp)} has read, with no proxy fence behind the read"
        shared.tell(g, "missing proxy fence", pos, grains, np.asarray(bare.any(axis=2)), buffer, detail)


# ---- loads


def _load(c: Compiler, s: TmaLoad) -> Compiled:
    map = next(m for m in c.kernel.maps if m.name == s.map)
    box = Box(c, map, tuple(reader(x) for x in s.at), s.dst)
    ring, places = c.cursors[s.cursor], slots(c, s.cursor)
    mask = None if s.multicast is None else reader(s.multicast)

    def run(g: Gang) -> None:
        own = g.lo // g.wave.room
        for slot, _, lanes in places(g):
            for lane in lanes:
                to = [own]
                if mask is not None:
                    bits = _of(mask(g), int(lane) - g.lo)
                    to = [b for b in range(g.wave.cluster) if bits >> b & 1]
                    if bits >> g.wave.cluster:
                        detail = f"mask {bits:#x} of a cluster of {g.wave.cluster}"
                        g.report("out of bounds", int(lane) - g.lo, s.dst.buffer, -1, detail)
                _issue(g, s, box, int(lane), to, ring.name, slot)

    return Compiled(run)


def _issue(g: Gang, s: TmaLoad, box: Box, lane: int, to: list[int], ring: str, slot: int) -> None:
    wave, shared = g.wave, g.wave.shared
    pos = np.array([lane - g.lo])
    inside, number = box.elements(box.where(g, lane))
    target = box.target(g, lane)
    tensor = wave.memory.tensors[box.map.param]
    if wave.kernel.dependent:
        wave.check_depend(g, pos, tensor.name, number, False)
    whole = box.check_tensor(g, lane, inside, number)
    wave.touch(g, pos)
    wave.tally.global_access(np.arange(inside.sum()) >> 31, number[inside] * box.bytes, box.bytes, False)
    for block in to:
        barrier = wave.rings.get(g, np.array([lane]), block, ring, "full", slot)
        if barrier is None or target is None or not whole:
            continue
        bytes = target + block * shared.size
        grains = np.unique(shared.grains(bytes, box.bytes))[None, :]
        shared.check_write(g, pos, grains, box.buffer.name, "refill before read", mark=False)
        check_proxy(g, pos, grains, box.buffer.name, "TMA overwrites what an ordinary store has written")
        check_reads(g, pos, grains, box.buffer.name)
        shared.flight[grains] = 1
        shared.flying += 1
        shared.views[np.dtype(np.uint8)][bytes[:, None] + np.arange(box.bytes)] = 0xFF
        barrier.coming.append(Landing(wave, s, lane, box.buffer.name, box, barrier, grains, bytes, inside, number))
        barrier.tx -= box.map.bytes
        barrier.at, barrier.lane = s, lane
        wave.rings.bring(g, barrier)


@dataclass(slots=True)
class Landing:
    """One box that lands in one block."""

    wave: Wave
    at: S
    lane: int
    buffer: str
    box: Box
    barrier: MBarrier
    grains: Array
    bytes: Array
    inside: Array
    number: Array
    real: bool = True

    def __call__(self, g: Gang, phase: int) -> None:
        shared, tensor = self.wave.shared, self.wave.memory.tensors[self.box.map.param]
        data = np.zeros(len(self.bytes), tensor.data.dtype)
        data[self.inside] = tensor.data[self.number[self.inside]]
        if self.box.map.type == "tf32":
            data = nearest_tf32(data)
        raw = data.view(np.uint8).reshape(len(data), -1)
        shared.data[self.bytes[:, None] + np.arange(self.box.bytes)] = raw
        shared.flight[self.grains] = 0
        shared.flying -= 1
        shared.writer[self.grains] = shared.threads + self.barrier.agent - self.wave.clocks.warps
        shared.epoch[self.grains] = phase


# ---- stores


@dataclass(slots=True)
class BoxStore:
    """`epoch`: of the agent that reads the source."""

    at: S
    box: Box
    lane: int
    group: int
    bytes: Array
    grains: Array
    inside: Array
    number: Array
    add: bool
    epoch: int


@dataclass(slots=True)
class BulkGroups:
    """TMA stores of a wave that have not read their source yet.  A column of the clocks for each warp's stores."""

    wave: Wave
    first: int
    open: dict[int, int] = field(default_factory=dict)
    flying: list[BoxStore] = field(default_factory=list)

    def column(self, lane: int) -> int:
        return self.first + (lane >> 5) % self.wave.clocks.warps

    def end(self, g: Gang, lanes: Positions, pending: int) -> None:
        here = set(lanes.tolist())
        done = [b for b in self.flying if b.lane in here and b.group < self.open.get(b.lane, 0) - pending]
        self.flying = [b for b in self.flying if b not in done]
        for store in done:
            self.perform(store)
            news = self.wave.clocks.nothing()
            seen = news.seen.copy()
            seen[self.column(store.lane)] = store.epoch
            self.wave.clocks.acquire(np.array([store.lane]), replace(news, seen=seen))

    def perform(self, b: BoxStore) -> None:
        shared, tensor = self.wave.shared, self.wave.memory.tensors[b.box.map.param]
        raw = shared.data[b.bytes[:, None] + np.arange(b.box.bytes)]
        data = np.ascontiguousarray(raw).view(tensor.data.dtype).reshape(-1)[b.inside]
        at = b.number[b.inside]
        if not b.add:
            tensor.data[at] = data
            return
        both = (convert(v, tensor.type, "f32") if tensor.type != "f64" else v for v in (tensor.data[at], data))
        tensor.data[at] = convert(sum(both), "f32" if tensor.type != "f64" else "f64", tensor.type)

    def finish(self) -> None:
        for b in self.flying:
            self.wave.report("never waited", b.at, b.lane, b.box.buffer.name, -1, "a store that no BulkWait ends")
            self.perform(b)


def _store(c: Compiler, s: TmaStore) -> Compiled:
    map = next(m for m in c.kernel.maps if m.name == s.map)
    box = Box(c, map, tuple(reader(x) for x in s.at), s.src)

    def run(g: Gang) -> None:
        for lane in g.lanes[g.running()]:
            _issue_store(g, s, box, int(lane))

    return Compiled(run)


def _issue_store(g: Gang, s: TmaStore, box: Box, lane: int) -> None:
    wave, shared = g.wave, g.wave.shared
    pos = np.array([lane - g.lo])
    inside, number = box.elements(box.where(g, lane))
    target = box.target(g, lane)
    if target is None or not box.check_tensor(g, lane, inside, number):
        return
    bytes = target + lane // wave.room * shared.size
    grains = np.unique(shared.grains(bytes, box.bytes))[None, :]
    blank = shared.writer[grains] < 0
    shared.tell(g, "uninitialized read", pos, grains, blank, box.buffer.name, "nothing has written it")
    race = (shared.writer[grains] >= 0) & ~shared.order(np.array([lane]), grains)
    race &= shared.writer[grains] != lane % shared.threads
    detail = "TMA reads what is not ordered before its issue"
    shared.tell(g, "shared race", pos, grains, race, box.buffer.name, detail)
    if not race.any():
        check_proxy(g, pos, grains, box.buffer.name, "TMA reads what an ordinary store has written")
    if shared.flying:
        flying = shared.flight[grains] != 0
        shared.tell(g, "read before wait", pos, grains, flying, box.buffer.name, "a copy to it is in flight")
    column = wave.bulk.column(lane)
    epoch = int(wave.clocks.epoch[lane >> 5])
    shared.readers[grains, column] = epoch << 6 | MANY
    tensor = wave.memory.tensors[box.map.param]
    elements = number[inside][None, :]
    wave.tally.global_access(np.zeros(elements.size, np.int64), number[inside] * box.bytes, box.bytes, True)
    wave.memory.claim(g, pos, tensor, elements, s.op == "add")
    group = wave.bulk.open.get(lane, 0)
    wave.bulk.flying.append(
        BoxStore(s, box, lane, group, bytes, grains, inside, number, s.op == "add", epoch)
    )  # fmt: skip
    wave.clocks.epoch[lane >> 5] += 1


def _commit(c: Compiler, s: BulkCommit) -> Compiled:
    def run(g: Gang) -> None:
        for lane in g.lanes[g.running()].tolist():
            g.wave.bulk.open[lane] = g.wave.bulk.open.get(lane, 0) + 1

    return Compiled(run)


def _wait(c: Compiler, s: BulkWait) -> Compiled:
    return Compiled(lambda g: g.wave.bulk.end(g, g.lanes[g.running()], s.pending))


TMA: Final[dict[type, Build]] = {
    TmaLoad: _load, TmaStore: _store, BulkCommit: _commit, BulkWait: _wait,
}  # fmt: skip
