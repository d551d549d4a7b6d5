"""Checks Kernel IR before it is printed.  A finding is a bug in a family or in a schedule rule, never the user's.

    budget     threads, shared memory of the target
    names      unique, declared before use, of one type; only `Declare`d registers are assigned, only results stored
    places     parameters and shared buffers exist and have the place's type and dimensions; vectors are 1 to 16 bytes
    barriers   every thread of the block reaches them; every lane of the warp reaches shuffles, ldmatrix and mma
    copies     what cp.async brings is read only after a wait and a barrier
    matrices   fragments have the registers that the instruction takes

Whether control flow diverges is decided by what conditions depend on: nothing of the thread (uniform), its warp
(tid >> 5 and the like), or its lane.  Values loaded at uniform places are uniform.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from emmy.errors import LoweringError
from emmy.ir.kernel import (
    BYTES,
    INTRINSICS,
    MMA_SHAPES,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    Call,
    Convert,
    Declare,
    Elem,
    For,
    If,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Mma,
    Param,
    Place,
    S,
    Select,
    Shuffle,
    Store,
    StoreVector,
    Un,
    Var,
    WarpSync,
    X,
    children,
    walk,
)
from emmy.ir.scalar import SCALAR
from emmy.ir.target import Target


class KernelError(LoweringError):
    """Kernel IR that breaks one of its rules: which statement, and why."""


class Spread(IntEnum):
    """How far a value is the same: over the block, over a warp, or nowhere."""

    BLOCK = 0
    WARP = 1
    LANE = 2


WARP_OPS: Final = (Shuffle, LdMatrix, Mma, WarpSync)


def verify(kernel: Kernel, target: Target) -> None:
    """Raises KernelError at the first rule that the kernel breaks."""
    if not 0 < kernel.threads <= target.threads_block:
        raise KernelError(f"{kernel.name}: {kernel.threads} threads a block, {target.arch} has {target.threads_block}")
    if kernel.smem > target.smem_block:
        raise KernelError(f"{kernel.name}: {kernel.smem} bytes of shared memory, {target.arch} has {target.smem_block}")
    statements = list(walk(kernel.body))
    if kernel.threads % 32 and any(isinstance(s, WARP_OPS) for s in statements):
        raise KernelError(f"{kernel.name}: warp operations in a block of {kernel.threads} threads")
    if any(isinstance(s, AsyncCopy) for s in statements) and not any(isinstance(s, AsyncCommit) for s in statements):
        raise KernelError(f"{kernel.name}: asynchronous copies without a commit")
    _Checker(kernel).block(kernel.body, Spread.BLOCK)


class _Checker:
    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        self.params: dict[str, Param] = {p.name: p for p in kernel.params}
        self.buffers: dict[str, Buffer] = {b.name: b for b in kernel.shared}
        self.types: dict[str, str] = {p.name: "i64" for p in kernel.params if p.role == "size"}
        self.spread: dict[str, Spread] = dict.fromkeys(self.types, Spread.BLOCK)
        self.arrays: dict[str, int] = {}
        self.mutable: set[str] = set()
        self.copied: set[str] = set()
        self.threads: set[str] = set()  # registers that number the threads of a block, or of whole warps of it
        self.waited = self.landed = False
        names = [*self.params, *self.buffers]
        if len(set(names)) != len(names):
            raise KernelError(f"{kernel.name}: a parameter or buffer is named twice")

    def fail(self, s: object, why: str) -> KernelError:
        return KernelError(f"{self.k.name}: {why}", f"in {s}")

    # -- statements

    def block(self, body: tuple[S, ...], flow: Spread) -> None:
        """`flow`: how far the threads that run these statements run them together."""
        outer = set(self.types)
        for s in body:
            self.statement(s, flow)
        for name in set(self.types) - outer:
            # out of scope; names stay unique, so nothing else may take them
            self.mutable.discard(name)

    def statement(self, s: S, flow: Spread) -> None:
        if isinstance(s, For):
            self.loop(s, flow)
        elif isinstance(s, If):
            self.branch(s, flow)
        elif isinstance(s, Let):
            self.name(s, s.name, s.value.type, self.value(s, s.value))
            if self.is_thread(s.value):
                self.threads.add(s.name)
        elif isinstance(s, Declare):
            self.declare(s, flow)
        elif isinstance(s, Assign):
            self.assign(s, flow)
        elif isinstance(s, Load):
            self.read(s, s.place)
            deps = [self.place(s, s.place), *(self.value(s, x) for x in (s.guard, s.fill) if x is not None)]
            self.name(s, s.name, s.type, max(deps))
        elif isinstance(s, Shuffle):
            self.value(s, s.lane)
            spread = self.value(s, s.value)
            self.name(s, s.name, s.value.type, spread)
        else:
            self.memory(s)
        self.order(s, flow)

    def loop(self, s: For, flow: Spread) -> None:
        spread = max(self.value(s, s.start), self.value(s, s.stop))
        self.name(s, s.var.name, s.var.type, spread)
        self.value(s, s.step)
        self.settle(s.body, max(flow, spread))

    def settle(self, body: tuple[S, ...], flow: Spread) -> None:
        """A loop's body once, after its assignments have raised the spread of what they change."""
        before = dict(self.spread)
        for inner in walk(body):
            if isinstance(inner, Assign) and isinstance(inner.target, Var) and inner.target.name in self.spread:
                names = _names(inner.value)
                known = [self.spread[n] for n in names if n in self.spread]
                unknown = any(n not in self.spread for n in names) or _has_tid(inner.value)
                raised = max([*known, Spread.LANE if unknown else Spread.BLOCK])
                self.spread[inner.target.name] = max(self.spread[inner.target.name], raised)
        self.block(body, flow)
        for n, v in before.items():
            self.spread[n] = max(self.spread[n], v)

    def branch(self, s: If, flow: Spread) -> None:
        inner = max(flow, self.value(s, s.cond))
        self.block(s.then, inner)
        self.block(s.orelse, inner)

    def declare(self, s: Declare, flow: Spread) -> None:
        spread = Spread.BLOCK if s.init is None else self.value(s, s.init)
        self.name(s, s.name, s.type, spread)
        self.mutable.add(s.name)
        if s.count is not None:
            self.arrays[s.name] = s.count
            self.spread[s.name] = Spread.LANE

    def assign(self, s: Assign, flow: Spread) -> None:
        spread = max(flow, self.value(s, s.value))
        self.target(s, s.target)
        if s.target.type != s.value.type:
            raise self.fail(s, f"a {s.value.type} is assigned to a {s.target.type}")
        if isinstance(s.target, Var):
            self.spread[s.target.name] = max(self.spread[s.target.name], spread)

    def target(self, s: S, t: Var | Elem) -> None:
        name = t.name if isinstance(t, Var) else t.array
        if name not in self.mutable:
            raise self.fail(s, f"{name} is assigned but not declared as a register here")
        self.value(s, t)

    def memory(self, s: S) -> None:
        if isinstance(s, Store | Atomic):
            self.write(s, s.place)
            self.optional(s, s.guard)
            self.value(s, s.value)
            if isinstance(s, Atomic) and s.old:
                self.name(s, s.old, s.value.type, Spread.LANE)
        elif isinstance(s, LoadVector | StoreVector):
            self.vector(s)
        elif isinstance(s, AsyncCopy):
            self.read(s, s.src)
            self.write(s, s.dst)
            self.optional(s, s.guard)
            if s.bytes not in (4, 8, 16) or s.bytes % BYTES[s.dst.type] or s.dst.space != "shared":
                raise self.fail(s, f"cp.async of {s.bytes} bytes")
        elif isinstance(s, LdMatrix):
            self.read(s, s.src)
            if len(s.dst) not in (1, 2, 4) or BYTES[s.src.type] != 2:
                raise self.fail(s, "ldmatrix takes 1, 2 or 4 matrices of 16-bit elements")
            for d in s.dst:
                self.target(s, d)
        elif isinstance(s, Mma):
            self.matrix(s)

    def vector(self, s: LoadVector | StoreVector) -> None:
        if isinstance(s, LoadVector):
            self.read(s, s.place)
        else:
            self.write(s, s.place)
        self.optional(s, s.guard)
        self.value(s, s.at)
        if s.array not in self.arrays:
            raise self.fail(s, f"{s.array} is no register array here")
        if self.types[s.array] != s.place.type:
            raise self.fail(s, f"a vector of {s.place.type} and an array of {self.types[s.array]}")
        if s.count * BYTES[s.place.type] not in (1, 2, 4, 8, 16):
            raise self.fail(s, f"a vector of {s.count * BYTES[s.place.type]} bytes")
        if isinstance(s.at, Lit) and int(s.at.value) + s.count > self.arrays[s.array]:
            raise self.fail(s, f"{s.array} has {self.arrays[s.array]} elements")

    def matrix(self, s: Mma) -> None:
        if (s.shape, s.type) not in MMA_SHAPES:
            raise self.fail(s, f"no instruction {s.shape} for {s.type}")
        d, a, b = MMA_SHAPES[s.shape, s.type]
        if (len(s.d), len(s.a), len(s.b), len(s.c)) != (d, a, b, d):
            raise self.fail(s, f"{s.shape} takes {d}, {a}, {b} and {d} registers")
        for t in s.d:
            self.target(s, t)
        for x in (*s.a, *s.b, *s.c):
            self.value(s, x)

    # -- order of copies and barriers

    def order(self, s: S, flow: Spread) -> None:
        if isinstance(s, Barrier):
            if flow != Spread.BLOCK:
                raise self.fail(s, "a barrier under a condition that is not the same for the whole block")
            self.landed = self.landed or self.waited
        elif isinstance(s, WARP_OPS) and flow == Spread.LANE:
            raise self.fail(s, "a warp operation under a condition that is not the same for the whole warp")
        elif isinstance(s, AsyncCopy):
            self.copied.add(s.dst.buffer)
        elif isinstance(s, AsyncWait):
            self.waited = True

    def read(self, s: S, p: Place) -> None:
        self.place(s, p)
        if p.space == "shared" and p.buffer in self.copied and not self.landed:
            raise self.fail(s, f"{p.buffer} is read before its copies are waited for and a barrier is passed")

    def write(self, s: S, p: Place) -> None:
        self.place(s, p)
        if p.space == "global" and self.params[p.buffer].role != "out":
            raise self.fail(s, f"{p.buffer} is an operand and is written")

    # -- names and values

    def name(self, s: S, name: str, type: str, spread: Spread) -> None:
        if name in self.types or name in self.params or name in self.buffers:
            raise self.fail(s, f"{name} is declared twice")
        if type not in BYTES:
            raise self.fail(s, f"unknown type {type}")
        self.types[name], self.spread[name] = type, spread

    def place(self, s: S, p: Place) -> Spread:
        if p.space == "global":
            param = self.params.get(p.buffer)
            if param is None or param.role == "size" or param.type != p.type or len(p.index) != 1:
                raise self.fail(s, f"{p.buffer} is no {p.type} operand or result with one index")
        else:
            b = self.buffers.get(p.buffer)
            if b is None or b.type != p.type or len(p.index) != len(b.shape):
                raise self.fail(s, f"{p.buffer} is no shared {p.type} buffer of {len(p.index)} dimensions")
            for i, n in zip(p.index, b.shape, strict=True):
                if isinstance(i, Lit) and not 0 <= int(i.value) < n:
                    raise self.fail(s, f"index {i.value} of {p.buffer}, which has {n}")
        return max(self.value(s, i) for i in p.index)

    def optional(self, s: S, x: X | None) -> None:
        if x is not None:
            self.value(s, x)

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
            return Spread.WARP if self.of_warp(x) else max(a, b)
        if isinstance(x, Un | Convert):
            return self.value(s, x.a)
        if isinstance(x, Select):
            return max(self.value(s, v) for v in (x.cond, x.yes, x.no))
        assert isinstance(x, Call)
        if x.name not in SCALAR and x.name not in INTRINSICS:
            raise self.fail(s, f"unknown word {x.name}")
        return max((self.value(s, a) for a in x.args), default=Spread.LANE)

    def is_thread(self, x: X) -> bool:
        """tid, or its remainder by whole warps."""
        if isinstance(x, Bin) and isinstance(x.b, Lit) and x.op in ("&", "%"):
            return (int(x.b.value) + (x.op == "&")) % 32 == 0 and self.is_thread(x.a)
        return (isinstance(x, Builtin) and x.name == "tid") or (isinstance(x, Var) and x.name in self.threads)

    def of_warp(self, x: Bin) -> bool:
        """tid >> 5 and more, tid / 32 and its multiples: the same for a warp."""
        if not isinstance(x.b, Lit) or not self.is_thread(x.a):
            return False
        return (x.op == ">>" and int(x.b.value) >= 5) or (x.op == "/" and int(x.b.value) % 32 == 0)

    def register(self, s: S, name: str, type: str) -> Spread:
        if name not in self.types:
            raise self.fail(s, f"{name} is used before it is declared")
        if self.types[name] != type:
            raise self.fail(s, f"{name} is {self.types[name]}, used as {type}")
        return self.spread[name]


def _names(x: object) -> set[str]:
    if isinstance(x, Var):
        return {x.name}
    own = {x.array} if isinstance(x, Elem) else set()
    return own.union(*(_names(c) for c in children(x)))


def _has_tid(x: object) -> bool:
    return (isinstance(x, Builtin) and x.name == "tid") or any(_has_tid(c) for c in children(x))
