"""What is known of a kernel's names while its statements are walked: types, arrays, how far values agree."""

from __future__ import annotations

from enum import IntEnum

from emmy.errors import LoweringError
from emmy.ir.kernel import (
    BYTES,
    INTRINSICS,
    Bin,
    Buffer,
    Builtin,
    Call,
    Convert,
    Elem,
    Kernel,
    Lit,
    Load,
    LoadVector,
    Param,
    Place,
    S,
    Select,
    Store,
    TensorMap,
    Un,
    Var,
    X,
    children,
)
from emmy.ir.scalar import SCALAR
from emmy.ir.show_kernel import show_statement


class KernelError(LoweringError):
    """Kernel IR that breaks one of its rules: which statement of which schedule row, and why."""


class Spread(IntEnum):
    """How far a value is the same: over the block, over a warpgroup, over a warp, or nowhere."""

    BLOCK = 0
    GROUP = 1
    WARP = 2
    LANE = 3


def failure(kernel: Kernel, s: S | None, why: str) -> KernelError:
    """The error of a statement, or of the kernel as a whole."""
    where = "" if s is None else f"in `{show_statement(s)}`"
    row = f"of {kernel.comment}" if kernel.comment else ""
    return KernelError(f"{kernel.name}: {why}", " ".join(t for t in (where, row) if t))


class Facts:
    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        self.params: dict[str, Param] = {p.name: p for p in kernel.params}
        self.buffers: dict[str, Buffer] = {b.name: b for b in kernel.shared}
        self.maps: dict[str, TensorMap] = {m.name: m for m in kernel.maps}
        self.rings = {r.name: r for r in kernel.rings}
        self.types: dict[str, str] = {p.name: "i64" for p in kernel.params if p.role == "size"}
        self.spread: dict[str, Spread] = dict.fromkeys(self.types, Spread.BLOCK)
        self.arrays: dict[str, int] = {}
        self.mutable: set[str] = set()
        self.cursors: dict[str, str] = {}
        self.values: dict[str, X] = {}  # of registers that are written once
        self.taken = {*self.params, *self.buffers, *self.maps, *self.rings}
        if len(self.taken) != len(kernel.params) + len(kernel.shared) + len(kernel.maps) + len(kernel.rings):
            raise failure(kernel, None, "a parameter, buffer, ring or map is named twice")

    def fail(self, s: S, why: str) -> KernelError:
        return failure(self.k, s, why)

    # -- names

    def name(self, s: S, name: str, type: str, spread: Spread) -> None:
        if name in self.types or name in self.taken:
            raise self.fail(s, f"{name} is declared twice")
        if type not in BYTES:
            raise self.fail(s, f"unknown type {type}")
        self.types[name], self.spread[name] = type, spread

    def register(self, s: S, name: str, type: str) -> Spread:
        if name not in self.types:
            raise self.fail(s, f"{name} is used before it is declared")
        if self.types[name] != type:
            raise self.fail(s, f"{name} is {self.types[name]}, used as {type}")
        return self.spread[name]

    def target(self, s: S, t: Var | Elem) -> None:
        name = t.name if isinstance(t, Var) else t.array
        if name not in self.mutable:
            raise self.fail(s, f"{name} is assigned but not declared as a register here")
        self.value(s, t)

    def array(self, s: S, name: str, at: X, count: int, type: str) -> None:
        """`count` elements of a register array from `at` on."""
        self.value(s, at)
        if name not in self.arrays:
            raise self.fail(s, f"{name} is no register array here")
        if self.types[name] != type:
            raise self.fail(s, f"{name} is an array of {self.types[name]}, used as {type}")
        if isinstance(at, Lit) and not 0 <= int(at.value) <= self.arrays[name] - count:
            raise self.fail(s, f"{name} has {self.arrays[name]} elements")

    # -- places

    def place(self, s: S, p: Place) -> Spread:
        if p.space == "global":
            param = self.params.get(p.buffer)
            if param is None or param.role == "size" or param.type != p.type or len(p.index) != 1:
                raise self.fail(s, f"{p.buffer} is no {p.type} operand, result or workspace with one index")
        else:
            b = self.buffers.get(p.buffer)
            if b is None or b.type != p.type or len(p.index) != len(b.shape):
                raise self.fail(s, f"{p.buffer} is no shared {p.type} buffer of {len(p.index)} dimensions")
            for i, n in zip(p.index, b.shape, strict=True):
                if isinstance(i, Lit) and not 0 <= int(i.value) < n:
                    raise self.fail(s, f"index {i.value} of {p.buffer}, which has {n}")
        there = isinstance(s, Load | LoadVector | Store) and p.space == "shared" and self.k.cluster != (1, 1, 1)
        if p.rank is not None and not there:
            raise self.fail(s, "only loads and stores of shared memory in a cluster name another block")
        return max(self.value(s, i) for i in (*p.index, *(() if p.rank is None else (p.rank,))))

    # -- values

    def optional(self, s: S, x: X | None) -> Spread:
        return Spread.BLOCK if x is None else self.value(s, x)

    def value(self, s: S, x: X) -> Spread:
        """Checks a value; how far it is the same."""
        if isinstance(x, Lit):
            return Spread.BLOCK
        if isinstance(x, Builtin):
            return Spread.LANE if x.name == "tid" else Spread.BLOCK
        if isinstance(x, Var):
            return self.register(s, x.name, x.type)
        if isinstance(x, Elem):
            if x.array not in self.arrays:
                raise self.fail(s, f"{x.array} is no register array here")
            if isinstance(x.index, Lit) and not 0 <= int(x.index.value) < self.arrays[x.array]:
                raise self.fail(s, f"element {x.index.value} of {x.array}, which has {self.arrays[x.array]}")
            self.value(s, x.index)
            return self.register(s, x.array, x.type)
        if isinstance(x, Bin):
            a, b = self.value(s, x.a), self.value(s, x.b)
            return min(max(a, b), self.quotient(x))
        if isinstance(x, Un | Convert):
            return self.value(s, x.a)
        if isinstance(x, Select):
            return max(self.value(s, v) for v in (x.cond, x.yes, x.no))
        assert isinstance(x, Call)
        if x.name not in SCALAR and x.name not in INTRINSICS:
            raise self.fail(s, f"unknown word {x.name}")
        return max((self.value(s, a) for a in x.args), default=Spread.LANE)

    def counts_threads(self, x: X, unit: int) -> bool:
        """tid, or what differs from it by a multiple of `unit`: its remainder by whole units, its place in a role."""
        if isinstance(x, Var) and x.name in self.values:
            return self.counts_threads(self.values[x.name], unit)
        if isinstance(x, Bin) and isinstance(x.b, Lit):
            by = int(x.b.value) + (x.op == "&")
            return x.op in ("&", "%", "+", "-") and by % unit == 0 and self.counts_threads(x.a, unit)
        return isinstance(x, Builtin) and x.name == "tid"

    def quotient(self, x: Bin) -> Spread:
        """tid >> 5 and more, tid / 32 and its multiples are the same for a warp; tid >> 7 for a warpgroup."""
        if not isinstance(x.b, Lit) or x.op not in (">>", "/"):
            return Spread.LANE
        by = 1 << int(x.b.value) if x.op == ">>" else int(x.b.value)
        for unit, spread in ((128, Spread.GROUP), (32, Spread.WARP)):
            if by % unit == 0 and self.counts_threads(x.a, unit):
                return spread
        return Spread.LANE


def names_in(x: object) -> set[str]:
    if isinstance(x, Var):
        return {x.name}
    own = {x.array} if isinstance(x, Elem) else set()
    return own.union(*(names_in(c) for c in children(x)))


def has_tid(x: object) -> bool:
    return (isinstance(x, Builtin) and x.name == "tid") or any(has_tid(c) for c in children(x))
