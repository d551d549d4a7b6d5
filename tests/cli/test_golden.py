"""`emmy golden`: from the store to a reviewed file and back onto today's bodies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from emmy.extract.golden import GoldenRow, read_golden, write_golden
from emmy.extract.records import KernelRecord, Measurement
from tests.bodies import linear, matvec
from tests.cli.conftest import Emmy
from tests.made_up import REGIME, filled, made_up

LINEAR, MATVEC = linear(64, 256, 256), matvec(512, 512)
BODIES = [("k_linear", LINEAR), ("k_matvec", MATVEC)]
CARD = ("--gpu", "H200")
# its linear is LINEAR, and it has no matrix-vector product
CODE = "torch.randn(64, 256, dtype=torch.bfloat16) @ torch.randn(256, 256, dtype=torch.bfloat16).T"


def test_record_writes_the_rows_of_one_regime_sorted_one_a_line(emmy: Emmy, tmp_path: Path) -> None:
    store = filled(tmp_path / "e.duckdb", BODIES)
    foreign = [replace(REGIME, gpu="A100", capability=80), replace(REGIME, numerics="fast"), replace(REGIME, l2="warm"),
               replace(REGIME, compiler="older")]  # fmt: skip
    store.record_measurements([replace(m, regime=r, when=0.0) for r in foreign for m in made_up(LINEAR, 3)])
    store.record_measurements([Measurement("feed", (), "map", "r", REGIME, 9, 1.0, 1.0, 1.0)])  # no Loop IR is known
    done = emmy("golden", "record", "g.json", *CARD, "--db", str(store.path), "--json")
    file = read_golden(Path("g.json"))
    assert file.regime == REGIME and json.loads(done.out)["rows"] == len(file.rows) >= 60
    assert {k.name for k in file.bodies} == {"k_linear", "k_matvec"} and {r.body for r in file.rows} == {
        LINEAR.hash, MATVEC.hash
    }  # fmt: skip
    first = Path("g.json").read_bytes()
    emmy("golden", "record", "g.json", *CARD, "--db", str(store.path))
    assert Path("g.json").read_bytes() == first


def test_record_keeps_rows_that_were_not_measured_again_unless_told(emmy: Emmy, tmp_path: Path) -> None:
    one = filled(tmp_path / "one.duckdb", BODIES[:1])
    two = filled(tmp_path / "two.duckdb", BODIES[1:])
    emmy("golden", "record", "g.json", *CARD, "--db", str(one.path))
    emmy("golden", "record", "g.json", *CARD, "--db", str(two.path))
    assert {r.name for r in read_golden(Path("g.json")).rows} == {"k_linear", "k_matvec"}
    emmy("golden", "record", "g.json", *CARD, "--db", str(two.path), "--replace")
    assert {r.name for r in read_golden(Path("g.json")).rows} == {"k_matvec"}
    assert emmy("golden", "record", "h.json", "--gpu", "A100", "--db", str(one.path)).code == 1


def test_check_names_what_is_gone_and_restamp_carries_the_rest_over(emmy: Emmy, tmp_path: Path) -> None:
    store = filled(tmp_path / "e.duckdb", BODIES)
    Path("cases.json").write_text(json.dumps([{"code": CODE}]))
    emmy("golden", "record", "g.json", *CARD, "--db", str(store.path), "--cases", "cases.json")
    fast = emmy("golden", "check", "g.json")
    assert fast.code == 0 and "aged: measured with made-up" in fast.out
    for words in (["-c", CODE], ["--cases", "cases.json"], ["--saturate"]):
        done = emmy("golden", "check", "g.json", *words)
        assert done.code == 1 and f"gone k_matvec {MATVEC.hash}" in done.out and "k_linear" not in done.out, words
    done = emmy("golden", "restamp", "g.json", "-c", CODE, "-o", "new.json", "--json")
    assert done.code == 0 and [f["name"] for f in json.loads(done.out)["dropped"]] == ["k_matvec"]
    assert {r.name for r in read_golden(Path("new.json")).rows} == {"k_linear"}
    assert emmy("golden", "check", "new.json", "-c", CODE).code == 0


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"code": 1}]', '[{"model": "a", "code": "b"}]', "no", '[{"x": 1}]'])
def test_a_list_of_cases_is_checked(emmy: Emmy, tmp_path: Path, text: str) -> None:
    write_golden(Path("g.json"), REGIME, ())
    Path("cases.json").write_text(text)
    done = emmy("golden", "check", "g.json", "--cases", "cases.json")
    assert done.code == 1 and "cases" in done.err


def test_findings_fit_a_terminal_and_name_the_row(emmy: Emmy) -> None:
    row = "WORK=w4x1+p4,TILE=wgmma_m64n128k16_bf16_f32/f1x1/k3,REDUCE=g2,STAGE=d5/smem-tma/reg,RASTER=gm8"
    name = "k_rms_norm_linear_silu_mul_linear"
    write_golden(
        Path("g.json"), REGIME, [GoldenRow(LINEAR.hash, name, (), "wgmma", row, None)],
        [KernelRecord(LINEAR.hash, LINEAR.text, name)],
    )  # fmt: skip
    done = emmy("golden", "check", "g.json")
    assert done.code == 1 and f"illegal {name}" in done.out
    assert row in "".join(line.strip() for line in done.out.splitlines())
    assert max(map(len, done.out.splitlines())) <= 80


def test_a_missing_file_says_so(emmy: Emmy) -> None:
    done = emmy("golden", "check", "nowhere.json")
    assert done.code == 1 and "nowhere.json" in done.err
