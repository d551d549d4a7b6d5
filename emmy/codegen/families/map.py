"""Element-wise bodies: a thread takes vectors of neighbours along the linear output index.

    WORK=t256,TILE=f2x8    256 threads a block, two vectors of 8 elements a thread (f8: one vector, empty: one element)

Loads and stores that are aligned runs over the vector move in copies of up to 16 bytes, loads of runs that begin at any
element in the aligned vectors around them; others go element by element.
What does not fill a vector at the end is done one element at a time by one thread.  A block covers a tile of
threads x vectors, so neighbouring threads touch neighbouring vectors.
"""

from __future__ import annotations

from emmy.codegen.expr import BID, TID, Code, add, both, compare, convert, div, i32, lt, mod, mul, sub
from emmy.codegen.families.pointwise import Pointwise
from emmy.codegen.families.shifted import arrays_of, shifted
from emmy.codegen.scalar import Scalars, Scope
from emmy.errors import LoweringError
from emmy.ir.build import iadd, idiv, imod
from emmy.ir.kernel import If, Kernel, Var, X
from emmy.ir.loop import Body, Const, Expr, const
from emmy.ir.schedule import Row, Tile
from emmy.ir.views.map_view import MapView, map_view, vectors


def fragment(tile: Tile) -> tuple[int, int]:
    """(vectors a thread, elements a vector) of a TILE."""
    sizes = (1, 1, *tile.fragment)[-2:] if tile.fragment else (1, 1)
    return sizes[0], sizes[1]


def lower_map(body: Body, row: Row, s: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of a map; LoweringError where the body is none (a bug in a schedule rule)."""
    view = map_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name}: not a map, {view}")
    repeats, width = fragment(row.tile)
    threads = row.work.threads
    code = Code(s.names)
    _Map(view, s, threads, repeats, width).write(code)
    groups = idiv(iadd(view.count, width - 1), width)
    grid = (ceil_div(groups, threads * repeats), const(1), const(1))
    return Kernel(name, comment, s.params, (), grid, threads, tuple(code.statements))


def ceil_div(e: Expr, n: int) -> Expr:
    return idiv(iadd(e, n - 1), n)


class _Map:
    def __init__(self, view: MapView, s: Scalars, threads: int, repeats: int, width: int) -> None:
        self.view, self.s, self.threads, self.repeats, self.width = view, s, threads, repeats, width
        self.v = vectors(view, width)
        self.write_results = Pointwise(s, view.body.outs, s.results, self.v)
        self.tid = Var("tid", "i32")

    def write(self, code: Code) -> None:
        root = Scope(code)
        t = self.s.index_type
        tid = code.let("tid", TID)
        self.tid = tid
        q = code.let("q", add(mul(convert(BID, t), self.threads * self.repeats), convert(tid, t)))
        whole = self.s.index(idiv(self.view.count, self.width), root)
        if self.repeats == 1:
            self._group(code, root, q, whole)
        else:
            self._groups(code, root, q, whole)
        self._tail(code, root, q, whole)

    def _group(self, code: Code, root: Scope, q: X, whole: X) -> None:
        with code.when(lt(q, whole)) as inner:
            scope = Scope(inner, root, {self.v.group: q})
            if self.width == 1:
                self.write_results.element(scope)
                return
            arrays, runs = self.write_results.arrays(inner), shifted(self.s, self.v, inner, 1)
            self.write_results.load(scope, arrays)
            for run in runs:
                run.read(scope, i32(0))
            for run in runs:
                run.shift(scope, i32(0))
            self.write_results.compute(scope, {**arrays, **arrays_of(runs)})

    def _groups(self, code: Code, root: Scope, q: X, whole: X) -> None:
        """All loads first, so that their latencies overlap."""
        arrays, runs = self.write_results.arrays(code, self.repeats), shifted(self.s, self.v, code, self.repeats)
        for loading in (True, False):
            if loading and not (arrays or runs):
                continue
            with code.loop("r", self.repeats, unroll=0) as (body, r):
                at = body.let("group", add(q, mul(convert(r, q.type), self.threads)))
                if loading:
                    scope = Scope(body, root, {self.v.group: at})
                    self.write_results.load(scope, arrays, mul(r, self.width), lt(at, whole))
                    for run in runs:
                        run.read(scope, r)
                    continue
                with body.when(lt(at, whole)) as inner:
                    scope = Scope(inner, root, {self.v.group: at})
                    if self.width == 1:
                        self.write_results.element(scope)
                        continue
                    for run in runs:
                        run.shift(scope, r)
                    self.write_results.compute(scope, {**arrays, **arrays_of(runs)}, mul(r, self.width))

    def _tail(self, code: Code, root: Scope, q: X, whole: X) -> None:
        """The elements after the last whole vector, by the thread whose group it would be."""
        left = imod(self.view.count, self.width)
        if isinstance(left, Const) and not int(left.value):
            return
        mine = compare("==", q, whole) if self.repeats == 1 else self._owns(q, whole)
        inner = Code(code.names)
        with inner.loop("u", convert(self.s.index(left, root), "i32")) as (body, u):
            scope = Scope(body, root, {self.v.group: whole, self.v.lane: u})
            self.write_results.element(scope)
        code.emit(If(mine, tuple(inner.statements)))

    def _owns(self, q: X, whole: X) -> X:
        """True for the one thread whose groups would hold the next one after the last."""
        span = self.threads * self.repeats
        tid = convert(self.tid, q.type)
        same_block = compare("==", div(sub(q, tid), span), div(whole, span))
        same_thread = compare("==", tid, mod(whole, self.threads))
        owns = both(same_block, same_thread)
        assert owns is not None
        return owns
