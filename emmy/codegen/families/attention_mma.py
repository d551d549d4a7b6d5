"""The attention family on tensor cores: online softmax over key tiles, both products by mma.sync m16n8k16.

A block holds WM*FM*16 query rows, WM warps of FM fragments of rows each; keys and values pass through a ring of shared
tiles of FT*8 keys.  A row's state (maximum, sums, the result's accumulators) stays in registers; the probabilities of
a tile are the left operand of the second product as they lie, since accumulator and operand fragments have one map.

The order of work follows T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning"
(2023).  Exponents are taken to base 2 with the score's factor folded in.  Keys that a causal bound rules out are not
visited; a row whose every key is masked ends as NaN, as softmax of minus infinities does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from emmy.codegen.expr import TID, Code, add, both, call, compare, div, elem, f32, i32, lt, mod, mul, select, sub
from emmy.codegen.families.blocks import place_blocks
from emmy.codegen.families.epilogue import Epilogue, Side
from emmy.codegen.families.fragments import load_a, load_b
from emmy.codegen.families.frame import Env, Frame, Known, clamp, fits
from emmy.codegen.families.ring import fetch, ring
from emmy.codegen.families.rowscalars import RowScalars
from emmy.codegen.families.staging import Stager, no_scalars
from emmy.codegen.families.tiles import Tile, swizzled
from emmy.codegen.scalar import Scalars
from emmy.errors import LoweringError
from emmy.ir.kernel import AsyncCommit, AsyncWait, Bin, Elem, Kernel, Lit, Mma, Un, Var, X
from emmy.ir.loop import Ax, Body, Const, Expr
from emmy.ir.schedule import Row
from emmy.ir.views.access import async_copy, run_side, size_of
from emmy.ir.views.attention_view import QUERY_REGISTERS, AttentionView, attention_view
from emmy.ir.views.product import Part, top_folds
from emmy.ir.views.scores import peel

LOG2E = math.log2(math.e)
INF = float("inf")
SLACK = 8.0  # binary orders by which a maximum may grow before a row is rescaled


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Warps along queries, fragments of queries a warp, 8-key fragments a tile, ring depth, copies or registers."""

    type: str
    warps: int
    rows: int
    keys: int
    stages: int
    copies: bool

    @staticmethod
    def of(row: Row) -> AttentionConfig:
        rows, keys = row.tile.fragment
        type = row.tile.instruction.split("_")[2]
        return AttentionConfig(type, row.work.dims[0], rows, keys, row.stage.depth, row.stage.where == "smem-async")

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def block_m(self) -> int:
        return 16 * self.rows * self.warps

    @property
    def block_t(self) -> int:
        return 8 * self.keys


def padded(axes: tuple[Ax, ...]) -> int:
    """The number of points, rounded up to whole fragments of 16."""
    n = size_of(axes)
    if n is None:
        raise LoweringError("a head size that is not a number", "take a plain row")
    return -(-n // 16) * 16


def tiles(v: AttentionView, c: AttentionConfig) -> tuple[Tile, Tile, Tile]:
    """Queries [m][d]; keys and values with t as the advancing side, d and c as the fixed ones."""
    d, e = padded(v.d), padded(v.c)
    value = Part(v.values[0].value, (v.t,))
    return (
        _tile(v, c, "q", v.query, v.m, v.d, c.block_m, d, 1),
        _tile(v, c, "k", Part(v.key.value, (v.t,)), v.d, (v.t,), d, c.block_t, c.stages),
        _tile(v, c, "v", value, v.c, (v.t,), e, c.block_t, c.stages),
    )


def _tile(
    v: AttentionView, c: AttentionConfig, name: str, part: Part, own: tuple[Ax, ...], k: tuple[Ax, ...], rows: int,
    depth: int, stages: int,
) -> Tile:  # fmt: skip
    run = run_side(part, v.body, own, k)
    copies = c.copies and async_copy(part, v.body, own, k, c.type)
    layout = swizzled(depth if run == "k" else rows, 2)
    return Tile(name, part, own, k, rows, depth, c.type, run, run, "async" if copies else "sync", stages, layout)


def lower_attention_mma(body: Body, row: Row, scalars: Scalars, name: str, comment: str) -> Kernel:
    """The kernel of an attention body and a row WORK=w4,TILE=mma_m16n8k16_…/f1x8,STAGE=d2/smem-async."""
    view = attention_view(body)
    if isinstance(view, str):
        raise LoweringError(f"{name} is no attention: {view}", "take a row of another family")
    return _Attention(view, AttentionConfig.of(row), Frame(body, scalars, name, comment)).kernel()


class _Attention:
    def __init__(self, view: AttentionView, config: AttentionConfig, frame: Frame) -> None:
        self.v, self.c, self.f, self.code = view, config, frame, frame.code
        names = frame.scalars.names
        self.q, self.k, self.val = (replace(t, label=names.fresh(f"{t.name}_tile")) for t in tiles(view, config))
        self.d, self.e = padded(view.d), padded(view.c)
        self.score = peel(view.score)
        self.scale = self.score.factor * LOG2E
        self.held_queries = config.rows * self.d // 4 <= QUERY_REGISTERS
        self.bounds = [b for b in view.limits if b[2] >= 0]

    def kernel(self) -> Kernel:
        v, c, code, f = self.v, self.c, self.code, self.f
        self.blocks = b = place_blocks(f, v.batch, v.m, (), c.block_m, 1, reverse_m=bool(self.bounds))
        self.lane = code.let("lane", mod(TID, 32))
        self.warp = code.let("warp", div(TID, 32)) if c.warps > 1 else i32(0)
        self.m_fits = fits(b.m_total, c.block_m)
        self.t_total = f.count(v.t.extent)
        self.scalars = RowScalars(f, "m", v.scalars, v.m, c.block_m, b.m0, b.batch, c.threads)
        self.scalars.compute(code)
        query = Stager(f, self.q, c.threads, b.m0, b.batch, self.scalars.of(v.query.scalars))
        keys = Stager(f, self.k, c.threads, i32(0), b.batch, no_scalars, zero_own=True)
        values = Stager(f, self.val, c.threads, i32(0), b.batch, no_scalars, zero_own=True)
        for s in (query, keys, values):
            s.setup(code)
        self._state(code)
        count, self.free = self._key_tiles(code)
        fetch(code, [query], i32(0), i32(0))
        copies = any(s.t.transport == "async" for s in (query, keys, values))
        warm = self._hold_queries if self.held_queries else None
        if c.stages > 1:
            ring(code, [keys, values], c.stages, count, c.block_t, self._tile_pair, warm, copies)
        else:
            self._single(code, keys, values, count, copies)
        self._store(code)
        buffers = [self.q.buffer, self.k.buffer, self.val.buffer, *self.scalars.buffers.values()]
        return f.kernel(buffers, b.grid, c.threads)

    # -- set-up

    def _state(self, code: Code) -> None:
        r = self.c.rows
        self.acc = code.declare("acc", "f32", f32(0.0), r * self.e // 2)
        self.top = code.declare("top", "f32", count=2 * r)
        self.sums = [code.declare("sum", "f32", f32(0.0), 2 * r) for _ in self.v.weights]
        with code.loop("i", 2 * r, unroll=0) as (c, i):
            c.assign(elem(self.top, i), f32(-INF))
        if self.held_queries:
            self.queries = code.declare("query", "u32", count=r * self.d // 4)

    def _key_tiles(self, code: Code) -> tuple[X, X]:
        """How many key tiles the block visits, and how many of them need no bound checked."""
        size = self.c.block_t
        stop, free = self.t_total, self.t_total
        for _, axis, shift in self.bounds:
            low, high = self._range(axis)
            last, first = add(high, shift + 1), add(low, shift + 1)
            stop = code.let("stop", select(lt(last, stop), last, stop))
            free = code.let("free", select(lt(first, free), first, free))
        count = div(add(stop, size - 1), size)
        tiles = count if isinstance(count, Lit) else code.let("key_tiles", count)
        whole = div(free, size)
        return tiles, whole if isinstance(whole, Lit) else code.let("whole_tiles", whole)

    def _range(self, axis: Ax) -> tuple[X, X]:
        """Smallest and largest value of an m axis over the block's rows."""
        f, m = self.f, self.v.m
        at = m.index(axis)
        inner, n = f.total(m[at + 1 :]), f.count(axis.extent)
        end = sub(self.blocks.m_total, 1)
        last_row = add(self.blocks.m0, self.c.block_m - 1)
        last_row = last_row if self.m_fits else select(lt(last_row, end), last_row, end)
        first, last = self.code.let("first", div(self.blocks.m0, inner)), self.code.let("last", div(last_row, inner))
        if at == 0:
            return first, last
        one = self.code.let("one_pass", compare("==", div(first, n), div(last, n)))
        low = self.code.let("low", select(one, mod(first, n), i32(0)))
        return low, self.code.let("high", select(one, mod(last, n), sub(n, 1)))

    def _hold_queries(self, code: Code) -> None:
        with code.loop("dd", self.d // 16, unroll=0) as (c, dd):
            self._load_queries(c, self.queries, mul(dd, self.c.rows * 4), dd)

    def _load_queries(self, code: Code, array: Var, at: X, dd: X) -> None:
        with code.loop("i", self.c.rows, unroll=0) as (c, i):
            m0 = add(mul(self.warp, 16 * self.c.rows), mul(i, 16))
            k_inner = self.q.layout == "k"
            load_a(c, self.q.buffer, k_inner, self.lane, array, add(at, mul(i, 4)), i32(0), m0, mul(dd, 16))

    # -- the loop over key tiles

    def _tile_pair(self, code: Code, t: X, slot: X) -> None:
        scores = self._scores(code, slot)
        self._softmax(code, scores, t)
        self._values(code, scores, slot)

    def _single(self, code: Code, keys: Stager, values: Stager, count: X, copies: bool) -> None:
        """One buffer each: values arrive during the scores, the next keys during the rest."""
        commit = [AsyncCommit()] if copies else []
        wait = [AsyncWait(1)] if copies else []
        with code.when(lt(0, count)) as first:
            fetch(first, [keys], i32(0), i32(0))
        code.emit(*commit)
        if self.held_queries:
            code.emit(*([AsyncWait(0)] if copies else []))
            code.barrier()
            self._hold_queries(code)
        with code.loop("t", count) as (loop, t):
            loop.barrier()
            fetch(loop, [values], i32(0), mul(t, self.c.block_t))
            loop.emit(*commit, *wait)
            loop.barrier()
            scores = self._scores(loop, i32(0))
            loop.barrier()
            with loop.when(lt(add(t, 1), count)) as more:
                fetch(more, [keys], i32(0), mul(add(t, 1), self.c.block_t))
            loop.emit(*commit)
            self._softmax(loop, scores, t)
            loop.emit(*wait)
            loop.barrier()
            self._values(loop, scores, i32(0))

    def _scores(self, code: Code, slot: X) -> Var:
        """queries * keys: element ((i * keys + j) * 4 + 2 h + e) is row i, half h, key 8 j + 2 (lane % 4) + e."""
        r, n = self.c.rows, self.c.keys
        scores = code.declare("score", "f32", f32(0.0), r * n * 4)
        b = code.declare("key", "u32", count=n * 2)
        a = self.queries if self.held_queries else code.declare("query", "u32", count=r * 4)
        with code.loop("dd", self.d // 16, unroll=0) as (c, dd):
            at = mul(dd, r * 4) if self.held_queries else i32(0)
            if not self.held_queries:
                self._load_queries(c, a, at, dd)
            with c.loop("j", n // 2, unroll=0) as (cj, j):
                load_b(cj, self.k.buffer, self.k.layout != "k", self.lane, b, mul(j, 4), slot, mul(j, 16), mul(dd, 16))
            with c.loop("i", r, unroll=0) as (ci, i), ci.loop("j", n, unroll=0) as (cj, j):
                self._mma(cj, scores, mul(add(mul(i, n), j), 4), a, add(at, mul(i, 4)), b, mul(j, 2))
        return scores

    def _mma(self, code: Code, d: Var, d0: X, a: Var, a0: X, b: Var, b0: X) -> None:
        acc = tuple(Elem(d.name, add(d0, q), "f32") for q in range(4))
        left = tuple(Elem(a.name, add(a0, q), "u32") for q in range(4))
        right = tuple(Elem(b.name, add(b0, q), "u32") for q in range(2))
        code.emit(Mma("m16n8k16", self.c.type, acc, left, right, acc))

    def _softmax(self, code: Code, scores: Var, t: X) -> None:
        masked = not fits(self.t_total, self.c.block_t) or bool(self.bounds)
        plain = self.score.inner is self.v.dot and not self._conditions()
        weighted = any(not isinstance(w.value, Const) for w in self.v.weights)
        t0: X = mul(t, self.c.block_t)
        if masked or weighted or not plain:
            t0 = code.let("t0", t0)
        self._elements(code, scores, t0)
        if masked:
            with code.when(compare(">=", t, self.free)) as edge:
                self._mask(edge, scores, t0)
        with code.loop("i", self.c.rows, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (c, h):
            self._row(c, scores, i, h, t0)

    def _key(self, t0: X, j: X, e: X | int) -> X:
        return add(t0, mul(j, 8), mul(mod(self.lane, 4), 2), e)

    def _row_index(self, i: X, h: X) -> X:
        """The row's place in the block."""
        return add(mul(self.warp, 16 * self.c.rows), mul(i, 16), div(self.lane, 4), mul(h, 8))

    def _point(self, m: X, t: X) -> Env:
        return {**self.blocks.batch, **self.f.decode(m, self.v.m), self.v.t: t}

    def _conditions(self) -> list[Expr]:
        """Conditions of the score that no bound on keys stands for."""
        return [c for c in self.score.conditions if c not in {b[0] for b in self.bounds}]

    def _elements(self, code: Code, scores: Var, t0: X) -> None:
        """The score's arithmetic between the dot product and the factor, and conditions that are not bounds."""
        rest = self._conditions()
        if self.score.inner is self.v.dot and not rest:
            return
        n = self.c.keys
        with code.loop("i", self.c.rows, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            row = self._row_index(i, h)
            m = ch.let("m", add(self.blocks.m0, row))
            m = m if self.m_fits else ch.let("m_in", clamp(m, self.blocks.m_total))
            rows = self.scalars.at(ch, row, top_folds(self.score.inner) + [f for x in rest for f in top_folds(x)])
            with ch.loop("j", n, unroll=0) as (cj, j), cj.loop("e", 2, unroll=0) as (c, e):
                t = self._key(t0, j, e)
                t = t if fits(self.t_total, self.c.block_t) else clamp(t, self.t_total)
                s = elem(scores, add(mul(add(mul(i, n), j), 4), mul(h, 2), e))
                scope = self.f.scope(c, self._point(m, c.let("key_at", t)), {**rows, self.v.dot: s})
                value = self.f.scalars.get(self.score.inner, scope)
                keep: X | None = None
                for x in rest:
                    keep = both(keep, self.f.scalars.get(x, scope))
                c.assign(s, value if keep is None else select(keep, value, f32(-INF)))

    def _mask(self, code: Code, scores: Var, t0: X) -> None:
        n = self.c.keys
        with code.loop("i", self.c.rows, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            env = self.f.decode(ch.let("m", add(self.blocks.m0, self._row_index(i, h))), self.v.m)
            stop = self.t_total
            for _, axis, shift in self.bounds:
                last = add(env[axis], shift + 1)
                stop = select(lt(last, stop), last, stop)
            stop = stop if isinstance(stop, Lit) else ch.let("stop", stop)
            with ch.loop("j", n, unroll=0) as (cj, j), cj.loop("e", 2, unroll=0) as (c, e):
                s = elem(scores, add(mul(add(mul(i, n), j), 4), mul(h, 2), e))
                c.assign(s, select(lt(self._key(t0, j, e), stop), s, f32(-INF)))

    def _row(self, code: Code, scores: Var, i: X, h: X, t0: X) -> None:
        """The online step of one row: base of the exponents, rescaled sums, probabilities in place of the scores."""
        n, at = self.c.keys, add(mul(i, 2), h)
        top = elem(self.top, at)
        high = code.declare("high", "f32", top)
        with code.loop("j", n, unroll=0) as (cj, j), cj.loop("e", 2, unroll=0) as (c, e):
            c.assign(high, call("max", high, self._score(scores, i, j, h, e), type="f32"))
        for distance in (1, 2):
            other = code.shuffle(high, "xor", distance)
            code.assign(high, call("max", high, other, type="f32"))
        if not self.v.maxima:
            # an earlier maximum serves while powers stay below 2^SLACK: results are quotients, so the base cancels
            enough = Bin("+", top, f32(SLACK / self.scale), "f32")
            code.assign(high, select(compare(">", high, enough), high, top))
        # a row of minus infinities so far: any finite base keeps its exponents at zero
        base = code.let(
            "base", select(compare("==", high, f32(-INF)), f32(0.0), Bin("*", high, f32(self.scale), "f32"))
        )
        scaled = call("fma", top, f32(self.scale), _minus(base), type="f32")
        with code.when(compare("!=", high, top)) as grown:
            alpha = grown.let("alpha", call("exp2_fast", scaled, type="f32"))
            for total in self.sums:
                grown.assign(elem(total, at), Bin("*", elem(total, at), alpha, "f32"))
            with grown.loop("j", self.e // 8, unroll=0) as (cj, j), cj.loop("e", 2, unroll=0) as (c, e):
                x = elem(self.acc, add(mul(add(mul(i, self.e // 8), j), 4), mul(h, 2), e))
                c.assign(x, Bin("*", x, alpha, "f32"))
        code.assign(top, high)
        with code.loop("j", n, unroll=0) as (cj, j), cj.loop("e", 2, unroll=0) as (c, e):
            s = self._score(scores, i, j, h, e)
            power = call("fma", s, f32(self.scale), _minus(base), type="f32")
            c.assign(s, call("exp2_fast", power, type="f32"))
            for total, weight in zip(self.sums, self.v.weights, strict=True):
                p = self._weighted(c, s, weight.value, t0, j, e)
                c.assign(elem(total, at), Bin("+", elem(total, at), p, "f32"))

    def _weighted(self, code: Code, p: X, weight: Expr, t0: X, j: X, e: X) -> X:
        if isinstance(weight, Const):
            return p if weight.value == 1.0 else Bin("*", p, f32(float(weight.value)), "f32")
        t = self._key(t0, j, e)
        t = t if fits(self.t_total, self.c.block_t) else clamp(t, self.t_total)
        env = {**self.blocks.batch, self.v.t: t}
        return Bin("*", p, self.f.value(code, weight, env, {}), "f32")

    def _score(self, scores: Var, i: X, j: X, h: X, e: X) -> Elem:
        return elem(scores, add(mul(add(mul(i, self.c.keys), j), 4), mul(h, 2), e))

    def _values(self, code: Code, scores: Var, slot: X) -> None:
        """acc += probabilities * values; 16 keys a step."""
        r, n, columns = self.c.rows, self.c.keys, self.e // 16
        pack = f"pack_{self.c.type}x2"
        a = code.declare("prob", "u32", count=r * 4)
        b = code.declare("value", "u32", count=4)
        with code.loop("kk", n // 2, unroll=0) as (c, kk):
            with c.loop("i", r, unroll=0) as (ci, i):
                for q in range(4):
                    # registers 0, 1 hold rows 0-7 and 8-15 of keys 0-7, registers 2, 3 of keys 8-15
                    s0 = add(mul(add(mul(i, n), mul(kk, 2), q // 2), 4), 2 * (q % 2))
                    pair = call(pack, elem(scores, s0), elem(scores, add(s0, 1)), type="u32")
                    ci.assign(elem(a, add(mul(i, 4), q)), pair)
            with c.loop("j", columns, unroll=0) as (cj, j):
                load_b(cj, self.val.buffer, self.val.layout == "k", self.lane, b, i32(0), slot, mul(j, 16), mul(kk, 16))
                with cj.loop("i", r, unroll=0) as (ci, i):
                    for half in range(2):
                        d0 = mul(add(mul(i, 2 * columns), mul(j, 2), half), 4)
                        self._mma(ci, self.acc, d0, a, mul(i, 4), b, i32(2 * half))

    # -- results

    def _store(self, code: Code) -> None:
        v, b = self.v, self.blocks
        n_total = self.f.total(v.c)
        only = {f for o in v.body.outs for f in top_folds(o.value)}
        epilogue = Epilogue(
            self.f,
            v.body.outs,
            Side(v.m, b.m_total, self.m_fits),
            Side(v.c, n_total, fits(n_total, self.e)),
            b.batch,
            2,
        )
        with code.loop("i", self.c.rows, unroll=0) as (ci, i), ci.loop("h", 2, unroll=0) as (ch, h):
            row = self._row_index(i, h)
            m = ch.let("m", add(b.m0, row))
            top = elem(self.top, add(mul(i, 2), h))
            held: dict[Expr, list[X]] = {}
            for total, weight in zip(self.sums, v.weights, strict=True):
                held[weight] = [self._total(ch, elem(total, add(mul(i, 2), h)), top)] * 2
            for x in v.maxima:
                held[x] = [ch.let("most", Bin("*", top, f32(self.score.factor), "f32"))] * 2
            with ch.loop("j", self.e // 8, unroll=0) as (c, j):
                n = c.let("n", add(mul(j, 8), mul(mod(self.lane, 4), 2)))
                d0 = add(mul(add(mul(i, self.e // 8), j), 4), mul(h, 2))
                held[v.values[0]] = [elem(self.acc, add(d0, e)) for e in range(2)]

                def known(inner: Code, e: int, row: X = row) -> Known:
                    return self.scalars.at(inner, row, only)

                epilogue.store(c, m, n, held, known)

    def _total(self, code: Code, total: X, top: X) -> X:
        """The row's sum over its four lanes; NaN where every key was masked."""
        value = code.declare("total", "f32", total)
        for distance in (1, 2):
            code.assign(value, Bin("+", value, code.shuffle(value, "xor", distance), "f32"))
        return code.let("denominator", select(compare("==", top, f32(-INF)), f32(math.nan), value))


def _minus(x: X) -> X:
    return Un("-", x, "f32")


__all__ = ["AttentionConfig", "lower_attention_mma", "tiles"]
