"""One case of `experiments.bench.speed`: built beside other cases, then measured alone."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from emmy.extract.records import Regime
from emmy.extract.store import Store
from emmy.ir.plan import Plan
from emmy.ir.schedule import Scheduled
from emmy.ir.target import target
from emmy.runtime.cache import CubinCache
from emmy.runtime.nvrtc import Job, compile_job
from emmy.saturation import Options, Saturation, saturate_program
from experiments.bench.bars import BenchCase
from experiments.prepare import Task, load_case, task_of, with_row

Json = dict[str, Any]
Call = Callable[[], object]
REPEATS: Final = 10
# buffers are rotated over more than this many times the cache, in at most so many copies
CACHES: Final = 2.2
MOST_COPIES: Final = 64
# a dry run computes values of programs with at most so much arithmetic
MOST_FLOPS: Final = 1e8
CEILING_BYTES: Final = 1 << 30
CEILING_ROWS: Final[dict[str, int]] = {"bf16": 8192, "f16": 8192, "f32": 4096}
TYPES: Final = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@contextmanager
def turn(path: Path, alone: bool) -> Iterator[None]:
    """Hold the lock shared (builders) or alone (who measures)."""
    with path.open("a") as f:
        fcntl.flock(f, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


class Record:
    """What is known of the case, on disk after every step, whole or not at all."""

    def __init__(self, path: Path, **first: Any) -> None:
        self.path, self.data = path, dict(first)

    def save(self, **more: Any) -> None:
        self.data |= more
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.data))
        part.replace(self.path)


def one_case(case: BenchCase, o: argparse.Namespace) -> int:
    record = Record(
        o.out / f"{case.name}.json", name=case.name, group=case.group, status="building", commit=o.commit,
        dry=o.dry_run, flops=case.flops, bytes=case.bytes,
    )  # fmt: skip
    record.save()
    lock = o.out / "lock"
    with turn(lock, alone=False):
        plans = Plans(case, o)
        record.save(status="built", build=plans.build, rows={n: rows_of(s) for n, s in plans.found.items()})
        if o.dry_run:
            record.data["build"]["nvrtc"] = plans.compile_times()
            record.save(mma=[r for r, _ in plans.mma(o.mma)], error=plans.interpreted(o.seed))
            record.save(status="done")
            return 0
        from experiments.bench.measured import Measured

        peers = Measured(case, plans.task, o)
        # nothing but a GPU's work is left for the time alone, unless rows are to be measured first
        record.data["build"]["nvrtc"] = plans.compile_times()
        mma = [] if o.tune else plans.mma(o.mma)
        record.save(lost=peers.lost)
    with turn(lock, alone=True):
        record.save(gpu=torch.cuda.get_device_name(), ceilings=peers.ceilings(case.dtype))
        if o.tune:
            plans.tune(o.tune)
            record.data["build"]["nvrtc"] = plans.compile_times()
            mma = plans.mma(o.mma)
            record.save(rows={n: rows_of(s) for n, s in plans.found.items()})
        peers.ours({n: s.plan for n, s in plans.found.items()})
        record.save(status="measuring", **peers.values(plans.found), **peers.times())
        record.save(sm_80=peers.best_of(mma))
        record.save(status="done")
    return 0


def rows_of(s: Saturation) -> list[str]:
    """Family and row of every launch of a call."""
    return [f"{c.priced.scheduled.family} {c.priced.scheduled.row.text}" for c in s.launches if not c.at_build]


def atomic(s: Saturation) -> bool:
    """Whether a row adds in whatever order blocks come, so that two runs may differ."""
    return any(re.search(r"REDUCE[^=,]*=[^,]*g\d+a", row) for row in rows_of(s))


class Plans:
    """The untuned plan, chosen without any measurement, and the tuned one, by the store and the golden rows."""

    def __init__(self, case: BenchCase, o: argparse.Namespace) -> None:
        self.case, self.folder = case, o.out
        self.cache = CubinCache(o.out)
        self.database = o.db or o.out / "tuned.duckdb"
        self.program = load_case(case.case)
        card = target(o.arch)
        self.untuned = Options(card, place=case.case.place, golden="", database=o.out / "no-evidence.duckdb")
        self.tuned = Options(card, place=case.case.place, database=self.database)
        began = time.perf_counter()
        first = saturate_program(self.program, replace(self.untuned, check=False), cache=self.cache)
        seconds = time.perf_counter() - began
        self.build: Json = {"saturate": seconds, "stages": dict(first.seconds), "nvrtc": {}}
        self.found = {
            "untuned": saturate_program(self.program, self.untuned, cache=self.cache),
            "tuned": saturate_program(self.program, self.tuned, cache=self.cache),
        }
        self.task: Task = task_of(case.case, self.found["tuned"], {})

    @property
    def regime(self) -> Regime:
        return self.found["tuned"].regime

    def tune(self, budget: float) -> None:
        """Measure rows into the store; the tuned plan is what compile chooses then."""
        from emmy.tune.asked import TuneOptions
        from emmy.tune.executors import Local
        from emmy.tune.tune import tune

        executor = Local([0])
        try:
            tune(
                self.found["tuned"],
                executor,
                Store(self.database),
                TuneOptions(budget=budget),
                print,
                cache=self.cache,
                command="experiments.bench.speed",
            )
        finally:
            executor.close()
        self.found["tuned"] = saturate_program(self.program, self.tuned, cache=self.cache)

    def compile_times(self) -> dict[str, float]:
        """Seconds of NVRTC for every distinct kernel of the plans, one at a time, no cache asked."""
        seconds = {}
        for source, name in {c.source: c.name for s in self.found.values() for c in s.launches}.items():
            began = time.perf_counter()
            compile_job(Job(source, name, self.untuned.target.arch))
            seconds[name] = max(seconds.get(name, 0.0), time.perf_counter() - began)
        return seconds

    def interpreted(self, seed: int) -> dict[str, float]:
        """Relative errors against float64 where the CPU can tell: of eager, and of our plans as Loop IR says them.

        Empty for programs of more work than a CPU does in a moment.
        """
        if self.case.flops > MOST_FLOPS:
            return {}
        from emmy.frontend.reference import interpret
        from emmy.inspect.interpret_plan import interpret_plan

        generator = torch.Generator().manual_seed(seed)
        inputs = drawn(self.task, generator)
        weights = {n: like.draw(generator) for n, like in self.task.parameters.items()} | dict(self.task.held)
        graph = self.task.graph
        wanted = interpret(graph, weights, inputs, torch.float64)
        values = {"eager": interpret(graph, weights, inputs)}
        if not weights and not self.found["tuned"].opaque:
            values |= {n: interpret_plan(s, inputs, rounding=True) for n, s in self.found.items()}
        return {n: max(relative_error(v, w) for v, w in zip(vs, wanted, strict=True)) for n, vs in values.items()}

    def mma(self, count: int) -> list[tuple[list[str], Plan]]:
        """Plans whose contractions run the best mma.sync rows that cp.async feeds, as sm_80 has them: the best of each
        launch, then the next of each.  Launches that take no such row stay as they are."""
        s = self.found["tuned"]
        choices = {c.results: self._mma_rows(s, c.priced.body)[:count] for c in s.launches if not c.at_build}
        plans: list[tuple[list[str], Plan]] = []
        for k in range(max(map(len, choices.values()), default=0)):
            made, rows = s, []
            for c in s.launches:
                picked = choices.get(c.results, [])
                if not picked:
                    continue
                scheduled = picked[min(k, len(picked) - 1)]
                plan = with_row(made, c, c.priced.body, scheduled, self.folder)
                if isinstance(plan, str):  # refused by the compiler or the card
                    continue
                made = replace(made, plan=plan)
                rows.append(scheduled.row.text)
            if rows:
                plans.append((rows, made.plan))
        return plans

    def _mma_rows(self, s: Saturation, body: Any) -> list[Scheduled]:
        """In the order of evidence."""
        legal = {(r.family, r.row.text): r for r in s.selection.legal(body)}
        ranked = [legal[(r.family, r.row)] for r in s.selection.ranking(body)]
        return [r for r in ranked if r.family == "mma" and "tma" not in r.row.text]


def drawn(task: Task, generator: torch.Generator) -> list[torch.Tensor]:
    """Inputs of a call on the generator's device; integers are the program's own, since they steer what is read."""
    return [x.draw(generator) if x.values is None else x.values.to(generator.device) for x in task.inputs]


def relative_error(value: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest magnitude; infinite where a value is no number."""
    difference = float((value.double() - wanted).abs().max())
    scale = float(wanted.abs().max())
    return math.inf if math.isnan(difference) else difference / scale if scale else difference


def copies_of(bytes: float, cache: float) -> int:
    """On how many sets of buffers a call is rotated, so that together they exceed the cache."""
    return min(MOST_COPIES, max(2, 1 + int(CACHES * cache / max(1.0, bytes))))
