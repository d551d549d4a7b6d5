"""Partial results of folds, held by the threads that share a row, become one result that all of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emmy.codegen import folds
from emmy.codegen.expr import Code, compare, convert, div, i32, lt, mod, shared_at
from emmy.ir.kernel import Assign, Buffer, For, Shuffle, Var, X
from emmy.ir.loop import Expr

State = tuple[Var, ...]
SHUFFLED = ("f32", "f64", "i32", "i64")  # other types travel as i32


@dataclass
class Team:
    """`threads` share a row (a power of two, or whole warps), `rows` rows share a block.

    `across`: neighbouring threads have neighbouring rows, so the threads of a row are `rows` apart; else they are
    neighbours.  `rank` is a thread's place in its row, `local` its row's place in the block.  `shared` collects the
    buffers that combining needs.
    """

    threads: int
    rows: int
    across: bool
    rank: X
    local: X
    tid: X
    shared: list[Buffer] = field(default_factory=list)

    def combine(self, code: Code, partial: Sequence[tuple[Expr, State]]) -> None:
        """Every state becomes the combination over the threads of its row, the same bits in all of them."""
        if self.threads == 1:
            return
        if self.across:
            self._through_shared(code, partial)
            return
        for e, state in partial:
            butterfly(code, e, state, min(32, self.threads))
        if self.threads > 32:
            self._across_warps(code, partial)

    def _buffers(self, code: Code, state: State, shape: tuple[int, ...]) -> list[Buffer]:
        made = [Buffer(code.names.fresh(f"{v.name}_s"), v.type, shape) for v in state]
        self.shared += made
        return made

    def _across_warps(self, code: Code, partial: Sequence[tuple[Expr, State]]) -> None:
        """Every warp combines the warps' results; lanes past the last warp take part with folds of no elements."""
        warps = self.threads // 32
        lanes = 1 << (warps - 1).bit_length()
        buffers = [self._buffers(code, state, (self.rows, warps)) for _, state in partial]
        lane = mod(self.tid, 32)
        with code.when(compare("==", lane, 0)) as first:
            for (_, state), row in zip(partial, buffers, strict=True):
                for v, b in zip(state, row, strict=True):
                    first.store(shared_at(b, self.local, div(self.rank, 32)), v)
        code.barrier()
        mine = mod(lane, lanes)
        real = None if lanes == warps else lt(mine, warps)
        for (e, state), row in zip(partial, buffers, strict=True):
            for v, r, b in zip(state, folds.registers(e), row, strict=True):
                empty = None if real is None else r.init
                code.emit(Assign(v, code.load(f"{v.name}_w", v.type, shared_at(b, self.local, mine), real, empty)))
            butterfly(code, e, state, lanes)

    def _through_shared(self, code: Code, partial: Sequence[tuple[Expr, State]]) -> None:
        buffers = [self._buffers(code, state, (self.threads, self.rows)) for _, state in partial]
        for (_, state), row in zip(partial, buffers, strict=True):
            for v, b in zip(state, row, strict=True):
                code.store(shared_at(b, self.rank, self.local), v)
        code.barrier()
        for (e, state), row in zip(partial, buffers, strict=True):
            for v, r in zip(state, folds.registers(e), strict=True):
                code.emit(Assign(v, r.init))
            with code.loop("p", self.threads, unroll=0) as (inner, p):
                other = [
                    inner.load(f"{v.name}_p", v.type, shared_at(b, p, self.local))
                    for v, b in zip(state, row, strict=True)
                ]
                folds.merge(inner, e, state, other)


def butterfly(code: Code, e: Expr, state: State, lanes: int) -> None:
    """Combines the states of `lanes` neighbouring lanes by exchanges at distance 1, 2, 4 …"""
    if lanes == 1:
        return
    offset = Var(code.names.fresh("offset"), "i32")
    inner = Code(code.names)
    other: list[X] = []
    for v in state:
        sent = v if v.type in SHUFFLED else convert(v, "i32")
        name = code.names.numbered("other")
        inner.emit(Shuffle(name, sent, "xor", offset))
        other.append(convert(Var(name, sent.type), v.type))
    folds.merge(inner, e, state, other)
    code.emit(For(offset, i32(1), i32(lanes), offset, tuple(inner.statements), 0))
