"""The attention family on plain threads: a thread takes one query row and F neighbouring columns of its result.

    WORK=t32,TILE=f1

The state of the online softmax (maximum, sums, F accumulators) stays in registers; keys run serially.  Keys that a
causal bound rules out are not visited.  Rows with a matrix instruction are lowered by `attention_mma`.
"""

from __future__ import annotations

import math

from emmy.codegen.expr import BID, TID, Code, add, call, compare, div, elem, f32, lt, mod, mul, select
from emmy.codegen.families.attention_mma import INF, lower_attention_mma
from emmy.codegen.families.epilogue import Epilogue, Side
from emmy.codegen.families.frame import Env, Frame, fits
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.build import iadd, idiv, imul
from emmy.ir.kernel import Bin, Kernel, Var, X
from emmy.ir.loop import Body, Const, Expr, const
from emmy.ir.schedule import Row
from emmy.ir.views.attention_view import AttentionView, attention_view
from emmy.ir.views.box import points


def lower_attention(body: Body, row: Row, scalars: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of an attention body: on tensor cores where the row names an instruction, else on plain threads."""
    if row.tile.instruction:
        return lower_attention_mma(body, row, scalars, name, comment)
    view = attention_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name} is no attention: {view}", "take a row of another family")
    frame = Frame(body, scalars, name, comment)
    return _Threads(view, row.work.threads, row.tile.fragment[0], frame).kernel()


class _Threads:
    def __init__(self, view: AttentionView, threads: int, columns: int, frame: Frame) -> None:
        self.v, self.threads, self.columns, self.f, self.code = view, threads, columns, frame, frame.code

    def kernel(self) -> Kernel:
        v, f, code = self.v, self.f, self.code
        groups = idiv(iadd(points(v.c), self.columns - 1), self.columns)
        count = imul(imul(points(v.batch), points(v.m)), groups)
        grid = (idiv(iadd(count, self.threads - 1), self.threads), const(1), const(1))
        id = code.let("id", add(mul(BID, self.threads), TID))
        with code.when(lt(id, f.count(count))) as inside:
            column = inside.let("column", mul(mod(id, f.count(groups)), self.columns))
            row = inside.let("row", div(id, f.count(groups)))
            rows = f.total(v.m)
            m = inside.let("m", mod(row, rows))
            batch = {a: inside.let("b", x) for a, x in f.decode(div(row, rows), v.batch).items()} if v.batch else {}
            self._row(inside, batch, m, column)
        return f.kernel([], grid, self.threads)

    def _row(self, code: Code, batch: Env, m: X, column: X) -> None:
        v, f = self.v, self.f
        env = {**batch, **f.decode(m, v.m)}
        known: dict[Expr, X] = {}
        for s in (s for s in v.scalars if v.t not in s.free):
            known[s] = f.value(code, s, env, known)
        top = code.declare("top", "f32", f32(-INF))
        sums = [code.declare("sum", "f32", f32(0.0)) for _ in v.weights]
        accs = [code.declare("acc", "f32", f32(0.0), self.columns) for _ in v.values]
        with code.loop("t", self._stop(code, env)) as (c, t):
            self._key(c, {**env, v.t: t}, known, top, sums, accs, column)
        held: dict[Expr, list[X]] = {}
        none = code.let("none", compare("==", top, f32(-INF)))
        for weight, total in zip(v.weights, sums, strict=True):
            held[weight] = [select(none, f32(math.nan), total)] * self.columns
        for x in v.maxima:
            held[x] = [top] * self.columns
        for value, acc in zip(v.values, accs, strict=True):
            held[value] = [elem(acc, e) for e in range(self.columns)]
        total_c = f.total(v.c)
        sides = Side(v.m, f.total(v.m), True), Side(v.c, total_c, fits(total_c, self.columns))
        Epilogue(f, v.body.outs, *sides, batch, self.columns).store(code, m, column, held, lambda inner, e: known)

    def _stop(self, code: Code, env: Env) -> X:
        stop = self.f.count(self.v.t.extent)
        for _, axis, shift in self.v.limits:
            if shift >= 0:
                last = add(env[axis], shift + 1)
                stop = code.let("stop", select(lt(last, stop), last, stop))
        return stop

    def _key(
        self, code: Code, env: Env, known: dict[Expr, X], top: Var, sums: list[Var], accs: list[Var], column: X
    ) -> None:
        """One key into the row's state (M. Milakov, N. Gimelshein, "Online normalizer calculation", 2018)."""
        v, f = self.v, self.f
        score = f.value(code, v.score, env, known)
        high = code.let("high", call("max", top, score, type="f32"))
        # while every key is masked any finite base keeps the exponents at zero
        base = code.let("base", select(compare("==", high, f32(-INF)), f32(0.0), high))
        # accurate exponentials: these rows are what f32 attention runs on, and are bound by their products
        alpha = code.let("alpha", call("exp", Bin("-", top, base, "f32"), type="f32"))
        p = code.let("p", call("exp", Bin("-", score, base, "f32"), type="f32"))
        code.assign(top, high)
        for weight, total in zip(v.weights, sums, strict=True):
            w = f.value(code, weight.value, env, known)
            one = isinstance(weight.value, Const) and weight.value.value == 1.0
            code.assign(total, call("fma", total, alpha, p if one else Bin("*", p, w, "f32"), type="f32"))
        last = add(f.total(v.c), -1)
        whole = fits(f.total(v.c), self.columns)
        with code.loop("e", self.columns, unroll=0) as (c, e):
            n = add(column, e)
            n = n if whole else c.let("n", select(lt(n, last), n, last))
            point = {**env, **f.decode(n, v.c)}
            for value, acc in zip(v.values, accs, strict=True):
                x = f.value(c, value.value, point, known)
                at = elem(acc, e)
                c.assign(at, call("fma", p, x, Bin("*", at, alpha, "f32"), type="f32"))
