"""Tile IR for people: a body's Fold tree beside one schedule row.

    place  free=(a0)  grid=(a0)
    work   t256
    Fold  free
    ├─ operand[v3]: Fold  free   ‹computed›
    │  ├─ operand[acc0]: Fold[a1 in 0..2048] reduce   ⟨REDUCE=coop⟩   ‹computed›
    ...

A Fold says what it folds over (`free`: nothing, a map; `reduce`; `contraction`: a sum of products; `scan`), its
operands (loads are materialized, other folds computed), init, lift (one element) and combine.  `place` names the free
coordinates; an unscheduled body is `unmapped`.  Schedule values stand at the fold that they decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Scan
from emmy.ir.schedule import Row, Scheduled
from emmy.ir.show_loop import ACCUMULATE, Block, Folding, Naming, Writer, nests

IDENTITY = {"sum": "0", "prod": "1", "max": "-infinity", "min": "infinity", "or": "false", "and": "true"}


@dataclass
class Node:
    """One line of the tree, the lines that belong to it, and its children."""

    head: str
    body: list[str] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def lines(self) -> list[str]:
        out = [self.head, *self.body]
        for k, child in enumerate(self.children):
            last = k == len(self.children) - 1
            text = child.lines()
            out.append(("└─ " if last else "├─ ") + text[0])
            out += [("   " if last else "│  ") + line for line in text[1:]]
        return out


def show_tile(
    body: Body, scheduled: Scheduled | None = None, operands: Sequence[str] = (), results: Sequence[str] = ()
) -> str:
    """The Fold tree of each loop nest; `scheduled` None shows the body before a row is chosen."""
    ins = operands or [f"x{i}" for i in range(len(body.slots))]
    names = results or [f"y{k}" for k in range(len(body.outs))]
    tree = _Tree(body, Naming(ins), None if scheduled is None else scheduled.row)
    lines: list[str] = []
    for nest in nests(body):
        rows = [tree.naming.bind(a) for a in nest.rows]
        free = f"({','.join(rows)})"
        lines.append(f"place  free={free}  " + ("unmapped" if scheduled is None else f"grid={free}"))
        if scheduled is not None and not lines[:-1]:
            lines.append(f"work   {scheduled.row.work.text}")
        outputs = Node("outputs")
        for axes, ks in nest.sweeps:
            values = [tree.root(body.outs[k].value, nest.rows, axes) for k in ks]
            for node, _ in values:
                lines += node.lines()
            for k, (_, value) in zip(ks, values, strict=True):
                o, block = body.outs[k], Block()
                index = ", ".join(tree.writer.integer(i, block) for i in o.index)
                sweep = f"sweep({', '.join(tree.naming.axes[a] for a in axes)}) " if axes else ""
                outputs.children.append(Node(f"{sweep}{names[k]}[{index}] = {value}"))
        lines += outputs.lines()
    return "\n".join(lines)


class _Tree:
    def __init__(self, body: Body, naming: Naming, row: Row | None) -> None:
        self.body, self.naming, self.row = body, naming, row
        self.writer = Writer(naming)
        self.done: dict[Expr, str] = {}

    def root(self, value: Expr, rows: tuple[Ax, ...], sweep: tuple[Ax, ...]) -> tuple[Node, str]:
        """The node of one result and the name of its value.  A result that is a fold is that fold."""
        if isinstance(value, Folding):
            name, node = self.fold(value)
            return node, name
        return self._map(value, rows, sweep)

    def _map(self, value: Expr, rows: Sequence[Ax], sweep: Sequence[Ax]) -> tuple[Node, str]:
        """A Fold without an axis: its operands are the folds it needs, and what depends on fewer axes than it does."""
        node, block = Node("Fold  free"), Block()
        used = self._operands(value, frozenset(sweep), node, block)
        for a in sweep:
            # named after the folds before it, as loops are
            if a not in self.naming.axes:
                self.naming.bind(a)
        name = self.writer.atom(value, block)
        own = _own(value, block)
        free = [self.naming.axes[a] for a in (*rows, *sweep) if any(a in e.free for e in own)]
        node.children.append(Node(f"lift: λ({', '.join([*used, *free])}) -> ({name})", _indent(block.lines)))
        self.done[value] = name
        return node, name

    def _operands(self, value: Expr, sweep: frozenset[Ax], node: Node, block: Block) -> list[str]:
        names = []
        for e in _stages(value, sweep):
            if e in self.done:
                name = self.done[e]
            elif isinstance(e, Folding):
                name, child = self.fold(e)
                node.children.append(_operand(name, child, "computed"))
            else:
                child, name = self._map(e, sorted(e.free, key=lambda a: self.naming.axes[a]), ())
                node.children.append(_operand(name, child, "computed"))
            block.known[e] = name
            names.append(name)
        return names

    def fold(self, e: Folding) -> tuple[str, Node]:
        """The node of a fold; a nest of equal folds is one over several axes."""
        node, block = Node(""), Block()
        axes, parts = folded(e)
        outer = {a: self.naming.axes[a] for a in axes if a in self.naming.axes}
        # folds that do not need these axes come first, so that axes are numbered as loops are
        names = [n for p in parts for n in self._operands(p, frozenset(axes), node, block)]
        ends = [f"{self.writer.integer(e.at, block)} + 1" if isinstance(e, Scan) else self._extent(a) for a in axes]
        loops = [f"{self.naming.bind(a)} in 0..{end}" for a, end in zip(axes, ends, strict=True)]
        for p in parts:
            for f in _folds_at(p, frozenset(axes)):
                inner, child = self.fold(f)
                node.children.append(_operand(inner, child, "computed"))
                block.known[f] = inner
                names.append(inner)
            for load in _loads(p, block):
                name = self.writer.atom(load, block)
                text = block.lines.pop().split(" = ", 1)[1]
                node.children.append(Node(f"operand[{name}]: {text}   ‹materialized›"))
                names.append(name)
        values = [self.writer.atom(p, block) for p in parts]
        acc = self.naming.fresh("acc")
        node.head = f"Fold[{', '.join(loops)}] {self._kind(e)}" + self._marks(e)
        node.children.append(Node(f"init: ({_init(e)})"))
        given = [*(self.naming.axes[a] for a in axes), *dict.fromkeys(names)]
        node.children.append(Node(f"lift: λ({', '.join(given)}) -> ({', '.join(values)})", _indent(block.lines)))
        node.children.append(Node(f"combine: λ({acc}, {acc}__o) -> ({acc})", _indent([_combine(e, acc)])))
        self.naming.axes.update(outer)
        self.done[e] = acc
        return acc, node

    def _extent(self, axis: Ax) -> str:
        return self.writer.integer(axis.extent, Block())

    def _kind(self, e: Folding) -> str:
        if isinstance(e, Scan):
            return "scan"
        if isinstance(e, Online):
            word = "reduce" if isinstance(e.value, Const) else "contraction"
            return f"{word}   <twist=softmax>"
        return "contraction" if is_contraction(e) else "reduce"

    def _marks(self, e: Folding) -> str:
        """The schedule values that a fold is decided by."""
        if self.row is None:
            return ""
        step = self._step(e)
        marks = []
        for knob in ("TILE", "REDUCE", "STAGE"):
            value = self.row.at(knob, step).text if step else self.row.plain[knob].text
            if value:
                marks.append(f"⟨{knob}={value}⟩")
        return "   " + " ".join(marks) if marks else ""

    def _step(self, e: Folding) -> str:
        """In a row with suffixed steps, the inner contraction makes the scores and the online sum takes the values."""
        steps = {s for _, s, _ in self.row.steps} if self.row is not None else set()
        step = "values" if isinstance(e, Online) else "scores"
        return step if step in steps else ""


def folded(e: Folding) -> tuple[tuple[Ax, ...], tuple[Expr, ...]]:
    """The axes of a fold, or of a nest of equal folds, and what it folds (score and value of an online sum)."""
    if isinstance(e, Online):
        return (e.axis,), (e.score, e.value)
    axes, body = [e.axis], e.body
    while isinstance(e, Fold) and isinstance(body, Fold) and body.kind == e.kind != "m2" and set(axes) & body.free:
        axes.append(body.axis)
        body = body.body
    return tuple(axes), (body,)


def is_contraction(e: Fold) -> bool:
    """A sum of products that came from a matrix product, or of two factors that each have an axis of their own."""
    axes, (body,) = folded(e)
    if e.kind != "sum" or not isinstance(body, Op) or body.name != "mul":
        return False
    if e.operand:
        return True
    a, b = body.args
    return bool(set(axes) & a.free & b.free) and bool(a.free - b.free) and bool(b.free - a.free)


def _operand(name: str, node: Node, mark: str) -> Node:
    return Node(f"operand[{name}]: {node.head}   ‹{mark}›", node.body, node.children)


def _init(e: Folding) -> str:
    if isinstance(e, Online):
        return "-infinity, 0"
    return "0, 0, 0" if e.kind == "m2" else IDENTITY[e.kind]


def _combine(e: Folding, acc: str) -> str:
    if isinstance(e, Online):
        return f"{acc} = rescaled sum of {acc}, {acc}__o at the larger maximum"
    if e.kind in ACCUMULATE:
        return f"{acc} {ACCUMULATE[e.kind]} {acc}__o"
    return f"{acc} = {e.kind}({acc}, {acc}__o)"


def _stages(value: Expr, sweep: frozenset[Ax]) -> list[Expr]:
    """The largest values with folds in them that do not need the swept axes, or the folds themselves."""
    if not value.has_fold:
        return []
    if isinstance(value, Folding):
        return [] if value.free & sweep and sweep else [value]
    if sweep and not value.free & sweep:
        return [value]
    return list(dict.fromkeys(e for c in value.children for e in _stages(c, sweep)))


def _folds_at(value: Expr, axes: frozenset[Ax]) -> list[Folding]:
    """Outermost folds under `value` that depend on the axes."""
    if isinstance(value, Folding):
        return [value] if axes & value.free else []
    return list(dict.fromkeys(f for c in value.children for f in _folds_at(c, axes)))


def _loads(value: Expr, block: Block) -> list[Load]:
    """Loads under `value` that are not inside what the block knows already."""
    if block.find(value) is not None:
        return []
    inner = [x for c in value.children for x in _loads(c, block)]
    return list(dict.fromkeys([*inner, value] if isinstance(value, Load) else inner))


def _own(value: Expr, block: Block) -> list[Expr]:
    """Axes and loads that the lift itself touches."""
    if isinstance(value, Load | Ax):
        return [value]
    if isinstance(value, Folding):
        return []
    return [x for c in value.children for x in _own(c, block)]


def _indent(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]
