"""Compiled kernels on disk, by content.

    <root>/cubin/<2 digits>/<digest>.cubin      machine code
    <root>/cubin/<2 digits>/<digest>.json       the readable key, a checksum of the code, what the assembler said

The digest is that of the key.  A file is written under another name and then moved, the code before its JSON, so a
reader sees all of an entry or none of it, and two processes may write the same entry at once.  Code that does not fit
its checksum is compiled again.  A folder that cannot be written never fails a compile: entries then stay in memory,
and one warning says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from emmy.errors import CompileError
from emmy.runtime.nvrtc import OPTIONS, Compiled, Job, compile_job, compile_many, nvrtc_version
from emmy.settings import Settings

LOG: Final = logging.getLogger(__name__)
# about 40,000 kernels; entries unused for longest go first
DEFAULT_BYTES: Final = 1 << 30
# a writer needs milliseconds: an unfinished file of this age has no writer any more
_ABANDONED_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class CubinKey:
    """All that decides the machine code."""

    source_sha256: str
    entry: str
    arch: str
    nvrtc: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, job: Job) -> CubinKey:
        return cls(hashlib.sha256(job.source.encode()).hexdigest(), job.entry, job.arch, nvrtc_version(), OPTIONS)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:40]


class CubinCache:
    """Safe to share between threads, and its folder between processes.  `max_bytes` bounds the folder's size."""

    def __init__(self, root: Path | None = None, max_bytes: int = DEFAULT_BYTES) -> None:
        self.folder = (Settings.read().cache_dir if root is None else root) / "cubin"
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._memory: dict[CubinKey, Compiled] = {}
        self._warned = False
        self._unpruned = max_bytes  # so that the first write prunes what earlier processes left

    def compile(self, job: Job) -> Compiled:
        """The cached code, else compiled now and kept.  Raises CompileError; never an OSError."""
        key = CubinKey.of(job)
        found = self.get(key)
        with self._lock:
            self.hits += found is not None
            self.misses += found is None
        if found is not None:
            return found
        compiled = compile_job(job)
        self.put(key, compiled)
        return compiled

    def compile_many(self, jobs: Sequence[Job], workers: int | None = None) -> list[Compiled | CompileError]:
        """As `nvrtc.compile_many`, through the cache."""
        return compile_many(jobs, workers, self.compile)

    def get(self, key: CubinKey) -> Compiled | None:
        """The entry, None when there is none or when it is damaged."""
        if key in self._memory:
            return self._memory[key]
        code, facts = self._paths(key)
        try:
            record = json.loads(facts.read_text())
            cubin = code.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"cannot read {facts}: {error}")
            return None
        except ValueError:
            record, cubin = None, b""
        compiled = _from_record(record, cubin)
        if compiled is None:
            LOG.info("rebuilding damaged cache entry %s", facts)
            return None
        self._touch(facts)
        return compiled

    def put(self, key: CubinKey, compiled: Compiled) -> None:
        """Keep an entry on disk, or in memory where the folder takes nothing."""
        code, facts = self._paths(key)
        record = {
            "key": asdict(key),
            "sha256": hashlib.sha256(compiled.cubin).hexdigest(),
            "registers": compiled.registers,
            "spill_bytes": compiled.spill_bytes,
            "static_smem": compiled.static_smem,
            "log": compiled.log,
        }
        try:
            code.parent.mkdir(parents=True, exist_ok=True)
            _write(code, compiled.cubin)
            _write(facts, json.dumps(record, indent=1).encode())
        except OSError as error:
            self._memory[key] = compiled
            self._warn(f"compiled kernels are kept in memory only, since {self.folder} cannot be written: {error}")
            return
        self._prune_sometimes(len(compiled.cubin))

    def prune(self) -> int:
        """Remove unfinished files that have no writer, then the entries unused for longest until the folder holds at
        most 0.8 of `max_bytes`.  Returns how many bytes the folder then holds."""
        entries: list[tuple[float, int, Path]] = []
        for facts in self.folder.glob("*/*.json"):
            code = facts.with_suffix(".cubin")
            try:
                used, size = facts.stat().st_mtime, facts.stat().st_size + code.stat().st_size
            except OSError:
                continue  # another process has just removed it
            entries.append((used, size, facts))
        for unfinished in self.folder.glob("*/*.tmp"):
            self._remove_abandoned(unfinished)
        for code in self.folder.glob("*/*.cubin"):
            if not code.with_suffix(".json").exists():
                self._remove_abandoned(code)
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return total
        for _, size, facts in sorted(entries):
            facts.unlink(missing_ok=True)
            facts.with_suffix(".cubin").unlink(missing_ok=True)
            total -= size
            if total <= 0.8 * self.max_bytes:
                break
        return total

    def _paths(self, key: CubinKey) -> tuple[Path, Path]:
        base = self.folder / key.digest[:2] / key.digest
        return base.with_suffix(".cubin"), base.with_suffix(".json")

    def _prune_sometimes(self, written: int) -> None:
        with self._lock:
            self._unpruned += written
            due = self._unpruned >= self.max_bytes / 8
            self._unpruned = 0 if due else self._unpruned
        if not due:
            return
        try:
            self.prune()
        except OSError as error:
            self._warn(f"cannot prune {self.folder}: {error}")

    def _touch(self, facts: Path) -> None:
        try:
            os.utime(facts)
        except OSError:
            LOG.debug("cannot note the use of %s", facts)  # a read-only cache still serves

    def _remove_abandoned(self, unfinished: Path) -> None:
        try:
            if time.time() - unfinished.stat().st_mtime > _ABANDONED_SECONDS:
                unfinished.unlink()
        except FileNotFoundError:
            return  # its writer has just finished

    def _warn(self, message: str) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            LOG.warning(message)


def _write(path: Path, data: bytes) -> None:
    """Write so that `path` is the whole content or does not exist."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        unfinished.write_bytes(data)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _from_record(record: object, cubin: bytes) -> Compiled | None:
    """The entry, None where record and code do not fit each other."""
    if not isinstance(record, dict) or record.get("sha256") != hashlib.sha256(cubin).hexdigest():
        return None
    log, registers, spill, smem = (record.get(n) for n in ("log", "registers", "spill_bytes", "static_smem"))
    if not (isinstance(log, str) and isinstance(registers, int) and isinstance(spill, int) and isinstance(smem, int)):
        return None
    return Compiled(cubin, log, registers, spill, smem)
