"""Variants, failures and regret, from made-up times."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emmy.evidence.measured import analytic, analytic_folds, measured_bodies, read_measured
from emmy.extract.records import Failure, KernelRecord
from emmy.inspect.evaluate import by_family, failure_kinds, regrets, spearman, variants
from emmy.inspect.evaluate_text import failure_lines, regret_lines, variants_lines
from tests.bodies import linear, matvec
from tests.made_up import REGIME, filled, made_up, slower

LINEAR, MATVEC = linear(64, 256, 256), matvec(512, 512)
KERNELS = [KernelRecord(b.hash, b.text, n) for n, b in (("k_linear", LINEAR), ("k_matvec", MATVEC))]


def test_all_measured_rows_come_with_their_meaning(tmp_path: Path) -> None:
    store = filled(tmp_path / "e.duckdb", [("k_linear", LINEAR), ("k_matvec", MATVEC)])
    found = read_measured(store)
    assert [b.name for b in found.bodies] == ["k_linear", "k_matvec"] and found.skipped == {}
    first = found.bodies[0]
    assert first.body is not LINEAR and first.body == LINEAR and first.programs == ("model_k_linear",)
    assert [r.seconds for r in first.rows] == sorted(r.seconds for r in first.rows)
    assert first.best.scheduled.config.family == first.best.scheduled.family
    assert first.uniform >= 29
    assert read_measured(store, regime=replace(REGIME, compiler="other")).bodies == ()


def test_what_means_nothing_today_is_counted_and_left_out() -> None:
    good = made_up(LINEAR, 5)
    wrong = [
        replace(good[0], body="feed"), replace(good[0], family="no-such"), replace(good[0], row="WORK=?"),
        replace(good[0], family="scan"), replace(good[0], regime=replace(REGIME, gpu="card of nobody")),
    ]  # fmt: skip
    found = measured_bodies(KERNELS, [*good, *wrong])
    assert len(found.bodies) == 1 and len(found.bodies[0].rows) == len(good)
    assert sum(found.skipped.values()) == len(wrong)
    assert {
        "the body's Loop IR is not recorded",
        "no kernel family is called 'no-such'",
        "a row that cannot be read",
    } <= (found.skipped.keys())


def test_regret_is_one_where_the_prior_is_right_and_more_where_it_is_not() -> None:
    rows = made_up(LINEAR, 20)
    (right,) = regrets(measured_bodies(KERNELS, rows).bodies, analytic_folds)
    assert (right.exact, right.regret, right.ties) == (True, 1.0, right.ties)
    assert right.rank == pytest.approx(1.0)
    spoiled = [slower(m, 3.0) if m.drawn == "pick" else m for m in rows]
    (wrong,) = regrets(measured_bodies(KERNELS, spoiled).bodies, analytic_folds)
    assert wrong.exact and wrong.regret > 1.0 and wrong.pick_row == right.pick_row
    assert wrong.pick == pytest.approx(3.0 * right.pick)


def test_a_pick_that_was_not_measured_is_marked() -> None:
    rows = [m for m in made_up(LINEAR, 20) if m.drawn != "pick"]
    (body,) = regrets(measured_bodies(KERNELS, rows).bodies, analytic_folds)
    assert not body.exact and body.regret == 1.0
    assert body.pick_row not in {m.row for m in rows}
    assert by_family([body])[-1].inexact == 1


def test_a_row_that_a_compile_refuses_is_no_pick_but_one_that_ran_wrong_is() -> None:
    rows = made_up(LINEAR, 20)
    pick = next(m.row for m in rows if m.drawn == "pick")
    bodies = measured_bodies(KERNELS, rows).bodies
    (refused,) = regrets(bodies, analytic_folds, [Failure(LINEAR.hash, pick, "compile", "too many registers")])
    assert refused.pick_row != pick
    (wrong,) = regrets(bodies, analytic_folds, [Failure(LINEAR.hash, pick, "check", "wrong values")])
    assert wrong.pick_row == pick


def test_each_body_is_judged_by_the_predictor_of_its_fold() -> None:
    asked = []

    def folds(body):
        asked.append(body.name)
        return (lambda b, rows, t, s: -analytic(b, rows, t, s)) if body.name == "k_linear" else analytic

    rows = [*made_up(LINEAR, 20), *made_up(MATVEC, 20)]
    worst, best = regrets(measured_bodies(KERNELS, rows).bodies, folds)
    assert asked == ["k_linear", "k_matvec"]
    assert (worst.name, best.name) == ("k_linear", "k_matvec")
    assert worst.rank == pytest.approx(-1.0) and best.regret == 1.0


def test_table_by_family_and_its_limits() -> None:
    bodies = regrets(measured_bodies(KERNELS, [*made_up(LINEAR, 20), *made_up(MATVEC, 20)]).bodies, analytic_folds)
    *families, everything = by_family(bodies)
    assert everything.family == "all" and everything.bodies == 2 == sum(f.bodies for f in families)
    assert everything.within and not replace(everything, worst=2.1).within
    assert not replace(everything, median=math.nan).within
    lines = regret_lines(bodies, by_family(bodies), {"why": 3})
    assert max(map(len, lines)) <= 80 and "3 measurements left out: why" in lines
    assert regret_lines([], [], {})[0] == "no measured bodies"


def test_variants_show_time_ratio_and_the_priors_opinion() -> None:
    rows = made_up(LINEAR, 10)
    illegal = replace(rows[0], row="WORK=t1024,TILE=,REDUCE=,STAGE=,RASTER=", family="plain")
    (found,) = measured_bodies(KERNELS, [*rows, illegal]).bodies
    v = variants(found, analytic)
    assert v.rows[0].ratio == 1.0 and all(r.ratio >= 1.0 for r in v.rows)
    assert [r.predicted for r in v.rows if r.legal] == pytest.approx([r.seconds for r in v.rows if r.legal])
    assert [r.row for r in v.rows if not r.legal] == [illegal.row]
    lines = variants_lines(v, 3)
    assert max(map(len, lines)) <= 80
    assert lines[-1] == f"     and {len(v.rows) - 3} slower rows (--limit 0 shows all)"


def test_failures_are_counted_by_kind() -> None:
    failures = [Failure("a", f"r{i}", "compile", f"too many registers\nlog {i}", "sm_90a") for i in range(3)]
    kinds = failure_kinds([Failure("b", "r", "hang", "no answer"), *failures])
    assert [(k.stage, k.count, k.bodies, k.reason) for k in kinds] == [
        ("compile", 3, 1, "too many registers"), ("hang", 1, 1, "no answer")
    ]  # fmt: skip
    assert max(map(len, failure_lines(kinds))) <= 80
    assert failure_lines([]) == ["no failures recorded"]


def test_spearman_by_hand() -> None:
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 30])) == pytest.approx(1.0)
    # ranks 1.5 1.5 3 against 1 2 3
    assert spearman(np.array([1.0, 1, 3]), np.array([1.0, 2, 3])) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(spearman(np.array([1.0, 2]), np.array([1.0, 2])))
    assert math.isnan(spearman(np.ones(4), np.arange(4.0)))
