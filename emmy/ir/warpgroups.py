"""What a row of the `wgmma` family says: the shape of its tiles, its warpgroups and their registers.

    WORK=w8x1+p4,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d4/smem-tma/out,RASTER=gm8/persist

`w8x1`: two consumer warpgroups along m; `w1x8`: along n, so that the instruction's 64 rows lie along n and its columns
along m (for few rows); `p4`: one producer warpgroup; `+pp`: each consumer warpgroup makes every other tile alone, one
multiplies while the other stores.  `f2x1`: m64 fragments of a group.  `g4`: the four blocks of a cluster share the
summed axis and combine their sums in shared memory; `g8` and more, and `g4a`: blocks do so through a workspace; `sk`:
blocks that stay take equal shares of the stages of all tiles.  `c2`: the two blocks of a cluster lie along m and share
the tiles of the right factor, of which each brings a half to both.  `d4/smem-tma/reg`: consumers compute left factors
from raw tiles and hand them to the instruction in registers.  `/out`: results leave through shared memory, by TMA or,
where it cannot store them, line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from emmy.ir.dtype import DTYPES, DType, stored_as
from emmy.ir.kernel import WGMMA_K
from emmy.ir.schedule import Row

GROUP: Final = 128  # threads of a warpgroup
FILE: Final = 65536  # registers of an SM
# consumer warpgroups -> registers a thread of (producer, consumers): all of an SM's, in eights
REGISTERS: Final = {1: (56, 240), 2: (40, 232), 3: (32, 160)}
CLUSTER: Final = 4  # blocks at most that share a sum in their shared memory
MOST: Final = 248  # registers of a thread
BESIDE: Final = 64  # registers a consumer needs beside its sums
SPARE: Final = 20  # of these, registers that factors of further steps may take: four kernels took 34 to 37
LINES: Final = 8  # of results that a warp stores at a time where TMA cannot
PAD: Final = 8  # elements beside such a line: stmatrix takes chunks of 16 bytes


@dataclass(frozen=True, slots=True)
class Warpgroups:
    """`long` and `n` are the instruction's sides: rows of a block on its 64-row side, and its columns.

    `parts` blocks of a cluster share a sum, or `shared` blocks through a workspace (`atomic`: they add to one total);
    `stream`: blocks share the work, and the sum of a tile where one's share ends in it.
    """

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
    shared: int = 1
    atomic: bool = False
    stream: bool = False

    @staticmethod
    def of(row: Row) -> Warpgroups:
        tile, stage, raster, reduce = row.tile, row.stage, row.raster, row.reduce
        together, atomic = max(1, reduce.parts), reduce.finish == "a"
        in_cluster = together <= CLUSTER and not atomic
        swapped = row.work.dims[0] == 1
        return Warpgroups(
            tile.factor, swapped, row.work.dims[swapped] // 4, tile.fragment[swapped], tile.shape[1], tile.k,
            stage.depth, together if in_cluster else 1, raster.group, raster.persist, stage.out,
            row.work.pingpong, max(1, stage.cluster), stage.registers, 1 if in_cluster else together, atomic,
            reduce.stream,
        )  # fmt: skip

    @property
    def threads(self) -> int:
        return GROUP * (self.groups + 1)

    @property
    def long(self) -> int:
        return 64 * self.fragments * (1 if self.pingpong else self.groups)

    @property
    def gathers(self) -> bool:
        """Consumers add up row scalars as the left factor's tiles pass: each has its own rows, and all of the sum.

        Or it has its block's share of the sum: the blocks of a cluster tell one another what they add up.
        """
        whole = self.shared == 1 and not self.stream
        return whole and not self.swapped and not self.pingpong

    def told(self, passing: int) -> int:
        """Bytes in which a block keeps what the others of its cluster add up of `passing` row scalars."""
        return 4 * passing * (self.parts - 1) * self.long if self.gathers else 0

    @property
    def block(self) -> int:
        """Columns of results that are staged together: rows of 128, 64 or 32 bytes of a 16-bit type."""
        return next(w for w in (64, 32, 16, 8) if self.n % w == 0)

    @property
    def stored(self) -> DType:
        """The type in which factors lie in memory."""
        return DTYPES[stored_as(self.type)]

    @property
    def line_bytes(self) -> int:
        """Shared memory of one 16-bit result's lines on their way to memory."""
        return 4 * self.groups * LINES * (self.n + PAD) * 2

    @property
    def promotes(self) -> bool:
        """Sums of 8-bit products are added to f32 registers after every stage.

        The instruction keeps about 14 bits of them: DeepSeek-V3 technical report, section 3.3.2, which adds them to
        f32 registers every 128 elements of the sum, as a stage does here.
        """
        return self.stored.bits == 8

    @property
    def step(self) -> int:
        """Elements of the summed axis an instruction takes."""
        return WGMMA_K[self.type]

    @property
    def block_k(self) -> int:
        return self.steps * self.step

    def registers(self, sums: int, left: int = 0) -> tuple[int, int, int]:
        """(producer, consumers, blocks an SM): 0 registers where two blocks fit an SM as they are launched.

        `left`: registers of a thread in which left factors are computed.
        """
        resident = 2 if self._needs(sums, left) <= FILE // (2 * self.threads) else 1
        if resident > 1 or self.swapped or self.parts > 1:
            # all threads share the work after the products, so none may give its registers away
            return 0, 0, resident
        return (*REGISTERS[self.groups], 1)

    def at_once(self, sums: int, left: Callable[[int], int]) -> int:
        """Steps of a tile whose left factors are computed together: up to half of them, as long as they fit registers.

        Where two blocks would fit an SM with one step at a time, more of them may leave it one.

        `left(steps)`: registers of a thread in which those of so many steps are computed.
        """
        _, given, resident = self.registers(sums, left(1))
        room = SPARE + (given or min(MOST, FILE // (resident * self.threads) // 8 * 8))
        more = [
            d for d in range(2, self.steps // 2 + 1) if self.steps % (2 * d) == 0 and self._needs(sums, left(d)) <= room
        ]
        return max(more, default=1)

    def _needs(self, sums: int, left: int) -> int:
        return sums * self.fragments * self.n // 2 * (2 if self.promotes else 1) + left + BESIDE


def deposits_beyond(rings: Sequence[int], deposits: Sequence[int]) -> int:
    """Bytes that deposited sums take beside the operands' rings, which they overlay: the first the largest ring."""
    largest = sorted(rings, reverse=True)[: len(deposits)]
    return sum(max(0, d - r) for d, r in zip_longest(deposits, largest, fillvalue=0))


__all__ = ["GROUP", "LINES", "PAD", "Warpgroups", "deposits_beyond"]
