"""A folder of results is of one run, whoever else writes to it and whenever a writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from emmy.errors import EmmyError
from emmy.inspect import folder as module
from emmy.inspect.folder import write_folder

NAMES = [*(f"kernels/k{i}.cu" for i in range(40)), "report.txt", "plan.json"]


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def files(text: str) -> dict[str, bytes]:
    return {n: text.encode() for n in NAMES}


def test_what_is_obsolete_goes_and_what_others_put_there_stays(tmp_path: Path) -> None:
    write_folder(tmp_path, {"kernels/a.cu": b"1", "plan.json": b"1"})
    (tmp_path / "kernels/mine.cu").write_bytes(b"mine")
    write_folder(tmp_path, {"kernels/b.cu": b"2", "plan.json": b"2"}, lambda: {"kernels/a.cu", "plan.json"})
    assert contents(tmp_path) == {"kernels/b.cu": b"2", "kernels/mine.cu": b"mine", "plan.json": b"2"}


WRITER = """
import sys
from pathlib import Path
from emmy.inspect.folder import write_folder
folder, text, times, names = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
for _ in range(times):
    write_folder(folder, {n: text.encode() for n in names})
"""


def writer(folder: Path, text: str, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), text, str(times), *NAMES])


def test_two_processes_never_mix_their_files(tmp_path: Path) -> None:
    running = [writer(tmp_path, text, 30) for text in "ab"]
    assert [p.wait() for p in running] == [0, 0]
    assert contents(tmp_path) in (files("a"), files("b"))


def test_a_writer_killed_before_its_files_are_complete_leaves_the_former_ones(tmp_path: Path) -> None:
    write_folder(tmp_path, files("former"))
    stopped = WRITER.replace("for _ in", "Path.write_bytes = lambda p, d: __import__('time').sleep(60)\nfor _ in")
    p = subprocess.Popen([sys.executable, "-c", stopped, str(tmp_path), "new", "1", *NAMES])
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".emmy-*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.02)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert contents(tmp_path) == files("former")
    write_folder(tmp_path, files("next"))
    assert contents(tmp_path) == files("next") and not list(tmp_path.glob(".emmy-*"))


def test_a_full_disk_leaves_the_former_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, files("former"))
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "report.txt":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path, files("new"))
    assert contents(tmp_path) == files("former") and not list(tmp_path.glob(".emmy-*"))


def test_a_folder_that_stays_locked_is_told(tmp_path: Path) -> None:
    with FileLock(module._lock_path(tmp_path)), pytest.raises(EmmyError, match=r"another process .*\n.*another folder"):
        write_folder(tmp_path, files("x"), patience=0.01)
    assert os.listdir(tmp_path) == []
