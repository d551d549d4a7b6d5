"""What a row of the `wgmma` family says: the shape of its tiles, its warpgroups and their registers.

    WORK=w8x1+p4,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d4/smem-tma/out,RASTER=gm8/persist

`w8x1`: two consumer warpgroups along m; `w1x8`: along n, so that the instruction's 64 rows lie along n and its columns
along m (for few rows); `p4`: one producer warpgroup; `+pp`: each consumer warpgroup makes every other tile alone, one
multiplies while the other stores.  `f2x1`: m64 fragments of a group.  `g4`: the four blocks of a cluster share the
summed axis and combine their sums in shared memory.  `c2`: the two blocks of a cluster lie along m and share the tiles
of the right factor, of which each brings a half to both.  `d4/smem-tma/reg`: consumers compute left factors from raw
tiles and hand them to the instruction in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emmy.ir.dtype import DTYPES
from emmy.ir.schedule import Row

GROUP: Final = 128  # threads of a warpgroup
FILE: Final = 65536  # registers of an SM
# consumer warpgroups -> registers a thread of (producer, consumers): all of an SM's, in eights
REGISTERS: Final = {1: (56, 240), 2: (40, 232), 3: (32, 160)}
BESIDE: Final = 64  # registers a consumer needs beside its sums


@dataclass(frozen=True, slots=True)
class Warpgroups:
    """`long` and `n` are the instruction's sides: rows of a block on its 64-row side, and its columns."""

    type: str
    swapped: bool
    groups: int
    fragments: int
    n: int
    steps: int
    stages: int
    parts: int
    group: int
    persist: bool
    out: bool
    pingpong: bool = False
    cluster: int = 1
    computed: bool = False

    @staticmethod
    def of(row: Row) -> Warpgroups:
        tile, stage, raster = row.tile, row.stage, row.raster
        swapped = row.work.dims[0] == 1
        return Warpgroups(
            tile.factor, swapped, row.work.dims[swapped] // 4, tile.fragment[swapped], tile.shape[1], tile.k,
            stage.depth, max(1, row.reduce.parts), raster.group, raster.persist, stage.out,
            row.work.pingpong, max(1, stage.cluster), stage.registers,
        )  # fmt: skip

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)

    @property
    def long(self) -> int:
        return 64 * self.fragments * (1 if self.pingpong else self.groups)

    @property
    def gathers(self) -> bool:
        """Consumers add up row scalars as the left factor's tiles pass: each has its own rows, and all of the sum."""
        return self.parts == 1 and not self.swapped and not self.pingpong

    @property
    def block(self) -> int:
        """Columns of results that are staged together: rows of 128, 64 or 32 bytes of a 16-bit type."""
        return next(w for w in (64, 32, 16, 8) if self.n % w == 0)

    @property
    def promotes(self) -> bool:
        """Sums of 8-bit products are added to f32 registers after every stage.

        The instruction keeps about 14 bits of them: DeepSeek-V3 technical report, section 3.3.2, which adds them to
        f32 registers every 128 elements of the sum, as a stage does here.
        """
        return DTYPES[self.type].bits == 8

    @property
    def step(self) -> int:
        """Elements of the summed axis an instruction takes."""
        return 32 // DTYPES[self.type].bytes

    @property
    def block_k(self) -> int:
        return self.steps * self.step

    def registers(self, sums: int, left: int = 0) -> tuple[int, int, int]:
        """(producer, consumers, blocks an SM): 0 registers where two blocks fit an SM as they are launched.

        `left`: registers of a thread in which left factors are computed.
        """
        need = sums * self.fragments * self.n // 2 * (2 if self.promotes else 1) + left + BESIDE
        resident = 2 if need <= FILE // (2 * self.threads) else 1
        if resident > 1 or self.swapped or self.parts > 1:
            # all threads share the work after the products, so none may give its registers away
            return 0, 0, resident
        return (*REGISTERS[self.groups], 1)


__all__ = ["GROUP", "Warpgroups"]
