"""Data from outside: JSON that says one thing, numbers that fit; and what reads it names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emmy.errors import EmmyError, StoreError
from emmy.extract import exchange
from emmy.extract.golden import read_golden
from emmy.extract.outside import is_number, read_json
from emmy.extract.store import Store
from emmy.tune.packet import read_packet, read_results
from emmy.tune.runner.main import main
from emmy.tune.runner.manifest import BadPacket
from emmy.tune.runner.measure import measured_before

DEEP = "[" * 100_000
LONG = "9" * 6000
HEAD = '{"format": "emmy-evidence", "version": 3}\n'
ROW: dict[str, Any] = {
    "table": "measurement", "body": "ab12ab12ab12ab12", "sizes": "{}", "family": "row", "row": "WORK=t32",
    "gpu": "H200", "capability": 90, "compiler": "c", "numerics": "", "l2": "cold", "n": 3, "median": 2e-6,
    "p10": 1e-6, "p90": 3e-6, "clock_before": 0, "clock_after": 0, "source": "own", "taken": 0,
}  # fmt: skip
GOLDEN: dict[str, Any] = {
    "format": "emmy-golden", "version": 1, "gpu": "H200", "capability": 90, "compiler": "c", "numerics": "",
    "l2": "cold", "rows": [{k: v for k, v in ROW.items() if k in ("family", "row", "n", "median", "p10", "p90")}
                           | {"body": "ab12ab12ab12ab12", "name": "k", "sizes": {}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"), [(DEEP, "nested"), ('{"a": 1, "b": 2, "a": 3}', "'a' stands twice"), ("{", "Expecting")]
)
def test_json_that_is_not_one_thing_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_json(text)


def test_json_that_is_one_thing_is_read() -> None:
    assert read_json('{"a": [1, {"a": 2}]}') == {"a": [1, {"a": 2}]}


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), True, "1", None])
def test_what_a_float_does_not_hold_is_no_number(value: object) -> None:
    assert not is_number(value)
    assert is_number(10**300) and is_number(0) and is_number(-1.5)


@pytest.mark.parametrize(
    "line",
    [DEEP, LONG, json.dumps(ROW | {"median": 10**400, "p90": 10**400}), json.dumps(ROW | {"n": 10**30}),
     json.dumps(ROW | {"sizes": json.dumps({"s": 10**30})}), json.dumps(ROW).replace('"n"', '"n": 1, "n"')],
)  # fmt: skip
def test_a_damaged_export_is_named_and_adds_nothing(tmp_path: Path, line: str) -> None:
    store, path = Store(tmp_path / "e.duckdb"), tmp_path / "x.jsonl"
    path.write_text(f"{HEAD}{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(StoreError, match=r"x\.jsonl"):
        exchange.load(store, path)
    assert store.measurements() == []


def changed(**fields: Any) -> str:
    return json.dumps(GOLDEN | {"rows": [GOLDEN["rows"][0] | fields]})


@pytest.mark.parametrize(
    "text",
    [DEEP, LONG, changed(median=10**400, p90=10**400), changed(n=10**30), changed(sizes={"s": 10**30}),
     json.dumps(GOLDEN | {"capability": 10**30}), changed().replace('"median"', '"median": 5e-7, "median"'),
     json.dumps(GOLDEN | {"bodies": [{"body": "ab12ab12", "name": "k", "text": "", "features": {"floor": 10**400}}]})],
)  # fmt: skip
def test_a_damaged_golden_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "g.json"
    path.write_text(changed())
    assert len(read_golden(path).measurements) == 1
    path.write_text(text)
    with pytest.raises(StoreError, match=r"g\.json"):
        read_golden(path)


@pytest.mark.parametrize(
    "line", [DEEP, LONG, '{"ok": true, "ok": false}', '{"ok": true, "group": "g", "id": "a", "p10": %s}' % ("9" * 400)]
)
def test_a_damaged_line_of_results_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(line)
    with pytest.raises(EmmyError, match="line 1"):
        read_results(path, {"groups": [{"id": "g", "candidates": [{"id": "a"}]}]})


def test_a_manifest_that_names_a_key_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "emmy-packet", "format": "emmy-packet", "version": 1}')
    with pytest.raises(EmmyError, match="'format' stands twice"):
        read_packet(tmp_path)


@pytest.mark.parametrize("line", [DEEP, "5", "notjson"])
def test_results_that_are_none_are_named_before_anything_is_measured(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f'{{"group": "g", "id": "a"}}\n{line}\n')
    with pytest.raises(BadPacket, match=r"results\.jsonl, line 2"):
        measured_before(path)


@pytest.mark.parametrize(
    "arguments", [["--devices", "x"], ["--devices", "0,,1"], ["--seconds", "nan"], ["--seconds", "-1"], ["--jobs", "0"]]
)
def test_a_runner_refuses_arguments_that_say_nothing(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(tmp_path, arguments)
    assert end.value.code == 2 and "write" in capsys.readouterr().err


def test_half_a_character_is_no_text():
    with pytest.raises(ValueError, match="surrogate"):
        read_json('{"reason": "\\ud800"}')
    assert read_json('["\\ud83d\\ude00", "\\u00e9"]') == ["\U0001f600", "é"]


@pytest.mark.parametrize("meta", [{"version": "²"}, {"version": "9" * 5000}, {b"\xff": b"\xff"}])
def test_a_parquet_file_whose_head_is_odd_is_named(tmp_path: Path, meta: dict[Any, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {k: [v] for k, v in ROW.items() if k != "table"}
    table = pa.table(columns).replace_schema_metadata({"format": "emmy-evidence", **meta})
    pq.write_table(table, tmp_path / "measurement.parquet")
    with pytest.raises(StoreError, match=r"measurement\.parquet"):
        exchange.load(Store(tmp_path / "e.duckdb"), tmp_path)


def test_a_parquet_text_that_is_none_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {k: [v] for k, v in ROW.items() if k != "table"}
    odd = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    table = pa.table({**columns, "body": odd}).replace_schema_metadata({"format": "emmy-evidence", "version": "3"})
    pq.write_table(table, tmp_path / "measurement.parquet")
    with pytest.raises(StoreError, match=r"measurement\.parquet"):
        exchange.load(Store(tmp_path / "e.duckdb"), tmp_path)
