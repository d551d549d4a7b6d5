"""Evidence in and out of a store: JSON lines, Parquet, and the rows of another store.

JSON lines: the first line is {"format": "emmy-evidence", "version": …}, every further one a row of a table,
{"table": "measurement", "body": …}.  Parquet: a folder with one file a table.  Both are read by `load`, which checks
every value.  Rows that the store has already are not added again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from emmy.errors import StoreError
from emmy.extract import schema
from emmy.extract.checks import checked
from emmy.extract.files import replacing
from emmy.extract.outside import read_json
from emmy.extract.store import Store

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

FORMAT: Final = "emmy-evidence"
Format = Literal["jsonl", "parquet"]
Counts = dict[str, int]
_TYPES: Final = {"capability": "int32", "count": "int32", "seconds": "float64", "number": "float64"}


def format_of(path: Path) -> Format:
    """JSON lines for a name that ends in .jsonl or .json; a folder of Parquet files otherwise."""
    return "jsonl" if path.suffix in (".jsonl", ".json") or path.is_file() else "parquet"


def save(store: Store, path: Path, form: Format | None = None) -> Counts:
    """Write all rows of the store; how many of each table.  The file or folder appears whole or not at all."""
    tables = store.tables()
    try:
        if (form or format_of(path)) == "jsonl":
            with replacing(path) as part, part.open("w", encoding="utf-8") as file:
                write_lines(tables, file)
        else:
            _save_parquet(tables, path)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error.strerror}", "name another file") from error
    return {t: len(rows) for t, rows in tables.items()}


def write_lines(tables: Mapping[str, list[tuple[Any, ...]]], file: SupportsWrite[str]) -> None:
    file.write(json.dumps({"format": FORMAT, "version": schema.VERSION}) + "\n")
    for table, rows in tables.items():
        names = [c for c, _ in schema.COLUMNS[table]]
        for row in rows:
            file.write(json.dumps({"table": table, **dict(zip(names, row, strict=True))}) + "\n")


def _save_parquet(tables: Mapping[str, list[tuple[Any, ...]]], folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        columns = schema.COLUMNS[table]
        fields = pa.schema(
            [(name, getattr(pa, _TYPES.get(kind, "string"))()) for name, kind in columns],
            {"format": FORMAT, "version": str(schema.VERSION)},
        )
        values = [dict(zip(fields.names, row, strict=True)) for row in rows]
        with replacing(folder / f"{table}.parquet") as part:
            pq.write_table(pa.Table.from_pylist(values, schema=fields), part)


def load(store: Store, path: Path) -> Counts:
    """Add the rows of an exported file or folder; how many of each table were new.  StoreError where one is wrong."""
    if not os.path.exists(path):
        raise StoreError(f"{path} does not exist", "write it with `emmy db export`")
    rows = _parquet_rows(path) if path.is_dir() else _line_rows(path)
    return store.add_missing(checked(rows, str(path)))


def _line_rows(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        with path.open(encoding="utf-8") as file:
            _check_head(path, _object(path, file.readline()))
            for line in file:
                if line.strip():
                    row = _object(path, line)
                    yield str(row.get("table")), row
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", "name another file") from error
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{path} is no text", "write it again with `emmy db export`; another store is added by `emmy db merge`"
        ) from error


def _object(path: Path, line: str) -> Mapping[str, object]:
    try:
        value = read_json(line)
    except ValueError as error:
        raise StoreError(f"{path} is not JSON lines: {error}", "write it again with `emmy db export`") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} holds a line that is no JSON object", "write it again with `emmy db export`")
    return value


def _check_head(path: Path, head: Mapping[str, object]) -> None:
    version = head.get("version")
    if head.get("format") != FORMAT or type(version) is not int:
        raise StoreError(f"{path} is no export of a store (no format {FORMAT!r})", "write it with `emmy db export`")
    if version > schema.VERSION:
        raise StoreError(f"{path} has schema {version}, this Emmy knows {schema.VERSION}", "update Emmy")


def _parquet_rows(folder: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [p for t in schema.TABLES if (p := folder / f"{t}.parquet").exists()]
    if not paths:
        raise StoreError(f"the folder {folder} holds no exported tables", "write them with `emmy db export`")
    for path in paths:
        try:
            table = pq.read_table(path)
            rows = table.to_pylist()
            meta = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
            version = int(meta["version"]) if "version" in meta else None
        # not only pyarrow's errors: a text that is none and a time that Python has not are ValueErrors
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StoreError(
                f"{path} is no Parquet file of ours: {str(error)[:200]}", "write it again with `emmy db export`"
            ) from error
        _check_head(path, {"format": meta.get("format"), "version": version})
        for row in rows:
            yield path.stem, row


def merge(store: Store, other: Path) -> Counts:
    """Add the rows of another store's file; how many of each table were new."""
    if not os.path.exists(other):
        raise StoreError(f"{other} does not exist", "name the evidence store to merge")
    if os.path.realpath(other) == os.path.realpath(store.path):
        raise StoreError(f"{other} is the store itself", "name another one")
    return store.add_missing(checked(_rows(Store(other).tables()), str(other)))


def _rows(tables: Mapping[str, list[tuple[Any, ...]]]) -> Iterator[tuple[str, Mapping[str, object]]]:
    for table, rows in tables.items():
        names = [c for c, _ in schema.COLUMNS[table]]
        for row in rows:
            yield table, dict(zip(names, row, strict=True))
