"""Gangs that run together: roles, rings, clusters and blocks that tell one another something by atomics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emmy.codegen.expr import TID, add, compare, div, i32, mod, mul, sub
from emmy.ir.kernel import (
    Advance,
    Assign,
    AsyncCopy,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    ClusterBarrier,
    CopyArrive,
    Cursor,
    Declare,
    Fence,
    For,
    If,
    InitRings,
    Kernel,
    Lit,
    Load,
    NamedBarrier,
    Param,
    Place,
    Ring,
    RingArrive,
    RingWait,
    Role,
    Roles,
    S,
    Store,
    Var,
    WarpSync,
)
from emmy.ir.loop import const
from tests.codegen.simulate.small import ID, READ, Array, V, found, kernel, only, run, s, x, y

# ---- roles and named barriers


def handed(arrive: tuple[S, ...], wait: tuple[S, ...]) -> Kernel:
    """One warp fills shared memory, the other one reads it."""
    cell = mod(TID, 32)
    fill = (Load("v", "f32", x(cell)), Store(s(cell), V), *arrive)
    read = (*wait, Load("w", "f32", s(sub(31, cell))), Store(y(cell), Var("w", "f32")))
    return kernel(Roles((Role("fill", 1, 0, fill), Role("read", 1, 0, read))))


def test_named_barriers_hand_memory_over() -> None:
    one, other = NamedBarrier(i32(1), 64, arrive=True), NamedBarrier(i32(1), 64)
    for seed in range(4):
        simulation = run(handed((one,), (other,)), {"y": 32}, seed)
        assert simulation.findings == ()
        assert simulation.outputs["y"].tolist() == list(range(31, -1, -1))


def test_a_named_barrier_that_nobody_else_reaches() -> None:
    f = only(handed((), (NamedBarrier(i32(1), 64),)), {"y": 32})
    assert f.kind == "deadlock"
    assert "read (block 0, warp 1) waits for named barrier 1 (64 threads)" in f.detail


def test_roles_without_a_barrier_race() -> None:
    kinds = {k for seed in range(8) for k in (f.kind for f in run(handed((), ()), {"y": 32}, seed).findings)}
    assert kinds <= {"shared race", "uninitialized read"}
    assert "shared race" in kinds


def test_too_many_arrivals() -> None:
    arrive = NamedBarrier(i32(1), 32, arrive=True)
    twice = NamedBarrier(i32(1), 48, arrive=True)
    assert ("wrong arrivals", "") in found(handed((twice, twice), ()), {"y": 32})
    assert arrive != twice


def test_groups_that_share_a_barrier_number() -> None:
    """Each group is whole at each barrier in lockstep, but on hardware warps of both may meet at one."""
    group = div(TID, 64)
    shared_number = (NamedBarrier(add(group, 1), 64), NamedBarrier(sub(2, group), 64))
    body = (READ, Store(y(TID), V))
    own = Roles((Role("both", 4, 0, (shared_number[0], shared_number[0], *body)),))
    assert not found(kernel(own, threads=128))
    crossed = Roles((Role("both", 4, 0, (*shared_number, *body)),))
    assert found(kernel(crossed, threads=128)) == [("wrong arrivals", "")]


# ---- rings that cp.async fills


RING = Ring("ring", 1, 32, 1)


def copied(arrive: tuple[S, ...] = (CopyArrive("fill"),), wait: tuple[S, ...] = (RingWait("use", "full"),)) -> Kernel:
    cell = mod(TID, 32)
    at = mul(cell, 4)
    fill = (AsyncCopy(s(at), x(at), 16), *arrive)
    read = (*wait, Load("w", "f32", s(sub(127, cell))), Store(y(cell), Var("w", "f32")))
    body = (
        InitRings(),
        Cursor("fill", "ring"),
        Cursor("use", "ring"),
        Barrier(),
        Roles((Role("fill", 1, 0, fill), Role("read", 1, 0, read))),
    )
    return kernel(*body, rings=(RING,))


def test_copies_arrive_on_a_ring() -> None:
    for seed in range(4):
        simulation = run(copied(), {"y": 32}, seed)
        assert simulation.findings == ()
        assert simulation.outputs["y"].tolist() == list(range(127, 95, -1))


def test_an_arrival_that_does_not_wait_for_the_copies() -> None:
    assert ("read before wait", "s") in found(copied((RingArrive("fill", "full"),)), {"y": 32})


def test_copies_on_a_ring_that_nobody_waits_for() -> None:
    kinds = {f.kind for seed in range(6) for f in run(copied(wait=()), {"y": 32}, seed).findings}
    assert {"read before wait", "never waited"} <= kinds


def freed(*before: S) -> Kernel:
    """A warp reads a slot that another one fills again; one lane frees it."""
    cell = mod(TID, 32)
    turn = (
        RingWait("fill", "empty"),
        AsyncCopy(s(mul(cell, 4)), x(mul(cell, 4)), 16),
        CopyArrive("fill"),
        Advance("fill"),
    )
    free = If(compare("==", cell, 0), (RingArrive("use", "empty"),))
    read = (Load("w", "f32", s(sub(127, cell))), *before, free, Advance("use"), Store(y(cell), Var("w", "f32")))
    use = (RingWait("use", "full"), *read)
    roles = Roles((Role("fill", 1, 0, twice("i", turn)), Role("read", 1, 0, twice("j", use))))
    body = (InitRings(), Cursor("fill", "ring"), Cursor("use", "ring"), Barrier(), roles)
    return kernel(*body, rings=(RING,))


def twice(name: str, body: tuple[S, ...]) -> tuple[S, ...]:
    return (For(Var(name, "i32"), i32(0), i32(2), i32(1), body),)


def test_a_lane_that_frees_a_slot_speaks_for_its_warp_after_a_warp_barrier() -> None:
    assert not found(freed(WarpSync()), {"y": 32})
    assert found(freed(), {"y": 32}) == [("refill before read", "s")]


# ---- warps of a role


def test_warps_of_a_role_wait_alone() -> None:
    """The second warp of a role frees the first one, which waits inside of an `if`."""
    one, two = (NamedBarrier(i32(1), 64, arrive) for arrive in (False, True))
    warp = div(TID, 32)
    body = (If(compare("==", warp, 0), (one,)), If(compare("==", warp, 1), (two,)), READ, Store(y(TID), V))
    assert not found(kernel(Roles((Role("both", 2, 0, body),))))


# ---- clusters


def neighbour(*after: S) -> Kernel:
    """Each of two blocks reads the other's shared memory."""
    other = sub(1, Builtin("cluster_rank"))
    there = Place("shared", "s", (TID,), "f32", other)
    body = (
        Load("v", "f32", x(ID)), Store(s(TID), V), ClusterBarrier(), Load("w", "f32", there),
        Store(y(ID), Var("w", "f32")), *after,
    )  # fmt: skip
    return kernel(*body, blocks=4, cluster=(2, 1, 1))


def test_blocks_of_a_cluster_read_one_another() -> None:
    simulation = run(neighbour(ClusterBarrier()))
    assert simulation.findings == ()
    assert simulation.outputs["y"].tolist() == [*range(64, 128), *range(64), *range(192, 256), *range(128, 192)]


def test_a_block_that_ends_while_another_may_read_it() -> None:
    f = only(neighbour())
    assert (f.kind, f.statement.split(" = ")[0]) == ("block ended", "w")


def test_blocks_of_a_cluster_race() -> None:
    k = neighbour(ClusterBarrier())
    body = tuple(Barrier() if isinstance(t, ClusterBarrier) else t for t in k.body)
    kinds = {f.kind for seed in range(4) for f in run(replace(k, body=body), seed=seed).findings}
    assert kinds & {"shared race", "uninitialized read"}


def telling(*between: S) -> Kernel:
    """Each of two blocks writes to the other's shared memory, and reads what the other one wrote."""
    there = Place("shared", "s", (TID,), "f32", sub(1, Builtin("cluster_rank")))
    body = (
        ClusterBarrier(), Load("v", "f32", x(ID)), Store(there, V), *between, Load("w", "f32", s(TID)),
        Store(y(ID), Var("w", "f32")),
    )  # fmt: skip
    return kernel(*body, blocks=4, cluster=(2, 1, 1))


def test_blocks_of_a_cluster_tell_one_another() -> None:
    simulation = run(telling(ClusterBarrier()))
    assert simulation.findings == ()
    assert simulation.outputs["y"].tolist() == [*range(64, 128), *range(64), *range(192, 256), *range(128, 192)]


@pytest.mark.parametrize("between", [(), (Barrier(),)], ids=["nothing", "a barrier of the block"])
def test_what_another_block_tells_is_read_behind_a_barrier_of_the_cluster(between: tuple[S, ...]) -> None:
    kinds = {f.kind for seed in range(4) for f in run(telling(*between), seed=seed).findings}
    assert kinds & {"shared race", "uninitialized read"}


# ---- atomics


COUNT = (Param("x", "f32", "in"), Param("y", "f32", "out"), Param("c", "i32", "out"), Param("t", "f32", "out"))
SLOT = Place("global", "c", (i32(0),), "i32")


def last_block_adds(release: tuple[S, ...], acquire: tuple[S, ...]) -> Kernel:
    """Blocks leave partial results; the last one to count itself adds them up."""
    first = compare("==", TID, 0)
    last = Buffer("last", "i32", (1,))
    flag = Place("shared", "last", (i32(0),), "i32")
    total = Var("total", "f32")
    tail = (
        *acquire, Declare("total", "f32", Lit(0.0, "f32")),
        For(Var("b", "i32"), i32(0), i32(4), i32(1), (
            Load("part", "f32", Place("global", "t", (add(mul(Var("b", "i32"), 64), TID),), "f32")),
            Assign(total, Bin("+", total, Var("part", "f32"), "f32")),
        )),
        Store(y(TID), total),
    )  # fmt: skip
    body = (
        READ, Store(Place("global", "t", (ID,), "f32"), V), Barrier(),
        If(first, (*release, Atomic("add", SLOT, i32(1), old="before"), Store(flag, Var("before", "i32")))), Barrier(),
        Load("rank", "i32", flag), If(compare("==", Var("rank", "i32"), 3), tail),
    )  # fmt: skip
    grid = (const(4), const(1), const(1))
    return Kernel("k", "test", COUNT, (last,), grid, 64, body)


def shared_out() -> dict[str, Array | int]:
    return {"y": 64, "c": np.zeros(1, np.int32), "t": 256}


def test_the_last_block_reads_what_the_others_wrote() -> None:
    for seed in range(3):
        simulation = run(last_block_adds((Fence(),), (Fence(),)), shared_out(), seed)
        assert simulation.findings == ()
        assert simulation.outputs["y"].tolist() == [4.0 * n for n in range(64)]


@pytest.mark.parametrize("fences", [((), (Fence(),)), ((Fence(),), ())])
def test_blocks_that_tell_one_another_need_fences(fences: tuple[tuple[S, ...], tuple[S, ...]]) -> None:
    assert found(last_block_adds(*fences), shared_out()) == [("global race", "t")]


def test_atomics_need_no_order_but_a_first_value() -> None:
    body = (READ, Atomic("add", y(0), V))
    simulation = run(kernel(*body, blocks=2), {"y": np.zeros(1, np.float32)})
    assert simulation.findings == ()
    assert simulation.outputs["y"].tolist() == [2.0 * sum(range(64))]
    assert found(kernel(*body), {"y": 1}) == [("uninitialized read", "y")]
