"""Several GPUs of a machine, and a cluster, with worker processes that touch no GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emmy.errors import DeviceError, UsageError
from emmy.tune.cluster import Cluster
from emmy.tune.executors import Local, StandIn
from emmy.tune.runner.device import Device
from tests.tune.groups import task

WORKER = Path(__file__).with_name("worker.py")


def command(folder: Path) -> list[str]:
    return [sys.executable, str(WORKER), str(folder)]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local([0, 1], lambda k, log: Device(k, log, check_seconds=1.0, command=command(tmp_path)))
    yield made
    made.close()


def test_tasks_go_to_every_gpu_of_the_machine(local: Local) -> None:
    tasks = [local.submit(task([f"a{k}", f"b{k}"])) for k in range(6)]
    assert [[r["ok"] for r in t.result(timeout=60)] for t in tasks] == [[True, True]] * 6
    assert local.slots == 2 and local.facts["gpu"] == "stand-in"


def test_one_gpu_that_hangs_does_not_stop_the_other(local: Local) -> None:
    one, other = local.submit(task(["hang", "a"])), local.submit(task(["b", "c"]))
    assert [r["ok"] for r in other.result(timeout=60)] == [True, True]
    assert [r["ok"] for r in one.result(timeout=60)] == [False, True]
    assert local.replaced == 1


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DeviceError, match="GPU 0 cannot be used"):
        Local([0], lambda k, log: Device(k, log, command=[sys.executable, "-c", "raise SystemExit(1)"]))


def test_a_gpu_that_is_given_back_ends_what_it_measures(tmp_path: Path) -> None:
    made = Local([0], lambda k, log: Device(k, log, check_seconds=30.0, command=command(tmp_path)))
    waiting = made.submit(task(["hang", "a"]))
    while made.devices[0].worker is None or not made.free.empty():
        time.sleep(0.01)
    made.close()
    assert {r["kind"] for r in waiting.result(timeout=20)} <= {"setup", "crash"}


def test_the_stand_in_gives_the_same_times_in_every_run() -> None:
    one, other = (StandIn().submit(task(["a", "b"])).result() for _ in range(2))
    assert [r["median"] for r in one] == [r["median"] for r in other]
    assert one[0]["median"] != one[1]["median"]


# ---- a cluster -------------------------------------------------------------------------------------------------------


class Actor:
    """A handle whose methods run at once; `lost` actors raise as Ray does."""

    def __init__(self, made: Any, error: type[Exception]) -> None:
        self.made, self.error, self.lost = made, error, False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: (self, name, args))


class Ray:
    """Ray's interface as far as it is used, in this process."""

    def __init__(self, gpus: int) -> None:
        self.exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
        self.gpus = gpus
        self.actors: list[Actor] = []
        self.wanted: list[float] = []
        self.live = False

    def init(self, address: str) -> None:
        self.live = True

    def shutdown(self) -> None:
        self.live = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": float(self.gpus)}

    def remote(self, num_gpus: float) -> Any:
        def of(cls: type) -> Any:
            def make(*args: Any) -> Actor:
                self.wanted.append(num_gpus)
                self.actors.append(Actor(cls(*args), self.exceptions.RayError))
                return self.actors[-1]

            return SimpleNamespace(remote=make)

        return of

    def get(self, wanted: Any, timeout: float | None = None) -> Any:
        if isinstance(wanted, list):
            return [self.get(w) for w in wanted]
        actor, name, args = wanted
        if actor.lost:
            raise self.exceptions.RayError("the actor died")
        return getattr(actor.made, name)(*args)

    def kill(self, actor: Actor) -> None:
        actor.made.close()


def test_two_workers_of_a_cluster_take_the_same_tasks(tmp_path: Path) -> None:
    ray = Ray(gpus=2)
    cluster = Cluster("auto", ray, command=command(tmp_path))
    try:
        tasks = [cluster.submit(task([f"a{k}", "hang_not" if k < 0 else f"b{k}"])) for k in range(4)]
        assert [[r["ok"] for r in t.result(timeout=60)] for t in tasks] == [[True, True]] * 4
        assert cluster.slots == 2 and cluster.facts["gpu"] == "stand-in"
    finally:
        cluster.close()
    assert not ray.live


def test_a_node_that_is_lost_costs_its_batch_only(tmp_path: Path) -> None:
    ray = Ray(gpus=2)
    cluster = Cluster("auto", ray, command=command(tmp_path))
    try:
        ray.actors[0].lost = True
        found = [cluster.submit(task(["a"])).result(timeout=60)[0] for _ in range(3)]
        assert sorted(r.get("kind", "ok") for r in found) == ["crash", "ok", "ok"]
    finally:
        cluster.close()


def test_a_cluster_that_is_lost_whole_is_no_fault_of_the_rows(tmp_path: Path) -> None:
    ray = Ray(gpus=1)
    cluster = Cluster("auto", ray, command=command(tmp_path))
    try:
        ray.actors[0].lost = True
        found = [cluster.submit(task(["a"])).result(timeout=60)[0]["kind"] for _ in range(3)]
        assert found == ["crash", "setup", "setup"]
    finally:
        cluster.close()


def test_a_cluster_without_gpus_is_an_error() -> None:
    with pytest.raises(DeviceError, match="has no GPU"):
        Cluster("auto", Ray(gpus=0))


def test_the_code_on_a_node_needs_no_emmy(tmp_path: Path) -> None:
    from emmy.tune.cluster import _by_value

    ray = Ray(gpus=1)
    cluster = Cluster("auto", ray, command=command(tmp_path))
    try:
        device = ray.actors[0].made.device
        assert type(device).__module__ == "emmy_runner.device"
    finally:
        cluster.close()
    assert _by_value(Device).__module__ == "__main__"


def test_ray_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="needs Ray"):
        Cluster("auto")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what Ray warns of is not ours
def test_two_workers_of_a_real_cluster_take_the_same_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster = Cluster("local", workers=2, command=command(tmp_path))
    try:
        tasks = [cluster.submit(task([f"a{k}", "hang", f"b{k}"][: 3 if k == 0 else 1])) for k in range(4)]
        found = [[r["ok"] for r in t.result(timeout=120)] for t in tasks]
        assert found == [[True, False, True], [True], [True], [True]]
        assert cluster.slots == 2
    finally:
        cluster.close()
