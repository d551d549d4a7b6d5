"""The model e-graph of a program: load, decompose and simplify, name, lift, fuse."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from emmy.arguments import positive
from emmy.egraph.anchors import Anchors, every_tensor, find_anchors
from emmy.egraph.egg import Egg
from emmy.egraph.fusion import LAUNCH_RULES, Fusion, Launch
from emmy.egraph.loading import Shapes, load_program, load_rules
from emmy.egraph.loop import LoopGraph, LoopStats
from emmy.egraph.numbering import Numbering, number
from emmy.egraph.pads import PAD_BOUNDS, pad_factors
from emmy.egraph.siblings import merge_siblings
from emmy.egraph.splits import SPLIT_BOUNDS, split_reductions
from emmy.egraph.updates import load_updates
from emmy.ir.loop import Body
from emmy.ir.normal import Substitution
from emmy.ir.parse import index_text, parse_index
from emmy.ir.tensor import Program, coordinates

MODEL_FILES: Final = ("model", "decompose", "algebra", "siblings", "pad", "split", "lift", "update", "fuse", "share")
BOUNDS: Final = {
    "MAX_CONTRACTIONS": 2,
    "MAX_CONTRACTIONS_INLINED": 3,
    "MAX_REDUCTIONS": 6,
    "MAX_WIDE": 1,
    "MAX_RECOMPUTE": 64,
    # of what models of today make the longest has 2,500 nodes; index arithmetic inlined into itself doubles each time
    "MAX_WRITTEN": 6000,
    **PAD_BOUNDS,
    **SPLIT_BOUNDS,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Saturation stops cleanly when one is passed and keeps what it has.  Megabytes are of the whole process.

    Each is above zero, else UsageError.
    """

    launches: int = 200_000
    seconds: float = 600.0
    megabytes: float = 16_000.0

    def __post_init__(self) -> None:
        positive("the limit of launches (--max-launches)", self.launches, int, "launches")
        positive("the limit of time (--max-seconds)", self.seconds, float, "seconds")
        positive("the limit of memory (--max-megabytes)", self.megabytes, float, "megabytes")


@dataclass(slots=True)
class ModelGraph:
    """A saturated program: numbered tensors, and every launch that could make them.

    `changed` are the new contents of inputs that the program changes.
    """

    egg: Egg
    numbering: Numbering
    anchors: Anchors
    launches: list[Launch]
    loops: LoopGraph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    refusals: Counter[tuple[str, str]]
    seconds: dict[str, float] = field(default_factory=dict)
    rounds: int = 0
    notes: list[str] = field(default_factory=list)
    changed: frozenset[int] = frozenset()

    @property
    def closed(self) -> list[Launch]:
        """Launches whose operands and results can all be stored."""
        stored = self.anchors.stored
        return [l for l in self.launches if l.open < 0 and all(t in stored for t in l.results)]

    def bodies(self) -> list[Body]:
        """Every distinct body of a closed launch, better bodies of the loop e-graph included, in order."""
        found: dict[str, Body] = {}
        for l in self.closed:
            for b in (l.body, self.loops.best(l.body)):
                found.setdefault(b.hash, b)
        return list(found.values())

    def enodes(self) -> int:
        return self.egg.freeze().size()

    @property
    def loop_stats(self) -> LoopStats:
        return self.loops.stats


def saturate(
    program: Program, rulesets: Path, *, parameters: frozenset[int], sizes: Mapping[str, int],
    held: frozenset[str] = frozenset(), limits: Limits = Limits(), relaxed: bool = False,
    mutated: Mapping[int, int] | None = None,
    stages: str = "dolf", on_stage: Callable[[str, float], None] | None = None,
) -> ModelGraph:  # fmt: skip
    """Saturate the model e-graph.

    `parameters` are term ids of inputs known when the plan is built; `mutated` gives for the position of an output the
    term id of the input whose new contents it is.  `stages` is a prefix of `dolf` (decompose,
    optimize, lift, fuse): without `f` every launch is one operation.  `relaxed` lifts the bound on recomputation.
    """
    seconds: dict[str, float] = {}

    def stage(name: str, start: float) -> float:
        now = time.perf_counter()
        seconds[name] = seconds.get(name, 0.0) + now - start
        if on_stage:
            on_stage(name, now - start)
        return now

    t = began = time.perf_counter()
    egg = Egg(held=held, constants=dict(BOUNDS), provenance=frozenset({"T", "L"}))
    egg.load(*(rulesets / "model" / f"{n}.egg" for n in MODEL_FILES))
    egg.add(load_rules())
    egg.add(LAUNCH_RULES)
    shapes = Shapes()
    load_program(egg, program, shapes, parameters)
    t = stage("load", t)
    _decompose(egg, shapes, algebra="o" in stages)
    if "o" in stages and merge_siblings(egg, program, shapes):
        _decompose(egg, shapes, algebra=True)
    t = stage("decompose", t)
    numbering = number(egg, shapes)
    numbers = numbering.numbers
    inputs = tuple(numbers[x.id] for x in program.terms if x.kind == "Input")
    weights = frozenset(numbers[x] for x in parameters)
    opaque = [x for c in program.opaque for x in c.operands]
    outputs = tuple(numbers[x] for x in (*program.outputs, *opaque))
    anchors = find_anchors(
        numbering.prims, numbering.tensors, numbering.order, frozenset(inputs),
        frozenset(numbers[x] for x in parameters), outputs, sizes,
    )  # fmt: skip
    if "f" in stages:
        anchors = pad_factors(egg, numbering, anchors, weights, shapes, sizes)
        anchors = split_reductions(egg, numbering, anchors, weights, shapes, sizes)
        changed = [(numbers[x], numbers[program.outputs[k]]) for k, x in (mutated or {}).items()]
        returned = frozenset(t for k, t in enumerate(outputs) if k not in (mutated or {}))
        load_updates(egg, numbering, changed, returned)
    else:
        anchors = every_tensor(numbering.prims, numbering.tensors, numbering.order, frozenset(inputs), weights, sizes)
    t = stage("name", t)
    loops = LoopGraph(rulesets / "loop", held)
    fusion = Fusion(egg, numbering, anchors, loops, sizes)
    fusion.lift()
    t = stage("lift", t)
    notes: list[str] = []

    def may_go_on(launches: int) -> bool:
        spent, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        for what, value, limit in (
            ("launches", launches, limits.launches),
            ("seconds", spent, limits.seconds),
            ("megabytes", used, limits.megabytes),
        ):
            if value > limit:
                notes.append(f"saturation stopped at its limit of {limit:g} {what}; the graph so far is used")
                return False
        return True

    if "f" in stages:
        fusion.saturate(relaxed, may_go_on)
    stage("fuse", t)
    return ModelGraph(
        egg, numbering, anchors, fusion.launches, loops, inputs, tuple(numbers[x] for x in program.outputs),
        fusion.refusals, seconds, fusion.rounds, notes, frozenset(numbers[program.outputs[k]] for k in mutated or {}),
    )  # fmt: skip


def _decompose(egg: Egg, shapes: Shapes, algebra: bool) -> None:
    """Decomposition and algebra to saturation, answering the questions about index maps between rounds."""
    answered: set[tuple[str, str]] = set()
    identities: set[tuple[str, int]] = set()
    size = -1
    egg.run("analysis", saturate=True)
    while True:
        if algebra:
            egg.run("algebra", saturate=True)
        egg.run("decompose")
        egg.run("analysis", saturate=True)
        asked = 0
        frozen = egg.freeze()
        if algebra:
            wanted = sorted(set(frozen.rows("want-compose")) - answered)
            answered.update(wanted)
            asked = egg.facts("compose", [(m, n, compose_maps(m, n)) for m, n in wanted])
            for m, fill, _, s, _ in frozen.rows("Map"):
                if fill == "" and (m, s) not in identities and m == _identity(shapes, s):
                    identities.add((m, s))
                    asked += egg.facts("identity", [(m, s)])
        now = frozen.size()
        if now == size and not asked:
            return
        size = now


def compose_maps(outer: str, inner: str) -> str:
    """Index map of Map(outer, Map(inner, x)): the inner map at the outer's indices."""
    index = parse_index(outer)
    sub = Substitution({})
    return index_text(tuple(sub.apply(e, {a: index[int(a.name[1:])] for a in e.free}) for e in parse_index(inner)))


def _identity(shapes: Shapes, s: int) -> str:
    return index_text(coordinates(shapes.shapes[s]))
