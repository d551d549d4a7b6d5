"""Memory of a launch's own: what blocks tell one another through it is announced, waited for and cleared.

Between the last write of a workspace and the atomic that counts the arrival stand a fence of the device and a barrier
of the writing threads; as much stands between that atomic and the first read of what others wrote.  What a launch must
leave zeroed is cleared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from emmy.ir.kernel import (
    Atomic,
    Barrier,
    Fence,
    Kernel,
    Load,
    LoadVector,
    NamedBarrier,
    S,
    Store,
    StoreVector,
    WarpSync,
    walk,
)
from emmy.ir.verify.facts import failure

_SYNC: Final = (Barrier, NamedBarrier, WarpSync)


def check_arrivals(kernel: Kernel) -> None:
    """Raises KernelError; statements are taken in their order, loops once."""
    roles = {p.name: p.role for p in kernel.params if p.is_work}
    if not roles:
        return
    walker = _Arrivals(kernel, roles)
    for s in walk(kernel.body):
        walker.step(s)
    for name in sorted(walker.added - walker.cleared):
        raise failure(kernel, None, f"{name} is never cleared: the next launch expects zeros")


class _Arrivals:
    def __init__(self, kernel: Kernel, roles: Mapping[str, str]) -> None:
        self.k, self.roles = kernel, roles
        self.added: set[str] = set()
        self.cleared: set[str] = set()
        self.open: set[str] = set()  # what stands between the last write, or the last arrival, and now: fence, barrier
        self.written = self.arrived = False

    def step(self, s: S) -> None:
        if isinstance(s, Fence) and s.scope == "device":
            self.open.discard("a fence of the device")
        elif isinstance(s, _SYNC) and not (isinstance(s, NamedBarrier) and s.arrive):
            self.open.discard("a barrier of its threads")
        elif isinstance(s, Atomic | Store | StoreVector | Load | LoadVector) and s.place.buffer in self.roles:
            self.access(s)

    def access(self, s: Atomic | Store | StoreVector | Load | LoadVector) -> None:
        name = s.place.buffer
        if isinstance(s, Atomic):
            if self.roles[name] != "zeroed":
                raise failure(self.k, s, f"an atomic on {name}, which holds anything before the launch")
            self.added.add(name)
            self.write() if not s.old else self.arrive(s)
        elif isinstance(s, Load | LoadVector):
            self.read(s, name)
        elif self.roles[name] == "zeroed":
            self.read(s, name)
            self.cleared.add(name)
        else:
            self.write()

    def write(self) -> None:
        self.written, self.arrived, self.open = True, False, {"a fence of the device", "a barrier of its threads"}

    def arrive(self, s: S) -> None:
        if self.written and self.open:
            raise failure(self.k, s, f"it announces a workspace that {_words(self.open)} does not part from its writes")
        self.written, self.arrived, self.open = False, True, {"a fence of the device", "a barrier of its threads"}

    def read(self, s: S, name: str) -> None:
        if not self.arrived or self.open:
            missing = f"without {_words(self.open)} behind" if self.arrived else "before"
            raise failure(self.k, s, f"{name} is used {missing} the arrival that orders what others did to it")


def _words(missing: set[str]) -> str:
    return " and ".join(sorted(missing))
