"""A ring of shared tiles: tile t is used while tile t + d - 1 is on its way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from emmy.codegen.expr import Code, add, compare, i32, lt, mul, select
from emmy.codegen.families.staging import Stager
from emmy.ir.kernel import AsyncCommit, AsyncWait, X

Use = Callable[[Code, X, X], None]


def fetch(code: Code, stagers: Sequence[Stager], slot: X, k0: X) -> None:
    """Start and complete (as far as the thread can) one tile of every operand."""
    for s in stagers:
        s.issue(code, slot, k0)
    for s in stagers:
        s.finish(code, slot, k0)


def ring(
    code: Code, stagers: Sequence[Stager], stages: int, count: X, depth: int, use: Use,
    warm: Callable[[Code], None] | None = None, copies: bool | None = None,
) -> None:  # fmt: skip
    """`use(code, t, slot)` for every tile t < count, each of `depth` elements of the advancing index.

    The barrier after the wait does two things: it shows tile t to all warps, and it says that all have left the buffer
    of tile t - 1, which the copies issued next refill.  `warm` runs once, when the first tile has arrived.  `copies`
    tells of asynchronous copies issued before; by default the stagers' own.
    """
    if copies is None:
        copies = any(s.t.transport == "async" for s in stagers)
    ahead = stages - 1
    for p in range(ahead):
        with code.when(lt(p, count)) as first:
            fetch(first, stagers, i32(p), i32(p * depth))
        if copies:
            code.emit(AsyncCommit())
    if warm is not None:
        if copies:
            code.emit(AsyncWait(ahead - 1))
        code.barrier()
        warm(code)
    slot = code.declare("slot", "i32", i32(0))
    with code.loop("t", count) as (loop, t):
        if copies:
            loop.emit(AsyncWait(ahead - 1))
        loop.barrier()
        fill = loop.let("fill", select(compare("==", slot, 0), i32(stages - 1), add(slot, -1)))
        coming = loop.let("coming", mul(add(t, ahead), depth))
        more = lt(add(t, ahead), count)
        with loop.when(more) as issue:
            for s in stagers:
                s.issue(issue, fill, coming)
        if copies:
            loop.emit(AsyncCommit())
        use(loop, t, slot)
        if any(s.t.transport == "sync" for s in stagers):
            with loop.when(more) as finish:
                for s in stagers:
                    s.finish(finish, fill, coming)
        loop.assign(slot, select(compare("==", slot, stages - 1), i32(0), add(slot, 1)))


__all__ = ["Use", "fetch", "ring"]
