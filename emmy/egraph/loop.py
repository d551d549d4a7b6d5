"""The loop e-graph: better bodies that compute the same function, by the rules of `rulesets/loop`.

One e-graph serves a batch of bodies: open terms do not depend on where they stand, so bodies share them.  The answer
for a body keeps its slots, so that the two are interchangeable under one list of operands.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from emmy.egraph.egg import Egg
from emmy.ir.build import cast, scalar
from emmy.ir.loop import Ax, Body, Expr, Fold, Load, Online, Op, Scan, fold, online, scan
from emmy.ir.normal import canonical
from emmy.ir.parse import parse_expr

ROUNDS = 12
SYMBOLIC_EXTENT = 512.0


@dataclass(slots=True)
class LoopStats:
    bodies: int = 0
    improved: int = 0
    enodes: int = 0
    batches: int = 0
    made: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class LoopGraph:
    """Improves bodies in batches; remembers what it has answered.  `held` names rules that are left out."""

    rulesets: Path
    held: frozenset[str] = frozenset()
    known: dict[str, Body | None] = field(default_factory=dict)
    stats: LoopStats = field(default_factory=LoopStats)

    def improve(self, bodies: Iterable[Body]) -> None:
        """Answer for every body: `best(body)` afterwards is O(1)."""
        fresh = [b for b in {b.hash: b for b in bodies}.values() if b.hash not in self.known]
        work = [b for b in fresh if _may_improve(b)]
        for b in fresh:
            self.known[b.hash] = None
        if work:
            self._improve(work)
        self.stats.bodies += len(fresh)

    def best(self, body: Body) -> Body:
        return self.known.get(body.hash) or body

    def _improve(self, bodies: Sequence[Body]) -> None:
        egg = Egg(held=self.held, provenance=frozenset({"E"}))
        egg.load(*(self.rulesets / f"{n}.egg" for n in ("terms", "factor", "twist", "moments")))
        egg.add(_LOAD_RULES)
        batch = _Batch()
        for b in bodies:
            for o in b.outs:
                batch.put(o.value)
        batch.load(egg)
        size = -1
        for _ in range(ROUNDS):
            if (now := egg.freeze().size()) == size:
                break
            size = now
            for ruleset, saturate in (
                ("free", True),
                ("mark", True),
                ("factor", False),
                ("free", True),
                ("mark", True),
                ("moments", False),
                ("twist", False),
            ):
                egg.run(ruleset, saturate=saturate)
        choose = _Extraction(egg, batch)
        frozen = egg.freeze()
        self.stats.enodes += frozen.size()
        self.stats.made.update(frozen.made())
        self.stats.batches += 1
        for b in bodies:
            found = [choose.best(o.value) for o in b.outs]
            if all(new is o.value for new, o in zip(found, b.outs, strict=True)):
                continue
            values = canonical(found, b.slots)
            outs = tuple(replace(o, value=v) for v, o in zip(values, b.outs, strict=True))
            better = Body(outs, b.slots)
            if better.hash != b.hash and _loads(better) == _loads(b):
                self.known[b.hash] = better
                self.stats.improved += 1


def _may_improve(body: Body) -> bool:
    return any(isinstance(n, Fold) and n.kind == "sum" and not isinstance(n.body, Load) for n in body.nodes)


def _loads(body: Body) -> set[int]:
    return {n.slot for n in body.nodes if isinstance(n, Load)}


class _Batch:
    """Expressions as rows: a leaf is a load, or an expression without folds of constants or index arithmetic."""

    def __init__(self) -> None:
        self.number: dict[Expr, int] = {}
        self.rows: dict[str, list[tuple[object, ...]]] = defaultdict(list)
        self.axes: set[Ax] = set()
        self.kinds: set[tuple[str, str]] = set()
        self.casts: set[str] = set()

    def put(self, root: Expr) -> int:
        seen: dict[Expr, None] = {}
        self._visit(root, seen)
        for n in seen:
            if n not in self.number:
                self.number[n] = len(self.number)
                self._row(n, self.number[n])
        return self.number[root]

    def _visit(self, root: Expr, seen: dict[Expr, None]) -> None:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            n, done = stack.pop()
            if done:
                seen.setdefault(n)
            elif n not in seen:
                stack.append((n, True))
                if not _is_leaf(n):
                    stack.extend((c, False) for c in reversed(n.children))

    def _row(self, n: Expr, i: int) -> None:
        if _is_leaf(n):
            axes = sorted(a.text for a in n.free)
            self.rows["rLeaf"].append((i, n.text))
            self.rows[f"rFree{len(axes)}"].append((i, *axes))
        elif isinstance(n, Op):
            f = f"{n.name}|{n.dtype}"
            if n.name == "cast":
                self.casts.add(f)
            self.rows[f"rF{len(n.args)}"].append((i, f, *(self.number[a] for a in n.args)))
        elif isinstance(n, Fold):
            self.axes.add(n.axis)
            kind = f"{n.kind}:{n.operand}" if n.operand else n.kind
            if n.kind == "sum" and n.type == "f32":
                self.kinds.add((kind, n.operand))
            self.rows["rFold"].append((i, kind, n.axis.text, self.number[n.body]))
        elif isinstance(n, Scan):
            self.axes.add(n.axis)
            self.rows["rPrefix"].append((i, n.kind, n.axis.text, self.number[n.at], self.number[n.body]))
        elif isinstance(n, Online):
            self.axes.add(n.axis)
            self.kinds.add(("sum", ""))
            self.rows["rOnline"].append((i, n.operand or "-", n.axis.text, self.number[n.score], self.number[n.value]))

    def load(self, egg: Egg) -> None:
        free = {k: v for k, v in self.rows.items() if k.startswith("rFree")}
        for relation, rows in self.rows.items():
            if relation not in free:
                egg.facts(relation, rows)
        most = max((int(k[5:]) for k in free), default=0)
        egg.add("\n".join(_free_rule(k) for k in range(most + 1)))
        egg.run("load", saturate=True)
        for relation, rows in free.items():
            egg.facts(relation, rows)
        egg.run("load", saturate=True)
        egg.facts("summing", [(k,) for k, _ in sorted(self.kinds)])
        egg.facts("contracting", [(k, o or "-") for k, o in sorted(self.kinds)])
        egg.facts("casting", [(c,) for c in sorted(self.casts)])
        egg.facts("counts", [(a.text, cast(a.extent, "f32").text) for a in sorted(self.axes, key=lambda a: a.text)])


def _is_leaf(n: Expr) -> bool:
    if isinstance(n, Load):
        return True  # also where its index holds a fold: index arithmetic is not rewritten
    if n.has_fold:
        return False
    if not n.children or n.type == "i64":
        return True
    # an index expression as a float, such as the number of summed elements
    return isinstance(n, Op) and n.name == "cast" and n.args[0].type == "i64"


def _free_rule(n: int) -> str:
    names = " ".join(f"v{j}" for j in range(n))
    value = f"(set-of {names})" if n else "(set-empty)"
    relation = f"(relation rFree{n} (i64{' String' * n}))"
    rule = f"(rule ((rFree{n} i {names}) (= x (enode i))) ((set (fv x) {value}))"
    return f'{relation}{rule} :ruleset load :name "free-leaf-{n}")'


_LOAD_RULES = """
(relation rLeaf (i64 String)) (relation rF1 (i64 String i64)) (relation rF2 (i64 String i64 i64))
(relation rF3 (i64 String i64 i64 i64)) (relation rFold (i64 String String i64))
(relation rPrefix (i64 String String i64 i64)) (relation rOnline (i64 String String i64 i64))
(rule ((rLeaf i s)) ((set (enode i) (Leaf s))) :ruleset load :name "source-leaf")
(rule ((rF1 i f a) (= x (enode a))) ((set (enode i) (F1 f x))) :ruleset load :name "source-f1")
(rule ((rF2 i f a b) (= x (enode a)) (= y (enode b))) ((set (enode i) (F2 f x y))) :ruleset load :name "source-f2")
(rule ((rF3 i f a b c) (= x (enode a)) (= y (enode b)) (= z (enode c))) ((set (enode i) (F3 f x y z)))
  :ruleset load :name "source-f3")
(rule ((rFold i k t a) (= x (enode a))) ((set (enode i) (Fold k t x))) :ruleset load :name "source-fold")
(rule ((rPrefix i k t p a) (= x (enode a)) (= q (enode p))) ((set (enode i) (Prefix k t q x)))
  :ruleset load :name "source-prefix")
(rule ((rOnline i o t a b) (= x (enode a)) (= y (enode b))) ((set (enode i) (Online o t x y)))
  :ruleset load :name "source-online")
(set (fv (Leaf "(f32 1.0)")) (set-empty))
"""


# value, its operands, its own cost, how often its operands are computed, and what makes its term from theirs
_Node = tuple[object, tuple[object, ...], float, float, Callable[[list[Expr]], Expr]]


class _Extraction:
    """Cheapest term of each class: a fold costs its extent times its body, so hoisted and one-pass forms win."""

    def __init__(self, egg: Egg, batch: _Batch) -> None:
        frozen = egg.freeze()
        self.batch = batch
        self.classes = dict(frozen.rows("enode"))
        self.cost: dict[object, float] = {}
        self.term: dict[object, Expr] = {}
        nodes: list[_Node] = []
        for s, o in frozen.rows("Leaf"):
            nodes.append((o, (), 1.0, 1.0, partial(_leaf, s)))
        for arity in (1, 2, 3):
            for f, *args, o in frozen.rows(f"F{arity}"):
                nodes.append((o, tuple(args), 1.0, 1.0, partial(_operation, f)))
        for k, t, x, o in frozen.rows("Fold"):
            nodes.append((o, (x,), *_loop(t), partial(_fold, k, t)))
        for k, t, p, x, o in frozen.rows("Prefix"):
            nodes.append((o, (p, x), *_loop(t), partial(_scan, k, t)))
        for d, t, x, y, o in frozen.rows("Online"):
            nodes.append((o, (x, y), *_loop(t), partial(_online, d, t)))
        self._solve(nodes)

    def _solve(self, nodes: list[_Node]) -> None:
        users: dict[object, list[int]] = defaultdict(list)
        waiting = [len(set(n[1])) for n in nodes]
        for i, n in enumerate(nodes):
            for c in set(n[1]):
                users[c].append(i)
        queue = [(n[2], i) for i, n in enumerate(nodes) if not n[1]]
        heapq.heapify(queue)
        while queue:
            cost, i = heapq.heappop(queue)
            value, children, _, _, make = nodes[i]
            if value in self.cost:
                continue
            self.cost[value] = cost
            self.term[value] = make([self.term[c] for c in children])
            for u in users[value]:
                waiting[u] -= 1
                if waiting[u] == 0:
                    _, kids, own, times, _ = nodes[u]
                    heapq.heappush(queue, (own + times * (1.0 + sum(self.cost[c] for c in kids)), u))

    def best(self, e: Expr) -> Expr:
        return self.term[self.classes[self.batch.number[e]]]


def _loop(axis: str) -> tuple[float, float]:
    n = _axis(axis).size
    return 1.0, SYMBOLIC_EXTENT if n is None else float(n)


def _axis(text: str) -> Ax:
    e = parse_expr(text)
    assert isinstance(e, Ax)
    return e


def _leaf(text: str, args: list[Expr]) -> Expr:
    return parse_expr(text)


def _operation(f: str, args: list[Expr]) -> Expr:
    name, _, dtype = f.partition("|")
    if name == "cast":
        return cast(args[0], dtype)
    return scalar(name, *args)


def _scan(kind: str, axis: str, args: list[Expr]) -> Expr:
    return scan(kind, _axis(axis), args[0], args[1])


def _online(operand: str, axis: str, args: list[Expr]) -> Expr:
    return online(_axis(axis), args[0], args[1], operand.strip("-"))


def _fold(kind: str, axis: str, args: list[Expr]) -> Expr:
    name, _, operand = kind.partition(":")
    return fold(name, _axis(axis), args[0], operand)
