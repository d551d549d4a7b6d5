"""`emmy ops`: which PyTorch operations become our own launches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from emmy.cli.options import Opt

if TYPE_CHECKING:
    from emmy.frontend.translate.histogram import OpCoverage


@dataclass(frozen=True)
class OpsOptions:
    ops: Annotated[list[str] | None, typer.Argument(metavar="[OP]...", help="Only these. Default: the survey.")] = None
    json: Annotated[bool, Opt("--json", help="Print the table as JSON.")] = False


def ops_command(o: OpsOptions) -> None:
    """List the operations of a survey of models: which become our launches, which PyTorch runs, which are refused."""
    from emmy.frontend.translate.histogram import coverage

    rows = coverage(o.ops or ())
    counts = Counter(r.status for r in rows)
    if o.json:
        print(json.dumps({"counts": counts, "operations": [asdict(r) for r in rows]}))
        return
    _table(rows)
    print("\n" + ", ".join(f"{status}: {n}" for status, n in sorted(counts.items())) + f" (of {len(rows)})")


def _table(rows: Sequence[OpCoverage]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("rank", "operation", "graphs", "status", "why not", box=None, pad_edge=False)
    for r in rows:
        table.add_row(str(r.rank), r.op, str(r.graphs), r.status, r.reason)
    Console().print(table)
