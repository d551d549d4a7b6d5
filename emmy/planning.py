"""A choice of launches as a plan: buffers, names, sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emmy.egraph.fusion import Launch
from emmy.egraph.model import ModelGraph
from emmy.egraph.naming import Names, unique
from emmy.ir.graph import Graph, Node, Output, Ref
from emmy.ir.kernel import Kernel
from emmy.ir.plan import Buffer, KernelLaunch, OpaqueLaunch, Plan, Role, kernel_launch
from emmy.ir.tensor import OpaqueCall, Program
from emmy.selection import Priced


@dataclass(frozen=True, slots=True)
class Chosen:
    """A launch of the plan with its schedule and its kernel (shared by launches of the same body and row)."""

    launch: Launch
    priced: Priced
    kernel: Kernel
    source: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    at_build: bool

    @property
    def name(self) -> str:
        return self.kernel.name


@dataclass(frozen=True, slots=True)
class ChosenOpaque:
    """An operation that PyTorch executes."""

    call: OpaqueCall
    node: Node
    operands: tuple[str, ...]
    results: tuple[str, ...]


def build_plan(
    graph: Graph, program: Program, model: ModelGraph, names: Names, chosen: Sequence[Chosen | ChosenOpaque], arch: str
) -> Plan:
    """Buffers for every tensor that a launch or an output touches, and the launches in order."""
    number = {names.tensor(t): t for t in _touched(model, chosen)}
    # a tensor that a second launch makes as well has a buffer of its own there
    ours = [c for c in chosen if isinstance(c, Chosen)]
    number.update({name: t for c in ours for t, name in zip(c.launch.results, c.results, strict=True)})
    buffers = {
        i.name: Buffer(i.name, i.tensor, "input" if i.kind == "user" else i.kind, i.target or i.name)
        for i in graph.inputs
    }
    outputs = _outputs(graph, model, names)
    returned = {o.value.name for o in outputs if isinstance(o.value, Ref)}
    for name, t in number.items():
        if name in buffers:
            continue
        role: Role = "output" if name in returned else "folded" if t in model.anchors.folded else "temporary"
        buffers[name] = Buffer(name, model.numbering.tensors[t], role, "")
    launches: list[KernelLaunch | OpaqueLaunch] = []
    used: dict[str, int] = {}
    for c in chosen:
        if isinstance(c, ChosenOpaque):
            launches.append(OpaqueLaunch(unique(used, c.node.name), c.operands, c.results, c.node))
            continue
        k, s = c.kernel, c.priced.scheduled
        launches.append(
            kernel_launch(k, c.source, c.operands, c.results, c.priced.body.hash, s.family, s.row.text, c.at_build)
        )
    kept = {n for l in launches for n in (*l.operands, *l.results)} | returned
    live = tuple(b for b in buffers.values() if b.name in kept or b.role == "input")
    return Plan(arch, live, tuple(launches), outputs, graph.sizes)


def _touched(model: ModelGraph, chosen: Sequence[Chosen | ChosenOpaque]) -> list[int]:
    found: dict[int, None] = dict.fromkeys(model.outputs)
    for c in chosen:
        if isinstance(c, Chosen):
            found.update(dict.fromkeys((*c.launch.operands, *c.launch.results)))
        else:
            found.update(dict.fromkeys(model.numbering.numbers[x] for x in (*c.call.operands, *c.call.results)))
    return list(found)


def _outputs(graph: Graph, model: ModelGraph, names: Names) -> tuple[Output, ...]:
    made = iter(model.outputs)
    return tuple(
        Output(Ref(names.tensor(next(made))), o.mutates) if isinstance(o.value, Ref) else o for o in graph.outputs
    )
