"""What tests of single statements share: a kernel of a few statements on x, y and a shared buffer s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from emmy.codegen.expr import BID, TID, add, i32, mul
from emmy.codegen.simulate import Finding, Simulation, simulate
from emmy.ir.kernel import (
    Buffer,
    Kernel,
    Lit,
    Load,
    Param,
    Place,
    S,
    Var,
    X,
)
from emmy.ir.loop import const
from emmy.ir.target import target

CARD = target("sm_90a")
PARAMS = (Param("x", "f32", "in"), Param("y", "f32", "out"))
V = Var("v", "f32")
CELLS = Buffer("s", "f32", (256,))
Array = np.ndarray[Any, Any]


def kernel(*body: S, threads: int = 64, blocks: int = 1, params: tuple[Param, ...] = PARAMS, **options: Any) -> Kernel:
    return Kernel("k", "test", params, (CELLS,), (const(blocks), const(1), const(1)), threads, body, **options)


def run(k: Kernel, given: Mapping[str, Array | int] | None = None, seed: int = 0) -> Simulation:
    """x is 0, 1, 2 …, 256 of them; y has an element a thread of the grid unless it is given."""
    (grid,) = {e.value for e in k.grid[:1]}  # type: ignore[union-attr]
    results = {p.name: int(grid) * k.threads for p in k.params if p.role == "out"} | dict(given or {})
    return simulate(k, CARD, {"x": np.arange(256, dtype=np.float32)}, {}, results, seed=seed)


def found(k: Kernel, given: Mapping[str, Array | int] | None = None) -> list[tuple[str, str]]:
    return [(f.kind, f.buffer) for f in run(k, given).findings]


def only(k: Kernel, given: Mapping[str, Array | int] | None = None) -> Finding:
    (finding,) = run(k, given).findings
    return finding


def x(index: X | int, type: str = "f32") -> Place:
    return Place("global", "x", (i32(index) if isinstance(index, int) else index,), type)


def y(index: X | int, type: str = "f32") -> Place:
    return Place("global", "y", (i32(index) if isinstance(index, int) else index,), type)


def s(index: X | int) -> Place:
    return Place("shared", "s", (i32(index) if isinstance(index, int) else index,), "f32")


ID = add(mul(BID, 64), TID)
READ = Load("v", "f32", x(TID))
ONE = Lit(1.0, "f32")
