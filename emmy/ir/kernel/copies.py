"""Statements that move tiles: cp.async, TMA, and the mbarrier rings that say when they have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emmy.ir.kernel.memory import Place
from emmy.ir.kernel.values import X


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """cp.async of 4, 8 or 16 bytes, both sides aligned.  Where `guard` is false zeros arrive and nothing is read."""

    dst: Place
    src: Place
    bytes: int
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class AsyncCommit:
    """Closes the thread's current group of asynchronous copies."""


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """Waits until at most `pending` of the thread's groups are in flight (a barrier makes them visible to others)."""

    pending: int


# ---- rings


@dataclass(frozen=True, slots=True)
class InitRings:
    """Thread 0 of the block initializes the mbarriers of all rings and makes them visible to TMA and the cluster.

    A `Barrier` (with clusters a `ClusterBarrier`) must follow before any thread uses a ring.
    """


@dataclass(frozen=True, slots=True)
class Cursor:
    """A thread's position in a ring: registers `name_slot` (i32) and `name_parity` (u32), at slot 0 of round 0.

    The slot is read as `Var(name_slot, "i32")`; the parity flips whenever the position passes the last slot.
    """

    name: str
    ring: str


@dataclass(frozen=True, slots=True)
class Advance:
    """`by` slots further (1 where it is None)."""

    cursor: str
    by: X | None = None


@dataclass(frozen=True, slots=True)
class RingWait:
    """Until the slot is `full` in this round, or `empty`: its last contents are used up, at once in the first round."""

    cursor: str
    side: Literal["full", "empty"]


@dataclass(frozen=True, slots=True)
class RingArrive:
    """One arrival of each thread that runs it.  `bytes` (full side): so many are announced to come by TMA.

    `rank`: at the barrier of that block of the cluster.  What the thread did before happens before what follows the
    wait that the arrival completes.
    """

    cursor: str
    side: Literal["full", "empty"]
    bytes: int = 0
    rank: X | None = None


@dataclass(frozen=True, slots=True)
class CopyArrive:
    """An arrival on the full side when the thread's cp.asyncs so far have landed (does not raise the count itself)."""

    cursor: str


# ---- TMA


@dataclass(frozen=True, slots=True)
class TmaLoad:
    """One box into shared memory; its bytes complete on the full side of the cursor's slot.  One thread issues it.

    `at` is the box's first element in the tensor, outermost dimension first (i32, may lie outside).  `multicast` is a
    mask of the blocks of the cluster that all get the box at the same place and the bytes on the same slot.
    """

    dst: Place
    map: str
    at: tuple[X, ...]
    cursor: str
    multicast: X | None = None


@dataclass(frozen=True, slots=True)
class TmaStore:
    """One box from shared memory, clipped to the tensor, as part of the thread's open bulk group.  op: "" or add."""

    map: str
    at: tuple[X, ...]
    src: Place
    op: Literal["", "add"] = ""


@dataclass(frozen=True, slots=True)
class BulkCommit:
    """Closes the thread's current group of TMA stores."""


@dataclass(frozen=True, slots=True)
class BulkWait:
    """Until at most `pending` of the thread's bulk groups are in flight; `read`: have not yet read their source."""

    pending: int
    read: bool = False


@dataclass(frozen=True, slots=True)
class ProxyFence:
    """What the thread wrote by ordinary stores is seen by TMA and wgmma that are ordered after it.

    What it read by loads and ldmatrix has been read before TMA that is ordered after it overwrites that.
    space: shared (of the block) or global.
    """

    space: Literal["shared", "global"] = "shared"
