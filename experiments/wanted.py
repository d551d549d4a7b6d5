"""Rows that somebody asks `experiments.gather` for: picks that were never measured, and rows to try early."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from emmy.errors import UsageError
from emmy.extract.outside import read_json
from emmy.ir.schedule import Pin, Row
from experiments.bodies import Found


def wanted_picks(path: Path) -> dict[str, list[str]]:
    """From the output of `emmy eval regret --json`: rows that were picked and never measured, by body."""
    document = read_file(path)
    found: dict[str, list[str]] = {}
    try:
        for b in document["bodies"]:
            if not b["exact"]:
                found.setdefault(b["body"], []).append(Row.parse(b["pick_row"]).text)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} names no picks of bodies", "write it with `emmy eval regret --json`") from error
    return found


def read_file(path: Path) -> Any:
    """What a JSON file says; UsageError where it is none."""
    try:
        return read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}", "name a file that is") from error


def pattern(text: str, where: str) -> re.Pattern[str]:
    """UsageError where a text is no regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{where}: {text!r} is no regular expression: {error}", "escape its special signs") from None


def is_named(row: str, wanted: Collection[str]) -> bool:
    """Whether one of some rows is this one, where what a row leaves out is empty."""
    return any(_fields(w) == _fields(row) for w in wanted)


def _fields(row: str) -> dict[str, str]:
    parts = dict(p.partition("=")[::2] for p in row.split(","))
    return {key: value for key, value in parts.items() if value}


def wanted_rows(path: Path, bodies: Sequence[Found]) -> dict[str, list[str]]:
    """Rows by body, of a file that lists rows by a regular expression of programs' names.

    UsageError where a row cannot be read, or no body's program has any of the names: nothing would be tried.
    """
    asked = read_file(path)
    if not isinstance(asked, dict) or not all(isinstance(rows, list) for rows in asked.values()):
        raise UsageError(f"{path} proposes no rows", 'write {"REGEX of programs": ["ROW", …]}')
    found: dict[str, list[str]] = {}
    for text, rows in asked.items():
        expression = pattern(text, str(path))
        for row in rows:
            Pin.parse(str(row))
        for f in bodies:
            if any(expression.search(p) for p in f.programs):
                found.setdefault(f.body, []).extend(map(str, rows))
    if not found:
        raise UsageError(f"{path} finds no program of these bodies", "see `programs` in their list")
    return found
