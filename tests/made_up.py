"""Stores filled with made-up times: what the evaluation of evidence is tested on.  Nothing here was ever measured."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from emmy.egraph.schedule import schedule_rows
from emmy.evidence.measured import analytic
from emmy.extract.golden import GoldenRow
from emmy.extract.records import KernelRecord, Measurement, Regime
from emmy.extract.store import Store
from emmy.ir.loop import Body
from emmy.ir.schedule import Scheduled
from emmy.ir.target import TARGETS
from emmy.resources import rulesets

TARGET = TARGETS["sm_90a"]
# a compiler that there is not: these rows can decide nothing
REGIME = Regime(TARGET.gpu, TARGET.capability, "made-up")


def legal(body: Body) -> list[Scheduled]:
    return schedule_rows([body], TARGET, {}, rulesets()).rows[body.hash]


def made_up(body: Body, count: int, seed: int = 0, noise: float = 0.0, regime: Regime = REGIME) -> list[Measurement]:
    """Times near the analytic prior's for its first pick and `count` rows drawn at random."""
    rows, rng = legal(body), random.Random(seed)
    seconds = analytic(body, rows, TARGET, {})
    pick = min(range(len(rows)), key=lambda i: (seconds[i], rows[i].row.text))
    drawn = dict.fromkeys(rng.sample(range(len(rows)), min(count, len(rows))), "uniform") | {pick: "pick"}
    found = []
    for i, why in sorted(drawn.items()):
        t = float(seconds[i]) * (1.0 + noise * rng.random())
        found.append(
            Measurement(
                body.hash, (), rows[i].family, rows[i].row.text, regime, 20, t, t * 0.99, t * 1.01, when=1.0, drawn=why
            )
        )
    return found


def filled(path: Path, bodies: Sequence[tuple[str, Body]], count: int = 30, noise: float = 0.0) -> Store:
    store = Store(path)
    store.record_kernels(KernelRecord(b.hash, b.text, name, {"programs": f"model_{name}"}) for name, b in bodies)
    for k, (_, body) in enumerate(bodies):
        store.record_measurements(made_up(body, count, k, noise))
    return store


def golden_rows(measurements: Iterable[Measurement], names: Mapping[str, str]) -> list[GoldenRow]:
    """Rows for `write_golden`; `names` gives a body's name."""
    return [GoldenRow(m.body, names.get(m.body, ""), m.sizes, m.family, m.row, m) for m in measurements]


def slower(m: Measurement, factor: float) -> Measurement:
    return replace(m, median=m.median * factor, p10=m.p10 * factor, p90=m.p90 * factor)
