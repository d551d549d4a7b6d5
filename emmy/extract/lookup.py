"""Everything that is known about a program's bodies, for a compile: the store and the golden file, neither required."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from emmy.errors import StoreError
from emmy.extract.golden import GoldenFile, golden_path, read_golden
from emmy.extract.records import Measurement, Regime, Snapshot
from emmy.extract.store import Store


def evidence_for_compile(
    bodies: Iterable[str],
    regime: Regime,
    golden_directory: Path,
    *,
    database: Path | str | None = None,
    plans: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> tuple[Snapshot, tuple[str, ...]]:
    """What is known, and a text for each source that was lost.  Never raises StoreError, never writes."""
    wanted, lost = sorted(set(bodies)), []
    snapshot = Snapshot()
    store = Store.open_for_compile(database)
    if isinstance(store, str):
        lost.append(store)
    else:
        try:
            snapshot = store.snapshot(wanted, regime, plans)
        except StoreError as error:
            lost.append(f"lost tier: measured ({error.what})")
    if environ.get("EMMY_GOLDEN_FILE") == "":
        return without_source(snapshot, "golden"), tuple(lost)
    path = golden_path(regime, golden_directory, environ)
    if path is None:
        return snapshot, tuple(lost)
    try:
        file = read_golden(path, set(wanted))
    except StoreError as error:
        return snapshot, (*lost, f"lost: golden measurements ({error.what})")
    golden = [m for m in file.measurements if regime.same_card(m.regime)]
    found = with_measurements(without_source(snapshot, "golden"), golden, wanted, regime)
    return replace(found, proposals=proposals_of(file, wanted)), tuple(lost)


def proposals_of(file: GoldenFile, bodies: Iterable[str]) -> dict[str, tuple[tuple[str, str], ...]]:
    """(family, row) of the file's rows without times, by body."""
    wanted, found = set(bodies), defaultdict[str, list[tuple[str, str]]](list)
    for r in file.proposals:
        if r.body in wanted:
            found[r.body].append((r.family, r.row))
    return {body: tuple(dict.fromkeys(rows)) for body, rows in found.items()}


def without_source(snapshot: Snapshot, source: str) -> Snapshot:
    kept = {body: [m for m in ms if m.source != source] for body, ms in snapshot.measurements.items()}
    biases = tuple(m for m in snapshot.biases if m.source != source)
    return replace(snapshot, measurements={b: ms for b, ms in kept.items() if ms}, biases=biases)


def with_measurements(
    snapshot: Snapshot, more: Iterable[Measurement], bodies: Iterable[str], regime: Regime
) -> Snapshot:
    """The snapshot with further measurements of these bodies."""
    listed, wanted = list(more), set(bodies)
    merged: dict[str, list[Measurement]] = defaultdict(list, {b: list(ms) for b, ms in snapshot.measurements.items()})
    for m in listed:
        if m.body in wanted:
            merged[m.body].append(m)
    biases = (*snapshot.biases, *(m for m in listed if m.regime == regime))
    return replace(snapshot, measurements=dict(merged), biases=biases)
