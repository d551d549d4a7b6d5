"""Runs one kernel of one body in the simulator and compares it with the evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from emmy.codegen.simulate import Simulation, simulate
from emmy.ir.evaluate import evaluate, integer
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body
from emmy.ir.target import Target
from tests import host_cuda
from tests.codegen.check import Array, distance, operands


def launch(
    body: Body, kernel: Kernel, card: Target, sizes: Mapping[str, int] | None = None,
    given: list[Array] | None = None, seed: int = 0,
) -> tuple[list[Array], Simulation]:  # fmt: skip
    """The results in the shapes of the body, and what the simulator says."""
    sizes = sizes or {}
    arrays = operands(body, sizes) if given is None else given
    ins, outs = ([p for p in kernel.params if p.role == role] for role in ("in", "out"))
    operand = {p.name: a.astype(host_cuda.NUMPY[p.type], copy=False) for p, a in zip(ins, arrays, strict=True)}
    shapes = [tuple(integer(e, sizes) for e in o.tensor.shape) for o in body.outs]
    room = {p.name: prod(s) for p, s in zip(outs, shapes, strict=True)}
    found = simulate(kernel, card, operand, sizes, room, seed=seed)
    return [found.outputs[p.name].reshape(s) for p, s in zip(outs, shapes, strict=True)], found


def compare(
    body: Body, kernel: Kernel, card: Target, sizes: Mapping[str, int] | None = None,
    given: list[Array] | None = None, seed: int = 0,
) -> tuple[float, Simulation]:  # fmt: skip
    """Largest error over all results, in the units of `distance`, and what the simulator says."""
    results, found = launch(body, kernel, card, sizes, given, seed)
    arrays = operands(body, sizes or {}) if given is None else given
    return distance(body, results, evaluate(body, arrays, sizes)), found
