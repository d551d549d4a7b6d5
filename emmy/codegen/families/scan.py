"""Scans: running sums, products, maxima along rows.

WORK=t256,TILE=f4,REDUCE=coop   256 threads walk a row in tiles of 1024: each scans its own vector, warps scan the
                                threads' totals by shuffles, the block the warps' totals, and a carry goes on
WORK=t32x4,...                  32 threads a row, 4 rows a block
WORK=t1x128,REDUCE=coop         a thread walks a row, 128 rows a block: for rows that lie across memory (a scan over
                                the first axis), where neighbouring threads then touch neighbouring elements
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emmy.codegen import folds
from emmy.codegen.expr import TID, Code, add, compare, convert, div, elem, i32, lt, mod, mul, select, shared_at
from emmy.codegen.families.map import ceil_div, fragment
from emmy.codegen.families.pointwise import Pointwise, enter, first_lane, guard_of, load_run
from emmy.codegen.scalar import Scalars, Scope
from emmy.errors import LoweringError
from emmy.ir.kernel import Assign, Buffer, Builtin, Kernel, Lit, Shuffle, Var, X
from emmy.ir.loop import Body, Scan, const
from emmy.ir.schedule import Row
from emmy.ir.views.map_view import Staged, Vectors
from emmy.ir.views.scan_view import Scanned, ScanView, scan_view, scanned


def lower_scan(body: Body, row: Row, s: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of scanned rows; LoweringError where the body is none (a bug in a schedule rule)."""
    view = scan_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name}: not a scan, {view}")
    threads, rows = (*row.work.dims, 1)[:2]
    writer = _Scan(view, s, threads, rows, fragment(row.tile)[1])
    code = Code(s.names)
    writer.write(code)
    grid = (ceil_div(view.count, rows), const(1), const(1))
    return Kernel(name, comment, s.params, tuple(writer.shared), grid, threads * rows, tuple(code.statements))


@dataclass(frozen=True, slots=True)
class _Running:
    """One scan's registers: what stands before the tile, and this thread's running values (one a lane)."""

    scan: Scan
    carry: Var
    lanes: Var


class _Scan:
    def __init__(self, view: ScanView, s: Scalars, threads: int, rows: int, width: int) -> None:
        self.view, self.s, self.threads, self.rows = view, s, threads, rows
        self.v: Scanned = scanned(view, width)
        self.width = self.v.width
        self.shared: list[Buffer] = []
        vectors = Vectors(self.v.group, self.v.lane, self.v.values, self.v.stores, self.v.staged, self.v.wide_stores)
        self.results = Pointwise(s, view.body.outs, s.results, vectors)
        self.rank: X = i32(0)
        self.local: X = i32(0)

    def write(self, code: Code) -> None:
        scope, inside = self._place(code)
        running = [self._declare(code, scan) for scan in self.view.scans]
        groups = convert(self.s.index(self.v.groups, scope), "i32")
        with code.loop("tile", groups, step=self.threads) as (body, tile):
            q = body.let("q", add(tile, self.rank))
            exists = lt(q, groups) if self.threads > 1 else None
            self._tile(body, scope, q, exists, running, inside)

    def _place(self, code: Code) -> tuple[Scope, X | None]:
        t = self.s.index_type
        root = Scope(code)
        tid: X = code.let("tid", TID)
        if self.threads == 1:
            self.local = tid
        elif self.rows == 1:
            self.rank = tid
        else:
            self.rank, self.local = code.let("rank", mod(tid, self.threads)), code.let("local", div(tid, self.threads))
        mine = code.let("row", add(mul(convert(Builtin("bid_x"), t), self.rows), convert(self.local, t)))
        count = self.s.index(self.view.count, root)
        if self.rows == 1 or (isinstance(count, Lit) and int(count.value) % self.rows == 0):
            return Scope(code, root, {self.v.row: mine}), None
        inside = code.let("inside", lt(mine, count))
        return Scope(code, root, {self.v.row: code.let("row_read", select(inside, mine, add(count, -1)))}), inside

    def _declare(self, code: Code, scan: Scan) -> _Running:
        start = folds.identity(scan.kind, scan.type)
        return _Running(scan, code.declare("carry", scan.type, start), Var("", scan.type))

    def _tile(
        self, body: Code, scope: Scope, q: X, exists: X | None, running: Sequence[_Running], inside: X | None
    ) -> None:
        at = Scope(body, scope, {self.v.group: q})
        arrays = self._load(at, exists) if self.width > 1 else {}
        mine: list[_Running] = []
        for n, r in enumerate(running):
            lanes = body.declare("run", r.scan.type, count=self.width)
            self._own(at, exists, arrays, r, n, lanes)
            mine.append(_Running(r.scan, r.carry, lanes))
        before = [self._before(body, r) for r in mine]
        condition = exists if inside is None else inside if exists is None else _both(exists, inside)
        with body.when(condition) as inner:
            self._store(Scope(inner, scope, {self.v.group: q}), arrays, mine, [b for b, _ in before])
        for r, (_, after) in zip(mine, before, strict=True):
            body.emit(Assign(r.carry, after))
        if self.threads > 32:
            body.barrier()

    def _load(self, at: Scope, exists: X | None) -> dict[Staged, Var]:
        arrays = self.results.arrays(at.code)
        first = first_lane(at, self.v.lane)
        for staged, array in arrays.items():
            guard = guard_of(self.s, first, staged.guards)
            guard = exists if guard is None else guard if exists is None else _both(exists, guard)
            start = self.s.index(staged.load.index[0], first)
            load_run(at.code, array, 0, self.width, self.s.operand(staged.load.slot), start, guard)
        return arrays

    def _own(self, at: Scope, exists: X | None, arrays: dict[Staged, Var], r: _Running, n: int, lanes: Var) -> None:
        """Running values over the thread's own vector; a vector that does not exist leaves the fold's identity."""
        code = at.code
        start = folds.identity(r.scan.kind, r.scan.type)
        total = code.declare("own", r.scan.type, start)
        if exists is not None:
            for lane, u in self._lanes(Scope(code), {}):
                lane.code.emit(Assign(elem(lanes, u), start))
        with code.when(exists) as inner:
            for lane, u in self._lanes(Scope(inner, at.parent, dict(at.axes)), arrays):
                x = convert(self.s.get(self.v.elements[n], lane), total.type)
                lane.code.emit(Assign(total, folds.combined(r.scan.kind, total, x)))
                lane.code.emit(Assign(elem(lanes, u), total))

    def _lanes(self, vector: Scope, arrays: dict[Staged, Var]) -> Iterator[tuple[Scope, X]]:
        """Each element of the vector that `vector` binds, as a scope and its lane."""
        if self.width == 1:
            yield vector, i32(0)
            return
        with vector.code.loop("u", self.width, unroll=0) as (code, u):
            lane = Scope(code, vector, {self.v.lane: u})
            enter(lane, arrays, u)
            yield lane, u

    def _before(self, code: Code, r: _Running) -> tuple[X, X]:
        """What stands before this thread's vector in the row, and the carry for the next tile."""
        kind, last = r.scan.kind, elem(r.lanes, self.width - 1)
        if self.threads == 1:
            return r.carry, folds.combined(kind, r.carry, last)
        team = min(32, self.threads)
        lane = mod(self.rank, team)
        through = code.declare("through", r.carry.type, last)
        offset = 1
        while offset < team:
            other = self._shuffled(code, through, offset, team)
            with code.when(compare(">=", lane, offset)) as inner:
                inner.emit(Assign(through, folds.combined(kind, other, through)))
            offset *= 2
        previous = self._shuffled(code, through, 1, team)
        start = folds.identity(kind, r.carry.type)
        before = code.declare("before", r.carry.type, r.carry)
        if self.threads <= 32:
            own = code.let("ahead", select(compare("==", lane, 0), start, previous))
            code.emit(Assign(before, folds.combined(kind, before, own)))
            whole = self._lane_value(code, through, team - 1, team)
            return before, folds.combined(kind, r.carry, whole)
        after = self._across_warps(code, r, through, before)
        own = code.let("ahead", select(compare("==", lane, 0), start, previous))
        code.emit(Assign(before, folds.combined(kind, before, own)))
        return before, after

    def _across_warps(self, code: Code, r: _Running, through: Var, before: Var) -> X:
        """Adds the warps before this one to `before`; returns the carry with all of them."""
        kind, warps = r.scan.kind, self.threads // 32
        buffer = Buffer(code.names.fresh("warps_s"), through.type, (self.rows, warps))
        self.shared.append(buffer)
        warp = code.let("warp", div(self.rank, 32))
        with code.when(compare("==", mod(self.rank, 32), 31)) as inner:
            inner.store(shared_at(buffer, self.local, warp), through)
        code.barrier()
        after = code.declare("after", through.type, r.carry)
        with code.loop("w", warps, unroll=0 if warps <= 8 else 4) as (body, w):
            part = body.load("part", through.type, shared_at(buffer, self.local, w))
            with body.when(lt(w, warp)) as earlier:
                earlier.emit(Assign(before, folds.combined(kind, before, part)))
            body.emit(Assign(after, folds.combined(kind, after, part)))
        return after

    def _shuffled(self, code: Code, value: Var, distance: int, width: int) -> X:
        sent = value if value.type in ("f32", "f64", "i32", "i64") else convert(value, "i32")
        name = code.names.numbered("other")
        code.emit(Shuffle(name, sent, "up", i32(distance), width))
        return convert(Var(name, sent.type), value.type)

    def _lane_value(self, code: Code, value: Var, lane: int, width: int) -> X:
        sent = value if value.type in ("f32", "f64", "i32", "i64") else convert(value, "i32")
        name = code.names.numbered("other")
        code.emit(Shuffle(name, sent, "lane", i32(lane), width))
        return convert(Var(name, sent.type), value.type)

    def _store(self, at: Scope, arrays: dict[Staged, Var], running: Sequence[_Running], before: Sequence[X]) -> None:
        outs = self.results.result_arrays(at.code)
        for lane, u in self._lanes(at, arrays):
            for r, node, ahead in zip(running, self.v.nodes, before, strict=True):
                x = folds.combined(r.scan.kind, ahead, elem(r.lanes, u))
                lane.known[node] = lane.code.let_numbered("v", x)
            self.results.lane(lane.code, lane, outs, u)
        self.results.store_arrays(at, outs)


def _both(a: X, b: X) -> X:
    from emmy.codegen.expr import both

    result = both(a, b)
    assert result is not None
    return result
