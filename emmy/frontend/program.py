"""A captured program: the Torch IR graph, its weights, and how real arguments map to its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from emmy.errors import UsageError
from emmy.ir.graph import Graph, Input, ScalarInput


class LazyWeights(Mapping[str, torch.Tensor]):
    """Weights that get their values when they are first read.

    The tensors exist from the start but no page of them is touched until `fill(names, tensor)` writes it, so a model of
    16 GB can be captured in little memory.  `unwritten` gives for each name to be filled all names of that tensor (tied
    weights have several; it is filled once); the other tensors have their values.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        fill: Callable[[tuple[str, ...], torch.Tensor], None],
        unwritten: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._tensors = dict(tensors)
        self._fill = fill
        self._unwritten = dict(unwritten)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        names = self._unwritten.get(name)
        if names is not None:
            self._fill(names, tensor)
            for n in names:
                del self._unwritten[n]
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True)
class Program:
    """What the compiler is given.

    graph: the functional Torch IR.
    weights: value of every parameter, buffer and constant, by `Input.target`.
    example_inputs: the positional example arguments, as the user passed them.
    example_kwargs: the keyword arguments.
    module: what runs the same program in eager PyTorch; None for a program that was loaded without code.
    signature: the user's inputs in flattened order; scalars are baked in and checked at each call.
    in_spec, out_spec: pytree specs of `(args, kwargs)` and of the result (`torch.utils._pytree.TreeSpec`).
    notes: what a person should know (random weights, a changed setting); printed on stderr.
    """

    graph: Graph
    weights: Mapping[str, torch.Tensor]
    example_inputs: tuple[Any, ...]
    module: Callable[..., Any] | None
    name: str
    notes: tuple[str, ...] = ()
    example_kwargs: dict[str, Any] = field(default_factory=dict)
    signature: tuple[Input | ScalarInput, ...] = ()
    in_spec: Any = None
    out_spec: Any = None

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """The tensor inputs of a call, in the order of the graph's user inputs.

        UsageError where the arguments have another structure than the example's or another baked-in scalar.
        """
        from torch.utils import _pytree as pytree

        ordered = self._ordered(dict(kwargs or {}))
        leaves, spec = pytree.tree_flatten((tuple(args), ordered))
        if self.in_spec is not None and spec != self.in_spec:
            raise UsageError(f"the arguments are built like {spec}, the program was captured with {self.in_spec}")
        tensors: list[torch.Tensor] = []
        for leaf, declared in zip(leaves, self.signature, strict=True):
            if isinstance(declared, ScalarInput):
                self._check_scalar(declared, leaf)
            elif not isinstance(leaf, torch.Tensor):
                raise UsageError(f"input {declared.name} is a tensor {declared.tensor.text}, got {type(leaf).__name__}")
            else:
                tensors.append(leaf)
        return tensors

    def unflatten(self, results: Sequence[Any]) -> Any:
        """The user's result structure from the graph's returned values, mutated inputs left out."""
        from torch.utils import _pytree as pytree

        return pytree.tree_unflatten(list(results), self.out_spec)

    def example_tensors(self) -> list[torch.Tensor]:
        """The tensor inputs of the example call, in the order of the graph's user inputs."""
        return self.flatten(self.example_inputs, self.example_kwargs)

    def _ordered(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if self.in_spec is None or not kwargs:
            return kwargs
        names = list(self.in_spec.child(1).context)
        if set(names) != set(kwargs):
            raise UsageError(f"the program takes the keyword arguments {names}, got {sorted(kwargs)}")
        return {n: kwargs[n] for n in names}

    @staticmethod
    def _check_scalar(declared: ScalarInput, value: Any) -> None:
        if type(value) is not type(declared.value) or value != declared.value:
            raise UsageError(
                f"input {declared.name} was {declared.value!r} when the program was captured and is {value!r} now",
                "capture it again with that value",
            )
