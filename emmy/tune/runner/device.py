"""A GPU as its parent sees it: a worker process that is replaced when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
CHECK_SECONDS: Final = 10.0
SETUP_SECONDS: Final = 120.0


class Died(Exception):
    """The worker ended or was silent for too long; `kind` of the failure."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class Lost:
    """Where a worker was when it died: at which candidate (empty: at none) and in which stage."""

    at: str
    stage: str
    kind: str
    reason: str


def _environment() -> dict[str, str]:
    """This process's, in which this package is found under the name that it has here."""
    root = Path(__file__).resolve().parents[len(str(__package__).split("."))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])}


class Worker:
    """A child process for one GPU."""

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        self.data = b""
        self.log = log
        sink: Any = subprocess.DEVNULL if log is None else log.open("ab")
        try:
            # in a session of its own: Ctrl-C is for the parent, which ends it
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,
                env=_environment(),
            )
        finally:
            if log is not None:
                sink.close()

    def send(self, task: Json) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError) as e:  # ended, or closed by another thread
            raise Died("crash", self.why()) from e

    def line(self, seconds: float) -> Json:
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self.data:
            left = deadline - time.monotonic()
            try:
                if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                    raise Died("timeout", f"no answer in {seconds:.0f} s")
                more = os.read(self.process.stdout.fileno(), 1 << 16)
            except (OSError, ValueError) as e:  # closed by another thread
                raise Died("crash", self.why()) from e
            if not more:
                self.process.wait()
                raise Died("crash", self.why())
            self.data += more
        first, _, self.data = self.data.partition(b"\n")
        answer: Json = json.loads(first)
        return answer

    def why(self) -> str:
        tail = ""
        if self.log is not None and self.log.exists():
            lines = self.log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
            tail = ": " + " | ".join(lines[-2:]) if lines else ""
        return f"the worker ended with {self.process.poll()}{tail}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a pipe whose reader is gone cannot take what is left
                    pipe.close()


class Device:
    """One GPU with a worker process that is replaced when it dies.  One thread measures; any may close it."""

    def __init__(
        self, ordinal: int, log: Path | None = None, check_seconds: float = CHECK_SECONDS,
        setup_seconds: float = SETUP_SECONDS, command: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.ordinal, self.log = ordinal, log
        self.check_seconds, self.setup_seconds = check_seconds, setup_seconds
        self.command = list(command or [sys.executable, "-P", "-m", f"{__package__}.worker", str(ordinal)])
        self.worker: Worker | None = None
        self.facts: Json = {}
        self.replaced = 0
        self.closed = False
        self.lock = threading.Lock()  # over `worker` and `closed`: no process is started once it is closed

    def start(self) -> Json:
        """Facts of the card: gpu, capability, l2.  RuntimeError where there is none."""
        with self.lock:
            if self.closed:
                raise RuntimeError(f"GPU {self.ordinal} was given back")
            worker = None if self.worker else Worker(self.command, self.log)
            self.worker = self.worker or worker
        if worker is not None:
            try:
                self.facts = worker.line(self.setup_seconds)
            except Died as e:
                self.drop()
                raise RuntimeError(f"GPU {self.ordinal} cannot be used: {e}") from e
        return self.facts

    def measure(self, task: Json) -> list[Json]:
        """A result for every candidate in `task["wanted"]`, in that order; the anchor's too where it is another."""
        results: dict[str, Json] = {}
        todo, group = list(task["wanted"]), task["group"]
        alone = False
        for _ in range(2 * len(todo) + 4):
            left = [c for c in todo if c not in results]
            if not left:
                break
            if not results.get(group.get("anchor", ""), {"ok": True})["ok"]:
                group = {**group, "anchor": ""}
            batch = left[:1] if alone else left
            lost = self.attempt({**task, "group": group, "wanted": batch}, results)
            if lost is None:
                continue
            if lost.stage in ("setup", "reference"):
                why = f"{lost.kind}: {lost.reason}"
                results.update({c: {"ok": False, "kind": lost.stage, "reason": why} for c in left})
            elif lost.at or len(batch) == 1:
                results.setdefault(lost.at or batch[0], {"ok": False, "kind": lost.kind, "reason": lost.reason})
            else:
                alone = True  # one by one, so that whoever is to blame is found
        for c in todo:
            results.setdefault(c, {"ok": False, "kind": "crash", "reason": "the worker died over and over"})
        return [{**results[c], "id": c} for c in dict.fromkeys([*todo, *results])]

    def attempt(self, task: Json, results: dict[str, Json]) -> Lost | None:
        """Adds to `results`; where and why the worker was lost, or could not go on, before all were measured."""
        at, stage, seconds = "", "setup", self.setup_seconds
        lost = None
        try:
            self.start()
            worker = self.worker
            if worker is None:
                raise RuntimeError(f"GPU {self.ordinal} was given back")
            worker.send(task)
            while not (line := worker.line(seconds)).get("done"):
                if "at" not in line:
                    results.setdefault(line["id"], line)
                    continue
                at, stage = line["at"], line["stage"]
                seconds = self.setup_seconds if stage in ("setup", "reference") else self.check_seconds
                if line.get("kind"):
                    lost = Lost(at, stage, line["kind"], line["reason"])
        except Died as e:
            self.drop()
            return None if at in results else Lost(at, stage, e.kind, str(e))
        return lost

    def drop(self) -> None:
        with self.lock:
            worker, self.worker = self.worker, None
        if worker is not None:
            worker.stop()
            self.replaced += 1

    def close(self) -> None:
        """End the worker; a measurement that goes on in another thread ends with a RuntimeError."""
        with self.lock:
            self.closed = True
        self.drop()
