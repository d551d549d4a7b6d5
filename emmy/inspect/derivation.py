"""The chosen derivation: which rule applications led from the program to the launches of the plan.

A fused launch knows its parents; a launch grown along an element-wise chain knows which tensors it covers; a lifted one
comes from one primitive row, and the row knows its rule.  Walking these backwards from the chosen launches gives every
rewrite that the plan rests on, each once, what is used before what uses it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field

from emmy.egraph.egg import rules_in
from emmy.egraph.fusion import Launch
from emmy.egraph.naming import Names
from emmy.egraph.numbering import Prim
from emmy.ir.show import call_text
from emmy.planning import Chosen
from emmy.resources import rulesets
from emmy.saturation import Saturation

# The pass of a rule file of `rulesets/model`, by its letter.
LETTERS = {"decompose": "d", "algebra": "o", "siblings": "o", "lift": "l", "fuse": "f"}


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One application: `rule` of pass `letter` replaced `before` by `after` at the thing called `at`."""

    letter: str
    rule: str
    at: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def text(self) -> str:
        """The difference between the markers `>>> f:rule` and `<<< f:rule`."""
        lines = list(difflib.unified_diff(self.before, self.after, lineterm="", n=3))[2:]
        name = f"{self.letter}:{self.rule}"
        return "\n".join([f">>> {name}", f"@@ matched at {self.at} @@", *lines, f"<<< {name}"])


@dataclass(slots=True)
class Derivation:
    """`launches` are the chosen launches with all that they were composed from; `prims` the rows that were lifted."""

    saturation: Saturation
    launches: list[Launch] = field(default_factory=list)
    prims: dict[int, Prim] = field(default_factory=dict)
    _lifts: dict[int, list[Launch]] = field(default_factory=dict)
    _rows: dict[tuple[str, int], list[Prim]] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    @property
    def names(self) -> Names:
        return self.saturation.names

    def parts(self, launch: Launch) -> tuple[Launch, ...]:
        """What a launch was composed from: consumer first; nothing for a lifted one."""
        if launch.parents:
            return tuple(self.saturation.model.launches[p] for p in launch.parents)
        if not launch.rule.startswith("lift"):
            return tuple(self._grown_from(launch))
        return ()

    def _grown_from(self, launch: Launch) -> list[Launch]:
        """The one-operation launches inside a grown launch, the one that makes its result first."""
        inside = launch.covers | frozenset(launch.operands)
        found: dict[int, Launch] = {}
        wanted = list(launch.results)
        while wanted:
            t = wanted.pop(0)
            lifted = next((l for l in self._lifts.get(t, ()) if inside.issuperset(l.operands)), None)
            if lifted is None or t in found:
                continue
            found[t] = lifted
            wanted += [x for x in lifted.operands if x in launch.covers]
        return list(found.values())

    def visit(self, launch: Launch) -> None:
        """Add a launch after all that it was composed from."""
        stack = [(launch, False)]
        while stack:
            l, done = stack.pop()
            if done:
                self.launches.append(l)
                continue
            if l.id in self._seen:
                continue
            self._seen.add(l.id)
            stack.append((l, True))
            stack.extend((p, False) for p in self.parts(l))
            if l.rule.startswith("lift"):
                self._add_row(l)

    def _add_row(self, lifted: Launch) -> None:
        rows = self._rows.get((lifted.rule.removeprefix("lift-"), lifted.results[0]), [])
        row = next((p for p in rows if set(p.operands) >= set(lifted.operands)), None)
        if row is not None:
            self.prims.setdefault(row.result, row)


def derive(s: Saturation) -> Derivation:
    """The derivation of the chosen launches."""
    d = Derivation(s)
    for l in s.model.launches:
        if l.rule.startswith("lift"):
            d._lifts.setdefault(l.results[0], []).append(l)
    for p in s.model.numbering.prims:
        d._rows.setdefault((p.kind.lower(), p.result), []).append(p)
    for c in s.launches:
        d.visit(c.launch)
    return d


def rewrites(s: Saturation) -> Iterator[Rewrite]:
    """Every rewrite of the chosen derivation, in pass order; those of passes that did not run are left out."""
    d = derive(s)
    passes = s.options.passes
    if "d" in passes:
        yield from _decompositions(s, d)
    if "l" in passes:
        yield from (_lifted(d, l) for l in d.launches if l.rule.startswith("lift"))
    if "f" in passes:
        yield from (_fused(d, l) for l in d.launches if not l.rule.startswith("lift"))
    kernels = {c.name: c for c in s.launches}.values()
    if "s" in passes:
        yield from (_stamped(d, c) for c in kernels)
    if "t" in passes:
        yield from (_improved(d, c) for c in kernels if c.priced.body is not c.launch.body)
        yield from (_scheduled(s, c) for c in kernels)
    if "k" in passes:
        yield from (_lowered(s, c, "k", "tile", "kernel") for c in kernels)
    if "c" in passes:
        yield from (_lowered(s, c, "c", "kernel", "cuda") for c in kernels)


def _decompositions(s: Saturation, d: Derivation) -> Iterator[Rewrite]:
    from emmy.inspect.views import tensor_lines

    letter_of = {
        r.name: LETTERS[p.stem] for p in rulesets().glob("model/*.egg") if p.stem in LETTERS for r in rules_in(p)
    }
    groups: dict[tuple[int, str], list[Prim]] = {}
    plain: dict[int, list[Prim]] = {}
    order = s.model.numbering.order
    for p in sorted(d.prims.values(), key=lambda p: (order[p.result], p.result)):
        rule, owner = s.model.numbering.rules.get(p.id, ""), d.names.owner(p.result)
        if rule in letter_of:
            groups.setdefault((owner, rule), []).append(p)
        else:  # what the translator wrote around the operation, e.g. the weight of a norm
            plain.setdefault(owner, []).append(p)
    for node, rows in plain.items():
        last = next((key for key in reversed(groups) if key[0] == node and letter_of[key[1]] == "d"), None)
        if last is not None:
            groups[last] += rows
    inputs = {i.name: f"inputs.{i.name}" for i in s.program.graph.inputs if i.kind == "user"}
    for letter in "do":
        for (node, rule), rows in groups.items():
            if letter_of[rule] != letter or letter not in s.options.passes:
                continue
            torch_node = s.program.graph.nodes[node] if node >= 0 else None
            before = (call_text(torch_node, inputs),) if torch_node is not None and letter == "d" else ()
            at = torch_node.name if torch_node is not None else d.names.tensor(rows[-1].result)
            yield Rewrite(letter, rule, at, before, tuple(tensor_lines(s, rows, d.names)))


def _loop(d: Derivation, l: Launch) -> list[str]:
    """`exp = LoopOp(neg)` and the body under it."""
    from emmy.ir.show_loop import show_loop

    operands, results = ([d.names.tensor(t) for t in ts] for ts in (l.operands, l.results))
    head = f"{', '.join(results)} = LoopOp({', '.join(operands)})"
    return [head, *(f"      {line}" for line in show_loop(l.body, operands, results).splitlines())]


def _result(d: Derivation, l: Launch) -> str:
    return d.names.tensor(l.results[0])


def _lifted(d: Derivation, l: Launch) -> Rewrite:
    from emmy.inspect.views import tensor_lines

    row = d.prims.get(l.results[0])
    before = tuple(tensor_lines(d.saturation, [row], d.names)) if row is not None else ()
    return Rewrite("l", l.rule, _result(d, l), before, tuple(_loop(d, l)))


def _fused(d: Derivation, l: Launch) -> Rewrite:
    consumer, *producers = d.parts(l)
    before = [line for p in (*reversed(producers), consumer) for line in _loop(d, p)]
    at = _result(d, producers[0]) if producers else _result(d, consumer)
    return Rewrite("f", l.rule, at, tuple(before), tuple(_loop(d, l)))


def _improved(d: Derivation, c: Chosen) -> Rewrite:
    from emmy.ir.show_loop import show_loop

    before, after = (show_loop(b, c.operands, c.results) for b in (c.launch.body, c.priced.body))
    return Rewrite("t", "equal-body", c.name, _lines(before), _lines(after))


def _stamped(d: Derivation, c: Chosen) -> Rewrite:
    before = f"{_result(d, c.launch)} = LoopOp({', '.join(c.operands)})"
    after = f"{c.name} = LoopOp({', '.join(c.operands)})  # body {c.priced.body.hash}"
    return Rewrite("s", "name", _result(d, c.launch), (before,), (after,))


def _scheduled(s: Saturation, c: Chosen) -> Rewrite:
    from emmy.ir.tile import show_tile

    before = show_tile(c.priced.body, None, c.operands, c.results)
    after = show_tile(c.priced.body, c.priced.scheduled, c.operands, c.results)
    return Rewrite("t", c.priced.scheduled.family, c.name, _lines(before), _lines(after))


def _lowered(s: Saturation, c: Chosen, letter: str, source: str, target: str) -> Rewrite:
    from emmy.inspect.views import launch_text

    before, after = (_lines(launch_text(s, c, ir)) for ir in (source, target))
    return Rewrite(letter, c.priced.scheduled.family, c.name, before, after)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.splitlines())
