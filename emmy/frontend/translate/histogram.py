"""How much of what models use becomes our own launches: the operations of a survey of exported models, one by one.

`op_names.csv` lists the tensor operations of that survey by the number of graphs that hold them.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emmy.errors import UnsupportedError, UsageError

Status = Literal["ours", "fallback", "refused", "not a tensor op"]


@dataclass(frozen=True, slots=True)
class OpCoverage:
    """`rank` and `graphs` are the survey's; `reason` says why an operation is not ours.

    fallback: PyTorch executes it; refused: the front end takes no program that holds it.
    """

    op: str
    status: Status
    reason: str
    rank: int
    graphs: int


def op_names() -> list[tuple[int, str, int]]:
    """Rank, operation and number of graphs, most frequent first."""
    with (Path(__file__).parent / "op_names.csv").open(newline="") as file:
        return [(int(r["rank"]), r["op"], int(r["graphs"])) for r in csv.DictReader(file)]


def coverage(only: Collection[str] = ()) -> list[OpCoverage]:
    """Status of these operations of the survey, of all by default: a sample of each is captured and translated.

    All take half a minute.  UsageError for a name that the survey does not hold.
    """
    names = op_names()
    unknown = sorted(set(only) - {op for _, op, _ in names})
    if unknown:
        raise UsageError(f"the survey holds no operation {', '.join(unknown)}", "`emmy ops` lists those that it holds")
    return [OpCoverage(op, *_status(op), rank, graphs) for rank, op, graphs in names if not only or op in only]


def _status(op: str) -> tuple[Status, str]:
    from emmy.frontend.capture import capture
    from emmy.frontend.translate.program import translate
    from emmy.frontend.translate.samples import NOT_TENSORS, SAMPLES, operands

    if op in NOT_TENSORS:
        return "not a tensor op", NOT_TENSORS[op]
    sample = SAMPLES[op]
    try:
        graph = capture(sample.fn, operands(sample.cases[0])).graph
    except (UnsupportedError, UsageError) as e:
        return "refused", e.what.split(" at ")[0]
    calls = translate(graph).opaque
    if not calls:
        return "ours", ""
    return "fallback", "; ".join(f"{graph.nodes[c.node].op}: {c.reason}" for c in calls)
