"""Checks Kernel IR before it is printed.  A finding is a bug in a family or in a schedule rule, never the user's.

    budget     threads, shared memory and registers of the target; statements that it has (`emmy.ir.verify.since`)
    names      unique, declared before use, of one type; only `Declare`d registers are assigned, only results stored
    places     parameters and shared buffers exist and have the place's type and dimensions; vectors are 1 to 16 bytes
               and begin at multiples of their size (`emmy.ir.verify.alignment`)
    barriers   every thread of the block reaches them; every lane of the warp reaches shuffles, ldmatrix and mma; every
               thread of the warpgroup reaches wgmma
    copies     what cp.async brings is read only after a wait and a barrier, and its slot refilled after its last read
    rings      arrivals and bytes of a phase add up; waits stand before reads and refills (`emmy.ir.verify.order`)
    arrivals   what blocks tell one another through a workspace is fenced, counted and cleared
    matrices   fragments have the registers that the instruction takes; matrices and boxes lie where descriptors and
               tensor maps can say it

Whether control flow diverges is decided by what conditions depend on: nothing of the thread (uniform), its warpgroup
(tid >> 7 and the like), its warp (tid >> 5), or its lane.  Values loaded at uniform places are uniform.
"""

from __future__ import annotations

from typing import Final

from emmy.ir.kernel import (
    AsyncCommit,
    AsyncCopy,
    CopyArrive,
    DependentWait,
    InitRings,
    Kernel,
    NamedBarrier,
    TmaStore,
    Wgmma,
    walk,
)
from emmy.ir.target import Target
from emmy.ir.verify.alignment import check_alignment
from emmy.ir.verify.arrivals import check_arrivals
from emmy.ir.verify.control import Checker, check_threads
from emmy.ir.verify.counts import check_named, check_rings
from emmy.ir.verify.facts import KernelError, Spread, failure
from emmy.ir.verify.landing import check_landing
from emmy.ir.verify.matrices import check_map
from emmy.ir.verify.order import check_order
from emmy.ir.verify.since import SINCE, features, kernel_features
from emmy.ir.verify.threads import paths

# kernels without any of these have nothing in flight
_ASYNCHRONOUS: Final = (AsyncCopy, InitRings, NamedBarrier, TmaStore, Wgmma)
__all__ = ["KernelError", "Spread", "check_target", "verify"]


def verify(kernel: Kernel, target: Target) -> None:
    """Raises KernelError at the first rule that the kernel breaks."""
    check_target(kernel, target)
    _check_budget(kernel, target)
    check_threads(kernel)
    for m in kernel.maps:
        check_map(kernel, m)
    Checker(kernel, target).block(kernel.body, Spread.BLOCK)
    check_alignment(kernel)
    check_arrivals(kernel)
    if kernel.dependent and not any(isinstance(s, DependentWait) for s in walk(kernel.body)):
        raise failure(kernel, None, "it may start early, but does not wait for the kernel before")
    if any(isinstance(s, _ASYNCHRONOUS) for s in walk(kernel.body)):
        _check_paths(kernel)


def _check_paths(kernel: Kernel) -> None:
    ways = list(paths(kernel))
    held = ways[: len(ways) // 2]
    check_named(kernel, held)
    check_rings(kernel, held)
    for path in ways:
        check_order(kernel, path)
        check_landing(kernel, path)


def check_target(kernel: Kernel, target: Target) -> None:
    """Raises KernelError for a statement that the target does not have."""
    needs = [(s, f) for s in walk(kernel.body) for f in features(s)] + [(None, f) for f in kernel_features(kernel)]
    for s, feature in needs:
        if feature in SINCE and not SINCE[feature].has(target):
            raise failure(kernel, s, f"{target.arch} has no {feature} ({SINCE[feature].text})")


def _check_budget(kernel: Kernel, target: Target) -> None:
    if not 0 < kernel.threads <= target.threads_block:
        raise failure(kernel, None, f"{kernel.threads} threads a block, {target.arch} has {target.threads_block}")
    if kernel.smem > target.smem_block:
        raise failure(kernel, None, f"{kernel.smem} bytes of shared memory, {target.arch} has {target.smem_block}")
    statements = list(walk(kernel.body))
    copies = any(isinstance(s, AsyncCopy) for s in statements)
    if copies and not any(isinstance(s, AsyncCommit | CopyArrive) for s in statements):
        raise failure(kernel, None, "asynchronous copies without a commit")
