"""What there is to tune: every distinct body of the plans that are worth considering, with its rows and its group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emmy.egraph.fusion import Launch
from emmy.errors import LoweringError
from emmy.extract.evidence import FEW, standing
from emmy.extract.prior import roofline
from emmy.extract.records import KernelRecord, Measurement, Regime
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Body
from emmy.ir.schedule import Scheduled
from emmy.saturation import Saturation, opaque_candidates
from emmy.tune.groups import Group, add_check, candidate_id, make_group
from emmy.tune.space import Mix, Space

UNIFORM_SOURCE = "tune-uniform"
# a body that only other plans than the chosen one use is worth this much of one that the chosen plan uses
OTHER_PLANS = 0.3
# a launch's second form is tuned as well where it may be this close to the first
CLOSE_FORM = 1.3
# for looking for other plans
SECONDS = 4.0


@dataclass
class Subject:
    """One body at the program's sizes.  `weight`: launches of it in the chosen plan."""

    body: Body
    space: Space
    group: Group
    weight: float
    ids: Mapping[str, int]
    check: Scheduled | None = None
    # the id of the first pick once it was built, and the kernels of "anchor" and "check", which every batch needs
    anchor: str | None = None
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    anchor_seconds: float = 0.0
    retried: set[int] = field(default_factory=set)
    stopped: str = ""

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def record(self) -> KernelRecord:
        """What the store remembers of the body."""
        return KernelRecord(
            self.body.hash, self.body.text, self.name, {"rows": len(self.space.rows), "floor": self.space.floor}
        )

    @property
    def promise(self) -> float:
        return self.weight * self.space.promise()

    def row(self, number: int) -> Scheduled:
        return self.space.rows[number]


def wanted_bodies(s: Saturation, plans: int) -> list[tuple[Launch, Body, float]]:
    """(a launch of it, body, weight) of every body that runs at each call of the chosen plan and of other good ones."""
    found: dict[str, tuple[Launch, Body, float]] = {}
    counts: dict[str, int] = {}
    chosen = {c.launch.id: c for c in s.launches if not c.at_build}
    for c in chosen.values():
        counts[c.priced.body.hash] = counts.get(c.priced.body.hash, 0) + 1
    for c in chosen.values():
        found.setdefault(c.priced.body.hash, (c.launch, c.priced.body, float(counts[c.priced.body.hash])))
    launches = list(chosen.values())
    others = s.selection.alternatives(opaque_candidates(s), plans, s.options.place, SECONDS) if plans > 1 else []
    for l in [*(c.launch for c in launches), *(l for plan in others for l in plan)]:
        for body in _forms(s, l):
            found.setdefault(body.hash, (l, body, OTHER_PLANS))
    return list(found.values())


def _forms(s: Saturation, l: Launch) -> list[Body]:
    forms = s.selection.forms(l)
    guesses = [s.selection.guess(b) for b in forms]
    return [b for b, g in zip(forms, guesses, strict=True) if g <= CLOSE_FORM * min(guesses)]


def make_subject(
    s: Saturation, launch: Launch, body: Body, weight: float, mix: Mix, seed: int, known: Mapping[str, Any]
) -> Subject:
    """A subject without measurements.  `known` holds the values of integer tensors by buffer name.

    LoweringError where no row of the body becomes a kernel.
    """
    selection, target = s.selection, s.options.target
    work = selection.work(body)
    pins = s.options.pins
    rows = selection.legal(body)
    pinned = [r for r in rows if any(p.matches(r.row) for p in pins)]
    usable = pinned or rows
    predicted = np.array(selection.predicted(body, usable))
    if not usable:
        raise LoweringError(f"body {body.hash} has no schedule row")
    first = first_pick(usable, predicted, selection.evidence.measured(body.hash), s.regime)
    values = {
        k: known[name]
        for k, name in enumerate(s.names.tensor(t) for t in launch.operands)
        if name in known and known[name].nbytes == _bytes(body, k, selection.sizes)
    }
    names = {c.priced.body.hash: c.name for c in s.launches}
    limits = {v.name: v.high for v in s.program.graph.sizes if v.high is not None}
    group = make_group(body, selection.sizes, target, work, names.get(body.hash, f"k_{body.hash[:8]}"), values, limits)
    check = add_check(group, rows, selection.predicted(body, rows))
    proposed = set(selection.evidence.proposals.get(body.hash, ()))
    numbers = [k for k, r in enumerate(usable) if (r.family, r.row.text) in proposed]
    space = Space(usable, predicted, roofline(work, target), first, mix, seed, numbers)
    ids = {candidate_id(r): k for k, r in enumerate(usable)}
    return Subject(body, space, group, weight, ids, next((r for r in rows if candidate_id(r) == check), None))


def first_pick(
    rows: Sequence[Scheduled], predicted: np.ndarray[Any, Any], measured: Iterable[Measurement], regime: Regime
) -> int:
    """The row that compile takes without measurements of this machine: the best golden one, else by prediction."""
    golden = {m.row: m.median for m in measured if m.source == "golden" and m.regime.same_card(regime)}
    return min(range(len(rows)), key=lambda k: (golden.get(rows[k].row.text, math.inf), predicted[k], rows[k].row.text))


def _bytes(body: Body, slot: int, sizes: Mapping[str, int]) -> int:
    from emmy.ir.evaluate import integer

    t = body.slots[slot]
    return math.prod(integer(e, sizes) for e in t.shape) * DTYPES[t.dtype].bytes


def take_evidence(subject: Subject, measured: Iterable[Measurement], regime: Regime, failed: Mapping[str, str]) -> int:
    """What the store knows of the subject counts as measured; how many rows that are.

    Measurements of few samples count as well, but for the fastest row of them, which is measured again.
    """
    sizes = tuple(sorted(subject.group.sizes.items()))
    few: set[int] = set()
    for m in sorted(measured, key=standing):  # the last one of a row counts
        if m.body != subject.body.hash or m.regime != regime or m.sizes != sizes:
            continue
        k = subject.space.number(m.family, m.row)
        if k is None:
            continue
        subject.space.measured(k, m.median)
        (few.add if m.n < FEW else few.discard)(k)
        if m.uniform:
            subject.space.uniform.add(k)
    for k, r in enumerate(subject.space.rows):
        if r.row.text in failed and k not in subject.space.times:
            subject.space.broke(k, failed[r.row.text])
    best = subject.space.best
    if best is not None and best in few:
        del subject.space.times[best]
    return len(subject.space.times)


def known_integers(s: Saturation) -> dict[str, np.ndarray[Any, Any]]:
    """Values of the program's integer inputs, buffers and constants, by the name of their buffer in the plan."""
    import torch

    program = s.program
    found: dict[str, np.ndarray[Any, Any]] = {}
    examples = iter(program.example_tensors())
    for i in program.graph.inputs:
        value = next(examples) if i.kind == "user" else None
        if i.tensor.dtype not in DTYPES or DTYPES[i.tensor.dtype].kind == "float":
            continue
        t = program.weights[i.target] if value is None else value
        if isinstance(t, torch.Tensor):
            found[i.name] = t.detach().cpu().contiguous().numpy()
    return found
