"""Run a prepared task on the GPU and compare it with float64."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from emmy.frontend.opaque import run_node
from emmy.frontend.reference import Value, interpret
from emmy.ir.graph import Graph, Node
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module
from emmy.runtime.numerics import Comparison, compare
from experiments.prepare import Task, file_of

Weights = Mapping[str, torch.Tensor]


def opaque(node: Node, tensors: list[torch.Tensor], sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
    return run_node(node, tensors, sizes)


def execute(name: str, folder: Path, seed: int, runs: int, launch: bool) -> dict[str, Any]:
    """Compare `runs` runs, each on fresh inputs, with the float64 reference; outputs are poisoned before each.

    Without `launch` no GPU is touched: PyTorch's own result in the program's types stands for ours, which tests the
    tolerances and this program.
    """
    task: Task = pickle.loads(file_of(folder, name).read_bytes())
    device = torch.device("cuda" if launch else "cpu")
    generator = torch.Generator(device=device).manual_seed(seed)
    weights = {n: like.draw(generator) for n, like in task.parameters.items()}
    weights |= {n: t.to(device) for n, t in task.held.items()}
    module = Module(task.plan, weights, opaque=opaque, poison=True, cache=CubinCache(folder)) if launch else None
    found: list[Comparison] = []
    eager = 0.0
    for _ in range(runs):
        inputs = [like.draw(generator) for like in task.inputs]
        reference = interpret(task.graph, weights, [t.clone() for t in inputs], torch.float64)
        plain = interpret(task.graph, weights, [t.clone() for t in inputs])
        eager = max(eager, *(share(c) for c in comparisons(plain, reference, plain, task)), 0.0)
        values = plain if module is None else run(module, task.graph, inputs)
        found += comparisons(values, reference, plain, task)
    if module is not None:
        torch.cuda.synchronize()
        module.close()
    worst = max(found, key=lambda c: (c.nonfinite, share(c)), default=None)
    return {
        "status": "ok" if all(c.ok for c in found) else "wrong",
        "share": max((share(c) for c in found), default=0.0),
        "eager_share": eager,
        "nonfinite": sum(c.nonfinite for c in found),
        "outputs": len(found) // runs,
        "text": str(worst),
    }


def share(c: Comparison) -> float:
    """Error over tolerance; of integers, 0 when equal and 1e9 when not."""
    return c.error / c.tolerance if c.tolerance else 1e9 * float(c.error > 0)


def run(module: Module, graph: Graph, inputs: Sequence[torch.Tensor]) -> list[Value]:
    """Values of all outputs of the graph, updated inputs included."""
    returned = iter(module(*inputs))
    user = {i.name: k for k, i in enumerate(x for x in graph.inputs if x.kind == "user")}
    values: list[Value] = []
    for o in graph.outputs:
        if not o.mutates:
            values.append(next(returned))
        elif o.mutates in user:
            values.append(inputs[user[o.mutates]])
        else:
            target = next(i.target for i in graph.inputs if i.name == o.mutates)
            values.append(module.state[target])
    return values


def comparisons(
    values: Sequence[Value], reference: Sequence[Value], plain: Sequence[Value], task: Task
) -> list[Comparison]:
    """One for each tensor among the outputs.  Raises ValueError where type or another kind of output differs."""
    found: list[Comparison] = []
    for value, wanted, typed in zip(values, reference, plain, strict=True):
        if not isinstance(wanted, torch.Tensor):
            if value != wanted:
                raise ValueError(f"output is {value!r}, expected {wanted!r}")
            continue
        if not isinstance(value, torch.Tensor) or not isinstance(typed, torch.Tensor) or value.dtype != typed.dtype:
            raise ValueError(f"output has another type: {value!r}"[:200])
        found.append(compare(value, wanted, terms=task.terms, stores=task.stores))
    return found
