"""Evidence in and out of a store: nothing is lost, nothing is counted twice, nothing is believed unchecked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from emmy.errors import StoreError
from emmy.extract import exchange, schema
from emmy.extract.records import Failure, KernelRecord, Measurement, PlanMeasurement, Regime, Routing, Run
from emmy.extract.store import Store
from emmy.ir.parse import parse_body

duckdb = pytest.importorskip("duckdb")

HERE = Regime("H200", 90, "nvrtc 13.0")
TEXT = "(body [f32[8]] (out [o0:8] [o0:8] f32[8] (exp f32 (load 0 f32 [o0:8]))))"
BODY = parse_body(TEXT)


def measurement(row="WORK=t256", median=1e-5, **more):
    return Measurement(BODY.hash, (("s", 512),), "map", row, HERE, 20, median, median * 0.9, median * 1.1, **more)


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "evidence.duckdb")
    store.record_measurements([measurement(drawn="uniform"), measurement("WORK=t128", 2e-5, when=3.0)])
    store.record_kernels([KernelRecord(BODY.hash, BODY.text, "k_exp", {"programs": "a;b", "folds": 0})])
    store.record_failures([Failure(BODY.hash, "WORK=t1024", "compile", "line\nof a log", "sm_90a")])
    store.record_plans([PlanMeasurement("ab12", (), HERE, 10, 5e-5, 4e-5, 6e-5)])
    store.record_routing([Routing("p", (BODY.hash,), 1e-4, "optimal")])
    store.record_run(Run("r1", "tune", "box", "0.1", 1.0))
    return store


@pytest.mark.parametrize("name", ["out.jsonl", "folder"])
def test_what_is_exported_is_imported_once(store, tmp_path, name):
    counts = exchange.save(store, tmp_path / name)
    assert counts == store.stats().rows
    other = Store(tmp_path / "other.duckdb")
    assert exchange.load(other, tmp_path / name) == counts
    assert other.tables() == store.tables()
    assert sum(exchange.load(other, tmp_path / name).values()) == 0
    assert other.tables() == store.tables()


def test_merge_adds_what_is_new_and_keeps_what_is_there(store, tmp_path):
    other = Store(tmp_path / "other.duckdb")
    other.record_measurements([measurement(drawn="uniform"), measurement("WORK=t64", 3e-5)])
    other.record_kernels([KernelRecord(BODY.hash, BODY.text, "k_other")])
    added = exchange.merge(store, other.path)
    assert {t: n for t, n in added.items() if n} == {"measurement": 1}
    assert [k.name for k in store.kernels()] == ["k_exp"]
    assert len(store.measurements()) == 3
    with pytest.raises(StoreError, match="the store itself"):
        exchange.merge(store, store.path)


def test_merge_reads_an_older_schema(store, tmp_path):
    path = tmp_path / "old.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(schema.VERSION_TABLE)
        connection.execute(schema.STEPS[0])
        connection.execute("INSERT INTO emmy_schema VALUES (1)")
        connection.execute(
            "INSERT INTO measurement VALUES ('b9', '{}', 'map', 'r', 'H200', 90, 'c', '', 'cold', 9, 1, 1, 1, 0, 0,"
            " 'own', 2)"
        )
    assert exchange.merge(store, path)["measurement"] == 1
    assert next(m for m in store.measurements() if m.body == "b9").drawn == ""


def test_programs_of_a_body_add_up(store):
    store.record_kernels([KernelRecord(BODY.hash, BODY.text, "k_exp", {"programs": "c;a", "folds": 0})])
    assert store.kernels()[0].programs == ("a", "b", "c")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [("measurement", "median", -1.0), ("measurement", "median", 9.0), ("measurement", "n", True),
     ("measurement", "body", "../x"), ("measurement", "sizes", "[]"), ("measurement", "sizes", "no"),
     ("measurement", "row", "a\nb"), ("measurement", "l2", "hot"), ("measurement", "p10", None),
     ("measurement", "capability", 3), ("kernel", "text", "(body"), ("kernel", "body", "abcd"),
     ("kernel", "features", '{"a": []}'), ("routing", "pieces", '[5]'), ("measurement", "source", "stand-in"),
     ("plan_measurement", "gpu", "stand-in"), ("failure", "reason", 5),
     ("run", "began", float("inf")), ("measurement", "surprise", 1), ("table", "table", "x")],
)  # fmt: skip
def test_wrong_value_is_an_error_that_names_it_and_nothing_is_imported(store, tmp_path, table, column, value):
    path = tmp_path / "out.jsonl"
    exchange.save(store, path)
    head, *lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    if table == "table":
        rows[0]["table"] = value
    else:
        next(r for r in rows if r["table"] == table)[column] = value
    path.write_text("\n".join([head, *map(json.dumps, rows)]) + "\n")
    other = Store(tmp_path / "other.duckdb")
    with pytest.raises(StoreError, match=r"row \d+: .*(median|column|table|body|must)"):
        exchange.load(other, path)
    assert sum(other.stats().rows.values()) == 0


@pytest.mark.parametrize(
    "text", ["", "no json\n", "[1]\n", '{"format": "x"}\n', '{"format": "emmy-evidence", "version": 99}\n',
             '{"format": "emmy-evidence", "version": 1}\nno json\n']
)  # fmt: skip
def test_file_that_is_no_export_is_an_error(store, tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"x\.jsonl"):
        exchange.load(store, path)


def test_folder_without_tables_and_a_damaged_parquet_file_are_errors(store, tmp_path):
    with pytest.raises(StoreError, match="no exported tables"):
        exchange.load(store, tmp_path)
    exchange.save(store, tmp_path / "folder")
    (tmp_path / "folder" / "run.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(StoreError, match="no Parquet file"):
        exchange.load(store, tmp_path / "folder")
    with pytest.raises(StoreError, match="does not exist"):
        exchange.load(store, tmp_path / "nowhere")


def test_vacuum_keeps_every_distinct_row_and_gives_space_back(store):
    many = [measurement(f"WORK=t{i}", 1e-5 + i * 1e-9, when=float(i)) for i in range(5_000)]
    store.record_measurements(many)
    store.record_measurements([replace(m) for m in many[:500]])
    store.delete(row="WORK=t5")
    before = store.tables()
    old, new = store.vacuum()
    after = store.tables()
    assert new < old
    for table, rows in before.items():
        assert sorted(after[table]) == sorted(set(rows))
    store.record_kernels([KernelRecord(BODY.hash, BODY.text, "again")])  # the key still holds
    assert [k.name for k in store.kernels()] == ["again"]
    assert store.version() == schema.VERSION
