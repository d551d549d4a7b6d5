"""What measures: GPUs of this machine, stand-ins, or a cluster.  All take the same tasks and give the same results.

A task is `emmy.tune.runner.tasks.task_of`: a group cut down to a batch, with machine code.  A result is one JSON object
a candidate.  `submit` returns at once; every executor serves as many tasks at a time as it has `slots`.
"""

from __future__ import annotations

import hashlib
import math
import queue
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from emmy.errors import DeviceError
from emmy.extract.records import STAND_IN
from emmy.tune.runner.device import Device
from emmy.tune.runner.summary import quantile, summary

Json = dict[str, Any]


class Executor(Protocol):
    """`facts`: gpu, capability of the card (the same one everywhere)."""

    @property
    def slots(self) -> int: ...

    @property
    def facts(self) -> Json: ...

    def submit(self, task: Json) -> Future[list[Json]]: ...

    def close(self) -> None: ...


class Local:
    """Worker processes on GPUs of this machine.  DeviceError where one of them cannot be used."""

    def __init__(self, ordinals: Sequence[int] = (0,), make: Callable[[int, Path], Device] = Device) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="emmy-tune-")
        self.devices = [make(k, Path(self.folder.name) / f"gpu{k}.log") for k in ordinals]
        self.free: queue.Queue[Device] = queue.Queue()
        self.pool = ThreadPoolExecutor(len(self.devices), "measure")
        try:
            found = [d.start() for d in self.devices]
        except RuntimeError as e:
            self.close()
            raise DeviceError(str(e), "`emmy doctor` says what is missing; --packet-only needs no GPU") from e
        if len({f["gpu"] for f in found}) > 1:
            self.close()
            raise DeviceError(f"the GPUs differ: {', '.join(f['gpu'] for f in found)}", "tune one kind at a time")
        self._facts = found[0]
        for d in self.devices:
            self.free.put(d)

    @property
    def slots(self) -> int:
        return len(self.devices)

    @property
    def facts(self) -> Json:
        return self._facts

    @property
    def replaced(self) -> int:
        return sum(d.replaced for d in self.devices)

    def submit(self, task: Json) -> Future[list[Json]]:
        return self.pool.submit(self._measure, task)

    def _measure(self, task: Json) -> list[Json]:
        device = self.free.get()
        try:
            return device.measure(task)
        except RuntimeError as e:  # the GPU is gone
            return [{"id": c, "ok": False, "kind": "setup", "reason": str(e)} for c in task["wanted"]]
        finally:
            self.free.put(device)

    def close(self) -> None:
        for d in self.devices:
            d.close()
        self.pool.shutdown(cancel_futures=True)  # what is measured ends with its process
        self.folder.cleanup()


NOISE: Final = 0.25


@dataclass
class StandIn:
    """Times made up from predictions, the same in every run; for tests.  The store keeps them in a regime of their own.

    A row takes its prediction times exp of a number in [-NOISE, NOISE] drawn from its hash.  `failing` maps parts of a
    row's text to the kind of failure that rows with it have.
    """

    failing: Mapping[str, str] = field(default_factory=dict)
    slots: int = 2
    facts: Json = field(default_factory=lambda: {"gpu": STAND_IN, "capability": 90})
    measured: int = 0

    def submit(self, task: Json) -> Future[list[Json]]:
        done: Future[list[Json]] = Future()
        done.set_result([self.result(c, task) for c in task["group"]["candidates"] if c["id"] in task["wanted"]])
        return done

    def result(self, c: Json, task: Json) -> Json:
        self.measured += 1
        kind = next((k for part, k in self.failing.items() if part in c["row"]), "")
        if kind:
            return {
                "id": c["id"],
                "ok": False,
                "kind": kind,
                "reason": f"the stand-in makes rows of this kind fail: {kind}",
            }
        text = f"{task['group']['id']} {c['row']}"
        draw = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2.0**64
        seconds = c["predicted"] * math.exp(NOISE * (2 * draw - 1))
        times = summary([seconds * (1 + 0.001 * k) for k in range(10)])
        return {"id": c["id"], "ok": True, **times, "warm": None, "clock_before": 0.0, "clock_after": 0.0,
                "anchor": 0.0, "copies": 1, "errors": {}, "when": time.time()}  # fmt: skip

    def close(self) -> None:
        pass


__all__ = ["Executor", "Local", "StandIn", "quantile"]
