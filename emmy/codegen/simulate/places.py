"""Elements of memory as statements name them: closures of their indices, and checked reads and writes through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emmy.codegen.simulate.numbers import Array, memory_type, spread
from emmy.codegen.simulate.values import reader
from emmy.ir.kernel import BYTES, Place

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import Gang, Positions


class Access:
    """A place with its indices compiled."""

    __slots__ = ("buffer", "bytes", "held", "index", "rank", "shared", "type")

    def __init__(self, place: Place) -> None:
        self.shared, self.buffer, self.type = place.space == "shared", place.buffer, place.type
        self.bytes, self.held = BYTES[place.type], memory_type(place.type)
        self.index = [reader(x) for x in place.index]
        self.rank = None if place.rank is None else reader(place.rank)

    def at(self, g: Gang, pos: Positions) -> list[Array]:
        """The index of each thread at `pos`, a dimension at a time."""
        out = []
        for read in self.index:
            v = read(g)
            out.append(v[pos].astype(np.int64) if isinstance(v, np.ndarray) else np.full(len(pos), v, np.int64))
        return out


def locate(g: Gang, p: Access, pos: Positions, count: int) -> tuple[Positions, Array]:
    """Threads whose access is right, and where: bytes of the wave's shared memory, or elements of the tensor."""
    index = p.at(g, pos)
    if not p.shared:
        good = g.wave.memory.check(g, pos, g.wave.memory.tensors[p.buffer], index[0], count)
        return (pos, index[0]) if good.all() else (pos[good], index[0][good])
    shared = g.wave.shared
    buffer = shared.buffers[p.buffer]
    good = shared.check_index(g, pos, buffer, index, count)
    if not good.all():
        pos, index = pos[good], [i[good] for i in index]
    start, aligned = shared.start(g, pos, buffer, index, count * p.bytes)
    start = start + (shared.base(g, pos) if p.rank is None else elsewhere(g, p, pos))
    return (pos, start) if aligned.all() else (pos[aligned], start[aligned])


def elsewhere(g: Gang, p: Access, pos: Positions) -> Array:
    """First byte of the shared memory of the block of the cluster that each thread names."""
    assert p.rank is not None
    rank = spread(p.rank(g), g.n, "i32")[pos].astype(np.int64)
    wrong = (rank < 0) | (rank >= g.wave.cluster)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        detail = f"block {int(rank[k])} of a cluster of {g.wave.cluster}"
        g.report("out of bounds", int(pos[k]), p.buffer, -1, detail)
    g.wave.uses(g, g.lanes[pos][~wrong], rank[~wrong])
    out: Array = np.where(wrong, 0, rank) * g.wave.shared.size
    return out


def fetch(g: Gang, p: Access, count: int) -> list[Array]:
    """Raw elements that each thread reads, `count` arrays; all bits are set where a thread reads nothing."""
    pos, at = locate(g, p, g.running(), count)
    wave = g.wave
    if not p.shared:
        got = wave.memory.read(g, pos, wave.memory.tensors[p.buffer], at, count)
    else:
        wave.shared.check_read(g, pos, wave.shared.grains(at, count * p.bytes), p.buffer)
        wave.tally.shared_access(g.lanes[pos], at % wave.shared.size, count * p.bytes)
        wave.touch(g, pos)
        got = wave.shared.views[p.held][(at // p.bytes)[:, None] + np.arange(count)]
    if len(pos) == g.n:
        return [np.ascontiguousarray(got[:, k]) for k in range(count)]
    out = np.full((count, g.n * p.bytes), 0xFF, np.uint8).view(p.held)
    out[:, pos] = got.T
    return list(out)


def put(g: Gang, p: Access, values: list[Array]) -> None:
    """Raw elements that each running thread writes."""
    pos, at = locate(g, p, g.running(), len(values))
    if not len(pos):
        return
    wave = g.wave
    data = np.stack([v[pos] for v in values], axis=1)
    if not p.shared:
        wave.memory.write(g, pos, wave.memory.tensors[p.buffer], at, data)
        return
    size = len(values) * p.bytes
    wave.shared.check_write(g, pos, wave.shared.grains(at, size), p.buffer)
    wave.tally.shared_access(g.lanes[pos], at % wave.shared.size, size)
    wave.touch(g, pos)
    wave.shared.views[p.held][(at // p.bytes)[:, None] + np.arange(len(values))] = data
