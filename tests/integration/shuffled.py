"""Compiles programs with everything that has no order put in a random one, and writes their artifacts.

    python shuffled.py SEED FOLDER STORE CASE...        CASE: NAME=CODE, or NAME=@MODEL/LAYER/TOKENS

Seed 0 shuffles nothing.  Shuffled are: the rules of a rule file, rows into and out of every e-graph, bodies that are
scheduled together, candidates of the choice of launches, and measurements and failures of the store.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any


def shuffle_everything(rng: random.Random) -> None:
    import emmy.extract.lookup
    import emmy.selection
    from emmy.egraph import egg, schedule

    def shuffled(rows: Any) -> list[Any]:
        listed = list(rows)
        rng.shuffle(listed)
        return listed

    read, facts, rows = egg.read_sexps, egg.Egg.facts, egg.Frozen.rows

    def read_sexps(text: str) -> list[Any]:
        """Declarations, which come before their uses, then the rules in another order."""
        commands = read(text)
        return [c for c in commands if c[0] != "rule"] + shuffled(c for c in commands if c[0] == "rule")

    egg.read_sexps = read_sexps
    egg.Egg.facts = lambda self, relation, table: facts(self, relation, shuffled(table))  # type: ignore[method-assign]
    egg.Frozen.rows = lambda self, name: shuffled(rows(self, name))  # type: ignore[method-assign]
    scheduled, chosen, known = schedule.schedule_rows, emmy.selection.choose, emmy.extract.lookup.Store.snapshot

    def schedule_rows(bodies: Any, *others: Any) -> Any:
        return scheduled(shuffled(bodies), *others)

    def choose(candidates: Any, *others: Any, **more: Any) -> Any:
        return chosen(shuffled(candidates), *others, **more)

    def snapshot(*given: Any) -> Any:
        found = known(*given)
        return replace(
            found,
            measurements={b: shuffled(found.measurements[b]) for b in shuffled(found.measurements)},
            failures={b: shuffled(found.failures[b]) for b in shuffled(found.failures)},
            biases=tuple(shuffled(found.biases)),
        )

    emmy.selection.schedule_rows = schedule_rows  # type: ignore[attr-defined]
    emmy.selection.choose = choose  # type: ignore[attr-defined]
    emmy.extract.lookup.Store.snapshot = snapshot  # type: ignore[method-assign]


def compile_case(text: str, folder: Path, store: Path) -> None:
    from emmy.frontend.source import load
    from emmy.inspect.artifacts import write_artifacts
    from emmy.ir.target import TARGETS
    from emmy.saturation import Options, saturate_program

    name, _, what = text.partition("=")
    if what.startswith("@"):
        model, layer, tokens = what[1:].rsplit("/", 2)
        program = load(model, None, layer=int(layer), seq_len=int(tokens))
    else:
        program = load(None, what)
    s = saturate_program(program, Options(TARGETS["sm_90a"], check=False, database=store, golden=""))
    write_artifacts(s, folder / name)


def main(seed: int, folder: Path, store: Path, *cases: str) -> None:
    if seed:
        shuffle_everything(random.Random(seed))
    for case in cases:
        compile_case(case, folder, store)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
