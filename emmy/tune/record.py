"""From results to rows of the store, batch by batch; nothing that was measured is lost when the store takes nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from emmy.errors import StoreError
from emmy.extract.exchange import write_lines
from emmy.extract.records import STAND_IN, Failure, KernelRecord, Measurement, Regime, Sizes
from emmy.extract.store import Store, rows_of
from emmy.tune.runner.summary import steady

Json = dict[str, Any]
# failures that are no fault of the row
INNOCENT: Final = ("memory", "setup", "reference", "drift")


def steadied(result: Json, reference: float | None) -> Json:
    """A good result at the state of the card in which the batch's anchor takes `reference` seconds.

    Clocks fall as a card grows warm, for all kernels of a batch alike, so that rows of two batches would be told apart
    by when they were measured.  Without a reference, or an anchor that was timed, or where the two are further apart
    than clocks are, the result is as it was.
    """
    scale = steady(reference or 0.0, result.get("anchor", 0.0))
    if scale == 1.0:
        return result
    timed = {**result, **{k: result[k] * scale for k in ("median", "p10", "p90")}}
    if result.get("warm"):
        timed["warm"] = {**result["warm"], **{k: result["warm"][k] * scale for k in ("median", "p10", "p90")}}
    return timed


def measurements_of(
    result: Json, body: str, sizes: Sizes, family: str, row: str, regime: Regime, source: str, when: float
) -> list[Measurement]:
    """The cold measurement, and the warm one where there is one."""
    found = []
    for where, times in ((replace(regime, l2="cold"), result), (replace(regime, l2="warm"), result.get("warm"))):
        if times:
            found.append(
                Measurement(
                    body, sizes, family, row, where, times["n"], times["median"], times["p10"], times["p90"],
                    result.get("clock_before", 0.0), result.get("clock_after", 0.0), source, when,
                )
            )  # fmt: skip
    return found


def failure_of(result: Json, body: str, sizes: Sizes, row: str, regime: Regime, arch: str, when: float) -> Failure:
    """A stand-in's failures are of no real architecture."""
    where = STAND_IN if regime.gpu == STAND_IN else arch
    return Failure(body, row, result["kind"], result["reason"][:500], where, sizes, when)


@dataclass
class Recorder:
    """Writes batches; what the store does not take waits for the next one."""

    store: Store
    note: Callable[[str], None]
    waiting: list[Measurement] = field(default_factory=list)
    waiting_failures: list[Failure] = field(default_factory=list)
    waiting_kernels: list[KernelRecord] = field(default_factory=list)
    written: int = 0
    complained: bool = False
    _last: float = 0.0

    def now(self) -> float:
        """Seconds since 1970; never earlier than the last answer, whatever happens to the machine's clock."""
        self._last = max(time.time(), self._last)
        return self._last

    def add(self, measurements: Sequence[Measurement], failures: Sequence[Failure]) -> None:
        """One batch, written at once if the store takes it."""
        self.waiting += measurements
        self.waiting_failures += failures
        self.flush()

    def flush(self) -> bool:
        """Write what waits; False where the store took nothing, which is said once."""
        try:
            # bodies first: without their Loop IR times can be neither reviewed nor learnt from
            self.store.record_kernels(self.waiting_kernels)
            self.waiting_kernels = []
            self.store.record_measurements(self.waiting)
            self.written += len(self.waiting)
            self.waiting = []
            self.store.record_failures(self.waiting_failures)
            self.waiting_failures = []
        except StoreError as e:
            if not self.complained:
                self.note(f"{e.what}; {len(self.waiting)} measurements wait for it")
            self.complained = True
            return False
        self.complained = False
        return True

    def finish(self) -> None:
        """Write what waits.  StoreError names the file that took it instead where the store still takes nothing."""
        if self.flush():
            return
        tables = rows_of(self.waiting_kernels, self.waiting, self.waiting_failures)
        with tempfile.NamedTemporaryFile("w", prefix="emmy-unsaved-", suffix=".jsonl", delete=False) as f:
            write_lines(tables, f)
        raise StoreError(
            f"{len(self.waiting) + len(self.waiting_failures)} results could not be written to the evidence store",
            f"they are in {f.name}: `emmy db import` adds them once the store takes them",
        )
