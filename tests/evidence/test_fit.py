"""The fit: what can be learned is learned, and no body is judged by a model that has seen it."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.errors import StoreError
from emmy.evidence.fit import Fitter, Fold, compared, cross_validate, dataset, fit, folds_of, geometric, held_out
from emmy.evidence.measured import analytic
from emmy.extract.learned import POOLED
from emmy.inspect.evaluate import regrets
from emmy.inspect.fit_text import fit_lines, fold_line
from tests.fitting import NAMED, QUICK, measured_bodies


@pytest.fixture(scope="module")
def bodies(tmp_path_factory):
    return measured_bodies(tmp_path_factory.mktemp("fit") / "e.duckdb")


@pytest.fixture(scope="module")
def data(bodies):
    return dataset(bodies)


@pytest.fixture(scope="module")
def fitter(data):
    return Fitter(data, QUICK)


def test_held_out_bodies_are_ranked_better_than_by_the_analytic_prior(fitter, data):
    report = cross_validate(fitter)
    assert len(report) == len(data)
    assert geometric([h.regret for h in report]) < 0.8 * geometric([h.analytic_regret for h in report])
    assert np.median([h.rank for h in report]) > np.median([h.analytic_rank for h in report])
    assert all(len(line) <= 80 for line in fit_lines(report, report, {"no reason": 3}))


def test_no_body_of_a_model_is_seen_where_another_of_it_is_judged(fitter, data):
    alpha = {d.body.body.hash for d in data if d.body.programs == ("alpha@512",)}
    assert len(alpha) == 4
    keys = {d.body.body.hash: k for d, k in zip(data, held_out(data), strict=True)}
    for h, mine in keys.items():
        shared = {o for o, k in keys.items() if k & mine}
        assert h in shared
        assert (alpha <= shared) == (h in alpha)
    for d in data:
        fitter.prior(d.body)
    assert len(fitter.known) < len(data)


def test_a_body_does_not_change_the_model_that_judges_it(data):
    one = data[0]
    spoiled = [d if d is not one else _slower(d) for d in data]
    before, after = (Fitter(rows, QUICK).prior(one.body) for rows in (data, spoiled))
    matrix = one.matrix, one.family, one.featured.kind
    assert before.correction(*matrix).tolist() == after.correction(*matrix).tolist()
    assert before.correction(*matrix).any()


def _slower(d):
    from dataclasses import replace

    return replace(d, measured=d.measured * np.linspace(1.0, 9.0, len(d.measured)))


def test_regret_of_picks_is_judged_by_folds(bodies):
    asked = regrets(bodies, folds_of(bodies, QUICK))
    plain = regrets(bodies, lambda b: analytic)
    assert geometric([r.regret for r in asked]) < geometric([r.regret for r in plain])


def test_what_was_fitted_twice_is_the_same_and_its_report_counts_for_bodies_it_saw(data, fitter):
    report = cross_validate(fitter)
    one, two = (fit(data, QUICK, report, "H200", 90) for _ in range(2))
    assert np.array_equal(one.answers, two.answers) and POOLED in one.forests and "mma" in one.forests
    assert compared(one, data) == report and one.doubt() == ""


def test_too_few_bodies_teach_nothing(tmp_path):
    few = measured_bodies(tmp_path / "few.duckdb", NAMED[:2])
    assert all(folds_of(few)(b) is analytic for b in few)
    with pytest.raises(StoreError, match="of 2 bodies are too few"):
        fit(dataset(few), QUICK, (), "H200", 90)


def test_a_fit_is_told_fold_by_fold_and_keeps_to_one_thread_of_openmp(data, monkeypatch):
    """OpenMP's limit belongs to the thread that asks: set around a pool of threads it limits none of them."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_info, threadpool_limits

    from emmy.evidence import fit as module

    seen = []
    true_fit, true_member = HistGradientBoostingRegressor.fit, module._member

    def watched(self, *args, **more):
        seen.extend(i["num_threads"] for i in threadpool_info() if i["user_api"] == "openmp")
        return true_fit(self, *args, **more)

    def in_a_wide_thread(*args):
        with threadpool_limits(3, "openmp"):
            return true_member(*args)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", watched)
    monkeypatch.setattr(module, "_member", in_a_wide_thread)
    folds = []
    fitter = Fitter(data, QUICK, observe=folds.append, jobs=2)
    cross_validate(fitter)
    assert seen and set(seen) == {1}
    total = len(fitter.known)
    assert [(f.number, f.total) for f in folds] == [(k + 1, total) for k in range(total)]
    assert all(0 < f.bodies < len(data) and f.seconds > 0 and f.left_out for f in folds)
    cross_validate(fitter)
    assert len(folds) == total


def test_the_line_of_a_fold_has_an_estimate_where_it_is_asked_for():
    fold = Fold(2, 10, ("a" * 40, "b", "c"), 50, 3.0)
    assert fold_line(fold, False) == f"fold 2 of 10, without {'a' * 21}…, b and 1 more: 50 bodies, 3.0 s"
    assert fold_line(fold, True).endswith("; about 24 s left")
    assert "left" not in fold_line(Fold(3, 3, ("a",), 9, 1.0), True)
