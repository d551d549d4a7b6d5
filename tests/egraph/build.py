"""Small programs of Tensor IR, saturated, and what their launches mean.

`P` builds a program, `P.saturate` gives its model e-graph, `values` the value of every numbered tensor, and `plans`
random sets of launches that make the outputs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emmy.egraph.fusion import Launch
from emmy.egraph.model import Limits, ModelGraph, saturate
from emmy.ir.dtype import DTYPES, is_float
from emmy.ir.evaluate import evaluate
from emmy.ir.lift import lift
from emmy.ir.loop import Body, Expr, Fold, Online, Scan, Tensor, const
from emmy.ir.tensor import Program, Terms, coordinates
from emmy.resources import rulesets
from tests.strategies import operand

Array = Any


# How often a random plan prefers launches that were composed of others.
FUSED = 0.5


def extents(*shape: int | Expr) -> tuple[Expr, ...]:
    return tuple(const(n) if isinstance(n, int) else n for n in shape)


@dataclass
class P:
    """A program under construction: `t` takes operations, `input` and `param` declare operands (first)."""

    t: Terms = field(default_factory=Terms)
    params: set[int] = field(default_factory=set)
    outputs: tuple[int, ...] = ()

    def input(self, *shape: int | Expr, dtype: str = "f32") -> int:
        return self.t.input(Tensor(dtype, extents(*shape)))

    def param(self, *shape: int | Expr, dtype: str = "f32") -> int:
        x = self.input(*shape, dtype=dtype)
        self.params.add(x)
        return x

    def linear(self, x: int, w: int) -> int:
        """x[.., k] times w[n, k] transposed."""
        (*lead, k), n = self.t.shape(x), self.t.shape(w)[0]
        m = len(lead)
        full, out = (*lead, k, n), (*lead, n)
        d, o = coordinates(full), coordinates(out)
        return self.t.contract("linear", x, d[: m + 1], w, (d[m + 1], d[m]), full, (m,), out, (*o[:m], const(0), o[m]))

    def matmul(self, x: int, y: int) -> int:
        """x[m, k] times y[k, n]."""
        (a, k), n = self.t.shape(x), self.t.shape(y)[1]
        full, out = (a, k, n), (a, n)
        d, o = coordinates(full), coordinates(out)
        return self.t.contract("matmul", x, d[:2], y, d[1:], full, (1,), out, (o[0], const(0), o[1]))

    def program(self, *outputs: int) -> Program:
        self.outputs = outputs or self.outputs
        return Program(tuple(self.t.terms), self.outputs, frozenset(self.t.facts))

    def saturate(self, *outputs: int, held: Iterable[str] = (), relaxed: bool = False, stages: str = "dolf",
                 limits: Limits | None = None, sizes: Mapping[str, int] | None = None) -> ModelGraph:  # fmt: skip
        return saturate(
            self.program(*outputs), rulesets(), parameters=frozenset(self.params), sizes=sizes or {},
            held=frozenset(held), relaxed=relaxed, stages=stages, limits=limits or Limits(),
        )  # fmt: skip

    def arrays(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> list[Array]:
        """Values of the inputs: standard normal, or small numbers for integers."""
        inputs = [t for t in self.t.terms if t.kind == "Input"]
        return [operand(t.tensor, sizes or {}, seed * 100 + k) for k, t in enumerate(inputs)]


# ---- what a saturated program means --------------------------------------------------------------------------------


def bind(model: ModelGraph, arrays: Sequence[Array]) -> dict[int, Array]:
    return dict(zip(model.inputs, arrays, strict=True))


def values(model: ModelGraph, arrays: Sequence[Array], sizes: Mapping[str, int] | None = None) -> dict[int, Array]:
    """The value of every tensor that primitives can make, in float64; every row of a class must agree."""
    found = bind(model, arrays)
    n = model.numbering
    for p in sorted(n.prims, key=lambda p: (n.order[p.result], p.id)):
        if any(x not in found or n.order[x] >= n.order[p.result] for x in p.operands):
            continue
        body, slots = lift(p.kind, p.args, [n.tensors[x] for x in p.operands], n.tensors[p.result])
        value = evaluate(body, [found[p.operands[s]] for s in slots], sizes)[0]
        known = found.setdefault(p.result, value)
        agree(value, known, f"{p} (by rule {n.rules[p.id] or 'source'})")
    return found


def agree(found: Array, expected: Array, what: str, tolerance: float = 1e-9) -> None:
    """Equal over the reals: floats up to the order of sums (relative to the largest magnitude), the rest exactly."""
    assert found.shape == expected.shape, what
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale, err_msg=what)


@dataclass(frozen=True)
class Step:
    """A launch of a plan with the body it runs (as composed, or as the loop rules improved it)."""

    launch: Launch
    body: Body

    @property
    def fused(self) -> bool:
        """Holds a reduction or contraction together with another launch's work."""
        return bool(self.launch.parents) and any(isinstance(n, Fold | Scan | Online) for n in self.body.nodes)


def makers(model: ModelGraph) -> dict[int, list[Launch]]:
    """Closed launches by the tensors they make, those left out whose operands nothing can make."""
    closed = sorted(model.closed, key=lambda l: l.id)
    order = model.numbering.order
    can = set(model.inputs)
    rest = sorted(closed, key=lambda l: max(order[t] for t in l.results))
    while ready := [l for l in rest if all(x in can for x in l.operands)]:
        rest = [l for l in rest if l not in ready]
        can.update(t for l in ready for t in l.results)
    made: dict[int, list[Launch]] = defaultdict(list)
    for l in closed:
        if all(x in can for x in l.operands):
            for t in l.results:
                made[t].append(l)
    return made


def plans(model: ModelGraph, rng: random.Random, count: int) -> Iterator[tuple[Step, ...]]:
    """Up to `count` different random plans; operands come before results in every one."""
    made = makers(model)
    seen: set[tuple[tuple[int, str], ...]] = set()
    for _ in range(4 * count):
        if len(seen) == count:
            return
        steps = _random_plan(model, made, rng)
        key = tuple(sorted((s.launch.id, s.body.hash) for s in steps))
        if key not in seen:
            seen.add(key)
            yield steps


def _random_plan(model: ModelGraph, made: Mapping[int, list[Launch]], rng: random.Random) -> tuple[Step, ...]:
    """A random walk from the outputs down.  Operands of a launch come before each of its results, so that launches in
    the order of their first results can run."""
    order = model.numbering.order
    wanted = {t for t in model.outputs if t not in model.inputs}
    done = set(model.inputs)
    steps: list[Step] = []
    while wanted:
        t = max(wanted, key=lambda t: (order[t], t))
        l = rng.choice([l for l in made[t] if l.parents and rng.random() < FUSED] or made[t])
        best = model.loops.best(l.body)
        steps.append(Step(l, best if rng.random() < 0.5 else l.body))
        done.update(l.results)
        wanted = (wanted | set(l.operands)) - done
    return tuple(sorted(steps, key=lambda s: min(order[t] for t in s.launch.results)))


def execute(
    model: ModelGraph, steps: Sequence[Step], arrays: Sequence[Array], sizes: Mapping[str, int] | None = None,
    rounding: bool = False, noise: np.random.Generator | None = None,
) -> list[Array]:  # fmt: skip
    """Outputs of a plan.  With `rounding` in f32, each store rounded to its type; with `noise` over the reals, each
    stored value off by up to the rounding error of its type."""
    found = bind(model, arrays)
    for s in steps:
        dtype = np.float32 if rounding else np.float64
        made = evaluate(s.body, [found[x] for x in s.launch.operands], sizes, rounding=rounding, dtype=dtype)
        if noise is not None:
            made = [_noisy(x, model.numbering.tensors[t], noise) for x, t in zip(made, s.launch.results, strict=True)]
        found.update(zip(s.launch.results, made, strict=True))
    return [found[t] for t in model.outputs]


def _noisy(x: Array, tensor: Tensor, noise: np.random.Generator) -> Array:
    return x * (1 + noise.uniform(-0.5, 0.5, x.shape) * DTYPES[tensor.dtype].epsilon) if is_float(tensor.dtype) else x


# ---- comparison of e-graphs ----------------------------------------------------------------------------------------


class Registry:
    """Names tensors by what they hold, so that runs whose classes are numbered differently can be compared."""

    def __init__(self) -> None:
        self.known: list[tuple[str, Array]] = []

    def name(self, tensor: Tensor, value: Array) -> int:
        for i, (text, array) in enumerate(self.known):
            if text == tensor.text and np.allclose(value, array, rtol=1e-7, atol=1e-9, equal_nan=True):
                return i
        self.known.append((tensor.text, value))
        return len(self.known) - 1

    def names(self, model: ModelGraph, arrays: Sequence[Array]) -> dict[int, int]:
        found = values(model, arrays)
        return {t: self.name(model.numbering.tensors[t], found[t]) for t in sorted(found)}


Key = tuple[str, tuple[int, ...], tuple[int, ...]]


def alternatives(model: ModelGraph) -> list[Launch]:
    """Closed launches that some complete plan holds: their operands can be made, and an output is made from them."""
    made = makers(model)
    found: dict[int, Launch] = {}
    wanted = [t for t in model.outputs if made[t] or t in model.inputs]
    if len(wanted) < len(model.outputs):
        return []
    while wanted:
        for l in made[wanted.pop()]:
            if l.id not in found:
                found[l.id] = l
                wanted += l.operands
    return [found[i] for i in sorted(found)]


def keys(launches: Iterable[Launch], names: Mapping[int, int]) -> dict[Key, Launch]:
    """(body, operands, results) of launches; a copy of a tensor to itself is no launch."""
    found: dict[Key, Launch] = {}
    for l in launches:
        operands, results = (tuple(names[t] for t in ts) for ts in (l.operands, l.results))
        if not set(results) & set(operands):
            found.setdefault((l.body.hash, operands, results), l)
    return found


__all__ = [
    "P", "Registry", "Step", "agree", "alternatives", "bind", "execute", "extents", "keys", "makers", "plans", "values",
]  # fmt: skip
