"""The analytic prior: seconds of a launch from its work, its schedule's shape and the card's table.

A roofline whose roofs are lowered by what a schedule does to them:

    memory     bytes / bandwidth that the bytes in flight can draw (Little's law); what is read again and fits no cache
    cache      bytes between L2 and the SMs: every block's reads, whole sectors of 32 bytes where neighbours lie apart
    tensor     padded FLOPs / rate of the warps that run at once
    scattered  accesses whose neighbours lie in other sectors, some clocks of an SM's cache each
    scalar     instruction slots, recomputation and copies by hand included / issue rate
    shared     what warps read from shared memory / 128 bytes a clock of an SM
    blocks     an SM starts a block every so many clocks
    serial     what a block waits for, times the waves of blocks: loads that arrive one after another, combining partial
               results, the chain of a thread's own instructions, row scalars that are made before a tiled kernel's
               products, and its steps along the folded axis

The first seven overlap, so their time is a p-norm, between their maximum and their sum: no term is ever cut off, and a
difference in any of them shows.  Blocks that share an SM hide each other's waiting, but not all of it: the serial time
joins by a second norm.  A block that has all its elements in registers reads, computes and writes in phases, during
which memory idles unless others share its SM.  A tiled kernel with s stages has s - 1 tiles in flight: one step takes
no less than (its products + a load's latency) / (s - 1), so two stages hide nothing and three hide one step.
Where warpgroups compute left factors, products wait for them, some fragments at a time; elements that leave their
registers for lines which begin anywhere are stored after the products.
The constants: `emmy.extract.constants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from emmy.extract.columns import Array, Columns, Mask
from emmy.extract.constants import (
    CLUSTER_SECONDS,
    CLUSTER_SMS,
    ELEMENT_CLOCKS,
    FACTOR_CLOCKS,
    FITTED,
    FRAGMENT_CLOCKS,
    FUSED,
    PRODUCERS,
    ROW_CLOCKS,
    SECTOR_BYTES,
    SM_BYTES_CLOCK,
    SMEM_BYTES_CLOCK,
    SPLIT_SECONDS,
    STREAMED,
    SUBCORES,
    WARP,
    Constants,
)
from emmy.extract.work import Read, Work
from emmy.ir.config import KernelConfig
from emmy.ir.target import Target
from emmy.ir.warpgroups import GROUP

CONTRACTIONS: Final = ("tile", "mma", "wgmma", "attention")
TERMS: Final = (
    "seconds", "memory", "cache", "scattered", "tensor", "scalar", "shared", "started", "roofs", "waited", "serial",
    "memory_bytes", "through", "steps", "waves", "resident", "warps", "active", "quantized", "alone",
)  # fmt: skip


def roofline(work: Work, target: Target) -> float:
    """Seconds that no schedule of this work can beat: the largest roof plus the constant of a launch."""
    return target.launch_seconds + max(
        work.bytes / target.bandwidth,
        work.tensor_time / max(target.flops_mma16, target.flops_wgmma16),
        work.scalar_flops / target.flops_products,
        FUSED * (sum(work.slots) - sum(work.kept)) / (target.flops_f32 / 2),
    )


def predict(work: Work, config: KernelConfig, target: Target) -> float:
    """Seconds of one launch, never below `roofline`."""
    return float(predict_many(work, (config,), target)[0])


def predict_many(
    work: Work, configs: Sequence[KernelConfig], target: Target, constants: Constants = FITTED
) -> Array:  # fmt: skip
    """Seconds for each config, in one pass over arrays."""
    return _Model(work, configs, target, constants).seconds()


def terms_many(work: Work, configs: Sequence[KernelConfig], target: Target) -> tuple[dict[str, Array], Columns]:
    """What the model's answer is made of, for each config, in one pass: `TERMS` by name, and the configs' columns."""
    model = _Model(work, configs, target, FITTED)
    return model.terms(), model.c


def _norm(terms: Sequence[Array], p: float) -> Array:
    total: Array = np.sum(np.stack(terms) ** p, axis=0) ** (1 / p)
    return total


class _Model:
    def __init__(self, work: Work, configs: Sequence[KernelConfig], target: Target, constants: Constants) -> None:
        self.work, self.t, self.k = work, target, constants
        self.c = c = Columns(configs)
        # a thread an output reads one element at a time, whatever the widest access could be
        c.vector = np.where(c.of("plain"), np.minimum(c.vector, work.element), c.vector)
        c.run = np.maximum(c.run, c.vector)
        # attention on plain threads holds some columns of one query in a thread
        by_threads = c.of("attention") & (c.hold_m == 1.0)
        self.is_tiled = c.of(*CONTRACTIONS) & ~by_threads
        self.is_row = (c.of("row", "split") & (c.reduce_threads > 1)) | c.of("scan")
        self.is_wgmma = c.of("wgmma")
        self.is_mma = (c.of("mma", "attention") & ~by_threads) | self.is_wgmma
        # a map whose blocks are square tiles turns them in shared memory
        self.is_turned = c.of("map") & (c.tile_m > 1.0)
        side = np.sqrt(np.maximum(1.0, c.tile_m * c.tile_n / np.maximum(1.0, self._workers())))
        self.hold_m = np.where(c.hold_m > 0, c.hold_m, side)
        self.hold_n = np.where(c.hold_n > 0, c.hold_n, side)
        self.flat = work.points / np.maximum(1.0, c.blocks)
        self._resources()

    def _workers(self) -> Array:
        """Warps of a block, or its threads where each makes products by itself."""
        workers: Array = np.where(self.is_mma, self.c.block_threads / WARP, self.c.block_threads)
        return workers

    # ---- what runs at once -----------------------------------------------------------------------------------------

    def _resources(self) -> None:
        c, t = self.c, self.t
        threads = np.maximum(1.0, c.block_threads)
        registers = threads * np.clip(c.registers, 16.0, t.registers_thread)
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
        in_cluster = c.of("wgmma") & (c.exchange == 0.0)
        cluster = np.maximum(c.shares, np.where(in_cluster, c.splits, 1.0))
        # clusters lie within a group of SMs, of which the last few hold none of four blocks
        sms = np.where(cluster > 2.0, CLUSTER_SMS * t.sms, t.sms)
        waves = c.blocks / (sms * self.resident)
        # blocks start as others end, so the last wave is rarely a whole one
        self.waves = np.maximum(1.0, 0.5 * (waves + np.ceil(waves)))
        self.waves = np.where(c.stream == 1.0, np.maximum(1.0, waves), self.waves)
        # the fullest SM's share of the blocks against the average one's
        self.quantized = np.ceil(c.blocks / sms) * t.sms / np.maximum(1.0, c.blocks)
        self.quantized = np.where(c.blocks > 8 * t.sms, np.minimum(self.quantized, 1.1), self.quantized)
        self.quantized = np.where(c.stream == 1.0, STREAMED, self.quantized)
        self.warps = self.spread * np.ceil(threads / WARP)

    # ---- how often a value is made ---------------------------------------------------------------------------------

    def _again(self, group: int, shared: bool) -> Array:
        """Times that values of a group are made (or read, `shared`: through a block's cache) in the whole launch."""
        g, c = self.work.groups[group], self.c
        tile_n = np.where(c.family == "attention", np.inf, c.tile_n)
        tiled = np.ceil(g.m / c.tile_m) * np.maximum(1.0, np.ceil(g.n / tile_n)) * g.b
        # threads of a row kernel share what they read with other rows, never what they compute
        together = np.maximum(1.0, c.rows_per_block) if shared else np.ones(len(c.blocks))
        row = np.ceil(g.rows / together)
        own = np.maximum(c.vector / self.work.element, c.hold_n) if not shared else np.maximum(1.0, self.flat)
        flat = g.extent / np.clip(own / g.inner, 1.0, g.extent)
        times: Array = np.where(self.is_tiled, tiled, np.where(self.is_row, row, flat))
        return times

    # ---- roofs -----------------------------------------------------------------------------------------------------

    def _sectors(self, read: Read) -> Array:
        """Bytes that move for each byte of a read: whole sectors where threads take small parts of them."""
        c = self.c
        small = np.maximum(1.0, SECTOR_BYTES / np.maximum(1.0, c.run * c.reduce_threads))
        if read.crossed:
            # rows of a block that are neighbours in memory find a sector in L1
            small = np.maximum(1.0, SECTOR_BYTES / read.element / np.maximum(1.0, c.rows_per_block))
        apart = 1.0 + (SECTOR_BYTES / read.element - 1.0) * self._apart(read)
        moved: Array = np.where(self.is_row, small, apart) * self._spread_runs()
        return np.where(self.is_tiled | self.is_turned, 1.0, moved)

    def _spread_runs(self) -> Array:
        """More traffic where a thread takes its bytes side by side by several accesses."""
        more: Array = 1.0 + self.k.wide * np.maximum(0.0, self.c.run / 16.0 - 1.0)
        return more

    def _apart(self, read: Read) -> Array:
        """Share of a read's accesses whose neighbours lie in other sectors."""
        share = (self.k.walked if read.walked else 1.0) if read.strided else 0.0
        of_row = 1.0 if read.crossed else 0.0
        apart: Array = np.where(self.is_row, of_row, np.where(self.is_tiled | self.is_turned, 0.0, share))
        return apart

    def _scattered_seconds(self) -> Array:
        """An SM's cache takes such accesses a sector at a time."""
        total = np.zeros(len(self.c.blocks))
        for r in self.work.reads:
            total = total + r.bytes / r.element * r.passes * self._again(r.group, True) * self._apart(r)
        clocks: Array = total * self.k.sector_clocks / self.active
        return clocks / self.t.clock

    def _lines_seconds(self) -> Array:
        """An instruction that stores an element of each of eight lines takes as many turns, after the products."""
        clocks = self.work.stored / self.work.element / WARP * ELEMENT_CLOCKS / self.active
        return np.where(self.c.apart == 1.0, clocks / self.t.clock, 0.0)

    def _lost(self) -> tuple[Array, Array]:
        """Share of what a row kernel reads again that has left L1, and L2: all rows in flight must fit."""
        w, c, t, k = self.work, self.c, self.t, self.k
        rows = self.spread * np.maximum(1.0, c.rows_per_block) * w.fold_length * w.element
        l1 = rows / (k.l1_share * t.smem_sm)
        l2 = rows * self.active / (k.l2_share * t.l2_bytes)
        return l1**3 / (1.0 + l1**3), l2**3 / (1.0 + l2**3)

    def _traffic(self) -> tuple[Array, Array]:
        """(bytes from memory, bytes through L2) of the launch."""
        w, c, t = self.work, self.c, self.t
        zero = np.zeros(len(c.blocks))
        lost_l1, lost_l2 = self._lost()
        # each row of a tile's results ends in a sector that another block may write too
        ragged = np.where(self.is_tiled, 1.0 + 0.5 * SECTOR_BYTES / (c.tile_n * w.element), 1.0)
        strided = np.where(self.is_turned | self.is_tiled | (not w.strided_store), 1.0, SECTOR_BYTES / w.element)
        through = w.stored * ragged * strided * self._spread_runs()
        memory = zero + w.stored
        for slot, footprint in enumerate(w.footprint):
            total, largest = zero, zero
            for read in (r for r in w.reads if r.slot == slot):
                moved = read.bytes * self._again(read.group, True) * self._sectors(read)
                total = total + moved * read.passes
                largest = np.maximum(largest, moved)
            more = np.where(self.is_row & (c.held == 1.0), 0.0, total - largest)
            through = through + np.maximum(footprint, largest + more * np.where(self.is_row, lost_l1, 1.0))
            # a wave reads each byte once from memory; L2 keeps what fits of it for the next wave
            lost = footprint / (footprint + 0.7 * t.l2_bytes)
            waves = np.minimum(largest + more, footprint * (1.0 + lost * self._wave_passes(slot)))
            memory = memory + np.where(self.is_row, footprint + more * lost_l1 * lost_l2, waves)
        by_launch = (c.splits > 1) & ~self.is_wgmma & (c.exchange == 0)
        splits = np.where(by_launch, 2.0 * 4.0 * w.points * c.splits, c.exchange)
        spilled = 8.0 * np.maximum(0.0, c.registers - t.registers_thread) * c.blocks * c.block_threads
        return memory + 0.25 * splits, through + splits + spilled

    def _wave_passes(self, slot: int) -> Array:
        """How many times a launch walks over an operand again, a wave of blocks at a time."""
        w, c = self.work, self.c
        groups = [w.groups[r.group] for r in w.reads if r.slot == slot]
        again_m = max((g.m for g in groups), default=1)
        again_n = max((g.n for g in groups), default=1)
        m, n = max(((d.m, d.n) for d in w.dots if d.main), default=(1, 1))
        rows, columns = np.ceil(m / c.tile_m), np.ceil(n / c.tile_n)
        wave = self.t.sms * self.resident
        high = np.clip(np.where(c.group > 0, c.group, wave / columns), 1.0, rows)
        passes = (again_m > 1) * rows / high + (again_n > 1) * columns / np.clip(wave / high, 1.0, columns)
        walked: Array = np.where(self.is_tiled, passes, 0.0)
        return walked

    def _unrolled(self) -> Mask:
        """A thread has all its elements in registers: it reads them, then computes, then writes."""
        unrolled: Mask = ((self.c.held == 1.0) & self.is_row) | (self.c.of("map") & ~self.is_turned)
        return unrolled

    def _memory_seconds(self, memory: Array, through: Array) -> tuple[Array, Array]:
        """(memory, L2) seconds where enough is in flight; what is not shows as waiting."""
        t = self.t
        reach = self.active * SM_BYTES_CLOCK * t.clock
        bandwidth = _norm([reach, t.bandwidth + 0.0 * reach], -4.0)
        # the phases of a block that has all its elements in registers overlap with those of other blocks only
        idle = np.where(self._unrolled(), self.k.phases / self.spread**2, 0.0)
        return memory / bandwidth * (1.0 + idle), through / (self.active * self.k.l2_bytes * t.clock)

    def _products(self) -> tuple[Array, Array, Array]:
        """(tensor pipe, scalar slots, shared memory) of the products: seconds, slots, seconds."""
        w, c, t, k = self.work, self.c, self.t, self.k
        zero = np.zeros(len(c.blocks))
        tensor, slots, smem = zero, zero, zero
        # vectors of four that a thread reads for the products of its points
        vectors = np.ceil(self.hold_m / 4.0) + np.ceil(self.hold_n / 4.0)
        queries = next((_pad(d.m, c.tile_m) for d in w.dots if d.main), 1.0 + zero)
        for d in w.dots:
            flops = d.flops * self._again(d.group, False)
            tiled = _pad(d.m, c.tile_m) * _pad(d.n, c.tile_n) if d.main else 1.0 + zero
            padded = flops * np.where(self.is_tiled, np.where(c.family == "attention", queries, tiled), 1.0)
            # f32 factors, rounded to tf32
            wide = c.bits == 32.0
            on_tensor = self.is_mma & (wide | d.tensor)
            tensor = tensor + np.where(on_tensor, padded, 0.0)
            # the fragments that a warp loads for each step, two (four) bytes an element
            read = padded * np.where(wide, 2.0, 1.0) * (1.0 / self.hold_m + 1.0 / self.hold_n)
            smem = smem + np.where(on_tensor, read, 0.0)
            tile = k.tile_loads * vectors / np.maximum(1.0, self.hold_m * self.hold_n)
            loads = np.where(c.family == "tile", tile, self._thread_loads(d.n))
            slots = slots + np.where(on_tensor, 0.0, padded / 2.0 * (1.0 + loads))
        # a producer's warps make no products
        warps = np.where(self.is_wgmma, self.warps - self.spread * PRODUCERS, self.warps)
        peak = np.where(self.is_wgmma, t.flops_wgmma16, t.flops_mma16) * 16.0 / c.bits
        rate = peak * _norm([warps / SUBCORES, 1.0 + zero], -4.0)
        return tensor / rate, slots, smem / (SMEM_BYTES_CLOCK * t.sms * t.clock)

    def _thread_loads(self, n: int) -> Array:
        """Load slots for each multiplication where both factors come through the cache, some of them as vectors."""
        wide = np.maximum(1.0, self.c.vector / self.work.element)
        slots: Array = (2.0 if n > 1 else 1.0) * self.k.load_slots / wide
        return slots

    def _slots(self) -> Array:
        """Instruction slots beside products and loads."""
        w, c, k = self.work, self.c, self.k
        total = np.where(c.of("plain"), w.replayed, 0.0)
        held = self._held_online()
        steps = np.maximum(1.0, np.where(self.is_row, c.run / w.element, 1.0))
        for g, (slots, stepped, kept) in enumerate(zip(w.slots, w.stepped, w.kept, strict=True)):
            each = np.where(held, slots - kept, slots + np.where(self.is_tiled, 0.0, stepped / steps))
            total = total + each * self._again(g, False)
        combine = self._combines() * np.where(self._costly(), k.costly_slots, k.combine_slots)
        return total * k.slot + np.where(self.is_tiled, 0.0, c.blocks * c.block_threads * (k.thread_slots + combine))

    def _alone_slots(self) -> Array:
        """Instructions of a tiled kernel's thread for factors and row scalars, which its block's products wait for."""
        w, c = self.work, self.c
        total = np.zeros(len(c.blocks))
        for g, (group, slots) in enumerate(zip(w.groups, w.slots, strict=True)):
            if group.m > 1 or group.n > 1:
                total = total + slots * self._again(g, False)
        each = total * self.k.slot / np.maximum(1.0, c.blocks * c.block_threads)
        return np.where(self.is_tiled, each, 0.0)

    def _before_clocks(self) -> Array:
        """A block's clocks for row scalars that no passing tile gives: its threads read its rows, then multiply."""
        c = self.c
        # the blocks of a cluster tell one another what their shares of a row add up to
        whole = (c.splits <= 1) | (self.is_wgmma & (c.exchange == 0))
        whole = whole & (c.stream == 0.0) & (c.swapped == 0.0) & (c.turns == 0.0) & ~c.of("tile")
        total = np.zeros(len(c.blocks))
        for s in self.work.before:
            rows = c.tile_m if s.along_m else c.tile_n
            bytes = rows * s.length * self.work.element
            clocks = bytes / 16.0 / np.maximum(1.0, c.block_threads) * ROW_CLOCKS
            total = total + np.where(whole & s.passing, 0.0, clocks)
        return np.where(self.is_tiled, total, 0.0)

    def _factor_seconds(self) -> Array:
        """The chain of a warpgroup that computes its left factors: some fragments at once, each before its products."""
        c = self.c
        groups = np.maximum(1.0, c.block_threads / GROUP - 1.0)
        fragments = np.maximum(1.0, np.where(c.swapped == 1.0, c.tile_n, c.tile_m) / 64.0 / groups)
        steps = self.work.depth / np.maximum(1.0, c.splits) / (256.0 / c.bits)
        at_once = np.maximum(1.0, c.flight / 16.0)
        clocks = steps * fragments * (FACTOR_CLOCKS / at_once + FRAGMENT_CLOCKS)
        seconds = self.waves * clocks / self.t.clock
        return np.where(self.is_wgmma & (c.held == 1.0), seconds, 0.0)

    def _held_online(self) -> Mask:
        """Rows in registers whose online sum is a maximum, then a sum of exponentials that the results take too."""
        held: Mask = self.is_row & (self.c.held == 1.0) & (self.work.rescales and not self.work.deviates)
        return held

    def _costly(self) -> Mask:
        """Combining takes an exponential or a division (held rows find their maximum before they sum)."""
        costly: Mask = self.work.deviates | (self.work.rescales & (self.c.held == 0.0))
        return costly

    def _combines(self) -> Array:
        """How many times a thread of a row kernel combines its result with another's."""
        c, w = self.c, self.work
        rounds = np.log2(np.maximum(1.0, c.reduce_threads))
        passes = max(1, w.levels) + 1.0 * self._held_online()
        tiles = np.where(c.of("scan"), np.ceil(w.fold_length / np.maximum(1.0, c.tile_k)), passes)
        times: Array = np.where(self.is_row, rounds * tiles, 0.0)
        return times

    def _access_slots(self, through: Array) -> Array:
        """Instructions that move data: each thread's own loads and stores, or a block's copies of tiles."""
        w, c, k = self.work, self.c, self.k
        moved = through
        if not w.dots:
            own = np.zeros(len(c.blocks)) + w.stored
            for r in w.reads:
                times = np.where(self.is_row, float(w.groups[r.group].rows), self._again(r.group, False))
                own = own + r.bytes * times * np.where(c.held == 1.0, 1.0, float(r.passes))
            moved = np.where(self.is_tiled, through, own)
        each = np.where(self.is_tiled, np.where(c.direct == 1.0, 1.0, k.copy_slots), k.load_slots)
        slots: Array = moved / np.maximum(1.0, c.vector) * each
        return slots

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def _untiled_clocks(self, slots: Array) -> Array:
        """A block's chain: loads that arrive one after another, its threads' instructions, combining their results."""
        w, c, k = self.work, self.c, self.k
        lost_l1, lost_l2 = self._lost()
        share = np.maximum(1.0, c.reduce_threads) * np.maximum(1.0, c.splits)
        serial = w.depth / max(1, w.levels) / share
        at_once = np.maximum(np.where(self.is_row, 1.0, 2.0), np.maximum(c.flight, c.vector) / w.element)
        loads = np.maximum(1.0, serial / at_once)
        passes = max((r.passes for r in w.reads), default=1)
        cached = k.l1_clocks + lost_l1 * (k.l2_clocks + lost_l2 * (k.dram_clocks - k.l2_clocks))
        again = np.where(c.held == 1.0, 0.0, cached) * (passes - 1)
        # neighbouring threads that walk alone find most of what they read in L1
        walk = k.dram_clocks + (loads * passes - 1.0) * k.l1_clocks
        waited = np.where(self.is_row, loads * (k.dram_clocks + again), walk)
        wait = np.where(self._unrolled(), k.free_clocks, k.chain_clocks)
        chain = wait * slots / np.maximum(1.0, c.blocks * c.block_threads)
        combine = self._combines() * k.shuffle_clocks * np.where(self._costly(), k.costly_rounds, 1.0)
        combine = combine + np.where(self.is_row & (c.reduce_threads > WARP), 2.0 * k.barrier_clocks, 0.0)
        turned = np.where(self.is_turned, k.dram_clocks + k.barrier_clocks, 0.0)
        clocks: Array = waited + chain + combine + turned
        return clocks

    def _step_length(self) -> Array:
        """Elements of the outermost fold that one step of a tiled kernel takes (attention: its key tile, and in each
        of those the whole score product)."""
        inner = self.work.depth / max(1.0, float(self.work.fold_length))
        length: Array = np.where(self.c.family == "attention", self.c.tile_n * inner, self.c.tile_k)
        return length

    def _ahead(self) -> Array:
        """Tiles in flight while one is worked on (products on plain threads leave registers to read one more)."""
        ahead: Array = self.c.stages - np.where(self.c.family == "tile", 0.0, 1.0)
        return ahead

    # ---- together --------------------------------------------------------------------------------------------------

    def seconds(self) -> Array:
        return self.terms()["seconds"]

    def terms(self) -> dict[str, Array]:
        """Seconds of each roof, of what a block waits for, and of all (`seconds`); and counts of what runs at once."""
        c, t, k, w = self.c, self.t, self.k, self.work
        memory_bytes, through = self._traffic()
        memory, cache = self._memory_seconds(memory_bytes, through)
        tensor, dot_slots, smem = self._products()
        slots = dot_slots + self._slots() + self._access_slots(through)
        alone = self._alone_slots()
        # a tile of points a thread hides its own latency
        busy = self.warps / (self.warps + np.where(self.is_tiled, k.tile_warps, k.thread_warps))
        scalar = slots / (t.flops_f32 / 2.0) / busy * self.quantized
        tensor, smem = tensor * self.quantized, smem * self.quantized
        started = np.ceil(c.blocks / t.sms) * k.block_clocks / t.clock
        scattered = self._scattered_seconds()
        roofs = _norm([memory, cache, scattered, tensor, scalar, smem, started], k.norm)
        steps = np.maximum(1.0, w.depth / np.maximum(1.0, c.splits) / np.maximum(1.0, self._step_length()))
        turns = self.waves * steps / t.clock
        compute = _norm([tensor, scalar, smem], k.norm) / self.spread
        waited = (compute + turns * k.dram_clocks) / np.maximum(0.8, self._ahead())
        step = np.where(self.is_wgmma, k.slot_clocks, k.step_clocks)
        step = step + (1.0 - c.direct) * k.sync_clocks
        stepped = _norm([roofs, waited, self._factor_seconds()], 8.0) + turns * step + self._lines_seconds()
        roofs = np.where(self.is_tiled, stepped, roofs)
        tiled = k.dram_clocks + k.chain_clocks * alone + self._before_clocks()
        clocks = np.where(self.is_tiled, tiled, self._untiled_clocks(slots))
        begun = np.where(c.persist == 1.0, k.start_clocks / self.waves + k.stay_clocks, k.start_clocks)
        in_cluster = self.is_wgmma & (c.exchange == 0)
        serial = self.waves * (begun + clocks) / t.clock + np.where(
            (c.splits > 1) | (c.exchange > 0), np.where(in_cluster, CLUSTER_SECONDS, SPLIT_SECONDS), 0.0
        )
        # the last block of a tile reads the sums of all
        finishing = np.where(c.stream == 1.0, self.active, np.maximum(1.0, c.blocks) / np.maximum(1.0, c.splits))
        serial = serial + 0.5 * c.exchange / finishing / (k.l2_bytes * t.clock)
        # what the terms cannot tell apart: the row that leaves more of the SM to others
        frugal = 1.0 + 1e-4 * (c.registers / t.registers_thread + c.smem / t.smem_sm + c.block_threads / t.threads_sm)
        # and what is left apart even then, so that no two configs tie
        apart = 1e-7 * c.group + 2e-6 * c.turns + 3e-6 * c.staged + 1e-6 * c.shares + 4e-6 * c.swapped
        frugal = frugal + 1e-5 * (c.group > 0) + apart + 1e-8 * c.hold_m + 1e-9 * c.tile_m
        total = t.launch_seconds + (k.ramp_clocks / t.clock + _norm([roofs, serial], k.serial_norm)) * frugal
        return {
            "seconds": total, "memory": memory, "cache": cache, "scattered": scattered, "tensor": tensor,
            "scalar": scalar, "shared": smem, "started": started, "roofs": roofs, "waited": waited, "serial": serial,
            "memory_bytes": memory_bytes, "through": through, "steps": steps, "waves": self.waves,
            "resident": self.resident, "warps": self.warps, "active": self.active, "quantized": self.quantized,
            "alone": alone,
        }  # fmt: skip


def _pad(extent: int, tile: Array) -> Array:
    """Points that whole tiles cover, for each point that there is."""
    tile = np.maximum(1.0, tile)
    padded: Array = np.ceil(extent / tile) * tile / extent
    return padded


__all__ = ["TERMS", "predict", "predict_many", "roofline", "terms_many"]
