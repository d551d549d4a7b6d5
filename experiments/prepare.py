"""From a case to plans on disk: everything that needs no GPU.

A prepared task is one pickle: the plan, the Torch IR graph (for the float64 reference), what the inputs look like, and
the tolerance.  Machine code stays in the kernel cache of the output folder.
"""

from __future__ import annotations

import math
import pickle
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.errors import CompileError, EmmyError
from emmy.frontend.program import Program
from emmy.frontend.source import load
from emmy.ir.evaluate import integer
from emmy.ir.graph import Graph
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body
from emmy.ir.plan import KernelLaunch, Plan, kernel_launch
from emmy.ir.schedule import Scheduled
from emmy.ir.target import target
from emmy.ir.torch_types import TORCH
from emmy.planning import Chosen
from emmy.runtime.cache import CubinCache
from emmy.runtime.nvrtc import Compiled, Job
from emmy.saturation import Options, Saturation, saturate_program
from experiments.cases import Case


@dataclass(frozen=True)
class TensorLike:
    """How to draw a tensor: normal numbers of this mean and deviation, or the elements of `values` in random order."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    mean: float = 0.0
    deviation: float = 1.0
    values: torch.Tensor | None = None

    @staticmethod
    def of(t: torch.Tensor) -> TensorLike:
        if not t.is_floating_point():
            return TensorLike(tuple(t.shape), t.dtype, values=t.clone())
        if t.numel() < 2:
            return TensorLike(tuple(t.shape), t.dtype)
        some = t.reshape(-1)[: 1 << 20].float()
        return TensorLike(tuple(t.shape), t.dtype, float(some.mean()), float(some.std()))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """A tensor on the generator's device."""
        device = generator.device
        if self.values is not None:
            order = torch.randperm(self.values.numel(), generator=generator, device=device)
            return self.values.to(device).reshape(-1)[order].reshape(self.shape)
        made = torch.randn(self.shape, generator=generator, device=device)
        return (made * self.deviation + self.mean).to(self.dtype)


@dataclass(frozen=True)
class Task:
    """One plan to run.  `parameters` are drawn, `held` are the true buffers and constants, both by target name."""

    name: str
    plan: Plan
    graph: Graph
    inputs: tuple[TensorLike, ...]
    parameters: Mapping[str, TensorLike]
    held: Mapping[str, torch.Tensor]
    terms: int
    stores: int
    facts: dict[str, Any] = field(default_factory=dict)


class Kernels(CubinCache):
    """Compiles at most `threads` kernels at once, since other processes compile beside this one; 0: one a core."""

    def __init__(self, folder: Path, threads: int) -> None:
        super().__init__(folder)
        self.threads = threads

    def compile_many(self, jobs: Sequence[Job], workers: int | None = None) -> list[Compiled | CompileError]:
        return super().compile_many(jobs, workers or self.threads or None)


def load_case(case: Case) -> Program:
    if case.model:
        return load(case.model, **dict(case.options))  # type: ignore[arg-type]
    return load(None, case.code)


def saturate_case(case: Case, arch: str, folder: Path, threads: int = 0) -> Saturation:
    """The case compiled without any evidence, so that what is tested does not depend on the machine's history."""
    options = Options(target(arch), place=case.place, golden="", database=folder / "no-evidence.duckdb")
    return saturate_program(load_case(case), options, cache=Kernels(folder, threads))


def file_of(folder: Path, name: str) -> Path:
    return folder / "tasks" / (name.replace("/", "__") + ".pickle")


def prepare(case: Case, arch: str, folder: Path, seed: int, threads: int) -> list[dict[str, Any]]:
    """Write the case's tasks and return a record of each: `status` is `ready`, or what went wrong before any launch."""
    began = time.perf_counter()
    s = saturate_case(case, arch, folder, threads)
    facts = {"prepare_s": round(time.perf_counter() - began, 2), **facts_of(s.plan)}
    base = task_of(case, s, facts)
    write(folder, base)
    records: list[dict[str, Any]] = [{"name": case.name, "status": "ready", **facts}]
    if case.sample:
        records += prepare_rows(case, s, base, folder, seed)
    return records


def write(folder: Path, task: Task) -> None:
    path = file_of(folder, task.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(task))


def facts_of(plan: Plan) -> dict[str, Any]:
    ours = [l for l in plan.launches if isinstance(l, KernelLaunch)]
    return {
        "launches": len(ours),
        "opaque": [l.node.op for l in plan.launches if not isinstance(l, KernelLaunch)],
        "families": sorted({l.family for l in ours}),
    }


def task_of(case: Case, s: Saturation, facts: dict[str, Any]) -> Task:
    graph, program = s.program.graph, s.program
    parameters = {
        i.target: parameter_like(i.target, tuple(integer(d) for d in i.tensor.shape), TORCH[i.tensor.dtype])
        for i in graph.inputs
        if i.kind == "parameter"
    }
    held = {i.target: program.weights[i.target].clone() for i in graph.inputs if i.kind in ("buffer", "constant")}
    inputs = tuple(TensorLike.of(t) for t in program.example_tensors())
    stores = max(case.stores, case.stores + rounded_on_the_way(depth(s.plan)))
    return Task(case.name, s.plan, graph, inputs, parameters, held, case.terms, stores, facts)


def parameter_like(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> TensorLike:
    """Matrices as models initialize them; scales of norms around 1, so that a forgotten one is seen."""
    norm = len(shape) == 1 and name.endswith("weight")
    return TensorLike(shape, dtype, 1.0 if norm else 0.0, 0.1 if norm else 0.02)


def depth(plan: Plan) -> int:
    """Launches on the longest path through the plan."""
    level: dict[str, int] = {}
    for l in plan.launches:
        if isinstance(l, KernelLaunch) and l.at_build:
            continue
        here = 1 + max((level.get(o, 0) for o in l.operands), default=0)
        level.update(dict.fromkeys(l.results, here))
    return max(level.values(), default=0)


def rounded_on_the_way(launches: int) -> int:
    """Stores to allow for on a path of so many launches: rounding errors of independent stores add as a random walk."""
    return max(0, launches - 1 if launches < 5 else math.ceil(2 * math.sqrt(launches)) - 1)


# ---- sampled rows ----------------------------------------------------------------------------------------------------


def prepare_rows(case: Case, s: Saturation, base: Task, folder: Path, seed: int) -> list[dict[str, Any]]:
    """`case.sample` random legal rows of every family that takes a body of the chosen launches."""
    random_rows = random.Random(f"{seed}:{case.name}")
    by_family: dict[str, list[tuple[Chosen, Body, Scheduled]]] = {}
    for chosen, body, scheduled in legal(s):
        by_family.setdefault(scheduled.family, []).append((chosen, body, scheduled))
    records = []
    for family, found in sorted(by_family.items()):
        for k, (chosen, body, scheduled) in enumerate(random_rows.sample(found, min(case.sample, len(found)))):
            name = f"rows/{family}/{case.name.split('/')[1]}/{k}"
            facts = {"row": scheduled.row.text, "family": family, "body": body.hash, "legal": len(found)}
            plan = with_row(s, chosen, body, scheduled, folder)
            if isinstance(plan, str):
                records.append({"name": name, "status": "refused", "reason": plan, **facts})
                continue
            write(folder, replace(base, name=name, plan=plan, facts=facts))
            records.append({"name": name, "status": "ready", **facts})
    return records


def legal(s: Saturation) -> Iterator[tuple[Chosen, Body, Scheduled]]:
    """Every legal row of every body that a chosen launch may run."""
    for chosen in s.launches:
        for body in s.selection.forms(chosen.launch):
            for scheduled in s.selection.legal(body):
                yield chosen, body, scheduled


def with_row(s: Saturation, chosen: Chosen, body: Body, scheduled: Scheduled, folder: Path) -> Plan | str:
    """The plan with one launch under another row; the reason where the compiler or the card refuses it."""
    made = build(s, chosen, body, scheduled, folder)
    if isinstance(made, str):
        return made
    kernel, text, _ = made
    launches = tuple(
        kernel_launch(kernel, text, l.operands, l.results, body.hash, scheduled.family, scheduled.row.text, l.at_build)
        if isinstance(l, KernelLaunch) and l.results == chosen.results
        else l
        for l in s.plan.launches
    )
    return replace(s.plan, launches=launches)


def build(
    s: Saturation, chosen: Chosen, body: Body, scheduled: Scheduled, folder: Path
) -> tuple[Kernel, str, Compiled] | str:
    """Kernel, source and machine code of a launch's body under a row, or why there is none."""
    t = s.options.target
    try:
        kernel = lower(body, scheduled.family, scheduled.row, t, chosen.name, chosen.operands, chosen.results)
        text = source(kernel)
        compiled = CubinCache(folder).compile(Job(text, kernel.name, t.arch))
    except EmmyError as e:
        return f"{type(e).__name__}: {e.what}"
    if compiled.registers * kernel.threads > t.registers_sm:
        return f"card: {compiled.registers} registers x {kernel.threads} threads"
    return kernel, text, compiled
