"""`emmy db`: what the evidence store holds, and how to move it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli.options import Opt, with_options

if TYPE_CHECKING:
    from emmy.extract.store import Store

db_app = typer.Typer(help="The evidence store: count, export, import, merge, delete, vacuum.", no_args_is_help=True)


@dataclass(frozen=True)
class StoreOptions:
    db: Annotated[Path | None, Opt("--db", help="Evidence store (default: the user's, or EMMY_TUNE_DB).")] = None
    json: Annotated[bool, Opt("--json", help="Print JSON.")] = False


@dataclass(frozen=True)
class _PathFirst:
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A .jsonl file, or a folder of Parquet files.")]


@dataclass(frozen=True)
class ExchangeOptions(StoreOptions, _PathFirst):
    """`path` first: it is the argument that every one of these commands needs."""


@dataclass(frozen=True)
class _OtherFirst:
    path: Annotated[Path, typer.Argument(metavar="OTHER", help="Another store's .duckdb file.")]


@dataclass(frozen=True)
class MergeOptions(StoreOptions, _OtherFirst):
    """`path` first here too."""


@dataclass(frozen=True)
class ExportOptions(ExchangeOptions):
    format: Annotated[
        str, Opt("--format", help="jsonl or parquet (default: by PATH's name; `-` prints JSON lines).")
    ] = ""


@dataclass(frozen=True)
class DeleteOptions(StoreOptions):
    body: Annotated[str, Opt("--body", help="Of this body, by its whole hash.")] = ""
    row: Annotated[str, Opt("--row", help="Of this schedule row.")] = ""
    source: Annotated[str, Opt("--source", help="Of this source: tune, own, golden …")] = ""


def open_store(o: StoreOptions) -> Store:
    """The store that `--db`, else EMMY_TUNE_DB, else the user's folder names."""
    from emmy.extract.store import Store

    return Store(o.db)


def stats_command(o: StoreOptions) -> None:
    """Count the rows of each table."""
    from emmy.extract import schema

    found = open_store(o).stats()
    if o.json:
        print(json.dumps({"path": found.path, "version": found.version, "bytes": found.bytes, "rows": found.rows}))
        return
    print(found.path)
    old = f" (this Emmy writes {schema.VERSION}; the next write brings it up to date)"
    state = f"schema {found.version}{old if found.version < schema.VERSION else ''}" if found.version else "no file yet"
    print(f"{state}, {found.bytes:,} bytes")
    for table, rows in found.rows.items():
        print(f"{table:<18} {rows:>10,}")


def export_command(o: ExportOptions) -> None:
    """Write every row as JSON lines, or as a folder of Parquet files."""
    from emmy.errors import UsageError
    from emmy.extract import exchange

    if o.format not in ("", "jsonl", "parquet"):
        raise UsageError(f"--format {o.format} is no format", "use jsonl or parquet")
    store = open_store(o)
    if str(o.path) == "-":
        exchange.write_lines(store.tables(), sys.stdout)
        return
    form = o.format or exchange.format_of(o.path)
    _tell(o, exchange.save(store, o.path, "jsonl" if form == "jsonl" else "parquet"), f"written to {o.path}")


def import_command(o: ExchangeOptions) -> None:
    """Add the rows of an export; each value is checked, rows that are there are not added again."""
    from emmy.extract import exchange

    _tell(o, exchange.load(open_store(o), o.path), f"new from {o.path}")


def merge_command(o: MergeOptions) -> None:
    """Add the rows of another evidence store's file."""
    from emmy.extract import exchange

    _tell(o, exchange.merge(open_store(o), o.path), f"new from {o.path}")


def vacuum_command(o: StoreOptions) -> None:
    """Rewrite the file without repeated rows and free space."""
    before, after = open_store(o).vacuum()
    print(json.dumps({"before": before, "after": after}) if o.json else f"{before:,} bytes before, {after:,} after")


def delete_command(o: DeleteOptions) -> None:
    """Delete measurements that should not decide: those that match all that is given."""
    if not (o.body or o.row or o.source):
        from emmy.errors import UsageError

        raise UsageError("db delete needs something to match", "give --body, --row or --source")
    n = open_store(o).delete(o.body or None, o.row or None, o.source or None)
    print(json.dumps({"deleted": n}) if o.json else f"{n:,} measurements deleted")


def _tell(o: StoreOptions, rows: Mapping[str, int], what: str) -> None:
    if o.json:
        print(json.dumps({"rows": dict(rows)}))
        return
    print(f"{sum(rows.values()):,} rows {what}")
    for table, n in rows.items():
        if n:
            print(f"{table:<18} {n:>10,}")


db_app.command("stats")(with_options(stats_command, StoreOptions))
db_app.command("export")(with_options(export_command, ExportOptions))
db_app.command("import")(with_options(import_command, ExchangeOptions))
db_app.command("merge")(with_options(merge_command, MergeOptions))
db_app.command("delete")(with_options(delete_command, DeleteOptions))
db_app.command("vacuum")(with_options(vacuum_command, StoreOptions))
