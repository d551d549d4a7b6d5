"""Vectors in memory begin where their size divides: a divisor of every index, from how it is computed.

A number is known by a power of two that divides it, at most `MOST`: 1 for what is read or given by a size.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Final

from emmy.ir.kernel import (
    BYTES,
    Assign,
    AsyncCopy,
    Bin,
    Call,
    Convert,
    Declare,
    Elem,
    For,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    LoadVector,
    Mma,
    Place,
    S,
    Select,
    ShiftVector,
    StMatrix,
    StoreVector,
    Un,
    Var,
    X,
    walk,
)
from emmy.ir.verify.facts import failure

MOST: Final = 1 << 20
INTEGERS: Final = ("i32", "i64", "u32", "u64")
CHUNK: Final = 16  # bytes of a matrix's row
_KEEPS: Final = ("min", "max")


def check_alignment(kernel: Kernel) -> None:
    """Raises KernelError for a vector, a copy or a row of a matrix that may begin between multiples of its size.

    Parameters are aligned to 16 bytes and buffers to more, all sizes are powers of two.
    """
    known, buffers = Divisors(kernel), {b.name: b for b in kernel.shared}
    for s in walk(kernel.body):
        for place, bytes in _accesses(s):
            strides = (1,) if place.space == "global" else buffers[place.buffer].strides
            # a swizzle moves whole chunks of 16 bytes
            at = gcd(*(known.of(i) * n for i, n in zip(place.index, strides, strict=True))) * BYTES[place.type]
            if at % bytes:
                raise failure(kernel, s, f"{bytes} bytes of {place.buffer} that may begin at {at}")


def _accesses(s: S) -> Iterator[tuple[Place, int]]:
    """The places of a statement that must be aligned, and to how many bytes."""
    if isinstance(s, LoadVector | StoreVector):
        yield s.place, s.count * BYTES[s.place.type]
    elif isinstance(s, AsyncCopy):
        yield s.dst, s.bytes
        yield s.src, s.bytes
    elif isinstance(s, LdMatrix):
        yield s.src, CHUNK
    elif isinstance(s, StMatrix):
        yield s.dst, CHUNK


class Divisors:
    """Of the integers of one kernel; its names are unique.

    A name is divided by what divides every value that it takes: the largest numbers for which that holds of all names
    at once, so that a register which is advanced by a multiple stays one.
    """

    def __init__(self, kernel: Kernel) -> None:
        values = _values(kernel)
        self.found = dict.fromkeys(values, MOST)
        changed = True
        while changed:
            changed = False
            for name, taken in values.items():
                n = gcd(*(self.of(v) for v in taken)) if taken else 1
                changed = changed or n < self.found[name]
                self.found[name] = min(n, self.found[name])

    def of(self, x: X) -> int:
        """A power of two that divides the value, for every thread."""
        if x.type not in INTEGERS:
            return 1
        if isinstance(x, Lit):
            return _power(int(x.value))
        if isinstance(x, Var):
            return self.found.get(x.name, 1)
        if isinstance(x, Elem):
            return self.found.get(x.array, 1)
        if isinstance(x, Convert):
            return self.of(x.a)
        if isinstance(x, Un) and x.op == "-":
            return self.of(x.a)
        if isinstance(x, Select):
            return gcd(self.of(x.yes), self.of(x.no))
        if isinstance(x, Call) and x.name in _KEEPS:
            return gcd(*(self.of(a) for a in x.args))
        return self._bin(x) if isinstance(x, Bin) else 1

    def _bin(self, x: Bin) -> int:
        a, b = self.of(x.a), self.of(x.b)
        if x.op in ("+", "-", "%"):  # what is left of a division is the dividend less multiples of the divisor
            return gcd(a, b)
        if x.op == "*":
            return min(MOST, a * b)
        if x.op == "&":
            return max(a, b)
        n = int(x.b.value) if isinstance(x.b, Lit) else None
        if n is None:
            return 1
        if x.op == "<<":
            return min(MOST, a << n)
        if x.op == ">>":
            return max(1, a >> n)
        # a quotient of multiples is exact
        return a // n if x.op == "/" and n > 0 and a % n == 0 else 1


def _values(kernel: Kernel) -> dict[str, list[X]]:
    """What registers are computed from where nothing else writes them: assigned ones of i32 and i64, others of any."""
    values: dict[str, list[X]] = {}
    others: set[str] = set()
    for s in walk(kernel.body):
        if isinstance(s, Let):
            values[s.name] = [s.value]
        elif isinstance(s, For):
            values[s.var.name] = [s.start, s.step]
        elif isinstance(s, Declare) and s.type in ("i32", "i64"):
            values[s.name] = [] if s.init is None else [s.init]
        elif isinstance(s, Assign):
            name = s.target.name if isinstance(s.target, Var) else s.target.array
            if name in values:
                values[name].append(s.value)
        elif isinstance(s, LoadVector | ShiftVector):
            others.add(s.array)
        elif isinstance(s, Mma):
            others.update(t.name if isinstance(t, Var) else t.array for t in s.d)
    return {n: v for n, v in values.items() if n not in others}


def _power(n: int) -> int:
    return min(MOST, n & -n) if n else MOST


__all__ = ["Divisors", "check_alignment"]
