"""What is asynchronous is waited for before it is used, and nothing is overwritten before its last use, along a path.

rings    set up before use; a slot is read after its wait for full, filled after its wait for empty, and released
         after the wgmmas that read it have ended, and behind a ProxyFence or a barrier of the block that follows the
         threads' own loads and ldmatrix.  Not seen: a fence by some of the lanes only, and reads whose slot is named
         by no cursor or through a buffer that overlays the ring's (the simulator sees both)
wgmma    fenced, committed and waited for before its accumulators are touched
stores   what TMA stores is fenced and synchronized before; its source is not written before it has been read
cluster  no block ends before the others have stopped sending to it
early    a dependent kernel writes nothing before it has waited for the kernel before
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from emmy.ir.kernel import (
    Advance,
    Assign,
    AsyncCopy,
    Atomic,
    Barrier,
    BulkCommit,
    BulkWait,
    ClusterBarrier,
    CopyArrive,
    Cursor,
    Declare,
    DependentWait,
    Elem,
    InitRings,
    Kernel,
    LdMatrix,
    Let,
    Load,
    LoadVector,
    Matrix,
    NamedBarrier,
    Place,
    ProxyFence,
    RingArrive,
    RingWait,
    S,
    ShiftVector,
    StMatrix,
    Store,
    StoreVector,
    TmaLoad,
    TmaStore,
    Var,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    walk,
)
from emmy.ir.verify.facts import failure, names_in
from emmy.ir.verify.threads import Mask, Path, Slots, Step, slots

_RING: Final = (RingWait, RingArrive, CopyArrive, TmaLoad)
_SYNC: Final = (Barrier, ClusterBarrier, NamedBarrier, WarpSync)


@dataclass(slots=True)
class Group:
    """wgmmas committed together: accumulators, registers of factors, and (ring, position) of the slots they read."""

    writes: set[str] = field(default_factory=set)
    factors: set[str] = field(default_factory=set)
    slots: set[tuple[str, int]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Sent:
    """A box that TMA reads: the buffer, and where in it (None: not known)."""

    buffer: str
    where: Slots


def _remote(s: S) -> bool:
    """Uses the shared memory of another block of the cluster."""
    if isinstance(s, Load | LoadVector | Store):
        return s.place.rank is not None
    return (isinstance(s, RingArrive) and s.rank is not None) or (isinstance(s, TmaLoad) and s.multicast is not None)


def check_order(kernel: Kernel, path: Path) -> None:
    walker = _Order(kernel)
    for step in path.steps:
        walker.step(step)
    walker.end()


class _Order:
    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        statements = list(walk(kernel.body))
        self.cursors = {s.name: s.ring for s in statements if isinstance(s, Cursor)}
        self.depth = {r.name: r.depth for r in kernel.rings}
        # buffers that a ring guards
        self.guarded = {s.dst.buffer: self.cursors[s.cursor] for s in statements if isinstance(s, TmaLoad)}
        self.products = {s.acc for s in statements if isinstance(s, Wgmma)}
        self.clustered = int(np.prod(kernel.cluster)) > 1
        self.set_up = self.together = self.met = False
        self.position: dict[str, int] = {}
        self.seen: dict[str, set[int]] = {}  # positions of each ring that have been waited for as full
        self.full: dict[str, int] = {}  # position at which a cursor last waited, by side
        self.empty: dict[str, int] = {}
        self.loaded: set[tuple[str, int]] = set()  # slots read by threads, no proxy fence or barrier since
        self.groups: list[Group] = []
        self.open = Group()
        self.fenced = False
        self.touched: set[str] = set()  # registers used since the last WgmmaFence
        self.copies: set[str] = set()  # registers that are copies of others
        self.written: dict[str, Mask | None] = {}  # by ordinary stores, no fence of the proxy since
        self.apart: dict[str, Mask | None] = {}  # fenced, but not synchronized with other threads
        self.sent: list[list[Sent]] = []
        self.sending: list[Sent] = []
        self.last_remote: S | None = None
        self.started = not kernel.dependent

    def fail(self, s: S | None, why: str) -> Exception:
        return failure(self.k, s, why)

    def step(self, step: Step) -> None:
        s = step.statement
        self.control(step)
        self.rings(step)
        self.registers(s)
        self.memory(step)
        if isinstance(s, Wgmma):
            self.product(step, s)
        elif isinstance(s, WgmmaFence):
            self.fenced, self.touched = True, set()
        elif isinstance(s, WgmmaCommit):
            self.groups.append(self.open)
            self.open = Group()
        elif isinstance(s, WgmmaWait):
            if self.open.writes:
                raise self.fail(s, "wgmma before this wait is not committed, so that nothing waits for it")
            self.groups = self.groups[max(0, len(self.groups) - s.pending) :]

    def end(self) -> None:
        if self.open.writes or any(g.writes for g in self.groups):
            raise self.fail(None, "a wgmma is never waited for")
        if self.sending or self.sent:
            raise self.fail(None, "a TMA store may still read shared memory when the block ends: wait for it")
        if self.last_remote is not None:
            raise self.fail(self.last_remote, "no barrier of the cluster follows: the other block may have ended")

    # -- barriers, set-up, clusters, early starts

    def control(self, step: Step) -> None:
        s = step.statement
        if isinstance(s, InitRings):
            self.set_up = True
        elif isinstance(s, ClusterBarrier) or (isinstance(s, Barrier) and not self.clustered):
            self.together = self.together or self.set_up
        elif isinstance(s, _RING) and not self.together:
            barrier = "a barrier of the cluster" if self.clustered else "a barrier"
            raise self.fail(s, f"a ring is used before InitRings and {barrier}")
        elif isinstance(s, DependentWait):
            self.started = True
        if isinstance(s, ClusterBarrier):
            self.last_remote, self.met = None, True
        elif _remote(s):
            if not self.met:
                raise self.fail(s, "no barrier of the cluster precedes: the other block may not have started")
            self.last_remote = s
        writes = isinstance(s, TmaStore) or (isinstance(s, Store | Atomic | StoreVector) and s.place.space == "global")
        if writes and not self.started:
            raise self.fail(s, "a result is written before the wait for the kernel before, which may still read it")

    # -- rings

    def rings(self, step: Step) -> None:
        s = step.statement
        if isinstance(s, Cursor):
            self.position[s.name] = 0
        elif isinstance(s, Advance):
            # a leap of unknown length goes where no other position is
            self.position[s.cursor] += 1 if s.by is None else 1 << 20
        elif isinstance(s, RingWait):
            at = self.position[s.cursor]
            (self.full if s.side == "full" else self.empty)[s.cursor] = at
            if s.side == "full":
                self.seen.setdefault(self.cursors[s.cursor], set()).add(at)
        elif isinstance(s, RingArrive) and s.side == "empty":
            self.release(s)
        elif isinstance(s, TmaLoad):
            self.fill(step, s)

    def release(self, s: RingArrive) -> None:
        ring, at = self.cursors[s.cursor], self.position[s.cursor]
        if at not in self.seen.get(ring, ()):
            raise self.fail(s, f"a slot of ring {ring} is released that was not waited for")
        if any((ring, at) in g.slots for g in (*self.groups, self.open)):
            raise self.fail(s, f"a slot of ring {ring} is released while a wgmma may still read it")
        if (ring, at) in self.loaded:
            raise self.fail(s, f"a slot of ring {ring} is released that threads have read, and no ProxyFence follows")

    def fill(self, step: Step, s: TmaLoad) -> None:
        if step.threads is not None and step.threads.sum() != 1:
            raise self.fail(s, f"{step.threads.sum()} threads issue one TMA load")
        at = self.position[s.cursor]
        first = at < self.depth[self.cursors[s.cursor]] and not step.cut
        if self.empty.get(s.cursor) != at and not first:
            raise self.fail(s, f"{s.dst.buffer} is filled before the slot's wait for empty")

    def slot(self, p: Place) -> tuple[str, int] | None:
        """Ring and position of the slot that a place names through a cursor."""
        ring = self.guarded.get(p.buffer, "")
        for name in names_in(p):
            cursor = name.removesuffix("_slot")
            if cursor != name and self.cursors.get(cursor) == ring and cursor in self.position:
                return ring, self.position[cursor]
        return None

    def read(self, s: S, p: Place) -> None:
        if p.space == "global" or p.buffer not in self.guarded:
            return
        ring, slot = self.guarded[p.buffer], self.slot(p)
        seen = self.seen.get(ring, set())
        if not seen or (slot is not None and slot[1] not in seen):
            raise self.fail(s, f"{p.buffer} is read before the slot's wait for full")

    # -- registers and wgmma

    def registers(self, s: S) -> None:
        if isinstance(s, Wgmma | WgmmaFence | WgmmaCommit | WgmmaWait):
            return
        names = _arrays(s)
        flying = set().union(*(g.writes for g in (*self.groups, self.open))) & names
        if flying and not isinstance(s, Declare):
            raise self.fail(s, f"{min(flying)} is used before the wgmma that writes it is waited for")
        factors = set().union(*(g.factors for g in (*self.groups, self.open))) & _changed(s)
        if factors:
            raise self.fail(s, f"{min(factors)} is changed while a wgmma may still read it")
        if isinstance(s, Assign | Let) and isinstance(s.value, Elem | Var):
            self.copies |= {s.name} if isinstance(s, Let) else _changed(s)
        self.touched |= names

    def product(self, step: Step, s: Wgmma) -> None:
        factors = set().union(*(names_in(x) for x in s.a)) if isinstance(s.a, tuple) else set()
        if not self.fenced or self.touched & ({s.acc} | factors):
            raise self.fail(s, "no WgmmaFence between the registers' last use and this wgmma")
        if factors & self.copies:
            name = min(factors & self.copies)
            raise self.fail(
                s, f"{name} is a copy: compilers take it for what it is copied from, which may change early"
            )
        self.open.writes.add(s.acc)
        self.open.factors |= factors
        for m in (s.a, s.b):
            if not isinstance(m, Matrix):
                continue
            self.read(s, m.place)
            self.visible(step, m.place.buffer)
            slot = self.slot(m.place)
            if slot is not None:
                self.open.slots.add(slot)

    # -- shared memory between ordinary stores and TMA

    def memory(self, step: Step) -> None:
        s = step.statement
        if isinstance(s, Load | LoadVector | LdMatrix):
            place = s.src if isinstance(s, LdMatrix) else s.place
            self.read(s, place)
            if place.space != "global" and (slot := self.slot(place)) is not None:
                self.loaded.add(slot)
        elif isinstance(s, Store | StoreVector | Atomic):
            self.write(step, s.place)
        elif isinstance(s, StMatrix | AsyncCopy):
            self.write(step, s.dst)
        elif isinstance(s, ProxyFence) and s.space == "shared":
            self.apart.update(self.written)
            self.written, self.loaded = {}, set()
        elif isinstance(s, _SYNC) and not (isinstance(s, NamedBarrier) and s.arrive):
            self.apart = {}
            if isinstance(s, Barrier | NamedBarrier):
                self.loaded = set()
        elif isinstance(s, TmaStore):
            self.visible(step, s.src.buffer)
            self.sending.append(Sent(s.src.buffer, slots(step, s.src)))
        elif isinstance(s, BulkCommit):
            self.sent.append(self.sending)
            self.sending = []
        elif isinstance(s, BulkWait):
            self.sent = self.sent[max(0, len(self.sent) - s.pending) :]

    def visible(self, step: Step, buffer: str) -> None:
        s = step.statement
        if buffer in self.written:
            raise self.fail(s, f"{buffer} was written by ordinary stores and no ProxyFence follows them")
        writers = self.apart.get(buffer, step.threads)
        same = writers is None or step.threads is None or not np.any(writers & ~step.threads)
        if not same:
            raise self.fail(s, f"{buffer} was written by other threads and no barrier follows")

    def write(self, step: Step, p: Place) -> None:
        if p.space == "global":
            return
        where, s = slots(step, p), step.statement
        pending = [x for group in (*self.sent, self.sending) for x in group if x.buffer == p.buffer]
        shape = next(b.shape for b in self.k.shared if b.name == p.buffer)
        count = int(np.prod(shape[:-2])) if len(shape) > 2 else 1
        for x in pending:
            meet = x.where is not None and where is not None and bool(x.where & where)
            if meet or ((x.where is None or where is None) and len(pending) >= count):
                raise self.fail(s, f"{p.buffer} is written while a TMA store may still read it")
        self.written[p.buffer] = step.threads
        self.apart.pop(p.buffer, None)


def _changed(s: S) -> set[str]:
    """Registers that a statement assigns."""
    if isinstance(s, LoadVector | ShiftVector):
        return {s.array}
    targets = (s.target,) if isinstance(s, Assign) else s.dst if isinstance(s, LdMatrix) else ()
    return {t.array if isinstance(t, Elem) else t.name for t in targets}


def _arrays(s: S) -> set[str]:
    """Register arrays that a statement names."""
    if isinstance(s, LoadVector | StoreVector):
        return {s.array}
    if isinstance(s, ShiftVector):
        return {s.array, s.source}
    return {s.name} if isinstance(s, Declare) else names_in(s)
