"""Worker processes that hang, die or are killed: the candidate is named, another process goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emmy.tune.runner import measure
from emmy.tune.runner.device import Device
from emmy.tune.runner.manifest import FORMAT
from emmy.tune.runner.measure import Results, measure_packet, measured_before
from emmy.tune.runner.tasks import task_of
from tests.tune.groups import group, task

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    command = [sys.executable, str(WORKER), str(tmp_path)]
    made = Device(0, tmp_path / "log", check_seconds=1.0, setup_seconds=20.0, command=command)
    yield made
    made.close()


def kinds(results: list[dict[str, Any]]) -> dict[str, str]:
    return {r["id"]: "ok" if r["ok"] else r["kind"] for r in results}


def test_all_are_measured_in_one_process(device: Device) -> None:
    assert kinds(device.measure(task(["a", "b", "c"], anchor="a"))) == dict.fromkeys("abc", "ok")
    assert device.replaced == 0


def test_a_hanging_candidate_is_named_and_the_others_go_on(device: Device) -> None:
    assert kinds(device.measure(task(["a", "hang", "b"]))) == {"a": "ok", "hang": "timeout", "b": "ok"}
    assert device.replaced == 1


def test_kinds_of_failures_are_kept_apart(device: Device) -> None:
    found = kinds(device.measure(task(["wrong_1", "illegal", "die", "memory_1", "a"])))
    assert found == {
        "wrong_1": "wrong", "illegal": "illegal address", "die": "crash", "memory_1": "memory", "a": "ok",
    }  # fmt: skip


def test_who_dies_while_samples_are_taken_is_found_one_by_one(device: Device) -> None:
    assert kinds(device.measure(task(["a", "late", "b"]))) == {"a": "ok", "late": "crash", "b": "ok"}


def test_an_anchor_that_fails_is_left_out(device: Device) -> None:
    found = kinds(device.measure(task(["a", "b"], anchor="hang")))
    assert (found["a"], found["b"], found["hang"]) == ("ok", "ok", "timeout")


def test_without_a_reference_no_candidate_is_blamed(tmp_path: Path) -> None:
    command = [sys.executable, str(WORKER), str(tmp_path)]
    device = Device(0, setup_seconds=1.0, command=command)
    try:
        assert kinds(device.measure(task(["a", "b"], check="hang_check"))) == {"a": "reference", "b": "reference"}
    finally:
        device.close()


def test_a_killed_worker_is_replaced(device: Device) -> None:
    device.start()
    assert device.worker is not None
    pid = device.worker.process.pid
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    found = kinds(device.measure(task(["hang", "a"])))
    assert found == {"hang": "crash", "a": "ok"} and device.replaced == 1


def test_a_process_that_cannot_start_is_an_error() -> None:
    device = Device(0, command=[sys.executable, "-c", "raise SystemExit('no GPU')"])
    with pytest.raises(RuntimeError, match="GPU 0 cannot be used"):
        device.start()


def test_a_task_holds_what_its_candidates_need() -> None:
    g = group(["a", "b", "c"], anchor="b", check="good")
    kernels = {n: {"entry": n, "cubin": ""} for n in ("a", "b", "c", "good")}
    made = task_of(g, kernels, ["a"])
    assert [c["id"] for c in made["group"]["candidates"]] == ["a", "b", "good"]
    assert set(made["kernels"]) == {"a", "b", "good"}


# ---- packets ---------------------------------------------------------------------------------------------------------


def packet(folder: Path, names: list[str]) -> None:
    (folder / "sources").mkdir(parents=True)
    sources = {}
    g = group(names)
    for k, c in enumerate(g["candidates"]):
        file = f"sources/{k:016x}.cu"
        (folder / file).write_text(f'extern "C" __global__ void {c["id"]}(const float* a, float* b) {{ b[0] = a[0]; }}')
        sources[c["id"]] = {"file": file, "entry": c["id"]}
    target = {"gpu": "stand-in", "capability": 90, "arch": "sm_90a"}
    manifest = {"format": FORMAT, "version": 1, "target": target, "sources": sources, "groups": [g]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Device]:
    made: list[Device] = []

    def device(ordinal: int, log: Path) -> Device:
        command = [sys.executable, str(WORKER), str(tmp_path)]
        made.append(Device(ordinal, log, check_seconds=1.0, command=command))
        return made[-1]

    monkeypatch.setattr(measure, "Device", device)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(l) for l in path.read_text().splitlines()]


@pytest.mark.nvrtc
def test_a_packet_is_measured_once(tmp_path: Path, workers: list[Device]) -> None:
    names = [f"c{k}" for k in range(15)]
    packet(tmp_path / "p", names)
    out = tmp_path / "results.jsonl"
    first = measure_packet(tmp_path / "p", out, [0, 1], jobs=2)
    assert (first.ok, first.failed) == (16, 0)
    assert {l["device"] for l in lines(out) if "device" in l} <= {0, 1}
    again = measure_packet(tmp_path / "p", out, [0], jobs=2)
    assert (again.ok, again.failed) == (0, 0)


@pytest.mark.nvrtc
def test_what_does_not_compile_is_a_failure_of_that_kind(tmp_path: Path, workers: list[Device]) -> None:
    packet(tmp_path / "p", ["a", "b"])
    (tmp_path / "p/sources" / f"{1:016x}.cu").write_text("this is no CUDA")
    out = tmp_path / "results.jsonl"
    found = measure_packet(tmp_path / "p", out, [0], jobs=2)
    assert (found.ok, found.failed) == (2, 1)
    assert [l["id"] for l in lines(out) if l.get("kind") == "compile"] == ["b"]


def test_a_line_that_a_killed_run_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    out.write_text('{"group": "g", "id": "a", "ok": true}\n{"group": "g", "id": "b", "o')
    assert measured_before(out) == {"g/a"}
    assert out.read_text().endswith("}\n")


@pytest.mark.nvrtc
def test_a_full_disk_ends_the_run_with_what_was_written(
    tmp_path: Path, workers: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    packet(tmp_path / "p", [f"c{k}" for k in range(30)])
    out = tmp_path / "results.jsonl"
    written = 0
    true_write = Results.write

    def write(self: Results, found: list[dict[str, Any]]) -> None:
        nonlocal written
        if written >= 2 and found:
            raise OSError(28, "No space left on device")
        written += bool(found)
        true_write(self, found)

    monkeypatch.setattr(Results, "write", write)
    with pytest.raises(OSError, match="No space left"):
        measure_packet(tmp_path / "p", out, [0], jobs=2)
    monkeypatch.undo()
    assert len(measured_before(out)) >= 12
