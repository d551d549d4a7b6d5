"""Any legal body: one thread a result element, every fold serial.  The row that closes every list.

    WORK=t256

Results that share their axes share a thread's work (a fold that two of them need runs once); a body whose results have
different axes takes them one after the other.
"""

from __future__ import annotations

from emmy.codegen.expr import BID, TID, Code, add, convert, lt, mul
from emmy.codegen.families.map import ceil_div
from emmy.codegen.families.pointwise import Pointwise
from emmy.codegen.scalar import Scalars, Scope
from emmy.ir.build import scalar
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Ax, Body, Expr, Out, ax, const
from emmy.ir.schedule import Row
from emmy.ir.views.flat import Flatten, total
from emmy.ir.views.map_view import rewrite, stored_order


def groups(body: Body) -> list[tuple[tuple[Ax, ...], list[int]]]:
    """Results that have the same axes, with these axes in the order of the first one's memory."""
    found: dict[frozenset[Ax], list[int]] = {}
    for k, out in enumerate(body.outs):
        found.setdefault(frozenset(out.axes), []).append(k)
    return [(stored_order(body.outs[ks[0]]), ks) for ks in found.values()]


def lower_plain(body: Body, row: Row, s: Scalars, name: str, comment: str) -> Kernel:
    code = Code(s.names)
    threads = row.work.threads
    tid = code.let("tid", TID)
    i = code.let("i", add(mul(convert(BID, s.index_type), threads), convert(tid, s.index_type)))
    flatten = Flatten(body.slots)
    most: Expr = const(0)
    for n, (axes, ks) in enumerate(groups(body)):
        count = total(axes)
        most = count if n == 0 else scalar("max", most, count)
        group, lane = ax(f"q{n}", count), ax("u", 1)
        outs: list[Out] = [body.outs[k] for k in ks]
        vectors = rewrite(outs, flatten, axes, group, lane)
        with code.when(lt(i, s.index(count, Scope(code)))) as inner:
            scope = Scope(inner, Scope(code), {group: i})
            Pointwise(s, outs, [s.results[k] for k in ks], vectors).element(scope)
    grid = (ceil_div(most, threads), const(1), const(1))
    return Kernel(name, comment, s.params, (), grid, threads, tuple(code.statements))
