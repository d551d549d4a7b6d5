"""Runs of an element-wise body's operand that begin at any element: aligned vectors around each, shifted in registers.

Element by element, neighbouring threads ask for every sector as often as a vector has elements.  All reads stay inside
the operand: vectors are whole ones of it, and the few threads whose run reaches behind the last of them read its
elements one by one.  What lies outside of the operand has no meaning; conditions in the body keep it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emmy.codegen.expr import Code, add, convert, div, global_at, lt, mod, mul, select, sub
from emmy.codegen.families.pointwise import first_lane
from emmy.codegen.scalar import Scalars, Scope
from emmy.ir.build import imod, imul
from emmy.ir.kernel import BYTES, LoadVector, ShiftVector, Var, X
from emmy.ir.loop import Ax, Const, Expr, const
from emmy.ir.views.map_view import VECTOR_BYTES, Staged, Vectors


@dataclass(frozen=True)
class Shifted:
    """The runs of one load: `held` has two vectors for every 16 bytes, `found` what they are shifted to."""

    s: Scalars
    run: Staged
    held: Var
    found: Var
    lane: Ax

    @property
    def width(self) -> int:
        return self.lane.size or 1

    @property
    def chunk(self) -> int:
        return VECTOR_BYTES // BYTES[self.held.type]

    def read(self, scope: Scope, repeat: X) -> None:
        """The vectors around the run of the scope's group; where a chunk is one vector, that one twice."""
        last = sub(mul(div(self._count(scope), self.chunk), self.chunk), self.chunk)
        for n in range(self.width // self.chunk):
            start = self._start(scope, n)
            for k, at in enumerate((start, add(start, self.chunk - 1))):
                vector = mul(div(at, self.chunk), self.chunk)
                place = global_at(self._name, select(lt(vector, last), vector, last), self.held.type)
                into = add(mul(repeat, 2 * self.width), (2 * n + k) * self.chunk)
                scope.code.emit(LoadVector(self.held.name, into, self.chunk, place))

    def shift(self, scope: Scope, repeat: X) -> None:
        """The runs' elements, into `found`."""
        count = self._count(scope)
        for n in range(self.width // self.chunk):
            start = self._start(scope, n)
            at = add(mul(repeat, self.width), n * self.chunk)
            by = convert(mod(start, self.chunk), "i32")
            source = add(mul(repeat, 2 * self.width), 2 * n * self.chunk)
            scope.code.emit(ShiftVector(self.found.name, at, self.held.name, source, self.chunk, by))
            self._behind(scope.code, count, start, at)

    def _behind(self, code: Code, count: X, start: X, at: X) -> None:
        """Elements behind the operand's last whole vector."""
        left = imod(self._total, self.chunk)
        if isinstance(left, Const) and not int(left.value):
            return
        whole = mul(div(count, self.chunk), self.chunk)
        with code.when(lt(whole, add(start, self.chunk))) as few, few.loop("e", self.chunk, unroll=0) as (one, e):
            element = add(start, convert(e, start.type))
            inside = select(lt(element, count), element, sub(count, 1))
            one.emit(LoadVector(self.found.name, add(at, e), 1, global_at(self._name, inside, self.found.type)))

    @property
    def _name(self) -> str:
        return self.s.operand(self.run.load.slot)

    def _count(self, scope: Scope) -> X:
        """Elements of the operand."""
        return self.s.index(self._total, scope)

    @property
    def _total(self) -> Expr:
        return imul(const(1), *self.s.slots[self.run.load.slot].shape)

    def _start(self, scope: Scope, n: int) -> X:
        """Element of the operand where chunk n of the scope's group begins."""
        start = self.s.index(self.run.load.index[0], first_lane(scope, self.lane))
        return scope.code.let("start", add(start, n * self.chunk))


def shifted(s: Scalars, v: Vectors, code: Code, repeats: int) -> list[Shifted]:
    """The registers of all such runs of a body, for `repeats` groups."""
    width, made = v.lane.size or 1, []
    for run in v.shifted:
        name, type = s.operand(run.load.slot), run.load.dtype
        held = code.declare(f"{name}_around", type, count=2 * width * repeats)
        made.append(Shifted(s, run, held, code.declare(f"{name}_v", type, count=width * repeats), v.lane))
    return made


def arrays_of(runs: Iterable[Shifted]) -> dict[Staged, Var]:
    """Where the elements of the runs are, once they are shifted."""
    return {r.run: r.found for r in runs}


__all__ = ["Shifted", "arrays_of", "shifted"]
