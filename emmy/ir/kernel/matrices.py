"""Statements on matrices: ldmatrix, stmatrix, mma.sync and wgmma.  Fragment maps: `emmy.ir.kernel.fragments`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emmy.ir.kernel.memory import Matrix, Place
from emmy.ir.kernel.values import Target, X

# mma.sync: (shape, type of the factors) -> registers of d, a and b a lane.  d is i32 for i8, else f32.
MMA_SHAPES: Final = {
    ("m16n8k16", "bf16"): (4, 4, 2),
    ("m16n8k16", "f16"): (4, 4, 2),
    ("m16n8k8", "tf32"): (4, 4, 2),
    ("m16n8k32", "f8e4m3"): (4, 4, 2),
    ("m16n8k32", "f8e5m2"): (4, 4, 2),
    ("m16n8k32", "i8"): (4, 4, 2),
}
# wgmma: type of the factors -> elements of k an instruction takes (32 bytes).
WGMMA_K: Final = {"bf16": 16, "f16": 16, "tf32": 8, "f8e4m3": 32, "f8e5m2": 32}


@dataclass(frozen=True, slots=True)
class LdMatrix:
    """Loads 1, 2 or 4 8x8 matrices of 16-bit elements, one u32 register each; lane 8*i + r gives row r of matrix i."""

    dst: tuple[Target, ...]
    src: Place
    trans: bool = False


@dataclass(frozen=True, slots=True)
class Mma:
    """d = a * b + c on the warp's fragments, as `MMA_SHAPES` has them.  d may be c.  tf32 factors are f32 bits."""

    shape: str
    type: str
    d: tuple[Target, ...]
    a: tuple[X, ...]
    b: tuple[X, ...]
    c: tuple[X, ...]


@dataclass(frozen=True, slots=True)
class StMatrix:
    """Stores 1, 2 or 4 8x8 matrices of 16-bit elements: the inverse of LdMatrix."""

    dst: Place
    src: tuple[X, ...]
    trans: bool = False


@dataclass(frozen=True, slots=True)
class WgmmaFence:
    """Orders the warpgroup's registers and earlier wgmmas before the wgmmas that follow."""


@dataclass(frozen=True, slots=True)
class Wgmma:
    """acc[at .. at + n/2] (+)= a * b by a warpgroup: m64, `n` 8 to 256 by 8, k of `WGMMA_K`; f32 accumulators.

    `a` is a matrix [64][k] in shared memory or four u32 registers; `b` is [n][k] (`major` k) or [k][n] (mn).  Without
    `accumulate` the former accumulators are not read.  The instruction runs on until a WgmmaWait ends its group.
    """

    acc: str
    at: X
    n: int
    type: str
    a: Matrix | tuple[X, X, X, X]
    b: Matrix
    accumulate: bool = True


@dataclass(frozen=True, slots=True)
class WgmmaCommit:
    """Closes the warpgroup's current group of wgmmas."""


@dataclass(frozen=True, slots=True)
class WgmmaWait:
    """Until at most `pending` of the warpgroup's groups are in flight."""

    pending: int
