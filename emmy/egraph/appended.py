"""Rows that a rule set adds once tensors have numbers: new tensors, their places, and the e-nodes that make them."""

from __future__ import annotations

from collections import defaultdict

from emmy.egraph.egg import Egg
from emmy.egraph.loading import Shapes
from emmy.egraph.numbering import Numbering, Prim, load_facts
from emmy.ir.loop import Tensor
from emmy.ir.tensor import SIGNATURES


class Appended:
    """Collects rows; `load` hands them to the e-graph.  New tensors and rows are appended to the numbering at once."""

    def __init__(self, numbering: Numbering, shapes: Shapes) -> None:
        self.n, self.shapes = numbering, shapes
        self._first = len(numbering.prims)
        self._last = max(max(numbering.tensors), max(numbering.numbers, default=0))
        self._tables: dict[str, list[tuple[object, ...]]] = defaultdict(list)

    def number(self) -> int:
        """A number for a new tensor."""
        self._last += 1
        return self._last

    def row(
        self, rule: str, kind: str, args: tuple[object, ...], operands: tuple[int, ...], tensor: Tensor, place: int
    ) -> int:
        """A new tensor that a primitive makes; `args` are its arguments without the operands, in order."""
        made = self.number()
        self.n.tensors[made], self.n.order[made] = tensor, place
        self.node(rule, kind, args, operands, made)
        self.prim(rule, kind, args, operands, made)
        return made

    def equal(
        self, rule: str, kind: str, args: tuple[object, ...], operands: tuple[int, ...], result: int
    ) -> tuple[int, int]:
        """One more way to make a tensor: the new e-node's number, and the tensor's, for the rule that unites them."""
        made = self.number()
        self.n.numbers[made] = result
        self.node(rule, kind, args, operands, made)
        self.prim(rule, kind, args, operands, result)
        return made, result

    def prim(self, rule: str, kind: str, args: tuple[object, ...], operands: tuple[int, ...], result: int) -> None:
        """A primitive row."""
        self.n.rules[len(self.n.prims)] = rule
        self.n.prims.append(Prim(len(self.n.prims), kind, args, operands, result))

    def node(self, rule: str, kind: str, args: tuple[object, ...], operands: tuple[int, ...], number: int) -> None:
        """An e-node, which gets the number."""
        plain, tensors = iter(args), iter(operands)
        cells = [next(tensors) if k == "t" else next(plain) for k in SIGNATURES[kind]]
        cells = [self.shapes.id(c) if isinstance(c, tuple) else c for c in cells]
        self._tables[f"r{kind}"].append((number, rule, *cells))

    def load(self, egg: Egg) -> None:
        """Build the e-nodes."""
        for relation, rows in self._tables.items():
            egg.facts(relation, rows)
        egg.run("load", saturate=True)

    def lift(self, egg: Egg) -> None:
        """Tell the lift rules of the new rows, and of the places of what they make."""
        new = self.n.prims[self._first :]
        load_facts(egg, new, {p.result: self.n.order[p.result] for p in new})


__all__ = ["Appended"]
