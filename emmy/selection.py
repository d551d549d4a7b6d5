"""From launches that could exist to the plan: prices by evidence, then the cheapest set of launches.

Cost is found best first.  Every launch is bounded by its roofline; a fused launch whose bound is above the bounds of
its own parts is dropped.  Then the cheapest plan is sought with optimistic guesses in place of unknown costs, the
bodies that it uses get schedule rows (which the prior scores in numpy batches and measurements override), and the
search runs again until every launch of the cheapest plan has a real cost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from emmy.egraph.anchors import elements
from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.egraph.schedule import schedule_rows
from emmy.egraph.typical import typical_configs
from emmy.errors import LoweringError, PinError
from emmy.extract.choice import Candidate, Choice, Unmade, choose, k_best
from emmy.extract.evidence import Decision, Ranked, RowOption, decide, family_bias, ranking
from emmy.extract.prior import roofline
from emmy.extract.priors import ANALYTIC, Prior
from emmy.extract.prune import closure
from emmy.extract.records import Measurement, Regime, Snapshot
from emmy.extract.work import Work, analyse
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Body
from emmy.ir.schedule import Pin, Row, Scheduled
from emmy.ir.target import Target
from emmy.resources import rulesets

# A launch that runs once, when the plan is built, costs almost nothing: enough to prefer fewer of them.
BUILD_SECONDS: Final = 1e-9
# Schedules are expected to beat a typical row by this much.
OPTIMISM: Final = 0.95
# The search for schedules ends when guesses promise less than this share of the plan's time.
SLACK: Final = 0.02
# How many more forms of each chosen launch's results are scheduled with it: fewer rounds of search.
RIVALS: Final = 4
# With pins, a launch that honours none costs this many times more: the pins decide wherever they can.
UNPINNED: Final = 1e3
# How many different reasons the error about a node without a kernel lists.
REASONS: Final = 3
# How many rows the error about a pin lists.
NEAREST: Final = 8


@dataclass(frozen=True, slots=True)
class Priced:
    """The schedule chosen for one body: its row, what decided it, and the rows that were left out and why."""

    body: Body
    scheduled: Scheduled
    decision: Decision
    alternatives: int


@dataclass(slots=True)
class Selection:
    """Prices bodies and chooses launches; `refuse` takes a row out and the next `run` decides again.

    `run` raises `Unmade` where nothing is left that makes an output; `refusal_text` then says what was refused.
    """

    model: ModelGraph
    target: Target
    sizes: Mapping[str, int]
    regime: Regime
    evidence: Snapshot = field(default_factory=Snapshot)
    pins: tuple[Pin, ...] = ()
    held: frozenset[str] = frozenset()
    time_limit: float = 30.0
    prior: Prior = ANALYTIC
    # keep launches that their roofline rules out: what was asked for (a pin, `fuse`) may be among them
    unpruned: bool = False
    # where given, only these bodies run, each by its (family, row): a plan that was measured as a whole
    only: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rows: dict[str, list[Scheduled]] = field(default_factory=dict)
    declined: dict[str, dict[str, str]] = field(default_factory=dict)
    enodes: int = 0
    # how many complete kernels each schedule rule made
    made: Counter[str] = field(default_factory=Counter)
    refused: dict[tuple[str, str, str], str] = field(default_factory=dict)
    priced: dict[str, Priced | None] = field(default_factory=dict)
    _guesses: dict[str, float] = field(default_factory=dict)
    _work: dict[str, Work] = field(default_factory=dict)
    _candidates: list[Launch] | None = None
    _bias: Mapping[str, float] | None = None

    def work(self, body: Body) -> Work:
        if body.hash not in self._work:
            self._work[body.hash] = analyse(body, self.sizes)
        return self._work[body.hash]

    def forms(self, launch: Launch) -> tuple[Body, ...]:
        """The bodies that a launch may run: as the loop rules improved it, and as composed where that is less work."""
        best = self.model.loops.best(launch.body)
        if self.only:
            return tuple(b for b in dict.fromkeys((launch.body, best)) if b.hash in self.only)
        if best is launch.body:
            return (best,)
        improved, composed = (roofline(self.work(b), self.target) for b in (best, launch.body))
        return (best,) if improved <= composed else (launch.body, best)

    def candidates(self) -> list[Launch]:
        """Closed launches that can be part of a good plan, by their rooflines."""
        if self._candidates is None:
            closed = [l for l in self.model.closed if not self.only or self.forms(l)]
            bound = {l.id: min(map(self.bound, self.forms(l))) for l in closed}
            best: dict[int, float] = {}
            for l in sorted(closed, key=lambda l: l.id):
                parts = sum(best.get(p, float("inf")) for p in l.parents) if l.parents else float("inf")
                best[l.id] = min(bound[l.id], parts)
            self._candidates = [l for l in closed if self.unpruned or self.only or bound[l.id] <= best[l.id]]
        return self._candidates

    def schedule(self, bodies: Iterable[Body]) -> None:
        """Schedule rows of these bodies, in one e-graph."""
        missing = {b.hash: b for b in bodies if b.hash not in self.rows}
        if not missing:
            return
        found = schedule_rows(missing.values(), self.target, self.sizes, rulesets(), self.held)
        self.rows.update(found.rows)
        self.declined.update(found.declined)
        self.enodes += found.enodes
        self.made = self.made + found.made

    def legal(self, body: Body) -> list[Scheduled]:
        """Every legal schedule of a body."""
        self.schedule([body])
        return self.rows[body.hash]

    def wanted(self, body: Body) -> list[Scheduled]:
        """The legal schedules that honour a pin, or all where none does."""
        return self._pinned(self.legal(body))

    def _pinned(self, rows: list[Scheduled]) -> list[Scheduled]:
        return [s for s in rows if any(p.matches(s.row) for p in self.pins)] or rows

    def bound(self, body: Body) -> float:
        """Seconds that no schedule of the body can beat, or the least that was measured."""
        seen = [m.median for m in self.evidence.measured(body.hash)]
        return min([roofline(self.work(body), self.target), *seen])

    def guess(self, body: Body) -> float:
        """What the body is expected to cost at its best, before its schedules are known: a little too little."""
        if body.hash not in self._guesses:
            configs = typical_configs(body, self.target, self.sizes)
            seconds = OPTIMISM * float(self.prior.score(self.work(body), configs, self.target).min())
            self._guesses[body.hash] = max(seconds, roofline(self.work(body), self.target))
        return min([self._guesses[body.hash], *(m.median for m in self.evidence.measured(body.hash))])

    def price(self, body: Body) -> Priced | None:
        """The best row of a body; None when no row is left."""
        if body.hash in self.priced:
            return self.priced[body.hash]
        rows = [s for s in self.rows[body.hash] if (body.hash, s.family, s.row.text) not in self.refused]
        if self.only:
            rows = [s for s in rows if (s.family, s.row.text) == self.only[body.hash]]
        rows = self._pinned(rows)
        self.priced[body.hash] = self._best(body, rows) if rows else None
        return self.priced[body.hash]

    def _best(self, body: Body, rows: list[Scheduled]) -> Priced | None:
        sizes = tuple((n, self.sizes[n]) for n in body.sizes)
        try:
            decision = decide(
                body.hash, self._options(body, rows), self.evidence.measured(body.hash), self.regime,
                failures=self.evidence.failed(body.hash), sizes=sizes, bias=self.bias(), arch=self.target.arch,
                floor=roofline(self.work(body), self.target),
            )  # fmt: skip
        except LoweringError as e:  # the store knows of no row that works; other bodies may do
            self.refused[(body.hash, "any", "row")] = e.what
            return None
        chosen = next(s for s in rows if s.row.text == decision.row and s.family == decision.family)
        return Priced(body, chosen, decision, len(rows))

    def _options(self, body: Body, rows: list[Scheduled]) -> list[RowOption]:
        return [
            RowOption(s.row.text, s.family, float(t), i == len(rows) - 1)
            for i, (s, t) in enumerate(zip(rows, self.predicted(body, rows), strict=True))
        ]

    def predicted(self, body: Body, rows: Sequence[Scheduled]) -> list[float]:
        """Seconds that each row is predicted to take."""
        return [float(t) for t in self.prior.score(self.work(body), [s.config for s in rows], self.target)]

    def decided(self, decision: Decision) -> str:
        """What a decision rests on: a measurement, a golden file, learned or analytic prior, the first option."""
        if decision.tier == "predicted":
            return self.prior.name
        if decision.tier == "safe":
            return "first safe option"
        rows = [m for m in self.evidence.measured(decision.body) if m.row == decision.row]
        golden = not any(m.source != "golden" and m.median == decision.cost for m in rows)
        where = "golden file" if golden and rows else "measurement"
        return f"{where} of another compiler" if decision.tier == "aged" else where

    def ranking(self, body: Body) -> list[Ranked]:
        """Every legal row of a body in the order in which evidence prefers them, refused and failing ones included."""
        rows, sizes = self.legal(body), tuple((n, self.sizes[n]) for n in body.sizes)
        measured = self.evidence.measured(body.hash)
        return ranking(
            body.hash, self._options(body, rows), measured, self.regime, sizes=sizes, bias=self.bias(),
            floor=roofline(self.work(body), self.target),
        )  # fmt: skip

    def bias(self) -> Mapping[str, float]:
        """How much longer each family's launches took on this card than predicted."""
        if self._bias is None:
            by_hash = {b.hash: b for l in self.candidates() for b in self.forms(l)}
            self._bias = family_bias(self._samples(by_hash))
        return self._bias

    def _samples(self, bodies: Mapping[str, Body]) -> Iterable[tuple[str, float, float]]:
        # a prior that was trained on the golden rows learns nothing of its bias from them
        trained = self.prior is not ANALYTIC
        by_body: dict[str, list[Measurement]] = defaultdict(list)
        for m in self.evidence.biases:
            if m.body in bodies and m.body in self.rows and not (trained and m.source == "golden"):
                by_body[m.body].append(m)
        for body, found in by_body.items():
            rows = {s.row.text: s for s in reversed(self.rows[body])}
            known = [m for m in found if m.row in rows]
            if known:
                predicted = self.predicted(bodies[body], [rows[m.row] for m in known])
                yield from ((m.family, m.median, t) for m, t in zip(known, predicted, strict=True))

    def cheapest(self, launch: Launch) -> Priced | None:
        """The best scheduled form of a launch; None when none has a row left."""
        found = [p for b in self.forms(launch) if b.hash in self.rows and (p := self.price(b)) is not None]
        return min(found, key=lambda p: (not self._honours(p), p.decision.cost, p.body.hash), default=None)

    def _honours(self, p: Priced) -> bool:
        """True where the row is one that a pin asks for, or nothing is pinned."""
        return not self.pins or any(pin.matches(p.scheduled.row) for pin in self.pins)

    def estimate(self, launch: Launch) -> tuple[float, Body] | None:
        """(cost, form): real for a scheduled form, its bound for another; None when no form can run.

        A row that honours no pin is made dear, so that the cheapest plan is one that the pins decide.
        """
        found: list[tuple[float, str, Body]] = []
        for b in self.forms(launch):
            if b.hash not in self.rows:
                found.append((self.guess(b), b.hash, b))
            elif (p := self.price(b)) is not None:
                found.append((p.decision.cost * (1.0 if self._honours(p) else UNPINNED), b.hash, b))
        return (min(found)[0], min(found)[2]) if found else None

    def informed(
        self, evidence: Snapshot, regime: Regime, only: Mapping[str, tuple[str, str]] | None = None
    ) -> Selection:
        """The same search with other evidence: schedules are kept, prices are not."""
        return replace(
            self, evidence=evidence, regime=regime, only=only or {}, rows=dict(self.rows), declined=dict(self.declined),
            refused={}, priced={}, _candidates=None, _guesses=dict(self._guesses), _bias=None,
        )  # fmt: skip

    def refuse(self, priced: Priced, reason: str) -> None:
        """Take a row out (the compiler or the card refused it) and price its body again."""
        self.refused[(priced.body.hash, priced.scheduled.family, priced.scheduled.row.text)] = reason
        self.priced.pop(priced.body.hash, None)

    def run(self, opaque: Iterable[Candidate], place: str = "") -> Choice:
        """The cheapest set of launches.  `place`: `fuse` minimizes launches, `cut` uses no fused launch."""
        fixed = list(opaque)
        if self.pins:
            self._schedule_pinned()
        launches = [l for l in self.candidates() if place != "cut" or not l.rule.startswith("fuse")]
        by_id = {l.id: l for l in launches}
        measured = {m.body for m in self.evidence.biases}
        self.schedule(b for l in launches for b in self.forms(l) if b.hash in measured)
        # greedy plans find most of the bodies that matter; the solver then proves the choice, and may ask for more
        for limit in (0.0, self.time_limit):
            choice = self._settled(fixed, launches, by_id, place, limit)
        if self.pins:
            self._check_pins(choice)
        return choice

    def _schedule_pinned(self) -> None:
        """Schedule every body that could honour a pin; those ruled out by their roofline only where no other can."""
        self.schedule(b for l in self.candidates() for b in self.forms(l))
        matching = (p.matches(r.row) for rows in self.rows.values() for r in rows for p in self.pins)
        if not any(matching) and not self.unpruned:
            self.unpruned, self._candidates = True, None
            self.schedule(b for l in self.candidates() for b in self.forms(l))

    def _settled(
        self, fixed: list[Candidate], launches: list[Launch], by_id: Mapping[int, Launch], place: str, limit: float
    ) -> Choice:
        """A plan of launches with real costs, within SLACK of the cheapest plan that guesses promise."""
        while True:
            choice = self._choose(fixed, launches, place, limit)
            chosen = [by_id[c.id] for c in choice.candidates if c.id in by_id]
            wanted = [b for l in chosen if (e := self.estimate(l)) and (b := e[1]).hash not in self.rows]
            if not wanted:
                return choice
            known = [l for l in launches if self.cheapest(l) is not None]
            if not place and self._can_run(fixed, known):
                real = self._choose(fixed, known, place, limit)
                if choice.total >= (1.0 - SLACK) * real.total:
                    return real
            self.schedule([*wanted, *self._rivals(chosen, launches)])

    def _can_run(self, fixed: list[Candidate], known: list[Launch]) -> bool:
        """True when launches with real costs make every output."""
        made = set(self.model.inputs) - {t for c in fixed for t in c.outs}
        waiting = [(frozenset(l.operands), l.results) for l in known] + [(c.ops, c.outs) for c in fixed]
        while ready := [w for w in waiting if w[0] <= made]:
            made.update(t for _, outs in ready for t in outs)
            waiting = [w for w in waiting if not w[0] <= made]
        return set(self.model.outputs) <= made

    def _rivals(self, chosen: Iterable[Launch], launches: Iterable[Launch]) -> list[Body]:
        """The next forms that the search would ask for: those with the least bounds that make the same tensors."""
        wanted = {l.results for l in chosen}
        by_results: dict[tuple[int, ...], list[tuple[float, str, Body]]] = defaultdict(list)
        for l in launches:
            if l.results in wanted and (e := self.estimate(l)) and e[1].hash not in self.rows:
                by_results[l.results].append((e[0], e[1].hash, e[1]))
        return [b for found in by_results.values() for _, _, b in sorted(found)[:RIVALS]]

    def alternatives(
        self, opaque: Iterable[Candidate], count: int, place: str = "", limit: float = 10.0
    ) -> list[tuple[Launch, ...]]:
        """Up to `count` plans of different structure, cheapest first, of launches whose costs are guessed or known."""
        launches = [l for l in self.candidates() if place != "cut" or not l.rule.startswith("fuse")]
        by_id = {l.id: l for l in launches}
        fixed = list(opaque)
        run, _ = self._launchable(fixed, launches, place)
        folded, order = self.model.anchors.folded, self.model.numbering.order
        given = frozenset(self.model.inputs) - {t for c in fixed for t in c.outs}
        outputs = frozenset(self.model.outputs)
        plans = k_best(run, given | folded, outputs - folded, order, count, time_limit=limit)
        return [tuple(by_id[c.id] for c in p.candidates if c.id in by_id) for p in plans]

    def _choose(self, fixed: list[Candidate], launches: list[Launch], place: str, limit: float) -> Choice:
        """The cheapest plan; what runs once at build costs nothing and is chosen apart, for what the plan reads."""
        order = self.model.numbering.order
        run, build = self._launchable(fixed, launches, place)
        given = frozenset(self.model.inputs) - {t for c in fixed for t in c.outs}
        outputs = frozenset(self.model.outputs)
        # of the launches that may run, none may make one of them: another form of the plan does not need it
        folded = self.model.anchors.folded & closure(build, given)[0]
        main = choose(run, given | folded, outputs - folded, order, time_limit=limit)
        needed = (outputs | {t for c in main.candidates for t in c.ops}) & folded
        first = choose(build, given, needed, order, time_limit=limit)
        return replace(main, candidates=(*first.candidates, *main.candidates), makers={**first.makers, **main.makers})

    def _launchable(
        self, fixed: list[Candidate], launches: list[Launch], place: str
    ) -> tuple[list[Candidate], list[Candidate]]:
        """What may run at each call, `fixed` included, and what may run at build, with its costs."""
        folded = self.model.anchors.folded
        build: list[Candidate] = []
        run = list(fixed)
        for l in launches:
            estimate = self.estimate(l)
            if estimate is None:
                continue
            key = f"{estimate[1].hash}:{l.operands}"
            ops = frozenset(l.operands)
            if all(t in folded for t in l.results):
                build.append(Candidate(l.id, l.results, ops, BUILD_SECONDS, key, estimate[1].hash))
                continue
            cost = estimate[0] + self._copy_back(l) + (1.0 if place == "fuse" else 0.0)
            run.append(Candidate(l.id, l.results, ops, cost, key, estimate[1].hash))
        return run, build

    def copy(self) -> Selection:
        """The same search with what it knows, which may be asked about all plans without changing this one."""
        return replace(
            self, only={}, rows=dict(self.rows), declined=dict(self.declined), refused=dict(self.refused),
            priced={} if self.only else dict(self.priced), _candidates=None if self.only else self._candidates,
        )  # fmt: skip

    def plan_of(self, opaque: Iterable[Candidate], launches: Iterable[Launch], limit: float) -> Choice | None:
        """The cheapest plan of these launches alone, sought for `limit` seconds; None where they make none.

        Launches whose bodies were not scheduled count with their guesses.
        """
        try:
            return self._choose(list(opaque), list(launches), "", limit)
        except Unmade:
            return None

    def _copy_back(self, launch: Launch) -> float:
        """Seconds that the runtime takes to copy new contents into the inputs that they belong to."""
        if launch.in_place:
            return 0.0
        tensors = [self.model.numbering.tensors[t] for t in launch.results if t in self.model.changed]
        moved = (2 * elements(t, self.sizes) * DTYPES[t.dtype].bytes for t in tensors)
        return sum(self.target.launch_seconds + n / self.target.bandwidth for n in moved)

    def refusal_text(self) -> str:
        """Why rows were refused: each reason once, with one of its rows and how many more it took."""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for (body, family, row), why in self.refused.items():
            by_reason[why.splitlines()[0]].append(f"{family} {row or '(plain)'} of body {body}")
        if not by_reason:
            held = f"held rules: {', '.join(sorted(self.held))}" if self.held else "nothing is held"
            return f"no row was refused; {held}"
        lines = [
            f"  {rows[0]}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''}: {why}"
            for why, rows in list(by_reason.items())[:REASONS]
        ]
        rest = len(by_reason) - len(lines)
        return "refused rows:\n" + "\n".join(lines) + (f"\n  and {rest} more reasons" if rest else "")

    def _check_pins(self, choice: Choice) -> None:
        by_id = {l.id: l for l in self.candidates()}
        used = [self.cheapest(by_id[c.id]) for c in choice.candidates if c.id in by_id]
        for pin in self.pins:
            if any(p is not None and pin.matches(p.scheduled.row) for p in used):
                continue
            legal = sorted({p.scheduled.row.text for p in used if p is not None})
            rows = {r.row.text: _agreement(pin, r.row) for found in self.rows.values() for r in found}
            near = sorted(rows, key=lambda text: (*(-n for n in rows[text]), text))[:NEAREST]
            elsewhere = any(pin.matches(r.row) for found in self.rows.values() for r in found)
            why = (
                "a row of launches that were not chosen"
                if elsewhere
                else "not a legal row of any launch of this program"
            )
            raise PinError(
                f"the pin {pin.text!r} is {why} for {self.target.arch}",
                f"without it these rows are chosen: {'; '.join(legal)}\n"
                f"  the nearest of {len(rows)} legal rows are:\n    " + "\n    ".join(near),
            )


def _agreement(pin: Pin, row: Row) -> tuple[int, int]:
    """How many of the pin's settings the row has, and how many characters its values begin with as the pin's do."""
    pairs = [(row.at(knob, step).text, value.text) for knob, step, value in pin.settings]
    return sum(a == b for a, b in pairs), sum(_common(a, b) for a, b in pairs)


def _common(a: str, b: str) -> int:
    """With how many of the same characters both begin."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
