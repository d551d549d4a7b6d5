"""The speed suite as a command, without a GPU: what it does, keeps, and goes on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench import one_case, speed


def options(folder: Path, *words: str) -> object:
    return speed.arguments(["--out", str(folder), "--suite", "small", "--commit", "abc", *words])


@pytest.mark.nvrtc
def test_a_dry_run_does_everything_but_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(c for c in speed.ALL["small"]().cases if c.name == "linear_33x65x77_bf16")
    o = options(tmp_path, "--dry-run", "--cases", f"^{case.name}$")
    assert one_case.one_case(case, o) == 0
    record = json.loads((tmp_path / f"{case.name}.json").read_text())
    assert record["status"] == "done" and record["commit"] == "abc" and record["dry"] and "us" not in record
    assert record["build"]["saturate"] > 0 and min(record["build"]["nvrtc"].values()) > 0
    assert record["rows"]["tuned"] and record["rows"]["untuned"] and record["mma"]
    assert record["error"].keys() == {"eager", "tuned", "untuned"} and max(record["error"].values()) < 0.02
    # the command finds it done, and begins nothing
    assert speed.all_cases(o) == 0
    told = capsys.readouterr()
    assert "1 cases, 1 of them known at abc" in told.err and "not timed" in told.out
    document = json.loads((tmp_path / "small.json").read_text())
    assert [c["name"] for c in document["cases"]] == [case.name]
    assert (tmp_path / "small.md").read_text() == told.out


def test_finished_cases_are_kept_and_others_done_again() -> None:
    done = {"status": "done", "commit": "abc", "dry": False}
    assert speed.finished(done, "abc", dry=False) and speed.finished(done, "abc", dry=True)
    assert not speed.finished(done, "abd", dry=False) and not speed.finished({}, "abc", dry=False)
    assert speed.finished(done, "abd", dry=True), "a dry run never takes the place of a measurement"
    assert not speed.finished({**done, "dry": True}, "abd", dry=True)
    assert not speed.finished({**done, "status": "measuring"}, "abc", dry=False)
    assert not speed.finished({**done, "dry": True}, "abc", dry=False), "a dry run timed nothing"


def test_a_case_that_was_cut_off_says_where(tmp_path: Path) -> None:
    record = one_case.Record(tmp_path / "c.json", name="c", status="built")
    record.save()
    (tmp_path / "c.log").write_text("first\nlast words\n")
    assert speed.outcome(tmp_path, "c", "killed at the budget")["failed"] == (
        "built, exit killed at the budget: first | last words"
    )
    (tmp_path / "d.json").write_text('{"name"')
    assert speed.read(tmp_path, "d") == {} and speed.outcome(tmp_path, "d", "1")["status"] == "not begun"


def test_what_one_process_is_told_says_all_that_the_command_was(tmp_path: Path) -> None:
    o = options(tmp_path, "--db", "e.duckdb", "--rounds", "7", "--dry-run")
    words = speed.words_of(o, "linear", "abc")
    again = speed.arguments(words[3:])
    assert vars(again) == {**vars(o), "case": "linear", "jobs": again.jobs, "budget": again.budget}


@pytest.mark.parametrize(("bytes", "count"), [(1.0, one_case.MOST_COPIES), (6e6, 23), (33e6, 5), (400e6, 2)])
def test_buffers_are_rotated_over_more_than_twice_the_cache(bytes: float, count: int) -> None:
    copies = one_case.copies_of(bytes, 60e6)
    assert copies == count and (copies == one_case.MOST_COPIES or copies * bytes > 2.2 * 60e6)
