"""What the speed suite judges by: floors, bars, means, verdicts, the table; on figures that are made up here."""

from __future__ import annotations

import math
from typing import Any

import pytest

from experiments.bench.bars import (
    ABOVE_FLOOR,
    ULP,
    BenchCase,
    Group,
    accurate,
    achieved,
    best_peer,
    findings,
    floor_seconds,
    floor_us,
    geometric,
    means,
    raised,
    ratio_of,
    table,
    verdicts,
)
from experiments.bench.first import first
from experiments.bench.suites import SUITES, contractions
from experiments.cases import Case

CEILINGS = {"copy": 4e12, "flops": {"bf16": 800e12}}
GROUPS = {"g": Group("g", each=1.02, mean=0.95), "t": Group("t", twin=1.02), "free": Group("free")}


def case(name: str, group: str = "g", flops: float = 800e6, bytes: float = 4e6, twin: str = "") -> BenchCase:
    """A floor of 1 us by either unless told otherwise."""
    return BenchCase(Case(name), group, flops, bytes, "bf16", twin)


def record(tuned: float, peer: float, untuned: float | None = None, **more: Any) -> dict[str, Any]:
    """Times in us; one peer is slower."""
    times = {"tuned": tuned, "untuned": untuned or tuned, "eager": peer, "compiled": 2 * peer}
    us = {n: [t, t, t, "rotate"] for n, t in times.items()}
    ratios = {n: {p: times[n] / times[p] for p in ("eager", "compiled")} for n in ("tuned", "untuned")}
    return {"us": {"cold": us, "warm": us}, "ratios": {"cold": ratios, "warm": ratios}, "ceilings": CEILINGS,
            "commit": "abc", "gpu": "a card", **more}  # fmt: skip


@pytest.mark.parametrize(
    ("flops", "bytes", "seconds"), [(800e12, 0.0, 1.0), (0.0, 4e12, 1.0), (400e12, 8e12, 2.0), (1600e12, 4e12, 2.0)]
)
def test_the_floor_is_the_larger_of_arithmetic_and_bytes(flops: float, bytes: float, seconds: float) -> None:
    assert floor_seconds(flops, bytes, 800e12, 4e12) == pytest.approx(seconds)


def test_a_bar_below_the_floor_is_raised_to_it_and_three_percent() -> None:
    assert raised(0.95, None) == raised(0.95, 0.9) == raised(0.95, 0.95) == 0.95
    assert raised(0.95, 0.96) == pytest.approx(0.96 * ABOVE_FLOOR)


def test_geometric_means() -> None:
    assert geometric([2.0, 0.5]) == pytest.approx(1.0) and geometric([4.0]) == pytest.approx(4.0)
    assert geometric([]) == 1.0


def test_the_best_peer_is_the_fastest_and_ratios_are_to_it() -> None:
    r = record(9.0, 10.0)
    assert best_peer(r) == "eager" and ratio_of(r) == pytest.approx(0.9)
    r["us"]["cold"]["compiled"][0] = 5.0
    assert best_peer(r) == "compiled" and ratio_of(r) == pytest.approx(9.0 / 20.0)
    assert best_peer({}) == "" and ratio_of({}) is None


def test_a_case_is_held_to_its_groups_bar() -> None:
    cases = [case("fast"), case("slow"), case("none"), case("free", "free")]
    records = {"fast": record(10.0, 10.0), "slow": record(11.0, 10.0), "free": record(30.0, 10.0)}
    fast, slow, none, free = verdicts(cases, GROUPS, records)
    assert (fast.word, fast.missed, fast.bar) == ("ok", False, 1.02)
    assert (slow.word, slow.missed) == ("+7.8%", True)
    assert (none.word, none.missed) == ("not timed", False)
    assert (free.word, free.bar, free.missed) == ("no bar", None, False)


def test_a_floor_above_the_bar_raises_it_for_the_case_and_inside_the_mean() -> None:
    """The floor is 1 us: of a peer of 0.97 us (its data may lie in the cache) no bar of 1.02 can be asked."""
    tight, loose = case("tight"), case("loose")
    records = {"tight": record(1.05, 0.97), "loose": record(9.0, 10.0)}
    assert floor_us(tight, records["tight"]) == pytest.approx(1.0)
    (v, w), (mean, *_) = verdicts([tight, loose], GROUPS, records), means([tight, loose], GROUPS, records)
    assert v.asked == 1.02 and v.bar == pytest.approx(ABOVE_FLOOR / 0.97) and v.word == "+1.9%"
    assert w.bar == 1.02
    assert mean.asked == 0.95 and mean.bar == pytest.approx(math.sqrt(ABOVE_FLOOR / 0.97 * 0.95))
    assert mean.ratio == pytest.approx(math.sqrt(1.05 / 0.97 * 0.9))


def test_a_twin_is_held_to_the_ratio_of_its_case() -> None:
    cases = [case("bf16"), case("f16", "t", twin="bf16"), case("alone", "t", twin="nothing")]
    records = {"bf16": record(9.0, 10.0), "f16": record(9.3, 10.0), "alone": record(9.0, 10.0)}
    _, f16, alone = verdicts(cases, GROUPS, records)
    assert f16.bar == pytest.approx(1.02 * 0.9) and f16.missed
    assert alone.bar is None and alone.word == "no bar"


def test_means_are_of_what_was_timed_and_end_with_the_untuned_picks() -> None:
    cases = [case("a"), case("b"), case("c")]
    found = means(cases, GROUPS, {"a": record(8.0, 10.0, 10.0), "b": record(10.0, 10.0, 10.0)})
    assert [v.name for v in found] == ["g", "t", "free", "untuned / tuned"]
    assert found[0].ratio == pytest.approx(math.sqrt(0.8)) and not found[0].missed
    assert found[1].ratio is None and found[1].word == "not timed"
    assert found[-1].ratio == pytest.approx(math.sqrt(1.25)) and found[-1].missed


def test_errors_may_be_those_of_eager_and_one_unit_in_the_last_place() -> None:
    assert accurate(1e-3 + ULP["bf16"], 1e-3, "bf16") and not accurate(1.1e-3 + ULP["bf16"], 1e-3, "bf16")
    assert ULP["f16"] == 2.0**-10 and not accurate(math.inf, 1.0, "f32")


def test_what_was_achieved_is_said_in_the_unit_of_the_floor() -> None:
    assert achieved(case("c", flops=800e9, bytes=4.0), 2e-3, CEILINGS) == "400 TFLOP/s"
    assert achieved(case("c", flops=1.0, bytes=4e9), 2e-3, CEILINGS) == "2.00 TB/s"


def test_findings_name_what_is_wrong_beside_speed() -> None:
    good = record(1.0, 1.0, build={"saturate": 1.0, "nvrtc": {"k": 1.0}}, error={"eager": 1e-3, "tuned": 1e-3},
                  repeat={"tuned": {"runs": 10, "equal": False, "atomic": True}})  # fmt: skip
    assert findings(case("c"), good) == []
    bad = record(
        1.0, 1.0, rows={"untuned": ["wgmma X"]}, build={"saturate": 4.0, "nvrtc": {"k": 2.0}},
        error={"eager": 1e-3, "tuned": 1.0}, repeat={"tuned": {"runs": 10, "equal": False, "atomic": False}},
        failed="killed",
    )  # fmt: skip
    text = "\n".join(findings(case("c"), bad))
    for part in (
        "killed",
        "saturate took 4.00 s",
        "NVRTC took 2.00 s for k",
        "relative error 1.00e+00",
        "10 runs differ",
    ):
        assert part in text


def test_the_table_has_a_line_for_every_case_and_group_and_says_which_peer_is_missing() -> None:
    cases = [case("a"), case("b")]
    lines = table(cases, GROUPS, {"a": record(9.0, 10.0, lost={"autotuned": "it failed"}, rows={"tuned": ["wgmma X"]})})
    (head,) = [l for l in lines if l.startswith("| case")]
    rows = [l for l in lines if l.startswith(("| a |", "| b |"))]
    assert {l.count("|") for l in (head, *rows)} == {head.count("|")}
    assert "| 0.900 | 1.020 | ok |" in rows[0] and "wgmma X" in rows[0] and "9.00" in rows[0]
    assert "not run" in rows[1]
    assert "- a: no autotuned: it failed" in lines and lines[-1] == "Measured at abc on a card."


@pytest.mark.parametrize("make", [*SUITES.values(), first])
def test_cases_are_named_once_and_belong_to_groups_and_twins_that_there_are(make: Any) -> None:
    suite = make()
    names = [c.name for c in suite.cases]
    assert len(set(names)) == len(names)
    assert all(c.group in suite.by_group and c.bytes > 0 and c.dtype in ULP for c in suite.cases)
    for c in suite.cases:
        assert (suite.by_group[c.group].twin is not None) == bool(c.twin) and (not c.twin or c.twin in names)


def test_the_work_of_a_case_is_that_of_its_operands() -> None:
    by_name = {c.name: c for c in contractions().cases}
    linear = by_name["linear_512x4096x1024_bf16"]
    assert linear.flops == 2 * 512 * 4096 * 1024 and linear.bytes == 2 * (512 * 1024 + 4096 * 1024 + 512 * 4096)
    mlp = by_name["swiglu_mlp_1_4096x14336"]
    assert mlp.flops == 6 * 4096 * 14336 and mlp.bytes == 2 * (3 * 4096 * 14336 + 2 * 4096)
    gathered = by_name["experts_gathered_8_64x1024x2048"]
    assert gathered.bytes == 2 * (8 * 2048 + 8 * 1024 * 2048 + 8 * 1024) + 64
    assert {"matmul_4096_tn_f16", "matmul_4096_tt_f16", "bmm_64x128x128x64"} <= by_name.keys()
