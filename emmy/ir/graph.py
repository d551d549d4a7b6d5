"""Torch IR: the exported program as plain data, one node an ATen call, free of PyTorch objects.

    Graph = Graph(inputs, nodes, outputs, sizes)
    Input = Input(name, tensor, kind, target)      kind: user, parameter, buffer, constant
    Node  = Node(name, op, args, kwargs, results, source, module)
    Arg   = Ref | int | float | bool | str | None | Expr | tuple[Arg, ...]
    Ref   = Ref(name)                              an input, or a node with one result; `name#k` is result k of several

`op` is the ATen overload, e.g. `aten.add.Tensor`; types and devices in arguments are strings (`f32`, `cuda`); symbolic
integers are Loop IR expressions over `Size`.  The graph is functional: in-place operations and mutations of buffers
became values, and a mutated input is listed in `outputs` with its target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from emmy.ir.loop import Tensor

InputKind = Literal["user", "parameter", "buffer", "constant"]
Arg = "Ref | int | float | bool | str | None | Expr | tuple[Arg, ...]"


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Input:
    """`target` is the parameter's, buffer's or constant's qualified name; empty for a user input."""

    name: str
    tensor: Tensor
    kind: InputKind
    target: str = ""


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """A user input that is a Python number or None: baked into the graph, checked again at each call."""

    name: str
    value: int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    op: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    results: tuple[Tensor, ...]
    source: str = ""
    module: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """A returned value, or (`mutates` names an input) the new contents of an input that the model updates."""

    value: Ref | int | float | bool | None
    mutates: str = ""


@dataclass(frozen=True, slots=True)
class SizeVar:
    """A symbolic size: bounds as exported and the value that the example had."""

    name: str
    low: int
    high: int | None
    example: int


@dataclass(frozen=True)
class Graph:
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    sizes: tuple[SizeVar, ...] = ()

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Type of every named value; results of a node with several are `name#k`."""
        table = {i.name: i.tensor for i in self.inputs}
        for n in self.nodes:
            if len(n.results) == 1:
                table[n.name] = n.results[0]
            else:
                table.update({f"{n.name}#{k}": t for k, t in enumerate(n.results)})
        return table
