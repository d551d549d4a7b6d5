"""An estimate of the registers that a thread needs: the most that are live at once, walking the statements in order.

A register lives from its declaration to its last use, or to the end of a loop that uses it and did not declare it.
Arrays are counted whole.  Addresses and other values inside of expressions are not seen: `SPARE` stands for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from emmy.ir.kernel import (
    BYTES,
    Atomic,
    Cursor,
    Declare,
    Elem,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoadVector,
    Roles,
    S,
    ShiftVector,
    Shuffle,
    StoreVector,
    Var,
    Vote,
    Wgmma,
    operands,
)

SPARE: Final = 12  # stack pointer, addresses and temporaries


def registers(kernel: Kernel) -> int:
    """Registers of 32 bits a thread, at most what the instruction set can name."""
    walk = _Walk()
    walk.body(kernel.body)
    change = [0] * (walk.clock + 2)
    for name, (first, words) in walk.born.items():
        change[first] += words
        change[walk.last[name] + 1] -= words
    live = most = 0
    for c in change:
        live += c
        most = max(most, live)
    return min(255, most + SPARE)


class _Walk:
    def __init__(self) -> None:
        self.clock = 0
        self.born: dict[str, tuple[int, int]] = {}
        self.last: dict[str, int] = {}

    def body(self, statements: tuple[S, ...]) -> None:
        for s in statements:
            self.clock += 1
            for name, words in _declared(s):
                self.born[name] = (self.clock, words)
                self.last[name] = self.clock
            for name in _used(s):
                if name in self.last:
                    self.last[name] = self.clock
            self.inside(s)

    def inside(self, s: S) -> None:
        if isinstance(s, If):
            self.body(s.then)
            self.body(s.orelse)
        elif isinstance(s, Roles):
            for role in s.roles:
                self.body(role.body)
        elif isinstance(s, For):
            start = self.clock
            self.body(s.body)
            for name, (first, _) in self.born.items():
                if first <= start <= self.last[name]:  # used inside, declared before: needed in the next turn too
                    self.last[name] = self.clock


def _declared(s: S) -> Iterator[tuple[str, int]]:
    if isinstance(s, Let):
        yield s.name, _words(s.value.type, 1)
    elif isinstance(s, Declare):
        yield s.name, _words(s.type, s.count or 1)
    elif isinstance(s, Load):
        yield s.name, _words(s.type, 1)
    elif isinstance(s, Shuffle):
        yield s.name, _words(s.value.type, 1)
    elif isinstance(s, Vote):
        yield s.name, 1
    elif isinstance(s, Atomic) and s.old:
        yield s.old, _words(s.value.type, 1)
    elif isinstance(s, Cursor):
        yield f"{s.name}_slot", 1
        yield f"{s.name}_parity", 1
    elif isinstance(s, For):
        yield s.var.name, _words(s.var.type, 1)


def _words(type: str, count: int) -> int:
    return max(1, -(-count * BYTES[type] // 4))


def _used(node: object) -> Iterator[str]:
    """Registers that the values of a statement name; those of the statements inside are their own."""
    if isinstance(node, Var):
        yield node.name
    if isinstance(node, Elem):
        yield node.array
    if isinstance(node, LoadVector | StoreVector):
        yield node.array
    if isinstance(node, ShiftVector):
        yield from (node.array, node.source)
    if isinstance(node, Wgmma):
        yield node.acc
    for part in operands(node):
        yield from _used(part)
