"""The simulator's front door: one launch of a kernel on the CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from emmy.codegen.simulate.atomics import ATOMICS
from emmy.codegen.simulate.copies import COPIES, AsyncGroups
from emmy.codegen.simulate.counters import Counters, Tally
from emmy.codegen.simulate.findings import Finding, Findings
from emmy.codegen.simulate.gang import Gang
from emmy.codegen.simulate.globals import Globals
from emmy.codegen.simulate.matrices import MATRICES
from emmy.codegen.simulate.numbers import RAW, memory_type, uniform
from emmy.codegen.simulate.program import Build, Compiler
from emmy.codegen.simulate.registers import registers
from emmy.codegen.simulate.rings import RINGS, Rings
from emmy.codegen.simulate.scheduler import SCHEDULED, Scheduler
from emmy.codegen.simulate.statements import STATEMENTS
from emmy.codegen.simulate.tma import TMA, BulkGroups
from emmy.codegen.simulate.wave import Wave
from emmy.codegen.simulate.wgmma import WGMMA
from emmy.errors import UsageError
from emmy.ir.evaluate import integer
from emmy.ir.kernel import Atomic, ClusterBarrier, Kernel, NamedBarrier, Roles, TmaStore, Wgmma, walk
from emmy.ir.target import Target

BUILDERS: Final[dict[type, Build]] = {**STATEMENTS, **MATRICES, **COPIES, **ATOMICS, **RINGS, **TMA, **WGMMA}
LANES: Final = 16384  # threads that run together at most
MARKS: Final = 64 << 20  # bytes of the marks of shared memory of the blocks that run together


@dataclass(frozen=True, slots=True)
class Simulation:
    """`outputs`: results by parameter, flat.  No finding means that nothing wrong was seen in this launch.

    `work`: what memory of the launch's own holds after it, by parameter.
    """

    outputs: dict[str, npt.NDArray[Any]]
    findings: tuple[Finding, ...]
    counters: Counters
    work: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def simulate(
    kernel: Kernel, target: Target, arrays: Mapping[str, npt.NDArray[Any]], sizes: Mapping[str, int],
    results: Mapping[str, npt.NDArray[Any] | int], *, seed: int = 0, count: bool = True,
) -> Simulation:  # fmt: skip
    """One launch of `kernel`.

    `arrays` holds the operands by parameter, in the numpy type of their storage type (bf16 and f8 as ml_dtypes), any
    shape.  `results` holds for each result its number of elements, or an array with its contents before the launch.
    Memory of the launch's own is made here, unless `results` holds what an earlier launch left in it.
    `sizes` binds symbolic sizes.  `seed` decides the order in which gangs and communicating blocks run.  Without
    `count` the counters of memory stay 0.  Raises UsageError where a parameter is missing or of another type.
    """
    findings, tally = Findings(kernel.name), Tally(count)
    memory = Globals(kernel, arrays, results, sizes)
    machine = _Launch(kernel, target, sizes, memory, findings, tally, random.Random(seed))
    with np.errstate(all="ignore"):
        machine.run()
    if not machine.hung:
        memory.finish(findings, kernel)
    written = {t.name: _typed(t.data, t.type) for t in memory.tensors.values() if t.out}
    own = {p.name: written.pop(p.name) for p in kernel.params if p.is_work}
    return Simulation(written, tuple(findings.kept.values()), machine.counters(), own)


def _typed(data: npt.NDArray[Any], type: str) -> npt.NDArray[Any]:
    return data.view(np.bool_ if type == "bool" else RAW.get(type, memory_type(type)))


class _Launch:
    def __init__(
        self, kernel: Kernel, target: Target, sizes: Mapping[str, int], memory: Globals, findings: Findings,
        tally: Tally, chance: random.Random,
    ) -> None:  # fmt: skip
        self.kernel, self.target, self.memory, self.chance = kernel, target, memory, chance
        self.findings, self.tally = findings, tally
        self.grid = (integer(kernel.grid[0], sizes), integer(kernel.grid[1], sizes), integer(kernel.grid[2], sizes))
        self.env = {p.name: uniform(sizes[p.name], "i64") for p in kernel.params if p.role == "size"}
        self.concurrent = concurrent(kernel)
        builders = {**BUILDERS, **SCHEDULED} if self.concurrent else BUILDERS
        self.body = Compiler(kernel, tally, builders, sizes).body(kernel.body)
        self.hung = False
        self.talking = any(isinstance(s, Atomic) and s.old for s in walk(kernel.body))

    def run(self) -> None:
        groups = self.clusters() if self.concurrent else self.batches()
        if self.talking:  # in any order, one after the other
            every = list(groups)
            self.chance.shuffle(every)
            groups = iter(every)
        for blocks in groups:
            wave = self.wave(blocks)
            if self.concurrent:
                self.together(wave)
            else:
                gang = Gang(wave, 0, wave.lanes, dict(self.env))
                self.body.run(gang)
                gang.finish()
            if not self.hung:
                wave.copies.finish()
                wave.bulk.finish()
            wave.rings.finish(self.hung)
            if self.hung:
                break

    def wave(self, blocks: npt.NDArray[np.int64]) -> Wave:
        """Columns of the clocks: warps, slots of rings, products of warpgroups, TMA stores of warps, kernels before."""
        k = self.kernel
        a, b, c = k.cluster
        count = a * b * c
        rings = count * Rings.agents(k.rings)
        warps = count * -(-k.threads // 32)
        groups = max(1, warps // 4) if any(isinstance(s, Wgmma) for s in walk(k.body)) else 0
        stores = warps if any(isinstance(s, TmaStore) for s in walk(k.body)) else 0
        wave = Wave(
            k, self.grid, blocks, self.memory, self.findings, self.tally, rings + groups + stores + 1, self.talking
        )
        wave.streams = warps + rings
        wave.copies, wave.rings = AsyncGroups(wave), Rings(wave)
        wave.bulk = BulkGroups(wave, warps + rings + groups)
        return wave

    def together(self, wave: Wave) -> None:
        """The blocks of a cluster, and their roles, as gangs that take turns."""
        wave.scheduler = Scheduler(self.chance)
        for i, block in enumerate(wave.blocks):
            gang = Gang(wave, i * wave.room, wave.room, dict(self.env), f"block {block}")
            wave.scheduler.start(gang, self.body.steps(gang))
        wave.scheduler.run()
        self.hung |= wave.scheduler.hung

    def batches(self) -> Iterator[npt.NDArray[np.int64]]:
        """Blocks that run together, none of which another one can hear."""
        k = self.kernel
        total = self.grid[0] * self.grid[1] * self.grid[2]
        warps = -(-k.threads // 32)
        marks = max(1, k.smem) * (4 + 4 * warps)
        at_once = 1 if self.talking else max(1, min(LANES // (32 * warps), MARKS // marks))
        for first in range(0, total, at_once):
            yield np.arange(first, min(total, first + at_once), dtype=np.int64)

    def clusters(self) -> Iterator[npt.NDArray[np.int64]]:
        """The blocks of each cluster, by rank."""
        gx, gy, gz = self.grid
        a, b, c = self.kernel.cluster
        if gx % a or gy % b or gz % c:
            raise UsageError(f"{self.kernel.name}: a grid of {self.grid} blocks does not divide into clusters")
        for z, y, x in np.ndindex(gz // c, gy // b, gx // a):
            inner = [
                ((z * c + k) * gy + y * b + j) * gx + x * a + i for k in range(c) for j in range(b) for i in range(a)
            ]
            yield np.array(inner, np.int64)

    def counters(self) -> Counters:
        t = self.tally
        return Counters(
            sectors_read=t.sectors[0], sectors_written=t.sectors[1], bytes_read=t.bytes[0], bytes_written=t.bytes[1],
            shared_bytes=t.shared_bytes, shared_accesses=t.shared_accesses, conflicts=t.conflicts,
            instructions=dict(t.instructions), flops=t.flops, barriers=t.barriers, registers=registers(self.kernel),
        )  # fmt: skip


def concurrent(kernel: Kernel) -> bool:
    """Whether several gangs of a block or cluster wait for one another."""
    if kernel.rings or kernel.cluster != (1, 1, 1):
        return True
    return any(isinstance(s, Roles | NamedBarrier | ClusterBarrier) for s in walk(kernel.body))
