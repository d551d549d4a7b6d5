"""From launches that could exist to the plan: prices by evidence, then the cheapest set of launches.

Cost is found in stages: every launch is bounded by its roofline; a fused launch whose bound is above the cost of its
own parts is dropped; only the bodies of the others get schedule rows, which the prior scores in numpy batches and
measurements override.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.egraph.schedule import schedule_rows
from emmy.errors import LoweringError, PinError
from emmy.extract.choice import Candidate, Choice, choose
from emmy.extract.evidence import Decision, RowOption, decide, family_bias
from emmy.extract.prior import predict_many, roofline
from emmy.extract.records import Regime, Snapshot
from emmy.extract.work import Work, analyse
from emmy.ir.loop import Body
from emmy.ir.schedule import Pin, Scheduled
from emmy.ir.target import Target
from emmy.resources import rulesets

# A launch that runs once, when the plan is built, costs almost nothing: enough to prefer fewer of them.
BUILD_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Priced:
    """The schedule chosen for one body: its row, what decided it, and the rows that were left out and why."""

    body: Body
    scheduled: Scheduled
    decision: Decision
    alternatives: int


@dataclass(slots=True)
class Selection:
    """Prices bodies and chooses launches; `refuse` takes a row out and the next `run` decides again."""

    model: ModelGraph
    target: Target
    sizes: Mapping[str, int]
    regime: Regime
    evidence: Snapshot = field(default_factory=Snapshot)
    pins: tuple[Pin, ...] = ()
    held: frozenset[str] = frozenset()
    time_limit: float = 20.0
    rows: dict[str, list[Scheduled]] = field(default_factory=dict)
    declined: dict[str, dict[str, str]] = field(default_factory=dict)
    enodes: int = 0
    refused: dict[tuple[str, str, str], str] = field(default_factory=dict)
    priced: dict[str, Priced | None] = field(default_factory=dict)
    _work: dict[str, Work] = field(default_factory=dict)
    _candidates: list[Launch] | None = None
    _bias: Mapping[str, float] | None = None

    def work(self, body: Body) -> Work:
        if body.hash not in self._work:
            self._work[body.hash] = analyse(body, self.sizes)
        return self._work[body.hash]

    def forms(self, launch: Launch) -> tuple[Body, ...]:
        """The bodies that a launch may run: as composed, and as the loop rules improved it."""
        best = self.model.loops.best(launch.body)
        return (launch.body,) if best is launch.body else (launch.body, best)

    def candidates(self) -> list[Launch]:
        """Closed launches that can be part of a good plan, by their rooflines."""
        if self._candidates is None:
            closed = self.model.closed
            bound = {l.id: min(roofline(self.work(b), self.target) for b in self.forms(l)) for l in closed}
            best: dict[int, float] = {}
            for l in sorted(closed, key=lambda l: l.id):
                parts = sum(best.get(p, float("inf")) for p in l.parents) if l.parents else float("inf")
                best[l.id] = min(bound[l.id], parts)
            self._candidates = [l for l in closed if bound[l.id] <= best[l.id]]
        return self._candidates

    def schedule(self) -> None:
        """Schedule rows of every body that a candidate may run."""
        bodies = {b.hash: b for l in self.candidates() for b in self.forms(l)}
        missing = [b for h, b in bodies.items() if h not in self.rows]
        found = schedule_rows(missing, self.target, self.sizes, rulesets(), self.held)
        self.rows.update(found.rows)
        self.declined.update(found.declined)
        self.enodes += found.enodes

    def price(self, body: Body) -> Priced | None:
        """The best row of a body; None when no row is left."""
        if body.hash in self.priced:
            return self.priced[body.hash]
        rows = [s for s in self.rows[body.hash] if (body.hash, s.family, s.row.text) not in self.refused]
        pinned = [s for s in rows if any(p.matches(s.row) for p in self.pins)] if self.pins else []
        rows = pinned or rows
        result = None
        if rows:
            seconds = predict_many(self.work(body), [s.config for s in rows], self.target)
            options = [
                RowOption(s.row.text, s.family, float(t), i == len(rows) - 1) for i, (s, t) in enumerate(zip(rows, seconds, strict=True))
            ]
            sizes = tuple((n, self.sizes[n]) for n in body.sizes)
            decision = decide(
                body.hash, options, self.evidence.measured(body.hash), self.regime,
                failures=self.evidence.failed(body.hash), sizes=sizes, bias=self.bias(), arch=self.target.arch,
            )  # fmt: skip
            chosen = next(s for s in rows if s.row.text == decision.row and s.family == decision.family)
            result = Priced(body, chosen, decision, len(rows))
        self.priced[body.hash] = result
        return result

    def bias(self) -> Mapping[str, float]:
        """How much longer each family's launches took on this card than predicted."""
        if self._bias is None:
            by_hash = {b.hash: b for l in self.candidates() for b in self.forms(l)}
            self._bias = family_bias(self._samples(by_hash))
        return self._bias

    def _samples(self, bodies: Mapping[str, Body]) -> Iterable[tuple[str, float, float]]:
        for m in self.evidence.biases:
            rows = [s for s in self.rows.get(m.body, ()) if s.row.text == m.row]
            if rows and m.body in bodies:
                predicted = predict_many(self.work(bodies[m.body]), [rows[0].config], self.target)
                yield m.family, m.median, float(predicted[0])

    def cheapest(self, launch: Launch) -> Priced | None:
        found = [p for b in self.forms(launch) if (p := self.price(b)) is not None]
        return min(found, key=lambda p: (p.decision.cost, p.body.hash), default=None)

    def refuse(self, priced: Priced, reason: str) -> None:
        """Take a row out (the compiler or the card refused it) and price its body again."""
        self.refused[(priced.body.hash, priced.scheduled.family, priced.scheduled.row.text)] = reason
        self.priced.pop(priced.body.hash, None)

    def run(self, opaque: Iterable[Candidate], place: str = "") -> Choice:
        """The cheapest set of launches.  `place`: `fuse` minimizes launches, `cut` uses no fused launch."""
        self.schedule()
        folded = self.model.anchors.folded
        candidates = list(opaque)
        for l in self.candidates():
            if place == "cut" and l.rule.startswith("fuse"):
                continue
            priced = self.cheapest(l)
            if priced is None:
                continue
            at_build = all(t in folded for t in l.results)
            cost = BUILD_SECONDS if at_build else priced.decision.cost
            if place == "fuse" and not at_build:
                cost = 1.0 + cost
            candidates.append(
                Candidate(l.id, l.results, frozenset(l.operands), cost, f"{priced.body.hash}:{l.operands}", priced.body.hash)
            )
        order = self.model.numbering.order
        known = frozenset(self.model.inputs)
        try:
            choice = choose(candidates, known, self.model.outputs, order, time_limit=self.time_limit)
        except LoweringError as e:
            raise LoweringError(f"{e.what}\n{self.refusal_text()}", e.do) from e
        if self.pins:
            self._check_pins(choice)
        return choice

    def refusal_text(self) -> str:
        lines = [f"  {family} {row or '(plain)'} of body {body}: {why}" for (body, family, row), why in self.refused.items()]
        return "refused rows:\n" + "\n".join(lines) if lines else "no row was refused"

    def _check_pins(self, choice: Choice) -> None:
        by_id = {l.id: l for l in self.candidates()}
        used = [self.cheapest(by_id[c.id]) for c in choice.candidates if c.id in by_id]
        for pin in self.pins:
            if any(p is not None and pin.matches(p.scheduled.row) for p in used):
                continue
            legal = sorted({p.scheduled.row.text for p in used if p is not None})
            rows = sorted({s.row.text for p in used if p is not None for s in self.rows[p.body.hash]})
            raise PinError(
                f"the pin {pin.text!r} is not a legal row of any launch of this program for {self.target.arch}",
                f"without it these rows are chosen: {'; '.join(legal)}\n  legal rows are, among {len(rows)}: "
                + "; ".join(rows[:12]),
            )
