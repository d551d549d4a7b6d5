"""What the compiler knows of a card: an architecture, and the card that stands for it when none is present.

Sources: NVIDIA's architecture white papers and data sheets (SMs, clocks, bandwidths, caches) and the CUDA C++
Programming Guide's tables of compute capabilities (threads, registers, shared memory).  `bandwidth` and the rates of
the H200 are what copies and large products reach on the card, the others are scaled from the data sheets by the same
factors (0.9 of bandwidth, 0.8 of tensor rate).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from emmy.arguments import allowances
from emmy.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """Units: bytes, bytes/s, FLOP/s, Hz.  `smem_block` is the most shared memory one block may ask for.

    `flops_wgmma16`: of products by warpgroups, 0 where the card has none; a little above the 790 to 800 TFLOP/s that
    large products reach on the H200.
    """

    arch: str
    gpu: str
    sms: int
    clock: float
    bandwidth: float
    l2_bytes: int
    smem_block: int
    smem_sm: int
    threads_sm: int
    flops_f32: float
    flops_mma16: float
    flops_wgmma16: float = 0.0
    launch_seconds: float = 1.5e-6
    registers_sm: int = 65536
    threads_block: int = 1024
    registers_thread: int = 255
    # what a compile may do to values: `tf32`, products of f32 factors rounded to 10 bits.  Evidence of it is kept apart
    numerics: str = ""
    # whether blocks may add partial sums in any order, so that runs differ; a row says so itself
    atomics: bool = False

    @property
    def flops_products(self) -> float:
        """The most that products of f32 factors reach: in tf32, half of what those of 16 bits do on tensor cores."""
        tensor = max(self.flops_mma16, self.flops_wgmma16) / 2
        return max(self.flops_f32, tensor) if self.numerics else self.flops_f32

    @property
    def allowed(self) -> tuple[str, ...]:
        """What was asked for beside the card's own arithmetic, as `emmy.arguments.ALLOWANCES` names it."""
        return (*(["atomics"] if self.atomics else []), *([self.numerics] if self.numerics else []))

    @property
    def capability(self) -> int:
        """89 for sm_89, 90 for sm_90a."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))


KiB: Final = 1024
TARGETS: Final[dict[str, Target]] = {
    t.arch: t
    for t in (
        Target("sm_80", "A100", 108, 1.41e9, 1.40e12, 40 << 20, 163 * KiB, 164 * KiB, 2048, 19.5e12, 250e12),
        Target("sm_86", "RTX 3090", 82, 1.70e9, 0.84e12, 6 << 20, 99 * KiB, 100 * KiB, 1536, 29.0e12, 57e12),
        Target("sm_89", "RTX 4090", 128, 2.52e9, 0.91e12, 72 << 20, 99 * KiB, 100 * KiB, 1536, 66.0e12, 132e12),
        Target("sm_90a", "H200", 132, 1.98e9, 4.30e12, 60 << 20, 227 * KiB, 228 * KiB, 2048, 51.0e12, 450e12, 820e12),
        Target("sm_120a", "RTX 5090", 170, 2.41e9, 1.61e12, 96 << 20, 99 * KiB, 100 * KiB, 1536, 84.0e12, 168e12),
    )
}
ALIASES: Final = {"sm_90": "sm_90a", "sm_120": "sm_120a"}


def target(name: str) -> Target:
    """The target of an architecture name (`sm_90` means `sm_90a`, `sm_120` means `sm_120a`)."""
    arch = ALIASES.get(name, name)
    if arch not in TARGETS:
        raise UsageError(f"unknown target {name!r}", f"use one of {', '.join(TARGETS)}")
    return TARGETS[arch]


def target_of_gpu(gpu: str) -> Target:
    """The target that a card's name stands for (`RTX 4090`, `h200`)."""
    for t in TARGETS.values():
        if t.gpu.replace(" ", "").lower() in gpu.replace(" ", "").lower():
            return t
    raise UsageError(f"unknown GPU {gpu!r}", f"use one of {', '.join(t.gpu for t in TARGETS.values())}")


def allowing(target: Target, asked: str) -> Target:
    """The target on which exactly what is asked for is allowed; see `emmy.arguments.allowances`."""
    names = allowances(asked)
    return replace(target, numerics="tf32" if "tf32" in names else "", atomics="atomics" in names)
