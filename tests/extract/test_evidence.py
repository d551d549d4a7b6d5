"""Which row is chosen, and on what evidence."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from emmy.errors import EvidenceError, LoweringError
from emmy.extract.evidence import (
    PlanOption,
    RowOption,
    decide,
    family_bias,
    predicted_share,
    rank_plans,
    require_measured,
)
from emmy.extract.golden import write_golden
from emmy.extract.lookup import evidence_for_compile
from emmy.extract.records import Failure, Measurement, PlanMeasurement, Regime
from emmy.extract.store import Store
from tests.made_up import golden_rows

HERE = Regime("H200", 90, "nvrtc 13.0")
AGED = replace(HERE, compiler="nvrtc 12.8")
ROWS = [
    RowOption("WORK=t128", "row", 3e-6),
    RowOption("WORK=t256", "row", 2e-6),
    RowOption("WORK=t512", "row", 4e-6),
    RowOption("plain", "plain", 50e-6, safe=True),
]
BODY = "ab" * 8


def seen(row, median, regime=HERE, n=20, spread=0.05, **more):
    half = spread * median / 2
    return Measurement(BODY, (), "row", row, regime, n, median, median - half, median + half, **more)


def test_prediction_decides_where_nothing_was_measured():
    d = decide(BODY, ROWS, [], HERE)
    assert (d.row, d.cost, d.tier, d.n_alternatives) == ("WORK=t256", 2e-6, "predicted", 4)
    assert (d.runner_up, d.runner_up_cost, d.runner_up_tier) == ("WORK=t128", 3e-6, "predicted")


def test_measured_row_beats_a_better_prediction():
    d = decide(BODY, ROWS, [seen("WORK=t512", 9e-6)], HERE)
    assert (d.row, d.cost, d.tier) == ("WORK=t512", 9e-6, "measured")
    assert (d.runner_up, d.runner_up_tier) == ("WORK=t256", "predicted")


def test_fastest_of_several_measured_rows_wins():
    d = decide(BODY, ROWS, [seen("WORK=t512", 5e-6), seen("WORK=t128", 4e-6)], HERE)
    assert (d.row, d.runner_up) == ("WORK=t128", "WORK=t512")


@pytest.mark.parametrize("weak", [{"n": 3}, {"spread": 0.5}])
def test_weak_measurement_does_not_beat_a_well_measured_row_and_is_marked(weak):
    d = decide(BODY, ROWS, [seen("WORK=t512", 5e-6), seen("WORK=t128", 1e-6, **weak)], HERE)
    assert (d.row, d.remeasure) == ("WORK=t512", ("WORK=t128",))
    alone = decide(BODY, ROWS, [seen("WORK=t128", 9e-6, **weak)], HERE)
    assert (alone.row, alone.tier, alone.remeasure) == ("WORK=t128", "measured", ("WORK=t128",))


def test_aged_row_beats_predictions_and_loses_to_this_compiler():
    old, new = seen("WORK=t128", 1e-6, AGED), seen("WORK=t512", 9e-6)
    assert decide(BODY, ROWS, [old], HERE).tier == "aged"
    d = decide(BODY, ROWS, [old, new], HERE)
    assert (d.row, d.tier, d.runner_up_tier) == ("WORK=t512", "measured", "aged")


@pytest.mark.parametrize(
    "foreign",
    [replace(HERE, gpu="A100", capability=80), replace(HERE, numerics="fast"), replace(HERE, l2="warm")],
)
def test_other_card_numerics_or_cache_state_is_no_evidence(foreign):
    assert decide(BODY, ROWS, [seen("WORK=t512", 1e-9, foreign)], HERE).tier == "predicted"


def test_other_body_sizes_or_an_illegal_row_is_no_evidence():
    strangers = [
        replace(seen("WORK=t512", 1e-9), body="cd" * 8),
        replace(seen("WORK=t512", 1e-9), sizes=(("s", 8),)),
        seen("WORK=t4096", 1e-9),
    ]
    assert decide(BODY, ROWS, strangers, HERE).tier == "predicted"
    assert decide(BODY, ROWS, strangers, HERE, sizes=(("s", 8),)).row == "WORK=t512"


def test_newer_measurement_of_a_row_replaces_the_older():
    rows = [seen("WORK=t128", 1e-6, when=1.0), seen("WORK=t128", 8e-6, when=2.0), seen("WORK=t512", 5e-6)]
    assert decide(BODY, ROWS, rows, HERE).row == "WORK=t512"


def test_known_failures_are_skipped_even_when_measured():
    failure = Failure(BODY, "WORK=t512", "check", "wrong values")
    d = decide(BODY, ROWS, [seen("WORK=t512", 1e-6)], HERE, failures=[failure])
    assert (d.row, d.skipped, d.n_alternatives) == ("WORK=t256", ("WORK=t512",), 3)
    elsewhere = replace(failure, arch="sm_80")
    assert decide(BODY, ROWS, [seen("WORK=t512", 1e-6)], HERE, failures=[elsewhere], arch="sm_90a").row == "WORK=t512"


def test_no_row_left_is_an_error_that_lists_the_reasons():
    failures = [Failure(BODY, r.row, "compile", "too many registers") for r in ROWS]
    with pytest.raises(LoweringError, match=rf"{BODY}.*too many registers"):
        decide(BODY, ROWS, [], HERE, failures=failures)


def test_safe_option_decides_where_nothing_is_predicted():
    rows = [RowOption("a", "row", None), RowOption("plain", "plain", None, safe=True), RowOption("z", "row", math.nan)]
    d = decide(BODY, rows, [], HERE, floor=7e-6)
    assert (d.row, d.tier, d.cost) == ("plain", "safe", 7e-6)


def test_ties_go_to_the_smaller_row_whatever_the_order():
    rows = [RowOption(r, "row", 1e-6) for r in "bca"]
    for _ in range(5):
        random.Random(1).shuffle(rows)
        d = decide(BODY, rows, [], HERE)
        assert (d.row, d.runner_up) == ("a", "b")


def test_strict_evidence_names_the_kernels_that_were_not_measured():
    good = decide(BODY, ROWS, [seen("WORK=t128", 1e-6)], HERE)
    guess = decide(BODY, ROWS, [], HERE)
    require_measured([("k_b", good)])
    with pytest.raises(EvidenceError, match=r"k_a \(predicted, [0-9.]+ us\), k_c \(predicted, [0-9.]+ us\)") as e:
        require_measured([("k_c", guess), ("k_b", good), ("k_a", guess)], HERE)
    assert HERE.gpu in e.value.what and "emmy tune" in str(e.value)


def test_bias_is_the_geometric_mean_drawn_toward_one():
    assert family_bias([]) == {}
    few, many = (family_bias([("row", 2e-6, 1e-6)] * n)["row"] for n in (1, 1000))
    assert few == pytest.approx(2 ** (1 / 5))
    assert many == pytest.approx(2, rel=0.01)
    assert family_bias([("row", 2e-6, 1e-6), ("row", 1e-6, 2e-6)])["row"] == pytest.approx(1.0)


def test_bias_corrects_predictions_across_families():
    rows = [RowOption("a", "row", 1.0e-6), RowOption("b", "map", 1.2e-6)]
    assert decide(BODY, rows, [], HERE).row == "a"
    corrected = decide(BODY, rows, [], HERE, bias={"row": 1.5})
    assert (corrected.row, corrected.runner_up_cost) == ("b", 1.5e-6)


def test_a_plan_that_was_timed_counts_with_that_time():
    plans = [PlanOption("p", 5e-6, measured=True), PlanOption("q", 4e-6, measured=True)]
    assert [d.key for d in rank_plans(plans, {}, HERE)] == ["q", "p"]
    slow = PlanMeasurement("q", (), HERE, 20, 6e-6, 5.9e-6, 6.1e-6)
    first, second = rank_plans(plans, {"q": [slow]}, HERE)
    assert (first.key, first.timed) == ("p", False)
    assert (second.key, second.total, second.timed, second.n) == ("q", 6e-6, True, 20)


def test_a_plan_that_was_timed_goes_before_sums_that_rest_on_predictions():
    plans = [PlanOption("p", 5e-6), PlanOption("q", 1e-6), PlanOption("r", 9e-6, measured=True)]
    timed = PlanMeasurement("p", (), HERE, 20, 8e-6, 8e-6, 8e-6)
    assert [d.key for d in rank_plans(plans, {"p": [timed]}, HERE)] == ["p", "r", "q"]


def test_times_of_other_sizes_or_compilers_or_of_few_samples_do_not_decide_between_plans():
    plans = [PlanOption("p", 5e-6), PlanOption("q", 4e-6)]
    fast = PlanMeasurement("p", (), HERE, 20, 1e-6, 1e-6, 1e-6)
    for other in (replace(fast, n=2), replace(fast, regime=AGED), replace(fast, sizes=(("s", 1),))):
        assert rank_plans(plans, {"p": [other]}, HERE)[0].key == "q"


def test_predicted_share_is_by_time():
    guess = decide(BODY, ROWS, [], HERE)
    known = decide(BODY, ROWS, [seen("WORK=t128", 6e-6)], HERE)
    assert predicted_share([guess, known]) == pytest.approx(0.25)


def test_a_measured_row_in_the_store_flips_the_choice_and_its_deletion_flips_it_back(tmp_path):
    store = Store(tmp_path / "evidence.duckdb")

    def chosen():
        snapshot, lost = evidence_for_compile([BODY], HERE, tmp_path, database=store.path, environ={})
        assert lost == ()
        d = decide(BODY, ROWS, snapshot.measured(BODY), HERE)
        return d.row, d.tier

    assert chosen() == ("WORK=t256", "predicted")
    store.record_measurements([seen("WORK=t512", 1.5e-6)])
    assert chosen() == ("WORK=t512", "measured")
    assert store.delete(body=BODY, row="WORK=t512") == 1
    assert chosen() == ("WORK=t256", "predicted")


def test_a_lost_store_is_reported_and_the_golden_file_still_decides(tmp_path):
    (tmp_path / "evidence.duckdb").write_bytes(b"damaged" * 999)
    golden = tmp_path / "h200_sm90.json"
    write_golden(golden, HERE, golden_rows([seen("WORK=t512", 1.5e-6)], {}))
    snapshot, lost = evidence_for_compile([BODY], HERE, tmp_path, database=tmp_path / "evidence.duckdb", environ={})
    assert [text.startswith("lost tier: measured") for text in lost] == [True]
    assert decide(BODY, ROWS, snapshot.measured(BODY), HERE).row == "WORK=t512"
