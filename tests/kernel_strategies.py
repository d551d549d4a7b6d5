"""Hypothesis strategies for Kernel IR: kernels in which names are declared and used with their types.

They need not make sense on a GPU: what is tested with them is text.  Registers are called like words of the language,
and values have types that do not follow from their operands more often than in any kernel that a family writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st

from emmy.ir.build import iadd, imul
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import (
    BYTES,
    INTRINSICS,
    Advance,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    BulkCommit,
    BulkWait,
    Call,
    ClusterBarrier,
    Comment,
    Convert,
    CopyArrive,
    Cursor,
    Declare,
    DependentLaunch,
    DependentWait,
    Elem,
    Fence,
    For,
    If,
    InitRings,
    Kernel,
    Layout,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Matrix,
    Mma,
    NamedBarrier,
    Param,
    Place,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    Role,
    Roles,
    S,
    Select,
    ShiftVector,
    Shuffle,
    StMatrix,
    Store,
    StoreVector,
    TensorMap,
    TmaLoad,
    TmaStore,
    Un,
    Var,
    Vote,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.kernel.types import OPERATORS, natural
from emmy.ir.kernel.values import BUILTINS
from emmy.ir.loop import const, size
from emmy.ir.scalar import SCALAR
from tests.strategies import arithmetic

TYPES: Final = tuple(BYTES)
WORDS: Final = (
    "load", "read", "atomic", "where", "step", "warp", "full", "at", "block", "of", "xor", "tid", "f32", "max",
    "unrolled", "sync", "async", "commit", "wait", "role", "on", "by", "as", "thread", "lane",
    "shift", "rolled",
)  # fmt: skip
GRID: Final = arithmetic((), (size("s"), size("n"))).map(lambda a: a.expr())
TEXT: Final = st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=12).map(str.strip)


def literals() -> st.SearchStrategy[Lit]:
    return st.sampled_from(TYPES).flatmap(lambda t: number(t).map(lambda v: Lit(v, t)))


def number(type: str) -> st.SearchStrategy[Any]:
    if type == "bool":
        return st.booleans()
    if type in DTYPES and DTYPES[type].kind == "float":
        return st.one_of(st.floats(), st.integers(-4, 4).map(float))
    return st.one_of(st.integers(0, 9), st.integers(-(2**63), 2**63))


class Maker:
    """Draws the parts of one kernel; knows what was declared."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.free = [*draw(st.permutations(WORDS)), *(f"r{i}" for i in range(99, -1, -1))]
        self.scalars: list[Var] = []
        self.arrays: list[Var] = []
        self.mutable: list[Var] = []
        self.cursors: list[str] = []
        self.params = (
            *(Param(self.name(), t, r) for t, r in (("f32", "in"), ("bf16", "out"), ("u8", "in"))),
            Param(self.name(), "f32", "scratch", iadd(imul(size("m"), const(3)), const(self.count()))),
            Param(self.name(), "i32", "zeroed", const(self.count())),
        )
        self.shared = (
            Buffer(self.name(), "f16", (2, 64, 64), Layout(0, 8, 0), "", 1024),
            Buffer(self.name(), self.pick(TYPES), (8,), Layout(self.count(), 0, self.count())),
        )
        self.shared += (Buffer(self.name(), "f16", (4, 4), overlays=self.shared[0].name),)
        self.rings = (Ring(self.name(), 4, 1, 2), Ring(self.name(), 2, 3, 1))
        offset = self.pick((None, self.draw(GRID)))
        self.maps = (
            TensorMap(self.name(), self.params[0].name, "f32", self.grid(2), self.grid(2), (8, 32), 128),
            TensorMap(self.name(), self.params[1].name, "bf16", self.grid(1), self.grid(1), (64,), 0, offset),
            TensorMap(self.name(), self.params[0].name, "tf32", self.grid(2), self.grid(2), (8, 32), 128),
        )

    # ---- small parts

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def count(self) -> int:
        return int(self.draw(st.integers(0, 9)))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def name(self) -> str:
        # words of the language and plain names
        return self.free.pop(0 if self.draw(st.booleans()) else -1)

    def grid(self, n: int) -> Any:
        return tuple(self.draw(GRID) for _ in range(n))

    def register(self, type: str, mutable: bool = False) -> str:
        v = Var(self.name(), type)
        self.scalars.append(v)
        if mutable:
            self.mutable.append(v)
        return v.name

    # ---- values

    def x(self, depth: int = 2) -> X:
        form = self.pick(("leaf", "bin", "bin", "un", "select", "call", "convert") if depth else ("leaf",))
        if form == "leaf":
            return self.leaf(depth)
        if form == "convert":
            return Convert(self.x(depth - 1), self.pick(TYPES))
        if form == "bin":
            v: X = Bin(self.pick(OPERATORS), self.x(depth - 1), self.x(depth - 1), "")
        elif form == "un":
            v = Un(self.pick("-!~"), self.x(depth - 1), "")
        elif form == "select":
            v = Select(self.x(depth - 1), self.x(depth - 1), self.x(depth - 1), "")
        else:
            v = self.call(depth)
        type = natural(v) if self.draw(st.integers(0, 3)) else self.pick(TYPES)
        return type_of(v, type)

    def call(self, depth: int) -> Call:
        word = self.pick((*SCALAR, *INTRINSICS))
        arity = SCALAR[word].arity if word in SCALAR else 0 if word == "clock" else 2
        return Call(word, tuple(self.x(depth - 1) for _ in range(arity)), "")

    def leaf(self, depth: int) -> X:
        known = [*self.scalars, *self.scalars, *(Builtin(b) for b in BUILTINS)]
        if self.arrays and depth and not self.count():
            return self.elem(depth)
        return self.pick(known) if self.flag() else self.draw(literals())

    def elem(self, depth: int = 1) -> Elem:
        a = self.pick(self.arrays)
        return Elem(a.name, self.x(depth - 1), a.type)

    def target(self) -> Var | Elem:
        if not self.mutable:
            self.mutable.append(Var("m", "f32"))  # declared first in every body
        return self.elem() if self.arrays and self.flag() else self.pick(self.mutable)

    def some(self) -> X | None:
        return self.x(1) if self.flag() else None

    def place(self, rank: bool = False) -> Place:
        if self.flag():
            p = self.pick(self.params)
            return Place("global", p.name, (self.x(1),), p.type)
        b = self.pick(self.shared)
        return Place("shared", b.name, tuple(self.x(1) for _ in b.shape), b.type, self.some() if rank else None)

    def xs(self, n: int) -> Any:
        return tuple(self.x(1) for _ in range(n))

    def targets(self, n: int) -> Any:
        return tuple(self.target() for _ in range(n))

    # ---- statements

    def statement(self, depth: int) -> S:
        forms: list[Callable[[], S]] = [self.registers, self.memory, self.copies, self.matrices, self.bare]
        if depth:
            forms += [lambda: self.nested(depth)] * 2
        return self.pick(forms)()

    def block(self, depth: int) -> tuple[S, ...]:
        return tuple(self.statement(depth) for _ in range(self.pick((0, 1, 1, 2, 3))))

    def nested(self, depth: int) -> S:
        form = self.pick(("for", "if", "roles"))
        if form == "if":
            return If(self.x(), self.block(depth - 1), self.block(depth - 1))
        if form == "roles":
            warps = self.pick(((4,), (1, 3), (1, 2, 1)))
            return Roles(tuple(Role(self.name(), w, 8 * self.count(), self.block(depth - 1)) for w in warps))
        start, stop = self.x(1), self.x(1)
        var = Var(self.name(), self.pick(("i32", "i64", "u32")))
        self.scalars.append(var)
        step = Lit(1, var.type) if self.flag() else self.x(1)
        return For(var, start, stop, step, self.block(depth - 1), self.pick((self.count(), 0, -1)))

    def registers(self) -> S:
        form = self.pick(("let", "declare", "array", "assign", "assign", "sugar", "shuffle", "vote", "comment"))
        if form == "comment":
            return Comment(self.draw(TEXT))
        if form == "let":
            value = self.x()
            return Let(self.register(value.type), value)
        if form == "declare":
            init, type = self.some(), self.pick(TYPES)
            return Declare(self.register(type, mutable=True), type, init)
        if form == "array":
            init, v = self.some(), Var(self.name(), self.pick(TYPES))
            self.arrays.append(v)
            return Declare(v.name, v.type, init, self.count())
        if form == "assign":
            return Assign(self.target(), self.x())
        if form == "sugar":
            return self.sugar()
        if form == "vote":
            value, mode = self.x(1), self.pick(("any", "all", "ballot"))
            return Vote(self.register("u32" if mode == "ballot" else "bool"), value, mode)
        value, mode, lane = self.x(1), self.pick(("xor", "up", "down", "lane")), self.x(1)
        return Shuffle(self.register(value.type), value, mode, lane, self.pick((32, 32, 8)))

    def sugar(self) -> Assign:
        t, b = self.target(), self.x(1)
        word = self.pick(("add", "mul", "+", "-", "*"))
        v: X = Call(word, (t, b), t.type) if word.isalpha() else Bin(word, t, b, t.type)
        return Assign(t, v)

    def memory(self) -> S:
        form = self.pick(("load", "load", "store", "load vector", "store vector", "shift vector", "atomic", "async"))
        place = self.place(rank=form in ("load", "load vector", "store"))
        if form == "load":
            guard, fill, type = self.some(), self.some(), self.pick(TYPES)
            return Load(self.register(type), type, place, guard, fill)
        if form == "store" or not self.arrays:
            return Store(place, self.x(), self.some())
        if form == "load vector":
            return LoadVector(self.pick(self.arrays).name, self.x(1), self.count(), place, self.some())
        if form == "store vector":
            return StoreVector(place, self.pick(self.arrays).name, self.x(1), self.count(), self.some())
        if form == "shift vector":
            array, source = self.pick(self.arrays).name, self.pick(self.arrays).name
            return ShiftVector(array, self.x(1), source, self.x(1), self.count(), self.x(1))
        if form == "async":
            return AsyncCopy(place, self.place(), self.count(), self.some())
        value, guard = self.x(1), self.some()
        old = self.register(value.type) if self.flag() else ""
        return Atomic(self.pick(("add", "max", "min")), place, value, guard, old)

    def copies(self) -> S:
        form = self.pick(("cursor", "advance", "wait", "arrive", "copies", "load", "store"))
        m = self.pick(self.maps)
        if form == "store":
            return TmaStore(m.name, self.xs(len(m.box)), self.place(), self.pick(("", "add")))
        if form == "cursor" or not self.cursors:
            name = self.name()
            self.cursors.append(name)
            self.scalars += [Var(f"{name}_slot", "i32"), Var(f"{name}_parity", "u32")]
            return Cursor(name, self.pick(self.rings).name)
        cursor, side = self.pick(self.cursors), self.pick(("full", "empty"))
        if form == "advance":
            return Advance(cursor, self.some())
        if form == "wait":
            return RingWait(cursor, side)
        if form == "arrive":
            return RingArrive(cursor, side, self.count(), self.some())
        if form == "copies":
            return CopyArrive(cursor)
        return TmaLoad(self.place(), m.name, self.xs(len(m.box)), cursor, self.some())

    def matrices(self) -> S:
        form = self.pick(("ldmatrix", "stmatrix", "mma", "wgmma"))
        if form == "stmatrix":
            return StMatrix(self.place(), self.xs(self.pick((1, 2, 4))), self.flag())
        if form == "ldmatrix" or not self.arrays:
            return LdMatrix(self.targets(self.pick((1, 2, 4))), self.place(), self.flag())
        if form == "mma":
            return Mma("m16n8k8", "tf32", self.targets(4), self.xs(4), self.xs(2), self.xs(4))
        a = self.xs(4) if self.flag() else self.matrix()
        return Wgmma(self.pick(self.arrays).name, self.x(1), 8 * self.count(), "f16", a, self.matrix(), self.flag())

    def matrix(self) -> Matrix:
        return Matrix(self.place(), self.pick(("k", "mn")))

    def bare(self) -> S:
        n = self.count()
        return self.pick((
            AsyncCommit(), AsyncWait(n), BulkCommit(), BulkWait(n, self.flag()), Barrier(), ClusterBarrier(),
            WarpSync(), DependentLaunch(), DependentWait(), InitRings(), Fence("block"), Fence(), ProxyFence(),
            ProxyFence("global"), WgmmaFence(), WgmmaCommit(), WgmmaWait(n), NamedBarrier(self.x(1), 32, self.flag()),
        ))  # fmt: skip


def type_of(v: Any, type: str) -> X:
    return replace(v, type=type)  # type: ignore[no-any-return]


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Small kernels of 128 threads with every kind of parameter, buffer and statement."""
    m = Maker(draw)
    sizes = tuple(Param(m.name(), t, "size") for t in ("i64", "i32"))
    m.scalars += [Var(p.name, p.type) for p in sizes]
    m.mutable.append(Var("m", "f32"))
    body = (Declare("m", "f32"), *m.block(2), *m.block(2))
    return Kernel(
        draw(st.sampled_from(("k", "kernel", "grid"))), draw(TEXT), (*m.params, *sizes), m.shared, m.grid(3), 128, body,
        m.count(), m.rings, m.maps, m.pick(((1, 1, 1), (2, 1, 1))), m.flag(),
    )  # fmt: skip
