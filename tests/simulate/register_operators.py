"""Mutation operators for what threads and warps hold: vectors, accumulators, choices, shuffles, fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from emmy.ir.kernel import (
    Assign,
    Bin,
    Call,
    Convert,
    Declare,
    Elem,
    For,
    Kernel,
    LdMatrix,
    Lit,
    LoadVector,
    Mma,
    Select,
    Shuffle,
    Store,
    StoreVector,
    Var,
    X,
)
from tests.simulate.edits import Mutant, differing, plus, replaced, sites, values, with_index, with_value
from tests.simulate.operators import Operator, anywhere, dropping, mutant

# ---- stores and registers


def stored_twice(kernel: Kernel) -> Iterator[Mutant]:
    """Every thread also stores to its neighbour's element."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Store | StoreVector):
            by = 1 if isinstance(t, Store) else t.count
            moved = with_index(t.place, len(t.place.index) - 1, lambda x, by=by: plus(x, by))  # type: ignore[misc]
            yield anywhere("stored twice", kernel, s, t, replace(t, place=moved))


def half_vector(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, LoadVector | StoreVector) and t.count > 1:
            yield anywhere("half a vector", kernel, s, replace(t, count=t.count // 2))


def shifted_vector(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, LoadVector | StoreVector):
            yield anywhere("vector's registers + 1", kernel, s, replace(t, at=plus(t.at, 1)))  # fmt: skip


def wrong_start(kernel: Kernel) -> Iterator[Mutant]:
    """An accumulator starts elsewhere: 0 at 1, infinity at 0."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Declare) and isinstance(t.init, Lit) and t.type != "bool":
            old = t.init.value
            new = Lit(0.0 if abs(old) == float("inf") else old + 1, t.init.type)
            # an array starts at zeros, whatever its `init`
            changed = (replace(t, init=new),) if t.count is None else (t, _each(t, new))
            witness = replaced(kernel, s, replace(t, init=None))
            yield mutant("wrong start of an accumulator", kernel, s, *changed, witness=witness,
                         claim="the first value is never read")  # fmt: skip


def _each(t: Declare, value: X) -> For:
    n = Var(f"{t.name}_mutated", "i32")
    one = Assign(Elem(t.name, n, t.type), Convert(value, t.type) if value.type != t.type else value)
    return For(n, Lit(0, "i32"), Lit(t.count or 0, "i32"), Lit(1, "i32"), (one,))


def not_accumulated(kernel: Kernel) -> Iterator[Mutant]:
    """`a = a + x` becomes `a = x`."""
    for s in sites(kernel):
        t = s.statement
        if not isinstance(t, Assign):
            continue
        v = t.value
        parts = (v.a, v.b) if isinstance(v, Bin) else v.args if isinstance(v, Call) else ()
        rest = [p for p in parts if p != t.target]
        if len(parts) > len(rest) and rest and rest[-1].type == t.target.type:
            yield anywhere("not accumulated", kernel, s, Assign(t.target, rest[-1]))


def swapped_arms(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        for x in values(s.statement):
            if isinstance(x, Select):
                new = replace(x, yes=x.no, no=x.yes)
                yield mutant("arms of a choice swapped", kernel, s, with_value(s.statement, x, new),
                             witness=differing(kernel, s, x, new))  # fmt: skip


# ---- warps and matrices


def shuffled_elsewhere(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Shuffle):
            lane = plus(t.lane, 1) if t.mode != "xor" else Bin("^", t.lane, Lit(1, t.lane.type), t.lane.type)
            yield anywhere("shuffle lane", kernel, s, replace(t, lane=lane))


def shuffled_otherwise(kernel: Kernel) -> Iterator[Mutant]:
    other = {"xor": "down", "up": "down", "down": "up", "lane": "xor"}
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Shuffle):
            yield anywhere("shuffle mode", kernel, s, replace(t, mode=other[t.mode]))


def _registers(name: str, field: str, i: int, j: int) -> Operator:
    """Two registers of a fragment of mma change places."""

    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for s in sites(kernel):
            if isinstance(s.statement, Mma):
                r = list(getattr(s.statement, field))
                r[i], r[j] = r[j], r[i]
                yield anywhere(name, kernel, s, replace(s.statement, **{field: tuple(r)}))  # fmt: skip

    return operator


def lost_accumulator(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Mma) and not all(isinstance(c, Lit) for c in t.c):
            zeros = tuple(Lit(0 if c.type == "i32" else 0.0, c.type) for c in t.c)
            yield anywhere("mma without its accumulator", kernel, s, replace(t, c=zeros))


def turned_matrix(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, LdMatrix):
            yield anywhere("ldmatrix trans", kernel, s, replace(t, trans=not t.trans))


def swapped_matrices(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, LdMatrix) and len(t.dst) > 1:
            turned = (t.dst[1], t.dst[0], *t.dst[2:])
            yield anywhere("ldmatrix registers swapped", kernel, s, replace(t, dst=turned))


REGISTER_OPERATORS: Final[dict[str, Operator]] = {
    "store dropped": dropping("store dropped", Store, StoreVector),
    "stored twice": stored_twice,
    "half a vector": half_vector,
    "vector's registers + 1": shifted_vector,
    "wrong start of an accumulator": wrong_start,
    "not accumulated": not_accumulated,
    "arms of a choice swapped": swapped_arms,
    "shuffle lane": shuffled_elsewhere,
    "shuffle mode": shuffled_otherwise,
    "fragment rows swapped": _registers("fragment rows swapped", "a", 0, 1),
    "fragment halves of k swapped": _registers("fragment halves of k swapped", "b", 0, 1),
    "accumulator rows swapped": _registers("accumulator rows swapped", "d", 0, 2),
    "mma without its accumulator": lost_accumulator,
    "ldmatrix trans": turned_matrix,
    "ldmatrix registers swapped": swapped_matrices,
}
