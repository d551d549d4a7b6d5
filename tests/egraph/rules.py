"""How the tests of rules are written down, and how often each rule matched while a program was saturated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from emmy.egraph.egg import Egg
from emmy.egraph.model import ModelGraph
from tests.egraph.build import P, agree, execute, plans, values
from tests.frontend.translate.reference import run

Build = Callable[[P], Any]


@dataclass(frozen=True)
class Case:
    """A rule's tests: programs in which it fires, and near misses in which it must not."""

    fires: Build
    never: tuple[Build, ...]


@contextmanager
def matches() -> Iterator[Counter[str]]:
    """Counts the matches of each rule in every e-graph that runs meanwhile."""
    counts: Counter[str] = Counter()
    plain = Egg.run

    def counting(self: Egg, ruleset: str, *, saturate: bool = False) -> Any:
        report = plain(self, ruleset, saturate=saturate)
        counts.update({k: n for k, n in report.num_matches_per_rule.items() if n})
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Egg, "run", counting)
        yield counts


def saturated(build: Build, stages: str = "do", held: tuple[str, ...] = ()) -> tuple[P, ModelGraph, Counter[str]]:
    p = P()
    made = build(p)
    outputs = made if isinstance(made, tuple) else (made,)
    with matches() as counts:
        model = p.saturate(*outputs, stages=stages, held=held)
    return p, model, counts


def check_meaning(p: P, model: ModelGraph) -> None:
    """Every row of every class has the class' value, and the outputs are what the program says."""
    arrays = p.arrays()
    found = values(model, arrays)
    for t, expected in zip(model.outputs, run(p.program(), arrays), strict=True):
        agree(found[t], expected, "output")


__all__ = ["Build", "Case", "check_meaning", "execute", "matches", "plans", "saturated"]
