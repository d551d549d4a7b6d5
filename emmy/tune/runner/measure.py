"""A packet on this machine: compiled ahead by threads, measured by one worker process a GPU."""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .compiler import compile_source, nvrtc_version
from .device import Device
from .manifest import BadPacket, read_manifest
from .tasks import batches, kernel_of, task_of, with_data

Json = dict[str, Any]


def measured_before(path: Path) -> set[str]:
    """Candidates that a results file has; a line that a killed run left unfinished is cut off.

    BadPacket names the line that is no result.
    """
    if not path.exists():
        return set()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    found = set()
    for k, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise BadPacket(f"{path}, line {k} is not JSON: {e}") from e
        if not isinstance(line, dict):
            raise BadPacket(f"{path}, line {k} is no result")
        if "group" in line:
            found.add(f"{line['group']}/{line.get('id')}")
    return found


class Results:
    """Appends lines from several threads."""

    def __init__(self, path: Path) -> None:
        self.lock, self.path = threading.Lock(), path
        self.ok = self.failed = 0

    def write(self, lines: Sequence[Json]) -> None:
        if not lines:
            return
        with self.lock, self.path.open("a") as f:
            f.write("".join(json.dumps(l) + "\n" for l in lines))
            self.ok += sum(bool(l.get("ok")) for l in lines)
            self.failed += sum(l.get("ok") is False for l in lines)


def measure_packet(
    folder: Path, out: Path, ordinals: Sequence[int] = (0,), jobs: int | None = None, seconds: float = math.inf
) -> Results:
    """Measure what `out` does not hold yet; lines are written batch by batch.  BadPacket, RuntimeError (no GPU)."""
    manifest = read_manifest(folder)
    done, results = measured_before(out), Results(out)
    devices = [Device(k, out.with_suffix(f".gpu{k}.log")) for k in ordinals]
    deadline = time.monotonic() + seconds
    ready: queue.Queue[tuple[Json, Json] | None] = queue.Queue(2 * len(devices))
    failures: list[BaseException] = []

    def serve(device: Device) -> None:
        try:
            while (item := ready.get()) is not None:
                if failures or time.monotonic() > deadline:
                    continue
                group, task = item
                wanted = set(task["wanted"])
                found = [l for l in device.measure(task) if l["id"] in wanted]
                stamp = {"group": group["id"], "device": device.ordinal, "when": time.time()}
                results.write([{**stamp, **l} for l in found])
        except Exception as e:  # noqa: BLE001 - told to the caller below, in its own thread
            failures.append(e)
            while ready.get() is not None:
                pass

    try:
        facts = devices[0].start()
        host = {"host": os.uname().nodename, "compiler": f"nvrtc-{nvrtc_version()}", **facts}
        results.write([{"packet": manifest["target"], "numerics": manifest.get("numerics", ""), **host}])
        threads = [threading.Thread(target=serve, args=(d,)) for d in devices]
        for t in threads:
            t.start()
        try:
            _feed(manifest, folder, done, results, ready, jobs, deadline)
        finally:
            for _ in threads:
                ready.put(None)
            for t in threads:
                t.join()
    finally:
        for d in devices:
            d.close()
    if failures:
        raise failures[0]
    return results


def _feed(
    manifest: Json, folder: Path, done: set[str], results: Results, ready: queue.Queue[tuple[Json, Json] | None],
    jobs: int | None, deadline: float,
) -> None:  # fmt: skip
    """Compile ahead, in the order of the packet, and queue batches whose kernels are there."""
    arch = manifest["target"]["arch"]
    pool = ThreadPoolExecutor(jobs or os.cpu_count() or 1, "nvrtc")
    building: dict[str, Future[bytes | str]] = {}

    def build(name: str) -> Future[bytes | str]:
        if name not in building:
            s = manifest["sources"][name]
            building[name] = pool.submit(compile_source, (folder / s["file"]).read_text(), s["entry"], arch)
        return building[name]

    def needed(c: Json) -> list[str]:
        return [l["kernel"] for l in [*c["launches"], *c.get("setup", ())]]

    try:
        for group in manifest["groups"]:
            for c in group["candidates"]:
                if f"{group['id']}/{c['id']}" not in done or c["id"] in (group.get("anchor"), group.get("check")):
                    for k in needed(c):
                        build(k)
        for group in manifest["groups"]:
            whole = with_data(group, folder)
            by_id = {c["id"]: c for c in group["candidates"]}
            for wanted in batches(group, done):
                if time.monotonic() > deadline:
                    return
                kernels, good, bad = {}, [], []
                for name in dict.fromkeys([*wanted, *(x for x in (group.get("anchor"), group.get("check")) if x)]):
                    built = {k: build(k).result() for k in needed(by_id[name])}
                    wrong = next((b for b in built.values() if isinstance(b, str)), "")
                    if wrong:
                        bad += [{"group": group["id"], "id": name, "ok": False, "kind": "compile", "reason": wrong}]
                        continue
                    kernels.update({k: kernel_of(manifest, k, b) for k, b in built.items() if isinstance(b, bytes)})
                    good += [name]
                results.write([l for l in bad if l["id"] in wanted])
                usable = {**whole, "anchor": group.get("anchor") if group.get("anchor") in good else ""}
                if group.get("check") in good or whole["expected"]:
                    still = [c for c in wanted if c in good]
                    if still:
                        ready.put((group, task_of(usable, kernels, still)))
    finally:
        pool.shutdown(cancel_futures=True)
