"""Files that belong together, written to a folder so that it holds those of one run.

They are staged in a hidden folder beside their places and moved there once all are complete, under a lock: of two
processes that write to one folder the second waits, and one that is killed while it writes leaves what was there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from emmy.errors import EmmyError

# Another writer needs seconds at most: its files are in memory.
PATIENCE_SECONDS: Final = 60.0


def write_folder(
    folder: Path, files: Mapping[str, bytes], former: Callable[[], Iterable[str]] = tuple,
    patience: float = PATIENCE_SECONDS,
) -> None:  # fmt: skip
    """Write `files` (paths inside the folder -> content), the last one last, then remove what else `former` names.

    `former` is asked under the lock for the files of the result that stands there; others in the folder stay.
    OSError where the folder takes nothing; EmmyError when another process is writing to it for `patience` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_lock_path(folder))
    try:
        lock.acquire(timeout=patience)
    except Timeout as e:
        raise EmmyError(
            f"another process has been writing to {folder} for {patience:g} s", "wait for it, or name another folder"
        ) from e
    try:
        for abandoned in folder.glob(".emmy-*.tmp"):  # whoever began it was killed, or it would hold the lock
            shutil.rmtree(abandoned)
        obsolete = set(former()) - files.keys()
        _write(folder, files, folder / f".emmy-{os.getpid()}.tmp")
        for name in obsolete:
            (folder / name).unlink(missing_ok=True)
    finally:
        lock.release()


def _write(folder: Path, files: Mapping[str, bytes], staged: Path) -> None:
    try:
        for name, data in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).write_bytes(data)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for name in files:
            os.replace(staged / name, folder / name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _lock_path(folder: Path) -> Path:
    """Outside the folder, where nothing is to be left but what was asked for; one for each user and folder."""
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"emmy-{os.getuid()}-{digest}.lock"
