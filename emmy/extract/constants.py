"""Constants of the analytic prior, in clocks or shares, so that they scale with a card.

Their ranges are those that microbenchmarks of NVIDIA GPUs allow (Jia et al., "Dissecting the NVIDIA Volta GPU", 2018;
Luo et al., "Dissecting the NVIDIA Hopper Architecture", 2024), their values were fitted on H200 measurements by
experiments/fit_prior.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMEM_BYTES_CLOCK: Final = 128.0  # of an SM
SM_BYTES_CLOCK: Final = 64.0  # most that one SM draws from memory
SECTOR_BYTES: Final = 32.0  # least that L2 moves
# from raw fragments in shared memory to the products of their computed factors, and more of that for each fragment that
# is computed at once: 220 were measured for one alone, how they divide is an estimate
FACTOR_CLOCKS: Final = 175.0
FRAGMENT_CLOCKS: Final = 45.0
ELEMENT_CLOCKS: Final = 8.0  # of an instruction that stores elements of eight lines, an estimate: a turn a line
ROW_CLOCKS: Final = 360.0  # a thread's next 16 bytes of a row whose scalar is made before the products, measured
SPLIT_SECONDS: Final = 2.0e-6  # a finishing step after the last of several blocks
CLUSTER_SMS: Final = 0.91  # share of SMs that clusters of four take, a block an SM: 30 on an H200 by CUDA's occupancy
CLUSTER_SECONDS: Final = 0.8e-6  # the same among the blocks of a cluster
STREAMED: Final = 1.06  # time of equal shares of all tiles against whole tiles that fill their waves, an estimate
FUSED: Final = 0.5  # of counted slots at least: a multiplication and an addition become one instruction
WARP: Final = 32.0
SUBCORES: Final = 4.0  # of an SM; each has its own tensor core
PRODUCERS: Final = 4.0  # warps of a wgmma kernel that only move data


@dataclass(frozen=True, slots=True)
class Constants:
    """What microbenchmarks leave open, fitted on H200 measurements by experiments/fit_prior.py but where it is said."""

    norm: float = 2.84  # how far the roofs overlap: 1 would add them, infinity take the largest
    serial_norm: float = 3.33  # how far waiting hides behind them
    dram_clocks: float = 600.0  # from a load to its value, from memory under load
    l2_clocks: float = 280.0
    l1_clocks: float = 44.1
    l2_bytes: float = 44.0  # an SM's share of L2 bandwidth, a clock
    barrier_clocks: float = 148.0
    step_clocks: float = 175.0  # of a tiled kernel's step beside products and loads
    # the next two, and CLUSTER_SECONDS, are estimates that no fit has touched: the learned prior corrects them
    slot_clocks: float = 60.0  # the same of a step whose tile TMA brought and whose products run by themselves
    stay_clocks: float = 600.0  # from one tile of a block that stays to the next
    sync_clocks: float = 234.0  # more of such a step where threads carry the tiles by hand
    shuffle_clocks: float = 36.9
    costly_rounds: float = 3.91  # the same in shuffles where combining takes an exponential or a division
    combine_slots: float = 4.08  # instructions of such a round: shuffle and combine
    costly_slots: float = 35.4
    thread_slots: float = 17.6  # of a thread before its first element and after its last
    chain_clocks: float = 5.97  # from an instruction to the next one that needs it
    free_clocks: float = 1.92  # the same where a thread's elements are unrolled and wait for none of the others
    phases: float = 0.269  # more memory time where an SM has one block, which reads, then computes, then writes
    start_clocks: float = 2250.0  # a block's first and last instructions
    ramp_clocks: float = 2000.0  # a launch's first and last moments, when caches and SMs are empty
    block_clocks: float = 115.0  # between two blocks that an SM starts
    slot: float = 0.514  # instructions for each counted slot: fused ones, addresses, predicates, moves
    load_slots: float = 5.87  # a load or store occupies a quarter-rate pipe
    copy_slots: float = 15.5  # a copy to shared memory through registers: its load, its store, their addresses
    tile_loads: float = 9.07  # a vector read of shared memory in a product on plain threads, in multiplications
    thread_warps: float = 4.4  # warps of an SM that keep half its issue rate
    tile_warps: float = 0.5  # the same where a thread has a tile of points, and so independent instructions
    sector_clocks: float = 1.88  # of an SM's cache for each access whose neighbours lie in other sectors
    walked: float = 0.1  # share of those accesses, and of their bytes, where a thread walks along the sector itself
    wide: float = 0.347  # more traffic for each further access of a thread that takes more than one side by side
    l1_share: float = 0.641  # of an SM's shared memory and cache that rows in flight may take
    l2_share: float = 0.499


FITTED: Final = Constants()
