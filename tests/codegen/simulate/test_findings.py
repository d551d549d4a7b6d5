"""One small kernel for each rule: right, it has no finding; broken, it has the finding that names the place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emmy.codegen.expr import TID, add, compare, div, i32, mod, mul, sub
from emmy.ir.kernel import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Barrier,
    Bin,
    Buffer,
    Declare,
    DependentWait,
    Elem,
    For,
    If,
    Kernel,
    Let,
    Lit,
    Load,
    LoadVector,
    Place,
    S,
    Shuffle,
    Store,
    StoreVector,
    Var,
    Vote,
    WarpSync,
)
from tests.codegen.simulate.small import CELLS, ID, ONE, READ, V, found, kernel, only, run, s, x, y

# ---- registers


def test_a_register_that_nothing_assigned() -> None:
    f = only(kernel(Declare("v", "f32"), Store(y(TID), V)))
    assert (f.kind, f.buffer, f.statement) == ("uninitialized read", "v", "y[tid] = v")


def test_a_register_that_some_threads_did_not_assign() -> None:
    half = compare("<", TID, 32)
    f = only(kernel(Declare("v", "f32"), If(half, (Assign(V, ONE),)), Store(y(TID), V)))
    assert (f.kind, f.buffer, f.thread) == ("uninitialized read", "v", 32)
    assert not found(kernel(Declare("v", "f32"), If(half, (Assign(V, ONE),), (Assign(V, ONE),)), Store(y(TID), V)))


def test_an_element_beyond_a_register_array() -> None:
    f = only(kernel(Declare("r", "f32", Lit(0.0, "f32"), 4), Store(y(TID), Elem("r", i32(4), "f32"))))
    assert (f.kind, f.buffer) == ("out of bounds", "r")


def test_registers_by_an_index_of_the_thread() -> None:
    index = mod(TID, 4)
    body = (
        Declare("r", "f32", None, 4), READ, Assign(Elem("r", index, "f32"), V), Store(y(TID), Elem("r", index, "f32")),
    )  # fmt: skip
    assert np.array_equal(run(kernel(*body)).outputs["y"], np.arange(64))


# ---- global memory


def test_an_index_beyond_an_operand() -> None:
    f = only(kernel(Load("v", "f32", x(add(TID, 200))), Store(y(TID), V)))
    assert (f.kind, f.buffer, f.index, f.thread) == ("out of bounds", "x", 256, 56)


def test_a_guard_keeps_loads_inside() -> None:
    at = add(TID, 200)
    body = (Load("v", "f32", x(at), compare("<", at, 256), ONE), Store(y(TID), V))
    simulation = run(kernel(*body))
    assert simulation.findings == ()
    assert simulation.outputs["y"][55:57].tolist() == [255.0, 1.0]


def test_an_index_beyond_a_result() -> None:
    assert found(kernel(READ, Store(y(add(TID, 1)), V))) == [("out of bounds", "y"), ("not written", "y")]


def test_a_vector_that_is_not_aligned() -> None:
    vector = (Declare("r", "f32", None, 2), LoadVector("r", i32(0), 2, x(add(mul(TID, 2), 1))))
    f = only(kernel(*vector, Store(y(TID), Elem("r", i32(0), "f32"))))
    assert (f.kind, f.buffer, f.index) == ("misaligned", "x", 1)


def test_elements_of_a_result_that_nobody_writes() -> None:
    f = only(kernel(READ, If(compare("<", TID, 60), (Store(y(TID), V),))))
    assert (f.kind, f.buffer, f.index, f.detail) == ("not written", "y", 60, "4 of 64 elements")
    assert not found(kernel(READ), {"y": np.zeros(64, np.float32)})


def test_two_threads_that_write_one_element() -> None:
    f = only(kernel(READ, Store(y(div(TID, 2)), V)), {"y": 32})
    assert (f.kind, f.buffer, f.index) == ("two owners", "y", 0)


def test_two_blocks_that_write_one_element() -> None:
    assert found(kernel(READ, Store(y(TID), V), blocks=2), {"y": 64}) == [("two owners", "y")]


def test_a_barrier_passes_an_element_on() -> None:
    body = (
        READ,
        Store(y(TID), V),
        Barrier(),
        Load("w", "f32", y(sub(63, TID))),
        Barrier(),
        Store(y(TID), Var("w", "f32")),
    )
    assert not found(kernel(*body))
    assert ("global race", "y") in found(kernel(*(t for t in body if not isinstance(t, Barrier))))


def test_a_result_that_is_read_before_it_is_written() -> None:
    body = (Load("v", "f32", y(TID)), Store(y(TID), V))
    assert found(kernel(*body)) == [("uninitialized read", "y")]
    assert not found(kernel(*body), {"y": np.ones(64, np.float32)})


def test_operands_before_the_kernel_before_has_ended() -> None:
    body = (READ, Store(y(TID), V))
    assert found(kernel(*body, dependent=True)) == [("dependent read", "x"), ("dependent write", "y")]
    assert not found(kernel(DependentWait(), *body, dependent=True))


def test_one_thread_waits_for_the_kernel_before() -> None:
    wait = If(compare("==", TID, 0), (DependentWait(),))
    body = (READ, Store(y(TID), V))
    assert not found(kernel(wait, Barrier(), *body, dependent=True))
    assert ("dependent read", "x") in found(kernel(wait, *body, dependent=True))


# ---- shared memory


PASS_ON = (READ, Store(s(TID), V), Barrier(), Load("w", "f32", s(sub(63, TID))), Store(y(TID), Var("w", "f32")))


def test_a_barrier_orders_shared_memory() -> None:
    simulation = run(kernel(*PASS_ON))
    assert simulation.findings == ()
    assert simulation.outputs["y"].tolist() == list(range(63, -1, -1))
    f = only(kernel(*(t for t in PASS_ON if not isinstance(t, Barrier))))
    assert (f.kind, f.buffer, f.index, f.statement) == ("shared race", "s", 63, "w = read s[63 - tid]")


def test_lanes_of_a_warp_need_a_warp_barrier() -> None:
    other = Bin("^", TID, i32(1), "i32")
    body = (READ, Store(s(TID), V), WarpSync(), Load("w", "f32", s(other)), Store(y(TID), Var("w", "f32")))
    assert not found(kernel(*body))
    assert found(kernel(*(t for t in body if not isinstance(t, WarpSync)))) == [("shared race", "s")]


def test_a_warp_barrier_does_not_order_warps() -> None:
    body = (WarpSync() if isinstance(t, Barrier) else t for t in PASS_ON)
    assert found(kernel(*body)) == [("shared race", "s")]


def test_writes_must_follow_the_reads_before() -> None:
    again = (*PASS_ON, Store(s(TID), V))
    f = only(kernel(*again))
    assert (f.kind, f.detail) == ("shared race", "a write of what warp 1 may still read")
    assert not found(kernel(*PASS_ON, Barrier(), Store(s(TID), V)))


def test_two_threads_that_write_one_cell() -> None:
    body = (READ, Store(s(div(TID, 2)), V), Barrier(), Load("w", "f32", s(div(TID, 2))), Store(y(TID), Var("w", "f32")))
    assert found(kernel(*body)) == [("shared race", "s")]


def test_shared_memory_that_nothing_wrote() -> None:
    f = only(kernel(Load("v", "f32", s(add(TID, 8))), Store(y(TID), V)))
    assert (f.kind, f.buffer, f.index) == ("uninitialized read", "s", 8)


def test_an_index_beyond_a_buffer() -> None:
    f = only(kernel(READ, Store(s(mul(TID, 8)), V), Store(y(TID), V)))
    assert (f.kind, f.buffer, f.thread) == ("out of bounds", "s", 32)


def test_a_vector_of_shared_memory_that_is_not_aligned() -> None:
    body = (Declare("r", "f32", ONE, 2), StoreVector(s(add(mul(TID, 2), 1)), "r", i32(0), 2), Store(y(TID), ONE))
    assert found(kernel(*body)) == [("misaligned", "s")]


def test_buffers_that_share_bytes_race() -> None:
    over = Buffer("t", "f32", (256,), overlays="s")
    body = (READ, Store(s(TID), V), Store(Place("shared", "t", (sub(63, TID),), "f32"), V), Store(y(TID), V))
    k = kernel(*body)
    assert found(Kernel(k.name, k.comment, k.params, (CELLS, over), k.grid, k.threads, k.body)) == [
        ("shared race", "t")
    ]


def test_blocks_have_memories_of_their_own() -> None:
    body = (Load("v", "f32", x(ID)), *PASS_ON[1:4], Store(y(ID), Var("w", "f32")))
    simulation = run(kernel(*body, blocks=4))
    assert simulation.findings == ()
    assert simulation.outputs["y"][64:66].tolist() == [127.0, 126.0]


# ---- cp.async


def staged(wait: tuple[S, ...] = (AsyncCommit(), AsyncWait(0), Barrier())) -> tuple[S, ...]:
    return (
        If(compare("<", TID, 16), (AsyncCopy(s(mul(TID, 4)), x(mul(TID, 4)), 16),)), *wait,
        Load("w", "f32", s(sub(63, TID))), Store(y(TID), Var("w", "f32")),
    )  # fmt: skip


def test_copies_arrive_when_their_group_is_waited_for() -> None:
    simulation = run(kernel(*staged()))
    assert simulation.findings == ()
    assert simulation.outputs["y"].tolist() == list(range(63, -1, -1))


def test_copies_without_a_commit_wait_or_barrier() -> None:
    assert ("read before wait", "s") in found(kernel(*staged((AsyncWait(0), Barrier()))))
    assert ("read before wait", "s") in found(kernel(*staged((AsyncCommit(), AsyncWait(1), Barrier()))))
    assert found(kernel(*staged((AsyncCommit(), AsyncWait(0))))) == [("shared race", "s")]


def test_a_copy_over_what_is_read() -> None:
    again = (AsyncCopy(s(mul(TID, 4)), x(mul(TID, 4)), 16), AsyncCommit(), AsyncWait(0))
    f = next(iter(run(kernel(*staged(), If(compare("<", TID, 16), again))).findings))
    assert (f.kind, f.buffer) == ("refill before read", "s")


def test_a_copy_whose_guard_is_false_brings_zeros() -> None:
    copy = AsyncCopy(s(mul(TID, 4)), x(mul(TID, 400)), 16, compare("<", TID, 1))
    body = (If(compare("<", TID, 16), (copy,)), *staged()[1:])
    simulation = run(kernel(*body))
    assert simulation.findings == ()
    assert simulation.outputs["y"][60:].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert not simulation.outputs["y"][:60].any()


# ---- warps and barriers


def test_a_barrier_that_some_threads_do_not_reach() -> None:
    f = only(kernel(READ, Store(y(TID), V), If(compare("<", TID, 32), (Barrier(),))))
    assert (f.kind, f.thread) == ("divergent", 32)


def test_a_shuffle_without_all_lanes() -> None:
    inner = (Shuffle("o", V, "xor", i32(1)), Store(y(TID), Var("o", "f32")))
    f = only(kernel(READ, If(compare("<", TID, 48), inner)), {"y": np.zeros(64, np.float32)})
    assert (f.kind, f.thread) == ("divergent", 48)


@pytest.mark.parametrize(
    ("mode", "by", "expected"),
    [("xor", 1, [1, 0, 3, 2]), ("up", 1, [0, 0, 1, 2]), ("down", 2, [2, 3, 4, 5]), ("lane", 3, [3, 3, 3, 3])],
)
def test_shuffles(mode: Any, by: int, expected: list[int]) -> None:
    body = (READ, Shuffle("o", V, mode, i32(by)), Store(y(TID), Var("o", "f32")))
    assert run(kernel(*body)).outputs["y"][:4].tolist() == expected


def test_votes() -> None:
    body = (Vote("o", compare("==", TID, 3), "ballot"), Let("v", Lit(0.0, "f32")))
    store = Store(y(TID), Var("o", "u32"))
    out = run(kernel(*body, store)).outputs["y"]
    assert out[[0, 32]].tolist() == [8.0, 0.0]


def test_a_loop_that_each_thread_leaves_at_its_own_turn() -> None:
    k = Var("k", "i32")
    turn = For(k, i32(0), TID, i32(1), (Assign(V, Bin("+", V, ONE, "f32")),))
    assert run(kernel(Declare("v", "f32", Lit(0.0, "f32")), turn, Store(y(TID), V))).outputs["y"].tolist() == list(
        range(64)
    )


def test_findings_read_as_a_line() -> None:
    text = str(only(kernel(READ, Store(s(TID), V), Load("w", "f32", s(0)), Store(y(TID), Var("w", "f32")))))
    assert text.startswith("k: shared race of s[0], block 0 thread 1, at `w = read s[0]`: read after a write by warp 0")
