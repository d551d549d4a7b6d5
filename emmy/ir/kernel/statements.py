"""Statements of Kernel IR: registers, control, loads and stores, synchronization; and the union of all statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emmy.ir.kernel.copies import (
    Advance,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    BulkCommit,
    BulkWait,
    CopyArrive,
    Cursor,
    InitRings,
    ProxyFence,
    RingArrive,
    RingWait,
    TmaLoad,
    TmaStore,
)
from emmy.ir.kernel.matrices import LdMatrix, Mma, StMatrix, Wgmma, WgmmaCommit, WgmmaFence, WgmmaWait
from emmy.ir.kernel.memory import Place
from emmy.ir.kernel.values import Target, Var, X


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


@dataclass(frozen=True, slots=True)
class Let:
    """A register that is written once."""

    name: str
    value: X


@dataclass(frozen=True, slots=True)
class Declare:
    """A register that is assigned again, or with `count` an array of them (16-byte aligned, for vector copies).

    `init` of an array is a number, with which every element begins.
    """

    name: str
    type: str
    init: X | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    target: Target
    value: X


@dataclass(frozen=True, slots=True)
class For:
    """`for (var = start; var < stop; var += step)`.  unroll: 0 fully, 1 as the compiler likes, n by n, -1 never."""

    var: Var
    start: X
    stop: X
    step: X
    body: tuple[S, ...]
    unroll: int = 1


@dataclass(frozen=True, slots=True)
class If:
    cond: X
    then: tuple[S, ...]
    orelse: tuple[S, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """One element into a new register of `type` (converted).  Where `guard` is false nothing is read: `fill`, or 0."""

    name: str
    type: str
    place: Place
    guard: X | None = None
    fill: X | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """One element, converted to the place's type."""

    place: Place
    value: X
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class LoadVector:
    """`count` elements from `place` into array[at ..]: 1, 2, 4, 8 or 16 aligned bytes.  Guard false: zeros."""

    array: str
    at: X
    count: int
    place: Place
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class StoreVector:
    place: Place
    array: str
    at: X
    count: int
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class ShiftVector:
    """array[at ..] = source[start + by ..], `count` elements of 16 bytes; 0 <= by < count; registers only."""

    array: str
    at: X
    source: str
    start: X
    count: int
    by: X


@dataclass(frozen=True, slots=True)
class Atomic:
    """op: add, max, min (f32 add; i32, i64, u32 all).  `old` names a register that takes the former value."""

    op: str
    place: Place
    value: X
    guard: X | None = None
    old: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the block; orders shared and global memory among them."""


@dataclass(frozen=True, slots=True)
class WarpSync:
    pass


@dataclass(frozen=True, slots=True)
class Fence:
    scope: Literal["block", "device"] = "device"


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A value of another lane of the warp; all 32 lanes take part.  mode: xor, up, down, lane.  f32, f64, integers."""

    name: str
    value: X
    mode: Literal["xor", "up", "down", "lane"]
    lane: X
    width: int = 32


@dataclass(frozen=True, slots=True)
class Vote:
    """any, all (bool) or ballot (u32, a bit a lane) of a condition over the warp; all 32 lanes take part."""

    name: str
    value: X
    mode: Literal["any", "all", "ballot"]


@dataclass(frozen=True, slots=True)
class NamedBarrier:
    """Hardware barrier `id` (1 to 15, the same for a warp) among `threads` threads; `arrive` does not wait for it."""

    id: X
    threads: int
    arrive: bool = False


@dataclass(frozen=True, slots=True)
class ClusterBarrier:
    """All threads of all blocks of the cluster; orders their shared and global memory."""


@dataclass(frozen=True, slots=True)
class Role:
    """`warps` consecutive warps that run `body`; `registers` a thread (a multiple of 8, 24 to 240; 0: as launched)."""

    name: str
    warps: int
    registers: int
    body: tuple[S, ...]


@dataclass(frozen=True, slots=True)
class Roles:
    """Splits the block by warps, in order: every warp runs exactly one role, and all go on after the last."""

    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class DependentLaunch:
    """The next kernel of the stream may start (griddepcontrol.launch_dependents)."""


@dataclass(frozen=True, slots=True)
class DependentWait:
    """Until the kernels before have finished and their results are visible (griddepcontrol.wait)."""


S = (
    Comment | Let | Declare | Assign | For | If | Roles | Load | Store | LoadVector | StoreVector | ShiftVector | Atomic
    | Barrier | NamedBarrier | ClusterBarrier | WarpSync | Fence | ProxyFence | Shuffle | Vote
    | AsyncCopy | AsyncCommit | AsyncWait
    | InitRings | Cursor | Advance | RingWait | RingArrive | CopyArrive | TmaLoad | TmaStore | BulkCommit | BulkWait
    | LdMatrix | StMatrix | Mma | WgmmaFence | Wgmma | WgmmaCommit | WgmmaWait
    | DependentLaunch | DependentWait
)  # fmt: skip
