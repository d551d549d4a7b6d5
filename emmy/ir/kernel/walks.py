"""Ways through Kernel IR: the parts of a node, every statement of a body, bodies rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import get_args

from emmy.ir.kernel.memory import Matrix, Place
from emmy.ir.kernel.statements import For, If, Role, Roles, S
from emmy.ir.kernel.values import X

NODES = (*get_args(X), *get_args(S), Place, Matrix, Role)


def children(node: object) -> Iterator[object]:
    """Values, places, matrices, roles and statements directly inside a node."""
    if not is_dataclass(node):
        return
    for f in fields(node):
        v = getattr(node, f.name)
        items = v if isinstance(v, tuple) else (v,)
        yield from (i for i in items if isinstance(i, NODES))


def operands(node: object) -> Iterator[object]:
    """What a node reads or names itself: its children, without the statements inside of it."""
    if isinstance(node, For):
        return iter((node.start, node.stop, node.step))
    if isinstance(node, If):
        return iter((node.cond,))
    return iter(()) if isinstance(node, Roles) else children(node)


def bodies(s: S) -> tuple[tuple[S, ...], ...]:
    """The statement lists inside a statement."""
    if isinstance(s, For):
        return (s.body,)
    if isinstance(s, If):
        return (s.then, s.orelse)
    if isinstance(s, Roles):
        return tuple(r.body for r in s.roles)
    return ()


def with_bodies(s: S, change: Callable[[tuple[S, ...]], tuple[S, ...]]) -> S:
    """The statement with every statement list inside of it changed."""
    if isinstance(s, For):
        return replace(s, body=change(s.body))
    if isinstance(s, If):
        return replace(s, then=change(s.then), orelse=change(s.orelse))
    if isinstance(s, Roles):
        return replace(s, roles=tuple(replace(r, body=change(r.body)) for r in s.roles))
    return s


def walk(body: tuple[S, ...]) -> Iterator[S]:
    """Every statement, outer before inner."""
    for s in body:
        yield s
        for inner in bodies(s):
            yield from walk(inner)
