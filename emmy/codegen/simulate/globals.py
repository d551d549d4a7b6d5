"""Global memory: the kernel's parameters, and for every element of a result who wrote and read it last.

Between blocks of a launch nothing is ordered but what atomics order (see `blocks`), so an element has one owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from emmy.codegen.simulate.numbers import Array, memory_type
from emmy.errors import UsageError
from emmy.ir.evaluate import integer
from emmy.ir.kernel import BYTES, Kernel

if TYPE_CHECKING:
    from emmy.codegen.simulate.findings import Findings
    from emmy.codegen.simulate.gang import Gang, Positions

ATOMIC: Final = -2  # owner of an element that atomics write


class Tensor:
    """One parameter: raw bits, flat.  `out`: the kernel may write it (results and memory of its own)."""

    def __init__(self, name: str, type: str, data: Array, out: bool, given: bool, role: str = "") -> None:
        self.name, self.type, self.data, self.out, self.role = name, type, data, out, role
        self.bytes = BYTES[type]
        self.given = given
        n = len(data) if out else 0
        self.owner: npt.NDArray[np.int64] = np.full(n, -1, np.int64)  # thread of the grid
        self.epoch: npt.NDArray[np.int32] = np.zeros(n, np.int32)
        self.last: npt.NDArray[np.int64] = np.full(n, -1, np.int64)  # the last thread that did an atomic on it
        self.news: dict[object, npt.NDArray[np.int32]] = {}  # what atomics on an element tell
        self.added: dict[int, npt.NDArray[np.int32]] = {}  # warp of the grid -> epoch of its last atomic on elements
        self.reader: npt.NDArray[np.int64] = np.full(n, -1, np.int64)
        self.read_epoch: npt.NDArray[np.int32] = np.zeros(n, np.int32)


class Globals:
    def __init__(
        self, kernel: Kernel, arrays: Mapping[str, npt.NDArray[Any]],
        results: Mapping[str, npt.NDArray[Any] | int], sizes: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.tensors: dict[str, Tensor] = {}
        for p in kernel.params:
            if p.role == "size":
                continue
            given = arrays.get(p.name) if p.role == "in" else results.get(p.name)
            if given is None and p.count is not None:
                n = integer(p.count, sizes)
                given = n if p.role == "scratch" else np.zeros(n, memory_type(p.type))
            if given is None:
                raise UsageError(f"{kernel.name} has a parameter {p.name}, for which nothing was given")
            self.tensors[p.name] = self.tensor(p.name, p.type, p.role, given)

    def tensor(self, name: str, type: str, role: str, given: npt.NDArray[Any] | int) -> Tensor:
        out = role != "in"
        if isinstance(given, int):
            data = np.full(given * BYTES[type], 0xFF, np.uint8).view(memory_type(type))
            return Tensor(name, type, data, out, False, role)
        flat = np.ascontiguousarray(given).reshape(-1)
        if flat.dtype.itemsize != BYTES[type]:
            raise UsageError(f"{name} is {type}, the array given for it holds {flat.dtype}")
        data = flat.view(memory_type(type))
        return Tensor(name, type, data.copy() if out else data, out, out, role)

    def check(self, g: Gang, pos: Positions, t: Tensor, index: Array, count: int) -> Array:
        """Which accesses of `count` elements are inside and aligned; others are findings."""
        good = (index >= 0) & (index + count <= len(t.data))
        if not good.all():
            k = int(np.flatnonzero(~good)[0])
            g.report("out of bounds", int(pos[k]), t.name, int(index[k]), f"the tensor has {len(t.data)} elements")
        if count > 1:
            aligned = index % count == 0 if count & (count - 1) == 0 else good
            if not aligned.all():
                k = int(np.flatnonzero(~aligned)[0])
                g.report("misaligned", int(pos[k]), t.name, int(index[k]), f"{count * t.bytes} bytes at once")
            good &= aligned
        return good

    def read(self, g: Gang, pos: Positions, t: Tensor, index: Array, count: int) -> Array:
        """[accesses, count] raw elements.  Indices were checked."""
        elements = index[:, None] + np.arange(count)
        g.wave.touch(g, pos)
        g.wave.tally.global_access(g.warps[pos], index * t.bytes, count * t.bytes, False)
        if g.wave.kernel.dependent:
            g.wave.check_depend(g, pos, t.name, index, False)
        if t.out:
            self.check_read(g, pos, t, elements)
        return t.data[elements]

    def check_read(self, g: Gang, pos: Positions, t: Tensor, elements: Array) -> None:
        owner = t.owner[elements]
        blank = (owner == -1) & (not t.given)
        if blank.any():
            i, j = (int(v[0]) for v in np.nonzero(blank))
            g.report("uninitialized read", int(pos[i]), t.name, int(elements[i, j]), "nothing has written it")
        me = g.wave.threads_of(g.lanes[pos])[:, None]
        owner = np.where(owner == ATOMIC, t.last[elements], owner)
        bad = (owner >= 0) & (owner != me) & ~g.wave.ordered(g.lanes[pos], owner, t.epoch[elements])
        if bad.any():
            i, j = (int(v[0]) for v in np.nonzero(bad))
            detail = f"read after a write by {g.wave.thread_name(int(owner[i, j]))} without order"
            g.report("global race", int(pos[i]), t.name, int(elements[i, j]), detail)
        self.check_added(g, pos, t, elements, me, "read")
        t.reader[elements] = me
        t.read_epoch[elements] = g.wave.clocks.epoch[g.warps[pos]][:, None]

    def write(self, g: Gang, pos: Positions, t: Tensor, index: Array, values: Array) -> None:
        """`values` [accesses, count].  Indices were checked."""
        elements = index[:, None] + np.arange(values.shape[1])
        g.wave.touch(g, pos)
        g.wave.tally.global_access(g.warps[pos], index * t.bytes, values.shape[1] * t.bytes, True)
        if self.check_write(g, pos, t, elements):
            t.data[elements] = values

    def check_write(self, g: Gang, pos: Positions, t: Tensor, elements: Array) -> bool:
        if not elements.size:  # a box wholly outside of the tensor
            return True
        if not t.out:
            g.report("not supported", int(pos[0]), t.name, int(elements[0, 0]), "a write to an operand")
            return False
        wave = g.wave
        if wave.kernel.dependent:
            wave.check_depend(g, pos, t.name, elements[:, 0], True)
        me = np.broadcast_to(wave.threads_of(g.lanes[pos])[:, None], elements.shape)
        self.check_owner(g, pos, t, elements, me)
        self.check_added(g, pos, t, elements, me, "write")
        for epochs in t.added.values():
            epochs[elements] = 0
        t.owner[elements] = me
        t.epoch[elements] = wave.clocks.epoch[g.warps[pos]][:, None]
        clash = t.owner[elements] != me
        if clash.any():
            i, j = (int(v[0]) for v in np.nonzero(clash))
            g.report("two owners", int(pos[i]), t.name, int(elements[i, j]), "two threads write it in one statement")
        return True

    def claim(self, g: Gang, pos: Positions, t: Tensor, elements: Array, add: bool) -> None:
        """Marks elements that one thread has TMA write or add to."""
        if not elements.size:  # the box lies outside of the tensor
            return
        if add:
            self.check_atomic(g, pos, t, elements)
        else:
            self.check_write(g, pos, t, elements)

    def check_atomic(self, g: Gang, pos: Positions, t: Tensor, elements: Array, observed: bool = False) -> None:
        """Atomics on elements that have a value and that nobody writes otherwise without order.

        `observed`: they take the former value.  Accesses that come after such an atomic come after those whose sum it
        saw, since all threads see the changes of one element in one order.
        """
        if g.wave.kernel.dependent:
            g.wave.check_depend(g, pos, t.name, elements[:, 0], True)
        owner = t.owner[elements]
        blank = (owner == -1) & (not t.given)
        if blank.any():
            i, j = (int(v[0]) for v in np.nonzero(blank))
            g.report("uninitialized read", int(pos[i]), t.name, int(elements[i, j]), "an atomic on what nothing wrote")
        me = g.wave.threads_of(g.lanes[pos])[:, None]
        bad = (owner >= 0) & (owner != me)
        if bad.any():
            bad &= ~g.wave.ordered(g.lanes[pos], owner, t.epoch[elements])
        if bad.any():
            i, j = (int(v[0]) for v in np.nonzero(bad))
            detail = f"{g.wave.thread_name(int(owner[i, j]))} writes it too, without order"
            g.report("two owners", int(pos[i]), t.name, int(elements[i, j]), detail)
        t.owner[elements] = ATOMIC
        t.last[elements] = me
        t.epoch[elements] = epoch = g.wave.clocks.epoch[g.warps[pos]][:, None]
        if observed:
            for epochs in t.added.values():
                epochs[elements] = 0
        if g.wave.talking:
            for w in np.unique(me // 32).tolist():
                here = me[:, 0] // 32 == w
                t.added.setdefault(w, np.zeros(len(t.data), np.int32))[elements[here]] = epoch[here]

    def check_added(self, g: Gang, pos: Positions, t: Tensor, elements: Array, me: Array, what: str) -> None:
        """Every atomic on an element, not the last one alone, is ordered before an ordinary access to it."""
        for w, epochs in t.added.items():
            since = epochs[elements]
            bad = (since > 0) & (me // 32 != w)
            if bad.any():
                bad &= ~g.wave.ordered(g.lanes[pos], np.full(elements.shape, 32 * w), since)
            if bad.any():
                i, j = (int(v[0]) for v in np.nonzero(bad))
                detail = f"{what} after an atomic by {g.wave.thread_name(32 * w)} or its warp without order"
                g.report("global race", int(pos[i]), t.name, int(elements[i, j]), detail)
                return

    def check_owner(self, g: Gang, pos: Positions, t: Tensor, elements: Array, me: Array) -> None:
        wave, lanes = g.wave, g.lanes[pos]
        owner = t.owner[elements]
        owner = np.where(owner == ATOMIC, t.last[elements], owner)
        bad = (owner != -1) & (owner != me)
        if bad.any():
            bad &= ~wave.ordered(lanes, owner, t.epoch[elements])
        if bad.any():
            i, j = (int(v[0]) for v in np.nonzero(bad))
            detail = f"{wave.thread_name(int(owner[i, j]))} writes it too, without order"
            g.report("two owners", int(pos[i]), t.name, int(elements[i, j]), detail)
        reader = t.reader[elements]
        late = (reader >= 0) & (reader != me)
        if late.any():
            late &= ~wave.ordered(lanes, reader, t.read_epoch[elements])
        if late.any():
            i, j = (int(v[0]) for v in np.nonzero(late))
            detail = f"a write of what {wave.thread_name(int(reader[i, j]))} reads without order"
            g.report("global race", int(pos[i]), t.name, int(elements[i, j]), detail)

    def finish(self, findings: Findings, kernel: Kernel) -> None:
        """Every element of a result whose contents were not given has been written, and what was zero is again."""
        for t in self.tensors.values():
            left = np.flatnonzero(t.data)
            if t.role == "zeroed" and len(left):
                detail = f"{len(left)} of {len(t.data)} elements are not zero, as the next launch expects them"
                findings.add("not cleared", kernel.comment, -1, -1, t.name, int(left[0]), detail)
            missing = np.flatnonzero(t.owner == -1)
            if len(missing) and t.role == "out" and not t.given:
                detail = f"{len(missing)} of {len(t.data)} elements"
                findings.add("not written", kernel.comment, -1, -1, t.name, int(missing[0]), detail)
