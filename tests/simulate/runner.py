"""Simulates kernels of the row suite and holds their values to the float64 evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from emmy.codegen.simulate import simulate
from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import evaluate
from emmy.ir.kernel import Kernel
from tests import host_cuda
from tests.codegen import check
from tests.simulate.cases import CARD, Array, Case, Sample

if TYPE_CHECKING:
    from emmy.codegen.simulate import Simulation

# Units of `check.distance`.  A half-precision result takes half of one for its rounding, and as much for rounded
# factors; f32 prefixes of 1500 terms take 4.
HALF, SINGLE = 2.0, 16.0


@dataclass(frozen=True)
class Checked:
    """`worst`: largest error over what is allowed (of exact cases: 0, or infinity where a bit differs)."""

    simulation: Simulation
    worst: float

    @property
    def wrong(self) -> bool:
        return not self.worst < 1.0

    @property
    def text(self) -> str:
        lines = [str(f) for f in self.simulation.findings]
        return "\n".join([*lines, f"worst error {self.worst}"] if self.wrong or not lines else lines)


def initial(case: Case, inputs: Sequence[Array]) -> list[Array | int]:
    """What every result holds before the launch, or how many elements it has."""
    made: list[Array | int] = []
    for k, (out, shape) in enumerate(zip(case.body.outs, case.results(), strict=True)):
        size = int(np.prod(shape, dtype=np.int64))
        if out.into >= 0:  # an update writes where its operand lies
            made.append(inputs[out.into].reshape(-1).copy())
        elif k in case.zeroed:
            made.append(np.zeros(size, host_cuda.NUMPY[out.tensor.dtype]))
        else:
            made.append(size)
    return made


def simulate_case(
    case: Case, kernel: Kernel, inputs: Sequence[Array], seed: int = 0, count: bool = False
) -> Simulation:
    ins = [p.name for p in kernel.params if p.role == "in"]
    outs = [p.name for p in kernel.params if p.role == "out"]
    arrays = dict(zip(ins, inputs, strict=True))
    results = dict(zip(outs, initial(case, inputs), strict=True))
    return simulate(kernel, CARD, arrays, case.sizes, results, seed=seed, count=count)


def expected(case: Case, inputs: Sequence[Array]) -> list[Array]:
    return evaluate(case.body, list(inputs), dict(case.sizes))


def found(case: Case, kernel: Kernel, outputs: Mapping[str, Array]) -> list[Array]:
    """Flat results of a kernel's parameters in the body's order and shapes."""
    outs = [p for p in kernel.params if p.role == "out"]
    return [
        np.asarray(outputs[p.name]).view(host_cuda.NUMPY[p.type]).reshape(shape)
        for p, shape in zip(outs, case.results(), strict=True)
    ]


def distance(case: Case, arrays: Sequence[Array], reference: Sequence[Array], exact: bool) -> float:
    if exact:
        with np.errstate(all="ignore"):
            same = [np.array_equal(a, e.astype(a.dtype)) for a, e in zip(arrays, reference, strict=True)]
        return 0.0 if all(same) else float("inf")
    worst = 0.0
    for a, e, o in zip(arrays, reference, case.body.outs, strict=True):
        if not np.array_equal(np.isnan(np.asarray(e, np.float64)), np.isnan(np.asarray(a, np.float64))):
            return float("inf")
        allowed = case.units or (HALF if DTYPES[o.tensor.dtype].bits < 32 else SINGLE)
        with np.errstate(invalid="ignore"):  # infinities that agree
            worst = max(worst, check.distance(replace(case.body, outs=(o,)), [a], [e]) / allowed)
    return worst


def checked(case: Case, kernel: Kernel, seed: int = 0, kind: str = "", count: bool = False) -> Checked:
    """One launch on seeded inputs of a kind (`Case.inputs`)."""
    inputs = case.inputs(seed, kind)
    simulation = simulate_case(case, kernel, inputs, seed, count)
    exact = case.exact and kind in ("", "integer")
    arrays = found(case, kernel, simulation.outputs)
    return Checked(simulation, distance(case, arrays, expected(case, inputs), exact))


def check_sample(sample: Sample, seed: int = 0, count: bool = False) -> Checked:
    return checked(sample.case, sample.kernel, seed, count=count)
