"""Row reductions: the threads of a team share a row, fold it pass by pass, and sweep it with the results.

    WORK=t256           256 threads share a row, a block is a row (192 or 288 where that many vectors make a row)
    WORK=t32x8          32 threads share a row, 8 rows a block (8 threads are enough for a short row)
    TILE=f8             a thread takes vectors of 8 neighbours (empty: single elements)
    REDUCE=coop/r2      each thread keeps two partial results, from alternate vectors, and has two vectors in flight
    STAGE=reg           the row stays in registers: what two passes need is read (or computed) once

Where rows and not elements are neighbours in memory (column sums), neighbouring threads take neighbouring rows.  All
threads of a team end with the same result bits, so sweeps need no broadcast.  Rows past the last repeat the last one
and store nothing.  Where a thread holds its row and has registers to spare, it also loads what the results alone need
(weights, biases) before the folds, so that no row waits for memory twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from emmy.codegen import folds
from emmy.codegen.expr import TID, Code, add, both, compare, convert, div, elem, i32, lt, mod, mul, select
from emmy.codegen.families.combine import State, Team
from emmy.codegen.families.map import ceil_div, fragment
from emmy.codegen.families.pointwise import Pointwise, enter_element, first_lane, guard_of, load_run
from emmy.codegen.scalar import Scalars, Scope
from emmy.errors import LoweringError
from emmy.ir.kernel import BYTES, Assign, Builtin, Kernel, Lit, Var, X
from emmy.ir.loop import Body, Const, Expr, const
from emmy.ir.schedule import Row
from emmy.ir.views.map_view import Staged, Vectors
from emmy.ir.views.row_view import Pass, Passes, RowView, across_rows, held_body, kept, needs, passes, row_view

AHEAD = 12  # registers for what the results alone need: a vector or two of it


def lower_row(body: Body, row: Row, s: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a reduced row; LoweringError where the body is none (a bug in a schedule rule)."""
    view = row_view(held_body(body) if row.stage.registers else body)
    if isinstance(view, str):
        raise LoweringError(f"{name}: not a row reduction, {view}")
    threads, rows = (*row.work.dims, 1)[:2]
    _, width = fragment(row.tile)
    writer = _Rows(view, s, threads, rows, width, row.reduce.accumulators, row.stage.registers)
    code = Code(s.names)
    writer.write(code)
    grid = (ceil_div(view.count, rows), const(1), const(1))
    shared = tuple(writer.team.shared)
    return Kernel(name, comment, s.params, shared, grid, threads * rows, tuple(code.statements))


_Array = tuple[Staged, Var, X]  # a load, the register array that holds it, and where its vector starts there


@dataclass
class _Visit:
    """One vector of a thread: which of a step's parts it is, its scope, and where it stands in held arrays."""

    part: int
    scope: Scope
    at: X
    arrays: list[_Array] = field(default_factory=list)


@dataclass
class _Held:
    """Register arrays of what several passes need: loads by their first pass, and computed elements."""

    loads: dict[Staged, Var] = field(default_factory=dict)
    computed: dict[Expr, Var] = field(default_factory=dict)


class _Rows:
    def __init__(
        self, view: RowView, s: Scalars, threads: int, rows: int, width: int, accumulators: int, hold: bool
    ) -> None:
        self.view, self.s, self.threads, self.rows = view, s, threads, rows
        self.accumulators, self.hold = accumulators, hold
        self.p: Passes = passes(view, width)
        self.first_loads, self.first_computed = kept(self.p) if hold else ({}, {})
        self.held = _Held()
        self.team = Team(threads, rows, across_rows(view), i32(0), i32(0), i32(0))

    def write(self, code: Code) -> None:
        scope, inside = self._place(code)
        if self.hold:
            self._result_loads(code, scope)
        for n, p in enumerate(self.p.reducing):
            self._read_ahead(code, scope, n, p)
            self._reduce(code, scope, n, p)
        for n, p in enumerate(self.p.sweeps):
            with code.when(inside) as inner:
                at = Scope(inner, scope)
                self._sweep(inner, at, len(self.p.reducing) + n, p)

    def _place(self, code: Code) -> tuple[Scope, X | None]:
        """The thread's row, and whether it is one (blocks cover whole numbers of rows)."""
        t = self.s.index_type
        root = Scope(code)
        tid: X = code.let("tid", TID)
        team = self.team
        team.tid = tid
        if self.rows == 1:
            team.rank = tid
        elif team.across:
            team.rank, team.local = code.let("rank", div(tid, self.rows)), code.let("local", mod(tid, self.rows))
        else:
            team.rank, team.local = code.let("rank", mod(tid, self.threads)), code.let("local", div(tid, self.threads))
        block = convert(Builtin("bid_x"), t)
        if self.rows == 1:
            return Scope(code, root, {self.p.row: code.let("row", block)}), None
        mine = code.let("row", add(mul(block, self.rows), convert(team.local, t)))
        count = self.s.index(self.view.count, root)
        if isinstance(count, Lit) and int(count.value) % self.rows == 0:
            return Scope(code, root, {self.p.row: mine}), None
        inside = code.let("inside", lt(mine, count))
        safe = code.let("row_read", select(inside, mine, add(count, -1)))
        # stores happen only where the row is one, so addresses of both may use the clamped number
        return Scope(code, root, {self.p.row: safe}), inside

    # -- registers that outlive a pass

    def _steps(self, p: Pass) -> int:
        """Vectors a thread takes of a held row."""
        groups = p.groups
        assert isinstance(groups, Const)
        return -(-int(groups.value) // self.threads)

    def _bound(self, p: Pass, q: X, scope: Scope) -> X | None:
        """The condition under which vector q of the row exists; None where it always does."""
        groups = p.groups
        if self.hold and isinstance(groups, Const) and int(groups.value) % self.threads == 0:
            return None
        return lt(q, convert(self.s.index(groups, scope), "i32"))

    def _read_ahead(self, code: Code, scope: Scope, n: int, p: Pass) -> None:
        """Loads the part of the row that several passes need."""
        mine = [s for s, first in self.first_loads.items() if first == n and s not in self.held.loads]
        for staged in mine:
            self._hold(code, p, staged)
        for e, first in self.first_computed.items():
            if first == n and e not in self.held.computed:
                self.held.computed[e] = code.declare("e_r", e.type, count=self._steps(p) * p.width)
        if not mine:
            return
        with code.loop("j", self._steps(p), unroll=0) as (body, j):
            self._load_held(body, scope, p, mine, j)

    def _result_loads(self, code: Code, scope: Scope) -> None:
        """Loads what only the results need before the folds and after the row itself, as far as AHEAD goes."""
        self._read_ahead(code, scope, 0, self.p.reducing[0])
        room = AHEAD
        for p in self.p.sweeps:
            if not isinstance(p.groups, Const):
                continue
            steps = self._steps(p)
            for staged in p.staged:
                takes = -(-steps * p.width * BYTES[staged.load.dtype] // 4)
                folded = any(c.has_fold for c, _ in staged.guards) or staged.load.index[0].has_fold
                if staged in self.held.loads or staged in self.first_loads or folded or takes > room:
                    continue
                room -= takes
                self._hold(code, p, staged)
                with code.loop("j", steps, unroll=0) as (body, j):
                    self._load_held(body, scope, p, [staged], j)

    def _hold(self, code: Code, p: Pass, staged: Staged) -> None:
        name = f"{self.s.operand(staged.load.slot)}_r"
        self.held.loads[staged] = code.declare(name, staged.load.dtype, count=self._steps(p) * p.width)

    def _load_held(self, body: Code, scope: Scope, p: Pass, loads: Sequence[Staged], j: X) -> None:
        q = body.let("q", add(self.team.rank, mul(j, self.threads)))
        inner = Scope(body, scope, {p.group: q})
        for staged in loads:
            self._load(inner, p, staged, self.held.loads[staged], mul(j, p.width), self._bound(p, q, scope))

    def _load(self, scope: Scope, p: Pass, staged: Staged, array: Var, at: X | int, guard: X | None) -> None:
        first = first_lane(scope, p.lane)
        where = both(guard, guard_of(self.s, first, staged.guards))
        start = self.s.index(staged.load.index[0], first)
        load_run(scope.code, array, at, p.width, self.s.operand(staged.load.slot), start, where)

    # -- walks

    def _walk(self, code: Code, scope: Scope, p: Pass, parts: int) -> Iterator[_Visit]:
        """Every vector that a thread takes, `parts` a step; what is written to a visit runs only where it exists."""
        return self._walk_held(code, scope, p, parts) if self.hold else self._walk_streamed(code, scope, p, parts)

    def _walk_held(self, code: Code, scope: Scope, p: Pass, parts: int) -> Iterator[_Visit]:
        steps = self._steps(p)
        with code.loop("j", -(-steps // parts), unroll=0) as (body, j):
            for part in range(parts):
                step: X = add(mul(j, parts), part)
                q = body.let("q", add(self.team.rank, mul(step, self.threads)))
                exists = self._bound(p, q, scope)
                if steps % parts and part:
                    exists = both(lt(step, steps), exists)
                with body.when(exists) as inner:
                    yield _Visit(part, Scope(inner, scope, {p.group: q}), mul(step, p.width))

    def _walk_streamed(self, code: Code, scope: Scope, p: Pass, parts: int) -> Iterator[_Visit]:
        groups = convert(self.s.index(p.groups, scope), "i32")
        step = self.threads * parts
        with code.loop("q", groups, start=self.team.rank, step=step) as (body, q):
            visits: list[tuple[X | None, _Visit]] = []
            for part in range(parts):
                at: X = q if part == 0 else body.let("q", add(q, part * self.threads))
                exists = None if part == 0 or _whole(groups, step) else lt(at, groups)
                visit = _Visit(part, Scope(body, scope, {p.group: at}), i32(0))
                if parts > 1:
                    # all loads of a step before any use, so that their latencies overlap
                    visit.arrays += self._vectors(visit.scope, p, exists)
                visits.append((exists, visit))
            for exists, visit in visits:
                with body.when(exists) as inner:
                    visit.scope.code = inner
                    yield visit

    def _vectors(self, scope: Scope, p: Pass, exists: X | None) -> list[_Array]:
        """Staged loads of the scope's group: vectors into arrays; single elements become known to the scope."""
        made: list[_Array] = []
        for staged in p.staged:
            if staged in self.held.loads:
                continue
            if p.width == 1:
                guard = both(exists, guard_of(self.s, scope, staged.guards))
                scope.known[staged.load] = self.s.load(staged.load, scope, guard)
                continue
            name = f"{self.s.operand(staged.load.slot)}_v"
            array = scope.code.declare(name, staged.load.dtype, count=p.width)
            self._load(scope, p, staged, array, 0, exists)
            made.append((staged, array, i32(0)))
        return made

    def _lanes(self, visit: _Visit, p: Pass) -> Iterator[tuple[Scope, X, X]]:
        """Each element of a visited vector: its scope, its lane, and its index in held arrays."""
        scope = visit.scope
        arrays = visit.arrays or (self._vectors(scope, p, None) if p.width > 1 else [])
        held = [s for s in p.staged if s in self.held.loads and self._used(s, p)]
        arrays = arrays + [(s, self.held.loads[s], visit.at) for s in held]
        if p.width == 1:
            _enter(scope, arrays, i32(0))
            yield scope, i32(0), visit.at
            return
        with scope.code.loop("u", p.width, unroll=0) as (body, u):
            inner = Scope(body, scope, {p.lane: u})
            _enter(inner, arrays, u)
            yield inner, u, add(visit.at, u)

    def _used(self, staged: Staged, p: Pass) -> bool:
        """True when the pass needs the load itself, not only an element that was computed from it before."""
        at = [*self.p.reducing, *self.p.sweeps].index(p)
        return any(needs(v, staged.load, self.first_computed, at) for v in p.values)

    # -- folds

    def _reduce(self, code: Code, scope: Scope, n: int, p: Pass) -> None:
        parts = self.accumulators
        states: list[list[State]] = [[self.s.declare_state(f.node, code) for f in p.folds] for _ in range(parts)]
        for visit in self._walk(code, scope, p, parts):
            vectors = self._fold_vectors(visit.scope.code, p)
            for lane, u, index in self._lanes(visit, p):
                self._recall(lane, n, p, index)
                self._take(lane, n, p, states[visit.part], index, vectors, u)
            for k, arrays in vectors.items():
                folds.step_vector(visit.scope.code, p.folds[k].node, states[visit.part][k], arrays, p.width)
        for other in states[1:]:
            for f, mine, theirs in zip(p.folds, states[0], other, strict=True):
                folds.merge(code, f.node, mine, theirs)
        self.team.combine(code, [(f.node, state) for f, state in zip(p.folds, states[0], strict=True)])
        for f, node, state in zip(p.folds, p.nodes, states[0], strict=True):
            x = folds.result(f.node, state)
            scope.known[node] = x if isinstance(x, Var) else code.let_numbered("v", x)

    def _fold_vectors(self, code: Code, p: Pass) -> dict[int, State]:
        """Register arrays for the elements of folds that take a vector at once, by the fold's place in the pass."""
        joint = [k for k, f in enumerate(p.folds) if p.width > 1 and folds.joint(f.node)]
        return {k: tuple(code.declare("x_v", "f32", count=p.width) for _ in p.folds[k].elements) for k in joint}

    def _take(
        self, lane: Scope, n: int, p: Pass, states: Sequence[State], index: X, vectors: Mapping[int, State], u: X
    ) -> None:
        values = iter(p.values)
        for k, (f, state) in enumerate(zip(p.folds, states, strict=True)):
            elements = [next(values) for _ in f.elements]
            xs = [convert(self.s.get(e, lane), v.type) for e, v in zip(elements, _types(state), strict=True)]
            if k in vectors:
                for array, x in zip(vectors[k], xs, strict=True):
                    lane.code.emit(Assign(elem(array, u), x))
            else:
                folds.step(lane.code, f.node, state, xs)
            for e, x in zip(elements, xs, strict=True):
                if self.first_computed.get(e) == n:
                    lane.code.emit(Assign(elem(self.held.computed[e], index), x))

    def _recall(self, lane: Scope, n: int, p: Pass, index: X) -> None:
        """Elements that an earlier pass computed and kept."""
        for e, array in self.held.computed.items():
            first = self.first_computed[e]
            source = self.p.reducing[first]
            if first < n and source.group is p.group and source.width == p.width:
                lane.known[e] = lane.code.let_numbered("in", elem(array, index))

    # -- results

    def _sweep(self, code: Code, scope: Scope, n: int, p: Pass) -> None:
        outs = [self.view.body.outs[k] for k in p.outs]
        results = [self.s.results[k] for k in p.outs]
        vectors = Vectors(p.group, p.lane, p.values, p.stores, p.staged, p.wide_stores)
        writer = Pointwise(self.s, outs, results, vectors)
        if isinstance(p.count, Const) and int(p.count.value) == 1:
            with code.when(compare("==", self.team.rank, 0)) as inner:
                writer.element(Scope(inner, scope, {p.group: i32(0), p.lane: i32(0)}))
            return
        for visit in self._walk(code, scope, p, 1):
            arrays = writer.result_arrays(visit.scope.code)
            for lane, u, index in self._lanes(visit, p):
                self._recall(lane, n, p, index)
                writer.lane(lane.code, lane, arrays, u)
            writer.store_arrays(visit.scope, arrays)


def _enter(scope: Scope, arrays: Sequence[_Array], lane: X) -> None:
    for staged, array, start in arrays:
        enter_element(scope, staged.load, array, add(start, lane))


def _types(state: State) -> tuple[Var, ...]:
    """The registers whose types the folded elements take: both of an online sum, else the last."""
    return state if len(state) == 2 else state[-1:]


def _whole(groups: X, step: int) -> bool:
    return isinstance(groups, Lit) and int(groups.value) % step == 0
