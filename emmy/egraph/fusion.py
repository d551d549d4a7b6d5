"""Answers the model e-graph's requests for launches: lifts primitives, composes bodies, one round at a time.

egglog decides which launch may inline which producer where (rulesets/model/fuse.egg); this module only computes the
body that results, counts what the rules ask about it, and loads the new launch as numbers and as an e-node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from emmy.egraph.anchors import Anchors
from emmy.egraph.egg import Egg
from emmy.egraph.loop import LoopGraph
from emmy.egraph.numbering import Numbering, Prim
from emmy.ir.counts import apart, contractions, recomputation, reductions, steering, written
from emmy.ir.lift import lift, update
from emmy.ir.loop import Body
from emmy.ir.normal import beside, compose, reslot

NOTHING_INLINED = 1 << 60
# What finishes a split reduction counts as so many contractions: it takes in element-wise work, and is taken in by what
# holds no contraction.
FINISHING = 3


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to make tensors `results` from `operands` (numbers).  `open`: a slot whose tensor is never stored, or -1.

    `covers` are the tensors computed inside; `rule` made it; `parents` are (consumer, producer) of a composition.
    """

    id: int
    body: Body
    operands: tuple[int, ...]
    results: tuple[int, ...]
    open: int
    last: int
    rule: str
    parents: tuple[int, ...]
    covers: frozenset[int]
    wide: int = 0
    base: bool = False

    @property
    def in_place(self) -> tuple[int, int] | None:
        """(result, operand) where the result is that operand, updated where it lies."""
        into = self.body.outs[0].into
        return None if into < 0 else (self.results[0], self.operands[into])


@dataclass(frozen=True, slots=True)
class Draft:
    """A composed launch that the rules have not admitted yet."""

    rule: str
    body: Body
    operands: tuple[int, ...]
    results: tuple[int, ...]
    last: int
    parents: tuple[int, ...]
    covers: frozenset[int]
    wide: int
    base: bool


@dataclass(slots=True)
class Fusion:
    """The launches of one program.  `sizes` are the example values of symbolic sizes (for recomputation bounds)."""

    egg: Egg
    numbering: Numbering
    anchors: Anchors
    loops: LoopGraph
    sizes: Mapping[str, int]
    launches: list[Launch] = field(default_factory=list)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    rounds: int = 0
    _known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = field(default_factory=dict)
    _composed: dict[tuple[object, ...], tuple[Body, tuple[int, ...]]] = field(default_factory=dict)
    _lifted: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _facts: dict[str, list[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(list))
    _copies: set[tuple[int, int]] = field(default_factory=set)
    _spaces: dict[tuple[str, ...], int] = field(default_factory=dict)
    _loaded: int = 0
    _grown_memo: dict[int, Launch] = field(default_factory=dict)
    _arities: set[int] = field(default_factory=set)
    _fresh: list[Body] = field(default_factory=list)
    _lift_memo: dict[tuple[object, ...], tuple[Body, tuple[int, ...]]] = field(default_factory=dict)

    # ---- launches in
    def lift(self) -> None:
        """One launch for every primitive row that the lift rules want, one more for each that may write in place."""
        self.egg.run("lift", saturate=True)
        frozen = self.egg.freeze()
        wanted = sorted(r[0] for r in frozen.rows("want"))
        self._copies.update(frozen.rows("copies"))
        updates = sorted(r[0] for r in frozen.rows("want-update"))
        by_id = {p.id: p for p in self.numbering.prims}
        for row in wanted:
            self._lift(by_id[row])
        for row in updates:
            self._update(by_id[row])
        self._flush()

    def _lift(self, p: Prim) -> None:
        tensors = [self.numbering.tensors[x] for x in p.operands]
        distinct = tuple(dict.fromkeys(p.operands))
        alias = tuple(distinct.index(x) for x in p.operands)
        result = self.numbering.tensors[p.result]
        key = (p.kind, p.args, alias, tuple(tensors), result)
        if key not in self._lift_memo:
            body, order = lift(p.kind, p.args, tensors, result)
            body, order = reslot(body, [alias[i] for i in order], [tensors[p.operands.index(x)] for x in distinct])
            self._lift_memo[key] = (body, order)
        body, order = self._lift_memo[key]
        operands = tuple(distinct[i] for i in order)
        draft = Draft(
            f"lift-{p.kind.lower()}", body, operands, (p.result,), NOTHING_INLINED, (), frozenset((p.result,)), 0, True
        )
        number = self._emit(draft)
        if number is not None:
            self._lifted[p.result].append(number)
            self._facts["lifted"].append((p.result, number))

    def _update(self, p: Prim) -> None:
        """The launch of a scatter that stores into its base."""
        made = update(p.args, [self.numbering.tensors[x] for x in p.operands], self.numbering.tensors[p.result])
        assert made is not None
        distinct = tuple(dict.fromkeys(p.operands))
        alias = [distinct.index(x) for x in p.operands]
        tensors = [self.numbering.tensors[x] for x in distinct]
        body, order = reslot(made[0], [alias[i] for i in made[1]], tensors)
        operands = tuple(distinct[i] for i in order)
        draft = Draft(
            "update-in-place", body, operands, (p.result,), NOTHING_INLINED, (), frozenset((p.result,)), 0, False
        )
        self._emit(draft)

    def _emit(self, d: Draft) -> int | None:
        """Add a launch; None where it was known."""
        key = (d.body.hash, d.operands, d.results)
        if key in self._known:
            return None
        number = self._known[key] = len(self.launches)
        stored = self.anchors.stored
        open_slot = next((i for i, x in enumerate(d.operands) if x not in stored), -1)
        launch = Launch(
            number, d.body, d.operands, d.results, open_slot, d.last, d.rule, d.parents, d.covers, d.wide, d.base
        )
        self.launches.append(launch)
        self._fresh.append(d.body)
        return number

    # ---- facts out
    def _flush(self) -> None:
        """Improve the new bodies, then load the new launches as facts and as e-nodes."""
        self.loops.improve(self._fresh)
        self._fresh.clear()
        for launch in self.launches[self._loaded :]:
            self._launch_facts(launch)
        self._loaded = len(self.launches)
        for relation, rows in self._facts.items():
            self.egg.facts(relation, rows)
        self._facts.clear()
        self.egg.run("load", saturate=True)
        self.egg.run("analysis", saturate=True)

    def _launch_facts(self, launch: Launch) -> None:
        f, order = self._facts, self.numbering.order
        self._enode(launch)
        if launch.open >= 0:
            f["opens"].append((launch.id, launch.open, launch.operands[launch.open]))
            return
        if any(t not in self.anchors.stored for t in launch.results):
            return
        best = self.loops.best(launch.body)
        n = contractions(best) + (FINISHING if self.anchors.partial & set(launch.operands) else 0)
        f["contractions"].append((launch.id, n))
        f["inlined"].append((launch.id, launch.last))
        if len(launch.results) == 1 and launch.body.outs[0].into < 0:
            f["single"].append((launch.id,))
        for slot, x in enumerate(launch.operands):
            f["reads"].append((launch.id, slot, x))
            f["recomputes"].append((launch.id, slot, recomputation(best, slot, self.sizes)))
            f["steers"].append((launch.id, slot, int(steering(best, slot))))
            others = max((order[y] for i, y in enumerate(launch.operands) if i != slot), default=-1)
            f["others-at"].append((launch.id, slot, others))
        # a value that is computed once, when the plan is built, is never computed again in a launch; partial results
        # computed where they are finished are the whole reduction, copies made where they are read are no copies
        made_apart = self.anchors.folded | self.anchors.partial | self.anchors.padded
        if launch.base and launch.results[0] not in made_apart:
            f["makes"].append((launch.results[0], launch.id, n))
            f["reduced-in"].append((launch.id, reductions(best)))
            if not n and launch.operands:
                highest = max(order[x] for x in launch.operands)
                f["spans"].append((launch.id, launch.results[0], self._space(launch.body), highest))

    def _space(self, body: Body) -> int:
        """A number for the points over which a body's first result is made."""
        return self._spaces.setdefault(tuple(a.text for a in body.outs[0].axes), len(self._spaces))

    def _enode(self, launch: Launch) -> None:
        arity = len(launch.operands)
        if arity not in self._arities:
            self._arities.add(arity)
            self.egg.add(_launch_rule(arity))
        for k, t in enumerate(launch.results):
            self._facts[f"rL{arity}"].append((launch.id, launch.body.hash, t, k, launch.rule, *launch.operands))
        better = self.loops.best(launch.body)
        if better is not launch.body:
            self._facts["rEqualBody"].append((launch.body.hash, better.hash))

    # ---- rounds
    def saturate(self, relaxed: bool, may_go_on: Callable[[int], bool]) -> None:
        """Fuse until a round adds nothing or `may_go_on(launches)` says stop.

        A stop ends fusing; what is open still grows to stored tensors, without which no plan would be whole.
        """
        self._facts["shared"] = [(t,) for t in sorted(self.anchors.shared)]
        if relaxed:
            self._facts["relaxed"] = [(0,)]
        self._flush()
        done: set[tuple[int, int, int, str]] = set()
        drafts: list[Draft] = []
        fusing = True
        while True:
            fusing = fusing and may_go_on(len(self.launches))
            self.egg.run("fuse")
            frozen = self.egg.freeze()
            requests = sorted(r for r in frozen.rows("request") if r not in done and (fusing or r[3] == "grow"))
            done.update(requests)
            first = len(drafts)
            drafts += [self._compose(*request) for request in requests]
            rows = [self._counts(first + k, drafts[first + k], request) for k, request in enumerate(requests)]
            self.egg.facts("composed", rows)
            self.egg.facts("written", [(first + k, written(d.body)) for k, d in enumerate(drafts[first:])])
            self.egg.run("fuse")
            frozen = self.egg.freeze()
            admitted = sorted(q for (q,) in frozen.rows("admit") if q >= first)
            for q, reason in frozen.rows("declined"):
                if q >= first:
                    self.refusals[(drafts[q].rule, reason)] += 1
            added = [n for q in admitted if (n := self._emit(drafts[q])) is not None]
            self.rounds += 1
            self._flush()
            if not added and not (fusing and self._pending(done)):
                break
        for rule, *_, reason in self.egg.freeze().rows("refused"):
            self.refusals[(rule, reason)] += 1

    def _pending(self, done: set[tuple[int, int, int, str]]) -> bool:
        self.egg.run("fuse")
        return any(r not in done for r in self.egg.freeze().rows("request"))

    def _counts(self, q: int, d: Draft, request: tuple[int, int, int, str]) -> tuple[object, ...]:
        copies = self._copies_read(d, request)
        return (q, d.rule, contractions(d.body), reductions(d.body), d.wide, copies, apart(d.body))

    def _copies_read(self, d: Draft, request: tuple[int, int, int, str]) -> int:
        """How many pairs of operands hold one value, the consumer's own left out.

        A launch that grows reads a copy only where it could have read what it reads already.
        """
        consumer, slot, producer, kind = request
        c = self.launches[consumer]
        if kind == "grow":
            at_hand = {p for p in self._lifted[c.operands[slot]] if set(self.launches[p].operands) <= set(c.operands)}
            return int(bool(at_hand) and producer not in at_hand)
        known = set(c.operands)
        return sum((x, y) in self._copies for x, y in combinations(d.operands, 2) if not {x, y} <= known)

    def _compose(self, consumer: int, slot: int, producer: int, kind: str) -> Draft:
        c, p = self.launches[consumer], self.launches[producer]
        if kind == "share":
            return self._share(c, p)
        if kind != "grow":
            return self._inline(c, slot, p, kind)
        return self._close(self._inline(c, slot, self._grown(p), kind))

    def _share(self, a: Launch, b: Launch) -> Draft:
        """One launch that makes what both make."""
        common = list(dict.fromkeys([*a.operands, *b.operands]))
        slots = [tuple(common.index(t) for t in l.operands) for l in (a, b)]
        body, order = beside([a.body, b.body], slots, [self.numbering.tensors[t] for t in common])
        operands, results = tuple(common[i] for i in order), (*a.results, *b.results)
        last, covers = min(a.last, b.last), a.covers | b.covers
        return Draft("share", body, operands, results, last, (a.id, b.id), covers, a.wide + b.wide, False)

    def _grown(self, p: Launch) -> Launch:
        """A one-op launch with every chain that has no alternatives inlined; made once."""
        if p.id not in self._grown_memo:
            self._grown_memo[p.id] = _as_launch(self._close(_as_draft(p)))
        return self._grown_memo[p.id]

    def _close(self, d: Draft) -> Draft:
        """Inline what is never stored and has one way to be made."""
        while (at := next((i for i, x in enumerate(d.operands) if self._single(x)), -1)) >= 0:
            d = self._inline(_as_launch(d), at, self._grown(self.launches[self._lifted[d.operands[at]][0]]), "grow")
        return d

    def _single(self, x: int) -> bool:
        return x not in self.anchors.stored and len(self._lifted[x]) == 1

    def _inline(self, c: Launch, slot: int, p: Launch, kind: str) -> Draft:
        x, keep = c.operands[slot], kind == "keep"
        rest = [t for i, t in enumerate(c.operands) if i != slot]
        common = list(dict.fromkeys([*rest, *p.operands]))
        at = {t: i for i, t in enumerate(common)}
        c_slots = tuple(at.get(t, -1) for t in c.operands)
        p_slots = tuple(at[t] for t in p.operands)
        key = (c.body.hash, p.body.hash, slot, keep, c_slots, p_slots)
        if key not in self._composed:
            tensors = [self.numbering.tensors[t] for t in common]
            self._composed[key] = compose(p.body, 0, c.body, slot, p_slots, c_slots, tensors, keep)
        body, order = self._composed[key]
        results = (*c.results, x) if keep else c.results
        grow = kind == "grow"
        return Draft(
            "grow" if grow else "fuse-keep" if keep else "fuse",
            body,
            tuple(common[i] for i in order),
            results,
            c.last if grow else self.numbering.order[x],
            () if grow else (c.id, p.id),
            c.covers | p.covers,
            c.wide + (0 if grow or keep else x in self.anchors.wide),
            grow and c.base,
        )


def _as_launch(d: Draft) -> Launch:
    return Launch(-1, d.body, d.operands, d.results, -1, d.last, d.rule, d.parents, d.covers, d.wide, d.base)


def _as_draft(p: Launch) -> Draft:
    return Draft(p.rule, p.body, p.operands, p.results, p.last, p.parents, p.covers, p.wide, p.base)


def _launch_rule(n: int) -> str:
    names = " ".join(f"a{i}" for i in range(n))
    premises = " ".join(f"(= x{i} (node a{i}))" for i in range(n))
    vector = f"(vec-of {' '.join(f'x{i}' for i in range(n))})" if n else "(vec-empty)"
    return (
        f"(relation rL{n} (i64 String i64 i64 String{' i64' * n}))"
        f"(rule ((rL{n} l h o k r {names}) (= t (node o)) {premises})"
        f" ((let u (Launch (Body h) {vector})) (by_Launch (Body h) {vector} r) (union t (Out u k)))"
        f' :ruleset load :name "launch-{n}")'
    )


LAUNCH_RULES = """
(relation rEqualBody (String String))
(rule ((rEqualBody h g) (= b (Body h))) ((union b (Body g))) :ruleset load :name "equal-body")
"""
