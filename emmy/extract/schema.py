"""The store's tables, and the steps that bring an older file up to date.

A file's version is the number of steps that were applied to it.  Steps are only ever appended: a released step is never
edited, so that every file can be migrated forward from where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

_BASE: Final = """
CREATE TABLE kernel (body TEXT PRIMARY KEY, text TEXT NOT NULL, name TEXT NOT NULL, features TEXT NOT NULL);
CREATE TABLE measurement (
    body TEXT NOT NULL, sizes TEXT NOT NULL, family TEXT NOT NULL, row TEXT NOT NULL,
    gpu TEXT NOT NULL, capability INTEGER NOT NULL, compiler TEXT NOT NULL, numerics TEXT NOT NULL, l2 TEXT NOT NULL,
    n INTEGER NOT NULL, median DOUBLE NOT NULL, p10 DOUBLE NOT NULL, p90 DOUBLE NOT NULL,
    clock_before DOUBLE NOT NULL, clock_after DOUBLE NOT NULL, source TEXT NOT NULL, taken DOUBLE NOT NULL);
CREATE TABLE failure (
    body TEXT NOT NULL, row TEXT NOT NULL, stage TEXT NOT NULL, reason TEXT NOT NULL, arch TEXT NOT NULL,
    sizes TEXT NOT NULL, taken DOUBLE NOT NULL);
CREATE TABLE run (
    run TEXT PRIMARY KEY, command TEXT NOT NULL, host TEXT NOT NULL, version TEXT NOT NULL,
    began DOUBLE NOT NULL, ended DOUBLE NOT NULL);
"""

_PLANS: Final = """
CREATE TABLE plan_measurement (
    plan TEXT NOT NULL, sizes TEXT NOT NULL,
    gpu TEXT NOT NULL, capability INTEGER NOT NULL, compiler TEXT NOT NULL, numerics TEXT NOT NULL, l2 TEXT NOT NULL,
    n INTEGER NOT NULL, median DOUBLE NOT NULL, p10 DOUBLE NOT NULL, p90 DOUBLE NOT NULL,
    source TEXT NOT NULL, taken DOUBLE NOT NULL);
CREATE TABLE routing (
    program TEXT NOT NULL, pieces TEXT NOT NULL, total DOUBLE NOT NULL, method TEXT NOT NULL, taken DOUBLE NOT NULL);
"""

_DRAWN: Final = """
ALTER TABLE measurement ADD COLUMN drawn TEXT DEFAULT '';
"""

STEPS: Final[tuple[str, ...]] = (_BASE, _PLANS, _DRAWN)
VERSION: Final = len(STEPS)

# A column's kind says what a value from outside has to be: `emmy.extract.checks` holds one check a kind.
Kind = Literal["hash", "text", "long", "l2", "sizes", "features", "pieces", "capability", "count", "seconds", "number"]
# DuckDB's types; of every other kind it is a text
TYPES: Final[Mapping[Kind, str]] = {
    "capability": "INTEGER", "count": "INTEGER", "seconds": "DOUBLE", "number": "DOUBLE",
}  # fmt: skip
COLUMNS: Final[Mapping[str, tuple[tuple[str, Kind], ...]]] = {
    "kernel": (("body", "hash"), ("text", "long"), ("name", "text"), ("features", "features")),
    "measurement": (
        ("body", "hash"), ("sizes", "sizes"), ("family", "text"), ("row", "text"), ("gpu", "text"),
        ("capability", "capability"), ("compiler", "text"), ("numerics", "text"), ("l2", "l2"), ("n", "count"),
        ("median", "seconds"), ("p10", "seconds"), ("p90", "seconds"), ("clock_before", "number"),
        ("clock_after", "number"), ("source", "text"), ("taken", "number"), ("drawn", "text"),
    ),
    "plan_measurement": (
        ("plan", "hash"), ("sizes", "sizes"), ("gpu", "text"), ("capability", "capability"), ("compiler", "text"),
        ("numerics", "text"), ("l2", "l2"), ("n", "count"), ("median", "seconds"), ("p10", "seconds"),
        ("p90", "seconds"), ("source", "text"), ("taken", "number"),
    ),
    "failure": (
        ("body", "hash"), ("row", "text"), ("stage", "text"), ("reason", "long"), ("arch", "text"), ("sizes", "sizes"),
        ("taken", "number"),
    ),
    "routing": (
        ("program", "long"), ("pieces", "pieces"), ("total", "number"), ("method", "text"), ("taken", "number"),
    ),
    "run": (
        ("run", "text"), ("command", "long"), ("host", "text"), ("version", "text"), ("began", "number"),
        ("ended", "number"),
    ),
}  # fmt: skip
TABLES: Final = tuple(COLUMNS)
# columns that name a row: of two rows that agree there, the one that is already in the file stays
KEYS: Final[Mapping[str, str]] = {"kernel": "body", "run": "run"}
# what an older file lacks
DEFAULTS: Final[Mapping[tuple[str, str], str]] = {("measurement", "drawn"): ""}

# the table that says which version a file has; it is made before the first step
VERSION_TABLE: Final = "CREATE TABLE IF NOT EXISTS emmy_schema (version INTEGER NOT NULL)"
