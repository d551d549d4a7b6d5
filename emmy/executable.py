"""A compiled program that takes the user's arguments and returns the user's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from emmy.frontend.opaque import run_node
from emmy.frontend.program import Program
from emmy.ir.graph import Node
from emmy.ir.plan import Plan
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module


class Executable:
    """Call it as the module or function that was captured: same arguments on the GPU, same structure of results.

    Inputs that the model updates are updated in place.  Results carry no gradient.  Errors: UsageError for arguments of
    another structure than the example's, InputError for a tensor of another type, place or shape.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        *,
        device: str | torch.device = "cuda",
        poison: bool | None = None,
        cache: CubinCache | None = None,
    ) -> None:
        self.program, self.plan = program, plan
        self.module = Module(plan, program.weights, device=device, opaque=self._opaque, poison=poison, cache=cache)

    @property
    def device(self) -> torch.device:
        return self.module.device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program.unflatten(self.module(*self.program.flatten(args, kwargs)))

    def run_flat(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The plan's outputs that update nothing, from its tensor inputs in graph order."""
        return self.module(*tensors)

    def close(self) -> None:
        self.module.close()

    def _opaque(self, node: Node, tensors: list[Tensor], sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
        return run_node(node, tensors, sizes, self.module.device)
