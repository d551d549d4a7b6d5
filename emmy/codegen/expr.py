"""Constructors of Kernel IR values, with constants folded, and the statement builder that families write with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from emmy.ir.kernel import (
    Assign,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    Call,
    Comment,
    Convert,
    Declare,
    Elem,
    For,
    If,
    Layout,
    Let,
    Lit,
    Load,
    Place,
    S,
    Select,
    Shuffle,
    Store,
    Target,
    Un,
    Var,
    X,
)

INTS = ("i32", "i64", "u32", "u64", "i16", "i8", "u8")
_RANK = {"i32": 0, "u32": 1, "i64": 2, "u64": 3}


def i32(value: int) -> Lit:
    return Lit(value, "i32")


def f32(value: float) -> Lit:
    return Lit(value, "f32")


def _pair(a: X | int, b: X | int) -> tuple[X, X, str]:
    """Both as values of the wider integer type (or the type they share); a bare number takes the other's type."""
    if isinstance(a, int):
        a = Lit(a, b.type if not isinstance(b, int) else "i32")
    if isinstance(b, int):
        b = Lit(b, a.type)
    if a.type in _RANK and b.type in _RANK:
        wide = max(a.type, b.type, key=lambda t: _RANK[t])
        if isinstance(a, Lit):
            a = Lit(a.value, wide)
        if isinstance(b, Lit):
            b = Lit(b.value, wide)
        return a, b, wide
    return a, b, a.type


def _int(x: X) -> int | None:
    return int(x.value) if isinstance(x, Lit) and x.type in INTS else None


def add(a: X | int, b: X | int, *more: X | int) -> X:
    x, y, t = _pair(a, b)
    m, n = _int(x), _int(y)
    out: X
    if m is not None and n is not None:
        out = Lit(m + n, t)
    elif n == 0:
        out = x
    elif m == 0:
        out = y
    elif n is not None and isinstance(x, Bin) and x.op == "+" and (k := _int(x.b)) is not None:
        out = add(x.a, Lit(k + n, t))
    else:
        out = Bin("+", x, y, t)
    return add(out, *more) if more else out


def sub(a: X | int, b: X | int) -> X:
    x, y, t = _pair(a, b)
    m, n = _int(x), _int(y)
    if m is not None and n is not None:
        return Lit(m - n, t)
    return x if n == 0 else Bin("-", x, y, t)


def mul(a: X | int, b: X | int, *more: X | int) -> X:
    x, y, t = _pair(a, b)
    m, n = _int(x), _int(y)
    out: X
    if m is not None and n is not None:
        out = Lit(m * n, t)
    elif m == 0 or n == 0:
        out = Lit(0, t)
    elif n == 1:
        out = x
    elif m == 1:
        out = y
    else:
        out = Bin("*", x, y, t) if m is None else Bin("*", y, x, t)
    return mul(out, *more) if more else out


def div(a: X | int, b: X | int) -> X:
    """Quotient of integers that are not negative (C's `/`; a power of two becomes a shift)."""
    x, y, t = _pair(a, b)
    m, n = _int(x), _int(y)
    if m is not None and n is not None:
        return Lit(m // n, t)
    if n == 1:
        return x
    if n is not None and n & (n - 1) == 0:
        return Bin(">>", x, Lit(n.bit_length() - 1, "i32"), t)
    return Bin("/", x, y, t)


def mod(a: X | int, b: X | int) -> X:
    """Remainder of integers that are not negative."""
    x, y, t = _pair(a, b)
    m, n = _int(x), _int(y)
    if m is not None and n is not None:
        return Lit(m % n, t)
    if n == 1:
        return Lit(0, t)
    if n is not None and n & (n - 1) == 0:
        return Bin("&", x, Lit(n - 1, t), t)
    return Bin("%", x, y, t)


def xor(a: X | int, b: X | int) -> X:
    x, y, t = _pair(a, b)
    m, n = _int(x), _int(y)
    if m is not None and n is not None:
        return Lit(m ^ n, t)
    return x if n == 0 else Bin("^", x, y, t)


def compare(op: str, a: X | int, b: X | int) -> X:
    """op: < <= > >= == !=."""
    x, y, _ = _pair(a, b)
    m, n = _int(x), _int(y)
    if m is not None and n is not None:
        known = {"<": m < n, "<=": m <= n, ">": m > n, ">=": m >= n, "==": m == n, "!=": m != n}
        return Lit(known[op], "bool")
    return Bin(op, x, y, "bool")


def lt(a: X | int, b: X | int) -> X:
    return compare("<", a, b)


def both(a: X | None, b: X | None) -> X | None:
    """Conjunction of guards; None is always true."""
    if a is None or (isinstance(a, Lit) and a.value):
        return b
    if b is None or (isinstance(b, Lit) and b.value):
        return a
    return a if a == b else Bin("&&", a, b, "bool")


def negate(a: X) -> X:
    if isinstance(a, Lit):
        return Lit(not a.value, "bool")
    return a.a if isinstance(a, Un) and a.op == "!" else Un("!", a, "bool")


def convert(a: X, type: str) -> X:
    if a.type == type:
        return a
    if isinstance(a, Lit) and type in ("f32", "f64"):
        return Lit(float(a.value), type)
    if isinstance(a, Lit) and a.type in INTS and type in INTS:
        return Lit(int(a.value), type)
    return Convert(a, type)


def select(cond: X, yes: X, no: X) -> X:
    if isinstance(cond, Lit):
        return yes if cond.value else no
    return Select(cond, yes, no, yes.type)


def global_at(buffer: str, index: X, type: str) -> Place:
    return Place("global", buffer, (index,), type)


def shared_at(buffer: Buffer, *index: X | int) -> Place:
    return Place("shared", buffer.name, tuple(i32(i) if isinstance(i, int) else i for i in index), buffer.type)


def shared_offset(buffer: Buffer, index: tuple[X, ...]) -> X:
    """Element offset of an index inside a shared buffer: row pitch and swizzle applied."""
    from emmy.ir.kernel import BYTES

    layout, column = buffer.layout, index[-1]
    if layout.swizzle and len(index) > 1:
        chunk = 16 // BYTES[buffer.type]
        row = div(index[-2], 1 << layout.shift)
        # chunk bits above the swizzle stay out of the xor: they become constants of the address
        run = layout.swizzle * chunk
        high, low = (mul(div(column, run), run), mod(column, run)) if buffer.shape[-1] > run else (i32(0), column)
        flipped = xor(div(low, chunk), mod(row, layout.swizzle))
        column = add(high, mul(flipped, chunk), mod(column, chunk))
    total: X = i32(0)
    for i, stride in zip(index[:-1], buffer.strides[:-1], strict=True):
        total = add(total, mul(i, stride))
    return add(total, column)


class Names:
    """Fresh names of one kernel: the first use of a hint keeps it (or gets number 0 where `counted`)."""

    def __init__(self, taken: tuple[str, ...] = ()) -> None:
        self.taken = set(taken)
        self.next: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """`hint` itself where it is free, else hint_1, hint_2 …"""
        name, k = hint, 0
        while name in self.taken:
            k += 1
            name = f"{hint}_{k}"
        self.taken.add(name)
        return name

    def numbered(self, stem: str) -> str:
        """stem0, stem1 … in order of use: in0, v0, acc0 as in the printed Loop IR."""
        k = self.next.get(stem, 0)
        while f"{stem}{k}" in self.taken:
            k += 1
        self.next[stem] = k + 1
        self.taken.add(f"{stem}{k}")
        return f"{stem}{k}"


class Code:
    """A list of statements under construction.  Inner blocks are made with `loop` and `when`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.statements: list[S] = []

    def emit(self, *statements: S) -> None:
        self.statements += statements

    def comment(self, text: str) -> None:
        self.emit(Comment(text))

    def let(self, hint: str, value: X) -> Var:
        """A named register that holds `value`."""
        name = self.names.fresh(hint)
        self.emit(Let(name, value))
        return Var(name, value.type)

    def let_numbered(self, stem: str, value: X) -> Var:
        name = self.names.numbered(stem)
        self.emit(Let(name, value))
        return Var(name, value.type)

    def declare(self, hint: str, type: str, init: X | None = None, count: int | None = None) -> Var:
        name = self.names.fresh(hint)
        self.emit(Declare(name, type, init, count))
        return Var(name, type)

    def assign(self, target: Target, value: X) -> None:
        self.emit(Assign(target, value))

    def load(self, hint: str, type: str, place: Place, guard: X | None = None, fill: X | None = None) -> Var:
        name = self.names.fresh(hint)
        self.emit(Load(name, type, place, guard, fill))
        return Var(name, type)

    def store(self, place: Place, value: X, guard: X | None = None) -> None:
        self.emit(Store(place, value, guard))

    def shuffle(self, value: X, mode: Literal["xor", "up", "down", "lane"], lane: X | int, hint: str = "other") -> Var:
        name = self.names.numbered(hint)
        self.emit(Shuffle(name, value, mode, i32(lane) if isinstance(lane, int) else lane))
        return Var(name, value.type)

    def barrier(self) -> None:
        self.emit(Barrier())

    @contextmanager
    def loop(
        self, hint: str, stop: X | int, start: X | int = 0, step: X | int = 1, unroll: int = 1, type: str = "i32"
    ) -> Iterator[tuple[Code, Var]]:
        """`with code.loop("k", n) as (inner, k): …`"""
        var = Var(self.names.fresh(hint), type)
        inner = Code(self.names)
        yield inner, var
        first, last, by = (Lit(v, type) if isinstance(v, int) else v for v in (start, stop, step))
        self.emit(For(var, first, last, by, tuple(inner.statements), unroll))

    @contextmanager
    def when(self, cond: X | None) -> Iterator[Code]:
        """The block runs where `cond` holds; no condition, or a true one, adds no `if`."""
        inner = Code(self.names)
        yield inner
        if cond is None or (isinstance(cond, Lit) and cond.value):
            self.emit(*inner.statements)
        else:
            self.emit(If(cond, tuple(inner.statements)))


def elem(array: Var, index: X | int) -> Elem:
    return Elem(array.name, i32(index) if isinstance(index, int) else index, array.type)


def call(name: str, *args: X, type: str) -> Call:
    return Call(name, args, type)


TID = Builtin("tid")
BID = Builtin("bid_x")
__all__ = [
    "BID", "TID", "Code", "Layout", "Names", "add", "both", "call", "compare", "convert", "div", "elem", "f32",
    "global_at", "i32", "lt", "mod", "mul", "negate", "select", "shared_at", "shared_offset", "sub", "xor",
]  # fmt: skip
