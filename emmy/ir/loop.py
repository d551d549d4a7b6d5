"""Loop IR: one closed body per kernel, a pure expression per stored value.

    Body  = Body(outs, slots)
    Out   = Out(axes, index, value, tensor)      for all points of axes: out[index] = value
          | Out(axes, index, value, tensor, into)  an update: the result lies where operand `into` does; for all points
                                                 whose index is in range, out[index] = value, and the rest is as it was
    Slot  = Tensor                               the operands, contiguous and row-major
    Tensor = Tensor(dtype, shape)                shape: extents
    Expr  = Const(value, dtype)
          | Ax(name, extent)                     the value of a loop axis, i64, 0 <= axis < extent
          | Size(name)                           a symbolic size, i64, bound when the kernel is launched
          | Load(slot, index, dtype)             one element of an operand
          | Op(name, args, dtype)                a scalar operation of emmy.ir.scalar
          | Fold(kind, axis, body, operand)      kind: sum prod max min or and m2, over the whole axis
          | Scan(kind, axis, at, body)           the fold over axis = 0 .. at, inclusive
          | Online(axis, score, value, operand)  sum over axis of exp(score - max over axis of score) * value, one pass

Extents and indices are `Expr` of dtype i64 themselves; gathers are loads whose index holds a load.  Fold(`m2`) is the
sum of squared deviations from the mean over the axis, in one pass.  `operand` is set on sums of products that come from
a contraction: the type that its two factors have in the original program, to which a schedule may round them (so that a
bf16 product may use bf16 tensor cores and an f32 product may not); empty means no rounding.  `where` is lazy: a load in
the branch that is not chosen may be out of range.  Floats are held as f32 (dtype `f32`) whatever they are stored as;
`Op("cast", …, "bf16")` rounds and stays an f32 register value.

Nodes are interned: equal content is the same object, so equality is identity and common sub-expressions are shared.
Bound axes may shadow; `emmy.ir.normal` gives every body its canonical spelling, and `text` of that spelling is the
body's identity.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from emmy.ir.dtype import register

FOLD_KINDS: Final = ("sum", "prod", "max", "min", "or", "and", "m2")


@dataclass(frozen=True, eq=False)
class Expr:
    """Base of all expressions.  Compared by identity; make them with the lower-case functions below only."""

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    @cached_property
    def free(self) -> frozenset[Ax]:
        """Axes that the value depends on."""
        return frozenset().union(*(c.free for c in self.children)) if self.children else frozenset()

    @cached_property
    def axes(self) -> tuple[Ax, ...]:
        """The free axes in a fixed order."""
        return tuple(sorted(self.free, key=lambda a: a.text))

    @cached_property
    def sizes(self) -> frozenset[str]:
        """Names of the symbolic sizes that the value mentions, axis extents included."""
        return frozenset().union(*(c.sizes for c in self.children)) if self.children else frozenset()

    @cached_property
    def text(self) -> str:
        """The canonical s-expression; `emmy.ir.parse.parse_expr` reads it back."""
        raise NotImplementedError

    @cached_property
    def has_fold(self) -> bool:
        return any(c.has_fold for c in self.children)

    @cached_property
    def chooses(self) -> bool:
        """True when a condition or a choice stands in the value."""
        return any(c.chooses for c in self.children)

    @property
    def type(self) -> str:
        """Register type of the value."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Const(Expr):
    value: int | float | bool
    dtype: str

    @cached_property
    def text(self) -> str:
        return str(self.value) if self.dtype == "i64" else f"({self.dtype} {self.value!r})"

    @property
    def type(self) -> str:
        return register(self.dtype)


@dataclass(frozen=True, eq=False)
class Ax(Expr):
    name: str
    extent: Expr

    @cached_property
    def free(self) -> frozenset[Ax]:
        return frozenset((self,))

    @cached_property
    def sizes(self) -> frozenset[str]:
        return self.extent.sizes

    @cached_property
    def text(self) -> str:
        return f"{self.name}:{self.extent.text}"

    @property
    def type(self) -> str:
        return "i64"

    @property
    def size(self) -> int | None:
        """The extent where it is a number."""
        return int(self.extent.value) if isinstance(self.extent, Const) else None


@dataclass(frozen=True, eq=False)
class Size(Expr):
    name: str

    @cached_property
    def sizes(self) -> frozenset[str]:
        return frozenset((self.name,))

    @cached_property
    def text(self) -> str:
        return f"${self.name}"

    @property
    def type(self) -> str:
        return "i64"


@dataclass(frozen=True, eq=False)
class Load(Expr):
    slot: int
    index: tuple[Expr, ...]
    dtype: str

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.index

    @cached_property
    def text(self) -> str:
        return f"(load {self.slot} {self.dtype} [{' '.join(i.text for i in self.index)}])"

    @property
    def type(self) -> str:
        return register(self.dtype)


@dataclass(frozen=True, eq=False)
class Op(Expr):
    name: str
    args: tuple[Expr, ...]
    dtype: str

    @cached_property
    def chooses(self) -> bool:
        return self.name == "where" or self.dtype == "bool" or any(c.chooses for c in self.args)

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    @cached_property
    def text(self) -> str:
        return f"({self.name} {self.dtype} {' '.join(a.text for a in self.args)})"

    @property
    def type(self) -> str:
        return register(self.dtype)


@dataclass(frozen=True, eq=False)
class Fold(Expr):
    kind: str
    axis: Ax
    body: Expr
    operand: str = ""

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.body,)

    @cached_property
    def free(self) -> frozenset[Ax]:
        return self.body.free - {self.axis}

    @cached_property
    def sizes(self) -> frozenset[str]:
        return self.body.sizes | self.axis.sizes

    @cached_property
    def text(self) -> str:
        kind = f"{self.kind}:{self.operand}" if self.operand else self.kind
        return f"(fold {kind} {self.axis.text} {self.body.text})"

    @cached_property
    def has_fold(self) -> bool:
        return True

    @property
    def type(self) -> str:
        return self.body.type


@dataclass(frozen=True, eq=False)
class Scan(Expr):
    kind: str
    axis: Ax
    at: Expr
    body: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.at, self.body)

    @cached_property
    def free(self) -> frozenset[Ax]:
        return self.at.free | (self.body.free - {self.axis})

    @cached_property
    def sizes(self) -> frozenset[str]:
        return self.at.sizes | self.body.sizes | self.axis.sizes

    @cached_property
    def text(self) -> str:
        return f"(scan {self.kind} {self.axis.text} {self.at.text} {self.body.text})"

    @cached_property
    def has_fold(self) -> bool:
        return True

    @property
    def type(self) -> str:
        return self.body.type


@dataclass(frozen=True, eq=False)
class Online(Expr):
    axis: Ax
    score: Expr
    value: Expr
    operand: str = ""

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.score, self.value)

    @cached_property
    def free(self) -> frozenset[Ax]:
        return (self.score.free | self.value.free) - {self.axis}

    @cached_property
    def sizes(self) -> frozenset[str]:
        return self.score.sizes | self.value.sizes | self.axis.sizes

    @cached_property
    def text(self) -> str:
        head = f"online:{self.operand}" if self.operand else "online"
        return f"({head} {self.axis.text} {self.score.text} {self.value.text})"

    @cached_property
    def has_fold(self) -> bool:
        return True

    @property
    def type(self) -> str:
        return "f32"


Binder = Fold | Scan | Online

# Interning table: content -> the one node of that content.  It only grows; a process holds a few 100,000 nodes.
_NODES: Final[dict[tuple[object, ...], Any]] = {}


def const(value: int | float | bool, dtype: str = "i64") -> Const:
    if dtype == "i64" and not isinstance(value, bool):
        value = int(value)
    key = ("const", repr(value), dtype)
    node: Const | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Const(value, dtype)
    return node


def ax(name: str, extent: Expr | int) -> Ax:
    extent = const(extent) if isinstance(extent, int) else extent
    key = ("ax", name, extent)
    node: Ax | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Ax(name, extent)
    return node


def size(name: str) -> Size:
    key = ("size", name)
    node: Size | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Size(name)
    return node


def load(slot: int, index: tuple[Expr, ...], dtype: str) -> Load:
    key = ("load", slot, index, dtype)
    node: Load | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Load(slot, index, dtype)
    return node


def op(name: str, *args: Expr, dtype: str) -> Op:
    """A raw scalar operation; `emmy.ir.build` infers the type and simplifies."""
    key = ("op", name, args, dtype)
    node: Op | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Op(name, args, dtype)
    return node


def fold(kind: str, axis: Ax, body: Expr, operand: str = "") -> Fold:
    key = ("fold", kind, axis, body, operand)
    node: Fold | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Fold(kind, axis, body, operand)
    return node


def scan(kind: str, axis: Ax, at: Expr, body: Expr) -> Scan:
    key = ("scan", kind, axis, at, body)
    node: Scan | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Scan(kind, axis, at, body)
    return node


def online(axis: Ax, score: Expr, value: Expr, operand: str = "") -> Online:
    key = ("online", axis, score, value, operand)
    node: Online | None = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Online(axis, score, value, operand)
    return node


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous row-major array: storage type and extents."""

    dtype: str
    shape: tuple[Expr, ...]

    @property
    def text(self) -> str:
        return f"{self.dtype}[{','.join(e.text for e in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Out:
    """One result: for all points of `axes`, `tensor[index] = value`; `index` reaches every element exactly once.

    With `into` (a slot), an update of that operand where it lies: `index` may hold loads and reaches no element twice;
    points whose index is out of range store nothing.
    """

    axes: tuple[Ax, ...]
    index: tuple[Expr, ...]
    value: Expr
    tensor: Tensor
    into: int = -1

    @property
    def text(self) -> str:
        axes, index = " ".join(a.text for a in self.axes), " ".join(i.text for i in self.index)
        head = "out" if self.into < 0 else f"update {self.into}"
        return f"({head} [{axes}] [{index}] {self.tensor.text} {self.value.text})"


@dataclass(frozen=True, eq=False)
class Body:
    """A kernel's meaning.  `hash` is its identity: operations, extents, types and layouts, no names of tensors."""

    outs: tuple[Out, ...]
    slots: tuple[Tensor, ...]
    hash: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", hashlib.sha256(self.text.encode()).hexdigest()[:16])

    def __hash__(self) -> int:
        return hash(self.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.hash == other.hash

    @property
    def text(self) -> str:
        """Canonical text; `emmy.ir.parse.parse_body` reads it back."""
        return f"(body [{' '.join(s.text for s in self.slots)}] {' '.join(o.text for o in self.outs)})"

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """Every distinct node of the values and store indices, operands before users."""
        seen: dict[Expr, None] = {}
        for out in self.outs:
            for root in (*out.index, out.value):
                visit(root, seen)
        return tuple(seen)

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Symbolic sizes that a launch must bind, sorted."""
        names: set[str] = set()
        for out in self.outs:
            for expr in (*out.axes, *out.index, out.value, *out.tensor.shape):
                names |= expr.sizes
        for slot in self.slots:
            for e in slot.shape:
                names |= e.sizes
        return tuple(sorted(names))


def visit(root: Expr, seen: dict[Expr, None]) -> None:
    """Add the nodes under `root` to `seen`, operands first (iterative: expressions can be deep)."""
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            seen.setdefault(node, None)
        elif node not in seen:
            stack.append((node, True))
            stack.extend((c, False) for c in reversed(node.children))
