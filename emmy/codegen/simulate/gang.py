"""A gang: consecutive threads that run one statement list together, and their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emmy.codegen.simulate.numbers import Array, Value, merge, spread, uniform
from emmy.codegen.simulate.stream import Stream
from emmy.ir.kernel import Comment, S

if TYPE_CHECKING:
    from emmy.codegen.simulate.findings import Kind
    from emmy.codegen.simulate.wave import Wave

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
Stale = tuple[Mask, str, int]  # which threads, and the buffer and element


class RegArray:
    """An array of registers: a row an element, None where nothing was assigned, `holes` where some threads did not."""

    __slots__ = ("born", "busy", "holes", "name", "rows", "stale", "type", "written")

    def __init__(self, name: str, type: str, rows: list[Value | None]) -> None:
        self.name, self.type, self.rows = name, type, rows
        self.holes: dict[int, Mask] = {}
        self.stale: dict[int, Stale] = {}  # rows loaded from memory that nothing had written
        self.busy: dict[int, int] = {}  # rows that products in flight read or write, by how many
        self.born = 0  # how many WgmmaFences came before the declaration, and before each assignment
        self.written: dict[int, int] = {}

    def inside(self, g: Gang, index: int) -> bool:
        if 0 <= index < len(self.rows):
            return True
        g.report("out of bounds", None, self.name, -1, f"register {index} of {len(self.rows)}")
        return False

    def get(self, g: Gang, index: Value) -> Value:
        if not isinstance(index, int):
            return self.gather(g, index)
        if not self.inside(g, index):
            return uniform(0, self.type)
        if self.busy and index in self.busy and not g.peek:
            g.report("read before wait", None, self.name, index, "a wgmma in flight has this register")
        row = self.rows[index]
        if row is None:
            g.report("uninitialized read", None, self.name, index, "a register that nothing has assigned")
            return uniform(0, self.type)
        if self.holes and index in self.holes:
            g.report_where("uninitialized read", self.holes[index], self.name, index, "this thread has not assigned it")
        if self.stale and index in self.stale:
            mask, buffer, element = self.stale[index]
            detail = f"{self.name}[{index}] was loaded from it before anything wrote it"
            g.report_where("uninitialized read", mask, buffer, element, detail)
        return row

    def set(self, g: Gang, index: Value, value: Value) -> None:
        if not isinstance(index, int):
            self.scatter(g, index, value)
            return
        if not self.inside(g, index):
            return
        if self.busy and index in self.busy:
            g.report("read before wait", None, self.name, index, "a wgmma in flight has this register")
        self.written[index] = g.fences
        active, old = g.active, self.rows[index]
        if active is None:
            self.rows[index] = value
            self.holes.pop(index, None)
            self.stale.pop(index, None)
        elif old is None:
            self.rows[index] = spread(value, g.n, self.type)
            self.holes[index] = ~active
        else:
            self.rows[index] = merge(active, value, old, self.type)
            self.fill(index, active)

    def fill(self, index: int, active: Mask) -> None:
        if index in self.stale:
            mask, buffer, element = self.stale[index]
            self.stale[index] = mask & ~active, buffer, element
        if index in self.holes:
            left = self.holes[index] & ~active
            if left.any():
                self.holes[index] = left
            else:
                del self.holes[index]

    def gather(self, g: Gang, index: Array) -> Value:
        out: Value = uniform(0, self.type)
        for i in np.unique(index if g.active is None else index[g.active]):
            here = index == i
            with g.narrowed(here):
                out = merge(here, self.get(g, int(i)), out, self.type)
        return out

    def scatter(self, g: Gang, index: Array, value: Value) -> None:
        for i in np.unique(index if g.active is None else index[g.active]):
            with g.narrowed(index == i):
                self.set(g, int(i), value)

    def part(self, at: slice) -> RegArray:
        """The same registers of some of the threads."""
        cut = RegArray(self.name, self.type, [r[at] if isinstance(r, np.ndarray) else r for r in self.rows])
        cut.born, cut.written = self.born, dict(self.written)
        cut.stale = {i: (m[at], b, e) for i, (m, b, e) in self.stale.items()}
        cut.holes = {i: m[at] for i, m in self.holes.items() if m[at].any()}
        return cut


class Narrowed:
    """The gang's mask, cut down while a block of Python runs."""

    __slots__ = ("before", "g", "mask")

    def __init__(self, g: Gang, mask: Mask) -> None:
        self.g, self.mask, self.before = g, mask, g.active

    def __enter__(self) -> None:
        self.g.active = self.mask if self.before is None else self.before & self.mask

    def __exit__(self, *_: object) -> None:
        self.g.active = self.before


class Gang:
    """Threads lo .. lo + n of a wave.  `active`: which of them run now (None: all)."""

    def __init__(self, wave: Wave, lo: int, n: int, env: dict[str, Any], name: str = "") -> None:
        self.wave, self.lo, self.n, self.name = wave, lo, n, name
        self.env = env
        self.holes: dict[str, Mask | None] = {}  # scalar registers not assigned yet: None in no thread
        self.at: S = Comment("")
        self.fences = 0  # WgmmaFences so far
        self.peek = False
        self.stream = wave.products.setdefault((lo, n), Stream())  # its groups count on from role to role
        self.lanes = np.arange(lo, lo + n)
        self.warps = self.lanes >> 5
        self.warp_list = np.arange(lo >> 5, (lo + n + 31) >> 5)
        block, thread = np.divmod(self.lanes, wave.room)
        self.inside: Mask | None = None if wave.room == wave.threads else thread < wave.threads
        self.active = self.inside
        self.all_positions = np.arange(n)
        self.counted: Mask | bool | None = False  # the mask that `counts` belongs to
        self.counts = (0, 0)
        self.tid: Value = thread.astype(np.int32)
        one = lo // wave.room == (lo + n - 1) // wave.room
        x, y, z = (wave.ids[block, k].astype(np.int32) for k in range(3))
        self.bid_x, self.bid_y, self.bid_z = (int(v[0]) if one or (v == v[0]).all() else v for v in (x, y, z))
        self.grid_x = wave.grid[0]
        rank = (block % wave.cluster).astype(np.int32)
        self.cluster_rank = int(rank[0]) if one or wave.cluster == 1 else rank

    # ---- which threads

    def narrowed(self, mask: Mask) -> Narrowed:
        return Narrowed(self, mask)

    def running(self) -> Positions:
        """Positions in the gang of the threads that run."""
        return self.all_positions if self.active is None else np.flatnonzero(self.active)

    def running_warps(self) -> Positions:
        """Warps (of the wave) with a thread that runs."""
        if self.active is None:
            return self.warp_list
        return self.warp_list[self.active.reshape(-1, 32).any(axis=1)]

    def converged(self, what: str) -> Mask | None:
        """Which warps run, all of them whole: a warp's instruction with a lane missing is a finding."""
        if self.active is None:
            return None
        by_warp = self.active.reshape(-1, 32)
        some: Mask = np.asarray(by_warp.any(axis=1))
        every = by_warp.all(axis=1)
        torn = some & ~every
        if torn.any():
            w = int(np.flatnonzero(torn)[0])
            self.report("divergent", 32 * w + int(np.flatnonzero(~by_warp[w])[0]), "", -1, f"{what} without this lane")
        return some

    def census(self) -> tuple[int, int]:
        """How many warps and threads run."""
        if self.active is not self.counted:
            self.counted = self.active
            self.counts = (len(self.running_warps()), len(self.running()))
        return self.counts

    # ---- registers

    def check_set(self, name: str) -> None:
        mask = self.holes[name]
        detail = "a register that nothing has assigned"
        if mask is None:
            self.report("uninitialized read", None, name, -1, detail)
        else:
            self.report_where("uninitialized read", mask, name, -1, "this thread has not assigned it")

    def assign(self, name: str, value: Value, type: str) -> None:
        active = self.active
        if active is None:
            self.env[name] = value
            self.holes.pop(name, None)
            return
        self.env[name] = merge(active, value, self.env[name], type)
        if name in self.holes:
            before = self.holes[name]
            left = ~active if before is None else before & ~active
            if left.any():
                self.holes[name] = left
            else:
                del self.holes[name]

    def ticks(self) -> int:
        self.wave.clock += 1
        return self.wave.clock

    # ---- findings

    def report(self, kind: Kind, position: int | None, buffer: str, index: int, detail: str) -> None:
        """`position`: of the thread in the gang (None: the first that runs)."""
        if position is None:
            running = self.running()
            if not len(running):
                return
            position = int(running[0])
        self.wave.report(kind, self.at, int(self.lanes[position]), buffer, index, detail)

    def report_where(self, kind: Kind, mask: Mask, buffer: str, index: int, detail: str) -> None:
        bad = mask if self.active is None else mask & self.active
        if bad.any():
            self.report(kind, int(np.flatnonzero(bad)[0]), buffer, index, detail)

    def finish(self) -> None:
        """As the gang ends, every product has been waited for."""
        for p in self.stream.products[:1]:
            self.at = p.at
            self.report("never waited", None, p.acc.name, p.first, "the product is in flight as its threads end")
