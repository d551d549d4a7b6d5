"""Gathering measurements of many bodies: with made-up times, which are no evidence for any card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from emmy.errors import EmmyError, UsageError
from emmy.extract.golden import GoldenFile, GoldenRow
from emmy.extract.records import STAND_IN, Measurement
from emmy.extract.store import Store
from emmy.ir.schedule import short_row
from emmy.ir.target import target
from emmy.tune.executors import StandIn
from experiments.bodies import Found, Wanted, bodies_of, design_cases, indirect, model_cases, ordered, read, write
from experiments.gather import BODIES, Gathering, main, regime_of
from experiments.wanted import is_named, wanted_picks, wanted_rows
from tests.bodies import linear, matvec
from tests.made_up import legal

CARD = target("sm_90a")
SMALL = [
    Found(b.hash, b.text, "k_small", {}, [name])
    for name, b in (("a@1", linear(32, 64, 64)), ("b@1", matvec(64, 64)))
]  # fmt: skip


def gathering(db: Path, rows: int, executor: StandIn | None = None, **more: object) -> Gathering:
    made = Gathering(executor or StandIn(), Store(db), SMALL, CARD, rows, 300.0, workers=0, size=8, **more)  # type: ignore[arg-type]
    made.run()
    return made


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMMY_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.nvrtc
@pytest.mark.usefixtures("cache")
def test_rows_are_measured_recorded_and_not_measured_again(tmp_path: Path) -> None:
    db = tmp_path / "e.duckdb"
    first = gathering(db, 12)
    found = Store(db).measurements()
    assert first.counts["bodies"] == 2 and first.counts["rows"] == len(found) > 12
    assert {m.regime.gpu for m in found} == {STAND_IN} and {m.source for m in found} == {STAND_IN}
    for f in SMALL:
        mine = [m for m in found if m.body == f.body]
        assert sum(m.uniform for m in mine) >= 0.3 * len(mine)
        assert any(m.drawn == "pick" for m in mine)
    assert {k.programs for k in Store(db).kernels()} == {("a@1",), ("b@1",)}
    again = gathering(db, 12, executor := StandIn())
    assert again.counts["rows"] == 0 and executor.measured == 0


@pytest.mark.nvrtc
@pytest.mark.usefixtures("cache")
def test_failures_are_recorded_and_picks_are_measured_alone(tmp_path: Path) -> None:
    db = tmp_path / "e.duckdb"
    failing = gathering(db, 6, StandIn(failing={"WORK=t": "wrong result"}))
    assert failing.failures["wrong result"] == len(Store(db).failures()) > 0
    rows = {m.row for m in Store(db).measurements() if m.body == SMALL[0].body}
    pick = next(r.row.text for r in legal(linear(32, 64, 64)) if r.row.text not in rows and r.family == "mma")
    report = tmp_path / "regret.json"
    report.write_text(json.dumps({"bodies": [
        {"body": SMALL[0].body, "pick_row": pick, "exact": False},
        {"body": SMALL[1].body, "pick_row": pick, "exact": True},
    ]}))  # fmt: skip
    picked = gathering(db, 6, picks=wanted_picks(report))
    assert picked.counts["rows"] == 1
    assert [m.row for m in Store(db).measurements() if m.row == pick] == [pick]


@pytest.mark.nvrtc
@pytest.mark.usefixtures("cache")
def test_a_survey_is_filled_up_with_rows_that_are_drawn_uniformly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "e.duckdb"
    gathering(db, 6)
    before = Store(db).measurements()
    drawn = max(sum(m.uniform for m in before if m.body == f.body) for f in SMALL)
    monkeypatch.setattr("experiments.gather.UNIFORM", drawn + 3)
    gathering(db, 6, fill=True)
    after = Store(db).measurements()
    for f in SMALL:
        assert sum(m.uniform for m in after if m.body == f.body) == drawn + 3
    assert sum(not m.uniform for m in after) == sum(not m.uniform for m in before)


@pytest.mark.nvrtc
@pytest.mark.usefixtures("cache")
def test_golden_rows_are_known_and_its_proposals_come_early(tmp_path: Path) -> None:
    regime = regime_of(StandIn())
    found = legal(linear(32, 64, 64))
    slowest = max(found, key=lambda r: (r.config.blocks, r.row.text))
    known = [r for r in found if r.row != slowest.row][:4]
    body = SMALL[0].body
    times = [Measurement(body, (), r.family, r.row.text, regime, 9, 1e-5, 1e-5, 1e-5) for r in known]
    golden = GoldenFile(regime, (
        *(GoldenRow(body, "k", (), m.family, m.row, m) for m in times),
        GoldenRow(body, "k", (), slowest.family, short_row(slowest.row.text), None),
    ))  # fmt: skip
    done = gathering(tmp_path / "e.duckdb", 8, golden=golden)
    rows = {m.row for m in Store(tmp_path / "e.duckdb").measurements() if m.body == body}
    assert done.counts["bodies"] == 2 and len(rows) == 8 - len(known)
    assert slowest.row.text in rows and not rows & {m.row for m in times}
    other = GoldenFile(replace(regime, gpu="H200"), golden.rows)
    gathering(tmp_path / "o.duckdb", 8, golden=other)
    assert sum(m.body == body for m in Store(tmp_path / "o.duckdb").measurements()) == 8


def test_rows_are_asked_for_by_program_and_spelled_with_or_without_empty_knobs(tmp_path: Path) -> None:
    asked = tmp_path / "rows.json"
    asked.write_text(json.dumps({"^a@": ["WORK=t32"], "@1": ["WORK=t64,STAGE="], "none": ["WORK=t1"]}))
    assert wanted_rows(asked, SMALL) == {
        SMALL[0].body: ["WORK=t32", "WORK=t64,STAGE="], SMALL[1].body: ["WORK=t64,STAGE="]
    }  # fmt: skip
    assert is_named("WORK=t64,TILE=,STAGE=", ["WORK=t32", "WORK=t64"])
    assert not is_named("WORK=t64,TILE=f2", ["WORK=t64"]) and not is_named("WORK=t64", [])


def test_the_list_of_bodies_is_large_and_each_is_what_it_says() -> None:
    from emmy.ir.parse import parse_body

    bodies = read(BODIES)
    assert len(bodies) >= 60 and len({(f.body, str(f.sizes)) for f in bodies}) == len(bodies)
    for f in bodies[::9]:
        body = parse_body(f.text)
        assert body.hash == f.body and f.programs and not indirect(body)
    names = [c.name for c in (*design_cases(), *model_cases())]
    assert len(set(names)) == len(names) and all("@" in n for n in names)


def test_bodies_of_a_program_and_their_order(tmp_path: Path) -> None:
    wanted = Wanted("sum@8", {"code": "torch.randn(8, 128).sum(-1)"})
    (one,) = bodies_of(wanted, CARD)
    assert one.programs == ["sum@8"] and one.sizes == {}
    twice = ordered([one, SMALL[0]], [Found(one.body, one.text, "k", {}, ["model@1"])])
    assert sorted(f.body for f in twice) == sorted([one.body, SMALL[0].body])
    assert ["model@1", "sum@8"] in [f.programs for f in twice]
    write(tmp_path / "b.json", twice)
    assert read(tmp_path / "b.json") == twice


@pytest.mark.parametrize("text", [
    "[1,", "5", '{"a@1": 5}', '{"[": ["WORK=t128"]}', '{"a@1": ["no row"]}', '{"a@1": ["WORK=zzz"]}',
    '{"no program": ["WORK=t128"]}',
])  # fmt: skip
def test_proposals_that_nothing_would_come_of_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        wanted_rows(path, SMALL)
    path.write_text('{"@1": ["WORK=t128"]}')
    assert wanted_rows(path, SMALL) == {f.body: ["WORK=t128"] for f in SMALL}


@pytest.mark.parametrize("text", ["[1,", "{}", "[]", '{"bodies": [7]}', '{"bodies": [{"exact": false}]}',
                                  '{"bodies": [{"exact": false, "body": "ab", "pick_row": "x"}]}'])  # fmt: skip
def test_picks_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "regret.json"
    path.write_text(text)
    with pytest.raises(EmmyError):
        wanted_picks(path)


@pytest.mark.parametrize("words", [
    ["--budget", "0"], ["--budget", "nan"], ["--rows", "0"], ["--only", "["], ["--only", "nothing-is-called-so"],
    ["--bodies", "/nowhere"], ["--propose", "/nowhere"], ["--seed", "-1"],
])  # fmt: skip
def test_wrong_usage_is_said_and_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    db = tmp_path / "e.duckdb"
    monkeypatch.setattr("sys.argv", ["gather", "--db", str(db), "--stand-in", *words])
    assert main() == 2
    assert capsys.readouterr().err.startswith("gather: ")
    assert not db.exists()


def test_an_interrupted_gathering_has_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(self: Gathering) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Gathering, "run", stopped)
    monkeypatch.setattr("sys.argv", ["gather", "--db", str(tmp_path / "e.duckdb"), "--stand-in"])
    assert main() == 130
    assert "what was measured is kept" in capsys.readouterr().err
