"""GPUs of several machines, by a Ray cluster (`pip install emmy-egraph[cluster]`).

Every GPU of the cluster gets an actor that holds the runner's `Device`; the runner's source travels with it, so that a
node needs Ray, numpy and the CUDA bindings, neither PyTorch nor Emmy.  The driver compiles, and alone writes the store.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from emmy.errors import DeviceError, UsageError
from emmy.tune.runner import bundle

Json = dict[str, Any]
_START_SECONDS: Final = 120.0


class Measurer:
    """What runs on a node: a `Device` of the runner whose source it is given."""

    def __init__(self, files: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        import sys
        import tempfile
        from importlib import import_module

        folder = Path(tempfile.mkdtemp(prefix="emmy-runner-"))
        package = folder / "emmy_runner"
        package.mkdir()
        for name, text in files.items():
            (package / name).write_text(text, encoding="utf-8")
        sys.path.insert(0, str(folder))
        device = import_module("emmy_runner.device")
        # Ray shows an actor its own GPU only, as number 0
        self.device = device.Device(0, folder / "log", command=command)

    def start(self) -> Json:
        facts: Json = self.device.start()
        return facts

    def measure(self, task: Json) -> list[Json]:
        results: list[Json] = self.device.measure(task)
        return results

    def close(self) -> None:
        self.device.close()


class Cluster:
    """An executor over all GPUs of a Ray cluster.  `ray` is the module, for tests another of its interface.

    Errors: UsageError where Ray is missing, DeviceError where the cluster has no GPU that can be used.
    """

    def __init__(
        self, address: str, ray: Any = None, workers: int | None = None, command: Sequence[str] | None = None
    ) -> None:
        self.ray = ray if ray is not None else _ray()
        self.ray.init(address=address)
        resources = self.ray.cluster_resources()
        count = workers or int(resources.get("GPU", 0))
        if not count:
            self.ray.shutdown()
            raise DeviceError(f"the Ray cluster at {address} has no GPU", "start its nodes with --num-gpus")
        files = bundle.sources()
        # Ray pickles a class by value only where its module is not to be imported on the node
        actor = self.ray.remote(num_gpus=0 if command else 1)(_by_value(Measurer))
        self.actors = [actor.remote(files, command) for _ in range(count)]
        try:
            found = self.ray.get([a.start.remote() for a in self.actors], timeout=_START_SECONDS)
        except (self.ray.exceptions.RayError, RuntimeError) as e:
            self.close()
            raise DeviceError(f"a GPU of the cluster cannot be used: {e}", "see the logs of its nodes") from e
        if len({f["gpu"] for f in found}) > 1:
            self.close()
            cards = ", ".join(sorted({f["gpu"] for f in found}))
            raise DeviceError(f"the cluster's GPUs differ: {cards}", "tune one kind at a time")
        self._facts: Json = found[0]
        self.free: queue.Queue[Any] = queue.Queue()
        for a in self.actors:
            self.free.put(a)
        self.pool = ThreadPoolExecutor(len(self.actors), "cluster")
        self.lock, self.alive = threading.Lock(), len(self.actors)

    @property
    def slots(self) -> int:
        return len(self.actors)

    @property
    def facts(self) -> Json:
        return self._facts

    def submit(self, task: Json) -> Future[list[Json]]:
        return self.pool.submit(self._measure, task)

    def _measure(self, task: Json) -> list[Json]:
        actor = self.free.get()
        if actor is None:
            self.free.put(None)
            reason = "all nodes of the cluster were lost"
            return [{"id": c, "ok": False, "kind": "setup", "reason": reason} for c in task["wanted"]]
        try:
            results: list[Json] = self.ray.get(actor.measure.remote(task))
        except self.ray.exceptions.RayError as e:  # the node is gone: what it measured is measured elsewhere
            with self.lock:
                self.alive -= 1
                if not self.alive:
                    self.free.put(None)
            reason = f"a node of the cluster was lost: {e}"
            return [{"id": c, "ok": False, "kind": "crash", "reason": reason[:500]} for c in task["wanted"]]
        else:
            self.free.put(actor)
        return results

    def close(self) -> None:
        for a in self.actors:
            self.ray.kill(a)
        self.ray.shutdown()


def _by_value(cls: type) -> type:
    """The class as one of `__main__`, which is pickled with its code."""
    return type(cls.__name__, (object,), {**dict(cls.__dict__), "__module__": "__main__"})


def _ray() -> Any:
    try:
        import ray
    except ImportError as e:
        raise UsageError("--cluster needs Ray, which is not installed", "pip install 'emmy-egraph[cluster]'") from e
    return ray
