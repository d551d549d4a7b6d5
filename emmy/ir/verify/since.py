"""From where on the hardware has a statement: the least compute capability, or the architectures that alone have it.

Sources: PTX ISA manual, "Target ISA Notes" of each instruction; CUDA C++ Programming Guide for clusters.  Everything
that is not listed is there from sm_80 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from emmy.ir.kernel import (
    Advance,
    Builtin,
    BulkCommit,
    BulkWait,
    ClusterBarrier,
    CopyArrive,
    Cursor,
    DependentLaunch,
    DependentWait,
    InitRings,
    Kernel,
    Mma,
    ProxyFence,
    RingArrive,
    RingWait,
    Role,
    Roles,
    S,
    StMatrix,
    TmaLoad,
    TmaStore,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    children,
)
from emmy.ir.target import Target


@dataclass(frozen=True, slots=True)
class Since:
    """`least` is a capability as in `Target.capability`; `only`, where given, lists the architectures that have it."""

    least: int
    only: tuple[str, ...] = ()

    def has(self, target: Target) -> bool:
        return target.capability >= self.least and (not self.only or target.arch in self.only)

    @property
    def text(self) -> str:
        return " and ".join(self.only) if self.only else f"sm_{self.least} and later"


_SM80: Final = Since(80)
_SM90: Final = Since(90)
_SM90A: Final = Since(90, ("sm_90a",))
# Consumer Blackwell takes a multicast but has no hardware for it, and no second block of a cluster to send to.
SINCE: Final[dict[str, Since]] = {
    "mma.m16n8k16.bf16": _SM80,
    "mma.m16n8k16.f16": _SM80,
    "mma.m16n8k8.tf32": _SM80,
    "mma.m16n8k32.i8": _SM80,
    "mma.m16n8k32.f8e4m3": Since(89),
    "mma.m16n8k32.f8e5m2": Since(89),
    "ring": _SM90,
    "tma": _SM90,
    "multicast": _SM90A,
    "cluster": _SM90,
    "stmatrix": _SM90,
    "proxy fence": _SM90,
    "dependent launch": _SM90,
    "role registers": Since(90, ("sm_90a", "sm_120a")),
    "wgmma": _SM90A,
}
_KINDS: Final[dict[type, str]] = {
    **dict.fromkeys((InitRings, Cursor, Advance, RingWait, RingArrive, CopyArrive), "ring"),
    **dict.fromkeys((TmaLoad, TmaStore, BulkCommit, BulkWait), "tma"),
    **dict.fromkeys((WgmmaFence, Wgmma, WgmmaCommit, WgmmaWait), "wgmma"),
    **dict.fromkeys((DependentLaunch, DependentWait), "dependent launch"),
    StMatrix: "stmatrix",
    ProxyFence: "proxy fence",
    ClusterBarrier: "cluster",
}


def features(s: S) -> tuple[str, ...]:
    """Names in `SINCE` of what the statement itself needs (not the statements inside of it)."""
    found = [_KINDS[type(s)]] if type(s) in _KINDS else []
    if isinstance(s, Mma):
        found.append(f"mma.{s.shape}.{s.type}")
    if isinstance(s, TmaLoad) and s.multicast is not None:
        found.append("multicast")
    if (isinstance(s, RingArrive) and s.rank is not None) or _ranked(s):
        found.append("cluster")
    if isinstance(s, Roles) and any(r.registers for r in s.roles):
        found.append("role registers")
    return tuple(found)


def kernel_features(k: Kernel) -> tuple[str, ...]:
    """What the kernel needs beside its statements."""
    return (
        *(["cluster"] if k.cluster != (1, 1, 1) else []), *(["ring"] if k.rings else []),
        *(["tma"] if k.maps else []), *(["dependent launch"] if k.dependent else []),
    )  # fmt: skip


def _ranked(node: object) -> bool:
    if isinstance(node, Builtin):
        return node.name == "cluster_rank"
    return any(_ranked(c) for c in children(node) if not isinstance(c, _INNER))


_INNER: Final = (*get_args(S), Role)
