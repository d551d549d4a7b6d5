"""Golden files: data from outside, checked, and evidence like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emmy.errors import StoreError
from emmy.extract.golden import (
    GoldenRow,
    file_name,
    golden_path,
    read_golden,
    recorded,
    write_golden,
)
from emmy.extract.lookup import evidence_for_compile
from emmy.extract.records import KernelRecord, Measurement, Regime
from emmy.extract.store import Store
from tests.made_up import golden_rows

HERE = Regime("NVIDIA H200", 90, "nvrtc 13.0")
BODY = "0123456789abcdef"


def measurement(row="WORK=t256", median=1e-5, **more):
    return Measurement(BODY, (("s", 512),), "row", row, HERE, 20, median, median * 0.9, median * 1.1, **more)


def golden(path, *measurements):
    write_golden(path, HERE, golden_rows(measurements, {BODY: "k_rms"}))
    return path


def test_one_row_a_line_and_the_whole_is_json(tmp_path):
    path = golden(tmp_path / "g.json", measurement("b"), measurement("a", 2e-5))
    lines = path.read_text().splitlines()
    assert lines[0].endswith('"rows": [') and len(lines) == 8  # no bodies, no cases: empty lines
    assert [json.loads(line.rstrip(","))["row"] for line in lines[1:3]] == ["b", "a"]
    assert json.loads(path.read_text())["gpu"] == "NVIDIA H200"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
                          st.floats(1e-9, 1e3), st.integers(1, 10**6))))  # fmt: skip
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("golden") / "g.json"
    listed = [replace(measurement(row, t, source="golden"), n=n) for row, t, n in rows]
    golden(path, *listed)
    read = read_golden(path)
    assert read.regime == HERE
    assert sorted(map(untimed, read.measurements), key=repr) == sorted(map(untimed, listed), key=repr)
    found, given = (sorted(m.median for m in some) for some in (read.measurements, listed))
    assert found == pytest.approx(given, rel=1e-4)  # five digits
    golden(path, *read.measurements)
    assert sorted(read_golden(path).measurements, key=repr) == sorted(read.measurements, key=repr)


def untimed(m):
    return replace(m, median=1.0, p10=1.0, p90=1.0)


def test_rows_of_other_bodies_are_not_looked_at(tmp_path):
    path = golden(tmp_path / "g.json", measurement("b"), measurement("a", 2e-5))
    broken = json.loads(path.read_text())
    broken["rows"].append({"body": "f" * 16, "row": 7})
    path.write_text(json.dumps(broken))
    assert len(read_golden(path, {BODY}).measurements) == 2
    assert read_golden(path, set()).rows == ()
    with pytest.raises(StoreError, match="row 2"):
        read_golden(path)


@pytest.mark.parametrize("body", [[], {}, 7, None])
def test_a_row_that_names_no_body_is_refused_by_who_looks_at_a_few(tmp_path, body):
    path = golden(tmp_path / "g.json", measurement("b"))
    broken = json.loads(path.read_text())
    broken["rows"].append({**broken["rows"][0], "body": body})
    path.write_text(json.dumps(broken))
    for few in (None, {BODY}, set()):
        with pytest.raises(StoreError, match="row 1: body"):
            read_golden(path, few)
    _, lost = evidence_for_compile([BODY], HERE, tmp_path, environ={"EMMY_GOLDEN_FILE": str(path)})
    assert [text for text in lost if "golden" in text and "row 1" in text]


def test_a_file_that_claims_no_size_is_not_read_without_end(tmp_path):
    with pytest.raises(StoreError, match="larger than"):
        read_golden(Path("/dev/zero"))


def test_a_link_to_a_golden_file_stays_one(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    golden(real, measurement("b"))
    link.symlink_to(real)
    golden(link, measurement("b"), measurement("c"))
    assert link.is_symlink() and len(read_golden(real).rows) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_what_is_read_and_written_again_is_the_same_file(tmp_path):
    path = golden(tmp_path / "g.json", measurement("b", 1.000001e-5), measurement("a", 1.000002e-5))
    before = path.read_text()
    file = read_golden(path)
    write_golden(path, file.regime, file.rows, file.bodies, file.cases)
    assert path.read_text() == before


def test_a_home_that_there_is_not_loses_the_source_and_not_the_compile(tmp_path):
    nobody = "~no-such-user-here/x"
    _, lost = evidence_for_compile([BODY], HERE, tmp_path, database=nobody, environ={"EMMY_GOLDEN_FILE": nobody})
    assert len(lost) == 2 and all("no-such-user-here" in text for text in lost)


def test_row_without_times_is_a_proposal_and_no_evidence(tmp_path):
    path = tmp_path / "g.json"
    write_golden(path, HERE, [GoldenRow(BODY, "k", (), "row", "WORK=t64", None)])
    read = read_golden(path)
    assert read.measurements == [] and read.proposals[0].row == "WORK=t64"


@pytest.mark.parametrize(
    "field, value",
    [("median", -1.0), ("median", "fast"), ("median", 9.0), ("median", True), ("n", 0), ("n", 1.5), ("body", "../x"),
     ("row", 5), ("row", "x" * 500), ("row", "a\nb"), ("sizes", {"s": -1}), ("sizes", []), ("p10", float("nan")),
     ("family", None)],
)  # fmt: skip
def test_wrong_field_is_an_error_that_names_the_row_and_the_field(tmp_path, field, value):
    path = golden(tmp_path / "g.json", measurement(), measurement("c", 2e-5))
    document = json.loads(path.read_text())
    document["rows"][1][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=rf"row 1: ({field}|median) must"):
        read_golden(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "emmy-golden", "version": 7}', "not json", '{"format": "x"}']
)
def test_file_that_is_no_golden_file_is_an_error(tmp_path, text):
    path = tmp_path / "g.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="golden file"):
        read_golden(path)


def test_a_row_that_was_drawn_uniformly_stays_one_of_the_sample(tmp_path):
    path = golden(tmp_path / "g.json", measurement("a", drawn="uniform"), measurement("b", drawn="top"))
    store = Store(tmp_path / "e.duckdb")
    store.record_kernels([KernelRecord(BODY, "(body)", "k_rms", {})])
    again = [measurement(row, 2e-5, drawn="pick", when=9.0) for row in ("a", "b")]
    store.record_measurements(again)
    rows, _ = recorded(store, HERE, read_golden(path))
    assert {r.row: (r.measurement.median, r.measurement.drawn) for r in rows} == {
        "a": (2e-5, "uniform"), "b": (2e-5, "pick"),
    }  # fmt: skip


def test_header_is_checked(tmp_path):
    path = golden(tmp_path / "g.json")
    document = json.loads(path.read_text())
    for field, value in (("gpu", 5), ("capability", "90"), ("l2", "hot"), ("rows", {})):
        path.write_text(json.dumps({**document, field: value}))
        with pytest.raises(StoreError, match=field):
            read_golden(path)


def test_environment_turns_the_file_off_or_names_another(tmp_path):
    own = golden(tmp_path / file_name(HERE), measurement())
    assert file_name(HERE) == "nvidia-h200_sm90.json"
    assert golden_path(HERE, tmp_path, {}) == own
    assert golden_path(HERE, tmp_path, {"EMMY_GOLDEN_FILE": ""}) is None
    assert golden_path(HERE, tmp_path, {"EMMY_GOLDEN_FILE": "/x.json"}).as_posix() == "/x.json"
    assert golden_path(replace(HERE, gpu="Other"), tmp_path, {}) is None


def test_compile_sees_golden_rows_unless_they_are_off(tmp_path):
    golden(tmp_path / file_name(HERE), measurement("g"))
    store = Store(tmp_path / "e.duckdb")
    # an older copy of golden rows came with another store: the file of today stands for them
    copies = [measurement(row, source="golden") for row in ("g", "old")]
    store.record_measurements([measurement("own"), *copies])

    def rows(environ, regime=HERE):
        snapshot, lost = evidence_for_compile([BODY], regime, tmp_path, database=store.path, environ=environ)
        return sorted(m.row for m in snapshot.measured(BODY)), lost

    assert rows({}) == (["g", "own"], ())
    assert rows({"EMMY_GOLDEN_FILE": ""}) == (["own"], ())
    assert rows({}, replace(HERE, numerics="fast")) == ([], ())
    found, lost = rows({"EMMY_GOLDEN_FILE": str(tmp_path / "missing.json")})
    assert found == ["g", "old", "own"] and "golden" in lost[0]


def test_rows_without_times_are_proposals_for_their_bodies(tmp_path):
    path = tmp_path / file_name(HERE)
    untimed = [GoldenRow(body, "k", (), "row", "WORK=t64", None) for body in (BODY, "fedcba9876543210")]
    write_golden(path, HERE, [*untimed, *golden_rows([measurement("g")], {})])
    store = tmp_path / "e.duckdb"
    snapshot, _ = evidence_for_compile([BODY], HERE, tmp_path, database=store, environ={})
    assert snapshot.proposals == {BODY: (("row", "WORK=t64"),)} and [m.row for m in snapshot.measured(BODY)] == ["g"]
    snapshot, _ = evidence_for_compile([BODY], HERE, tmp_path, database=store, environ={"EMMY_GOLDEN_FILE": ""})
    assert snapshot.proposals == {}


def test_rows_that_a_tuner_drew_uniformly_stay_known_as_such(tmp_path):
    path = golden(tmp_path / "g.json", measurement("a", source="tune-uniform"), measurement("b", 2e-5, source="tune"))
    assert {m.row: m.uniform for m in read_golden(path).measurements} == {"a": True, "b": False}
