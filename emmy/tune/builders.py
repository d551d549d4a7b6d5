"""Rows to machine code on all cores, so that the GPU never waits.

Lowering a row is Python, which one process does on one core only: processes of their own lower and compile.  What they
are sent and send back is plain data.
"""

from __future__ import annotations

import base64
import functools
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emmy.errors import CompileError, EmmyError
from emmy.ir.loop import Body

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from emmy.runtime.cache import CubinCache

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One row of a body (its text) at concrete sizes; `cache` is the folder of compiled kernels."""

    body: str
    family: str
    row: str
    arch: str
    name: str
    sizes: tuple[tuple[str, int], ...]
    limits: tuple[tuple[str, int], ...]
    cache: str


@dataclass(frozen=True, slots=True)
class Built:
    """A launch and its kernel (`source_id`) as the runner takes them, or the `kind` and `reason` of a failure."""

    kind: str = ""
    reason: str = ""
    source_id: str = ""
    launch: Json | None = None
    kernel: Json | None = None


def build(job: BuildJob) -> Built:
    """Lower and compile; whatever a row may do wrong is in the answer."""
    from emmy.ir.schedule import Row
    from emmy.ir.target import target
    from emmy.runtime.nvrtc import Job
    from emmy.tune.groups import lowered

    card = target(job.arch)
    try:
        made, launch = lowered(
            _body(job.body), job.family, Row.parse(job.row), card, job.name, dict(job.sizes), dict(job.limits)
        )
    except EmmyError as e:
        return Built("lowering", e.what)
    try:
        compiled = _cache(job.cache).compile(Job(made.text, made.entry, job.arch))
    except CompileError as e:
        return Built("compile", e.what)
    if compiled.registers * launch["block"] > card.registers_sm:
        reason = f"{compiled.registers} registers x {launch['block']} threads exceed the {card.registers_sm} of an SM"
        return Built("compile", reason)
    code = {"entry": made.entry, "cubin": base64.b64encode(compiled.cubin).decode()}
    return Built(source_id=made.id, launch=launch, kernel=code)


@functools.lru_cache(maxsize=64)
def _body(text: str) -> Body:
    from emmy.ir.parse import parse_body

    return parse_body(text)


@functools.lru_cache(maxsize=4)
def _cache(folder: str) -> CubinCache:
    from emmy.runtime.cache import CubinCache

    return CubinCache(Path(folder))


def _follow_parent() -> None:
    """Ctrl-C is for the parent, which ends the others; where it is killed, nobody does, and they end themselves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


class Builders:
    """`submit(job)` gives a future of `Built`.  `workers` processes, one a core; 0: threads of this process."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = os.cpu_count() or 1 if workers is None else workers
        self.pool = self._new()

    def _new(self) -> ProcessPoolExecutor | ThreadPoolExecutor:
        if self.workers == 0:
            return ThreadPoolExecutor(2, "build")
        return ProcessPoolExecutor(self.workers, get_context("spawn"), _follow_parent)

    def submit(self, job: BuildJob) -> Future[Built]:
        try:
            return self.pool.submit(build, job)
        except BrokenProcessPool:  # one of them was killed, perhaps for want of memory
            self.pool = self._new()
            return self.pool.submit(build, job)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def result(future: Future[Built]) -> Built:
    """What was built; where the process died, a failure of kind `setup`, which is no fault of the row."""
    try:
        return future.result()
    except BrokenProcessPool as e:
        return Built("setup", f"a process that compiles was killed: {e}")


def job_of(
    body: Body, family: str, row: str, arch: str, name: str, sizes: Mapping[str, int], limits: Mapping[str, int],
    cache: Path,
) -> BuildJob:  # fmt: skip
    return BuildJob(
        body.text, family, row, arch, name, tuple(sorted(sizes.items())), tuple(sorted(limits.items())), str(cache)
    )
