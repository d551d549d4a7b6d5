"""Rows from outside (another store, an exported file), checked column by column before they are believed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from emmy.errors import EmmyError, StoreError
from emmy.extract import schema
from emmy.extract.outside import is_number, read_json
from emmy.extract.records import STAND_IN
from emmy.extract.schema import Kind

_HASH: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
_TEXT: Final = re.compile(r"[ -~]{0,400}")
LONGEST: Final = 1_000_000  # characters of a body's Loop IR, or of what a compiler said


def check_row(table: str, row: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    """The row's values in the order of the table's columns.  StoreError names the column that is wrong.

    A column that older files lack has its default.
    """
    values = []
    for column, kind in schema.COLUMNS[table]:
        value = row.get(column, schema.DEFAULTS.get((table, column)))
        if not _CHECKS[kind](value):
            raise StoreError(f"{where}: {table}.{column} must be {EXPECTED[kind]}, found {_short(value)}", _DO)
        values.append(float(value) if kind in ("seconds", "number") else value)
    unknown = row.keys() - {c for c, _ in schema.COLUMNS[table]} - {"table"}
    if unknown:
        raise StoreError(f"{where}: {table} has no column {', '.join(sorted(unknown))}", _DO)
    named = dict(row)
    if "median" in named and not named["p10"] <= named["median"] <= named["p90"]:
        raise StoreError(f"{where}: {table}.median must lie between p10 and p90", _DO)
    if "source" in named and (named["source"] == STAND_IN) != (named["gpu"] == STAND_IN):
        raise StoreError(f"{where}: {table}.source must be {STAND_IN!r} for the card {STAND_IN!r} alone", _DO)
    if table == "kernel":
        check_body(str(named["body"]), str(named["text"]), where)
    return tuple(values)


def check_body(body: str, text: str, where: str) -> None:
    """StoreError where `text` is not the Loop IR of which `body` is the hash."""
    from emmy.ir.parse import parse_body

    try:
        found = parse_body(text).hash
    except EmmyError as error:
        raise StoreError(f"{where}: the text of body {body} is {error.what}", _DO) from error
    if found != body:
        raise StoreError(f"{where}: the text of body {body} is that of body {found}", _DO)


_DO: Final = "it is not an export of ours, or it was edited"

EXPECTED: Final[Mapping[Kind, str]] = {
    "hash": "a hash",
    "text": "a printable text of at most 400 characters",
    "long": f"a text of at most {LONGEST} characters",
    "l2": "cold or warm",
    "sizes": "JSON of names and whole numbers",
    "features": "JSON of names, and numbers or texts",
    "pieces": "a JSON list of printable texts",
    "capability": "a compute capability such as 90",
    "count": "a whole number from 1 to 2147483647",
    "seconds": "a number above 0",
    "number": "a number that is not negative",
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_number(value: Any) -> bool:
    return is_number(value) and value >= 0


def _json(value: object) -> object:
    """The value that a text spells as JSON, None where it is no JSON."""
    try:
        return read_json(value) if isinstance(value, str) and len(value) <= LONGEST else None
    except ValueError:
        return None


def _is_sizes(value: object) -> bool:
    found = _json(value)
    return isinstance(found, dict) and all(type(v) is int and 0 <= v < 1 << 63 for v in found.values())


def _is_features(value: object) -> bool:
    found = _json(value)
    return isinstance(found, dict) and all(isinstance(v, str) or is_number(v) for v in found.values())


def _is_pieces(value: object) -> bool:
    found = _json(value)
    return isinstance(found, list) and all(isinstance(v, str) and _TEXT.fullmatch(v) for v in found)


_CHECKS: Final[Mapping[Kind, Callable[[Any], bool]]] = {
    "hash": lambda v: isinstance(v, str) and _HASH.fullmatch(v) is not None,
    "text": lambda v: isinstance(v, str) and _TEXT.fullmatch(v) is not None,
    "long": lambda v: isinstance(v, str) and len(v) <= LONGEST and "\0" not in v,
    "l2": lambda v: v in ("cold", "warm"),
    "sizes": _is_sizes,
    "features": _is_features,
    "pieces": _is_pieces,
    "capability": lambda v: type(v) is int and 50 <= v < 1000,
    "count": lambda v: type(v) is int and 0 < v < 1 << 31,
    "seconds": lambda v: _is_number(v) and v > 0,
    "number": _is_number,
}


def checked(rows: Iterator[tuple[str, Mapping[str, object]]], where: str) -> dict[str, list[tuple[Any, ...]]]:
    """(table, row) pairs as rows of each table, all checked.  `where` names the file; a row is named by its number."""
    tables: dict[str, list[tuple[Any, ...]]] = {t: [] for t in schema.TABLES}
    for number, (table, row) in enumerate(rows, 1):
        if table not in tables:
            raise StoreError(f"{where}, row {number}: there is no table {_short(table)}", _DO)
        tables[table].append(check_row(table, row, f"{where}, row {number}"))
    return tables
