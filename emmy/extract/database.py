"""Opens the evidence file for one batch: lock, open, migrate, one transaction, close; says plainly what went wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from emmy.errors import StoreError
from emmy.extract import schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

T = TypeVar("T")
RETRY_SECONDS: Final = 0.05


class Database:
    """The file at `path`; `lock_seconds` is how long a batch waits for other processes."""

    def __init__(self, path: Path, lock_seconds: float, make_directory: bool) -> None:
        self.path, self.lock_seconds, self.make_directory = _target(path), lock_seconds, make_directory

    def write(self, batch: Callable[[DuckDBPyConnection], T]) -> T:
        """The batch's result, its changes committed; on any error nothing of it is kept."""
        self._writable()
        with self._locked(writing=True):
            if not self.exists():
                self._create(self.path)

            def migrated(connection: DuckDBPyConnection) -> T:
                migrate(connection, self.path)
                return batch(connection)

            with self._open(self.path, writing=True) as connection:
                return _in_transaction(connection, migrated)

    def rewrite(self, tables: Iterable[str]) -> tuple[int, int]:
        """Copy each row of the tables once to a new file that takes the old one's place; bytes before and after."""
        self._writable()
        with self._locked(writing=True):
            if not self.exists():
                self._create(self.path)
            before = self.path.stat().st_size
            with self._open(self.path, writing=True) as connection:
                _in_transaction(connection, lambda c: migrate(c, self.path))
            with self._fresh() as fresh, self._open(fresh, writing=True) as connection:
                _in_transaction(connection, lambda c: migrate(c, fresh))
                connection.execute(f"ATTACH '{_quoted(self.path)}' AS former (READ_ONLY)")
                for table in tables:
                    connection.execute(f"INSERT INTO {table} SELECT DISTINCT * FROM former.{table} ORDER BY ALL")
                connection.execute("DETACH former")
        return before, self.path.stat().st_size

    def _create(self, path: Path) -> None:
        """A new file of today's schema appears whole: a half-made one could never be opened again."""
        Path(f"{path}.wal").unlink(missing_ok=True)  # of a file that is gone
        with self._fresh() as fresh, self._open(fresh, writing=True) as connection:
            _in_transaction(connection, lambda c: migrate(c, path))

    @contextmanager
    def _fresh(self) -> Iterator[Path]:
        """Where a new file is made, which takes the old one's place where that went well: a place that the lock keeps
        for us, without what a killed process left there."""
        fresh = self.path.with_name(f".{self.path.name}.new")
        parts = (fresh, Path(f"{fresh}.wal"))
        try:
            for path in parts:
                path.unlink(missing_ok=True)
            yield fresh
            os.replace(fresh, self.path)
        finally:
            for path in parts:
                path.unlink(missing_ok=True)

    def read(self, batch: Callable[[DuckDBPyConnection], T], empty: T) -> T:
        """The batch's result, `empty` where there is no file yet."""
        if not self.exists():
            if not self.make_directory:
                self._directory()
            return empty
        if os.path.isdir(self.path):
            raise StoreError(f"the evidence store {self.path} is a folder", _ELSEWHERE)
        with self._locked(writing=False), self._open(self.path, writing=False) as connection:
            if check_version(connection, self.path) == 0:
                return empty
            return batch(connection)

    def exists(self) -> bool:
        """Whether there is a file yet.  StoreError where that cannot be told: a name that no file can have, a folder
        that may not be looked into, links that lead nowhere."""
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(f"the evidence store {self.path} cannot be reached: {reason}", _ELSEWHERE) from error
        return True

    def _writable(self) -> None:
        self._directory()
        if self.exists() and os.path.isdir(self.path):
            raise StoreError(f"the evidence store {self.path} is a folder", _ELSEWHERE)
        if self.exists() and not os.access(self.path, os.W_OK):
            raise StoreError(
                f"the evidence store {self.path} is read-only", "make it writable, or name another (EMMY_TUNE_DB)"
            )

    def _directory(self) -> None:
        directory = self.path.parent
        try:
            if self.make_directory:
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the directory {directory} cannot be made: {error.strerror}", _ELSEWHERE) from error
        if not directory.is_dir():
            raise StoreError(
                f"the directory {directory} of the evidence store does not exist", "make it, or " + _ELSEWHERE
            )

    @contextmanager
    def _locked(self, writing: bool) -> Iterator[None]:
        import filelock

        lock = filelock.FileLock(f"{self.path}.lock", timeout=self.lock_seconds)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise self._busy() from error
        except OSError as error:
            if writing:
                what = f"the evidence store {self.path} is read-only: its lock file cannot be made ({error.strerror})"
                raise StoreError(what, _ELSEWHERE) from error
            # nobody can write beside a lock file that cannot be made
            yield
            return
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _open(self, path: Path, writing: bool) -> Iterator[DuckDBPyConnection]:
        import duckdb

        connection = self._connect(path, writing)
        try:
            yield connection
        except (duckdb.InterruptException, RuntimeError) as error:
            # what DuckDB makes of a Ctrl-C that comes while it works
            if "interrupt" not in str(error).lower():
                raise
            raise KeyboardInterrupt from error
        except duckdb.Error as error:
            raise self._explained(error) from error
        finally:
            connection.close()

    def _connect(self, path: Path, writing: bool) -> DuckDBPyConnection:
        import duckdb

        deadline = time.monotonic() + self.lock_seconds
        while True:
            try:
                return duckdb.connect(str(path), read_only=not writing)
            except duckdb.Error as error:
                # a program that does not know our lock file (the DuckDB shell) may have it open
                if "set lock" not in str(error):
                    raise self._explained(error) from error
                if time.monotonic() >= deadline:
                    raise self._busy() from error
            time.sleep(RETRY_SECONDS)

    def _busy(self) -> StoreError:
        return StoreError(
            f"the evidence store {self.path} is held by another process (waited {self.lock_seconds:g} s)",
            "wait for the other tuner, or close the program that has the file open",
        )

    def _explained(self, error: Exception) -> StoreError:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        lowered = str(error).lower()
        if "no space left" in lowered or "file too large" in lowered or "could not write" in lowered:
            return StoreError(
                f"the evidence store {self.path} cannot grow: {text}", "free space on its disk, or " + _ELSEWHERE
            )
        if "permission denied" in lowered or "read-only" in lowered:
            return StoreError(f"the evidence store {self.path} cannot be opened: {text}", _ELSEWHERE)
        if "newer version" in lowered or "storage version" in lowered:
            return StoreError(f"the evidence store {self.path} was written by a newer DuckDB: {text}", "update duckdb")
        return StoreError(
            f"the evidence store {self.path} is damaged or is no DuckDB file: {text}",
            "move it away (a new one is made), or restore a copy",
        )


_ELSEWHERE: Final = "name another store with EMMY_TUNE_DB or --db"


def _target(path: Path) -> Path:
    """What a link names: a file that is made anew takes its place, and two names of one file have one lock."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a name that no file can have, which opening it will say
        return path


def version_of(connection: DuckDBPyConnection) -> int:
    """Schema version of an open file; 0 where no step was applied."""
    known = connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'emmy_schema'").fetchone()
    if known is None:
        return 0
    found = connection.execute("SELECT TRY_CAST(max(version) AS INTEGER) FROM emmy_schema").fetchone()
    return int(found[0]) if found and found[0] is not None else 0


def check_version(connection: DuckDBPyConnection, path: Path) -> int:
    version = version_of(connection)
    if version > schema.VERSION:
        raise StoreError(
            f"the evidence store {path} has schema {version}, this Emmy knows {schema.VERSION}",
            "update Emmy, or name another store with EMMY_TUNE_DB",
        )
    if version < 0 or (version == 0 and connection.execute("SELECT 1 FROM duckdb_tables() LIMIT 1").fetchone()):
        raise StoreError(f"{path} is a DuckDB file, but no evidence store: it holds other tables", _ELSEWHERE)
    if version:
        check_columns(connection, path, version)
    return version


def check_columns(connection: DuckDBPyConnection, path: Path, version: int) -> None:
    """StoreError where a table's columns are not those that our steps make; an older file lacks the last ones."""
    present: dict[str, list[tuple[str, str]]] = {}
    query = "SELECT table_name, column_name, data_type FROM duckdb_columns() ORDER BY table_name, column_index"
    for table, column, type in connection.execute(query).fetchall():
        present.setdefault(table, []).append((column, type))
    for table, columns in schema.COLUMNS.items():
        wanted = [(name, schema.TYPES.get(kind, "VARCHAR")) for name, kind in columns]
        found = present.get(table, [])
        lacking = wanted[len(found) :]
        if found != wanted[: len(found)] or (lacking and version == schema.VERSION):
            raise StoreError(
                f"the evidence store {path} was changed by hand: its table {table} has other columns than schema "
                f"{version}",
                "restore a copy, or " + _ELSEWHERE,
            )


def migrate(connection: DuckDBPyConnection, path: Path) -> None:
    """Bring an open file to the current schema, inside the caller's transaction."""
    version = check_version(connection, path)
    if version == schema.VERSION:
        return
    connection.execute(schema.VERSION_TABLE)
    for step in schema.STEPS[version:]:
        connection.execute(step)
    connection.execute("DELETE FROM emmy_schema")
    connection.execute("INSERT INTO emmy_schema VALUES (?)", [schema.VERSION])


def _in_transaction(connection: DuckDBPyConnection, batch: Callable[[DuckDBPyConnection], T]) -> T:
    connection.execute("BEGIN TRANSACTION")
    result = batch(connection)
    connection.execute("COMMIT")
    return result


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
