"""`emmy bench`: measure a work packet with the runner that it carries, and record what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from emmy.cli.options import Opt
from emmy.errors import DeviceError, PacketError, UsageError


@dataclass(frozen=True)
class BenchOptions:
    packet: Annotated[Path, typer.Argument(metavar="PACKET", help="A folder that `emmy tune --packet-only` wrote.")]
    results: Annotated[
        Path | None, Opt("--results", metavar="FILE", help="Results to add to (default: PACKET/results.jsonl).")
    ] = None
    devices: Annotated[str, Opt("--devices", metavar="LIST", help="GPUs of this machine to use: 0,1.")] = "0"
    budget: Annotated[
        str | None, Opt("--budget", metavar="TIME", help="Stop after this long: 90s, 10m; the same command resumes.")
    ] = None
    record: Annotated[bool, Opt("--record", help="Measure nothing: write the results into the evidence store.")] = False
    db: Annotated[Path | None, Opt("--db", help="Evidence store (default: the user's, or EMMY_TUNE_DB).")] = None


def bench_command(o: BenchOptions) -> None:
    """Measure a work packet on this machine's GPU (one JSON line a candidate), or --record its results."""
    from emmy.cli.request import note
    from emmy.cli.tune import parse_devices, parse_seconds

    ordinals = parse_devices(o.devices)
    out = o.results or o.packet / "results.jsonl"
    if o.record:
        from emmy.extract.store import Store
        from emmy.settings import Settings
        from emmy.tune.packet import record_results

        measured, failed = record_results(o.packet, out, Store(o.db or Settings.read().tune_db))
        print(f"{measured} measurements and {failed} failures recorded")
        return
    if o.db is not None:
        raise UsageError("--db names where to record, and nothing is recorded", "add --record once it is measured")
    from emmy.tune.runner.manifest import BadPacket
    from emmy.tune.runner.measure import measure_packet

    seconds = math.inf if o.budget is None else parse_seconds(o.budget)
    try:
        results = measure_packet(o.packet, out, ordinals, seconds=seconds)
    except BadPacket as e:
        raise PacketError(str(e), "write it again with `emmy tune --packet-only`") from e
    except RuntimeError as e:
        raise DeviceError(str(e), "`emmy doctor` says what is missing") from e
    note(f"{results.ok} measured, {results.failed} failed")
    print(out)
    if not results.ok and results.failed:
        raise typer.Exit(1)
