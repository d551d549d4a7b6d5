"""Kernels changed at one place: sites, replacement, values rebuilt, and the traps with which equivalence is proved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import (
    NODES,
    Assign,
    AsyncCopy,
    Atomic,
    Bin,
    Comment,
    Convert,
    Declare,
    For,
    If,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Matrix,
    Mma,
    Place,
    S,
    StMatrix,
    Store,
    StoreVector,
    Un,
    Var,
    X,
    bodies,
    children,
    walk,
    with_bodies,
)

Path = tuple[int, ...]
TRUE = Lit(True, "bool")


@dataclass(frozen=True, slots=True)
class Site:
    """A statement and where it stands: index in a list, which of its lists, index in that list, …"""

    path: Path
    statement: S


@dataclass(frozen=True)
class Mutant:
    """`witness`: a kernel that stores out of bounds exactly where the mutation could make a difference, if it is known.

    A launch of the witness without a finding proves that the mutant does the same as the kernel in that launch; for all
    data, where nothing that was loaded decides where the witness stores.  `claim` says what is proved.

    `poisoned`: a kernel in which NaN (or a number without meaning) takes the place of what the mutation changes; right
    values prove that it is never used.
    """

    operator: str
    site: str
    kernel: Kernel
    witness: Kernel | None = None
    claim: str = ""
    poisoned: Kernel | None = None
    path: Path = ()


def sites(kernel: Kernel) -> Iterator[Site]:
    """Every statement, outer before inner."""

    def inside(body: tuple[S, ...], at: Path) -> Iterator[Site]:
        for i, s in enumerate(body):
            yield Site((*at, i), s)
            for k, inner in enumerate(bodies(s)):
                yield from inside(inner, (*at, i, k))

    return inside(kernel.body, ())


def siblings(kernel: Kernel, path: Path) -> tuple[S, ...]:
    """The body that holds a statement."""
    body = kernel.body
    for i, k in zip(path[:-1:2], path[1::2], strict=True):
        body = bodies(body[i])[k]
    return body


def following(kernel: Kernel, path: Path) -> S | None:
    """The statement behind one, in the same body."""
    body = siblings(kernel, path)
    return body[path[-1] + 1] if path[-1] + 1 < len(body) else None


def replaced(kernel: Kernel, site: Site, *new: S) -> Kernel:
    """The kernel with other statements (or none) in the place of one."""
    return replace(kernel, body=_put(kernel.body, site.path, new))


def _put(body: tuple[S, ...], path: Path, new: tuple[S, ...]) -> tuple[S, ...]:
    i = path[0]
    if len(path) == 1:
        return (*body[:i], *new, *body[i + 1 :])
    numbers = itertools.count()

    def change(inner: tuple[S, ...]) -> tuple[S, ...]:
        return _put(inner, path[2:], new) if next(numbers) == path[1] else inner

    return (*body[:i], with_bodies(body[i], change), *body[i + 1 :])


# ---- values


def plus(x: X, n: int) -> X:
    return Bin("+", x, Lit(n, x.type), x.type)


def negated(x: X) -> X:
    return Un("!", x, "bool")


def values(node: Any) -> Iterator[X]:
    """Every value inside a statement or value, statement lists left out."""
    for c in children(node):
        if isinstance(c, _STATEMENTS):
            continue
        if not isinstance(c, Place | Matrix):
            yield c  # type: ignore[misc]
        yield from values(c)


_STATEMENTS = tuple(t for t in NODES if t.__module__.rsplit(".", 1)[-1] in ("statements", "copies", "matrices"))


def with_value(node: Any, old: X, new: X) -> Any:
    """A statement or value with every occurrence of the very object `old` exchanged."""
    if node is old:
        return new
    changes = {}
    for f in fields(node):
        v = getattr(node, f.name)
        if isinstance(v, tuple):
            made: Any = tuple(with_value(i, old, new) if _rebuilt(i) else i for i in v)
            same = all(a is b for a, b in zip(made, v, strict=True))
        else:
            made = with_value(v, old, new) if _rebuilt(v) else v
            same = made is v
        if not same:
            changes[f.name] = made
    return replace(node, **changes) if changes else node


def _rebuilt(v: object) -> bool:
    return isinstance(v, NODES) and not isinstance(v, _STATEMENTS)


def renamed(x: X, old: Var, new: Var) -> X:
    """A value with one register in the place of another."""
    for v in [x, *values(x)]:
        if v == old:
            x = with_value(x, v, new)
    return x


def with_index(place: Place, k: int, change: Callable[[X], X]) -> Place:
    index = list(place.index)
    index[k] = change(index[k])
    return replace(place, index=tuple(index))


# ---- traps


def trap(kernel: Kernel) -> S:
    """A store before the first element of the first result."""
    p = next(p for p in kernel.params if p.role == "out")
    value = Lit(0.0, "f32") if DTYPES[p.type].kind == "float" else Lit(0, "i32")
    return Store(Place("global", p.name, (Lit(-1, "i32"),), p.type), Lit(False, "bool") if p.type == "bool" else value)


def trapped(kernel: Kernel, site: Site, when: X) -> Kernel:
    """The kernel with a trap before a statement, sprung where `when` is true."""
    return replaced(kernel, site, If(when, (trap(kernel),)), site.statement)


def sprung_where_different(kernel: Kernel, site: Site, a: X, b: X, guard: X | None = None) -> Kernel:
    """Sprung where two values differ (and the statement's guard holds)."""
    other = Bin("!=", a, b, "bool")
    return trapped(kernel, site, other if guard is None else Bin("&&", guard, other, "bool"))


def executed(kernel: Kernel, site: Site) -> Kernel:
    """Sprung wherever the statement is executed."""
    return replaced(kernel, site, trap(kernel), site.statement)


def beyond(kernel: Kernel, site: Site, wide: X, narrow: X) -> Kernel:
    """For a loop: sprung where the variable, bounded by `wide`, reaches `narrow`."""
    loop = site.statement
    assert isinstance(loop, For)
    var = Var(loop.var.name + "_trap", loop.var.type)
    inside = If(Bin(">=", var, narrow, "bool"), (trap(kernel),))
    test = For(var, loop.start, wide, renamed(loop.step, loop.var, var), (inside,))
    return replaced(kernel, site, test, loop)


def differing(kernel: Kernel, s: Site, a: X, b: X) -> Kernel | None:
    """None inside of loop bounds, which are evaluated again at every turn."""
    if isinstance(s.statement, For):
        return None
    return sprung_where_different(kernel, s, a, b, getattr(s.statement, "guard", None))


def poison(type: str) -> X | None:
    """A value that shows wherever it is used; None for bool."""
    if type == "bool":
        return None
    if type == "u32":
        return Lit(0x7FC07FC0, type)  # two NaN of bf16
    if type in DTYPES and DTYPES[type].kind == "float":
        nan = Lit(float("nan"), "f32")
        return nan if type == "f32" else Convert(nan, type)
    return Lit(101, type)


WRITES = (Store, StoreVector, Atomic, AsyncCopy, StMatrix)


def without_effect(kernel: Kernel, s: S, when: X) -> S:
    """A statement whose stores are shown to matter: where `when` is true those to shared memory store NaN (a number
    without meaning) and all others spring a trap.
    """

    def change(body: tuple[S, ...]) -> tuple[S, ...]:
        made: list[S] = []
        for inner in body:
            if isinstance(inner, WRITES):
                made += _shown(kernel, inner, when)
            else:
                made.append(without_effect(kernel, inner, when))
        return tuple(made)

    if isinstance(s, WRITES):
        (s,) = (If(Lit(True, "bool"), tuple(_shown(kernel, s, when))),)
        return s
    return with_bodies(s, change)


def _shown(kernel: Kernel, s: S, when: X) -> list[S]:
    if isinstance(s, Store | StoreVector) and s.place.space == "shared":
        junk = poison(s.place.type)
        count = s.count if isinstance(s, StoreVector) else 1
        if junk is not None:
            places = [with_index(s.place, len(s.place.index) - 1, lambda x, n=n: plus(x, n)) for n in range(count)]  # type: ignore[misc]
            return [If(when, tuple(Store(p, junk, s.guard) for p in places), (s,))]
    guard = getattr(s, "guard", None)
    return [If(when if guard is None else Bin("&&", guard, when, "bool"), (trap(kernel),)), s]


def local(s: S) -> bool:
    """True for a loop or branch that leaves nothing behind but stores: no register from outside, no synchronization."""
    own = {i.name for i in walk((s,)) if isinstance(i, Declare)}
    return all(not (not isinstance(i, LOCAL) or not _written(i) <= own) for i in walk((s,)))


def _written(s: S) -> set[str]:
    """Names of declared registers that a statement writes."""
    if isinstance(s, LoadVector):
        return {s.array}
    targets = (s.target,) if isinstance(s, Assign) else s.dst if isinstance(s, LdMatrix) else ()
    if isinstance(s, Mma):
        targets = s.d
    return {t.name if isinstance(t, Var) else t.array for t in targets}


LOCAL = (*WRITES, For, If, Let, Declare, Assign, Load, LoadVector, LdMatrix, Mma, Comment)
