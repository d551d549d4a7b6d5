"""CUDA source to machine code with NVRTC, on any machine: neither a GPU nor the driver is touched.

Sources include nothing, since the compiler's wheel brings no toolkit headers: a 16-bit float is an `unsigned short`
that `cvt` instructions in inline PTX read and write, an 8-bit one an `unsigned char`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from emmy.errors import CompileError
from emmy.runtime.elf import entries

# multiply-add contraction stays on, as in nvcc; nothing that loosens division, square roots or denormals
OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v")
_ERRORS_SHOWN: Final = 3
# wgmma made synchronous (C7510 and others), waits put in (C7517), setmaxnreg without effect (C7508)
_COSTLY: Final = re.compile(r"Potential Performance Loss|wait_group is injected")
_RESERVED_SMEM: Final = 1024  # of each block from compute capability 9.0 on, for the system


@dataclass(frozen=True, slots=True)
class Job:
    """`entry` is the name of an `extern "C" __global__` function in `source`; `arch` is spelled as `sm_90a`."""

    source: str
    entry: str
    arch: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code, and what the assembler says of the entry.

    `registers` are counted a thread; `spill_bytes` is stores plus loads a thread; `static_smem` is bytes a block.
    """

    cubin: bytes
    log: str
    registers: int
    spill_bytes: int
    static_smem: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What the assembler says that it did to asynchronous products or to registers of roles, at the cost of speed.

        A kernel that is right by the rules of its instructions has none.
        """
        return tuple(line for line in self.log.splitlines() if _COSTLY.search(line))


def nvrtc_version() -> str:
    """`13.5`, the compiler's own version."""
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    _check(status)
    return f"{major}.{minor}"


def compile_cubin(source: str, entry: str, arch: str) -> Compiled:
    """Compile for one architecture.

    Raises CompileError with the first errors and the source lines that they point at, also when the source has no
    such entry.
    """
    from cuda.bindings import nvrtc

    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{entry}.cu".encode(), 0, [], [])
    _check(status)
    try:
        options = [o.encode() for o in (f"--gpu-architecture={arch}", *OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize(program), nvrtc.nvrtcGetProgramLog, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(explain(source, entry, arch, log), "this is a fault of the generated code", log)
        cubin = _bytes(nvrtc.nvrtcGetCUBINSize(program), nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    log = "\n".join(line for line in log.splitlines() if "Compile time" not in line)  # equal sources, equal logs
    return Compiled(cubin, log, *resources(cubin, log, entry, arch))


def compile_job(job: Job) -> Compiled:
    return compile_cubin(job.source, job.entry, job.arch)


def compile_many(
    jobs: Sequence[Job], workers: int | None = None, compile: Callable[[Job], Compiled] = compile_job
) -> list[Compiled | CompileError]:
    """Compile all, in order; a job that the compiler refuses gives its error instead of raising it.

    NVRTC releases the interpreter's lock, so `workers` threads (as many as there are cores) run at once.  `compile`
    may look in a cache first (`CubinCache.compile`).  Equal jobs are compiled once.
    """

    def attempt(job: Job) -> Compiled | CompileError:
        try:
            return compile(job)
        except CompileError as error:
            return error

    distinct = list(dict.fromkeys(jobs))
    if not distinct:
        return []
    with ThreadPoolExecutor(min(workers or os.cpu_count() or 1, len(distinct)), "nvrtc") as pool:
        done = dict(zip(distinct, pool.map(attempt, distinct), strict=True))
    return [done[job] for job in jobs]


def resources(cubin: bytes, log: str, entry: str, arch: str) -> tuple[int, int, int]:
    """(registers, spilled bytes, static shared memory) of an entry: from the code, and spills from the log.

    Where several threads compile at once the log may lack the entry; then its stack stands for what it spills.
    """
    found = entries(cubin)
    if entry not in found:
        has = ", ".join(sorted(found)) or "none"
        raise CompileError(
            f"the source has no entry {entry!r} for {arch} (it has: {has})", 'declare it extern "C" __global__', log
        )
    own = next((s for s in re.split(r"Compiling entry function ", log)[1:] if s.startswith(f"'{entry}'")), None)
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", own)] if own else [found[entry].stack]
    reserved = _RESERVED_SMEM if int(re.sub(r"\D", "", arch)) >= 90 and found[entry].shared else 0
    return found[entry].registers, sum(spills), max(0, found[entry].shared - reserved)


def explain(source: str, entry: str, arch: str, log: str) -> str:
    """The log's first errors, each with the numbered source lines around it."""
    lines = source.splitlines()
    parts = [f"NVRTC refuses kernel {entry!r} for {arch}"]
    errors = [line for line in log.splitlines() if re.search(r"\berror\b", line)]
    for error in errors[:_ERRORS_SHOWN] or log.splitlines()[:_ERRORS_SHOWN]:
        parts.append(error.strip())
        place = re.search(r"\((\d+)\): (?:catastrophic )?error", error)
        if place:
            at = int(place[1])
            for k in range(max(1, at - 2), min(len(lines), at + 1) + 1):
                parts.append(f"  {'>' if k == at else ' '} {k:4} | {lines[k - 1]}")
    if len(errors) > _ERRORS_SHOWN:
        parts.append(f"and {len(errors) - _ERRORS_SHOWN} more")
    return "\n".join(parts)


def _text(size: tuple[Any, int], get: Callable[..., tuple[Any, ...]], program: Any) -> str:
    return _bytes(size, get, program).rstrip(b"\0").decode(errors="replace").strip()


def _bytes(size: tuple[Any, int], get: Callable[..., tuple[Any, ...]], program: Any) -> bytes:
    status, count = size
    _check(status)
    # the binding writes into this object, so it must not be one that Python shares (it shares bytes shorter than two)
    data = bytes(max(2, count))
    (status,) = get(program, data)
    _check(status)
    return data[:count]


def _check(status: Any) -> None:
    if int(status) != 0:
        raise CompileError(f"NVRTC call failed: {status}", "check the nvidia-cuda-nvrtc package with `emmy doctor`")
