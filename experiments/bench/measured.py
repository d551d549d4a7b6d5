"""The GPU side of one case: ceilings, our plans and PyTorch in turns over the same buffers, values, repeated runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from emmy.frontend.reference import interpret
from emmy.ir.plan import Plan
from emmy.runtime.bench import measure, ratio
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module
from emmy.saturation import Saturation
from experiments.bench.bars import PEERS, BenchCase
from experiments.bench.one_case import (
    CEILING_BYTES,
    CEILING_ROWS,
    REPEATS,
    TYPES,
    atomic,
    copies_of,
    drawn,
    relative_error,
)
from experiments.execute import opaque, run
from experiments.prepare import Task

Json = dict[str, Any]
Function = Callable[..., Any]


class Measured:
    """Inputs in several copies, PyTorch's functions (`lost` says why one is missing) and our modules."""

    def __init__(self, case: BenchCase, task: Task, o: argparse.Namespace) -> None:
        self.case, self.task, self.o = case, task, o
        self.lost: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.modules: dict[str, Module] = {}
        generator = torch.Generator(device="cuda").manual_seed(o.seed)
        self.weights = {n: like.draw(generator) for n, like in task.parameters.items()}
        self.weights |= {n: t.cuda() for n, t in task.held.items()}
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = copies_of(case.bytes, cache)
        self.copies = [drawn(task, generator) for _ in range(count)]
        self._peers()

    def _peers(self) -> None:
        """Eager, compiled, and compiled with max-autotune; PyTorch's own graphs are left out, since ours time all."""
        graph, weights = self.task.graph, self.weights
        eager = lambda *inputs: interpret(graph, weights, inputs)  # noqa: E731
        modes = {"eager": None, "compiled": "default", "autotuned": "max-autotune-no-cudagraphs"}
        for name in PEERS:
            mode = modes[name]
            torch._dynamo.reset()
            function = self.source() or eager
            if mode is not None:
                function = torch.compile(function, dynamic=False, mode=mode)
            try:
                with torch.no_grad():
                    function(*self.copies[0])
                    torch.cuda.synchronize()
            except Exception as e:  # noqa: BLE001 - whatever a peer raises, ours is measured without it
                self.lost[name] = f"{type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e) else ''}"
                continue
            self.functions[name] = function

    def source(self) -> Function | None:
        """The program as the user wrote it."""
        from experiments.prepare import load_case

        module = load_case(self.case.case).module
        return module if callable(module) else None

    def ceilings(self, dtype: str) -> Json:
        """Bytes a second of a copy, and FLOP/s of a large product of the type; the best of a few, with L2 warm."""
        a = torch.empty(CEILING_BYTES // 4, dtype=torch.float32, device="cuda")
        b = torch.empty_like(a)
        n = CEILING_ROWS[dtype]
        x, y = (torch.randn(n, n, device="cuda").to(TYPES[dtype]) for _ in range(2))
        calls: dict[str, Any] = {"copy": lambda: b.copy_(a), "product": lambda: torch.nn.functional.linear(x, y)}
        timed = measure(calls, cold=False, rounds=12)
        return {"copy": 2 * CEILING_BYTES / timed["copy"].p10, "flops": {dtype: 2.0 * n**3 / timed["product"].p10}}

    def ours(self, plans: Mapping[str, Plan]) -> None:
        """Build our modules; equal plans share one."""
        made: list[tuple[Plan, Module]] = []
        for name, plan in plans.items():
            known = next((m for p, m in made if p == plan), None)
            self.modules[name] = known or self.module(plan)
            made.append((plan, self.modules[name]))

    def module(self, plan: Plan) -> Module:
        # the timed graph holds the launches of all copies, so the module's own graphs are left out
        return Module(plan, self.weights, opaque=opaque, poison=False, graph=False, cache=CubinCache(self.o.out))

    def calls(self, functions: Mapping[str, Function]) -> dict[str, list[Callable[[], object]]]:
        """A call for each copy of the inputs; results stay, so that each copy writes to memory of its own."""
        kept: dict[tuple[str, int], object] = {}

        def one(name: str, k: int, f: Function) -> Callable[[], object]:
            def call() -> object:
                with torch.no_grad():
                    kept[name, k] = f(*self.copies[k])
                return kept[name, k]

            return call

        return {n: [one(n, k, f) for k in range(len(self.copies))] for n, f in functions.items()}

    def times(self) -> Json:
        """Microseconds (median, p10, p90, how) and ratios of ours over each peer, L2 cold and warm."""
        same = self.modules["tuned"] is self.modules["untuned"]
        ours = {"tuned": self.modules["tuned"]} if same else dict(self.modules)
        found: Json = {"us": {}, "ratios": {}, "copies": len(self.copies)}
        for l2 in ("cold", "warm"):
            calls: dict[str, Any] = self.calls({**ours, **self.functions})
            if l2 == "warm":
                calls = {n: copies[0] for n, copies in calls.items()}
            timed = measure(calls, cold=l2 == "cold", rounds=self.o.rounds)
            if same:
                timed["untuned"] = timed["tuned"]
            found["us"][l2] = {n: [t.median * 1e6, t.p10 * 1e6, t.p90 * 1e6, t.method] for n, t in timed.items()}
            found["ratios"][l2] = {
                mine: {peer: ratio(timed[mine], timed[peer]).median for peer in self.functions}
                for mine in ("tuned", "untuned")
            }
        return found

    def best_of(self, plans: Sequence[tuple[list[str], Plan]]) -> Json:
        """The fastest of some plans, cold, among those whose values are right."""
        functions: dict[str, Function] = {}
        wrong = []
        for k, (rows, plan) in enumerate(plans):
            module = self.module(plan)
            if self.error(module) <= 4 * self.error_of(self.plain) + 2.0**-7:
                functions[str(k)] = module
            else:
                wrong.append(rows)
        if not functions:
            return {"us": None, "wrong": wrong}
        timed = measure(self.calls(functions), cold=True, rounds=max(8, self.o.rounds // 3))
        best = min(timed, key=lambda n: (timed[n].median, n))
        return {"us": timed[best].median * 1e6, "rows": plans[int(best)][0], "of": len(functions), "wrong": wrong}

    # ---- values ----------------------------------------------------------------------------------------------------

    def values(self, plans: Mapping[str, Saturation]) -> Json:
        """Relative errors against float64, and whether repeated runs are equal bit by bit."""
        self.reference = interpret(self.task.graph, self.weights, self.copies[0], torch.float64)
        self.plain = interpret(self.task.graph, self.weights, self.copies[0])
        error = {"eager": self.error_of(self.plain)}
        repeat = {}
        for name, module in self.modules.items():
            error[name] = self.error(module)
            first = self._run(module)
            same = all(_equal(first, self._run(module)) for _ in range(REPEATS - 1))
            repeat[name] = {"runs": REPEATS, "equal": same, "atomic": atomic(plans[name])}
        return {"error": error, "repeat": repeat}

    def _run(self, module: Module) -> list[torch.Tensor]:
        found = run(module, self.task.graph, self.copies[0])
        return [v.clone() for v in found if isinstance(v, torch.Tensor)]

    def error(self, module: Module) -> float:
        return self.error_of(self._run(module))

    def error_of(self, values: Sequence[Any]) -> float:
        return max(relative_error(v, w) for v, w in zip(values, self.reference, strict=True))


def _equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))
