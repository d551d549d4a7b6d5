"""cp.async along a path: what is read has landed and is seen by all, and a slot is refilled after its last read.

A copy has landed for its thread when a wait has ended its group, and for the others once a barrier follows.  Slots of a
buffer are told apart by its leading indices (all but row and column); where these are not known, nothing is said.
"""

from __future__ import annotations

from typing import Final

from emmy.ir.kernel import (
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    ClusterBarrier,
    CopyArrive,
    Kernel,
    LdMatrix,
    Load,
    LoadVector,
    NamedBarrier,
    Place,
    S,
    StMatrix,
    Store,
    StoreVector,
    WarpSync,
    walk,
)
from emmy.ir.verify.facts import failure
from emmy.ir.verify.threads import Path, Slots, Step, slots

# buffer and slots of a copy or a read
Part = tuple[str, Slots]
_SYNC: Final = (Barrier, ClusterBarrier, NamedBarrier, WarpSync)


def check_landing(kernel: Kernel, path: Path) -> None:
    """Says nothing of copies that arrive on a ring, which the ring's waits order."""
    statements = list(walk(kernel.body))
    if any(isinstance(s, CopyArrive) for s in statements):
        return
    walker = _Landing(kernel)
    for step in path.steps:
        walker.step(step)


class _Landing:
    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        self.groups: list[list[Part]] = []
        self.open: list[Part] = []
        self.waited: list[Part] = []  # landed, but no barrier since
        self.read: list[Part] = []  # since the last barrier

    def step(self, step: Step) -> None:
        s = step.statement
        if isinstance(s, AsyncCopy):
            self.copy(step, s)
        elif isinstance(s, AsyncCommit):
            self.groups.append(self.open)
            self.open = []
        elif isinstance(s, AsyncWait):
            kept = max(0, len(self.groups) - s.pending)
            self.waited += [part for group in self.groups[:kept] for part in group]
            self.groups = self.groups[kept:]
        elif isinstance(s, _SYNC) and not (isinstance(s, NamedBarrier) and s.arrive):
            self.waited, self.read = [], []
        elif isinstance(s, Load | LoadVector):
            self.use(step, s.place)
        elif isinstance(s, LdMatrix):
            self.use(step, s.src)
        elif isinstance(s, Store | StoreVector):
            self.overwrite(step, s.place)
        elif isinstance(s, StMatrix):
            self.overwrite(step, s.dst)

    def copy(self, step: Step, s: AsyncCopy) -> None:
        part = (s.dst.buffer, slots(step, s.dst))
        if any(_meet(part, other) for other in self.read):
            raise self.fail(s, f"{s.dst.buffer} is refilled and no barrier follows its last read")
        self.open.append(part)

    def use(self, step: Step, p: Place) -> None:
        if p.space == "global":
            return
        part = (p.buffer, slots(step, p))
        if any(_meet(part, other) for group in (*self.groups, self.open) for other in group):
            raise self.fail(step.statement, f"{p.buffer} is read before its copies are waited for")
        if any(_meet(part, other) for other in self.waited):
            raise self.fail(step.statement, f"{p.buffer} is read before a barrier follows the wait for its copies")
        self.read.append(part)

    def overwrite(self, step: Step, p: Place) -> None:
        part = (p.buffer, slots(step, p))
        if p.space == "shared" and any(_meet(part, o) for group in (*self.groups, self.open) for o in group):
            raise self.fail(step.statement, f"{p.buffer} is written while copies to it are in flight")

    def fail(self, s: S, why: str) -> Exception:
        return failure(self.k, s, why)


def _meet(a: Part, b: Part) -> bool:
    return a[0] == b[0] and a[1] is not None and b[1] is not None and bool(a[1] & b[1])
