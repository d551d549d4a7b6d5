"""A vector of neighbouring result elements a thread: loads into registers, lane by lane evaluation, stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emmy.codegen.expr import Code, add, both, convert, elem, global_at, i32, negate
from emmy.codegen.scalar import Scalars, Scope
from emmy.ir.dtype import register
from emmy.ir.kernel import BYTES, Assign, LoadVector, StoreVector, Var, X
from emmy.ir.loop import Ax, Load, Out
from emmy.ir.views.map_view import Guard, Staged, Vectors

MOST_BYTES = 16  # of one access of a thread
Arrays = Mapping[Staged, Var]


class Pointwise:
    """Writes results over (group, lane) into scopes of a kernel; `results[k]` is the parameter of result k."""

    def __init__(self, scalars: Scalars, outs: Sequence[Out], results: Sequence[str], vectors: Vectors) -> None:
        self.s, self.outs, self.results, self.v = scalars, outs, results, vectors
        self.width = vectors.lane.size or 1
        self.inside = dict(vectors.inside)

    def element(self, scope: Scope) -> None:
        """Every result at the scope's point, one element."""
        for k, value in enumerate(self.v.values):
            self._store(k, scope, self.s.get(value, scope))

    def _store(self, k: int, scope: Scope, value: X) -> None:
        place = global_at(self.results[k], self.s.index(self.v.stores[k], scope), self.outs[k].tensor.dtype)
        with scope.code.when(self._guard(k, scope)) as code:
            code.store(place, value)

    def _guard(self, k: int, scope: Scope) -> X | None:
        """Where result k may be stored; None for everywhere."""
        return self.s.get(self.inside[k], scope) if k in self.inside else None

    def arrays(self, code: Code, repeats: int = 1) -> dict[Staged, Var]:
        """Register arrays for the loads that move as vectors."""
        return {
            s: code.declare(f"{self.s.operand(s.load.slot)}_v", s.load.dtype, count=self.width * repeats)
            for s in self.v.staged
        }

    def load(self, scope: Scope, arrays: Arrays, at: X | int = 0, guard: X | None = None) -> None:
        """The vectors of the scope's group, where `guard` holds."""
        first = first_lane(scope, self.v.lane)
        for staged, array in arrays.items():
            # an index that is loaded itself must not be loaded where the guard does not hold
            if guard is not None and self._reads(staged):
                with scope.code.when(guard) as code:
                    self._vector(Scope(code, first, guarded=True), staged, array, at, None)
            else:
                self._vector(first, staged, array, at, guard)

    def _reads(self, staged: Staged) -> bool:
        return any(self.s.reads(e) for e in (staged.load.index[0], *(cond for cond, _ in staged.guards)))

    def _vector(self, scope: Scope, staged: Staged, array: Var, at: X | int, guard: X | None) -> None:
        where = both(guard, guard_of(self.s, scope, staged.guards))
        start = self.s.index(staged.load.index[0], scope)
        load_run(scope.code, array, at, self.width, self.s.operand(staged.load.slot), start, where)

    def compute(self, scope: Scope, arrays: Arrays, at: X | int = 0) -> None:
        """All lanes of the scope's group, from the loaded vectors to the stores."""
        outs = self.result_arrays(scope.code)
        with scope.code.loop("u", self.width, unroll=0) as (code, u):
            inner = Scope(code, scope, {self.v.lane: u})
            enter(inner, arrays, add(at, u))
            self.lane(code, inner, outs, u)
        self.store_arrays(scope, outs)

    def result_arrays(self, code: Code) -> dict[int, Var]:
        """Register arrays for the results that are stored as vectors."""
        return {
            k: code.declare(f"{self.results[k]}_v", self.outs[k].tensor.dtype, count=self.width)
            for k, wide in enumerate(self.v.wide_stores)
            if wide
        }

    def lane(self, code: Code, scope: Scope, arrays: Mapping[int, Var], u: X) -> None:
        """Every result at the scope's point: into its array at lane u, or to memory."""
        for k, value in enumerate(self.v.values):
            x = self.s.get(value, scope)
            if k in arrays:
                code.emit(Assign(elem(arrays[k], u), convert(x, arrays[k].type)))
            else:
                self._store(k, scope, x)

    def store_arrays(self, scope: Scope, arrays: Mapping[int, Var]) -> None:
        for k, array in arrays.items():
            first = first_lane(scope, self.v.lane)
            start = self.s.index(self.v.stores[k], first)
            store_run(scope.code, self.results[k], start, array, self.width, guard=self._guard(k, first))


def first_lane(scope: Scope, lane: Ax) -> Scope:
    """The scope at lane 0, without what is known per lane."""
    return Scope(scope.code, scope, {lane: i32(0)})


def guard_of(s: Scalars, scope: Scope, guards: Sequence[Guard]) -> X | None:
    """The conjunction of conditions."""
    guard: X | None = None
    for cond, wanted in guards:
        c = s.get(cond, scope)
        guard = both(guard, c if wanted else negate(c))
    return guard


def enter(scope: Scope, arrays: Arrays, at: X) -> None:
    """Makes element `at` of every array the value of its load in this scope."""
    for staged, array in arrays.items():
        enter_element(scope, staged.load, array, at)


def enter_element(scope: Scope, node: Load, array: Var, at: X) -> None:
    scope.known[node] = scope.code.let_numbered("in", convert(elem(array, at), register(node.dtype)))


def load_run(code: Code, array: Var, at: X | int, count: int, buffer: str, start: X, guard: X | None = None) -> None:
    """`count` neighbours into array[at ..], in copies of at most 16 bytes."""
    step = min(count, MOST_BYTES // BYTES[array.type])
    first = i32(at) if isinstance(at, int) else at
    for n in range(0, count, step):
        code.emit(LoadVector(array.name, add(first, n), step, global_at(buffer, add(start, n), array.type), guard))


def store_run(
    code: Code, buffer: str, start: X, array: Var, count: int, at: X | int = 0, guard: X | None = None
) -> None:
    """array[at ..] to `count` neighbours in memory, in copies of at most 16 bytes."""
    step = min(count, MOST_BYTES // BYTES[array.type])
    first = i32(at) if isinstance(at, int) else at
    for n in range(0, count, step):
        place = global_at(buffer, add(start, n), array.type)
        code.emit(StoreVector(place, array.name, add(first, n), step, guard))
