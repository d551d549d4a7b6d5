"""`emmy tune` and `emmy bench` as a user meets them, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emmy.extract.store import Store
from tests.cli.conftest import Emmy

pytestmark = pytest.mark.nvrtc
NORM = "nn.RMSNorm(256)(torch.randn(8,256))"


def test_a_search_with_made_up_times_says_so_and_keeps_them_apart(emmy: Emmy, tmp_path: Path) -> None:
    store = {"EMMY_TUNE_DB": str(tmp_path / "e.duckdb")}
    done = emmy("tune", "--stand-in", "--rows", "6", "-c", NORM, **store)
    assert done.code == 0, done.err
    assert "legal rows and timed 6 of them" in done.out
    assert "compile would choose, if these times were not made up:" in done.out and "EMMY_KNOBS='WORK=" in done.out
    assert "k_rms_norm: 6 of" in done.err
    again = emmy("tune", "--stand-in", "--rows", "6", "-c", NORM, "--json", **store)
    found = json.loads(again.out)
    assert (found["measured"], found["recalled"], found["gpu"]) == (0, 6, "stand-in")
    strict = emmy("compile", "--strict-evidence", "-c", NORM, **store)
    assert strict.code == 1 and "decides: k_rms_norm (predicted, " in strict.err and "`emmy tune`" in strict.err


def test_a_packet_is_written_without_a_gpu(emmy: Emmy, tmp_path: Path) -> None:
    done = emmy("tune", "--packet-only", "p", "--rows", "4", "-c", NORM)
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["python p/runner.py", "emmy bench p --record"]
    assert (tmp_path / "p/manifest.json").exists()
    taken = emmy("tune", "--packet-only", "p", "--rows", "4", "-c", NORM)
    assert taken.code == 1 and "p is not empty" in taken.err
    early = emmy("bench", "p", "--record", EMMY_TUNE_DB=str(tmp_path / "e.duckdb"))
    assert early.code == 1 and "cannot be read" in early.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--budget", "soon"), "'soon' is no time"),
        (("--budget", "0s"), "'0s' is no time"),
        (("--effort", "heroic"), "use one of quick, normal, full"),
        (("--devices", "all"), "is no list of GPUs"),
        (("--stand-in", "--cluster", "auto"), "exclude each other"),
        (("--strict-evidence",), "before there are any"),
    ],
)
def test_what_cannot_be_meant_is_refused(emmy: Emmy, words: tuple[str, ...], reason: str) -> None:
    done = emmy("tune", *words, "-c", NORM)
    assert done.code == 2 and reason in done.err


def test_a_folder_that_is_no_packet_is_named(emmy: Emmy) -> None:
    done = emmy("bench", "nowhere")
    assert done.code == 1 and "nowhere/manifest.json cannot be read" in done.err


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0)])
def test_times_are_written_as_people_do(text: str, seconds: float) -> None:
    from emmy.cli.tune import parse_seconds

    assert parse_seconds(text) == seconds


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    code = "torch.nn.Linear(256,256,bias=False,dtype=torch.bfloat16)(torch.randn(128,256,dtype=torch.bfloat16))"
    words = [sys.executable, "-m", "emmy.cli.main", "tune", "--stand-in", "--effort", "full", "-c", code]
    own = {
        "EMMY_TUNE_DB": str(tmp_path / "e.duckdb"),
        "EMMY_CACHE_DIR": str(tmp_path / "cache"),
        "EMMY_GOLDEN_FILE": "",
    }
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        words,
        env={**os.environ, **own, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as first:
        assert first.stderr is not None
        line = next(l for l in first.stderr if " rows, best" in l)
        first.send_signal(signal.SIGINT)
        rest = first.stderr.read()
    assert first.returncode == 130 and "the same command goes on" in rest, line + rest
    kept = len(Store(tmp_path / "e.duckdb").measurements())
    assert kept >= 12
    again = subprocess.run(
        [*words[:-2], "--budget", "1s", "--json", "-c", code], env={**os.environ, **own, "PYTHONPATH": root},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(again.stdout)["recalled"] == kept
