"""Reads back the statements of Kernel IR that `emmy.ir.show_kernel` prints, one a line; loops and branches by heads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, cast

from emmy.ir.infix import read_name
from emmy.ir.kernel import (
    BYTES,
    MMA_SHAPES,
    WGMMA_K,
    Advance,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    BulkCommit,
    BulkWait,
    Call,
    ClusterBarrier,
    CopyArrive,
    Cursor,
    Declare,
    DependentLaunch,
    DependentWait,
    Fence,
    For,
    If,
    InitRings,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Matrix,
    Mma,
    NamedBarrier,
    ProxyFence,
    RingArrive,
    RingWait,
    Role,
    S,
    ShiftVector,
    Shuffle,
    StMatrix,
    Store,
    StoreVector,
    Target,
    TmaLoad,
    TmaStore,
    Var,
    Vote,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.kernel.types import loaded, natural
from emmy.ir.parse_values import Line, Values

ASSIGNS: Final = ("=", "+=", "*=", "-=", "[")
_SIDES: Final = ("full", "empty")
_SHUFFLES: Final = ("xor", "up", "down", "lane")
Side = Literal["full", "empty"]


def is_head(r: Line, word: str) -> bool:
    """Whether the line begins with that word of the language (and not with a name that is spelled like it)."""
    return r.peek == word and r.ahead not in ASSIGNS


class Statements(Values):
    def statement(self, r: Line) -> S:
        """The statement of a line that has none inside of it."""
        s = self.started(r)
        r.end()
        return s

    def started(self, r: Line) -> S:
        if r.ahead in ASSIGNS:
            return self.assigned(r)
        if r.peek in BYTES:
            return self.declaration(r)
        heads: dict[str, Callable[[Line], S]] = {
            "shuffle": self.shuffle, "vote": self.vote, "atomic": self.atomic, "sync": self.sync, "fence": self.fence,
            "async": self.asynchronous, "init": self.init, "cursor": self.cursor, "advance": self.advance,
            "wait": self.wait, "arrive": self.arrive, "tma": self.tma, "bulk": self.bulk, "ldmatrix": self.ldmatrix,
            "stmatrix": self.stmatrix, "mma": self.mma, "wgmma": self.wgmma, "dependent": self.dependent,
        }  # fmt: skip
        if r.peek not in heads:
            raise r.fail(f"expected a statement, found {r.found}")
        return heads[r.next()](r)

    # ---- heads of loops, branches and roles

    def loop(self, r: Line) -> For:
        r.expect("for")
        type = r.type() if r.peek in BYTES and r.ahead != "in" else "i32"
        name = read_name(r)
        r.expect("in")
        start = self.value(r, type)
        r.expect("..")
        stop = self.value(r, type)
        self.declare(r, name, type)
        # the step may change with the variable, as in `1..32 step offset`
        step = self.value(r, type) if r.accept("step") else Lit(1, type)
        unroll = 0 if r.accept("unrolled") else -1 if r.accept("rolled") else r.whole() if r.accept("unroll") else 1
        r.end()
        return For(Var(name, type), start, stop, step, (), unroll)

    def branch(self, r: Line) -> If:
        r.expect("if")
        cond = self.value(r, "bool")
        r.end()
        return If(cond, ())

    def role(self, r: Line) -> Role:
        r.expect("role")
        name, warps = read_name(r), r.whole()
        r.expect("warps")
        registers = 0
        if r.peek:
            registers = r.whole()
            r.expect("registers")
        r.end()
        return Role(name, warps, registers, ())

    # ---- registers

    def declaration(self, r: Line) -> Declare:
        type, name, count = r.type(), read_name(r), None
        if r.accept("["):
            count = r.whole()
            r.expect("]")
        init = self.value(r, type) if r.accept("=") else None
        self.mutable.add(self.declare(r, name, type))
        if count is not None:
            self.arrays.add(name)
        return Declare(name, type, init, count)

    def assigned(self, r: Line) -> S:
        if r.peek in self.places:
            return self.stored(r)
        vector = self.vector(r)
        if vector is not None:
            r.expect("=")
            if r.accept("shift"):
                return self.shifted(r, *vector)
            r.expect("load")
            return LoadVector(*vector, self.place(r), self.guard(r))
        if r.peek in self.types:
            return self.assign(r)
        name = read_name(r)
        if r.peek != "=":
            raise r.fail_before(f"there is no register, operand, result or shared buffer {name!r} here")
        r.expect("=")
        if r.ahead.isidentifier() and r.peek in ("load", "read"):
            return self.load(r, name)
        if r.ahead.isidentifier() and r.accept("atomic"):
            return self.atomic(r, name)
        value = self.value(r)
        return Let(self.declare(r, name, value.type), value)

    def assign(self, r: Line) -> Assign:
        if r.peek not in self.mutable:
            raise r.fail(f"{r.peek} is not declared as a register that is assigned again")
        target: Target = self.register(r)
        op = r.one_of(ASSIGNS[:-1])
        value: X = self.value(r, target.type)
        if op == "-=":
            made: X = Bin("-", target, value, "")
            value = Bin("-", target, value, natural(made))
        elif op != "=":
            word = "add" if op == "+=" else "mul"
            value = Call(word, (target, value), natural(Call(word, (target, value), "")))
        return Assign(target, value)

    def shuffle(self, r: Line) -> Shuffle:
        name = read_name(r)
        r.expect("=")
        value = self.value(r)
        mode = cast(Literal["xor", "up", "down", "lane"], r.one_of(_SHUFFLES))
        lane = self.value(r, "i32")
        width = r.whole() if r.accept("width") else 32
        return Shuffle(self.declare(r, name, value.type), value, mode, lane, width)

    def vote(self, r: Line) -> Vote:
        name = read_name(r)
        r.expect("=")
        mode = cast(Literal["any", "all", "ballot"], r.one_of(("any", "all", "ballot")))
        value = self.value(r, "bool")
        return Vote(self.declare(r, name, "u32" if mode == "ballot" else "bool"), value, mode)

    # ---- memory

    def load(self, r: Line, name: str) -> Load:
        r.next()
        place = self.place(r)
        type = r.type() if r.accept("as") else loaded(place.type)
        guard = self.guard(r)
        fill = self.value(r, type) if r.accept("else") else None
        return Load(self.declare(r, name, type), type, place, guard, fill)

    def stored(self, r: Line) -> Store | StoreVector:
        place = self.place(r)
        r.expect("=")
        vector = self.vector(r)
        if vector is not None:
            return StoreVector(place, *vector, self.guard(r))
        return Store(place, self.value(r, loaded(place.type)), self.guard(r))

    def shifted(self, r: Line, array: str, at: X, count: int) -> ShiftVector:
        source = self.vector(r)
        if source is None or source[2] != 2 * count:
            raise r.fail(f"{count} elements are shifted out of twice as many")
        r.expect("by")
        return ShiftVector(array, at, *source[:2], count, self.value(r, "i32"))

    def atomic(self, r: Line, old: str = "") -> Atomic:
        op, place = read_name(r), self.place(r)
        r.expect(",")
        value = self.value(r, loaded(place.type))
        if old:
            self.declare(r, old, value.type)
        return Atomic(op, place, value, self.guard(r), old)

    def asynchronous(self, r: Line) -> S:
        if r.accept("commit"):
            return AsyncCommit()
        if r.peek == "wait" and r.ahead.isdecimal():
            r.next()
            return AsyncWait(r.whole())
        dst = self.place(r)
        r.expect("=")
        src, bytes = self.place(r), r.whole()
        r.expect("bytes")
        return AsyncCopy(dst, src, bytes, self.guard(r))

    # ---- synchronization

    def sync(self, r: Line) -> S:
        if not r.peek:
            return Barrier()
        if not r.ahead and r.accept("warp"):
            return WarpSync()
        if not r.ahead and r.accept("cluster"):
            return ClusterBarrier()
        return self.named(r, False)

    def named(self, r: Line, arrive: bool) -> NamedBarrier:
        id = self.value(r, "i32")
        r.expect("of")
        return NamedBarrier(id, r.whole(), arrive)

    def fence(self, r: Line) -> S:
        if r.accept("async"):
            return ProxyFence(cast(Literal["shared", "global"], r.one_of(("shared", "global"))))
        return Fence(cast(Literal["block", "device"], r.one_of(("block", "device"))))

    def dependent(self, r: Line) -> S:
        return DependentLaunch() if r.one_of(("launch", "wait")) == "launch" else DependentWait()

    # ---- rings and TMA

    def init(self, r: Line) -> InitRings:
        r.expect("rings")
        return InitRings()

    def cursor(self, r: Line) -> Cursor:
        name = read_name(r)
        r.expect("of")
        ring = self.known(r, self.rings, "ring")
        self.declare(r, f"{name}_slot", "i32")
        self.declare(r, f"{name}_parity", "u32")
        self.cursors.add(name)
        return Cursor(name, ring)

    def at_cursor(self, r: Line) -> str:
        return self.known(r, self.cursors, "cursor")

    def advance(self, r: Line) -> Advance:
        return Advance(self.at_cursor(r), self.value(r, "i32") if r.accept("by") else None)

    def wait(self, r: Line) -> RingWait:
        return RingWait(self.at_cursor(r), cast(Side, r.one_of(_SIDES)))

    def arrive(self, r: Line) -> S:
        if r.peek == "at" and re.search(r"\bof \d+\s*$", r.text):
            r.next()
            return self.named(r, True)
        cursor, side = self.at_cursor(r), cast(Side, r.one_of(_SIDES))
        if side == "full" and r.accept("after", "copies"):
            return CopyArrive(cursor)
        bytes = 0
        if r.peek.isdecimal():
            bytes = r.whole()
            r.expect("bytes")
        return RingArrive(cursor, side, bytes, self.value(r, "i32") if r.accept("of", "block") else None)

    def tma(self, r: Line) -> TmaLoad | TmaStore:
        if r.peek in self.maps:
            map, at = r.next(), self.values(r, "[", "]", "i32")
            op: Literal["", "add"] = "add" if r.one_of(("=", "+=")) == "+=" else ""
            return TmaStore(map, at, self.place(r), op)
        dst = self.place(r)
        r.expect("=")
        map = self.known(r, self.maps, "tensor map")
        at = self.values(r, "[", "]", "i32")
        r.expect("on")
        cursor = self.at_cursor(r)
        return TmaLoad(dst, map, at, cursor, self.value(r, "u32") if r.accept("in", "blocks") else None)

    def bulk(self, r: Line) -> BulkCommit | BulkWait:
        if r.one_of(("commit", "wait")) == "commit":
            return BulkCommit()
        return BulkWait(r.whole(), r.accept("read"))

    # ---- matrices

    def target(self, r: Line) -> Target:
        if r.peek not in self.mutable:
            raise r.fail(f"expected a register that is assigned again, found {r.found}")
        return self.register(r)

    def targets(self, r: Line) -> tuple[Target, ...]:
        found = [self.target(r)]
        while r.accept(","):
            found.append(self.target(r))
        return tuple(found)

    def ldmatrix(self, r: Line) -> LdMatrix:
        trans, dst = r.accept(".", "trans"), self.targets(r)
        r.expect("=")
        return LdMatrix(dst, self.place(r), trans)

    def stmatrix(self, r: Line) -> StMatrix:
        trans, dst = r.accept(".", "trans"), self.place(r)
        r.expect("=")
        return StMatrix(dst, self.commas(r, "u32"), trans)

    def dotted(self, r: Line) -> str:
        r.expect(".")
        return r.next()

    def mma(self, r: Line) -> Mma:
        shape, type = self.dotted(r), self.dotted(r)
        if (shape, type) not in MMA_SHAPES:
            raise r.fail_before(f"there is no mma.{shape}.{type}")
        r.expect("(")
        d = self.targets(r)
        r.expect(")")
        r.expect("=")
        a = self.values(r, "(", ")", "u32")
        r.expect("*")
        b = self.values(r, "(", ")", "u32")
        r.expect("+")
        return Mma(shape, type, d, a, b, self.values(r, "(", ")", d[0].type))

    def wgmma(self, r: Line) -> S:
        if r.accept("fence"):
            return WgmmaFence()
        if r.accept("commit"):
            return WgmmaCommit()
        if r.accept("wait"):
            return WgmmaWait(r.whole())
        shape, type = self.dotted(r), self.dotted(r)
        if not re.fullmatch(r"m64n\d+", shape) or type not in WGMMA_K:
            raise r.fail_before(f"there is no wgmma.{shape}.{type}")
        n, vector = int(shape.removeprefix("m64n")), self.vector(r)
        if vector is None or vector[2] != n // 2:
            raise r.fail(f"expected {n // 2} accumulators of a register array, found {r.found}")
        acc, at, _ = vector
        accumulate = r.one_of(("=", "+=")) == "+="
        a = self.factors(r) if r.peek == "(" else self.matrix(r)
        r.expect("*")
        return Wgmma(acc, at, n, type, a, self.matrix(r), accumulate)

    def factors(self, r: Line) -> tuple[X, X, X, X]:
        found = self.values(r, "(", ")", "u32")
        if len(found) != 4:
            raise r.fail_before(f"expected four registers, found {len(found)}")
        return found

    def matrix(self, r: Line) -> Matrix:
        place = self.place(r)
        return Matrix(place, "mn" if r.accept(".", "mn") else "k")


__all__ = ["ASSIGNS", "Statements", "is_head"]
