"""Processes that compile: they end with the tuner, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TUNER = """
import os, sys, time
from emmy.tune.builders import Builders

if __name__ == "__main__":
    builders = Builders(1)
    print(builders.pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_tuner_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "tuner.py"
    script.write_text(TUNER)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    tuner = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert tuner.stdout is not None
    worker = int(tuner.stdout.readline())
    assert alive(worker)
    os.kill(tuner.pid, signal.SIGKILL)
    tuner.wait()
    tuner.stdout.close()
    deadline = time.monotonic() + 30
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = not alive(worker)
    if not ended:
        os.kill(worker, signal.SIGKILL)
    assert ended
