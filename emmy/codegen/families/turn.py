"""Maps with transposed operands: square tiles that are read along one axis and written along the other.

    WORK=t8x32,TILE=f64x64,STAGE=d1/smem    a tile of 64x64 elements by 256 threads; 8 of them move a line of the tile,
                                            so vectors are of 8 elements
    WORK=t32x8,TILE=f32x32,STAGE=d1/smem    32 threads a line: single elements

A thread first issues all its loads, of turned operands (along their lines) and of the others (along the results'),
so that their latencies overlap.  Turned vectors then pass through shared memory, whose 16-byte chunks are swizzled by
the group of columns that they belong to: threads that write a line and threads that gather columns both touch
different banks.  Single elements take a padded tile instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emmy.codegen.expr import TID, Code, add, both, convert, div, lt, mod, mul, shared_at
from emmy.codegen.families.pointwise import MOST_BYTES, Pointwise, enter, first_lane, guard_of, load_run
from emmy.codegen.scalar import Scalars, Scope
from emmy.errors import LoweringError
from emmy.ir.build import imul
from emmy.ir.dtype import register
from emmy.ir.kernel import BYTES, Buffer, Builtin, Kernel, Layout, Load, StoreVector, Var, X
from emmy.ir.loop import Ax, Body, const
from emmy.ir.schedule import Row
from emmy.ir.views.map_view import Staged, Vectors
from emmy.ir.views.turn_view import Turned, TurnView, turn_view, turned

BANK_CHUNKS = 8  # 16-byte chunks that cover all banks


def lower_turn(body: Body, row: Row, s: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a map with turned operands; LoweringError where there are none (a bug in a schedule rule)."""
    view = turn_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name}: nothing to turn, {view}")
    tile, (threads, lines) = row.tile.fragment[0], row.work.dims
    v = turned(view, tile, tile // threads)
    if isinstance(v, str):
        raise LoweringError(f"{name}: {v}")
    writer = _Turn(view, v, s, tile, lines)
    code = Code(s.names)
    writer.write(code)
    grid = imul(v.other.extent, v.high.extent, v.low.extent)
    buffers = tuple(writer.buffers.values())
    blocks = (grid, const(1), const(1))
    return Kernel(name, comment, s.params, buffers, blocks, row.work.threads, tuple(code.statements))


def _layout(type: str, tile: int, width: int) -> Layout:
    if width == 1:
        return Layout(pad=max(1, 4 // BYTES[type]))
    return Layout(swizzle=min(BANK_CHUNKS, tile * BYTES[type] // MOST_BYTES), shift=width.bit_length() - 1)


class _Turn:
    def __init__(self, view: TurnView, v: Turned, s: Scalars, tile: int, lines: int) -> None:
        self.view, self.v, self.s, self.tile, self.lines = view, v, s, tile, lines
        self.buffers: dict[Staged, Buffer] = {}
        outs = view.body.outs
        vectors = Vectors(v.column_group, v.lane, v.values, v.stores, v.direct, v.wide_stores)
        self.writer = Pointwise(s, outs, s.results, vectors)

    def write(self, code: Code) -> None:
        v, root = self.v, Scope(code)
        tid = code.let("tid", TID)
        along = code.let("lane", mod(tid, self.tile // v.width))
        line = code.let("line", div(tid, self.tile // v.width))
        block = convert(Builtin("bid_x"), self.s.index_type)
        lows, highs = (self.s.index(a.extent, root) for a in (v.low, v.high))
        low = code.let("low", mod(block, lows))
        high = code.let("high", mod(div(block, lows), highs))
        other = code.let("other", div(div(block, lows), highs))
        scope = Scope(code, root, {v.low: low, v.high: high, v.other: other})
        for staged in v.sources:
            type = staged.load.dtype
            name = self.s.names.fresh(f"{self.s.operand(staged.load.slot)}_s")
            self.buffers[staged] = Buffer(name, type, (self.tile, self.tile), _layout(type, self.tile, v.width))
        steps = self.tile // self.lines
        direct = self.writer.arrays(code, steps)
        moved = {
            x: code.declare(f"{self.s.operand(x.load.slot)}_t", x.load.dtype, count=v.width * steps) for x in v.sources
        }
        for at, r in self._steps(code, scope, line, {v.row_group: along}, v.column):
            self._load(at, moved, mul(r, v.width), self._inside(at, rows=True))
        for at, r in self._steps(code, scope, line, {v.column_group: along}, v.row):
            if direct:
                self.writer.load(at, direct, mul(r, v.width), self._inside(at, rows=False))
        for at, r in self._steps(code, scope, line, {v.row_group: along}, v.column):
            self._stage(at, moved, mul(r, v.width))
        code.barrier()
        for at, r in self._steps(code, scope, line, {v.column_group: along}, v.row):
            self._compute(at, direct, mul(r, v.width), self._inside(at, rows=False))

    def _steps(self, code: Code, scope: Scope, line: X, bound: Mapping[Ax, X], slow: Ax) -> Iterator[tuple[Scope, X]]:
        """The thread's vectors of the tile: neighbouring threads are neighbours along a line."""
        with code.loop("r", self.tile // self.lines, unroll=0) as (body, r):
            moved = body.let(slow.name, add(line, mul(r, self.lines)))
            yield Scope(body, scope, {**bound, slow: moved}), r

    def _inside(self, at: Scope, rows: bool) -> X | None:
        """True where the vector is not past the end of an axis; `rows`: it runs along the rows, else the columns."""
        v, found = self.v, None
        row: X = mul(at.axis(v.row_group), v.width) if rows else at.axis(v.row)
        column: X = at.axis(v.column) if rows else mul(at.axis(v.column_group), v.width)
        for block, within, axis in ((v.high, row, self.view.across), (v.low, column, self.view.along)):
            if axis.size is not None and axis.size % self.tile == 0:
                continue
            point = add(mul(at.axis(block), self.tile), convert(within, self.s.index_type))
            found = both(found, lt(point, self.s.index(axis.extent, at)))
        return found

    def _load(self, at: Scope, arrays: Mapping[Staged, Var], start: X, inside: X | None) -> None:
        first = first_lane(at, self.v.lane)
        for staged, array in arrays.items():
            guard = both(inside, guard_of(self.s, first, staged.guards))
            place = self.s.index(staged.load.index[0], first)
            load_run(at.code, array, start, self.v.width, self.s.operand(staged.load.slot), place, guard)

    def _stage(self, at: Scope, arrays: Mapping[Staged, Var], start: X) -> None:
        for staged, array in arrays.items():
            buffer = self.buffers[staged]
            step = min(self.v.width, MOST_BYTES // BYTES[buffer.type])
            for n in range(0, self.v.width, step):
                row = add(mul(at.axis(self.v.row_group), self.v.width), n)
                cell = shared_at(buffer, at.axis(self.v.column), row)
                at.code.emit(StoreVector(cell, array.name, add(start, n), step))

    def _compute(self, at: Scope, direct: Mapping[Staged, Var], start: X, inside: X | None) -> None:
        v = self.v
        with at.code.when(inside) as inner:
            scope = Scope(inner, at.parent, dict(at.axes))
            arrays = self.writer.result_arrays(inner)
            with inner.loop("u", v.width, unroll=0) as (code, u):
                lane = Scope(code, scope, {v.lane: u})
                enter(lane, direct, add(start, u))
                column = add(mul(scope.axis(v.column_group), v.width), u)
                for (staged, buffer), node in zip(self.buffers.items(), v.known, strict=True):
                    name, type = self.s.names.numbered("in"), register(staged.load.dtype)
                    code.emit(Load(name, type, shared_at(buffer, column, scope.axis(v.row))))
                    lane.known[node] = Var(name, type)
                self.writer.lane(code, lane, arrays, u)
            self.writer.store_arrays(scope, arrays)
