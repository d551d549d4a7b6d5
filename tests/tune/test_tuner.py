"""The search with times that are made up: what it measures, keeps, resumes and refuses."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from emmy.errors import EvidenceError, LoweringError, StoreError
from emmy.extract import exchange
from emmy.extract.records import STAND_IN, Measurement, PlanMeasurement, Regime, Routing
from emmy.extract.store import Store
from emmy.frontend.source import load
from emmy.inspect import explain_text
from emmy.inspect.explain import explain
from emmy.inspect.views import report_lines
from emmy.ir.target import target
from emmy.saturation import (
    Options,
    Saturation,
    choose_again,
    of_pieces,
    pieces_of,
    program_key,
    require_evidence,
    saturate_program,
)
from emmy.tune import record
from emmy.tune.asked import TuneOptions
from emmy.tune.executors import StandIn
from emmy.tune.report import document, plan_lines, summary_lines, winner_lines
from emmy.tune.tune import Tuned, tune
from emmy.whole import key_of_pieces, split_piece

pytestmark = pytest.mark.nvrtc
NORM = "torch.nn.RMSNorm(256)(torch.randn(8,256))"
CHAIN = "torch.softmax(torch.randn(16,64) @ torch.randn(64,48), -1)"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from emmy.runtime.cache import CubinCache

    return CubinCache(tmp_path_factory.mktemp("cubins"))


def saturated(code: str, database: Path, cache: Any) -> Saturation:
    return saturate_program(load(None, code), Options(target("sm_90a"), golden="", database=database), cache=cache)


def quiet(_: str) -> None:
    pass


@dataclass
class Run:
    cache: Any
    folder: Path
    notes: list[str] = field(default_factory=list)

    def __call__(self, code: str = NORM, executor: Any = None, **options: Any) -> Tuned:
        database = self.folder / "e.duckdb"
        s = saturated(code, database, self.cache)
        wanted = TuneOptions(**{"budget": 600.0, "rows": 18, **options})
        return tune(s, executor or StandIn(), Store(database), wanted, self.notes.append, cache=self.cache, workers=0)

    @property
    def store(self) -> Store:
        return Store(self.folder / "e.duckdb")


@pytest.fixture
def run(cache: Any, tmp_path: Path) -> Run:
    return Run(cache, tmp_path)


def test_the_fastest_row_that_was_measured_is_chosen(run: Run) -> None:
    found = run()
    (subject,) = found.outcome.subjects
    (launch,) = found.outcome.saturation.launches
    best = min(subject.space.times.values())
    assert launch.priced.decision.tier == "measured" and launch.priced.decision.cost == best
    assert found.outcome.measured == 18 == len(run.store.measurements())


def test_a_second_run_measures_nothing_again(run: Run) -> None:
    first = run()
    executor = StandIn()
    again = run(executor=executor)
    assert (again.outcome.measured, again.outcome.recalled, executor.measured) == (0, 18, 0)
    assert winner_lines(first.saturation) == winner_lines(again.saturation)


def test_a_run_with_more_rows_goes_on_where_the_last_one_ended(run: Run) -> None:
    run(rows=6)
    more = run(rows=18)
    assert (more.outcome.measured, more.outcome.recalled) == (12, 6)


def test_made_up_times_are_no_evidence_for_a_card(run: Run, cache: Any) -> None:
    run()
    assert {m.regime.gpu for m in run.store.measurements()} == {STAND_IN}
    s = saturated(NORM, run.folder / "e.duckdb", cache)
    assert s.launches[0].priced.decision.tier == "predicted"


@pytest.mark.parametrize(("gpu", "source"), [("H200", STAND_IN), (STAND_IN, "tune")])
def test_the_store_refuses_to_mix_made_up_and_measured_times(tmp_path: Path, gpu: str, source: str) -> None:
    store, regime = Store(tmp_path / "e.duckdb"), Regime(gpu, 90, "nvrtc-13.0")
    with pytest.raises(StoreError, match="cannot be measurements of"):
        store.record_measurements([Measurement("b", (), "row", "r", regime, 9, 1.0, 1.0, 1.0, source=source)])
    with pytest.raises(StoreError, match="cannot be measurements of"):
        store.record_plans([PlanMeasurement("p", (), regime, 9, 1.0, 1.0, 1.0, source)])


def test_rows_that_fail_are_recorded_by_kind_and_replaced(run: Run) -> None:
    plain = run(rows=4).outcome.saturation.launches[0].priced.scheduled.row
    other = Run(run.cache, run.folder / "other")
    other.folder.mkdir()
    found = other(executor=StandIn(failing={plain.text: "wrong result"}))
    assert found.outcome.failures["wrong result"] == 1
    assert found.outcome.saturation.launches[0].priced.scheduled.row != plain
    kept = other.store.snapshot([found.outcome.subjects[0].body.hash], found.outcome.regime).failures
    assert [(f.row, f.stage, f.arch) for fs in kept.values() for f in fs] == [(plain.text, "wrong result", STAND_IN)]
    again = other()
    assert again.outcome.measured == 0 and again.outcome.subjects[0].space.failed


def test_a_crash_is_tried_again_before_it_counts(run: Run) -> None:
    executor = StandIn(failing={"REDUCE=coop": "crash"})
    found = run(executor=executor)
    broken = found.outcome.subjects[0].space.failed
    assert broken and set(broken.values()) == {"crash"}
    assert found.outcome.failures["crash"] >= 2 * len(broken)


@pytest.mark.parametrize("kind", ["setup", "reference"])
def test_what_is_no_fault_of_a_row_is_not_recorded_as_one(run: Run, kind: str) -> None:
    found = run(executor=StandIn(failing={"WORK": kind}))
    assert "cannot be checked" in found.outcome.subjects[0].stopped
    assert not any(found.outcome.subjects[0].space.failed)
    assert run.store.stats().rows["failure"] == 0
    assert found.outcome.saturation.launches[0].priced.decision.tier == "predicted"


def test_every_plan_of_several_launches_is_looked_at(run: Run) -> None:
    found = run(CHAIN, rows=None, effort="quick")
    assert len(found.outcome.subjects) >= 1
    found = run(CHAIN, rows=None, effort="normal", budget=20.0)
    assert len(found.outcome.subjects) >= 3


def test_the_whole_plan_is_timed_beside_the_sum_of_its_launches(run: Run) -> None:
    found = run()
    assert found.plans.tuned is not None and found.plans.untuned is not None
    assert run.store.stats().rows["plan_measurement"] == len({found.plans.tuned.key, found.plans.untuned.key})
    assert any("the sum of its launches" in l for l in plan_lines(found.plans))


class Slow(StandIn):
    """Everything takes many times what is predicted, so that bodies that were not measured look better."""

    def result(self, c: Any, task: Any) -> Any:
        r = super().result(c, task)
        return r | {k: 20 * r[k] for k in ("median", "p10", "p90")} if r["ok"] else r


class Biased(StandIn):
    """The first pick of each kernel is slow; whole plans take so many times their parts, the tuned one more."""

    def result(self, c: Any, task: Any) -> Any:
        r = super().result(c, task)
        if c["family"] == "plan":
            slow = c["id"] != task["group"]["anchor"]
            r |= dict.fromkeys(("median", "p10", "p90"), 1e-3 * (2 if slow else 1))
        elif c["id"] == task["group"]["anchor"]:
            r |= {k: 3 * r[k] for k in ("median", "p10", "p90")}
        return r


def test_the_untuned_plan_is_kept_where_it_is_faster_as_a_whole(run: Run) -> None:
    before = saturated(CHAIN, run.folder / "e.duckdb", run.cache)
    found = run(CHAIN, executor=Biased())
    assert found.plans.untuned is not None and found.plans.tuned is not None
    assert found.plans.untuned.key != found.plans.tuned.key, "the stand-in's times were to change the choice"
    assert found.plans.keep == "untuned"
    assert [l.priced.scheduled for l in found.saturation.launches] == [l.priced.scheduled for l in before.launches]
    assert any("compile keeps it" in l for l in plan_lines(found.plans))


def whole(s: Saturation, seconds: float) -> tuple[PlanMeasurement, Routing]:
    """A time of a plan as a whole, of a card that is not here, written by hand."""
    pieces = pieces_of(s.chosen)
    m = PlanMeasurement(key_of_pieces(pieces), (), s.regime, 30, seconds, seconds, seconds, "tune")
    return m, Routing(program_key(s.program, s.options), pieces, seconds, "measured")


def record_whole(store: Store, *found: tuple[PlanMeasurement, Routing]) -> None:
    store.record_plans(m for m, _ in found)
    store.record_routing(r for _, r in found)


def test_compile_makes_the_plan_that_was_faster_as_a_whole(run: Run, cache: Any) -> None:
    """Rows say one thing, the whole plans another."""
    s = saturated(NORM, run.folder / "e.duckdb", cache)
    (launch,) = s.launches
    other = next(r for r in s.selection.legal(launch.priced.body) if r.row != launch.priced.scheduled.row)
    body = launch.priced.body.hash
    m = Measurement(body, (), other.family, other.row.text, s.regime, 30, 1e-7, 1e-7, 1e-7, source="tune")
    run.store.record_measurements([m])
    tuned = saturated(NORM, run.folder / "e.duckdb", cache)
    assert tuned.launches[0].priced.scheduled.row == other.row and tuned.timed is None
    record_whole(run.store, whole(tuned, 2e-6), whole(s, 1e-6))
    kept = saturated(NORM, run.folder / "e.duckdb", cache)
    assert kept.launches[0].priced.scheduled.row == launch.priced.scheduled.row
    assert kept.timed is not None and (kept.timed.seconds, kept.timed.plans) == (1e-6, 2)
    assert choose_again(kept, kept.selection.evidence).launches[0].priced.scheduled.row == other.row


def test_a_plan_that_was_timed_goes_before_one_that_is_predicted_to_be_faster(run: Run, cache: Any) -> None:
    database = run.folder / "e.duckdb"
    s = saturated(NORM, database, cache)
    (launch,) = s.launches
    other = next(r for r in reversed(s.selection.legal(launch.priced.body)) if r.row != launch.priced.scheduled.row)
    pieces = (f"{launch.priced.body.hash} {other.family} {other.row.text}",)
    slower = of_pieces(s, pieces, s.selection.evidence, s.regime, cache)
    assert slower.predicted_seconds > s.predicted_seconds
    record_whole(run.store, whole(slower, 1e-3))
    found = saturated(NORM, database, cache)
    assert pieces_of(found.chosen) == pieces and found.timed is not None
    assert found.timed.instead == pytest.approx(s.predicted_seconds) and found.timed.predicted == 1.0
    require_evidence(found)
    said = "1000.00 us as a whole"
    assert any(said in l for l in report_lines(found)) and said in explain_text.text_of(found, explain(found))
    assert "whole plans of this program were timed" in explain(found)[0].why


def test_a_plan_that_cannot_be_made_again_is_named_and_the_next_is_taken(run: Run, cache: Any) -> None:
    s = saturated(NORM, run.folder / "e.duckdb", cache)
    m, r = whole(s, 1e-6)
    body, family, _ = split_piece(r.pieces[0])
    gone = (f"{body} {family} WORK=t31",)
    record_whole(run.store, (replace(m, plan=key_of_pieces(gone)), replace(r, pieces=gone)))
    again = saturated(NORM, run.folder / "e.duckdb", cache)
    assert again.timed is None and pieces_of(again.chosen) == r.pieces
    with pytest.raises(EvidenceError) as e:
        require_evidence(again)
    assert (
        again.launches[0].name in e.value.what
        and "emmy tune" in str(e.value)
        and "cannot be made again" in str(e.value)
    )


class Wide(StandIn):
    """Rows take much longer or shorter than predicted, as their hashes say; whole plans take the sum of their parts."""

    def result(self, c: Any, task: Any) -> Any:
        r = super().result(c, task)
        if not r["ok"] or c["family"] == "plan":
            return r
        draw = int(hashlib.sha256(c["row"].encode()).hexdigest()[:8], 16) / 2.0**32
        return r | {k: 40 ** (2 * draw - 0.5) * r[k] for k in ("median", "p10", "p90")}


@pytest.mark.parametrize("executor", [StandIn(), Slow(), Biased(), Wide()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("code", [CHAIN, "torch.nn.Linear(96,64)(torch.nn.RMSNorm(96)(torch.randn(32,96)))"])
def test_after_tuning_a_strict_compile_makes_the_tuned_plan(run: Run, cache: Any, executor: StandIn, code: str) -> None:
    """Compiled for the card of the made-up times, which stands in for one that is here."""
    card = replace(target("sm_90a"), gpu=STAND_IN)
    options = Options(card, golden="", database=run.folder / "e.duckdb")
    with pytest.raises(EvidenceError, match="on stand-in with nvrtc"):
        saturate_program(load(None, code), replace(options, strict_evidence=True), cache=cache)
    s = saturate_program(load(None, code), options, cache=cache)
    wanted = TuneOptions(budget=5.0, rows=None, effort="quick")
    tuned = tune(s, executor, run.store, wanted, quiet, cache=cache, workers=0).saturation
    again = saturate_program(load(None, code), replace(options, strict_evidence=True), cache=cache)
    assert pieces_of(again.chosen) == pieces_of(tuned.chosen) and again.timed is not None
    assert {c.priced.decision.tier for c in again.launches if not c.at_build} == {"measured"}
    more = tune(again, executor, run.store, wanted, quiet, cache=cache, workers=0)
    if not more.outcome.measured:
        assert pieces_of(more.saturation.chosen) == pieces_of(tuned.chosen)
        return
    # the first budget ended before the search did: what the second one found is what compiles from now on
    at_last = saturate_program(load(None, code), replace(options, strict_evidence=True), cache=cache)
    assert pieces_of(at_last.chosen) == pieces_of(more.saturation.chosen)


def test_the_report_has_pasteable_rows_and_failures_by_kind(run: Run) -> None:
    found = run(executor=StandIn(failing={"REDUCE=coop/r2": "timeout"}))
    text = "\n".join([*summary_lines(found.outcome), *winner_lines(found.saturation)])
    assert "legal rows and timed" in text and "EMMY_KNOBS='WORK=" in text
    assert ("timeout" in text) == bool(found.outcome.failures["timeout"])
    assert document(found.outcome, found.plans, found.saturation)["measured"] == found.outcome.measured


# ---- what goes wrong around it ---------------------------------------------------------------------------------------


class Interrupted(StandIn):
    def submit(self, task: Any) -> Future[list[Any]]:
        if self.measured >= 12:
            raise KeyboardInterrupt
        return super().submit(task)


def test_an_interrupted_run_keeps_what_was_measured(run: Run) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(executor=Interrupted())
    assert len(run.store.measurements()) == 12
    more = run()
    assert more.outcome.recalled == 12 and more.outcome.measured <= 6


def test_a_budget_ends_the_search_with_what_there_is(run: Run) -> None:
    found = run(budget=1e-3, rows=None)
    assert found.outcome.stopped == "the budget is spent"
    assert found.outcome.measured <= 12


def test_nothing_of_the_final_plan_rests_on_a_prediction(run: Run) -> None:
    found = run(CHAIN, budget=1e-3, rows=None)
    tiers = {c.priced.decision.tier for c in found.saturation.launches if not c.at_build}
    assert tiers == {"measured"}


def test_bodies_that_look_better_only_as_they_were_not_measured_are_measured(run: Run) -> None:
    found = run(CHAIN, executor=Slow(), budget=1e-3, rows=None)
    assert {c.priced.decision.tier for c in found.saturation.launches if not c.at_build} == {"measured"}
    assert found.outcome.measured > 6


def failing_for(store: type[Store], times: int) -> Callable[..., None]:
    calls = 0
    true = store.record_measurements

    def write(self: Store, measurements: Any) -> None:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise StoreError("the evidence store e.duckdb cannot grow: no space left on device")
        true(self, measurements)

    return write


def test_a_full_disk_delays_what_is_written_and_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "record_measurements", failing_for(Store, 1))
    found = run()
    assert len(run.store.measurements()) == found.outcome.measured == 18
    assert any("no space left" in n for n in run.notes)


def test_a_disk_that_stays_full_is_an_error_that_names_where_the_results_are(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Store, "record_measurements", failing_for(Store, 1000))
    monkeypatch.setattr(record.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StoreError, match="18 results could not be written"):
        run()
    (saved,) = tmp_path.glob("emmy-unsaved-*.jsonl")
    monkeypatch.undo()
    assert exchange.load(run.store, saved)["measurement"] == 18
    assert len(run.store.measurements()) == 18 and run.store.kernels()


def test_a_search_that_is_killed_leaves_the_bodies_of_what_it_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    true = Store.record_measurements

    def watched(self: Store, measurements: Any) -> None:
        seen.append(len(self.kernels()))
        true(self, measurements)

    monkeypatch.setattr(Store, "record_measurements", watched)
    run()
    assert seen and min(seen) > 0


def test_a_clock_that_jumps_back_neither_ends_the_search_nor_reorders_results(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, jumped = time.time, 0

    def jumping() -> float:
        nonlocal jumped
        jumped += 1
        return true() - 3600.0 * (jumped > 5)

    monkeypatch.setattr(record.time, "time", jumping)
    found = run()
    assert found.outcome.measured == 18
    times = [m.when for m in run.store.measurements()]
    assert max(times) - min(times) < 1800


class Drifting(StandIn):
    """The card slows down by half after the first batch."""

    def result(self, c: Any, task: Any) -> Any:
        slower = 1.5 if self.measured >= 12 else 1.0
        r = super().result(c, task)
        if not r["ok"]:
            return r
        return r | {k: r[k] * slower for k in ("median", "p10", "p90")} | {"anchor": 1e-5 * slower}


def test_a_change_of_the_cards_clock_is_seen_by_the_anchor_and_measured_again(run: Run) -> None:
    executor = Drifting()
    found = run(executor=executor)
    assert found.outcome.failures["drift"] == 1
    assert executor.measured > found.outcome.measured


TUNER = """
import sys
from pathlib import Path
from emmy.extract.store import Store
from emmy.frontend.source import load
from emmy.ir.target import target
from emmy.runtime.cache import CubinCache
from emmy.saturation import Options, saturate_program
from emmy.tune.executors import StandIn
from emmy.tune.tune import tune
from emmy.tune.asked import TuneOptions
database, cache = Path(sys.argv[1]), CubinCache(Path(sys.argv[2]))
s = saturate_program(load(None, sys.argv[3]), Options(target("sm_90a"), golden="", database=database), cache=cache)
found = tune(s, StandIn(), Store(database), TuneOptions(rows=18, seed=int(sys.argv[4])), print, cache=cache, workers=0)
print("measured", found.outcome.measured)
"""


@pytest.mark.slow
def test_two_tuners_share_one_store(run: Run, cache: Any) -> None:
    arguments = [str(run.folder / "e.duckdb"), str(cache.folder.parent), NORM]
    both = [
        subprocess.Popen([sys.executable, "-c", TUNER, *arguments, seed], stdout=subprocess.PIPE, text=True)
        for seed in "12"
    ]
    answers = [p.communicate(timeout=300)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0], answers
    counted = [int(a.split()[-1]) for a in answers]
    assert len(run.store.measurements()) == sum(counted) >= 18
    assert run.store.stats().rows["run"] == 2


def test_another_card_than_the_program_is_compiled_for_is_refused(run: Run) -> None:
    with pytest.raises(LoweringError, match="the GPU is sm_89"):
        run(executor=StandIn(facts={"gpu": "NVIDIA GeForce RTX 4090", "capability": 89}))


def test_threads_of_the_search_end_with_it(run: Run) -> None:
    before = threading.active_count()
    run(rows=6)
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before
