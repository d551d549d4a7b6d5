"""The analytic prior: seconds of a launch from its work, its schedule's shape and the card's table.

A roofline whose roofs are lowered by what a schedule does to them:

    memory     bytes / bandwidth that the bytes in flight can draw (Little's law), unique bytes once a wave
    cache      bytes between L2 and the SMs, every block's reads counted
    tensor     padded FLOPs / rate of the blocks that run at once
    scalar     instruction slots, recomputation included / issue rate
    shared     fragment and reduction traffic / 128 bytes a clock of an SM
    latency    serial steps of a block times the waves of blocks

The terms overlap, so the time is their p-norm, between their maximum and their sum: no term is ever cut off, and a
difference in any of them shows.  Wave quantization multiplies what blocks do in parallel.  Constants are round figures
from microbenchmarks of NVIDIA GPUs (Jia et al., "Dissecting the NVIDIA Volta GPU", 2018; Luo et al., "Dissecting the
NVIDIA Hopper Architecture", 2024), in clocks, so that they scale with the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

import numpy as np
import numpy.typing as npt

from emmy.extract.work import Work
from emmy.ir.config import KernelConfig
from emmy.ir.target import Target

Array = npt.NDArray[np.float64]

NORM: Final = 4.0  # how far the terms overlap: 1 would add them, infinity take the largest
DRAM_CLOCKS: Final = 800.0  # from a load to its value, from memory
L2_CLOCKS: Final = 280.0
L2_BYTES_CLOCK: Final = 40.0  # an SM's share of L2 bandwidth
SMEM_BYTES_CLOCK: Final = 128.0
SM_BYTES_CLOCK: Final = 64.0  # most that one SM draws from L2 or memory
BARRIER_CLOCKS: Final = 40.0
SHUFFLE_CLOCKS: Final = 25.0
ADD_CLOCKS: Final = 4.0  # a dependent addition
LOAD_SLOTS: Final = 4.0  # a load or store occupies a quarter-rate pipe
TILE_LOADS: Final = 1.4  # shared-memory load slots for a multiplication where a thread holds one point
BLOCK_CLOCKS: Final = 600.0  # launching a block and its first instructions
SPLIT_SECONDS: Final = 2.0e-6  # a finishing step after the last of several blocks
SECTOR_BYTES: Final = 32.0  # least that L2 moves
STRIDED_BYTES: Final = 4.0  # how much more an access moves whose neighbours are not neighbours in memory

CONTRACTIONS: Final = ("tile", "mma", "attention")


def roofline(work: Work, target: Target) -> float:
    """Seconds that no schedule of this work can beat: the largest roof plus the constant of a launch."""
    return target.launch_seconds + max(
        work.bytes / target.bandwidth,
        work.tensor_flops / target.flops_mma16,
        work.scalar_flops / target.flops_f32,
        sum(work.slots) / (target.flops_f32 / 2),
    )


def predict(work: Work, config: KernelConfig, target: Target) -> float:
    """Seconds of one launch, never below `roofline`."""
    return float(predict_many(work, (config,), target)[0])


def predict_many(work: Work, configs: Sequence[KernelConfig], target: Target) -> Array:
    """Seconds for each config, in one pass over arrays."""
    return _Model(work, configs, target).seconds()


class _Columns:
    """The configs' fields as float arrays."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        self.family = np.array([c.family for c in configs])
        for f in fields(KernelConfig):
            if f.name != "family":
                setattr(self, f.name, np.array([float(getattr(c, f.name)) for c in configs]))

    block_threads: Array
    blocks: Array
    tile_m: Array
    tile_n: Array
    tile_k: Array
    vector: Array
    stages: Array
    smem: Array
    registers: Array
    rows_per_block: Array
    reduce_threads: Array
    splits: Array

    def of(self, *families: str) -> npt.NDArray[np.bool_]:
        return np.isin(self.family, families)


class _Model:
    def __init__(self, work: Work, configs: Sequence[KernelConfig], target: Target) -> None:
        self.work, self.t = work, target
        self.c = _Columns(configs)
        # a thread an output reads one element at a time, whatever the widest access could be
        self.c.vector = np.where(self.c.of("plain"), np.minimum(self.c.vector, work.element), self.c.vector)
        self.is_tiled = self.c.of(*CONTRACTIONS)
        self.is_row = self.c.of("row", "scan", "split") & (self.c.reduce_threads > 1)
        self.is_mma = self.c.of("mma", "attention")
        self.flat = work.points / np.maximum(1.0, self.c.blocks)
        self._resources()

    # ---- what runs at once -----------------------------------------------------------------------------------------

    def _resources(self) -> None:
        c, t = self.c, self.t
        threads = np.maximum(1.0, c.block_threads)
        registers = threads * np.maximum(16.0, c.registers)
        limits = [
            t.threads_sm / threads,
            t.registers_sm / registers,
            t.smem_sm / (c.smem + 1024.0),
            32.0 + 0.0 * threads,
        ]
        # fractions of a block count: of two rows with one occupancy the one that needs less is a little better off
        self.resident = np.maximum(1.0, 0.9 * np.floor(np.min(limits, axis=0)) + 0.1 * np.min(limits, axis=0))
        self.spread = np.minimum(self.resident, np.maximum(1.0, c.blocks / t.sms))
        self.active = np.minimum(float(t.sms), np.maximum(1.0, c.blocks))
        self.waves = np.maximum(1.0, np.ceil(c.blocks / (t.sms * self.resident)))
        # the fullest SM's share of the blocks against the average one's
        self.quantized = np.ceil(c.blocks / t.sms) * t.sms / np.maximum(1.0, c.blocks)
        self.quantized = np.where(c.blocks > 8 * t.sms, np.minimum(self.quantized, 1.1), self.quantized)

    def _busy(self, half: float) -> Array:
        """Share of an SM's issue rate that its resident warps keep up, half of it at `half` warps."""
        warps = self.spread * self.c.block_threads / 32.0
        share: Array = warps / (warps + half)
        return share

    # ---- how often a value is made ---------------------------------------------------------------------------------

    def _again(self, group: int, shared: bool) -> Array:
        """Times that values of a group are made (or read, `shared`: through a block's cache) in the whole launch."""
        g, c = self.work.groups[group], self.c
        tile_n = np.where(c.family == "attention", np.inf, c.tile_n)
        tiled = np.ceil(g.m / c.tile_m) * np.maximum(1.0, np.ceil(g.n / tile_n)) * g.b
        row = np.ceil(g.rows / np.maximum(1.0, c.rows_per_block)) + 0.0 * c.tile_m
        own = np.maximum(1.0, c.vector / self.work.element) if not shared else np.maximum(1.0, self.flat)
        flat = g.extent / np.clip(own / g.inner, 1.0, g.extent)
        times: Array = np.where(self.is_tiled, tiled, np.where(self.is_row, row, flat))
        return times

    # ---- roofs -----------------------------------------------------------------------------------------------------

    def _held(self) -> npt.NDArray[np.bool_]:
        """Rows that a block keeps in registers or shared memory between passes."""
        c, w = self.c, self.work
        each = w.fold_length * np.maximum(1.0, c.rows_per_block) / np.maximum(1.0, c.block_threads)
        held: npt.NDArray[np.bool_] = self.is_row & (
            (each <= c.registers - 20.0) | (c.smem >= w.fold_length * w.element * c.rows_per_block)
        )
        return held

    def _traffic(self) -> tuple[Array, Array]:
        """(bytes from memory, bytes through L2) of the launch."""
        w, c, t = self.work, self.c, self.t
        zero = np.zeros(len(c.blocks))
        held = self._held()
        # each row of a tile's results ends in a sector that another block may write too
        ragged = np.where(self.is_tiled, 1.0 + 0.5 * SECTOR_BYTES / (c.tile_n * w.element), 1.0)
        through = w.stored * ragged * (STRIDED_BYTES if w.strided_store else 1.0)
        memory = zero + w.stored
        for slot, footprint in enumerate(w.footprint):
            total, largest = zero, zero
            for read in (r for r in w.reads if r.slot == slot):
                wide = np.where(self.is_tiled, 1.0, STRIDED_BYTES if read.strided else 1.0)
                # what follows the fold's axis is not strided where threads share the fold
                wide = np.where(self.is_row & read.strided, 1.0 + 0.25 * (STRIDED_BYTES - 1.0), wide)
                moved = read.bytes * self._again(read.group, True) * wide
                total = total + moved * read.passes
                largest = np.maximum(largest, moved)
            moved = np.maximum(footprint, np.where(held, largest, total))
            through = through + moved
            # a wave reads each byte once from memory; L2 keeps what fits of it for the next wave
            lost = footprint / (footprint + 0.7 * t.l2_bytes)
            memory = memory + np.minimum(moved, footprint * (1.0 + lost * self._wave_passes(slot)))
        splits = np.where(c.splits > 1, 2.0 * 4.0 * w.points * c.splits, 0.0)
        return memory + 0.25 * splits, through + splits

    def _wave_passes(self, slot: int) -> Array:
        """How many times a launch walks over an operand again, a wave at a time (blocks in a square of tiles)."""
        w, c = self.work, self.c
        groups = [w.groups[r.group] for r in w.reads if r.slot == slot]
        again_m = max((g.m for g in groups), default=1)
        again_n = max((g.n for g in groups), default=1)
        side = np.sqrt(self.t.sms * self.resident)
        passes = (again_m / (c.tile_m * side)) + (again_n / (c.tile_n * side))
        walked: Array = np.where(self.is_tiled, passes, 0.0)
        return walked

    def _memory_seconds(self, memory: Array, through: Array) -> tuple[Array, Array]:
        w, c, t = self.work, self.c, self.t
        per_thread = np.maximum(1.0, w.bytes / np.maximum(1.0, c.blocks * c.block_threads) / c.vector)
        flight = c.block_threads * c.vector * np.minimum(per_thread, np.where(self.is_row, 8.0, 4.0))
        staged = (c.tile_m + c.tile_n) * c.tile_k * w.element * np.maximum(1.0, c.stages - 1.0)
        flight = self.spread * np.where(self.is_tiled, staged, flight)
        drawn = flight / (DRAM_CLOCKS / t.clock)
        most = SM_BYTES_CLOCK * t.clock
        per_sm = (drawn**-NORM + most**-NORM) ** (-1 / NORM)
        reach = self.active * per_sm
        bandwidth = (reach**-NORM + t.bandwidth**-NORM) ** (-1 / NORM)
        cache = self.active * (
            (drawn * DRAM_CLOCKS / L2_CLOCKS) ** -NORM + (L2_BYTES_CLOCK * t.clock) ** -NORM
        ) ** (-1 / NORM)  # fmt: skip
        return memory / bandwidth, through / cache

    def _tensor_seconds(self) -> tuple[Array, Array, Array]:
        """(tensor pipe, scalar pipe, shared memory) seconds of the products."""
        w, c, t = self.work, self.c, self.t
        zero = np.zeros(len(c.blocks))
        tensor, slots, smem = zero, zero, zero
        warps = np.maximum(1.0, c.block_threads / 32.0)
        for d in w.dots:
            flops = d.flops * self._again(d.group, False)
            padded = flops * np.where(
                self.is_tiled & d.main, _pad(d.m, c.tile_m) * _pad(d.n, self._tile_columns(d.n)), 1.0
            )
            on_tensor = self.is_mma & d.tensor
            tensor = tensor + np.where(on_tensor, padded, 0.0)
            # fragments that a warp loads for each step, if warps share the tile as a square
            tile = np.maximum(1.0, c.tile_m * c.tile_n)
            fragment = 2.0 * 2.0 * np.sqrt(warps * tile) / (2.0 * tile)
            smem = smem + np.where(on_tensor, padded * fragment, 0.0)
            points = np.where(c.family == "tile", np.maximum(1.0, tile / np.maximum(1.0, c.block_threads)), 1.0)
            loads = np.where(c.family == "tile", TILE_LOADS / np.sqrt(points), self._thread_loads(d.n))
            slots = slots + np.where(on_tensor, 0.0, padded / 2.0 * (1.0 + loads))
        return tensor / t.flops_mma16, slots, smem / (SMEM_BYTES_CLOCK * t.sms * t.clock)

    def _thread_loads(self, n: int) -> Array:
        """Load slots for each multiplication where both factors come through the cache, some of them as vectors."""
        wide = np.maximum(1.0, self.c.vector / self.work.element)
        slots: Array = (2.0 if n > 1 else 1.0) * LOAD_SLOTS / wide
        return slots

    def _tile_columns(self, n: int) -> Array:
        columns: Array = np.where(self.c.family == "attention", float(n), self.c.tile_n)
        return columns

    def _slots(self) -> Array:
        w, c = self.work, self.c
        total = np.zeros(len(c.blocks))
        for g, slots in enumerate(w.slots):
            total = total + slots * self._again(g, False)
        return total

    def _access_slots(self, through: Array) -> Array:
        slots: Array = through / np.maximum(1.0, self.c.vector) * LOAD_SLOTS
        return slots

    # ---- latency ---------------------------------------------------------------------------------------------------

    def _latency_seconds(self) -> Array:
        """A block's serial steps, times the waves of blocks."""
        w, c, t = self.work, self.c, self.t
        share = np.maximum(1.0, c.reduce_threads) * np.maximum(1.0, c.splits)
        wide = np.maximum(1.0, c.vector / w.element)
        serial = w.depth / share
        flat = serial * (ADD_CLOCKS + L2_CLOCKS / (4.0 * wide))
        steps = serial / np.maximum(1.0, np.where(self.is_tiled, self._step_length(), 1.0))
        tiled = steps * (BARRIER_CLOCKS + L2_CLOCKS / np.maximum(1.0, c.stages)) + DRAM_CLOCKS
        rounds = np.log2(np.minimum(32.0, np.maximum(1.0, c.reduce_threads)))
        joined = np.where(c.reduce_threads > 32, 2.0 * BARRIER_CLOCKS + 5.0 * SHUFFLE_CLOCKS, 0.0)
        reduce = max(1, w.levels) * (rounds * SHUFFLE_CLOCKS + joined) * np.sqrt(np.maximum(1.0, c.rows_per_block))
        clocks = BLOCK_CLOCKS + np.where(self.is_tiled, tiled, DRAM_CLOCKS + flat + reduce)
        seconds: Array = self.waves * clocks / t.clock + np.where(c.splits > 1, SPLIT_SECONDS, 0.0)
        return seconds

    def _step_length(self) -> Array:
        """Elements of the outermost fold that one step of a tiled kernel takes (attention: its key tile, and in each
        of those the whole score product)."""
        inner = self.work.depth / max(1.0, float(self.work.fold_length))
        length: Array = np.where(self.c.family == "attention", self.c.tile_n * inner, self.c.tile_k)
        return length

    # ---- together --------------------------------------------------------------------------------------------------

    def seconds(self) -> Array:
        c, t = self.c, self.t
        memory_bytes, through = self._traffic()
        memory, cache = self._memory_seconds(memory_bytes, through)
        tensor, dot_slots, smem = self._tensor_seconds()
        slots = dot_slots + self._slots() + np.where(self.is_tiled, 0.25, 1.0) * self._access_slots(through)
        # a tile of points a thread hides its own latency
        scalar = (
            slots / (t.flops_f32 / 2.0) / np.where(self.is_tiled, self._busy(1.0), self._busy(4.0)) * self.quantized
        )
        tensor = tensor / self._busy(1.0) * self.quantized
        terms = np.stack([memory, cache, tensor, scalar, smem * self.quantized, self._latency_seconds()])
        overlapped = np.sum(terms**NORM, axis=0) ** (1 / NORM)
        # one stage means that copying and computing take turns
        turns = np.where(self.is_tiled & (c.stages <= 1), 0.5 * np.minimum(tensor + scalar, memory + cache), 0.0)
        # what the terms cannot tell apart: the row that leaves more of the SM to others
        frugal = 1.0 + 1e-4 * (c.registers / t.registers_thread + c.smem / t.smem_sm + c.block_threads / t.threads_sm)
        total: Array = t.launch_seconds + (overlapped + turns) * frugal
        return total


def _pad(extent: int, tile: Array) -> Array:
    """Points that whole tiles cover, for each point that there is."""
    tile = np.maximum(1.0, tile)
    padded: Array = np.ceil(extent / tile) * tile / extent
    return padded


__all__ = ["predict", "predict_many", "roofline"]
