"""Fits the prior's constants to measured rows, and says how well they rank.

    python -m experiments.fit_prior [--data experiments/results/prior_h200.json] [--fit]

The data hold, for each case, the body's text and rows with their measured microseconds.  The fit is least squares on
the logarithm of predicted over measured seconds, rows near a case's best weighing most, every constant bounded to what
microbenchmarks allow.  Cases that were measured with L2 warm and fit into it count by the differences between their
rows alone.  Printed: for every case the regret (the measured time of the row that is predicted best over the best
measured), the rank correlation and the geometric-mean error; then a line a family; with --fit the same after it and the
constants to put into `emmy.extract.prior.Constants`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped]
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from emmy.egraph.schedule import FAMILIES
from emmy.extract.constants import FITTED, Constants
from emmy.extract.prior import predict_many
from emmy.extract.work import Work, analyse
from emmy.ir.config import KernelConfig
from emmy.ir.parse import parse_body
from emmy.ir.schedule import Row
from emmy.ir.target import Target, target

Array = npt.NDArray[np.float64]

# (least, usual, most) that is physically sensible, for each constant
BOUNDS: Final[dict[str, tuple[float, float, float]]] = {
    "norm": (1.5, 3.0, 6.0),
    "serial_norm": (1.2, 2.0, 4.0),
    "dram_clocks": (600.0, 800.0, 1800.0),
    "l2_clocks": (200.0, 280.0, 700.0),
    "l1_clocks": (30.0, 40.0, 150.0),
    "l2_bytes": (32.0, 45.0, 64.0),
    "barrier_clocks": (20.0, 60.0, 300.0),
    "step_clocks": (20.0, 100.0, 500.0),
    "sync_clocks": (0.0, 100.0, 600.0),
    "shuffle_clocks": (20.0, 30.0, 60.0),
    "costly_rounds": (2.0, 4.0, 8.0),
    "combine_slots": (3.0, 5.0, 12.0),
    "costly_slots": (15.0, 35.0, 60.0),
    "thread_slots": (10.0, 40.0, 100.0),
    "chain_clocks": (2.0, 5.0, 10.0),
    "free_clocks": (1.0, 2.0, 5.0),
    "phases": (0.0, 0.2, 1.0),
    "start_clocks": (300.0, 800.0, 3000.0),
    "ramp_clocks": (0.0, 1000.0, 2000.0),
    "block_clocks": (80.0, 160.0, 300.0),
    # a multiplication and an addition become one instruction, and pipes overlap
    "slot": (0.5, 1.0, 2.0),
    "load_slots": (1.0, 4.0, 8.0),
    "copy_slots": (6.0, 12.0, 30.0),
    "tile_loads": (2.0, 8.0, 16.0),
    "thread_warps": (2.0, 6.0, 16.0),
    "tile_warps": (0.5, 1.5, 6.0),
    "sector_clocks": (1.0, 2.0, 4.0),
    "walked": (0.0, 0.1, 0.5),
    "wide": (0.0, 0.3, 1.0),
    "l1_share": (0.4, 0.7, 1.0),
    "l2_share": (0.4, 0.7, 1.0),
}
# How strongly a constant is drawn to its usual value: data that tell little of it leave it there.
PULL: Final = 0.15


@dataclass(frozen=True)
class Case:
    name: str
    work: Work
    families: tuple[str, ...]
    configs: tuple[KernelConfig, ...]
    measured: Array
    # measured with L2 warm, and small enough to stay in it
    cached: bool

    @staticmethod
    def of(record: dict[str, object], card: Target) -> Case:
        body = parse_body(str(record["body"]))
        work = analyse(body)
        by_name = {f.name: f for f in FAMILIES}
        rows: list[tuple[str, str, float]] = record["rows"]  # type: ignore[assignment]
        configs = tuple(by_name[family].config(body, Row.parse(row), card, {}) for family, row, _ in rows)
        cached = record["l2"] == "warm" and work.bytes < 0.7 * card.l2_bytes
        seconds = np.array([us * 1e-6 for _, _, us in rows])
        return Case(str(record["name"]), work, tuple(r[0] for r in rows), configs, seconds, cached)

    def residuals(self, card: Target, constants: Constants) -> Array:
        """log(predicted / measured) of each row; around their mean where the absolute time means little."""
        found: Array = np.log(predict_many(self.work, self.configs, card, constants) / self.measured)
        return found - np.median(found) if self.cached else found

    def weights(self) -> Array:
        found: Array = (self.measured.min() / self.measured) ** 0.5 / np.sqrt(len(self.measured))
        return found


def read(path: Path) -> tuple[list[Case], Target]:
    data = json.loads(path.read_text())
    card = target(data["arch"])
    return [Case.of(c, card) for c in data["cases"]], card


def fit(cases: Sequence[Case], card: Target, start: Constants) -> Constants:
    names = list(BOUNDS)
    low, usual, high = (np.array([BOUNDS[n][side] for n in names]) for side in (0, 1, 2))
    middle = (usual - low) / (high - low)
    weights = np.concatenate([c.weights() for c in cases])

    def constants(x: Array) -> Constants:
        return replace(start, **{n: float(v) for n, v in zip(names, low + x * (high - low), strict=True)})

    def residuals(x: Array) -> Array:
        made = constants(x)
        found: Array = np.concatenate([c.residuals(card, made) for c in cases]) * weights
        return np.concatenate([found, PULL * (x - middle)])

    first = (np.array([getattr(start, n) for n in names]) - low) / (high - low)
    found = least_squares(
        residuals, np.clip(first, 0.01, 0.99), bounds=(0.0, 1.0), loss="soft_l1", f_scale=0.1, diff_step=1e-3
    )
    return constants(found.x)


def regret(case: Case, predicted: Array) -> float:
    return float(case.measured[int(np.argmin(predicted))] / case.measured.min())


def report(cases: Sequence[Case], card: Target, constants: Constants) -> dict[str, float]:
    """Print a line a case and a line a family; the regrets by case."""
    found: dict[str, float] = {}
    by_family: dict[str, list[tuple[float, float]]] = {}
    print(f"{'case':44} {'regret':>7} {'rank':>6} {'error':>6} {'picked us':>10} {'predicted':>10}")
    for c in cases:
        predicted = predict_many(c.work, c.configs, card, constants)
        found[c.name] = regret(c, predicted)
        errors = c.residuals(card, constants)
        pick = int(np.argmin(predicted))
        rank = float(spearmanr(predicted, c.measured).statistic)
        print(
            f"{c.name:44} {found[c.name]:7.2f} {rank:6.2f} {np.exp(np.abs(errors).mean()):6.2f} "
            f"{c.measured[pick] * 1e6:10.1f} {predicted[pick] * 1e6:10.1f}"
        )
        families = np.array(c.families)
        for family in sorted(set(c.families)):
            mask = families == family
            rank = float(spearmanr(predicted[mask], c.measured[mask]).statistic) if mask.sum() > 3 else float("nan")
            by_family.setdefault(family, []).append((rank, float(np.abs(errors[mask]).mean())))
    print("family: mean rank correlation within a case, geometric-mean error")
    for family, pairs in sorted(by_family.items()):
        ranks = [r for r, _ in pairs if r == r]
        rank = float(np.mean(ranks)) if ranks else float("nan")
        print(f"  {family:10} {rank:6.2f} {np.exp(np.mean([e for _, e in pairs])):6.2f}")
    regrets = np.array(list(found.values()))
    print(f"regret: geometric mean {np.exp(np.log(regrets).mean()):.3f}, worst {regrets.max():.2f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "results" / "prior_h200.json")
    parser.add_argument("--fit", action="store_true", help="fit, and print the constants")
    options = parser.parse_args()
    cases, card = read(options.data)
    before = report(cases, card, FITTED)
    if not options.fit:
        return
    fitted = fit(cases, card, FITTED)
    after = report(cases, card, fitted)
    print("case, regret before, after")
    for name, value in before.items():
        print(f"  {name:44} {value:7.2f} {after[name]:7.2f}")
    for name, (low, _, high) in BOUNDS.items():
        print(f"    {name}: float = {getattr(fitted, name):.4g}  # {low:g} to {high:g}")


if __name__ == "__main__":
    main()
