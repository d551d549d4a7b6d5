"""Name, then ask: once algebra has saturated, every tensor class gets a number.

From then on requests and answers between egglog and Python are rows of numbers and text.  A class that no source term
numbered is numbered by loading its own row again over numbered operands.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from emmy.egraph.egg import Egg
from emmy.egraph.loading import Shapes
from emmy.ir.loop import Tensor
from emmy.ir.tensor import PRIMITIVES, SIGNATURES

# Positions lie this far apart, so that rows that are appended later find places between operands and results.
ROOM: Final = 8


@dataclass(frozen=True, slots=True)
class Prim:
    """One primitive row: an alternative way to make tensor `result` from `operands` (all by number)."""

    id: int
    kind: str
    args: tuple[object, ...]
    operands: tuple[int, ...]
    result: int


@dataclass(slots=True)
class Numbering:
    """`numbers` maps source term ids to class numbers (equal classes share one)."""

    tensors: dict[int, Tensor]
    order: dict[int, int]
    prims: list[Prim]
    numbers: dict[int, int]
    rules: dict[int, str]


def number(egg: Egg, shapes: Shapes) -> Numbering:
    """Number every class of sort T; load numbers, ords and primitive rows as facts for the later rules."""
    frozen = egg.freeze()
    number_of: dict[Any, int] = {}
    numbers: dict[int, int] = {}
    for i, value in sorted(frozen.rows("node"), key=lambda r: r[0]):
        number_of.setdefault(value, i)
        numbers[i] = number_of[value]
    pending = [(kind, row[:-1], row[-1]) for kind in SIGNATURES if kind != "Input" for row in frozen.rows(kind)]
    _assign(egg, pending, number_of, max(numbers, default=-1) + 1)
    egg.run("load", saturate=True)
    egg.run("analysis", saturate=True)
    frozen = egg.freeze()
    numbers = {}
    by_value: dict[Any, int] = {}
    for i, value in sorted(frozen.rows("node"), key=lambda r: r[0]):
        by_value.setdefault(value, i)
        numbers[i] = by_value[value]
    shape = {by_value[v]: shapes.shapes[s] for v, s in frozen.rows("shape") if v in by_value}
    dtype = {by_value[v]: d for v, d in frozen.rows("dtype") if v in by_value}
    order = {by_value[v]: o for v, o in frozen.rows("ord") if v in by_value}
    tensors = {i: Tensor("f32" if dtype[i] == "weak" else dtype[i], shape[i]) for i in shape}
    prims, rules = _prims(frozen, by_value, shapes)
    settled = settle(prims, order, {by_value[v] for _, v in frozen.rows("Input")})
    order = {t: ROOM * place for t, place in settled.items()}
    load_facts(egg, prims, order)
    return Numbering(tensors, order, prims, numbers, rules)


def settle(prims: Iterable[Prim], order: Mapping[int, int], inputs: Iterable[int]) -> dict[int, int]:
    """Positions in which every class that rows can make has a row whose operands all come before it.

    A rule spaces its nodes between its operands and its result, but the result may move down afterwards (it merges with
    another class), to the place of a node that it is made of.  Such a class is moved up again, as little as possible.
    """
    readers: dict[int, list[Prim]] = defaultdict(list)
    waiting: dict[int, int] = {}
    queue = [(order[t], t) for t in inputs]
    for p in prims:
        waiting[p.id] = len(set(p.operands))
        for x in set(p.operands):
            readers[x].append(p)
        if not p.operands:
            queue.append((order[p.result], p.result))
    heapq.heapify(queue)
    settled: dict[int, int] = {}
    while queue:
        at, t = heapq.heappop(queue)
        if t in settled:
            continue
        settled[t] = at
        for p in readers[t]:
            waiting[p.id] -= 1
            if not waiting[p.id]:
                after = max(settled[x] for x in p.operands) + 1
                heapq.heappush(queue, (max(order[p.result], after), p.result))
    return {**order, **settled}


def _assign(egg: Egg, rows: list[Any], number_of: dict[Any, int], next_number: int) -> None:
    """Operands first: a class whose operands are numbered gets the next number, by the least of its rows.

    Of the rows that are ready the least is taken, by constructor, arguments and operands' numbers, so that numbers do
    not depend on the order in which the e-graph gives its rows.
    """
    waiting: dict[int, int] = {}
    readers: dict[Any, list[int]] = defaultdict(list)
    ready: list[tuple[tuple[str, ...], int]] = []

    def cells(k: int) -> list[object]:
        kind, args, _ = rows[k]
        return [number_of[a] if c == "t" else a for a, c in zip(args, SIGNATURES[kind], strict=True)]

    def push(k: int) -> None:
        key = (rows[k][0], *(f"{c:09d}" if isinstance(c, int) else str(c) for c in cells(k)))
        heapq.heappush(ready, (key, k))

    for k, (kind, args, _) in enumerate(rows):
        missing = {a for a, c in zip(args, SIGNATURES[kind], strict=True) if c == "t" and a not in number_of}
        waiting[k] = len(missing)
        for a in missing:
            readers[a].append(k)
        if not missing:
            push(k)
    tables: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    while ready:
        _, k = heapq.heappop(ready)
        kind, _, value = rows[k]
        if value in number_of:
            continue
        number_of[value] = next_number
        tables[f"r{kind}"].append((next_number, "", *cells(k)))  # the e-node stands already, with its rule
        next_number += 1
        for reader in readers.pop(value, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                push(reader)
    if any(value not in number_of for _, _, value in rows):
        raise AssertionError("a class of the model e-graph has no operands in order: a rule built a cycle")
    for relation, facts in tables.items():
        egg.facts(relation, facts)


def _prims(frozen: Any, by_value: dict[Any, int], shapes: Shapes) -> tuple[list[Prim], dict[int, str]]:
    prims: list[Prim] = []
    rules: dict[int, str] = {}
    for kind in SIGNATURES:
        if kind == "Input" or kind not in PRIMITIVES:
            continue
        signature = SIGNATURES[kind]
        made_by = {_key(args, by_value): rule for args, rule in frozen.makers(kind).items()}
        for row in sorted(frozen.rows(kind), key=lambda r: _key(r, by_value)):
            *args, value = row
            operands = tuple(by_value[a] for a, k in zip(args, signature, strict=True) if k == "t")
            plain = tuple(shapes.shapes[a] if k == "h" else a for a, k in zip(args, signature, strict=True) if k != "t")
            rules[len(prims)] = made_by.get(_key(args, by_value), "")
            prims.append(Prim(len(prims), kind, plain, operands, by_value[value]))
    return prims, rules


def _key(row: Any, by_value: dict[Any, int]) -> tuple[str, ...]:
    return tuple(f"{c:09d}" if isinstance(c, int) else c if isinstance(c, str) else f"{by_value[c]:09d}" for c in row)


def load_facts(egg: Egg, prims: Iterable[Prim], order: Mapping[int, int]) -> None:
    """Primitive rows and positions of tensors, as the lift rules read them."""
    egg.facts("at", [(i, o) for i, o in sorted(order.items())])
    tables: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    for p in prims:
        tables[f"prim{len(p.operands)}"].append((p.id, p.kind, p.result, *p.operands))
    for relation, facts in tables.items():
        egg.facts(relation, facts)
