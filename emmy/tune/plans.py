"""Whole plans as candidates of one group: the launches of a call together, the plan before tuning beside the one after.

A call's parameters and inputs are filled with numbers of the size that models have; launches that run at build fill
temporaries once.  The untuned plan is the anchor and what the tuned one is checked against: its kernels were checked.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from emmy.extract.evidence import solid
from emmy.extract.records import STAND_IN, PlanMeasurement, Regime, Routing
from emmy.extract.store import Store
from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import integer
from emmy.ir.graph import Ref
from emmy.ir.plan import Buffer
from emmy.planning import Chosen
from emmy.runtime.cache import CubinCache
from emmy.runtime.nvrtc import Job
from emmy.saturation import Saturation, pieces_of, program_key
from emmy.tune.executors import Executor
from emmy.tune.groups import Source, launch_json, source_of
from emmy.tune.runner.tasks import task_of
from emmy.whole import key_of_pieces, sizes_of

Json = dict[str, Any]
# the sum of a plan's launches may differ from the whole by this share without a word
GAP: Final = 0.05


@dataclass(frozen=True, slots=True)
class PlanTime:
    """A plan timed as a whole, and the sum of what its launches take alone; seconds."""

    key: str
    whole: float
    parts: float

    @property
    def gap(self) -> float:
        """Share by which the whole exceeds the sum of its parts."""
        return self.whole / self.parts - 1.0 if self.parts else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """`reason` says why nothing was timed (then both are None).  `keep`: the faster of the two."""

    untuned: PlanTime | None
    tuned: PlanTime | None
    reason: str = ""

    @property
    def keep(self) -> str:
        if self.untuned is None or self.tuned is None or self.tuned.whole <= self.untuned.whole:
            return "tuned"
        return "untuned"


def key_of(s: Saturation) -> str:
    """Identity of the launches of a call."""
    return key_of_pieces(pieces_of(s.chosen))


def compare_plans(
    untuned: Saturation, tuned: Saturation, executor: Executor, store: Store, regime: Regime, now: float,
    cache: CubinCache, known: Mapping[str, np.ndarray[Any, Any]],
) -> Compared:  # fmt: skip
    """Time both, unless the store already holds them; record them as plan measurements and routings."""
    if tuned.opaque:
        names = ", ".join(sorted({c.node.op for c in tuned.opaque}))
        return Compared(None, None, f"the plan calls PyTorch ({names}), so the launches cannot be timed without it")
    both = {key_of(untuned): untuned, key_of(tuned): tuned}
    sizes = sizes_of(tuned.program.graph)
    known_times = _recalled(store, list(both), regime, sizes)
    if len(known_times) < len(both):
        group, sources = plan_group(list(both.values()), known)
        measured = _measure(group, sources, executor, tuned, cache)
        if isinstance(measured, str):
            return Compared(None, None, measured)
        source = STAND_IN if regime.gpu == STAND_IN else "tune"
        found = [
            PlanMeasurement(k, sizes, regime, r["n"], r["median"], r["p10"], r["p90"], source, now)
            for k, r in measured.items()
        ]
        known_times = {m.plan: m.median for m in found}
        key = program_key(tuned.program, tuned.options)
        store.record_plans(found)
        store.record_routing([Routing(key, pieces_of(both[m.plan].chosen), m.median, "measured", now) for m in found])
    times = {k: PlanTime(k, known_times[k], parts(s)) for k, s in both.items()}
    return Compared(times[key_of(untuned)], times[key_of(tuned)])


def parts(s: Saturation) -> float:
    """The sum of what the launches of a call cost alone."""
    return sum(c.priced.decision.cost for c in s.launches if not c.at_build)


def _recalled(
    store: Store, keys: Sequence[str], regime: Regime, sizes: tuple[tuple[str, int], ...]
) -> dict[str, float]:
    """Plans that were well measured; none unless all were, since only times of one run are compared."""
    plans = store.snapshot([], regime, keys).plans
    found: dict[str, float] = {}
    for k in keys:
        usable = [m for m in plans.get(k, ()) if m.regime == regime and m.sizes == sizes and solid(m)]
        if usable:
            found[k] = max(usable, key=lambda m: m.when).median
    return found if len(found) == len(keys) else {}


def _measure(
    group: Json, sources: Mapping[str, Source], executor: Executor, s: Saturation, cache: CubinCache
) -> dict[str, Json] | str:
    """Results by plan, or why there are none."""
    kernels = {}
    arch = s.options.target.arch
    for source in sources.values():
        compiled = cache.compile(Job(source.text, source.entry, arch))
        kernels[source.id] = {"entry": source.entry, "cubin": base64.b64encode(compiled.cubin).decode()}
    wanted = [c["id"] for c in group["candidates"]]
    results = executor.submit(task_of(group, kernels, wanted)).result()
    bad = [r for r in results if not r["ok"]]
    if bad:
        return f"the whole plan could not be timed: {bad[0]['kind']}: {bad[0]['reason']}"
    return {r["id"].removeprefix("p"): r for r in results}


def plan_group(
    plans: Sequence[Saturation], known: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[Json, dict[str, Source]]:
    """One group whose candidates are whole plans of one program.  The first is the anchor and the check."""
    sizes = {v.name: v.example for v in plans[0].program.graph.sizes}
    given: dict[str, Json] = {}
    outputs = [_written(s) for s in plans]
    compared = set.intersection(*outputs)
    temps: dict[str, Json] = {}
    candidates: list[Json] = []
    sources: dict[str, Source] = {}
    updated = {n for s in plans for c in s.launches for n in c.results}
    for s in plans:
        key = key_of(s)
        names: dict[str, str] = {}
        for b in s.plan.buffers:
            if b.role in ("input", "parameter", "buffer", "constant"):
                role = "update" if b.name in updated and b.name in compared else "in"
                given.setdefault(b.name, _buffer(b, sizes, role, known))
                names[b.name] = b.name
            elif b.name in compared:
                given.setdefault(b.name, _buffer(b, sizes, "out", known))
                names[b.name] = b.name
            else:
                names[b.name] = f"{key}.{b.name}"
                temps[names[b.name]] = {**_buffer(b, sizes, "temp", known), "name": names[b.name]}
        launches: list[Json] = []
        setup: list[Json] = []
        for c in s.launches:
            made = source_of(c.kernel)
            sources[made.id] = made
            buffers = [names[n] for n in (*c.operands, *c.results)]
            (setup if c.at_build else launches).append(launch_json(c.kernel, made.id, buffers, sizes))
        candidates.append({"id": f"p{key}", "family": "plan", "row": "plan", "predicted": parts(s),
                           "launches": launches, "setup": setup, "pieces": list(pieces_of(s.chosen))})  # fmt: skip
    shared = list(given.values())
    first = candidates[0]["id"]
    tolerances = {
        b["name"]: _tolerance(b["dtype"], max(len(s.launches) for s in plans), plans[0].options.target.numerics)
        for b in shared
        if b["role"] in ("out", "update")
    }
    group: Json = {
        "id": "plan." + ".".join(c["id"] for c in candidates), "body": "", "sizes": sizes, "name": "plan",
        "buffers": [*shared, *temps.values()], "least_seconds": 0.0, "check": first, "anchor": first, "expected": {},
        "tolerance": tolerances, "candidates": candidates,
        "program": program_key(plans[0].program, plans[0].options),
    }  # fmt: skip
    return group, sources


def _written(s: Saturation) -> set[str]:
    """Buffers that a call's launches leave as outputs."""
    made = {n for c in s.launches if not c.at_build for n in c.results}
    return {o.value.name for o in s.plan.outputs if isinstance(o.value, Ref)} & made


def _tolerance(dtype: str, launches: int, numerics: str) -> float:
    """Two plans may round at every launch: errors add as a random walk."""
    d, least = DTYPES[dtype], 2.0**-10 if numerics == "tf32" else 2.0**-16
    return min(1.0, 8 * (1 + math.sqrt(launches)) * max(d.epsilon, least)) if d.kind == "float" else 1.0


def _buffer(b: Buffer, sizes: Mapping[str, int], role: str, known: Mapping[str, np.ndarray[Any, Any]]) -> Json:
    shape = tuple(integer(e, sizes) for e in b.tensor.shape)
    count = math.prod(shape)
    d = DTYPES[b.tensor.dtype]
    fill: Json = {"kind": "normal", "mean": 0.0, "std": 1.0}
    if role in ("temp", "out"):
        fill = {"kind": "zeros"}
    elif b.name in known and known[b.name].nbytes == count * d.bytes:
        fill = {"kind": "data", "base64": base64.b64encode(np.ascontiguousarray(known[b.name]).tobytes()).decode()}
    elif d.kind != "float":
        fill = {"kind": "integers", "low": 0, "high": 1}
    elif b.role == "parameter":
        norm = len(shape) == 1 and b.source.endswith("weight")
        fill["mean"], fill["std"] = (1.0, 0.1) if norm else (0.0, 0.02)
    return {"name": b.name, "dtype": b.tensor.dtype, "count": count, "role": role, "fill": fill}


__all__ = ["GAP", "Chosen", "Compared", "PlanTime", "compare_plans", "key_of", "parts", "plan_group"]
