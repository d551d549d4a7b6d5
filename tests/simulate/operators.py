"""Mutation operators for what every kernel has: barriers, copies, loops, indices, guards, fragments, values.

An operator maps a kernel to its mutants, one for each site where it applies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from emmy.ir.kernel import (
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    Elem,
    Fence,
    For,
    If,
    Kernel,
    Lit,
    Load,
    LoadVector,
    Place,
    S,
    Store,
    StoreVector,
    Var,
    WarpSync,
    X,
)
from emmy.ir.kernel.values import BYTES
from emmy.ir.show_kernel import show_statement
from tests.simulate.edits import (
    Mutant,
    Site,
    beyond,
    differing,
    executed,
    local,
    negated,
    plus,
    poison,
    replaced,
    sites,
    sprung_where_different,
    trapped,
    values,
    with_index,
    with_value,
    without_effect,
)

Operator = Callable[[Kernel], Iterator[Mutant]]
SAME: Final = "the value is the same wherever the launch uses it"
NEVER: Final = "the launch never executes the statement where it would differ"
GUARDED: Final = (Load, Store, LoadVector, StoreVector, AsyncCopy, Atomic)


def mutant(
    name: str, kernel: Kernel, site: Site, *new: Any, witness: Kernel | None = None, claim: str = SAME,
    poisoned: Kernel | None = None,
) -> Mutant:  # fmt: skip
    where = ".".join(map(str, site.path))
    text = f"{where}: {show_statement(site.statement)}"
    return Mutant(name, text, replaced(kernel, site, *new), witness, claim, poisoned, site.path)


def anywhere(name: str, kernel: Kernel, site: Site, *new: Any) -> Mutant:
    """A mutant that differs wherever the statement is executed (and its guard holds)."""
    guard = getattr(site.statement, "guard", None)
    witness = executed(kernel, site) if guard is None else trapped(kernel, site, guard)
    return mutant(name, kernel, site, *new, witness=witness, claim=NEVER)


def dropping(name: str, *types: type) -> Operator:
    """Leaves out a statement of these types."""

    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for s in sites(kernel):
            if isinstance(s.statement, types):
                yield anywhere(name, kernel, s)

    return operator


# ---- order


def wait_for_one_less(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        if isinstance(s.statement, AsyncWait):
            yield mutant("async wait pending + 1", kernel, s, AsyncWait(s.statement.pending + 1))


def stored_not_added(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        a = s.statement
        if isinstance(a, Atomic):
            before = (Load(a.old, a.place.type, a.place),) if a.old else ()
            yield mutant("atomic to store", kernel, s, *before, Store(a.place, a.value, a.guard))


def refilled_early(kernel: Kernel) -> Iterator[Mutant]:
    """Writes of a staged tile go to the next stage."""
    staged = {b.name: b.shape[0] for b in kernel.shared if len(b.shape) > 2 and b.shape[0] > 1}
    for s in sites(kernel):
        t = s.statement
        place = t.dst if isinstance(t, AsyncCopy) else t.place if isinstance(t, Store | StoreVector) else None
        if place is None or place.buffer not in staged:
            continue
        old = place.index[0]
        new = Bin("%", plus(old, 1), Lit(staged[place.buffer], old.type), old.type)
        moved = with_index(place, 0, lambda _, new=new: new)  # type: ignore[misc]
        changed = replace(t, dst=moved) if isinstance(t, AsyncCopy) else replace(t, place=moved)  # type: ignore[arg-type]
        yield anywhere("stage + 1", kernel, s, changed)


# ---- loops, indices, guards


def _bounds(name: str, by: int) -> Operator:
    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for s in sites(kernel):
            t = s.statement
            if isinstance(t, For):
                stop = plus(t.stop, by)
                wide, narrow = (stop, t.stop) if by > 0 else (t.stop, stop)
                witness, shown = beyond(kernel, s, wide, narrow), None
                if local(t):
                    last = Bin(">=", t.var, narrow, "bool")
                    shown = replaced(kernel, s, without_effect(kernel, replace(t, stop=wide), last))
                changed = replace(t, stop=stop)
                yield mutant(name, kernel, s, changed, witness=witness, claim=NEVER, poisoned=shown)

    return operator


def _places(t: Any) -> Iterator[tuple[str, Place]]:
    for field in ("place", "src", "dst"):
        p = getattr(t, field, None)
        if isinstance(p, Place):
            yield field, p


def _indices(name: str, space: str) -> Operator:
    """The innermost index + 1."""

    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for s in sites(kernel):
            for field, place in _places(s.statement):
                if place.space == space:
                    moved = with_index(place, len(place.index) - 1, lambda x: plus(x, 1))
                    yield anywhere(name, kernel, s, replace(s.statement, **{field: moved}))  # fmt: skip

    return operator


def row_index(kernel: Kernel) -> Iterator[Mutant]:
    """The next row of a shared tile."""
    for s in sites(kernel):
        for field, place in _places(s.statement):
            if place.space == "shared" and len(place.index) > 1:
                moved = with_index(place, len(place.index) - 2, lambda x: plus(x, 1))
                changed = replace(s.statement, **{field: moved})
                yield anywhere("shared row + 1", kernel, s, changed)


def unswizzled(kernel: Kernel) -> Iterator[Mutant]:
    """One access takes the element's place for that of a buffer without swizzle."""
    buffers = {b.name: b for b in kernel.shared if b.layout.swizzle}
    for s in sites(kernel):
        for field, place in _places(s.statement):
            if place.space == "shared" and place.buffer in buffers:
                column, wrong = place.index[-1], _plain_column(buffers[place.buffer], place)
                moved = with_index(place, len(place.index) - 1, lambda _, w=wrong: w)  # type: ignore[misc]
                yield mutant("swizzle dropped", kernel, s, replace(s.statement, **{field: moved}),
                             witness=sprung_where_different(kernel, s, column, wrong))  # fmt: skip


def _plain_column(b: Buffer, place: Place) -> X:
    """A column whose swizzled place is the unswizzled place of the column."""
    chunk = 16 // BYTES[b.type]
    row, column = place.index[-2], place.index[-1]
    t = column.type
    mask = Bin(
        "&", Bin(">>", row, Lit(b.layout.shift, row.type), row.type), Lit(b.layout.swizzle - 1, row.type), row.type
    )
    turned = Bin("^", Bin("/", column, Lit(chunk, t), t), mask, t)
    return Bin("+", Bin("*", turned, Lit(chunk, t), t), Bin("%", column, Lit(chunk, t), t), t)


def wrong_stride(kernel: Kernel) -> Iterator[Mutant]:
    """A factor of 4 or more, or a symbolic size, in an index or in a register that holds one, plus 1."""
    sizes = {p.name for p in kernel.params if p.role == "size"}
    for s in sites(kernel):
        for x in values(s.statement):
            if not isinstance(x, Bin) or x.op != "*" or x.type not in ("i32", "i64"):
                continue
            stride = (isinstance(x.b, Lit) and int(x.b.value) >= 4) or (isinstance(x.b, Var) and x.b.name in sizes)
            if stride:
                new = replace(x, b=plus(x.b, 1))
                yield mutant("stride + 1", kernel, s, with_value(s.statement, x, new),
                             witness=differing(kernel, s, x, new))  # fmt: skip


def comparison(kernel: Kernel) -> Iterator[Mutant]:
    """`<` is `<=`, `<=` is `<`, `==` is `!=`."""
    other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
    for s in sites(kernel):
        for x in values(s.statement):
            if isinstance(x, Bin) and x.op in other and x.a.type in ("i32", "i64"):
                new = replace(x, op=other[x.op])
                guard = getattr(s.statement, "guard", None)
                inside = guard is not None and any(x is v for v in (guard, *values(guard)))
                witness = None if isinstance(s.statement, For) else sprung_where_different(
                    kernel, s, x, new, None if inside else guard)  # fmt: skip
                yield mutant("comparison off by one", kernel, s, with_value(s.statement, x, new), witness=witness)


def guard_dropped(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, GUARDED) and t.guard is not None:
            yield mutant("guard dropped", kernel, s, replace(t, guard=None),
                         witness=trapped(kernel, s, negated(t.guard)), poisoned=junk_outside(kernel, s))  # fmt: skip
        elif isinstance(t, If) and not t.orelse:
            yield mutant("guard dropped", kernel, s, *t.then, witness=trapped(kernel, s, negated(t.cond)))


def guard_inverted(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, GUARDED) and t.guard is not None:
            yield anywhere("guard inverted", kernel, s, replace(t, guard=negated(t.guard)))  # fmt: skip
        elif isinstance(t, If):
            yield anywhere("guard inverted", kernel, s, replace(t, cond=negated(t.cond)))  # fmt: skip


def no_zero_fill(kernel: Kernel) -> Iterator[Mutant]:
    """Where the guard is false the destination keeps what it had; a single load gives 1 more than it should."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, AsyncCopy | LoadVector) and t.guard is not None:
            changed: S = If(t.guard, (replace(t, guard=None),))
        elif isinstance(t, Load) and t.guard is not None and t.type in ("f32", "i32", "i64"):
            one = Lit(1.0 if t.type == "f32" else 1, t.type)
            changed = replace(t, fill=one if t.fill is None or isinstance(t.fill, Lit) else plus(t.fill, 1))
        else:
            continue
        yield mutant("zero fill missing", kernel, s, changed,
                     witness=trapped(kernel, s, negated(t.guard)), poisoned=junk_outside(kernel, s))  # fmt: skip


def junk_outside(kernel: Kernel, s: Site) -> Kernel | None:
    """The kernel with NaN (numbers without meaning) where a copy's or load's guard is false."""
    t = s.statement
    if isinstance(t, Load) and t.guard is not None:
        junk = poison(t.type)
        return None if junk is None else replaced(kernel, s, replace(t, fill=junk))
    if not isinstance(t, AsyncCopy | LoadVector) or t.guard is None:
        return None
    stores = _poisoned_copy(t) if isinstance(t, AsyncCopy) else _poisoned_vector(t)
    return replaced(kernel, s, If(t.guard, (replace(t, guard=None),), stores)) if stores else None


def _poisoned_vector(t: LoadVector) -> tuple[S, ...]:
    value = poison(t.place.type)
    if value is None:
        return ()
    return tuple(Assign(Elem(t.array, plus(t.at, n), t.place.type), value) for n in range(t.count))


def _poisoned_copy(t: AsyncCopy) -> tuple[S, ...]:
    value = poison(t.dst.type)
    if value is None:
        return ()
    last = len(t.dst.index) - 1
    places = (with_index(t.dst, last, lambda x, n=n: plus(x, n)) for n in range(t.bytes // BYTES[t.dst.type]))  # type: ignore[misc]
    return tuple(Store(p, value) for p in places)


# ---- the whole kernel


def overlaid(kernel: Kernel) -> Iterator[Mutant]:
    """A buffer takes the bytes of an earlier one."""
    own = [b for b in kernel.shared if not b.overlays]
    for a, b in itertools.pairwise(own):
        shared = tuple(replace(x, overlays=a.name) if x.name == b.name else x for x in kernel.shared)
        yield Mutant("overlay added", f"{b.name} over {a.name}", replace(kernel, shared=shared))


def fewer_threads(kernel: Kernel) -> Iterator[Mutant]:
    if kernel.threads >= 64:
        half = kernel.threads // 2
        above = Bin(">=", Builtin("tid"), Lit(half, "i32"), "bool")
        shown = replace(kernel, body=tuple(without_effect(kernel, s, above) for s in kernel.body))
        yield Mutant("half the threads", "the kernel", replace(kernel, threads=half), poisoned=shown)


OPERATORS: Final[dict[str, Operator]] = {
    "barrier dropped": dropping("barrier dropped", Barrier),
    "warp sync dropped": dropping("warp sync dropped", WarpSync),
    "async wait dropped": dropping("async wait dropped", AsyncWait),
    "async wait pending + 1": wait_for_one_less,
    "async commit dropped": dropping("async commit dropped", AsyncCommit),
    "fence dropped": dropping("fence dropped", Fence),
    "atomic to store": stored_not_added,
    "stage + 1": refilled_early,
    "loop bound + 1": _bounds("loop bound + 1", 1),
    "loop bound - 1": _bounds("loop bound - 1", -1),
    "global index + 1": _indices("global index + 1", "global"),
    "shared index + 1": _indices("shared index + 1", "shared"),
    "shared row + 1": row_index,
    "swizzle dropped": unswizzled,
    "stride + 1": wrong_stride,
    "comparison off by one": comparison,
    "guard dropped": guard_dropped,
    "guard inverted": guard_inverted,
    "zero fill missing": no_zero_fill,
    "overlay added": overlaid,
    "half the threads": fewer_threads,
}
__all__ = ["OPERATORS", "Operator", "dropping", "mutant"]
