"""Which candidates get more samples, and what these mean while the card grows warm."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from emmy.tune.runner.batch import Batch

TIMES = {"first": 11e-6, "good": 10e-6, "near": 10.8e-6}
SLOWER = (1.0, 1.1, 1.25)  # by how much the card is slower in each of the three rounds


class Warming(Batch):
    """A batch whose candidates take known times on a card that grows warm."""

    def __init__(self, anchor: str) -> None:
        self.group = {"anchor": anchor, "least_seconds": 0.0}
        self.card: Any = SimpleNamespace(clocks=SimpleNamespace(now=lambda: 1.98e9))
        self.buffers: Any = SimpleNamespace(reference=True)
        self.said: list[dict[str, Any]] = []
        self.say = self.said.append
        self.seen: list[list[str]] = []

    def attempt(self, name: str) -> Any:
        return SimpleNamespace(
            id=name, estimate=TIMES[name], samples=[], warm_samples=[], nodes=1, errors={}, close=lambda: None
        )

    def sample(self, alive: Sequence[Any], rounds: int) -> dict[str, list[float]]:
        slower = SLOWER[len(self.seen)]
        self.seen.append([c.id for c in alive])
        return {c.id: [TIMES[c.id] * slower] * rounds for c in alive}

    def medians(self) -> dict[str, float]:
        self.run(list(TIMES), warm=False)
        return {r["id"]: r["median"] for r in self.said if r.get("ok")}


def test_samples_of_later_rounds_are_told_at_the_state_of_the_first() -> None:
    batch = Warming("first")
    assert batch.medians() == pytest.approx(TIMES)
    # the anchor is 10 % behind the best and still measured with it
    assert batch.seen == [["first", "good", "near"], ["first", "good", "near"], ["first", "good"]]


def test_without_an_anchor_the_best_pay_for_their_later_samples() -> None:
    found = Warming("").medians()
    assert found["good"] > found["near"]  # why there is an anchor


class Interrupted(Batch):
    """A batch of one kernel, between whose first events the host was interrupted."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.say = lambda result: None
        self.seconds = list(seconds)

    def load(self, name: str) -> Any:
        return SimpleNamespace(id=name, estimate=0.0, build=lambda buffers: None)

    def launch(self, c: Any) -> None: ...

    def wrong(self, c: Any) -> str:
        return ""

    def once(self, c: Any) -> float:
        return self.seconds.pop(0)

    buffers: Any = None


@pytest.mark.parametrize("seconds, estimate", [([4e-3, 7e-5], 7e-5), ([4e-3, 4.1e-3], 4e-3), ([7e-5], 7e-5)])
def test_a_long_first_launch_is_timed_again(seconds: list[float], estimate: float) -> None:
    batch = Interrupted(seconds)
    assert batch.attempt("k").estimate == estimate
    assert not batch.seconds
