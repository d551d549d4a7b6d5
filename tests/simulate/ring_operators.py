"""Mutation operators for what Hopper kernels add: rings, TMA, wgmma, proxies, roles, named barriers, clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Final

from emmy.ir.kernel import (
    NODES,
    WGMMA_K,
    Advance,
    Bin,
    BulkCommit,
    BulkWait,
    ClusterBarrier,
    CopyArrive,
    Cursor,
    Declare,
    DependentWait,
    Elem,
    For,
    If,
    InitRings,
    Kernel,
    Lit,
    NamedBarrier,
    ProxyFence,
    RingArrive,
    RingWait,
    Roles,
    StMatrix,
    TmaLoad,
    TmaStore,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from tests.simulate.edits import Mutant, Site, executed, plus, replaced, siblings, sites, trap, with_index
from tests.simulate.operators import Operator, anywhere, dropping


def other_side(kernel: Kernel) -> Iterator[Mutant]:
    flipped: dict[str, Any] = {"full": "empty", "empty": "full"}
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, RingWait | RingArrive):
            yield anywhere("wrong side of a ring", kernel, s, replace(t, side=flipped[t.side]))


def _arrivals(name: str, by: int) -> Operator:
    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for r in kernel.rings:
            for side in ("full", "empty"):
                count = getattr(r, side) + by
                if count < 1:
                    continue
                rings = tuple(replace(x, **{side: count}) if x is r else x for x in kernel.rings)
                yield Mutant(name, f"{r.name} {side} {count}", replace(kernel, rings=rings))

    return operator


def two_phases_ahead(kernel: Kernel) -> Iterator[Mutant]:
    """A cursor goes once around more: the same slot, the other parity."""
    depth = {r.name: r.depth for r in kernel.rings}
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Cursor):
            around = (Advance(t.name),) * depth[t.ring]
            yield anywhere("parity two phases ahead", kernel, s, t, *around)


def advanced_twice(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        if isinstance(s.statement, Advance):
            yield anywhere("advanced twice", kernel, s, s.statement, s.statement)


def arrived_twice(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, RingArrive):
            yield anywhere("arrived twice", kernel, s, t, replace(t, bytes=0))


def _releases(kernel: Kernel) -> Iterator[tuple[Site, int, int]]:
    """Branches in which some lanes release a slot, and in their body where what belongs to that begins and ends."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, If) and any(isinstance(i, RingArrive) and i.side == "empty" for i in t.then):
            body, at = siblings(kernel, s.path), s.path[-1]
            first = at
            while first and isinstance(body[first - 1], ProxyFence | WarpSync):
                first -= 1
            yield s, first, at


def fence_behind_release(kernel: Kernel) -> Iterator[Mutant]:
    """The proxy fence behind the arrival that it has to come before."""
    for s, first, at in _releases(kernel):
        body = siblings(kernel, s.path)
        for k in range(first, at):
            if isinstance(body[k], ProxyFence):
                fence = Site((*s.path[:-1], k), body[k])
                less = replaced(kernel, fence)
                late = replaced(less, Site((*s.path[:-1], at - 1), s.statement), s.statement, body[k])
                made = anywhere("proxy fence behind the release", kernel, fence)
                yield replace(made, kernel=late)


def released_early(kernel: Kernel) -> Iterator[Mutant]:
    """A slot is released, fence and all, one statement earlier."""
    for s, first, at in _releases(kernel):
        if not first:
            continue
        body, here = siblings(kernel, s.path), s.path[:-1]
        early = kernel
        for k in range(first, at + 1):
            early = replaced(early, Site((*here, first), body[k]))
        before = Site((*here, first - 1), body[first - 1])
        early = replaced(early, before, *body[first : at + 1], before.statement)
        made = anywhere("slot released early", kernel, s)
        yield replace(made, kernel=early, witness=_run(kernel, before))


def _run(kernel: Kernel, site: Site) -> Kernel:
    """Sprung where a statement does something: a loop may have no turn."""
    loop = site.statement
    if not isinstance(loop, For):
        return executed(kernel, site)
    return replaced(kernel, site, replace(loop, body=(trap(kernel), *loop.body)))


def _announced(name: str, by: int) -> Operator:
    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for s in sites(kernel):
            t = s.statement
            if isinstance(t, RingArrive) and t.bytes:
                yield anywhere(name, kernel, s, replace(t, bytes=t.bytes + by))

    return operator


def wgmma_wait_for_one_less(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, WgmmaWait):
            yield anywhere("wgmma wait pending + 1", kernel, s, WgmmaWait(t.pending + 1))


def further_along_k(kernel: Kernel) -> Iterator[Mutant]:
    """The descriptor of one factor starts an instruction's k further."""
    for s in sites(kernel):
        t = s.statement
        if not isinstance(t, Wgmma):
            continue
        for field in ("a", "b"):
            m = getattr(t, field)
            if isinstance(m, tuple):
                continue
            axis = len(m.place.index) - (1 if m.major == "k" else 2)
            moved = replace(m, place=with_index(m.place, axis, lambda x, t=t: plus(x, WGMMA_K[t.type])))  # type: ignore[misc]
            yield anywhere("wgmma further along k", kernel, s, replace(t, **{field: moved}))


def accumulate_flipped(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Wgmma):
            yield anywhere("wgmma accumulate flipped", kernel, s, replace(t, accumulate=not t.accumulate))


def factors_exchanged(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Wgmma) and not isinstance(t.a, tuple):
            yield anywhere("wgmma factors exchanged", kernel, s, replace(t, a=t.b, b=t.a))


def _of_registers(kernel: Kernel) -> list[Wgmma]:
    """Products whose left factor is in registers."""
    return [t for s in sites(kernel) if isinstance(t := s.statement, Wgmma) and isinstance(t.a, tuple)]


def other_set(kernel: Kernel) -> Iterator[Mutant]:
    """A wgmma takes its left factor from registers of another step or another factor."""
    taken = dict.fromkeys(t.a for t in _of_registers(kernel))
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Wgmma) and isinstance(t.a, tuple):
            others = [a for a in taken if a != t.a]
            if others:
                yield anywhere("wgmma factor of another step", kernel, s, replace(t, a=others[0]))


def same_set(kernel: Kernel) -> Iterator[Mutant]:
    """Two sets of left factors in one: it is computed while products of the step before read it."""
    names = list(dict.fromkeys(x.array for t in _of_registers(kernel) for x in t.a if isinstance(x, Elem)))
    declared = {t.name: t.count for s in sites(kernel) if isinstance(t := s.statement, Declare)}
    for one, other in itertools.pairwise(names):
        if declared[one] == declared[other]:
            body = _in_one(kernel.body, other, one)
            yield Mutant("one set of factors", f"{other} in {one}", replace(kernel, body=body))


def _in_one(node: Any, old: str, new: str) -> Any:
    """The statements with the elements of one array in another, and without the first one's declaration."""
    if isinstance(node, tuple):
        return tuple(_in_one(n, old, new) for n in node if not (isinstance(n, Declare) and n.name == old))
    if isinstance(node, Elem) and node.array == old:
        return replace(node, array=new)
    if not isinstance(node, NODES):
        return node
    return replace(node, **{f.name: _in_one(getattr(node, f.name), old, new) for f in fields(node)})


def registers_exchanged(kernel: Kernel) -> Iterator[Mutant]:
    """The registers of a left factor in another order: rows or elements of the sum exchanged."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Wgmma) and isinstance(t.a, tuple):
            a, b, c, d = t.a
            yield anywhere("wgmma registers exchanged", kernel, s, replace(t, a=(b, a, c, d)))
            yield anywhere("wgmma registers exchanged", kernel, s, replace(t, a=(c, b, a, d)))


def _named(name: str, by: int) -> Operator:
    def operator(kernel: Kernel) -> Iterator[Mutant]:
        for s in sites(kernel):
            t = s.statement
            if isinstance(t, NamedBarrier) and t.threads + by > 0:
                yield anywhere(name, kernel, s, replace(t, threads=t.threads + by))

    return operator


def other_barrier(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, NamedBarrier):
            yield anywhere("another named barrier", kernel, s, replace(t, id=plus(t.id, 1)))


def box_moved(kernel: Kernel) -> Iterator[Mutant]:
    """The box starts one element further along each axis of the tensor, one mutant an axis."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, TmaLoad | TmaStore):
            for k in range(len(t.at)):
                at = tuple(plus(x, 1) if i == k else x for i, x in enumerate(t.at))
                yield anywhere("box moved by one", kernel, s, replace(t, at=at))


def next_slot(kernel: Kernel) -> Iterator[Mutant]:
    """TMA fills the slot after the one that was waited for."""
    depth = {b.name: b.shape[0] for b in kernel.shared}
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, TmaLoad) and depth[t.dst.buffer] > 1:
            old = t.dst.index[0]
            new = Bin("%", plus(old, 1), Lit(depth[t.dst.buffer], old.type), old.type)
            yield anywhere(
                "TMA into the next slot", kernel, s, replace(t, dst=with_index(t.dst, 0, lambda _, n=new: n))
            )  # type: ignore[misc]


def bulk_wait_for_one_less(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, BulkWait):
            yield anywhere("bulk wait pending + 1", kernel, s, replace(t, pending=t.pending + 1))


def turned_store(kernel: Kernel) -> Iterator[Mutant]:
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, StMatrix):
            yield anywhere("stmatrix trans", kernel, s, replace(t, trans=not t.trans))


def map_stride(kernel: Kernel) -> Iterator[Mutant]:
    """A tensor map with a row pitch that is 8 elements too large, or a swizzle left out."""
    from emmy.ir.build import iadd

    for m in kernel.maps:
        if len(m.strides) > 1:
            wrong = replace(m, strides=(*m.strides[:-2], iadd(m.strides[-2], 8), m.strides[-1]))
            maps = tuple(wrong if x is m else x for x in kernel.maps)
            yield Mutant("tensor map stride", m.name, replace(kernel, maps=maps))


def map_swizzle(kernel: Kernel) -> Iterator[Mutant]:
    for m in kernel.maps:
        if m.swizzle:
            maps = tuple(replace(x, swizzle=0) if x is m else x for x in kernel.maps)
            yield Mutant("tensor map swizzle", m.name, replace(kernel, maps=maps))


def fewer_warps(kernel: Kernel) -> Iterator[Mutant]:
    """A role with a warp less, and the next one with a warp more."""
    for s in sites(kernel):
        t = s.statement
        if isinstance(t, Roles) and len(t.roles) > 1 and t.roles[0].warps > 1:
            a, b, *rest = t.roles
            moved = (replace(a, warps=a.warps - 1), replace(b, warps=b.warps + 1), *rest)
            yield anywhere("a warp in another role", kernel, s, replace(t, roles=moved))


RING_OPERATORS: Final[dict[str, Operator]] = {
    "rings not initialized": dropping("rings not initialized", InitRings),
    "ring wait dropped": dropping("ring wait dropped", RingWait),
    "ring arrive dropped": dropping("ring arrive dropped", RingArrive),
    "copy arrive dropped": dropping("copy arrive dropped", CopyArrive),
    "wrong side of a ring": other_side,
    "arrival count + 1": _arrivals("arrival count + 1", 1),
    "arrival count - 1": _arrivals("arrival count - 1", -1),
    "arrived twice": arrived_twice,
    "slot released early": released_early,
    "parity two phases ahead": two_phases_ahead,
    "advanced twice": advanced_twice,
    "advance dropped": dropping("advance dropped", Advance),
    "bytes announced + 16": _announced("bytes announced + 16", 16),
    "bytes announced - 16": _announced("bytes announced - 16", -16),
    "TMA load dropped": dropping("TMA load dropped", TmaLoad),
    "TMA into the next slot": next_slot,
    "box moved by one": box_moved,
    "tensor map stride": map_stride,
    "tensor map swizzle": map_swizzle,
    "proxy fence dropped": dropping("proxy fence dropped", ProxyFence),
    "proxy fence behind the release": fence_behind_release,
    "wgmma fence dropped": dropping("wgmma fence dropped", WgmmaFence),
    "wgmma commit dropped": dropping("wgmma commit dropped", WgmmaCommit),
    "wgmma wait dropped": dropping("wgmma wait dropped", WgmmaWait),
    "wgmma wait pending + 1": wgmma_wait_for_one_less,
    "wgmma further along k": further_along_k,
    "wgmma accumulate flipped": accumulate_flipped,
    "wgmma factors exchanged": factors_exchanged,
    "wgmma factor of another step": other_set,
    "one set of factors": same_set,
    "wgmma registers exchanged": registers_exchanged,
    "named barrier dropped": dropping("named barrier dropped", NamedBarrier),
    "named barrier threads + 32": _named("named barrier threads + 32", 32),
    "named barrier threads - 32": _named("named barrier threads - 32", -32),
    "another named barrier": other_barrier,
    "cluster barrier dropped": dropping("cluster barrier dropped", ClusterBarrier),
    "dependent wait dropped": dropping("dependent wait dropped", DependentWait),
    "TMA store dropped": dropping("TMA store dropped", TmaStore),
    "bulk commit dropped": dropping("bulk commit dropped", BulkCommit),
    "bulk wait dropped": dropping("bulk wait dropped", BulkWait),
    "bulk wait pending + 1": bulk_wait_for_one_less,
    "stmatrix trans": turned_store,
    "a warp in another role": fewer_warps,
}
