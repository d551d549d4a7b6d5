"""Where a test's program runs: as kernels on the card, or as its plan in the evaluator, every store rounded.

Both answer alike, so that a test which the evaluator passes says the truth about the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emmy.api import pick_target
from emmy.checking import longest_chain, longest_sum, results_in_order
from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.executable import Executable
from emmy.frontend.program import Program
from emmy.frontend.reference import Value, interpret
from emmy.inspect.interpret_plan import interpret_plan
from emmy.ir.graph import Ref
from emmy.ir.plan import KernelLaunch
from emmy.ir.target import TARGETS
from emmy.ir.torch_types import TORCH
from emmy.runtime.cache import CubinCache
from emmy.runtime.numerics import compare
from emmy.saturation import Options, Saturation, saturate_program
from emmy.selection import Selection


@dataclass(frozen=True)
class Machine:
    """`card`: the GPU; else the evaluator, for an H200.  `folder` takes compiled kernels."""

    card: bool
    folder: Path

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.card else "cpu")

    def options(self, place: str = "") -> Options:
        """Without any evidence, so that the plan does not depend on what this machine once measured."""
        target = pick_target(None) if self.card else TARGETS["sm_90a"]
        return Options(target, place=place, golden="", database=self.folder / "none.duckdb", check=self.card)

    def compile(self, program: Program, place: str = "") -> Compiled:
        cache = CubinCache(self.folder)
        s = saturate_program(program, self.options(place), cache=cache)
        return Compiled(s, Executable(program, s.plan, poison=True, cache=cache) if self.card else None, cache)


@dataclass(frozen=True)
class Compiled:
    saturation: Saturation
    executable: Executable | None
    cache: CubinCache

    @property
    def kernels(self) -> set[tuple[str, str, str]]:
        """(name, body, source) of every launch that is ours."""
        launches = (l for l in self.saturation.plan.launches if isinstance(l, KernelLaunch))
        return {(l.name, l.body, l.source) for l in launches}

    @property
    def terms(self) -> int:
        return longest_sum(self.saturation)

    @property
    def stores(self) -> int:
        return longest_chain(self.saturation)

    def run(self, inputs: Sequence[Tensor]) -> list[Value]:
        """Values of all outputs, updated inputs included; these are updated in place."""
        graph = self.saturation.program.graph
        if self.executable is not None:
            returned = self.executable.run_flat(inputs)
            return results_in_order(graph, returned, inputs, self.executable.module.state)
        names = [i.name for i in graph.inputs if i.kind == "user"]
        found: list[Value] = []
        for o, value in zip(graph.outputs, interpret_plan(self.saturation, inputs, rounding=True), strict=True):
            if isinstance(value, Tensor) and o.mutates in names:
                value = inputs[names.index(o.mutates)].copy_(value)
            found.append(value)
        return found

    def exact(self, inputs: Sequence[Tensor]) -> list[Value]:
        """The same values in float64; the inputs stay as they are."""
        program = self.saturation.program
        return interpret(program.graph, program.weights, [t.clone() for t in inputs], torch.float64)

    def assert_right(self, found: Sequence[Value], exact: Sequence[Value], terms: int = 0) -> None:
        """Within the tolerance of float64.  `terms`: of the sums along symbolic sizes."""
        graph = self.saturation.program.graph
        for f, e, o in zip(found, exact, graph.outputs, strict=True):
            assert isinstance(f, Tensor) and isinstance(e, Tensor) and isinstance(o.value, Ref)
            dtype = TORCH[graph.tensors[o.value.name].dtype]
            comparison = compare(f.to(dtype), e, terms=terms + self.terms, stores=self.stores)
            assert comparison.ok, f"{o.value.name}: {comparison}"


@contextmanager
def launches_where(allowed: Callable[[ModelGraph, Launch], bool]) -> Iterator[None]:
    """Plans are made of those launches alone for which `allowed(model, launch)` holds."""

    def candidates(self: Selection) -> list[Launch]:
        return [l for l in self.model.closed if allowed(self.model, l)]

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Selection, "candidates", candidates)
        yield
