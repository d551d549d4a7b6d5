"""Loop IR for people: the loops of a body with one statement a line.

    for a0 in 0..32
        for a1 in 0..2048
            in0 = load x[0, a0, a1]
            v0 = in0 * in0
            acc0 += v0
        v1 = acc0 / 2048
        ...

Equal values are computed once, in the outermost loop that has their axes, and folds that walk one axis together share
its loop, as generated kernels do.  Names are numbered in the order of printing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from emmy.ir.loop import Ax, Body, Const, Expr, Fold, Load, Online, Op, Out, Scan, Size, visit

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "eq": "==",
    "ne": "!=", "and": "and", "or": "or", "band": "&", "bor": "|", "bxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
ACCUMULATE = {"sum": "+=", "prod": "*=", "or": "|=", "and": "&="}
Folding = Fold | Online | Scan


@dataclass
class Naming:
    """Names of one printed body: axes a0 …, loads in0 …, values v0 …, partial results acc0 …."""

    operands: Sequence[str]
    axes: dict[Ax, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def fresh(self, stem: str) -> str:
        n = self.counts.get(stem, 0)
        self.counts[stem] = n + 1
        return f"{stem}{n}"

    def bind(self, axis: Ax) -> str:
        """A new name for a loop over the axis."""
        self.axes[axis] = self.fresh("a")
        return self.axes[axis]


@dataclass
class Block:
    """Lines of one loop body (of the whole body where `parent` is None) and what is known by name in it."""

    parent: Block | None = None
    axis: Ax | None = None
    lines: list[str] = field(default_factory=list)
    known: dict[Expr, str] = field(default_factory=dict)

    def find(self, e: Expr) -> str | None:
        """The name of a value that this block or one around it has, unless its axis is bound anew on the way."""
        block: Block | None = self
        while block is not None:
            if e in block.known:
                return block.known[e]
            if block.axis is not None and block.axis in e.free:
                return None
            block = block.parent
        return None

    def home(self, e: Expr) -> Block:
        block = self
        while block.parent is not None and block.axis not in e.free:
            block = block.parent
        return block


class Writer:
    """Prints values into blocks."""

    def __init__(self, naming: Naming, folds: Sequence[Folding] = ()) -> None:
        self.n = naming
        self.folds = folds

    # -- texts

    def number(self, c: Const) -> str:
        if isinstance(c.value, bool):
            return str(c.value).lower()
        v = float(c.value)
        return str(int(v)) if v == v and abs(v) < 1e15 and v == int(v) else repr(c.value)

    def atom(self, e: Expr, block: Block) -> str:
        """A name or a number for the value, after the lines that compute it."""
        if isinstance(e, Const):
            return self.number(e)
        if isinstance(e, Size):
            return e.name
        if isinstance(e, Ax):
            return self.n.axes[e]
        known = block.find(e)
        if known is not None:
            return known
        home = block.home(e)
        if isinstance(e, Folding):
            return self.fold(e, home)
        if isinstance(e, Load):
            index = self.index(e, home)
            name = self.n.fresh("in")
            home.lines.append(f"{name} = load {self.n.operands[e.slot]}[{index}]")
        else:
            assert isinstance(e, Op)
            text = self.operation(e, home)
            name = self.n.fresh("v")
            home.lines.append(f"{name} = {text}")
        home.known[e] = name
        return name

    def operation(self, e: Op, block: Block) -> str:
        args = [self.atom(a, block) for a in e.args]
        if e.name in INFIX:
            return f"{args[0]} {INFIX[e.name]} {args[1]}"
        if e.name == "neg":
            return f"-{args[0]}"
        if e.name == "not":
            return f"not {args[0]}"
        if e.name == "cast":
            return f"{e.dtype}({args[0]})"
        return f"{e.name}({', '.join(args)})"

    def index(self, e: Load, block: Block) -> str:
        return ", ".join(self.integer(i, block) for i in e.index)

    def integer(self, e: Expr, block: Block, level: int = 0) -> str:
        """Index arithmetic, written in place."""
        if isinstance(e, Op) and e.dtype == "i64" and e.name in ("add", "mul", "sub", "floordiv", "mod"):
            mine = 1 if e.name in ("add", "sub") else 2
            right = mine if e.name in ("add", "mul") else mine + 1
            a, b = self.integer(e.args[0], block, mine), self.integer(e.args[1], block, right)
            text = f"{a} - {b[1:]}" if e.name == "add" and b.startswith("-") else f"{a} {INFIX[e.name]} {b}"
            return f"({text})" if mine < level or (level == 3 and mine == 2) else text
        return self.atom(e, block)

    # -- loops around results

    def loops(self, block: Block, axes: Sequence[Ax], outs: Sequence[Out], inside: Callable[[Block], None]) -> None:
        """Loops over `axes`, with what does not need the inner ones before them, and `inside` in the innermost."""
        for o in outs:
            for e in ready(o.value, frozenset(axes)):
                self.atom(e, block)
        if not axes:
            inside(block)
            return
        loop = Block(block, axes[0])
        extent = self.integer(axes[0].extent, block)
        head = f"for {self.n.bind(axes[0])} in 0..{extent}"
        self.loops(loop, axes[1:], outs, inside)
        block.lines += [head, *("    " + line for line in loop.lines)]

    def stores(self, outs: Sequence[tuple[Out, str]], block: Block) -> None:
        for o, name in outs:
            value = self.atom(o.value, block)
            block.lines.append(f"{name}[{', '.join(self.integer(i, block) for i in o.index)}] = {value}")

    # -- folds

    def fold(self, e: Folding, block: Block) -> str:
        """The name that holds the fold's result, after the loop that computes it and what walks along with it."""
        together = [f for f in self.folds if self._walks(e, f, block)] if not isinstance(e, Scan) else []
        group: list[Folding] = [e, *(f for f in together if f is not e)]
        for f in group:
            # what is folded may need other folds: their loops come first
            for inner in _closed(f):
                self.atom(inner, block)
        names = [self.n.fresh("acc") for _ in group]
        stop = f"{self.integer(e.at, block)} + 1" if isinstance(e, Scan) else self.integer(e.axis.extent, block)
        loop, outer = Block(block, e.axis), self.n.axes.get(e.axis)
        head = f"for {self.n.bind(e.axis)} in 0..{stop}"
        for f, name in zip(group, names, strict=True):
            loop.lines.append(self.update(f, name, loop))
        block.lines += [head, *("    " + line for line in loop.lines)]
        if outer is not None:
            self.n.axes[e.axis] = outer
        for f, name in zip(group, names, strict=True):
            block.known[f] = name
        return names[0]

    def update(self, f: Folding, name: str, loop: Block) -> str:
        if isinstance(f, Online):
            return f"{name} = online({name}, {self.atom(f.score, loop)}, {self.atom(f.value, loop)})"
        value = self.atom(f.body, loop)
        if f.kind in ACCUMULATE:
            return f"{name} {ACCUMULATE[f.kind]} {value}"
        return f"{name} = {f.kind}({name}, {value})"

    def _walks(self, e: Folding, f: Folding, block: Block) -> bool:
        """True when fold f can share e's loop: the same axis and place, neither needs the other."""
        if isinstance(f, Scan) or f.axis is not e.axis or f.free != e.free or block.find(f) is not None:
            return False
        return f is e or not (_under(e, f) or _under(f, e) or self._pending(e, f, block))

    def _pending(self, e: Folding, f: Folding, block: Block) -> bool:
        """True when f needs a fold that is not computed yet and that itself cannot come before e's loop."""
        return any(block.find(g) is None and g is not f and _under(g, e) for g in _closed(f))


def _under(root: Expr, node: Expr) -> bool:
    seen: dict[Expr, None] = {}
    visit(root, seen)
    return node in seen


def _closed(f: Folding) -> list[Folding]:
    """Folds inside f that do not depend on its axis, innermost first."""
    seen: dict[Expr, None] = {}
    for c in f.children:
        visit(c, seen)
    return [g for g in seen if isinstance(g, Folding) and f.axis not in g.free and g.free <= f.free]


def folds_of(outs: Sequence[Out]) -> list[Folding]:
    """Every fold and scan, operands first."""
    seen: dict[Expr, None] = {}
    for o in outs:
        visit(o.value, seen)
    return [e for e in seen if isinstance(e, Folding)]


@dataclass(frozen=True, slots=True)
class Nest:
    """Results that share loops: `rows`, the axes on which their folds depend (all axes where there are no folds), and
    for each set of further axes (`sweep`) the numbers of its results."""

    rows: tuple[Ax, ...]
    sweeps: tuple[tuple[tuple[Ax, ...], tuple[int, ...]], ...]


def nests(body: Body) -> list[Nest]:
    """The loop nests of a body: one where every result has the axes of all folds, else one for each set of axes."""
    needed = {a for f in folds_of(body.outs) for a in f.free}
    if needed and all(needed <= set(o.axes) for o in body.outs):
        return [_nest(body, list(range(len(body.outs))), needed)]
    groups: dict[frozenset[Ax], list[int]] = {}
    for k, o in enumerate(body.outs):
        groups.setdefault(frozenset(o.axes), []).append(k)
    found = []
    for ks in groups.values():
        own = {a for f in folds_of([body.outs[k] for k in ks]) for a in f.free}
        found.append(_nest(body, ks, own))
    return found


def _nest(body: Body, ks: Sequence[int], needed: set[Ax]) -> Nest:
    has_folds = bool(folds_of([body.outs[k] for k in ks]))
    axes = body.outs[ks[0]].axes
    rows = tuple(a for a in axes if a in needed or not has_folds)
    sweeps: dict[tuple[Ax, ...], list[int]] = {}
    for k in ks:
        sweeps.setdefault(tuple(a for a in body.outs[k].axes if a not in rows), []).append(k)
    return Nest(rows, tuple((axes, tuple(found)) for axes, found in sweeps.items()))


def show_loop(body: Body, operands: Sequence[str] = (), results: Sequence[str] = ()) -> str:
    """The body as loops; `operands` and `results` name slots and results (x0 …, y0 … where left out)."""
    ins = operands or [f"x{i}" for i in range(len(body.slots))]
    names = results or [f"y{k}" for k in range(len(body.outs))]
    naming, root = Naming(ins), Block()
    for nest in nests(body):
        ks = [k for _, found in nest.sweeps for k in found]
        outs = [body.outs[k] for k in ks]
        writer = Writer(naming, [f for f in folds_of(outs) if not isinstance(f, Scan)])
        writer.loops(root, nest.rows, outs, partial(_sweeps, body, names, nest, writer))
    return "\n".join(root.lines)


def _sweeps(body: Body, names: Sequence[str], nest: Nest, w: Writer, block: Block) -> None:
    for axes, ks in nest.sweeps:
        outs = [body.outs[k] for k in ks]
        w.loops(block, axes, outs, partial(w.stores, [(body.outs[k], names[k]) for k in ks]))


def ready(root: Expr, missing: frozenset[Ax]) -> list[Expr]:
    """The largest values with a fold inside that do not need the axes still missing."""
    if not root.has_fold:
        return []
    if missing and not root.free & missing:
        return [root]
    if isinstance(root, Folding):
        return []
    return [e for c in root.children for e in ready(c, missing)]
