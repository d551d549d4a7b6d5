"""What a schedule row means for cost: the resources and the shape of one launch, free of its spelling.

The schedule code turns a row into a `KernelConfig` for given sizes; `emmy.extract.prior` turns a body's work and a
config into seconds.  Nothing here is checked for legality: the schedule rules do that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["map", "row", "plain", "tile", "mma", "wgmma", "attention", "scan", "split"]


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """One launch of a kernel family, at concrete sizes.

    `family`: `map` element-wise (with tile_m > 1, square tiles turned in shared memory); `row` a reduction shared by
    the threads of a block; `plain` a thread an output with serial folds; `tile` a contraction on plain threads; `mma` a
    contraction on tensor cores; `wgmma` the same by warpgroups (Hopper); `attention` the online fold over two
    contractions; `scan`; `split` the partial launch of a split reduction (its folds run over one part).

    `block_threads`, `blocks` (the whole grid), `stages` (buffers in flight), `smem` (bytes a block, static and dynamic)
    and `registers` (estimated, a thread) are resources.  `tile_m` x `tile_n` output points belong to one block and
    `tile_k` steps of the folded axis are staged at a time (tile, mma, attention: query tile, key tile, head size; map:
    tile_m = 1, tile_n = points a block covers).  `vector` is the bytes of one global access of a thread.
    `rows_per_block` rows are reduced by one block, `reduce_threads` threads share one fold (1: serial), `splits` blocks
    share one fold (each reads a part and the partial results are combined).

    `run`: bytes that a thread takes side by side, in several accesses where they are more than `vector` (0: `vector`).
    `flight`: bytes that a thread of a row kernel asks for before it waits (0: one access); those of the left factors
    that a thread computes together (wgmma). `held`: rows stay in registers between passes (tile, wgmma: factors are in
    registers a step ahead); registers above what a thread has are spilled. `direct`: tiles are copied to shared memory
    past the registers. `hold_m` x `hold_n`: the points of a tile that a worker holds (a warp's, or a thread's where
    products are made on plain threads; 0: about as many in each direction); one thread's columns in `attention` on
    plain threads. `group`: rows of tiles that blocks which start together cover (0: the grid's rows one by one).
    `persist` blocks stay for several tiles, `turns` between two groups
    of warps (ping-pong); `shares` blocks of a cluster read a tile together; `staged` results leave through shared
    memory; `swapped`: the second factor lies along the instruction's rows (wgmma). `bits` of a factor on tensor cores:
    half of them, twice the rate. `exchange`: bytes of partial sums that the blocks which share a sum write and read
    through memory of the launch's own (0 where a cluster or another launch combines them). `stream`: blocks that stay
    take equal shares of all stages, so that no wave is left unfilled. `apart`: results go from registers to lines that
    begin anywhere, an element of eight lines at a time (wgmma).
    """

    family: Family
    block_threads: int
    blocks: int
    tile_m: int = 1
    tile_n: int = 1
    tile_k: int = 1
    vector: int = 4
    stages: int = 1
    smem: int = 0
    registers: int = 32
    rows_per_block: int = 1
    reduce_threads: int = 1
    splits: int = 1
    run: int = 0
    flight: int = 0
    held: bool = False
    direct: bool = True
    hold_m: int = 0
    hold_n: int = 0
    group: int = 0
    persist: bool = False
    turns: bool = False
    shares: int = 1
    staged: bool = False
    swapped: bool = False
    bits: int = 16
    exchange: int = 0
    stream: bool = False
    apart: bool = False
