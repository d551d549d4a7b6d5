"""How much of what models use becomes our own launches: the operations of a survey of exported models, one by one.

`op_names.csv` lists the tensor operations of that survey by the number of graphs that hold them.
"""

from __future__ import annotations

import csv
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


def coverage() -> list[OpCoverage]:
    """Status of every operation of the survey: its sample is captured and translated (takes half a minute)."""
    return [OpCoverage(op, *_status(op), rank, graphs) for rank, op, graphs in op_names()]


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
