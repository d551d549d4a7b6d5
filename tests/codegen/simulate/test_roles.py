"""Roles, rings, TMA and wgmma: a right kernel has no finding, each fault is found as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from emmy.codegen.simulate import Simulation, simulate
from emmy.ir.kernel import (
    Advance,
    Barrier,
    BulkWait,
    If,
    Kernel,
    Lit,
    NamedBarrier,
    ProxyFence,
    RingArrive,
    RingWait,
    S,
    TmaLoad,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    with_bodies,
)
from emmy.ir.target import target
from emmy.ir.verify.kernel import verify
from tests.codegen.simulate import hopper as H

CARD = target("sm_90a")
Change = Callable[[S], tuple[S, ...]]


def run(kernel: Kernel, m: int = 256, k: int = 256, seed: int = 0) -> tuple[Simulation, bool]:
    """What the simulator says, and whether the values are right."""
    given = H.operands(m, k)
    simulation = simulate(kernel, CARD, given, {}, {"y": m * 64}, seed=seed)
    found = simulation.outputs["y"].reshape(m, 64).astype(np.float32)
    return simulation, np.array_equal(found, H.expected(given).astype(np.float32))


def rewritten(body: tuple[S, ...], change: Change) -> tuple[S, ...]:
    return tuple(with_bodies(t, lambda b: rewritten(b, change)) for s in body for t in change(s))


def kinds(change: Change, staged: bool = False, kernel: Kernel | None = None) -> set[str]:
    kernel = H.product(staged=staged) if kernel is None else kernel
    broken = replace(kernel, body=rewritten(kernel.body, change))
    assert broken != kernel
    return {f.kind for f in run(broken)[0].findings}


def drop(type: type, side: str = "") -> Change:
    return lambda s: () if isinstance(s, type) and (not side or s.side == side) else (s,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("staged", [False, True])
def test_a_right_kernel_has_no_finding_in_any_order(staged: bool, seed: int) -> None:
    simulation, right = run(H.product(staged=staged), seed=seed)
    assert simulation.findings == ()
    assert right


def test_tma_fills_with_zeros_and_clips() -> None:
    kernel = H.product(200, 200, staged=True)
    verify(kernel, CARD)
    simulation, right = run(kernel, 200, 200)
    assert simulation.findings == ()
    assert right


def test_reading_a_slot_without_a_wait() -> None:
    assert kinds(drop(RingWait, "full")) & {"read before wait", "uninitialized read"}


def test_filling_a_slot_without_a_wait() -> None:
    assert "refill before read" in kinds(drop(RingWait, "empty"))


def test_a_slot_that_is_never_freed() -> None:
    assert kinds(drop(RingArrive, "empty")) == {"deadlock"}


def test_a_deadlock_says_who_waits_for_what() -> None:
    kernel = H.product()
    broken = replace(kernel, body=rewritten(kernel.body, drop(RingArrive, "empty")))
    (finding,) = run(broken)[0].findings
    assert "producer (block 0, warp 0) waits for ring[0].empty, which needs 2 of 2 arrivals" in finding.detail
    assert "consumer" in finding.detail


def test_a_slot_that_is_freed_before_its_products_end() -> None:
    def late(s: S) -> tuple[S, ...]:
        if isinstance(s, WgmmaWait):
            return ()
        return (s, WgmmaWait(0)) if isinstance(s, If) and isinstance(s.then[0], RingArrive) else (s,)

    assert kinds(late) == {"refill before read"}


def test_arrivals_that_do_not_add_up() -> None:
    """One too many is never complete; of one too few the second completes the next phase, which nobody expects."""
    kernel = H.product()
    for empty in (3, 1):
        (ring,) = kernel.rings
        broken = replace(kernel, rings=(replace(ring, empty=empty),))
        assert {f.kind for f in run(broken)[0].findings} & {"deadlock", "refill before read"}


@pytest.mark.parametrize(("bytes", "found"), [(-128, {"wrong bytes", "deadlock"}), (128, {"wrong bytes", "deadlock"})])
def test_bytes_that_do_not_add_up(bytes: int, found: set[str]) -> None:
    def change(s: S) -> tuple[S, ...]:
        return (replace(s, bytes=s.bytes + bytes),) if isinstance(s, RingArrive) and s.bytes else (s,)

    assert kinds(change) == found


def test_a_parity_two_phases_ahead() -> None:
    """The wait passes at once on the phase before, and the slot is read while TMA fills it or before."""

    def ahead(s: S) -> tuple[S, ...]:
        return (s, Advance("use", Lit(H.DEPTH, "i32"))) if isinstance(s, Barrier) else (s,)

    assert kinds(ahead) & {"read before wait", "uninitialized read"}


def test_results_that_tma_reads_without_a_proxy_fence() -> None:
    assert kinds(drop(ProxyFence), staged=True) == {"missing proxy fence"}


def test_a_proxy_fence_before_the_stores() -> None:
    def early(s: S) -> tuple[S, ...]:
        if isinstance(s, ProxyFence):
            return ()
        return (ProxyFence(), s) if isinstance(s, RingWait) and s.side == "full" else (s,)

    assert "missing proxy fence" in kinds(early, staged=True)


def test_results_that_tma_reads_before_all_have_stored() -> None:
    assert kinds(drop(NamedBarrier), staged=True) == {"shared race"}


def test_a_named_barrier_of_too_many_threads() -> None:
    def change(s: S) -> tuple[S, ...]:
        return (replace(s, threads=256),) if isinstance(s, NamedBarrier) else (s,)

    assert kinds(change, staged=True) == {"deadlock"}


def test_stores_by_tma_that_nobody_waits_for() -> None:
    assert kinds(drop(BulkWait), staged=True) == {"never waited"}


def test_products_without_a_fence() -> None:
    assert kinds(drop(WgmmaFence)) == {"missing fence"}


def test_accumulators_of_products_in_flight() -> None:
    assert "read before wait" in kinds(drop(WgmmaWait))


def test_a_wait_that_leaves_one_group_in_flight() -> None:
    def change(s: S) -> tuple[S, ...]:
        return (WgmmaWait(1),) if isinstance(s, WgmmaWait) else (s,)

    assert "read before wait" in kinds(change)


def test_products_that_are_not_committed() -> None:
    assert "read before wait" in kinds(drop(WgmmaCommit))


def test_rings_used_before_their_initialization() -> None:
    assert kinds(drop(Barrier)) == {"shared race"}


def test_the_wrong_swizzle_gives_wrong_values() -> None:
    kernel = H.product()
    broken = replace(kernel, maps=(replace(kernel.maps[0], swizzle=64), *kernel.maps[1:]))
    assert run(broken)[1] is False


def test_a_wrong_first_column_gives_wrong_values() -> None:
    kernel = H.product()

    def change(s: S) -> tuple[S, ...]:
        if isinstance(s, Wgmma) and s.b.place.index[-1] == Lit(16, "i32"):
            place = replace(s.b.place, index=(*s.b.place.index[:-1], Lit(32, "i32")))
            return (replace(s, b=replace(s.b, place=place)),)
        return (s,)

    assert run(replace(kernel, body=rewritten(kernel.body, change)))[1] is False


def test_a_box_beyond_its_buffer() -> None:
    def change(s: S) -> tuple[S, ...]:
        if isinstance(s, TmaLoad) and s.map == "map_b":
            return (replace(s, dst=replace(s.dst, index=(Lit(1, "i32"), Lit(8, "i32"), Lit(0, "i32")))),)
        return (s,)

    assert "out of bounds" in kinds(change)
