"""`emmy eval` from the store and from golden files."""

from __future__ import annotations

import json
from pathlib import Path

from emmy.extract.golden import write_golden
from emmy.extract.records import Failure
from tests.bodies import linear, matvec
from tests.cli.conftest import Emmy
from tests.made_up import REGIME, filled, golden_rows

LINEAR, MATVEC = linear(64, 256, 256), matvec(512, 512)
BODIES = [("k_linear", LINEAR), ("k_matvec", MATVEC)]


def test_regret_of_a_store_and_what_it_is_held_to(emmy: Emmy, tmp_path: Path) -> None:
    db = str(filled(tmp_path / "e.duckdb", BODIES).path)
    done = emmy("eval", "regret", "--db", db, "--check")
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    assert "all" in [line.split()[0] for line in done.out.splitlines() if line]
    noisy = str(filled(tmp_path / "noisy.duckdb", BODIES, count=60, noise=20.0).path)
    assert emmy("eval", "regret", "--db", noisy, "--check").code == 1
    found = json.loads(emmy("eval", "regret", "--db", noisy, "--json").out)
    assert {b["name"] for b in found["bodies"]} == {"k_linear", "k_matvec"}
    assert found["families"][-1]["within"] is False
    assert json.loads(emmy("eval", "regret", "--db", noisy, "--json", "--gpu", "A100").out)["bodies"] == []


def test_golden_files_count_unless_they_are_left_out(emmy: Emmy, tmp_path: Path) -> None:
    store = filled(tmp_path / "e.duckdb", BODIES)
    golden = tmp_path / "g.json"
    write_golden(golden, REGIME, golden_rows(store.measurements(), {}), store.kernels())
    done = emmy("eval", "regret", "--json", EMMY_GOLDEN_FILE=str(golden))
    assert len(json.loads(done.out)["bodies"]) == 2
    done = emmy("eval", "regret", "--json", "--no-golden", EMMY_GOLDEN_FILE=str(golden))
    assert json.loads(done.out)["bodies"] == []


def test_variants_by_name_and_by_hash(emmy: Emmy, tmp_path: Path) -> None:
    db = str(filled(tmp_path / "e.duckdb", BODIES).path)
    by_name = emmy("eval", "variants", "k_linear", "--db", db)
    assert by_name.code == 0 and max(map(len, by_name.out.splitlines())) <= 80
    assert by_name.out == emmy("eval", "variants", LINEAR.hash[:10], "--db", db).out
    rows = json.loads(emmy("eval", "variants", "k_linear", "--db", db, "--json").out)["bodies"][0]["rows"]
    assert rows[0]["ratio"] == 1.0 and len(rows) >= 30
    missing = emmy("eval", "variants", "k_nothing", "--db", db)
    assert missing.code == 2 and "k_matvec" in missing.err


def test_failures_by_kind(emmy: Emmy, tmp_path: Path) -> None:
    assert emmy("eval", "failures").out == "no failures recorded\n"
    store = filled(tmp_path / "e.duckdb", BODIES)
    store.record_failures([Failure(LINEAR.hash, f"r{i}", "compile", "too many registers", "sm_90a") for i in range(3)])
    done = emmy("eval", "failures", "--db", str(store.path))
    assert done.out.splitlines()[1].split()[:4] == ["3", "1", "compile", "sm_90a"]
