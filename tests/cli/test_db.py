"""`emmy db`, and what other commands say where the store cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from emmy.extract import schema
from emmy.extract.records import Measurement, Regime
from emmy.extract.store import Store
from tests.cli.conftest import Emmy

duckdb = pytest.importorskip("duckdb")
HERE = Regime("H200", 90, "nvrtc 13.0")


def filled(path: Path, *rows: str) -> Path:
    Store(path).record_measurements([Measurement("ab12", (), "map", r, HERE, 20, 1e-5, 1e-5, 1e-5) for r in rows])
    return path


def test_stats_of_no_file_and_of_a_file(emmy: Emmy, tmp_path: Path) -> None:
    assert "no file yet" in emmy("db", "stats").out
    path = filled(tmp_path / "e.duckdb", "a", "b")
    done = emmy("db", "stats", "--db", str(path))
    assert ["measurement", "2"] in [line.split() for line in done.out.splitlines()]
    assert max(map(len, done.out.splitlines()[1:])) <= 80
    found = json.loads(emmy("db", "stats", "--json", EMMY_TUNE_DB=str(path)).out)
    assert found["rows"]["measurement"] == 2 and found["version"] == schema.VERSION


def test_measurements_are_deleted_by_all_that_is_given(emmy: Emmy, tmp_path: Path) -> None:
    path = filled(tmp_path / "e.duckdb", "a", "b")
    nothing = emmy("db", "delete", "--db", str(path))
    assert nothing.code == 2 and "--body" in nothing.err
    assert emmy("db", "delete", "--row", "a", "--body", "cd34", "--db", str(path)).out == "0 measurements deleted\n"
    assert json.loads(emmy("db", "delete", "--row", "a", "--db", str(path), "--json").out) == {"deleted": 1}
    assert [m.row for m in Store(path).measurements()] == ["b"]


def test_export_import_merge_and_vacuum(emmy: Emmy, tmp_path: Path) -> None:
    one, two = filled(tmp_path / "one.duckdb", "a", "b"), filled(tmp_path / "two.duckdb", "b", "c")
    assert emmy("db", "export", "rows.jsonl", "--db", str(one)).out.startswith("2 rows written to rows.jsonl")
    assert emmy("db", "export", "-", "--db", str(one)).out == Path("rows.jsonl").read_text()
    assert emmy("db", "export", "tables", "--db", str(one)).code == 0
    assert Path("tables/measurement.parquet").exists()
    assert json.loads(emmy("db", "import", "rows.jsonl", "--db", str(two), "--json").out)["rows"]["measurement"] == 1
    assert json.loads(emmy("db", "import", "tables", "--db", str(two), "--json").out)["rows"]["measurement"] == 0
    assert json.loads(emmy("db", "merge", str(two), "--db", str(one), "--json").out)["rows"]["measurement"] == 1
    assert {m.row for m in Store(one).measurements()} == {"a", "b", "c"}
    assert emmy("db", "vacuum", "--db", str(one)).code == 0
    assert len(Store(one).measurements()) == 3
    assert emmy("db", "export", "x", "--format", "csv").code == 2


def newer(path: Path) -> str:
    filled(path, "a")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE emmy_schema SET version = 99")
    return "schema 99"


def damaged(path: Path) -> str:
    path.write_bytes(b"no database" * 999)
    return "damaged or is no DuckDB file"


def folder(path: Path) -> str:
    path.mkdir()
    return "is a folder"


def foreign(path: Path) -> str:
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    return "no evidence store"


def nowhere(path: Path) -> str:
    path.parent.rmdir()
    return "does not exist"


BREAK = [newer, damaged, folder, foreign, nowhere]


@pytest.mark.parametrize("spoil", BREAK)
def test_a_store_that_cannot_be_used_ends_the_db_commands_with_one_clear_line(
    emmy: Emmy, tmp_path: Path, spoil: Callable[[Path], str]
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "e.duckdb"
    words = spoil(path)
    export = tmp_path / "rows.jsonl"
    emmy("db", "export", str(export), "--db", str(filled(tmp_path / "good.duckdb", "a")))
    for command in (["stats"], ["export", "x.jsonl"], ["import", str(export)], ["vacuum"]):
        done = emmy("db", *command, "--db", str(path))
        assert done.code == 1 and words in done.err and "Traceback" not in done.err, command


@pytest.mark.nvrtc
@pytest.mark.parametrize("spoil", BREAK)
@pytest.mark.parametrize("command", ["compile", "saturate"])
def test_a_compile_goes_on_without_the_store_and_says_which_tier_it_lost(
    emmy: Emmy, tmp_path: Path, spoil: Callable[[Path], str], command: str
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "e.duckdb"
    words = spoil(path)
    done = emmy(command, "-c", "torch.exp(torch.randn(8))", "--target", "sm_89", "--no-check", "--db", str(path))
    assert done.code == 0, done.err
    assert "lost tier: measured" in done.err and words in done.err
