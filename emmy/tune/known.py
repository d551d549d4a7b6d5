"""What a search knows: what the store held of its program at the start, and what was measured or failed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emmy.errors import LoweringError
from emmy.extract.records import STAND_IN, Failure, Measurement, Regime, Snapshot
from emmy.extract.store import Store
from emmy.runtime.nvrtc import nvrtc_version
from emmy.saturation import Saturation
from emmy.tune.packet import card_name


@dataclass
class Known:
    """`base` is what was known of the program's bodies in `regime`; `new` measurements and `broken` rows by body."""

    regime: Regime
    base: Snapshot
    new: dict[str, list[Measurement]] = field(default_factory=dict)
    broken: dict[str, list[Failure]] = field(default_factory=dict)

    def measured(self, body: str, found: Iterable[Measurement]) -> None:
        """Measurements of this regime count from now on."""
        self.new.setdefault(body, []).extend(m for m in found if m.regime == self.regime)

    def failed(self, failure: Failure) -> None:
        self.broken.setdefault(failure.body, []).append(_ours(failure))

    def snapshot(self) -> Snapshot:
        """All of it, as a choice asks for it."""
        base = self.base
        measurements = {b: [*base.measured(b), *self.new.get(b, ())] for b in {*base.measurements, *self.new}}
        failures = {b: [*base.failed(b), *self.broken.get(b, ())] for b in {*base.failures, *self.broken}}
        biases = (*base.biases, *(m for ms in self.new.values() for m in ms))
        return replace(base, measurements=measurements, failures=failures, biases=biases)


def known_at_start(start: Saturation, facts: Mapping[str, Any], store: Store, note: Callable[[str], None]) -> Known:
    """What the compile knew; where the executor's times (`facts`: its gpu and capability) belong to another regime,
    what is known there.  LoweringError for a GPU that the program was not compiled for."""
    regime = _regime(start, facts, note)
    if regime == start.regime:
        return Known(regime, start.selection.evidence)
    found = store.snapshot([b.hash for b in start.model.bodies()], regime)
    found = replace(found, proposals=start.selection.evidence.proposals)
    if regime.gpu == STAND_IN:
        failures = {b: [_ours(f) for f in fs if f.arch == STAND_IN] for b, fs in found.failures.items()}
        found = replace(found, failures=failures)
    return Known(regime, found)


def _regime(start: Saturation, facts: Mapping[str, Any], note: Callable[[str], None]) -> Regime:
    """Where the executor's times are evidence."""
    mine, target = start.regime, start.options.target
    if facts["gpu"] == STAND_IN:
        return replace(mine, gpu=STAND_IN)
    if facts["capability"] != target.capability:
        raise LoweringError(
            f"the GPU is sm_{facts['capability']} ({facts['gpu']}), the program is compiled for {target.arch}",
            "leave --target and --gpu out, or write a packet with --packet-only",
        )
    gpu = card_name(facts["gpu"])
    if gpu != mine.gpu:
        note(f"measurements on {gpu} are no evidence for {mine.gpu}: name the card with --gpu where you compile")
    return replace(mine, gpu=gpu, compiler=f"nvrtc-{nvrtc_version()}")


def _ours(f: Failure) -> Failure:
    """A stand-in's failure as one of whatever card, for its own search only."""
    return replace(f, arch="") if f.arch == STAND_IN else f
