"""Maps with transposed operands: square tiles that are read along one axis and written along the other.

    WORK=t32x8,TILE=f32x32,STAGE=d1/smem    a tile of 32x32 elements by 256 threads

Turned operands pass through shared memory, one element of padding a row so that neither direction conflicts in banks
(two for 16-bit types); every other load is made where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from emmy.codegen.expr import TID, Code, add, both, convert, div, global_at, lt, mod, mul, shared_at
from emmy.codegen.families.pointwise import Pointwise, guard_of
from emmy.codegen.scalar import Scalars, Scope
from emmy.errors import LoweringError
from emmy.ir.build import imul
from emmy.ir.dtype import register
from emmy.ir.kernel import BYTES, Buffer, Builtin, Kernel, Layout, Load, Var, X
from emmy.ir.loop import Ax, Body, const
from emmy.ir.schedule import Row
from emmy.ir.views.map_view import Staged, Vectors
from emmy.ir.views.turn_view import TurnView, turn_view, turned


def lower_turn(body: Body, row: Row, s: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a map with turned operands; LoweringError where there are none (a bug in a schedule rule)."""
    view = turn_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name}: nothing to turn, {view}")
    writer = _Turn(view, s, row.tile.fragment[0], row.work.dims[1])
    code = Code(s.names)
    writer.write(code)
    grid = imul(writer.v.other.extent, writer.v.high.extent, writer.v.low.extent)
    buffers = tuple(writer.buffers.values())
    blocks = (grid, const(1), const(1))
    return Kernel(name, comment, s.params, buffers, blocks, row.work.threads, tuple(code.statements))


class _Turn:
    def __init__(self, view: TurnView, s: Scalars, tile: int, warps: int) -> None:
        self.view, self.s, self.tile, self.warps = view, s, tile, warps
        self.v = turned(view, tile)
        self.buffers: dict[Staged, Buffer] = {}

    def write(self, code: Code) -> None:
        t = self.s.index_type
        root = Scope(code)
        tid = code.let("tid", TID)
        lane, warp = code.let("lane", mod(tid, self.tile)), code.let("warp", div(tid, self.tile))
        block = convert(Builtin("bid_x"), t)
        lows, highs = (self.s.index(a.extent, root) for a in (self.v.low, self.v.high))
        low = code.let("low", mod(block, lows))
        high = code.let("high", mod(div(block, lows), highs))
        other = code.let("other", div(div(block, lows), highs))
        scope = Scope(code, root, {self.v.low: low, self.v.high: high, self.v.other: other})
        for staged in self.v.turned:
            type = staged.load.dtype
            name = self.s.names.fresh(f"{self.s.operand(staged.load.slot)}_s")
            self.buffers[staged] = Buffer(name, type, (self.tile, self.tile), Layout(pad=max(1, 4 // BYTES[type])))
        for at in self._steps(code, scope, lane, warp, self.v.row, self.v.column):
            self._stage(at, self._inside(at))
        code.barrier()
        for at in self._steps(code, scope, lane, warp, self.v.column, self.v.row):
            self._compute(at, self._inside(at))

    def _steps(self, code: Code, scope: Scope, lane: X, warp: X, fast: Ax, slow: Ax) -> Iterator[Scope]:
        """The thread's elements of the tile: neighbouring threads are neighbours along `fast`."""
        with code.loop("r", self.tile // self.warps, unroll=0) as (body, r):
            moved = body.let(slow.name, add(warp, mul(r, self.warps)))
            yield Scope(body, scope, {fast: lane, slow: moved})

    def _inside(self, at: Scope) -> X | None:
        """True where the element is not past the end of an axis."""
        found: X | None = None
        for high, low, axis in (
            (self.v.high, self.v.row, self.view.across),
            (self.v.low, self.v.column, self.view.along),
        ):
            size = axis.size
            if size is not None and size % self.tile == 0:
                continue
            point = add(mul(at.axis(high), self.tile), convert(at.axis(low), self.s.index_type))
            found = both(found, lt(point, self.s.index(axis.extent, at)))
        return found

    def _stage(self, at: Scope, inside: X | None) -> None:
        for staged, buffer in self.buffers.items():
            guard = both(inside, guard_of(self.s, at, staged.guards))
            start = self.s.index(staged.load.index[0], at)
            type = staged.load.dtype
            name = self.s.names.numbered("raw")
            place = global_at(self.s.operand(staged.load.slot), start, type)
            at.code.emit(Load(name, register(type), place, guard))
            cell = shared_at(buffer, at.axis(self.v.column), at.axis(self.v.row))
            at.code.store(cell, Var(name, register(type)))

    def _compute(self, at: Scope, inside: X | None) -> None:
        outs = self.view.body.outs
        vectors = Vectors(self.v.row, self.v.column, self.v.values, self.v.stores, (), tuple(False for _ in outs))
        with at.code.when(inside) as inner:
            scope = Scope(inner, at.parent, dict(at.axes))
            for staged, buffer in self.buffers.items():
                place = shared_at(buffer, scope.axis(self.v.column), scope.axis(self.v.row))
                name = self.s.names.numbered("in")
                inner.emit(Load(name, register(staged.load.dtype), place))
                scope.known[staged.load] = Var(name, register(staged.load.dtype))
            Pointwise(self.s, outs, self.s.results, vectors).element(scope)
