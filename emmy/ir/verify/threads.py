"""Which threads run a statement, as far as the thread's number decides it, and bounded paths through a kernel.

`paths` gives for every role the statements that its threads run, in order, with the whole block's statements before
and after.  A loop runs twice, since what a round leaves behind meets the next one there, or to its end where it moves
tiles and its bounds are known and small.  Where a condition depends on more than the thread, one path takes it and
another does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emmy.ir.kernel import (
    Advance,
    Assign,
    AsyncCommit,
    AsyncWait,
    Barrier,
    Bin,
    Builtin,
    Call,
    Convert,
    CopyArrive,
    Declare,
    For,
    If,
    Kernel,
    Let,
    Lit,
    NamedBarrier,
    Place,
    RingArrive,
    RingWait,
    Roles,
    S,
    Select,
    TmaLoad,
    TmaStore,
    Un,
    Var,
    Wgmma,
    WgmmaCommit,
    WgmmaWait,
    X,
    walk,
)

Numbers = NDArray[Any]
Mask = NDArray[np.bool_]


class Unknown(Enum):
    """A value that the thread's number does not decide: the same for all threads (sizes, blocks), or not."""

    UNIFORM = 0
    VARYING = 1


Known = Numbers | Unknown
_OPS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "<<": np.left_shift, ">>": np.right_shift, "&": np.bitwise_and,
    "|": np.bitwise_or, "^": np.bitwise_xor, "<": np.less, "<=": np.less_equal, ">": np.greater,
    ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal, "&&": np.logical_and, "||": np.logical_or,
}  # fmt: skip
_INTEGERS: Final = ("i32", "i64", "u32", "u64", "bool")
_TILES: Final = (Advance, RingWait, RingArrive, CopyArrive, TmaLoad, TmaStore)
_ORDER: Final = (*_TILES, AsyncCommit, AsyncWait, Barrier, NamedBarrier, Wgmma, WgmmaCommit, WgmmaWait)
_WHOLE: Final = 16  # rounds of a loop that moves tiles, up to which all of them are followed


@dataclass(frozen=True, slots=True)
class Step:
    """`threads` that run the statement (None: some of the role's, not known which); `env` gives its names' values.

    `cut`: inside of a loop of which not all rounds are followed.
    """

    statement: S
    threads: Mask | None
    env: dict[str, Known]
    cut: bool

    def number(self, x: X) -> Known:
        return number(x, self.env)


@dataclass(frozen=True, slots=True)
class Path:
    """What the threads of a role run (role "" where a block has none)."""

    role: str
    steps: tuple[Step, ...]


def number(x: X, env: dict[str, Known]) -> Known:
    """The integer or condition for every thread of the block, [threads]."""
    if isinstance(x, Lit):
        return np.asarray(x.value) if x.type in _INTEGERS else Unknown.UNIFORM
    if isinstance(x, Builtin):
        return env["tid"] if x.name == "tid" else Unknown.UNIFORM
    if isinstance(x, Var):
        return env.get(x.name, Unknown.VARYING)
    if isinstance(x, Bin):
        return _bin(x, number(x.a, env), number(x.b, env))
    if isinstance(x, Un):
        a = number(x.a, env)
        if isinstance(a, Unknown):
            return a
        unary: Numbers = np.logical_not(a) if x.op == "!" else np.negative(a) if x.op == "-" else np.invert(a)
        return unary
    if isinstance(x, Convert):
        a = number(x.a, env)
        return a if isinstance(a, Unknown) or x.type in _INTEGERS else _opaque(a)
    if isinstance(x, Select):
        c, yes, no = (number(v, env) for v in (x.cond, x.yes, x.no))
        if isinstance(c, Unknown) or isinstance(yes, Unknown) or isinstance(no, Unknown):
            return _opaque(c, yes, no)
        return np.where(c, yes, no)
    if isinstance(x, Call) and x.args:
        return _opaque(*(number(a, env) for a in x.args))
    return Unknown.VARYING


def _bin(x: Bin, a: Known, b: Known) -> Known:
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return _opaque(a, b)
    if x.op in ("/", "%"):
        if not np.all(b):
            return _opaque(a, b)
        quotient = np.trunc(np.asarray(a) / np.asarray(b)).astype(np.int64)
        rest: Numbers = a - quotient * b
        return quotient if x.op == "/" else rest
    out: Numbers = _OPS[x.op](a, b)
    return out


def _opaque(*of: Known) -> Unknown:
    """A value of these that is not worked out."""
    same = all(v is Unknown.UNIFORM or (not isinstance(v, Unknown) and np.min(v) == np.max(v)) for v in of)
    return Unknown.UNIFORM if same else Unknown.VARYING


# leading indices of a shared buffer (all but row and column); None where they are not known
Slots = frozenset[tuple[int, ...]] | None


def slots(step: Step, p: Place) -> Slots:
    """Those that the step's threads name."""
    if step.threads is None or p.space == "global":
        return None
    found = []
    for x in p.index[:-2]:
        v = step.number(x)
        if isinstance(v, Unknown):
            return None
        found.append(np.broadcast_to(v, step.threads.shape)[step.threads])
    if not found:
        return frozenset({()})
    return frozenset(tuple(int(i) for i in at) for at in np.unique(np.stack(found, axis=1), axis=0))


# ---- paths


def paths(kernel: Kernel) -> Iterator[Path]:
    """Two for every role: conditions that are not known hold on the first and do not on the second."""
    split = next((s for s in kernel.body if isinstance(s, Roles)), None)
    for taken in (True, False):
        for k, name in enumerate([""] if split is None else [r.name for r in split.roles]):
            yield Path(name, tuple(_Walk(kernel, taken, k).whole()))


class _Walk:
    def __init__(self, kernel: Kernel, taken: bool, role: int) -> None:
        self.taken, self.role, self.threads, self.body = taken, role, kernel.threads, kernel.body
        self.env: dict[str, Known] = {p.name: Unknown.UNIFORM for p in kernel.params if p.role == "size"}
        self.env["tid"] = np.arange(kernel.threads)
        self.everyone = np.ones(kernel.threads, bool)

    def whole(self) -> Iterator[Step]:
        yield from self.block(self.body, self.everyone, False)

    def block(self, body: tuple[S, ...], threads: Mask | None, cut: bool) -> Iterator[Step]:
        for s in body:
            if isinstance(s, For):
                yield from self.loop(s, threads, cut)
            elif isinstance(s, If):
                yield from self.branch(s, threads, cut)
            elif isinstance(s, Roles):
                first = 32 * sum(r.warps for r in s.roles[: self.role])
                numbers = np.arange(self.threads)
                inside = (numbers >= first) & (numbers < first + 32 * s.roles[self.role].warps)
                before, self.everyone = self.everyone, inside
                yield from self.block(s.roles[self.role].body, inside, cut)
                self.everyone = before
            else:
                self.bind(s, threads)
                yield Step(s, threads, self.env, cut)

    def bind(self, s: S, threads: Mask | None) -> None:
        """The environment is replaced, never changed: steps keep theirs."""
        if isinstance(s, Let):
            self.env = {**self.env, s.name: number(s.value, self.env)}
        elif isinstance(s, Declare) and s.count is None:
            value = Unknown.VARYING if s.init is None else number(s.init, self.env)
            self.env = {**self.env, s.name: value}
        elif isinstance(s, Assign) and isinstance(s.target, Var):
            # under a condition that some threads do not meet, those keep what they have
            value = number(s.value, self.env) if threads is self.everyone else Unknown.VARYING
            self.env = {**self.env, s.target.name: value}

    def forget(self, body: tuple[S, ...]) -> None:
        """What a loop assigns is not known after it, unless all of its rounds have been followed."""
        names = {s.target.name for s in walk(body) if isinstance(s, Assign) and isinstance(s.target, Var)}
        if names:
            self.env = {**self.env, **dict.fromkeys(names, Unknown.VARYING)}

    def loop(self, s: For, threads: Mask | None, cut: bool) -> Iterator[Step]:
        start, stop, step = (_constant(number(x, self.env)) for x in (s.start, s.stop, s.step))
        inside = list(walk(s.body))
        rounds: list[Known]
        if start is None or step is None:
            rounds = [number(s.start, self.env), Unknown.UNIFORM]
        else:
            rounds = [np.asarray(start), np.asarray(start + step)]
        if start is not None and stop is not None and step:
            count = max(0, -(-(stop - start) // step))
            whole = count <= _WHOLE and any(isinstance(i, _TILES) for i in inside)
            rounds = [np.asarray(start + step * k) for k in range(count if whole else min(count, 2))]
            cut = cut or len(rounds) < count
        else:
            cut = True
        if not any(isinstance(i, _ORDER) for i in inside):
            rounds = rounds[:1]
            self.forget(s.body)
        for at in rounds:
            self.env = {**self.env, s.var.name: at}
            yield from self.block(s.body, threads, cut)
        if cut:
            self.forget(s.body)

    def branch(self, s: If, threads: Mask | None, cut: bool) -> Iterator[Step]:
        cond = number(s.cond, self.env)
        if isinstance(cond, Unknown):
            some = threads if cond is Unknown.UNIFORM else None
            body = s.then if self.taken else s.orelse
            yield from self.block(body, some, cut)
            self.forget((*s.then, *s.orelse))
            return
        for body, holds in ((s.then, cond.astype(bool)), (s.orelse, ~cond.astype(bool))):
            some = None if threads is None else threads & holds
            if np.any(holds) if some is None else np.any(some):
                yield from self.block(body, some, cut)


def _constant(v: Known) -> int | None:
    """The one value that all threads have."""
    if isinstance(v, Unknown) or np.min(v) != np.max(v):
        return None
    return int(np.min(v))
