"""The store's tables, and the steps that bring an older file up to date.

A file's version is the number of steps that were applied to it.  Steps are only ever appended: a released step is never
edited, so that every file can be migrated forward from where it is.
"""

from __future__ import annotations

from typing import Final

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

STEPS: Final[tuple[str, ...]] = (_BASE, _PLANS)
VERSION: Final = len(STEPS)
TABLES: Final = ("kernel", "measurement", "plan_measurement", "failure", "routing", "run")

# the table that says which version a file has; it is made before the first step
VERSION_TABLE: Final = "CREATE TABLE IF NOT EXISTS emmy_schema (version INTEGER NOT NULL)"
