"""A chosen plan without a GPU: its bodies one after another through the evaluator, on numpy arrays.

What a plan says must be right before its kernels can be.  Each launch reads and writes the buffers that the plan gives
it, so a wrong operand, order or in-place write shows here; results start as NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emmy.errors import InputError
from emmy.ir.evaluate import evaluate
from emmy.ir.graph import Ref
from emmy.planning import Chosen, ChosenOpaque

if TYPE_CHECKING:
    import torch

    from emmy.saturation import Saturation

Array = npt.NDArray[Any]


def interpret_plan(
    s: Saturation, inputs: Sequence[torch.Tensor], rounding: bool = False
) -> list[torch.Tensor | int | float | bool | None]:
    """Values of the plan's outputs, in order (new contents of updated inputs included), on the CPU.

    Args:
        inputs: the user's tensors in graph order, of any length that the program's symbolic sizes allow; UsageError
            for others.
        rounding: compute in f32 and round each store and cast to its type; else floats are float64 throughout.
    """
    run = _Run(s, inputs, rounding)
    for c in s.chosen:
        run.launch(c)
    return [run.tensor(o.value.name) if isinstance(o.value, Ref) else o.value for o in s.plan.outputs]


class _Run:
    def __init__(self, s: Saturation, inputs: Sequence[torch.Tensor], rounding: bool) -> None:
        from emmy.frontend.symbolic import bind_sizes

        self.rounding, self.real = rounding, np.float32 if rounding else np.float64
        user = [i for i in s.program.graph.inputs if i.kind == "user"]
        if len(user) != len(inputs):
            raise InputError(f"the plan takes {len(user)} tensors, got {len(inputs)}")
        self.sizes = bind_sizes([(i.name, i.tensor) for i in user], list(inputs), s.program.graph.sizes)
        self.types = s.program.graph.tensors
        self.arrays = {i.name: self.held(t) for i, t in zip(user, inputs, strict=True)}
        for held in s.program.graph.inputs:
            if held.kind != "user":
                self.arrays[held.name] = self.held(s.program.weights[held.target])

    def held(self, t: torch.Tensor) -> Array:
        """A copy of a tensor as the evaluator holds it: floats in the type of the arithmetic."""
        t = t.detach().cpu()
        return np.array(t.double().numpy(), self.real) if t.is_floating_point() else np.array(t.numpy())

    def tensor(self, name: str) -> torch.Tensor:
        import torch

        return torch.from_numpy(np.array(self.arrays[name], order="C"))

    def launch(self, c: Chosen | ChosenOpaque) -> None:
        made = self.opaque(c) if isinstance(c, ChosenOpaque) else self.kernel(c)
        self.arrays.update(zip(c.results, made, strict=True))

    def kernel(self, c: Chosen) -> list[Array]:
        return evaluate(c.priced.body, [self.arrays[n] for n in c.operands], self.sizes, self.rounding, self.real)

    def opaque(self, c: ChosenOpaque) -> list[Array]:
        import torch

        from emmy.frontend.fx import node_refs
        from emmy.frontend.opaque import run_node

        widen = torch.float32 if self.rounding else torch.float64
        stored = [self.types[n].dtype for n in node_refs(c.node)]
        made = run_node(c.node, [self.tensor(n) for n in c.operands], self.sizes, "cpu", widen, stored)
        return [self.held(t) for t in made]
