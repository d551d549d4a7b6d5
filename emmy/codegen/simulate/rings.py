"""mbarrier rings: phases, arrivals and announced bytes of each slot's two barriers, and the cursors that walk them.

A barrier completes its phase when no arrival is pending and the bytes that have been announced have been asked for.
What TMA or cp.async brings in that phase lands when somebody passes a wait for it, which is the latest moment that the
wait allows.  Parities are computed as the hardware does, so a wait may pass on the phase before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from emmy.codegen.simulate.gang import Gang
from emmy.codegen.simulate.numbers import spread
from emmy.codegen.simulate.program import Build, Compiled, Compiler, Wait
from emmy.codegen.simulate.values import reader
from emmy.ir.kernel import Advance, CopyArrive, Cursor, InitRings, Ring, RingArrive, RingWait, S
from emmy.ir.show_kernel import show_statement

if TYPE_CHECKING:
    from emmy.codegen.simulate.clocks import Ints, News, Positions
    from emmy.codegen.simulate.copies import Copy
    from emmy.codegen.simulate.wave import Wave


class Land(Protocol):
    """Bytes on their way: issued by `lane` at statement `at` into `buffer`.  `real`: not all of them are zeros."""

    at: S
    lane: int
    buffer: str
    real: bool

    def __call__(self, g: Gang, phase: int) -> None:
        """They are there, in a phase that has completed; the gang is the one that waits."""


@dataclass(slots=True)
class MBarrier:
    """`tx`: bytes announced and not yet asked for.  `agent`: the column of what lands on it in the clocks."""

    count: int
    agent: int
    name: str
    pending: int
    news: News  # of completed phases
    phase: int = 0  # completed ones
    tx: int = 0
    came: dict[int, int] = field(default_factory=dict)  # warp -> epoch of its arrival in the open phase
    before: dict[int, int] = field(default_factory=dict)  # the same of the phase before
    gathered: list[News] = field(default_factory=list)
    coming: list[Land] = field(default_factory=list)
    due: list[tuple[Land, int]] = field(default_factory=list)
    at: S | None = None
    lane: int = 0

    def settle(self) -> None:
        """Completes the phase where nothing is missing."""
        if self.pending > 0 or self.tx != 0:
            return
        self.phase += 1
        self.pending = self.count
        self.before, self.came = self.came, {}
        self.news = self.news.joined(*self.gathered)
        self.gathered = []
        self.due += [(land, self.phase) for land in self.coming]
        self.coming = []

    def passes(self, parity: int) -> bool:
        return self.phase & 1 != parity

    def needs(self) -> str:
        """What the open phase lacks."""
        missing = [f"{self.pending} of {self.count} arrivals"] if self.pending > 0 else []
        if self.tx:
            missing.append(f"{self.tx} bytes" if self.tx > 0 else f"an announcement of {-self.tx} bytes")
        return " and ".join(missing) or "nothing"


class Rings:
    """The barriers of all rings of all blocks of a wave (one cluster)."""

    def __init__(self, wave: Wave) -> None:
        self.wave = wave
        self.rings = {r.name: r for r in wave.kernel.rings}
        self.barriers: dict[tuple[int, str, str, int], MBarrier] = {}
        self.first = wave.clocks.warps  # column of the first agent
        self.columns = {r.name: sum(q.depth for q in wave.kernel.rings[:i]) for i, r in enumerate(wave.kernel.rings)}
        self.made: dict[int, Ints] = {}  # block -> (warp, epoch) of its initialization

    @staticmethod
    def agents(rings: tuple[Ring, ...]) -> int:
        return sum(r.depth for r in rings)

    def make(self, g: Gang, block: int) -> None:
        wave = self.wave
        lane = block * wave.room
        self.made[block] = np.array([lane >> 5, wave.clocks.epoch[lane >> 5]], np.int32)
        per_block = self.agents(wave.kernel.rings)
        for r in self.rings.values():
            for slot in range(r.depth):
                agent = self.first + block * per_block + self.columns[r.name] + slot
                for side, count in (("full", r.full), ("empty", r.empty)):
                    self.barriers[block, r.name, side, slot] = MBarrier(
                        count, agent, f"{r.name}[{slot}].{side}", count, wave.clocks.nothing())  # fmt: skip

    def get(self, g: Gang, lanes: Positions, block: int, ring: str, side: str, slot: int) -> MBarrier | None:
        """The barrier, initialized before (by order) what these threads do."""
        made = self.made.get(block)
        if made is None:
            g.report("uninitialized read", int(lanes[0] - g.lo), ring, slot, "no InitRings before it")
            return None
        warp, epoch = made
        column = np.full((len(lanes), 1), self.wave.clocks.column[warp], np.int32)
        first = block * self.wave.room
        late = (self.wave.clocks.known(lanes, column)[:, 0] < epoch) & (lanes != first)
        if late.any():
            bad = int(lanes[np.flatnonzero(late)[0]] - g.lo)
            g.report("shared race", bad, ring, slot, "its initialization is not ordered before this")
        barrier = self.barriers.get((block, ring, side, slot))
        if barrier is None:
            detail = f"slot {slot} of {self.rings[ring].depth}"
            g.report("out of bounds", int(lanes[0] - g.lo), ring, slot, detail)
        return barrier

    def arrive(self, g: Gang, barrier: MBarrier, lanes: Positions, bytes: int, published: News) -> None:
        barrier.at, barrier.lane = g.at, int(lanes[0])
        # arrivals of one statement belong to one phase: for the next one, this phase's end must have been waited for
        if barrier.pending < len(lanes):
            detail = f"{len(lanes)} arrivals where {max(barrier.pending, 0)} are missing"
            g.report("wrong arrivals", int(lanes[0] - g.lo), barrier.name, -1, detail)
        self.check_phase(g, barrier, lanes, published)
        barrier.gathered.append(published)
        barrier.tx += bytes * len(lanes)
        left = len(lanes)
        while left:  # arrivals beyond this phase count for the next one
            now = min(left, max(barrier.pending, 1))
            barrier.pending -= now
            left -= now
            self.bring(g, barrier)

    def check_phase(self, g: Gang, barrier: MBarrier, lanes: Positions, published: News) -> None:
        """These arrivals come after all of the phase before, which could count them otherwise."""
        clocks = self.wave.clocks
        one = lanes[:1]
        for warp, epoch in barrier.before.items():
            column = np.full((1, 1), clocks.column[warp], np.int32)
            if warp != one[0] >> 5 and clocks.known(one, column)[0, 0] < epoch:
                other = self.wave.shared.agent(int(column[0, 0]))
                detail = f"the phase before may count it, in which {other} may not have arrived"
                g.report("wrong arrivals", int(one[0] - g.lo), barrier.name, -1, detail)
        # the epoch that the arrival publishes: a lane that speaks for itself alone publishes an older one
        for w in np.unique(lanes >> 5).tolist():
            barrier.came[w] = int(published.seen[clocks.column[w]])

    def bring(self, g: Gang, barrier: MBarrier) -> None:
        if barrier.pending <= 0 and barrier.tx < 0:
            detail = f"{-barrier.tx} bytes more come than were announced"
            g.report("wrong bytes", None, barrier.name, -1, detail)
        barrier.settle()

    def finish(self, hung: bool) -> None:
        """As the kernel ends no phase waits for bytes alone, everything that came was waited for, and no other block
        may still use the shared memory of a block that has ended."""
        for b in self.barriers.values():
            if b.at is not None and b.pending <= 0 and b.tx > 0:
                detail = f"{b.tx} bytes fewer come than were announced"
                self.wave.report("wrong bytes", b.at, b.lane, b.name, -1, detail)
            for land in () if hung else (*b.coming, *(due for due, _ in b.due)):
                if land.real:
                    self.wave.report(
                        "never waited", land.at, land.lane, land.buffer, -1, "nobody waits for what it brings"
                    )
        if not hung:
            self.wave.check_ends()


# ---- statements


def slots(c: Compiler, cursor: str) -> Callable[[Gang], list[tuple[int, int, Positions]]]:
    """(slot, parity, lanes) of the threads that run: one entry where they stand at the same place."""

    def places(g: Gang) -> list[tuple[int, int, Positions]]:
        lanes = g.lanes[g.running()]
        slot, parity = g.env[f"{cursor}_slot"], g.env[f"{cursor}_parity"]
        if isinstance(slot, int) and isinstance(parity, int):
            return [(slot, parity, lanes)] if len(lanes) else []
        each = np.stack([spread(slot, g.n, "i32"), spread(parity, g.n, "i32").astype(np.int32)], axis=1)[lanes - g.lo]
        return [(int(s), int(p), lanes[(each == (s, p)).all(axis=1)]) for s, p in np.unique(each, axis=0)]

    return places


def ring_of(c: Compiler, cursor: str) -> Ring:
    return c.cursors[cursor]


def _init(c: Compiler, s: InitRings) -> Compiled:
    def run(g: Gang) -> None:
        first = g.lanes[g.running()]
        for lane in first[first % g.wave.room == 0]:
            g.wave.rings.make(g, int(lane) // g.wave.room)
            g.wave.clocks.touched[lane >> 5, 0] = True

    return Compiled(run)


def _cursor(c: Compiler, s: Cursor) -> Compiled:
    def run(g: Gang) -> None:
        g.env[f"{s.name}_slot"], g.env[f"{s.name}_parity"] = 0, 0

    return Compiled(run)


def _advance(c: Compiler, s: Advance) -> Compiled:
    depth = ring_of(c, s.cursor).depth
    by = None if s.by is None else reader(s.by)

    def run(g: Gang) -> None:
        slot, parity = g.env[f"{s.cursor}_slot"], g.env[f"{s.cursor}_parity"]
        to = slot + (1 if by is None else by(g))
        rounds = (to // depth) & 1
        if isinstance(rounds, np.ndarray):
            rounds = rounds.astype(np.uint32)
        g.assign(f"{s.cursor}_slot", to % depth, "i32")
        g.assign(f"{s.cursor}_parity", parity ^ rounds, "u32")

    return Compiled(run)


def _wait(c: Compiler, s: RingWait) -> Compiled:
    ring, places = ring_of(c, s.cursor), slots(c, s.cursor)
    flip = int(s.side == "empty")

    def steps(g: Gang) -> Iterator[Wait]:
        for slot, parity, lanes in places(g):
            rings, block = g.wave.rings, g.lo // g.wave.room
            barrier = rings.get(g, lanes, block, ring.name, s.side, slot)
            if barrier is None:
                continue
            yield _until(g, s, barrier, parity ^ flip)
            g.at = s
            for land, phase in barrier.due:
                land(g, phase)
            barrier.due = []
            news = barrier.news
            if s.side == "full":
                seen = news.seen.copy()
                seen[barrier.agent] = max(int(seen[barrier.agent]), barrier.phase)
                news = replace(news, seen=seen)
            g.wave.clocks.acquire(lanes, news)

    return Compiled(None, steps)


def _until(g: Gang, s: S, barrier: MBarrier, parity: int) -> Wait:
    return Wait(g, lambda: barrier.passes(parity), Lazy(s, barrier, parity))


@dataclass(slots=True)
class Lazy:
    """Says at a deadlock what a barrier lacks then."""

    at: S
    barrier: MBarrier
    parity: int

    def __str__(self) -> str:
        b = self.barrier
        return (
            f"{b.name}, which needs {b.needs()} (phase {b.phase}, parity {self.parity}) at `{show_statement(self.at)}`"
        )


def _arrive(c: Compiler, s: RingArrive) -> Compiled:
    ring, places = ring_of(c, s.cursor), slots(c, s.cursor)
    rank = None if s.rank is None else reader(s.rank)

    def run(g: Gang) -> None:
        for slot, _, lanes in places(g):
            own = g.lo // g.wave.room
            to = np.full(len(lanes), own) if rank is None else spread(rank(g), g.n, "i32")[lanes - g.lo]
            inside = (to >= 0) & (to < g.wave.cluster) if rank is not None else np.ones(len(lanes), np.bool_)
            if not inside.all():
                k = int(np.flatnonzero(~inside)[0])
                detail = f"block {int(to[k])} of a cluster of {g.wave.cluster}"
                g.report("out of bounds", int(lanes[k] - g.lo), ring.name, slot, detail)
                lanes, to = lanes[inside], to[inside]
            if not len(lanes):
                continue
            g.wave.uses(g, lanes[to != own], to[to != own])
            published = g.wave.clocks.publish(lanes)
            for block in np.unique(to):
                some = lanes[to == block]
                barrier = g.wave.rings.get(g, some, int(block), ring.name, s.side, slot)
                if barrier is not None:
                    g.wave.rings.arrive(g, barrier, some, s.bytes, published)

    return Compiled(run)


class CopyLanding:
    """The copies of some threads, done in the epochs in which the threads arrived."""

    def __init__(self, wave: Wave, copy: Copy) -> None:
        self.wave, self.copy, self.epoch = wave, copy, wave.clocks.epoch[copy.lanes >> 5].copy()
        self.at, self.lane, self.buffer = copy.at, int(copy.lanes[0]), copy.buffer
        self.real = bool((copy.source >= 0).any())

    def __call__(self, g: Gang, phase: int) -> None:
        self.wave.copies.arrive(self.copy, self.epoch)


def _copy_arrive(c: Compiler, s: CopyArrive) -> Compiled:
    ring, places = ring_of(c, s.cursor), slots(c, s.cursor)

    def run(g: Gang) -> None:
        wave = g.wave
        for slot, _, lanes in places(g):
            barrier = wave.rings.get(g, lanes, g.lo // wave.room, ring.name, "full", slot)
            if barrier is None:
                continue
            wave.touch(g, lanes - g.lo)
            for copy in wave.copies.taken(lanes):
                barrier.coming.append(CopyLanding(wave, copy))
            wave.rings.arrive(g, barrier, lanes, 0, wave.clocks.publish(lanes))

    return Compiled(run)


RINGS: Final[dict[type, Build]] = {
    InitRings: _init, Cursor: _cursor, Advance: _advance, RingWait: _wait, RingArrive: _arrive,
    CopyArrive: _copy_arrive,
}  # fmt: skip
