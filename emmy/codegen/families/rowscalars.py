"""Folds that a contraction needs once a row (a normalization's statistic): computed by a block before its sums.

A team of lanes takes a row: they run along the folded axis, in 16-byte reads where the operand allows, and combine by
shuffles.  A team that reads a cache line at a time is large enough; several rows a warp hide each other's waiting.
The results lie in shared memory, one f32 a row and fold.

Folds may also be gathered from staged tiles.  Where the blocks of a cluster share the folded axis, each tells all of
them what it has added up, and who reads a scalar combines the parts, always in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from emmy.codegen.expr import TID, Code, add, call, convert, div, elem, f32, i32, lt, mod, mul, shared_at
from emmy.codegen.families.frame import Env, Frame, Known, clamp, static
from emmy.ir.build import scalar
from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel import Buffer, Builtin, LoadVector, X
from emmy.ir.loop import Ax, Expr, Fold, Load, Online, Scan
from emmy.ir.views.access import vector_load
from emmy.ir.views.affine import affine
from emmy.ir.views.gather import COMBINE, ordered
from emmy.ir.views.product import outside_folds, top_folds

WARP: Final = 32
LINE: Final = 8  # lanes that read a cache line by 16 bytes each


class RowScalars:
    """The scalars of one side: `own` are the side's axes, `rows` the block's rows along them, from `own0`.

    `every`: somebody asks for those of rows that no block has, too.
    """

    def __init__(
        self, frame: Frame, name: str, scalars: Sequence[Expr], own: tuple[Ax, ...], rows: int, own0: X, batch: Env,
        threads: int, every: bool = True,
    ) -> None:  # fmt: skip
        self.f, self.own, self.own0, self.batch, self.threads = frame, own, own0, batch, threads
        self.every = every
        self.scalars = ordered(scalars)
        self.buffers: dict[Expr, Buffer] = {}
        for n, s in enumerate(self.scalars):
            count = rows if s.free & set(own) else 1
            self.buffers[s] = Buffer(frame.scalars.names.fresh(f"{name}_scalar{n}"), "f32", (count,))
        self.total = frame.total(own)
        self.gathered: set[Expr] = set()  # computed elsewhere, from the staged tiles

    def gather(self, folds: Collection[Fold], parts: int) -> None:
        """The side's folds among `folds` come from the tiles of `parts` blocks, each with a share of the axis."""
        for s in folds:
            if s in self.buffers:
                self.gathered.add(s)
                if parts > 1:
                    self.buffers[s] = replace(self.buffers[s], shape=(parts, *self.buffers[s].shape))

    def put(self, code: Code, s: Fold, row: X, value: X, guard: X | None) -> None:
        """What the block's tiles give of a gathered fold, for the results of every block that has a share of it."""
        buffer = self.buffers[s]
        if len(buffer.shape) == 1:
            code.store(shared_at(buffer, row), value, guard)
            return
        mine = shared_at(buffer, Builtin("cluster_rank"), row)
        for rank in range(buffer.shape[0]):
            code.store(replace(mine, rank=i32(rank)), value, guard)

    def compute(self, code: Code) -> None:
        made = set(self.gathered)
        for s in self.scalars:
            if s not in made:
                beside = self._beside(s, made)
                self._one(code, s, beside)
                code.barrier()
                made.update(beside)

    def at(self, code: Code, row: X, only: Collection[Expr]) -> Known:
        """The scalars among `only` of the block's row `row`, read from shared memory."""
        known: dict[Expr, X] = {}
        for s, b in self.buffers.items():
            if s in only:
                at = row if b.shape[-1] > 1 else 0
                known[s] = code.load("scalar", "f32", shared_at(b, at)) if len(b.shape) == 1 else _told(code, s, b, at)
        return known

    def of(self, only: Collection[Expr]) -> Callable[[Code, X], Known]:
        """`at` for one consumer: a part, or the results."""
        return lambda code, row: self.at(code, row, only)

    def _earlier(self, s: Expr) -> list[Expr]:
        return self.scalars[: self.scalars.index(s)]

    def _known(self, code: Code, s: Expr, row: X) -> Known:
        inside = top_folds(s.body) if isinstance(s, Fold) else []
        return self.at(code, row, [e for e in self._earlier(s) if e in inside])

    def _beside(self, s: Expr, made: Collection[Expr]) -> list[Expr]:
        """The sum that a fold of squared deviations finds on its way, where it is asked for too."""
        if not (isinstance(s, Fold) and s.kind == "m2"):
            return []
        folds = [e for e in self.scalars if isinstance(e, Fold) and e.kind == "sum" and e not in made]
        return [e for e in folds if e.axis is s.axis and e.body is s.body]

    def _team(self, s: Fold, rows: int) -> int:
        """Lanes that share a row: those of one warp all have a row at the same time, or none."""
        _, chunk = self._vectors(s.body, s.axis)
        team = LINE if chunk > 1 else WARP
        while team < WARP and (team * rows < self.threads or rows % (WARP // team)):
            team *= 2
        return team

    def _one(self, code: Code, s: Expr, beside: Sequence[Expr]) -> None:
        rows = self.buffers[s].shape[0]
        if not isinstance(s, Fold) or (s.kind not in COMBINE and s.kind != "m2"):
            with code.loop("row", rows, start=TID, step=self.threads) as (c, row):
                c.store(shared_at(self.buffers[s], row), self.f.value(c, s, self._env(s, row), self._known(c, s, row)))
            return
        team = self._team(s, rows)
        each = WARP // team
        start, step = mul(div(TID, WARP), each), self.threads // WARP * each
        total = None if self.every else static(self.total)
        there = rows if total is None else min(rows, -(-total // each) * each)
        with code.loop("row", there, start=start, step=step) as (c, first):
            row = first if each == 1 else c.let("mine", add(first, div(mod(TID, WARP), team)))
            self._shared(c, s, self._env(s, row), self._known(c, s, row), team, row, beside)

    def _env(self, s: Expr, row: X) -> Env:
        """The axes that a scalar depends on, at a row of the block."""
        if not s.free & set(self.own):
            return dict(self.batch)
        own = clamp(add(self.own0, row), self.total)
        return {**self.batch, **self.f.decode(own, self.own)}

    def _shared(self, c: Code, s: Fold, env: Env, known: Known, team: int, row: X, beside: Sequence[Expr]) -> None:
        value, total = self._fold(c, s, env, known, team)
        first = lt(mod(TID, team), 1)
        for e in beside:
            c.store(shared_at(self.buffers[e], row), total, first)
        c.store(shared_at(self.buffers[s], row), value, first)

    def _fold(self, c: Code, s: Fold, env: Env, known: Known, team: int) -> tuple[X, X]:
        """The fold, and the sum of its elements where it is one of squared deviations."""
        if s.kind != "m2":
            value = self._lanes(c, s.kind, s.axis, s.body, env, known, team)
            return value, value
        total = self._lanes(c, "sum", s.axis, s.body, env, known, team)
        mean = c.let("mean", call("div", total, convert(self.f.count(s.axis.extent), "f32"), type="f32"))
        # in the second pass the fold itself stands for the mean
        deviation = scalar("sub", s.body, s)
        squares = scalar("mul", deviation, deviation)
        return self._lanes(c, "sum", s.axis, squares, env, {**known, s: mean}, team), total

    def _lanes(self, c: Code, kind: str, axis: Ax, body: Expr, env: Env, known: Known, team: int) -> X:
        word, unit = COMBINE[kind]
        acc = c.declare("acc", "f32", f32(unit))
        vectors, chunk = self._vectors(body, axis)
        arrays = {node: c.declare("raw", node.dtype, count=chunk) for node in vectors}
        n = self.f.count(axis.extent)
        with c.loop("k", n, start=mul(mod(TID, team), chunk), step=team * chunk, unroll=4) as (inner, k):
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
        distance = team // 2
        while distance:
            other = c.shuffle(acc, "xor", distance)
            c.assign(acc, call(word, acc, other, type="f32"))
            distance //= 2
        return acc

    def _vectors(self, body: Expr, axis: Ax) -> tuple[list[Load], int]:
        """Loads that can be read in chunks along the axis, and the chunk: all that run along it, or none."""
        nodes = [n for n in outside_folds(body) if not (isinstance(n, Fold) and n.axis is axis)]
        if any(isinstance(n, Fold | Scan | Online) and axis in n.free for n in nodes):
            return [], 1
        loads = [n for n in nodes if isinstance(n, Load) and axis in n.free]
        good = [n for n in loads if vector_load(n, self.f.body, (axis,), 8) and self.f.readable(n, body)]
        return (good, 8) if loads and len(good) == len(loads) else ([], 1)


def _told(code: Code, s: Expr, buffer: Buffer, row: X | int) -> X:
    """A fold of which every block of the cluster has told its part."""
    assert isinstance(s, Fold)
    word, _ = COMBINE[s.kind]
    total: X = code.load("scalar", "f32", shared_at(buffer, 0, row))
    for rank in range(1, buffer.shape[0]):
        total = call(word, total, code.load("scalar", "f32", shared_at(buffer, rank, row)), type="f32")
    return total
