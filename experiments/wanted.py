"""Rows that somebody asks `experiments.gather` for: picks that were never measured, and rows to try early."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from experiments.bodies import Found


def wanted_picks(path: Path) -> dict[str, list[str]]:
    """From the output of `emmy eval regret --json`: rows that were picked and never measured, by body."""
    found: dict[str, list[str]] = {}
    for b in json.loads(path.read_text())["bodies"]:
        if not b["exact"]:
            found.setdefault(b["body"], []).append(b["pick_row"])
    return found


def is_named(row: str, wanted: Collection[str]) -> bool:
    """Whether one of some rows is this one, where what a row leaves out is empty."""
    return any(_fields(w) == _fields(row) for w in wanted)


def _fields(row: str) -> dict[str, str]:
    parts = dict(p.partition("=")[::2] for p in row.split(","))
    return {key: value for key, value in parts.items() if value}


def wanted_rows(path: Path, bodies: Sequence[Found]) -> dict[str, list[str]]:
    """Rows by body, of a file that lists rows by a regular expression of programs' names."""
    asked: dict[str, list[str]] = json.loads(path.read_text())
    found: dict[str, list[str]] = {}
    for f in bodies:
        for pattern, rows in asked.items():
            if any(re.search(pattern, p) for p in f.programs):
                found.setdefault(f.body, []).extend(rows)
    return found
