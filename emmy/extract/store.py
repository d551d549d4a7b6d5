"""The evidence store: a DuckDB file of measurements, failures and runs.

An open DuckDB file locks out every other process, so the file is opened for one batch at a time, under a lock file
beside it, and closed again.  A batch is one transaction: a process killed in the middle loses that batch and no other.
Reading never writes: a missing file is an empty store, an older schema is read as it is.

Where: `EMMY_TUNE_DB`, else `emmy/evidence.duckdb` in the user's data directory (platformdirs).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from emmy.arguments import expanded
from emmy.errors import StoreError
from emmy.extract import schema
from emmy.extract.database import Database, version_of
from emmy.extract.records import (
    STAND_IN,
    Failure,
    KernelRecord,
    Measurement,
    PlanMeasurement,
    Regime,
    Routing,
    Run,
    Sizes,
    Snapshot,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

T = TypeVar("T")
J = TypeVar("J", list[Any], dict[str, Any])
LOCK_SECONDS: Final = 10.0


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The store that is meant when none is named."""
    named = environ.get("EMMY_TUNE_DB", "")
    if named:
        return expanded(named)
    import platformdirs

    return Path(platformdirs.user_data_dir("emmy", appauthor=False)) / "evidence.duckdb"


@dataclass(frozen=True, slots=True)
class Stats:
    """Rows of each table, bytes of the file, its schema version (0: no file yet)."""

    path: str
    version: int
    bytes: int
    rows: Mapping[str, int]


class Store:
    """One evidence file.  Every method opens it, does one batch, and closes it; each may raise StoreError."""

    def __init__(self, path: Path | str | None = None, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = expanded(path) if path is not None else default_path()
        # the directory of the default path is ours to make; one that the user named must be there
        ours = path is None and not os.environ.get("EMMY_TUNE_DB")
        self.database = Database(self.path, lock_seconds, make_directory=ours)

    @staticmethod
    def open_for_compile(path: Path | str | None = None, lock_seconds: float = 2.0) -> Store | str:
        """The store, or why its tier is lost: a compile goes on without it and reports the text."""
        store = Store(path, lock_seconds)
        try:
            store.version()
        except StoreError as error:
            return f"lost tier: measured ({error.what})"
        return store

    # ---- writing ---------------------------------------------------------------------------------------------------

    def record_kernels(self, kernels: Iterable[KernelRecord]) -> None:
        """Insert or replace, by body; the programs in which a body was seen add up."""
        listed = list(kernels)
        if not listed:
            return

        def batch(connection: DuckDBPyConnection) -> None:
            query = "SELECT body, features FROM kernel WHERE list_contains(?, body)"
            known = dict(connection.execute(query, [[k.body for k in listed]]).fetchall())
            rows = [(k.body, k.text, k.name, _features_text(k, known.get(k.body, "{}"))) for k in listed]
            _insert_rows(connection, "INSERT OR REPLACE INTO kernel VALUES", rows)

        self._write(batch)

    def record_measurements(self, measurements: Iterable[Measurement]) -> None:
        listed = list(measurements)
        for m in listed:
            _check_stand_in(m.source, m.regime)
        self._insert("INSERT INTO measurement VALUES", [_measurement_row(m) for m in listed])

    def record_plans(self, plans: Iterable[PlanMeasurement]) -> None:
        listed = list(plans)
        for p in listed:
            _check_stand_in(p.source, p.regime)
        rows = [
            (p.plan, _sizes_text(p.sizes), *_regime_row(p.regime), p.n, p.median, p.p10, p.p90, p.source, p.when)
            for p in listed
        ]
        self._insert("INSERT INTO plan_measurement VALUES", rows)

    def record_failures(self, failures: Iterable[Failure]) -> None:
        self._insert("INSERT INTO failure VALUES", [_failure_row(f) for f in failures])

    def record_routing(self, routings: Iterable[Routing]) -> None:
        rows = [(r.program, json.dumps(r.pieces), r.total, r.method, r.when) for r in routings]
        self._insert("INSERT INTO routing VALUES", rows)

    def record_run(self, run: Run) -> None:
        """Insert or replace, by the run's name: once when it begins and once when it ends."""
        row = (run.run, run.command, run.host, run.version, run.began, run.ended)
        self._insert("INSERT OR REPLACE INTO run VALUES", [row])

    def delete(
        self, body: str | None = None, row: str | None = None, source: str | None = None, regime: Regime | None = None
    ) -> int:
        """Delete the measurements that match all that is given (at least one thing); how many there were."""
        where, values = _where(body, row, source, regime)
        if not where:
            raise StoreError("delete needs something to match", "give a body, a row, a source or a regime")

        def batch(connection: DuckDBPyConnection) -> int:
            found = connection.execute(f"SELECT count(*) FROM measurement WHERE {where}", values).fetchone()
            connection.execute(f"DELETE FROM measurement WHERE {where}", values)
            return int(found[0]) if found else 0

        return self._write(batch)

    def add_missing(self, tables: Mapping[str, Sequence[tuple[Any, ...]]]) -> dict[str, int]:
        """Add rows (in the order of `schema.COLUMNS`) that are not there, in one transaction; how many of each table.

        A kernel or a run of a name that is there stays as it is.
        """

        def batch(connection: DuckDBPyConnection) -> dict[str, int]:
            return {table: _add_missing(connection, table, rows) for table, rows in tables.items()}

        return self._write(batch)

    def vacuum(self) -> tuple[int, int]:
        """Rewrite the file without repeated rows and free space; bytes before and after."""
        return self.database.rewrite(schema.TABLES)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def version(self) -> int:
        """The file's schema version, 0 where there is no file."""
        return self._read(version_of, 0)

    def snapshot(self, bodies: Iterable[str], regime: Regime, plans: Iterable[str] = ()) -> Snapshot:
        """Everything known on this card about these bodies and plans, in one opening of the file."""
        wanted, named = sorted(set(bodies)), sorted(set(plans))

        def batch(connection: DuckDBPyConnection) -> Snapshot:
            card = [regime.gpu, regime.capability, regime.numerics, regime.l2]
            same = "gpu = ? AND capability = ? AND numerics = ? AND l2 = ?"
            found = connection.execute(f"SELECT * FROM measurement WHERE {same} ORDER BY taken, row", card).fetchall()
            everything = [_measurement(r) for r in found]
            measurements: dict[str, list[Measurement]] = defaultdict(list)
            asked = set(wanted)
            for m in everything:
                if m.body in asked:
                    measurements[m.body].append(m)
            failures: dict[str, list[Failure]] = defaultdict(list)
            query = "SELECT * FROM failure WHERE list_contains(?, body) ORDER BY taken, row"
            for r in connection.execute(query, [wanted]).fetchall():
                failures[r[0]].append(_failure(r))
            plan_times: dict[str, list[PlanMeasurement]] = defaultdict(list)
            if version_of(connection) >= 2 and named:
                query = f"SELECT * FROM plan_measurement WHERE {same} AND list_contains(?, plan) ORDER BY taken"
                for r in connection.execute(query, [*card, named]).fetchall():
                    plan_times[r[0]].append(PlanMeasurement(r[0], _sizes(r[1]), Regime(*r[2:7]), *r[7:]))
            biases = tuple(m for m in everything if m.regime == regime)
            return Snapshot(dict(measurements), dict(failures), dict(plan_times), biases)

        return self._read(batch, Snapshot())

    def routings(self, program: str) -> list[Routing]:
        """Plans of a program that were timed as a whole, oldest first."""

        def batch(connection: DuckDBPyConnection) -> list[Routing]:
            if version_of(connection) < 2:
                return []
            query = "SELECT * FROM routing WHERE program = ? ORDER BY taken, total"
            rows = connection.execute(query, [program]).fetchall()
            return [Routing(r[0], tuple(_json(r[1], list, "pieces of a plan")), r[2], r[3], r[4]) for r in rows]

        return self._read(batch, [])

    def kernels(self) -> list[KernelRecord]:
        def batch(connection: DuckDBPyConnection) -> list[KernelRecord]:
            rows = connection.execute("SELECT * FROM kernel ORDER BY body").fetchall()
            return [KernelRecord(r[0], r[1], r[2], _json(r[3], dict, "features")) for r in rows]

        return self._read(batch, [])

    def measurements(self) -> list[Measurement]:
        """All of them, oldest first."""

        def batch(connection: DuckDBPyConnection) -> list[Measurement]:
            rows = connection.execute("SELECT * FROM measurement ORDER BY taken, body, row").fetchall()
            return [_measurement(r) for r in rows]

        return self._read(batch, [])

    def failures(self) -> list[Failure]:
        """All of them, oldest first."""

        def batch(connection: DuckDBPyConnection) -> list[Failure]:
            rows = connection.execute("SELECT * FROM failure ORDER BY taken, body, row").fetchall()
            return [_failure(r) for r in rows]

        return self._read(batch, [])

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, columns and rows in a fixed order."""

        def batch(connection: DuckDBPyConnection) -> dict[str, list[tuple[Any, ...]]]:
            return {table: _all_rows(connection, table) for table in schema.TABLES}

        return self._read(batch, {table: [] for table in schema.TABLES})

    def stats(self) -> Stats:
        def batch(connection: DuckDBPyConnection) -> tuple[int, dict[str, int]]:
            present = {r[0] for r in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
            rows = {}
            for table in schema.TABLES:
                rows[table] = _count(connection, table) if table in present else 0
            return version_of(connection), rows

        version, rows = self._read(batch, (0, dict.fromkeys(schema.TABLES, 0)))
        return Stats(str(self.path), version, self.path.stat().st_size if self.database.exists() else 0, rows)

    # ---- opening ---------------------------------------------------------------------------------------------------

    def _insert(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            self._write(lambda connection: _insert_rows(connection, statement, rows))

    def _write(self, batch: Callable[[DuckDBPyConnection], T]) -> T:
        return self.database.write(batch)

    def _read(self, batch: Callable[[DuckDBPyConnection], T], empty: T) -> T:
        return self.database.read(batch, empty)


# ---- rows and records ----------------------------------------------------------------------------------------------


def _insert_rows(connection: DuckDBPyConnection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        connection.executemany(f"{statement} ({', '.join('?' * len(rows[0]))})", rows)


def _add_missing(connection: DuckDBPyConnection, table: str, rows: Sequence[tuple[Any, ...]]) -> int:
    if not rows:
        return 0
    before = _count(connection, table)
    columns = ", ".join(f'"{c}"' for c, _ in schema.COLUMNS[table])
    connection.execute(f"CREATE TEMP TABLE incoming AS SELECT {columns} FROM {table} LIMIT 0")
    _insert_rows(connection, "INSERT INTO incoming VALUES", rows)
    key = schema.KEYS.get(table)
    if key is None:
        connection.execute(
            f"INSERT INTO {table} ({columns}) SELECT * FROM incoming EXCEPT SELECT {columns} FROM {table}"
        )
    else:
        first = f"SELECT DISTINCT ON ({key}) * FROM incoming ORDER BY ALL"
        connection.execute(f"INSERT INTO {table} ({columns}) {first} ON CONFLICT DO NOTHING")
    connection.execute("DROP TABLE incoming")
    return _count(connection, table) - before


def _count(connection: DuckDBPyConnection, table: str) -> int:
    found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(found[0]) if found else 0


def _all_rows(connection: DuckDBPyConnection, table: str) -> list[tuple[Any, ...]]:
    """Rows of a table, which an older file may lack or hold with fewer columns."""
    query = "SELECT column_name FROM duckdb_columns() WHERE table_name = ?"
    present = {r[0] for r in connection.execute(query, [table]).fetchall()}
    if not present:
        return []
    columns = [
        f'"{c}"' if c in present else f"'{schema.DEFAULTS[(table, c)]}' AS \"{c}\"" for c, _ in schema.COLUMNS[table]
    ]
    return connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY ALL").fetchall()


def _features_text(kernel: KernelRecord, known: str) -> str:
    """The kernel's features as JSON, with the programs that were known of it."""
    before = KernelRecord(kernel.body, "", "", _json(known, dict, "features")).programs
    programs = ";".join(sorted({*before, *kernel.programs}))
    features = {**kernel.features, **({"programs": programs} if programs else {})}
    return json.dumps(features, sort_keys=True)


def rows_of(
    kernels: Iterable[KernelRecord], measurements: Iterable[Measurement], failures: Iterable[Failure]
) -> dict[str, list[tuple[Any, ...]]]:
    """The same as rows of their tables, as `Store.tables` gives them."""
    return {
        "kernel": [(k.body, k.text, k.name, _features_text(k, "{}")) for k in kernels],
        "measurement": [_measurement_row(m) for m in measurements],
        "failure": [_failure_row(f) for f in failures],
    }


def _failure_row(f: Failure) -> tuple[Any, ...]:
    return f.body, f.row, f.stage, f.reason, f.arch, _sizes_text(f.sizes), f.when


def _failure(r: Sequence[Any]) -> Failure:
    return Failure(r[0], r[1], r[2], r[3], r[4], _sizes(r[5]), r[6])


def _check_stand_in(source: str, regime: Regime) -> None:
    """StoreError where made-up times would count for a real card, or real ones for the card that is none."""
    if (source == STAND_IN) != (regime.gpu == STAND_IN):
        raise StoreError(
            f"times of source {source!r} cannot be measurements of {regime.gpu!r}",
            f"the stand-in's times belong to the card {STAND_IN!r}, and nothing else does",
        )


def _sizes_text(sizes: Sizes) -> str:
    return json.dumps(dict(sizes), sort_keys=True)


def _json(text: str, type: type[J], what: str) -> J:
    """What a column holds as JSON.  StoreError where it is not of that type."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, type):
        raise StoreError(f"the evidence store holds {what} that are not ours: {text!r:.80}", "delete that row")
    return value


def _sizes(text: str) -> Sizes:
    try:
        return tuple(sorted((str(k), int(v)) for k, v in json.loads(text).items()))
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"the evidence store holds sizes that are not ours: {text!r}", "delete that row") from error


def _regime_row(r: Regime) -> tuple[str, int, str, str, str]:
    return r.gpu, r.capability, r.compiler, r.numerics, r.l2


def _measurement_row(m: Measurement) -> tuple[Any, ...]:
    return (
        m.body, _sizes_text(m.sizes), m.family, m.row, *_regime_row(m.regime), m.n, m.median, m.p10, m.p90,
        m.clock_before, m.clock_after, m.source, m.when, m.drawn,
    )  # fmt: skip


def _measurement(r: Sequence[Any]) -> Measurement:
    return Measurement(r[0], _sizes(r[1]), r[2], r[3], Regime(*r[4:9]), *r[9:])


def _where(body: str | None, row: str | None, source: str | None, regime: Regime | None) -> tuple[str, list[str | int]]:
    texts = (("body", body), ("row", row), ("source", source))
    wanted: dict[str, str | int] = {column: value for column, value in texts if value is not None}
    if regime is not None:
        wanted.update(zip(("gpu", "capability", "compiler", "numerics", "l2"), _regime_row(regime), strict=True))
    return " AND ".join(f"{column} = ?" for column in wanted), list(wanted.values())
