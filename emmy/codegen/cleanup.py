"""Removes registers that nothing reads: families name what they may need, and not every kernel needs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from emmy.ir.kernel import (
    Declare,
    Elem,
    Kernel,
    Let,
    Load,
    LoadVector,
    Role,
    S,
    ShiftVector,
    Shuffle,
    StoreVector,
    Var,
    Vote,
    Wgmma,
    bodies,
    children,
    walk,
    with_bodies,
)


def without_dead_registers(kernel: Kernel) -> Kernel:
    """The kernel without `Let`s, loads and declarations whose names are never used."""
    while True:
        used = set(_used(kernel.body))
        body = _pruned(kernel.body, used)
        if body == kernel.body:
            return kernel
        kernel = replace(kernel, body=body)


def _used(body: tuple[S, ...]) -> Iterator[str]:
    for s in walk(body):
        if isinstance(s, LoadVector | StoreVector):
            yield s.array
        elif isinstance(s, ShiftVector):
            yield from (s.array, s.source)
        elif isinstance(s, Wgmma):
            yield s.acc
        for child in children(s):
            if not isinstance(child, S | Role):
                yield from _names(child)


def _names(x: object) -> Iterator[str]:
    if isinstance(x, Var):
        yield x.name
    if isinstance(x, Elem):
        yield x.array
    for child in children(x):
        yield from _names(child)


def _pruned(body: tuple[S, ...], used: set[str]) -> tuple[S, ...]:
    kept: list[S] = []
    for s in body:
        if isinstance(s, Let | Load | Declare | Shuffle | Vote) and s.name not in used:
            continue
        s = with_bodies(s, lambda inner: _pruned(inner, used))
        if bodies(s) and not any(bodies(s)):
            continue
        kept.append(s)
    return tuple(kept)
