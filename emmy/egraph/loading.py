"""A Tensor IR program as facts of the model e-graph, and the rules that turn such facts into e-nodes.

Every T-valued column of a term is the number of an earlier term; `node` maps numbers to classes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from emmy.egraph.egg import Egg
from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Expr
from emmy.ir.scalar import SCALAR
from emmy.ir.tensor import SIGNATURES, Program, Term, promote

# Source operations lie this far apart in `ord`, so that rules can place nodes between an operation and its operands.
ORD_GAP = 1 << 20
# What stands for a rule's name where the program itself has the node.
SOURCE = "source-program"

Shape = tuple[Expr, ...]


class Shapes:
    """Interned shapes: 0 is the scalar shape."""

    def __init__(self) -> None:
        self.ids: dict[Shape, int] = {(): 0}
        self.shapes: list[Shape] = [()]

    def vectors(self) -> list[tuple[int, int]]:
        """(g, x) where g is one-dimensional over the last axis of x."""
        return [
            (g, x)
            for a, g in self.ids.items()
            for b, x in self.ids.items()
            if len(a) == 1 and len(b) > 1 and a[0] is b[-1]
        ]

    def id(self, shape: Shape) -> int:
        if shape not in self.ids:
            self.ids[shape] = len(self.shapes)
            self.shapes.append(shape)
        return self.ids[shape]


def load_rules() -> str:
    """For each constructor a relation `r<Kind>` of a number, who made the node and its arguments, and the rule that
    builds its e-node."""
    text: list[str] = []
    for kind, signature in SIGNATURES.items():
        columns = ["String" if k == "s" else "i64" for k in signature]
        names = [f"a{i}" for i in range(len(signature))]
        premises = "".join(f" (= x{i} (node a{i}))" for i, k in enumerate(signature) if k == "t")
        args = " ".join(f"x{i}" if k == "t" else f"a{i}" for i, k in enumerate(signature))
        text.append(f"(relation r{kind} (i64 String {' '.join(columns)}))")
        text.append(
            f"(rule ((r{kind} i by {' '.join(names)}){premises})"
            f" ((by_{kind} {args} by) (set (node i) ({kind} {args})))"
            f' :ruleset load :name "source-{kind}")'
        )
    text.append("(relation rOrd (i64 i64))")
    text.append('(rule ((rOrd i o) (= t (node i))) ((set (ord t) o) (set (tid t) i)) :ruleset load :name "source-ord")')
    text.append("(relation rParameter (i64))")
    text.append('(rule ((rParameter i) (= t (node i))) ((parameter t)) :ruleset load :name "source-parameter")')
    text.append("(relation rInputType (i64 i64 String))")
    text.append(
        "(rule ((rInputType i s d) (= t (node i))) ((set (shape t) s) (set (dtype t) d)) :ruleset load"
        ' :name "source-input-type")'
    )
    return "\n".join(text)


def load_program(egg: Egg, program: Program, shapes: Shapes, parameters: frozenset[int]) -> None:
    """Loads terms, types and facts, and runs the load rules to the end.  `parameters` are term ids of inputs."""
    for relation, rows in type_facts().items():
        egg.facts(relation, rows)
    order = {t.id: _ord(t.kind, t.id) for t in program.terms}
    load_terms(egg, program.terms, program.facts, order, shapes, parameters)


def load_terms(
    egg: Egg, terms: Iterable[Term], facts: Iterable[tuple[object, ...]], order: Mapping[int, int], shapes: Shapes,
    parameters: Iterable[int] = (), rule: str = SOURCE,
) -> None:  # fmt: skip
    """Loads rows of terms whose operands are loaded or among them, at the given positions; `rule` asked for them."""
    tables: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for term in terms:
        cells = [shapes.id(a) if isinstance(a, tuple) else a for a in term.args]
        tables[f"r{term.kind}"].append((term.id, rule, *cells))
        if term.kind == "Input":
            tables["rInputType"].append((term.id, shapes.id(term.tensor.shape), term.tensor.dtype))
        tables["rOrd"].append((term.id, order[term.id]))
    for fact in facts:
        tables[str(fact[0])].append(tuple(shapes.id(c) if isinstance(c, tuple) else c for c in fact[1:]))
    tables["rParameter"] = [(x,) for x in parameters]
    for relation, rows in tables.items():
        egg.facts(relation, rows)
    egg.run("load", saturate=True)


def _ord(kind: str, number: int) -> int:
    return 0 if kind in ("Input", "Full", "Iota") else (number + 1) * ORD_GAP


def type_facts() -> dict[str, list[tuple[object, ...]]]:
    """Type rules of the scalar vocabulary as facts."""
    types = [*DTYPES, "weak"]
    return {
        "promote": [(a, b, "weak" if a == b == "weak" else promote([a, b])) for a in types for b in types],
        "float-of": [(a, a if a == "weak" or DTYPES[a].kind == "float" else "f32") for a in types],
        "float-type": [(a,) for a in DTYPES if DTYPES[a].kind == "float"],
        "int-type": [(a,) for a in DTYPES if DTYPES[a].kind != "float"],
        "result": [(row.name, row.result) for row in SCALAR.values()],
        "axis-name": [(i, str(i)) for i in range(16)],
    }
