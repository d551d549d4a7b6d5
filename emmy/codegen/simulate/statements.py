"""Registers, control, loads and stores, shuffles and barriers of one gang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from emmy.codegen.simulate.gang import RegArray
from emmy.codegen.simulate.numbers import Array, Value, convert, memory_type, spread, uniform
from emmy.codegen.simulate.places import Access, fetch, put
from emmy.codegen.simulate.program import Build, Compiled, Compiler, Run, Wait
from emmy.codegen.simulate.values import Read, converted, reader
from emmy.ir.kernel import (
    Assign,
    Barrier,
    Declare,
    DependentLaunch,
    DependentWait,
    Fence,
    For,
    If,
    Let,
    Lit,
    Load,
    LoadVector,
    ProxyFence,
    ShiftVector,
    Shuffle,
    Store,
    StoreVector,
    Target,
    Var,
    Vote,
    WarpSync,
    X,
)

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import Gang, Mask

ENDLESS: Final = 1 << 20  # turns of one loop after which a kernel is taken to hang


def writer(target: Target) -> tuple[str, Read | None, str]:
    """(register, index or None, type)."""
    if isinstance(target, Var):
        return target.name, None, target.type
    return target.array, reader(target.index), target.type


def write(g: Gang, target: tuple[str, Read | None, str], value: Value) -> None:
    name, index, type = target
    if index is None:
        g.assign(name, value, type)
    else:
        g.env[name].set(g, index(g), value)


# ---- registers


def _let(c: Compiler, s: Let) -> Compiled:
    value = reader(s.value)

    def run(g: Gang) -> None:
        g.env[s.name] = value(g)

    return Compiled(run)


def _declare(c: Compiler, s: Declare) -> Compiled:
    zero = uniform(0, s.type)
    if s.count is not None:
        assert s.init is None or isinstance(s.init, Lit)
        first = None if s.init is None else uniform(s.init.value, s.type)

        def array(g: Gang) -> None:
            g.env[s.name] = fresh = RegArray(s.name, s.type, [first] * (s.count or 0))
            fresh.born = g.fences

        return Compiled(array)
    init = None if s.init is None else converted(reader(s.init), s.init.type, s.type)

    def run(g: Gang) -> None:
        if init is None:
            g.env[s.name], g.holes[s.name] = zero, None
        else:
            g.env[s.name] = init(g)
            g.holes.pop(s.name, None)

    return Compiled(run)


def _assign(c: Compiler, s: Assign) -> Compiled:
    target = writer(s.target)
    value = converted(reader(s.value), s.value.type, s.target.type)
    return Compiled(lambda g: write(g, target, value(g)))


# ---- control


def _for(c: Compiler, s: For) -> Compiled:
    name, kind = s.var.name, s.var.type
    start, stop, step = (converted(reader(v), v.type, kind) for v in (s.start, s.stop, s.step))
    body = c.body(s.body)

    def turns(g: Gang) -> Iterator[None]:
        """Sets the counter and the mask for each turn."""
        at, before = start(g), g.active
        for turn in range(ENDLESS + 1):
            if turn == ENDLESS:
                g.report("deadlock", None, name, -1, f"a loop that has not ended after {ENDLESS} turns")
                break
            more = at < stop(g)
            if not isinstance(more, np.ndarray):
                if not more:
                    break
            else:
                mask = more if before is None else more & before
                if not mask.any():
                    break
                g.active = before if mask.all() or (before is not None and (mask == before).all()) else mask
            g.env[name] = at
            yield
            g.at = s
            g.active = before
            at = at + step(g)
        g.active = before

    def run(g: Gang) -> None:
        for _ in turns(g):
            body.run(g)

    def steps(g: Gang) -> Iterator[Wait]:
        for _ in turns(g):
            yield from body.steps(g)

    return Compiled(None, steps, body.branches) if body.blocking else Compiled(run)


def _if(c: Compiler, s: If) -> Compiled:
    cond = converted(reader(s.cond), s.cond.type, "bool")
    then, orelse = c.body(s.then), c.body(s.orelse)

    def sides(g: Gang) -> Iterator[bool]:
        before, yes = g.active, cond(g)
        if isinstance(yes, bool):
            yield yes
            return
        for side, mask in ((True, yes), (False, ~yes)):
            here = mask if before is None else mask & before
            if here.any():
                g.active = before if here.all() or (before is not None and (here == before).all()) else here
                yield side
                g.active = before

    def run(g: Gang) -> None:
        for side in sides(g):
            (then if side else orelse).run(g)

    def steps(g: Gang) -> Iterator[Wait]:
        g.at = s
        for side in sides(g):
            yield from (then if side else orelse).steps(g)

    return Compiled(None, steps, True) if then.blocking or orelse.blocking else Compiled(run)


# ---- memory


def _guard(g: Gang, guard: Read | None) -> Mask | bool:
    return True if guard is None else guard(g)


def _load(c: Compiler, s: Load) -> Compiled:
    place, old = Access(s.place), s.place.type
    guard = optional(s.guard)
    fill = (lambda g: uniform(0, s.type)) if s.fill is None else converted(reader(s.fill), s.fill.type, s.type)

    def value(g: Gang) -> Value:
        raw = fetch(g, place, 1)[0]
        return convert(raw != 0 if old == "bool" else raw, old, s.type)

    def run(g: Gang) -> None:
        where = _guard(g, guard)
        if isinstance(where, bool):
            g.env[s.name] = value(g) if where else fill(g)
            return
        with g.narrowed(where):
            read = value(g)
        other = spread(fill(g), g.n, s.type)
        g.env[s.name] = np.where(where, read, other)

    return Compiled(run)


def _store(c: Compiler, s: Store) -> Compiled:
    place = Access(s.place)
    value = converted(reader(s.value), s.value.type, s.place.type)
    guard = optional(s.guard)
    held = memory_type(s.place.type)

    def move(g: Gang) -> None:
        put(g, place, [spread(value(g), g.n, s.place.type).astype(held, copy=False)])

    return Compiled(guarded(guard, move))


def guarded(guard: Read | None, move: Run) -> Run:
    """`move` by the threads whose guard holds."""
    if guard is None:
        return move

    def run(g: Gang) -> None:
        where = guard(g)
        if where is True:
            move(g)
        elif where is not False:
            with g.narrowed(where):
                move(g)

    return run


def _load_vector(c: Compiler, s: LoadVector) -> Compiled:
    place, at = Access(s.place), reader(s.at)
    guard = optional(s.guard)
    zero = uniform(0, s.place.type)

    def move(g: Gang, first: Value) -> None:
        array = g.env[s.array]
        for k, raw in enumerate(fetch(g, place, s.count)):
            array.set(g, first + k, raw != 0 if s.place.type == "bool" else raw)

    def clear(g: Gang, first: Value) -> None:
        for k in range(s.count):
            g.env[s.array].set(g, first + k, zero)

    def run(g: Gang) -> None:
        where, first = _guard(g, guard), at(g)
        if isinstance(where, bool):
            (move if where else clear)(g, first)
            return
        with g.narrowed(where):
            move(g, first)
        with g.narrowed(~where):
            clear(g, first)

    return Compiled(run)


def _store_vector(c: Compiler, s: StoreVector) -> Compiled:
    place, at = Access(s.place), reader(s.at)
    guard = optional(s.guard)
    held = memory_type(s.place.type)

    def move(g: Gang) -> None:
        first, array = at(g), g.env[s.array]
        rows = [spread(array.get(g, first + k), g.n, s.place.type) for k in range(s.count)]
        put(g, place, [r.astype(held, copy=False) for r in rows])

    return Compiled(guarded(guard, move))


def _shift_vector(c: Compiler, s: ShiftVector) -> Compiled:
    at, start, by = reader(s.at), reader(s.start), reader(s.by)

    def run(g: Gang) -> None:
        first, source, array = start(g), g.env[s.source], g.env[s.array]
        rows = np.stack([spread(source.get(g, first + k), g.n, array.type) for k in range(2 * s.count)])
        shift = spread(by(g), g.n, "i32").astype(np.int64)
        wrong = (shift < 0) | (shift >= s.count)
        if wrong[g.running()].any():
            g.report("out of bounds", int(g.running()[0]), s.source, -1, f"a shift of {s.count} elements or more")
        shift = np.where(wrong, 0, shift)
        for k in range(s.count):
            array.set(g, at(g) + k, np.take_along_axis(rows, (shift + k)[None], 0)[0])

    return Compiled(run)


# ---- warps and blocks


def _shuffle(c: Compiler, s: Shuffle) -> Compiled:
    value, lane = reader(s.value), reader(s.lane)
    width = s.width

    def source(own: Array, by: Value) -> Array:
        first = own - own % width
        if s.mode == "xor":
            at = own ^ by
            return np.where(at < first + width, at, own)
        if s.mode == "up":
            return np.where(own - by >= first, own - by, own)
        if s.mode == "down":
            return np.where(own + by < first + width, own + by, own)
        at = first + np.asarray(by) % width + np.zeros_like(own)
        return np.asarray(at)

    def run(g: Gang) -> None:
        g.converged("a shuffle")
        v = value(g)
        if not isinstance(v, np.ndarray):
            g.env[s.name] = v
            return
        by = lane(g)
        own = g.all_positions % 32
        at = source(own, by if isinstance(by, int) else by.astype(np.int64))
        g.env[s.name] = v[g.all_positions - own + at]

    return Compiled(run)


def _vote(c: Compiler, s: Vote) -> Compiled:
    value = converted(reader(s.value), s.value.type, "bool")

    def run(g: Gang) -> None:
        g.converged("a vote")
        v = spread(value(g), g.n, "bool")
        by_warp = (v if g.active is None else v & g.active).reshape(-1, 32)
        if s.mode == "ballot":
            out = (by_warp.astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
        else:
            out = by_warp.any(axis=1) if s.mode == "any" else spread(value(g), g.n, "bool").reshape(-1, 32).all(axis=1)
        g.env[s.name] = np.repeat(out, 32)

    return Compiled(run)


def barrier_now(g: Gang) -> None:
    """A barrier of each block whose threads all run here, at once."""
    wave = g.wave
    count = g.n // wave.room
    groups = np.arange(g.lo // 32, g.lo // 32 + count * wave.warps).reshape(count, wave.warps)
    if g.active is not g.inside and g.active is not None:
        here = g.active.reshape(count, wave.room)
        every = np.ones_like(here) if g.inside is None else g.inside.reshape(count, wave.room)
        some, missing = here.any(axis=1), (every & ~here).any(axis=1)
        if (some & missing).any():
            b = int(np.flatnonzero(some & missing)[0])
            t = int(np.flatnonzero(every[b] & ~here[b])[0])
            g.report("divergent", b * wave.room + t, "", -1, "this thread of the block does not reach the barrier")
        groups = groups[some]
    wave.tally.barriers += len(groups)
    if len(groups):
        wave.clocks.meet(groups)


def _barrier(c: Compiler, s: Barrier) -> Compiled:
    return Compiled(barrier_now)


def _warp_sync(c: Compiler, s: WarpSync) -> Compiled:
    def run(g: Gang) -> None:
        g.converged("a warp barrier")
        g.wave.clocks.sync_lanes(g.running_warps())

    return Compiled(run)


def _fence(c: Compiler, s: Fence) -> Compiled:
    def run(g: Gang) -> None:
        if s.scope == "device":
            g.wave.fence(g)

    return Compiled(run)


def _proxy_fence(c: Compiler, s: ProxyFence) -> Compiled:
    """A fence of global memory orders no use of shared memory."""
    return Compiled(lambda g: g.wave.clocks.fence_proxy(g.lanes[g.running()]) if s.space == "shared" else None)


def _dependent_wait(c: Compiler, s: DependentWait) -> Compiled:
    def run(g: Gang) -> None:
        g.wave.depend(g.lanes[g.running()])

    return Compiled(run)


def _nothing(c: Compiler, s: DependentLaunch) -> Compiled:
    return Compiled(lambda g: None)


def optional(x: X | None) -> Read | None:
    """The closure of a guard."""
    return None if x is None else converted(reader(x), x.type, "bool")


STATEMENTS: Final[dict[type, Build]] = {
    Let: _let, Declare: _declare, Assign: _assign, For: _for, If: _if, Load: _load, Store: _store,
    LoadVector: _load_vector, StoreVector: _store_vector, ShiftVector: _shift_vector,
    Shuffle: _shuffle, Vote: _vote, Barrier: _barrier,
    WarpSync: _warp_sync, Fence: _fence, ProxyFence: _proxy_fence, DependentWait: _dependent_wait,
    DependentLaunch: _nothing,
}  # fmt: skip
