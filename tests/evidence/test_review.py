"""Golden files held against today's bodies and rows."""

from __future__ import annotations

import pytest

from emmy.evidence.review import bodies_of, check, restamp, successor
from emmy.extract.golden import GoldenFile, GoldenRow, read_golden, write_golden
from emmy.extract.records import KernelRecord
from tests.bodies import linear, matvec
from tests.made_up import REGIME, golden_rows, made_up

LINEAR, MATVEC, WIDER = linear(64, 256, 256), matvec(512, 512), linear(64, 512, 256)
NAMES = {LINEAR.hash: "k_linear", MATVEC.hash: "k_matvec"}


def golden(*bodies) -> GoldenFile:
    rows = [r for b in bodies for r in golden_rows(made_up(b, 5), NAMES)]
    return GoldenFile(REGIME, tuple(rows), tuple(KernelRecord(b.hash, b.text, NAMES[b.hash]) for b in bodies))


def today(*bodies):
    return {b.hash: b for b in bodies}


def test_a_file_of_today_has_no_findings_and_is_restamped_as_it_is(tmp_path) -> None:
    file = golden(LINEAR, MATVEC)
    assert check(file) == [] and check(file, today(LINEAR, MATVEC, WIDER)) == []
    done = restamp(file, today(LINEAR, MATVEC))
    assert (done.kept, done.proposed, done.dropped) == (len(file.rows), 0, ())
    for name, f in (("a.json", file), ("b.json", done.file)):
        write_golden(tmp_path / name, f.regime, f.rows, f.bodies, f.cases)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_row_that_is_not_legal_is_named_and_dropped() -> None:
    file = golden(LINEAR)
    bad = GoldenRow(LINEAR.hash, "k_linear", (), "mma", "WORK=w32x32,TILE=,REDUCE=,STAGE=,RASTER=", None)
    file = GoldenFile(file.regime, (*file.rows, bad), file.bodies)
    (found,) = check(file)
    assert (found.kind, found.row) == ("illegal", bad.row)
    done = restamp(file)
    assert done.kept == len(file.rows) - 1 and [f.row for f in done.dropped] == [bad.row]


def test_a_body_that_is_gone_is_named_and_its_rows_are_dropped() -> None:
    file = golden(LINEAR, MATVEC)
    (found,) = check(file, today(LINEAR))
    assert (found.kind, found.name, found.rows) == ("gone", "k_matvec", len(file.rows) - len(golden(LINEAR).rows))
    done = restamp(file, today(LINEAR))
    assert {r.body for r in done.file.rows} == {LINEAR.hash} and [f.kind for f in done.dropped] == ["gone"]


def test_rows_of_a_body_that_another_one_replaced_become_proposals_without_times() -> None:
    file = golden(LINEAR)
    # the same operands, results and folds, and another epilogue: the only body like it
    other = next(
        b for b in bodies_of([{"code": _RELU}], _target()).values()
        if successor(LINEAR, [b]) is b and b.hash != LINEAR.hash
    )  # fmt: skip
    done = restamp(file, today(other))
    assert done.kept == 0 and done.proposed == len(done.file.rows) > 0
    assert {r.body for r in done.file.rows} == {other.hash} == {k.body for k in done.file.bodies}
    assert all(r.measurement is None for r in done.file.rows)
    assert {(r.family, r.row) for r in done.file.rows} <= {(r.family, r.row) for r in file.rows}
    assert check(done.file, today(other)) == []


_RELU = (
    "x = torch.randn(64, 256, dtype=torch.bfloat16); w = torch.randn(256, 256, dtype=torch.bfloat16)\nF.relu(x @ w.T)"
)


def _target():
    from tests.made_up import TARGET

    return TARGET


def test_a_successor_is_told_by_meaning_else_only_where_it_is_the_only_one() -> None:
    assert successor(LINEAR, [MATVEC, LINEAR]) is LINEAR
    assert successor(LINEAR, [MATVEC, WIDER]) is None
    found = list(bodies_of([{"code": _RELU}, {"code": _RELU.replace("relu", "silu")}], _target()).values())
    assert successor(LINEAR, [b for b in found if b.hash != LINEAR.hash]) is None  # two are like it


@pytest.mark.parametrize("spoil", ["text", "hash", "none"])
def test_a_body_that_cannot_be_read_is_named(spoil: str) -> None:
    file = golden(LINEAR)
    text = {"text": LINEAR.text.replace("sum", "smu"), "hash": MATVEC.text}.get(spoil)
    bodies = (KernelRecord(LINEAR.hash, text, "k_linear"),) if text else ()
    broken = GoldenFile(file.regime, file.rows, bodies)
    (found,) = check(broken)
    assert (found.kind, found.rows) == ("unreadable", len(file.rows))
    assert restamp(broken).file.rows == ()
    # a body that today's programs have needs no text
    assert (check(broken, today(LINEAR)) == []) is (spoil == "none")


def test_a_written_file_keeps_bodies_cases_and_how_rows_were_drawn(tmp_path) -> None:
    file = golden(LINEAR)
    cases = ({"model": "m", "layer": 0}, {"code": "x"})
    write_golden(tmp_path / "g.json", file.regime, file.rows, file.bodies, cases)
    read = read_golden(tmp_path / "g.json")
    assert (read.bodies, read.cases) == (file.bodies, cases)
    assert {m.drawn for m in read.measurements} == {"uniform", "pick"}
