"""The reference interpreter: a graph node by node through PyTorch, in its own types or all in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from emmy.errors import UsageError
from emmy.frontend.fx import node_refs
from emmy.frontend.opaque import run_node
from emmy.frontend.symbolic import bind_sizes
from emmy.ir.graph import Graph, Ref

Value = torch.Tensor | int | float | bool | None


def interpret(
    graph: Graph,
    weights: Mapping[str, torch.Tensor],
    inputs: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    dtype: torch.dtype | None = None,
) -> list[Value]:
    """Values of `graph.outputs`, in order (new contents of mutated inputs included).

    Args:
        weights: by `Input.target`.
        inputs: the user's tensors in graph order, or by input name.
        dtype: None runs every operation in the program's own types; `torch.float64` replaces every floating tensor
            and floating element type by it, casts included, which gives the function over the reals.
    """
    user = [i for i in graph.inputs if i.kind == "user"]
    given = [inputs[i.name] for i in user] if isinstance(inputs, Mapping) else list(inputs)
    if len(given) != len(user):
        raise UsageError(f"the graph takes {len(user)} tensors, got {len(given)}")
    sizes = bind_sizes([(i.name, i.tensor) for i in user], given, graph.sizes)
    types = graph.tensors
    values: dict[str, torch.Tensor] = {i.name: _promoted(t, dtype) for i, t in zip(user, given, strict=True)}
    device = given[0].device if given else torch.device("cpu")
    for held in graph.inputs:
        if held.kind != "user":
            values[held.name] = _promoted(weights[held.target].to(device), dtype)
    last = {name: node.name for node in graph.nodes for name in node_refs(node)}
    kept = {o.value.name for o in graph.outputs if isinstance(o.value, Ref)}
    for node in graph.nodes:
        names = node_refs(node)
        stored = [types[n].dtype for n in names]
        results = run_node(node, [values[n] for n in names], sizes, device, dtype, stored)
        labels = [node.name] if len(node.results) == 1 else [f"{node.name}#{k}" for k in range(len(results))]
        values.update((label, _promoted(r, dtype)) for label, r in zip(labels, results, strict=True))
        for n in set(names):
            if last[n] == node.name and n not in kept:
                del values[n]
    return [values[o.value.name] if isinstance(o.value, Ref) else o.value for o in graph.outputs]


def _promoted(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = tensor.contiguous()
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
