"""Gangs that run at the same time: roles, blocks of a cluster, and the barriers among them.

A gang runs until it may block; then another one goes on, chosen by the seed.  The order of execution decides nothing
about right and wrong (clocks do), except which of several legal orders is seen.  Where all gangs wait, the kernel
hangs: the finding says who waits for what.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from emmy.codegen.simulate.gang import Gang, RegArray
from emmy.codegen.simulate.program import Body, Build, Compiled, Compiler, Wait
from emmy.codegen.simulate.values import reader
from emmy.ir.kernel import Barrier, ClusterBarrier, NamedBarrier, Roles, S, Wgmma, walk
from emmy.ir.show_kernel import show_statement

if TYPE_CHECKING:
    from emmy.codegen.simulate.clocks import News, Positions
    from emmy.codegen.simulate.wave import Wave

GROUP: Final = 128  # threads of a warpgroup


@dataclass(slots=True)
class Task:
    gang: Gang
    steps: Iterator[Wait]
    wait: Wait | None = None
    ended: bool = False


class Scheduler:
    """`hung`: all gangs waited, and the rest of the wave did not run."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.tasks: list[Task] = []
        self.hung = False

    def start(self, gang: Gang, steps: Iterator[Wait]) -> Task:
        task = Task(gang, steps)
        self.tasks.append(task)
        return task

    def run(self) -> None:
        while self.tasks:
            able = [t for t in self.tasks if t.wait is None or t.wait.ready()]
            if not able:
                self.hung = True
                self.deadlock()
                return
            task = self.chance.choice(able)
            task.wait = next(task.steps, None)
            if task.wait is None:
                task.ended = True
                task.gang.finish()
                self.tasks.remove(task)

    def deadlock(self) -> None:
        """One finding: everybody who waits, and for what."""
        said = [f"{t.gang.name} waits for {t.wait.what}" for t in self.tasks if t.wait and not t.wait.outer]
        innermost = next((t for t in self.tasks if t.wait is not None and not t.wait.outer), self.tasks[0])
        innermost.gang.report("deadlock", None, "", -1, "; ".join(dict.fromkeys(said)))


# ---- barriers


@dataclass(slots=True)
class Meeting:
    """A hardware barrier: threads that have arrived, and what each completed phase published."""

    count: int = 0
    phase: int = 0
    came: dict[int, int] = field(default_factory=dict)  # warp -> epoch of its arrival in the open phase
    before: dict[int, int] = field(default_factory=dict)  # the same of the phase before
    gathered: list[News] = field(default_factory=list)
    published: dict[int, News] = field(default_factory=dict)

    def mixed(self, wave: Wave, lanes: Positions) -> int | None:
        """A warp whose arrival in the phase before is not ordered before these, so that they could take its place."""
        for w in np.unique(lanes >> 5).tolist():
            for other, epoch in self.before.items():
                if other != w and wave.clocks.seen[w, wave.clocks.column[other]] < epoch:
                    return int(wave.clocks.column[other])
        return None

    def arrive(self, wave: Wave, lanes: Positions, expected: int, stay: bool) -> int:
        """The phase that these arrivals are part of.  `stay`: they wait for it, which orders lanes of a warp too."""
        if stay:
            wave.clocks.sync_lanes(np.unique(lanes >> 5))
        self.came |= {w: int(wave.clocks.epoch[w]) for w in np.unique(lanes >> 5).tolist()}
        self.gathered.append(wave.clocks.publish(lanes))
        self.count += len(lanes)
        mine = self.phase
        if self.count >= expected:
            self.published[mine] = self.gathered[0].joined(*self.gathered[1:])
            self.count, self.gathered = 0, []
            self.before, self.came = self.came, {}
            self.phase += 1
            wave.tally.barriers += 1
        return mine


def _arrive(g: Gang, key: object, lanes: Positions, expected: int, what: str, stay: bool = True) -> tuple[Meeting, int]:
    """The barrier and the phase of it that the threads have arrived in."""
    meeting = g.wave.meetings.setdefault(key, Meeting())
    if meeting.count + len(lanes) > expected:
        detail = f"{meeting.count + len(lanes)} threads arrive at {what} for {expected}"
        g.report("wrong arrivals", None, "", -1, detail)
    early = meeting.mixed(g.wave, lanes)
    if early is not None:
        detail = f"{what} may count it in the phase before, of which warp {early} is not known to have arrived"
        g.report("wrong arrivals", int(lanes[0] - g.lo), "", -1, detail)
    if stay and not isinstance(g.at, ClusterBarrier):
        g.wave.clocks.drain(np.unique(lanes >> 5))
    return meeting, meeting.arrive(g.wave, lanes, expected, stay)


def _wait(g: Gang, meeting: Meeting, phase: int, lanes: Positions, what: str) -> Iterator[Wait]:
    at = g.at
    yield Wait(g, lambda: meeting.phase > phase, f"{what} at `{show_statement(at)}`")
    g.at = at
    g.wave.clocks.acquire(lanes, meeting.published[phase])


def _whole(g: Gang, what: str) -> Positions:
    """All threads of the gang, of which every one must run."""
    missing = None if g.active is None else ~g.active if g.inside is None else g.inside & ~g.active
    if missing is not None and missing.any():
        g.report("divergent", int(np.flatnonzero(missing)[0]), "", -1, f"this thread does not reach {what}")
    return g.lanes if g.inside is None else g.lanes[g.inside]


def _barrier(c: Compiler, s: Barrier) -> Compiled:
    """__syncthreads among the gangs of a block."""

    def steps(g: Gang) -> Iterator[Wait]:
        block, lanes = g.lo // g.wave.room, _whole(g, "the barrier")
        what = f"the barrier of block {block}"
        yield from _wait(g, *_arrive(g, ("block", block), lanes, g.wave.threads, what), lanes, what)

    return Compiled(None, steps)


def _cluster_barrier(c: Compiler, s: ClusterBarrier) -> Compiled:
    def steps(g: Gang) -> Iterator[Wait]:
        what, lanes = "the cluster's barrier", _whole(g, "the cluster's barrier")
        expected = g.wave.threads * g.wave.cluster
        yield from _wait(g, *_arrive(g, "cluster", lanes, expected, what), lanes, what)

    return Compiled(None, steps)


def _named(c: Compiler, s: NamedBarrier) -> Compiled:
    number = reader(s.id)

    def steps(g: Gang) -> Iterator[Wait]:
        g.converged("a named barrier")
        ids, block = number(g), g.lo // g.wave.room
        lanes = np.concatenate([np.arange(32 * w, 32 * w + 32) for w in g.running_warps()])
        each = np.full(len(lanes), ids) if isinstance(ids, int) else ids[lanes - g.lo]
        met = []
        for i in np.unique(each):
            if not 1 <= i <= 15:
                g.report("not supported", None, "", -1, f"named barrier {i}: there are 1 to 15")
            some, what = lanes[each == i], f"named barrier {i} ({s.threads} threads)"
            met.append((*_arrive(g, (block, int(i)), some, s.threads, what, not s.arrive), some, what))
        for meeting, phase, some, what in met if not s.arrive else ():
            yield from _wait(g, meeting, phase, some, what)

    return Compiled(None, steps)


# ---- roles


def _roles(c: Compiler, s: Roles) -> Compiled:
    bodies = [c.body(r.body) for r in s.roles]

    def steps(g: Gang) -> Iterator[Wait]:
        _whole(g, "the roles")
        parts: list[Task] = []
        first = 0
        for role, body in zip(s.roles, bodies, strict=True):
            unit = _unit(body, role.body)
            for lo in range(32 * first, 32 * (first + role.warps), unit):
                n = min(unit, 32 * (first + role.warps) - lo)
                child = _child(g, lo, n, role.name)
                parts.append(g.wave.scheduler.start(child, body.steps(child)))
            first += role.warps
        yield Wait(g, lambda: all(t.ended for t in parts), "its roles to end", outer=True)
        _join(g, [t.gang for t in parts])

    return Compiled(None, steps)


def _unit(body: Body, statements: tuple[S, ...]) -> int:
    """Threads of a gang: a warpgroup, or a warp where some warps may wait alone (wgmma needs all four)."""
    every = list(walk(statements))
    if any(isinstance(s, Wgmma) for s in every) or not body.branches:
        return GROUP
    return 32


def _child(g: Gang, lo: int, n: int, role: str) -> Gang:
    at = slice(lo, lo + n)
    env = {
        name: v.part(at) if isinstance(v, RegArray) else v[at] if isinstance(v, np.ndarray) else v
        for name, v in g.env.items()
    }
    block = int(g.wave.blocks[g.lo // g.wave.room])
    warps = f"warp {lo // 32}" if n == 32 else f"warps {lo // 32}..{(lo + n) // 32 - 1}"
    child = Gang(g.wave, g.lo + lo, n, env, f"{role} (block {block}, {warps})")
    child.fences = g.fences
    child.holes = {name: None if m is None else m[at] for name, m in g.holes.items()}
    return child


def _join(g: Gang, parts: list[Gang]) -> None:
    """Registers as the roles left them."""
    for name, v in g.env.items():
        ends: list[Any] = [p.env[name] for p in parts]
        if isinstance(v, RegArray):
            v.rows = [_joined([e.rows[i] for e in ends], parts) for i in range(len(v.rows))]
        elif any(e is not ends[0] for e in ends):
            g.env[name] = _joined(ends, parts)
    for name in list(g.holes):
        if all(name not in p.holes for p in parts):
            del g.holes[name]


def _joined(values: list[Any], parts: list[Gang]) -> Any:
    if any(v is None for v in values):
        return None
    if all(not isinstance(v, np.ndarray) and v == values[0] for v in values):
        return values[0]
    every = zip(values, parts, strict=True)
    return np.concatenate([v if isinstance(v, np.ndarray) else np.full(p.n, v) for v, p in every])


SCHEDULED: Final[dict[type, Build]] = {
    Barrier: _barrier, Roles: _roles, ClusterBarrier: _cluster_barrier, NamedBarrier: _named,
}  # fmt: skip
