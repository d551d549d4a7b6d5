"""Whether a compiled program gives the right values: against float64, with eager PyTorch as the measure of rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from emmy.executable import Executable
from emmy.frontend.program import Program
from emmy.frontend.reference import interpret
from emmy.ir.evaluate import integer
from emmy.ir.graph import Graph, Output, Ref
from emmy.ir.loop import Body, Fold, Online, Scan
from emmy.planning import ChosenOpaque
from emmy.runtime.numerics import Comparison, compare
from emmy.saturation import Saturation

# eager's own error against float64 is allowed this many times: two orders of summation differ by about as much
EAGER_FACTOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Checked:
    """One output: `ours` and `eager` against float64.  `ok`: within tolerance, or no further off than eager rounds."""

    name: str
    ours: Comparison
    eager: Comparison

    @property
    def ok(self) -> bool:
        if self.ours.ok:
            return True
        return self.ours.nonfinite <= self.eager.nonfinite and self.ours.error <= EAGER_FACTOR * self.eager.error


def check(s: Saturation, run: Executable, inputs: Sequence[Tensor]) -> list[Checked]:
    """Run the program once on copies of `inputs` (user tensors in graph order, on the GPU) and compare every output.

    New contents of updated inputs and buffers count as outputs.
    """
    program = s.program
    weights = {n: program.weights[n].to(run.device) for n in program.weights}
    before = {n: t.clone() for n, t in weights.items()}
    exact = interpret(program.graph, before, _copies(inputs), torch.float64)
    eager = interpret(program.graph, before, _copies(inputs))
    given = _copies(inputs)
    ours = results_in_order(program.graph, run.run_flat(given), given, run.module.state)
    terms, stores = longest_sum(s), longest_chain(s)
    found: list[Checked] = []
    for o, mine, theirs, want in zip(program.graph.outputs, ours, eager, exact, strict=True):
        if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and isinstance(want, Tensor):
            both = [
                compare(t, want, terms=terms, stores=stores, numerics=s.options.target.numerics) for t in (mine, theirs)
            ]
            found.append(Checked(_name(o), both[0], both[1]))
    return found


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def _name(o: Output) -> str:
    made = o.value.name if isinstance(o.value, Ref) else str(o.value)
    return f"{made} -> {o.mutates}" if o.mutates else made


def results_in_order(
    graph: Graph, returned: Sequence[Any], inputs: Sequence[Tensor], state: Mapping[str, Tensor]
) -> list[Any]:
    """Values of `graph.outputs` after a call: what it returned, and what it left in inputs and buffers."""
    user = [i.name for i in graph.inputs if i.kind == "user"]
    places = dict(zip(user, inputs, strict=True))
    places.update({i.name: state[i.target] for i in graph.inputs if i.kind != "user" and i.target in state})
    values = iter(returned)
    return [places[o.mutates] if o.mutates else next(values) for o in graph.outputs]


def longest_sum(s: Saturation) -> int:
    """How many terms may add up to one element, over all launches."""
    sizes = {v.name: v.example for v in s.program.graph.sizes}
    return max(1, sum(_terms(c.priced.body, sizes) for c in s.launches))


def _terms(body: Body, sizes: Mapping[str, int]) -> int:
    axes = {n.axis for n in body.nodes if isinstance(n, Fold | Scan | Online)}
    return max((integer(a.extent, sizes) for a in axes), default=0)


def longest_chain(s: Saturation) -> int:
    """How many stored values lie on the longest way from an input to an output, the output left out."""
    depth: dict[str, int] = {}
    for c in s.chosen:
        work = 1 + max((depth.get(x, 0) for x in c.operands), default=0)
        at_build = not isinstance(c, ChosenOpaque) and c.at_build
        depth.update(dict.fromkeys(c.results, 0 if at_build else work))
    return max([*depth.values(), 1]) - 1


def example_inputs(program: Program, device: torch.device, seed: int | None = None) -> list[Tensor]:
    """The example's tensors on a device; with a seed, the elements of floating ones are shuffled by it."""
    tensors = [t.detach() for t in program.example_tensors()]
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        tensors = [_shuffled(t, generator) if t.is_floating_point() else t for t in tensors]
    return [t.to(device) for t in tensors]


def _shuffled(t: Tensor, generator: torch.Generator) -> Tensor:
    return t.reshape(-1)[torch.randperm(t.numel(), generator=generator).to(t.device)].reshape(t.shape)
