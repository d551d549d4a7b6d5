"""Programmatic dependent launch: a kernel sets itself up while the kernel before it still runs.

Every block says at once that the next kernel may start; its blocks then take what SMs are free, do what needs no
memory, and wait for all results of the kernel before.  Since every kernel waits, all earlier ones have finished too.
Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from emmy.ir.kernel import (
    Barrier,
    ClusterBarrier,
    Comment,
    Declare,
    DependentLaunch,
    DependentWait,
    InitRings,
    Kernel,
    Let,
)

EARLY_SINCE: Final = 90  # capability
# what leads a kernel and touches no tensor
_LEADING: Final = (Comment, Let, Declare, InitRings, Barrier, ClusterBarrier)


def starting_early(kernel: Kernel) -> Kernel:
    """The kernel with its wait as late as its first statement that may read or write a tensor."""
    body = kernel.body
    n = next((k for k, s in enumerate(body) if not isinstance(s, _LEADING)), len(body))
    return replace(kernel, body=(DependentLaunch(), *body[:n], DependentWait(), *body[n:]), dependent=True)
