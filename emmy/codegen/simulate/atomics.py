"""Atomics on global and shared memory.  Threads of one statement take their turns by number.

Where the former value is used, blocks may tell one another something: they then run one after the other in an order
that the seed decides, and what an atomic orders follows the fence - atomic - atomic - fence pattern of the PTX memory
model (release and acquire patterns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from emmy.codegen.simulate.numbers import spread
from emmy.codegen.simulate.places import Access, locate
from emmy.codegen.simulate.program import Build, Compiled, Compiler
from emmy.codegen.simulate.statements import guarded, optional
from emmy.codegen.simulate.values import converted, reader
from emmy.ir.kernel import Atomic

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import Gang

_OPS: Final[dict[str, np.ufunc]] = {"add": np.add, "max": np.maximum, "min": np.minimum}


def _atomic(c: Compiler, s: Atomic) -> Compiled:
    place, guard = Access(s.place), optional(s.guard)
    value = converted(reader(s.value), s.value.type, s.place.type)
    function = _OPS[s.op]

    def memory(g: Gang) -> tuple[np.ndarray[Any, Any], int]:
        if place.shared:
            return g.wave.shared.views[place.held], place.bytes
        return g.wave.memory.tensors[place.buffer].data, 1

    def check(g: Gang, pos: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> None:
        wave = g.wave
        wave.touch(g, pos)
        if place.shared:
            wave.shared.check_atomic(g, pos, wave.shared.grains(at, place.bytes), place.buffer)
            wave.tally.shared_access(g.lanes[pos], at % wave.shared.size, place.bytes)
            return
        tensor = wave.memory.tensors[place.buffer]
        wave.memory.check_atomic(g, pos, tensor, at[:, None], bool(s.old))
        wave.tally.global_access(g.warps[pos], at * tensor.bytes, tensor.bytes, True)
        if wave.talking:
            wave.tell_atomic(g, pos, tensor.news, at.tolist())

    def move(g: Gang) -> None:
        pos, at = locate(g, place, g.running(), 1)
        given = spread(value(g), g.n, s.place.type)[pos]
        check(g, pos, at)
        data, unit = memory(g)
        if not s.old:
            function.at(data, at // unit, given)
            return
        old = np.zeros(g.n, place.held)
        for p, i, v in zip(pos, (at // unit).tolist(), given, strict=True):
            old[p] = data[i]
            data[i] = function(data[i], v)
        g.env[s.old] = old

    return Compiled(guarded(guard, move))


ATOMICS: Final[dict[type, Build]] = {Atomic: _atomic}
