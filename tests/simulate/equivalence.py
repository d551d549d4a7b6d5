"""Proofs that a mutant does the same as its kernel, beside the witnesses that mutants bring along.

`redundant_barrier`: no access on the ways from the former barrier to this one conflicts with one on the ways from this
one to the next; then the barrier orders nothing that its neighbours do not order.
`unused`: what a statement computes is never used.  `overwritten`: a second store is followed by another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from emmy.ir.kernel import (
    Assign,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    Comment,
    Cursor,
    Declare,
    Elem,
    Fence,
    For,
    If,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Mma,
    Place,
    RingWait,
    Roles,
    S,
    Shuffle,
    Store,
    StoreVector,
    Target,
    Var,
    Vote,
    X,
    bodies,
    walk,
    with_bodies,
)
from tests.simulate.edits import Path, Site, plus, poison, replaced, values


@dataclass(frozen=True, slots=True)
class Access:
    buffer: str
    writes: bool


def _flow(
    body: tuple[S, ...], at: Path, entry: list[Path], edges: dict[Path, list[Path]], nodes: dict[Path, S]
) -> list[Path]:
    """Adds the nodes and edges of a list; returns the nodes from which control leaves it."""
    last = entry
    for i, s in enumerate(body):
        here = (*at, i)
        nodes[here] = s
        for p in last:
            edges.setdefault(p, []).append(here)
        last = [here]
        if isinstance(s, For):
            ends = _flow(s.body, (*here, 0), [here], edges, nodes)
            for p in ends:
                edges.setdefault(p, []).append(here)
            if _runs(s):
                last = ends
        elif isinstance(s, Roles):
            last = [p for k, r in enumerate(s.roles) for p in _flow(r.body, (*here, k), [here], edges, nodes)]
        elif isinstance(s, If):
            last = [
                *_flow(s.then, (*here, 0), [here], edges, nodes),
                *_flow(s.orelse, (*here, 1), [here], edges, nodes),
            ]
    return last


def _runs(s: For) -> bool:
    """True where the loop has a turn, whatever the sizes."""
    return isinstance(s.start, Lit) and isinstance(s.stop, Lit) and s.start.value < s.stop.value


def _accesses(s: S, root: dict[str, str], landing: frozenset[str]) -> Iterator[Access]:
    if isinstance(s, Store | StoreVector):
        yield from _place(s.place, True, root)
    elif isinstance(s, Load | LoadVector):
        yield from _place(s.place, False, root)
    elif isinstance(s, AsyncCopy):
        yield from _place(s.dst, True, root)
        yield from _place(s.src, False, root)
    elif isinstance(s, LdMatrix):
        yield from _place(s.src, False, root)
    elif isinstance(s, AsyncWait):
        yield from (Access(b, True) for b in landing)


def _place(p: Place, writes: bool, root: dict[str, str]) -> Iterator[Access]:
    yield Access(root.get(p.buffer, p.buffer), writes)


def _reach(start: Path, edges: dict[Path, list[Path]], nodes: dict[Path, S]) -> list[Path]:
    """Nodes that can be reached from a barrier without passing one."""
    seen: set[Path] = set()
    work = list(edges.get(start, ()))
    while work:
        p = work.pop()
        if p in seen or isinstance(nodes[p], Barrier):
            continue
        seen.add(p)
        work += edges.get(p, ())
    return sorted(seen)


def redundant_barrier(kernel: Kernel, path: Path) -> bool:
    """True where the block's memory needs no order between what is before and what is behind the barrier."""
    edges: dict[Path, list[Path]] = {}
    nodes: dict[Path, S] = {}
    _flow(kernel.body, (), [], edges, nodes)
    back: dict[Path, list[Path]] = {}
    for a, ends in edges.items():
        for b in ends:
            back.setdefault(b, []).append(a)
    root = {b.name: b.overlays or b.name for b in kernel.shared}
    landing = frozenset(root[s.dst.buffer] for s in nodes.values() if isinstance(s, AsyncCopy))
    sides = []
    for graph in (back, edges):
        reached = [nodes[p] for p in _reach(path, graph, nodes)]
        # what orders other blocks is beyond this proof
        if any(isinstance(s, Atomic | Fence) for s in reached):
            return False
        sides.append({a for s in reached for a in _accesses(s, root, landing)})
    before, after = sides
    return not any(a.buffer == b.buffer and (a.writes or b.writes) for a in before for b in after)


# what only computes registers
PURE = (Let, Declare, Assign, Load, LoadVector, LdMatrix, Shuffle, Vote, Mma, Comment, For, If)


def registers_only(s: S) -> bool:
    """True for a statement that writes nothing but registers, statements inside included."""
    return all(isinstance(inner, PURE) for inner in walk((s,)))


def unused(kernel: Kernel, site: Site) -> Kernel | None:
    """The kernel with NaN (numbers without meaning) for all that a statement computes; None where that cannot be said.

    Right values of a launch prove that the statement's registers are never used in it.
    """
    if not registers_only(site.statement):
        return None
    new = _poisoned(site.statement, True)
    return None if new is None else replaced(kernel, site, *new)


def _poisoned(s: S, outer: bool) -> tuple[S, ...] | None:
    """`outer`: the statement's own names live on behind it."""
    if isinstance(s, For | If):
        inside = [[_poisoned(i, False) for i in body] for body in bodies(s)]
        if any(i is None for body in inside for i in body):
            return None
        flat = iter([tuple(p for i in body for p in i or ()) for body in inside])
        return (with_bodies(s, lambda _: next(flat)),)
    if isinstance(s, Assign):
        return _assigned([s.target])
    if isinstance(s, LdMatrix):
        return _assigned(s.dst)
    if isinstance(s, Mma):
        return _assigned(s.d)
    if isinstance(s, LoadVector):
        return _assigned([Elem(s.array, plus(s.at, n), s.place.type) for n in range(s.count)])
    if isinstance(s, Declare):
        value = poison(s.type)
        if not outer or s.init is None:
            return (s,)
        return None if value is None or s.count is not None else (replace(s, init=value),)
    if isinstance(s, Vote) or not outer:
        return (s,) if not outer else None
    if isinstance(s, Let | Load | Shuffle):
        value = poison(s.type if isinstance(s, Load) else s.value.type)
        return None if value is None else (Let(s.name, value),)
    return (s,)


def _assigned(targets: Sequence[Target]) -> tuple[S, ...] | None:
    made = [(t, poison(t.type)) for t in targets]
    return None if any(v is None for _, v in made) else tuple(Assign(t, v) for t, v in made if v is not None)


def never_used_again(kernel: Kernel, path: Path) -> bool:
    """For an advance: no statement behind it names its cursor."""
    edges: dict[Path, list[Path]] = {}
    nodes: dict[Path, S] = {}
    _flow(kernel.body, (), [], edges, nodes)
    cursor = getattr(nodes[path], "cursor", None)
    seen: set[Path] = set()
    work = list(edges.get(path, ()))
    while work:
        p = work.pop()
        if p not in seen:
            seen.add(p)
            work += edges.get(p, ())
    behind = [nodes[p] for p in seen]
    slot = f"{cursor}_slot"
    return bool(cursor) and not any(
        getattr(s, "cursor", None) == cursor or any(isinstance(v, Var) and v.name == slot for v in values(s))
        for s in behind
    )


def unneeded_waits(kernel: Kernel, ring: str, side: str) -> Kernel:
    """The kernel without the waits for one side of a ring: a launch without finding proves that none waits for long."""
    cursors = {s.name for s in walk(kernel.body) if isinstance(s, Cursor) and s.ring == ring}

    def change(body: tuple[S, ...]) -> tuple[S, ...]:
        kept = (s for s in body if not (isinstance(s, RingWait) and s.cursor in cursors and s.side == side))
        return tuple(with_bodies(s, change) for s in kept)

    return replace(kernel, body=change(kernel.body))


def overwritten(kernel: Kernel, path: Path) -> bool:
    """For a second store to the next element (vector): the same thread stores to that element again, right behind it.

    That holds where a later statement of the same list stores without a guard to an index that is the same sum with a
    literal that is larger by one (by the elements of the vector, as many at least).
    """
    body = kernel.body
    for i, k in zip(path[:-1:2], path[1::2], strict=True):
        body = bodies(body[i])[k]
    own = body[path[-1]]
    if not isinstance(own, Store | StoreVector):
        return False
    base, at = _sum(own.place.index[-1])
    count = own.count if isinstance(own, StoreVector) else 1
    for later in body[path[-1] + 1 :]:
        if not isinstance(later, type(own)) or (isinstance(later, StoreVector) and later.count < count):
            continue
        same = (
            replace(later.place, index=own.place.index) == own.place and later.place.index[:-1] == own.place.index[:-1]
        )
        if same and later.guard is None and _sum(later.place.index[-1]) == (base, at + count):
            return True
    return False


def _sum(x: X) -> tuple[tuple[X, ...], int]:
    """A sum as its terms other than literals, in order, and the sum of its literals."""
    if isinstance(x, Lit):
        return (), int(x.value)
    if isinstance(x, Bin) and x.op == "+":
        (a, n), (b, m) = _sum(x.a), _sum(x.b)
        return (*a, *b), n + m
    return (x,), 0
