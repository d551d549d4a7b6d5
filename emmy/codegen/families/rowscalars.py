"""Folds that a contraction needs once a row (a normalization's statistic): computed by a block before its sums.

A warp takes a row: its lanes run along the folded axis, in 16-byte reads where the operand allows, and combine by
shuffles.  The results lie in shared memory, one f32 a row and fold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from emmy.codegen.expr import TID, Code, add, call, convert, div, elem, f32, i32, lt, mod, mul, shared_at
from emmy.codegen.families.frame import Env, Frame, Known, clamp
from emmy.ir.build import scalar
from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel import Buffer, LoadVector, X
from emmy.ir.loop import Ax, Expr, Fold, Load, Online, Scan
from emmy.ir.views.access import vector_load
from emmy.ir.views.affine import affine
from emmy.ir.views.gather import COMBINE, ordered
from emmy.ir.views.product import outside_folds, top_folds


class RowScalars:
    """The scalars of one side: `own` are the side's axes, `rows` the block's rows along them, from `own0`."""

    def __init__(
        self, frame: Frame, name: str, scalars: Sequence[Expr], own: tuple[Ax, ...], rows: int, own0: X, batch: Env,
        threads: int,
    ) -> None:  # fmt: skip
        self.f, self.own, self.own0, self.batch, self.threads = frame, own, own0, batch, threads
        self.scalars = ordered(scalars)
        self.buffers: dict[Expr, Buffer] = {}
        for n, s in enumerate(self.scalars):
            count = rows if s.free & set(own) else 1
            self.buffers[s] = Buffer(frame.scalars.names.fresh(f"{name}_scalar{n}"), "f32", (count,))
        self.total = frame.total(own)
        self.gathered: set[Expr] = set()  # computed elsewhere, from the staged tiles

    def compute(self, code: Code) -> None:
        for s in self.scalars:
            if s not in self.gathered:
                self._one(code, s)
                code.barrier()

    def at(self, code: Code, row: X, only: Collection[Expr]) -> Known:
        """The scalars among `only` of the block's row `row`, read from shared memory."""
        known: dict[Expr, X] = {}
        for s, b in self.buffers.items():
            if s in only:
                known[s] = code.load("scalar", "f32", shared_at(b, row if b.shape[0] > 1 else 0))
        return known

    def of(self, only: Collection[Expr]) -> Callable[[Code, X], Known]:
        """`at` for one consumer: a part, or the results."""
        return lambda code, row: self.at(code, row, only)

    def _earlier(self, s: Expr) -> list[Expr]:
        return self.scalars[: self.scalars.index(s)]

    def _known(self, code: Code, s: Expr, row: X) -> Known:
        inside = top_folds(s.body) if isinstance(s, Fold) else []
        return self.at(code, row, [e for e in self._earlier(s) if e in inside])

    def _one(self, code: Code, s: Expr) -> None:
        rows = self.buffers[s].shape[0]
        lanes = isinstance(s, Fold) and (s.kind in COMBINE or s.kind == "m2")
        start, step = (div(TID, 32), self.threads // 32) if lanes else (TID, self.threads)
        with code.loop("row", rows, start=start, step=step) as (c, row):
            own = clamp(add(self.own0, row), self.total)
            env = {**self.batch, **self.f.decode(own, self.own)} if s.free & set(self.own) else dict(self.batch)
            known = self._known(c, s, row)
            if isinstance(s, Fold) and lanes:
                value = self._fold(c, s, env, known)
                c.store(shared_at(self.buffers[s], row), value, lt(mod(TID, 32), 1))
            else:
                c.store(shared_at(self.buffers[s], row), self.f.value(c, s, env, known))

    def _fold(self, c: Code, s: Fold, env: Env, known: Known) -> X:
        if s.kind != "m2":
            return self._lanes(c, s.kind, s.axis, s.body, env, known)
        mean = self._lanes(c, "sum", s.axis, s.body, env, known)
        mean = c.let("mean", call("div", mean, convert(self.f.count(s.axis.extent), "f32"), type="f32"))
        # in the second pass the fold itself stands for the mean
        deviation = scalar("sub", s.body, s)
        return self._lanes(c, "sum", s.axis, scalar("mul", deviation, deviation), env, {**known, s: mean})

    def _lanes(self, c: Code, kind: str, axis: Ax, body: Expr, env: Env, known: Known) -> X:
        word, unit = COMBINE[kind]
        acc = c.declare("acc", "f32", f32(unit))
        vectors, chunk = self._vectors(body, axis)
        arrays = {node: c.declare("raw", node.dtype, count=chunk) for node in vectors}
        n = self.f.count(axis.extent)
        with c.loop("k", n, start=mul(mod(TID, 32), chunk), step=32 * chunk, unroll=4) as (inner, k):
            for node, array in arrays.items():
                form = affine(node, self.f.body.slots[node.slot])
                assert form is not None
                start = inner.let("at", self.f.offset(form, {**env, axis: k}, node.slot))
                piece = min(chunk, 16 // DTYPES[node.dtype].bytes)
                for p in range(0, chunk, piece):
                    inner.emit(LoadVector(array.name, i32(p), piece, self.f.at(node.slot, add(start, p))))
            for e in range(chunk):
                held: dict[Expr, X] = {n: convert(elem(a, e), register(n.dtype)) for n, a in arrays.items()}
                value = self.f.value(inner, body, {**env, axis: add(k, e)}, {**known, **held})
                inner.assign(acc, call(word, acc, value, type="f32"))
        for d in (16, 8, 4, 2, 1):
            other = c.shuffle(acc, "xor", d)
            c.assign(acc, call(word, acc, other, type="f32"))
        return acc

    def _vectors(self, body: Expr, axis: Ax) -> tuple[list[Load], int]:
        """Loads that can be read in chunks along the axis, and the chunk: all that run along it, or none."""
        nodes = [n for n in outside_folds(body) if not (isinstance(n, Fold) and n.axis is axis)]
        if any(isinstance(n, Fold | Scan | Online) and axis in n.free for n in nodes):
            return [], 1
        loads = [n for n in nodes if isinstance(n, Load) and axis in n.free]
        good = [n for n in loads if vector_load(n, self.f.body, (axis,), 8) and self.f.readable(n, body)]
        return (good, 8) if loads and len(good) == len(loads) else ([], 1)
