"""Made-up measurements in which the analytic prior errs in a way that can be learned.  Nothing here was measured."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from emmy.evidence.fit import Recipe
from emmy.evidence.measured import MeasuredBody, analytic, read_measured
from emmy.extract.records import KernelRecord, Measurement
from emmy.extract.store import Store
from emmy.ir.loop import Body
from tests.bodies import linear, matvec
from tests.made_up import REGIME, TARGET, legal, slower

QUICK = Recipe(members=3, rounds=20, rows=60)
# (program, body): bodies of `alpha@…` are one model's
NAMED: list[tuple[str, Body]] = [
    *((f"linear@{m}x{n}x{k}", linear(m, n, k)) for m, n, k in (
        (64, 256, 256), (128, 256, 512), (256, 512, 256), (512, 512, 512), (1024, 256, 256), (64, 1024, 512),
        (2048, 256, 128),
    )),
    *(("alpha@512", linear(m, 512, 256)) for m in (96, 160, 320, 640)),
    ("matvec@512", matvec(512, 512)),
]  # fmt: skip


def true_seconds(body: Body, rows: list) -> np.ndarray:
    """Deep rings and large blocks take longer than the analytic prior believes."""
    seconds = analytic(body, rows, TARGET, {})
    wrong = [(2.5 if r.config.stages >= 4 else 1.0) * (1.6 if r.config.block_threads >= 256 else 1.0) for r in rows]
    return seconds * np.array(wrong)


@functools.cache
def rows_of(name: str, body: Body, count: int = 60) -> tuple[Measurement, ...]:
    rows = legal(body)
    times = true_seconds(body, rows)
    drawn = np.random.default_rng(len(name)).permutation(len(rows))[:count]
    drawn = {*drawn.tolist(), int(np.argmin(times)), int(np.argmin(analytic(body, rows, TARGET, {})))}
    return tuple(
        Measurement(
            body.hash, (), rows[k].family, rows[k].row.text, REGIME, 20, t := float(times[k]), t * 0.99, t * 1.01,
            when=1.0, drawn="uniform",
        )
        for k in sorted(drawn)
    )  # fmt: skip


def store_of(path: Path, named: list[tuple[str, Body]] | None = None, noise: float = 0.0) -> Store:
    """`noise`: deviation of the logarithm of what times are multiplied with."""
    rng = np.random.default_rng(7)
    store = Store(path)
    for name, body in NAMED if named is None else named:
        store.record_kernels([KernelRecord(body.hash, body.text, "k_linear", {"programs": name})])
        store.record_measurements(slower(m, float(np.exp(noise * rng.normal()))) for m in rows_of(name, body))
    return store


def measured_bodies(path: Path, named: list[tuple[str, Body]] | None = None) -> tuple[MeasuredBody, ...]:
    return read_measured(store_of(path, named)).bodies
