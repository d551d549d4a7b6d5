"""`emmy doctor`: what of this machine works."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli.options import Opt

if TYPE_CHECKING:
    from emmy.runtime.doctor import Check


@dataclass(frozen=True)
class DoctorOptions:
    json: Annotated[bool, Opt("--json", help="Print the checks as JSON.")] = False


def doctor_command(o: DoctorOptions) -> None:
    """Check this machine by trying what Emmy needs; exit with 1 when something needed fails."""
    from emmy.runtime.doctor import diagnose
    from emmy.settings import Settings

    checks = diagnose(Settings.read())
    if o.json:
        print(json.dumps([asdict(c) for c in checks], indent=1))
    else:
        _table(checks)
    if any(c.needed and not c.ok for c in checks):
        raise typer.Exit(1)


def _table(checks: Sequence[Check]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("check", "", "found", "what to do", box=None, pad_edge=False)
    for c in checks:
        state = "ok" if c.ok else "FAILS" if c.needed else "no"
        table.add_row(c.name, state, c.detail, "" if c.ok else c.hint)
    Console().print(table)
