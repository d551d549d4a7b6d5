"""Rings of shared tiles: tile t is used while tile t + d - 1 is on its way.

`ring` uses a tile between two barriers.  `chained_ring` reads fragments one step ahead of the products also across
tiles, so that no warp waits for shared memory after the barrier (CUTLASS's multistage main loop has this order).
`boxed_ring` has the same order without barriers: TMA fills a slot, and says so, when all warps have released it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from emmy.codegen.expr import TID, Code, add, both, compare, div, i32, lt, mod, mul, select
from emmy.codegen.families.staging import Stager
from emmy.errors import LoweringError
from emmy.ir.kernel import (
    Advance,
    AsyncCommit,
    AsyncWait,
    Cursor,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    Var,
    WarpSync,
    X,
)

ZERO: Final = i32(0)
Use = Callable[[Code, X, X], None]
# (code, slot, step, half): read the fragments of a step into one half of the registers
Read = Callable[[Code, X, X, X], None]
Multiply = Callable[[Code, X], None]


@dataclass(frozen=True)
class Chunks:
    """`bank(code)` after every so many tiles and after the last one, outside of the loop over the tiles of a chunk."""

    tiles: int
    bank: Callable[[Code], None]


@contextmanager
def _over(code: Code, count: X, chunks: Chunks | None) -> Iterator[tuple[Code, X]]:
    """The loop over all tiles; a condition in it would part the products, so that of chunks is a loop around it."""
    if chunks is None:
        with code.loop("t", count) as inner:
            yield inner
        return
    each = chunks.tiles
    with code.loop("chunk", div(add(count, each - 1), each)) as (outer, chunk):
        first = outer.let("chunk_first", mul(chunk, each))
        end = add(first, each)
        last = outer.let("chunk_last", select(lt(end, count), end, count))
        with outer.loop("t", last, start=first) as inner:
            yield inner
        chunks.bank(outer)


def fetch(code: Code, stagers: Sequence[Stager], slot: X, k0: X) -> None:
    """Start and complete (as far as the thread can) one tile of every operand."""
    for s in stagers:
        s.issue(code, slot, k0)
    for s in stagers:
        s.finish(code, slot, k0)


def ring(
    code: Code, stagers: Sequence[Stager], stages: int, count: X, depth: int, use: Use,
    warm: Callable[[Code], None] | None = None, copies: bool | None = None, start: X = ZERO,
    chunks: Chunks | None = None,
) -> None:  # fmt: skip
    """`use(code, t, slot)` for every tile t < count, each of `depth` elements of the advancing index from `start` on.

    The barrier after the wait does two things: it shows tile t to all warps, and it says that all have left the buffer
    of tile t - 1, which the copies issued next refill.  `warm` runs once, when the first tile has arrived.  `copies`
    tells of asynchronous copies issued before; by default the stagers' own.
    """
    if copies is None:
        copies = any(s.t.transport == "async" for s in stagers)
    ahead = stages - 1
    _fill(code, stagers, ahead, count, depth, copies, start)
    if warm is not None:
        if copies:
            code.emit(AsyncWait(ahead - 1))
        code.barrier()
        warm(code)
    slot = code.declare("slot", "i32", i32(0))
    with _over(code, count, chunks) as (loop, t):
        if copies:
            loop.emit(AsyncWait(ahead - 1))
        loop.barrier()
        fill, coming, more = _coming(loop, slot, t, stages, count, depth, start)
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


def _fill(code: Code, stagers: Sequence[Stager], ahead: int, count: X, depth: int, copies: bool, start: X) -> None:
    for p in range(ahead):
        with code.when(lt(p, count)) as first:
            fetch(first, stagers, i32(p), add(start, p * depth))
        if copies:
            code.emit(AsyncCommit())


def _coming(loop: Code, slot: X, t: X, stages: int, count: X, depth: int, start: X) -> tuple[Var, Var, X]:
    """The buffer to refill, the first advancing index of the tile that goes there, and whether there is one."""
    fill = loop.let("fill", select(compare("==", slot, 0), i32(stages - 1), add(slot, -1)))
    coming = loop.let("coming", add(start, mul(add(t, stages - 1), depth)))
    return fill, coming, lt(add(t, stages - 1), count)


def chained_ring(
    code: Code, stagers: Sequence[Stager], stages: int, count: X, depth: int, steps: int, read: Read,
    multiply: Multiply, again: bool = False, start: X = ZERO, least: int = 1, chunks: Chunks | None = None,
) -> None:  # fmt: skip
    """Every tile in `steps` (an even number) steps: `read` of step s + 1 goes before `multiply` of step s.

    The last step of a tile passes the barrier first and reads step 0 of the next tile.  That barrier shows tile t + 1
    and says that all have read tile t, whose buffer the copies of the next round refill.  Asynchronous copies are
    spread over the other steps, and past the last tile they bring zeros: no branch parts the products.  What is read
    behind the last tile is never used; with `again` it is that tile once more, not a slot that may be empty.
    A step has at least `least` copies while there are any.
    """
    _even(steps)
    copying = [s for s in stagers if s.t.transport == "async"]
    carried = [s for s in stagers if s.t.transport == "sync"]
    arrive = [AsyncWait(stages - 2)] if copying else []
    _fill(code, stagers, stages - 1, count, depth, bool(copying), start)
    code.emit(*arrive)
    code.barrier()
    with code.when(lt(0, count) if again else None) as some:
        read(some, i32(0), i32(0), i32(0))
    slot = code.declare("slot", "i32", i32(0))
    with _over(code, count, chunks) as (loop, t):
        fill, coming, more = _coming(loop, slot, t, stages, count, depth, start)
        more = loop.let("more", more)
        if carried:
            with loop.when(more) as issue:
                for s in carried:
                    s.issue(issue, fill, coming)
        for s in copying:
            s.advance(loop, coming)
        for s in copying:
            s.gather(loop, slot, add(start, mul(t, depth)))
        with loop.loop("s", steps - 1, unroll=0) as (c, step):
            read(c, slot, add(step, 1), mod(add(step, 1), 2))
            for s in copying:
                s.issue_share(c, fill, coming, more, step, steps - 1, least)
            multiply(c, mod(step, 2))
        if copying:
            loop.emit(AsyncCommit())
        if carried:
            with loop.when(more) as finish:
                for s in carried:
                    s.finish(finish, fill, coming)
        next_slot = select(compare("==", slot, stages - 1), i32(0), add(slot, 1))
        if again:
            next_slot = select(lt(add(t, 1), count), next_slot, slot)
        following = loop.let("following", next_slot)
        loop.emit(*arrive)
        loop.barrier()
        read(loop, following, i32(0), i32(0))
        multiply(loop, i32(1))
        loop.assign(slot, following)
    _settle(code, stagers)


def _even(steps: int) -> None:
    if steps % 2:
        raise LoweringError(
            f"{steps} steps a tile", "take an even number, so that the halves of the registers alternate"
        )


def _settle(code: Code, stagers: Sequence[Stager]) -> None:
    for s in stagers:
        s.settle(code)
    if any(s.statistics is not None for s in stagers):
        code.barrier()


@dataclass(frozen=True)
class Boxes:
    """How TMA fills a ring: `ask(code, slot, k0, cursor)` asks for the boxes of one tile, `bytes` in all."""

    ring: Ring
    bytes: int
    ask: Callable[[Code, X, X, str], None]


def boxed_ring(
    code: Code, boxes: Boxes, stagers: Sequence[Stager], count: X, depth: int, steps: int, read: Read,
    multiply: Multiply, start: X = ZERO,
) -> None:  # fmt: skip
    """The order of `chained_ring` for tiles that thread 0 asks for; the ring has been set up for all threads.

    A warp releases a slot as soon as it has read the tile's last fragments (`release`).  The next tile but d - 1 goes
    there one step later, so that the other warps have had that time to release theirs.
    """
    _even(steps)
    ring, names = boxes.ring, code.names
    fill, take = names.fresh("fill"), names.fresh("take")
    code.emit(Cursor(fill, ring.name), Cursor(take, ring.name))
    slot = Var(f"{take}_slot", "i32")

    def ask(c: Code, t: X, wait: bool) -> None:
        c.emit(*([RingWait(fill, "empty")] if wait else []), RingArrive(fill, "full", boxes.bytes))
        boxes.ask(c, Var(f"{fill}_slot", "i32"), add(start, mul(t, depth)), fill)
        c.emit(Advance(fill))

    def step(c: Code, s: X) -> None:
        read(c, slot, add(s, 1), mod(add(s, 1), 2))
        multiply(c, mod(s, 2))

    with code.when(compare("==", TID, 0)) as one:
        for p in range(ring.depth - 1):
            with one.when(lt(p, count)) as first:
                ask(first, i32(p), False)
    with code.when(lt(0, count)) as some:
        some.emit(RingWait(take, "full"))
        read(some, i32(0), i32(0), i32(0))
        with some.loop("t", count) as (loop, t):
            for stager in stagers:
                stager.gather(loop, slot, add(start, mul(t, depth)))
            step(loop, i32(0))
            coming = add(t, ring.depth - 1)
            with loop.when(both(compare("==", TID, 0), lt(coming, count))) as one:
                ask(one, coming, True)
            with loop.loop("s", steps - 1, start=1, unroll=0) as (c, s):
                step(c, s)
            release(loop, take)
            with loop.when(lt(add(t, 1), count)) as more:
                more.emit(RingWait(take, "full"))
                read(more, slot, i32(0), i32(0))
            multiply(loop, i32(1))
    _settle(code, stagers)


def release(code: Code, cursor: str) -> None:
    """Every warp lets TMA fill a slot again that its threads have read by ordinary loads or ldmatrix.

    The arrival alone does not order those reads before the refill: they are of the generic proxy, the refill is of the
    async one, and neither ptxas nor the hardware holds an arrival back for a load whose registers nothing has used
    yet.  The order that the PTX memory model asks for is read -> fence.proxy.async by the reading thread -> arrive
    (release) -> wait (acquire) -> cp.async.bulk.tensor: between accesses of two proxies a proxy fence lies on the way
    (PTX ISA manual, "Causality order").  An arrival behind the products of what was read is neither needed beside the
    fence nor enough without it, as ptxas moves products, which only name registers, past arrivals.
    """
    code.emit(ProxyFence("shared"), WarpSync())
    with code.when(compare("==", mod(TID, 32), 0)) as first:
        first.emit(RingArrive(cursor, "empty"))
    code.emit(Advance(cursor))


__all__ = ["Boxes", "Use", "boxed_ring", "chained_ring", "fetch", "release", "ring"]
