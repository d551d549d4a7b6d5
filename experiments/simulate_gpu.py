"""Simulator and GPU on the same kernels and inputs: bitwise where results are exact, else within rounding.

    python -m experiments.simulate_gpu prepare --out DIR [--rows N] [--seed S] [--jobs N]      needs no GPU
    python -m experiments.simulate_gpu compare --out DIR [--arch sm_90a]                       needs no simulator

`prepare` simulates N rows of every group of the row suite (and the kernels written by hand), on integers and, where
that is another launch, on normal numbers, and writes sources, inputs and results to DIR.  `compare` compiles the
sources, launches them on the same inputs with poisoned results and writes DIR/simulate_gpu.json and .md.  Exit code 1
when one differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from emmy.ir.plan import TensorMap

# Largest difference in units of `tests.codegen.check.distance` (the result type's epsilon, at least 2^-20): elementary
# functions differ by some units in the last place, a sum in another order by as much as the suite's tolerance.
TOLERANCE: Final = 16.0
Record = dict[str, Any]
Array = np.ndarray[Any, Any]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=("prepare", "compare"))
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--rows", type=int, default=12, help="rows of each group")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--arch", default="sm_90a")
    return p.parse_args()


def main() -> int:
    o = arguments()
    o.out.mkdir(parents=True, exist_ok=True)
    return prepare(o) if o.mode == "prepare" else compare(o)


# ---- on the CPU


def prepare(o: argparse.Namespace) -> int:
    from tests.simulate.cases import GROUPS

    began = time.monotonic()
    records: list[Record] = []
    arrays: dict[str, Array] = {}
    # children of their own: a fork would inherit locks of threads that it does not have
    with ProcessPoolExecutor(o.jobs, get_context("spawn")) as pool:
        for made in pool.map(prepare_group, [*GROUPS, "by hand"], [o.rows] * 99, [o.seed] * 99):
            for record, held in made:
                arrays.update({f"{len(records)}/{k}": v for k, v in held.items()})
                records.append(record)
            print(f"{len(records)} launches after {time.monotonic() - began:.0f} s", flush=True)
    bad = [r for r in records if r["findings"]]
    for r in bad:
        print(f"{r['name']}: {r['findings'][0]}")
    (o.out / "samples.json").write_text(json.dumps(records))
    np.savez_compressed(o.out / "arrays.npz", **arrays)  # type: ignore[arg-type]  # its own parameter is a bool
    return int(bool(bad))


def prepare_group(group: str, rows: int, seed: int) -> list[tuple[Record, dict[str, Array]]]:
    from tests.simulate import fixtures
    from tests.simulate.cases import sampled
    from tests.simulate.subjects import hopper

    if group == "by hand":
        made = [f() for f in (fixtures.warp_reverse, fixtures.last_block, fixtures.atomic_sum)] + hopper()
        kernels = [(f"{group}: {case.name}", case, kernel) for case, kernel in made]
    else:
        kernels = [(s.label, s.case, s.kernel) for s in sampled(group, rows, seed)]
    return [
        prepare_one(group, name, case, kernel, kind, seed)
        for name, case, kernel in kernels
        for kind in ("integer", "normal")
    ]


def prepare_one(group: str, name: str, case: Any, kernel: Any, kind: str, seed: int) -> tuple[Record, dict[str, Array]]:
    """A launch's record and its arrays as bytes: x0 .. operands, y0 .. results, z0 .. what results held before."""
    from emmy.codegen.cuda import source
    from emmy.ir.evaluate import integer
    from emmy.ir.kernel import BYTES
    from emmy.ir.plan import tensor_maps, workspaces
    from tests.simulate.runner import found, initial, simulate_case

    inputs = case.inputs(seed, kind)
    simulation = simulate_case(case, kernel, inputs, seed)
    results = found(case, kernel, simulation.outputs)
    held = {f"x{k}": raw(a) for k, a in enumerate(inputs)} | {f"y{k}": raw(a) for k, a in enumerate(results)}
    held |= {f"z{k}": raw(a) for k, a in enumerate(initial(case, inputs)) if not isinstance(a, int)}
    record = {
        "name": f"{name}, {kind}", "group": group, "kernel": kernel.name, "source": source(kernel),
        "grid": [integer(g, case.sizes) for g in kernel.grid], "threads": kernel.threads, "smem": kernel.dynamic_smem,
        "types": [p.type for p in kernel.params if p.role == "out"],
        "shapes": [list(r.shape) for r in results],
        "sizes": [case.sizes[p.name] for p in kernel.params if p.role == "size"],
        "maps": [bound_map(m, case.sizes) for m in tensor_maps(kernel)], "cluster": list(kernel.cluster),
        "dependent": kernel.dependent, "operands": len(inputs), "exact": case.exact and kind == "integer",
        "work": [[integer(w.count, case.sizes) * BYTES[w.type], w.zeroed] for w in workspaces(kernel)],
        "findings": [str(f) for f in simulation.findings],
    }  # fmt: skip
    return record, held


def bound_map(m: TensorMap, sizes: Mapping[str, int]) -> Record:
    """A tensor map with its sizes known; strides in bytes, the innermost left out, as the driver takes it."""
    from emmy.ir.dtype import DTYPES, stored_as
    from emmy.ir.evaluate import integer

    size = DTYPES[stored_as(m.type)].bytes
    return {
        "argument": m.argument, "type": m.type, "shape": [integer(e, sizes) for e in m.shape],
        "strides": [size * integer(e, sizes) for e in m.strides[:-1]], "box": list(m.box),
        "swizzle": m.swizzle, "offset": size * integer(m.offset, sizes),
    }  # fmt: skip


def raw(a: Array) -> Array:
    return np.ascontiguousarray(a).reshape(-1).view(np.uint8)


# ---- on the GPU


def compare(o: argparse.Namespace) -> int:
    import torch

    from emmy.runtime.nvrtc import Compiled, Job, compile_many

    records: list[Record] = json.loads((o.out / "samples.json").read_text())
    arrays = np.load(o.out / "arrays.npz")
    torch.zeros(1, device="cuda")
    built = compile_many([Job(r["source"], r["kernel"], o.arch) for r in records])
    for k, (r, code) in enumerate(zip(records, built, strict=True)):
        if not isinstance(code, Compiled):
            r["verdict"], r["difference"] = f"not compiled: {code}", float("inf")
            continue
        r["verdict"], r["difference"] = verdict(r, launched(r, code, arrays, k), arrays, k)
    for r in records:
        del r["source"]
    device = torch.cuda.get_device_name()
    text = "\n".join(report(records, device))
    (o.out / "simulate_gpu.json").write_text(json.dumps({"device": device, "launches": records}, indent=1))
    (o.out / "simulate_gpu.md").write_text(text + "\n")
    print(text)
    return int(any(r["verdict"] not in ("bitwise", "within rounding") for r in records))


def launched(r: Record, code: Any, arrays: Any, k: int) -> list[Array]:
    """The results as bytes."""
    import torch

    from emmy.runtime.driver import Arguments, Invocation, allow_cluster, allow_smem, encode_map, load

    def device(a: Array) -> torch.Tensor:
        # one byte more, so that an empty operand has an address
        return torch.from_numpy(np.concatenate([a, np.zeros(1, np.uint8)])).cuda()

    operands = [device(arrays[f"{k}/x{n}"]) for n in range(r["operands"])]
    results = []
    for n in range(len(r["types"])):
        before = arrays[f"{k}/z{n}"] if f"{k}/z{n}" in arrays else np.full_like(arrays[f"{k}/y{n}"], 0xFF)
        results.append(device(before))
    function = load(code.cubin, r["kernel"], code.static_smem)
    allow_smem(function, r["smem"])
    allow_cluster(function, int(np.prod(r["cluster"])))
    own = [torch.full((n + 1,), 0 if zeroed else 0xFF, dtype=torch.uint8, device="cuda") for n, zeroed in r["work"]]
    pointers = [t.data_ptr() for t in (*operands, *results, *own)]
    given = Arguments(pointers + r["sizes"], len(r["maps"]))
    for n, m in enumerate(r["maps"]):
        if 0 not in m["shape"]:
            at = pointers[m["argument"]] + m["offset"]
            given.set_map(n, encode_map(m["type"], at, m["shape"], m["strides"], m["box"], m["swizzle"]))
    torch.cuda.synchronize()  # what fills the results does not signal kernels that may start early
    call = Invocation(
        function, tuple(r["grid"]), r["threads"], r["smem"], given, tuple(r["cluster"]), r["dependent"]
    )  # fmt: skip
    call.launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return [t.cpu().numpy()[:-1] for t in results]


def verdict(r: Record, results: list[Array], arrays: Any, k: int) -> tuple[str, float]:
    """How the GPU's results stand to the simulator's, and the largest difference in units of rounding."""
    simulated = [arrays[f"{k}/y{n}"] for n in range(len(results))]
    if all(np.array_equal(a, b) for a, b in zip(results, simulated, strict=True)):
        return "bitwise", 0.0
    pairs = zip(results, simulated, r["types"], r["shapes"], strict=True)
    worst = max(difference(a, b, t, shape) for a, b, t, shape in pairs)
    return ("within rounding" if worst < TOLERANCE and not r["exact"] else "different"), worst


def difference(a: Array, b: Array, type: str, shape: list[int]) -> float:
    """As `tests.codegen.check.distance`, with the simulator as reference."""
    from emmy.ir.arrays import numpy_dtype
    from emmy.ir.dtype import DTYPES

    x, y = (np.atleast_1d(v.view(numpy_dtype(type)).reshape(shape).astype(np.float64)) for v in (a, b))
    if DTYPES[type].kind != "float":
        return 0.0 if np.array_equal(x, y) else float("inf")
    special = ~np.isfinite(y)
    if not np.array_equal(x[special], y[special], equal_nan=True) or not np.isfinite(x[~special]).all():
        return float("inf")
    x, y = np.where(special, 0.0, x), np.where(special, 0.0, y)
    scale = np.maximum(1.0, np.sqrt(np.mean(y**2, axis=-1, keepdims=True))) + np.abs(y)
    unit = max(DTYPES[type].epsilon, 2.0**-20)
    return float(np.max(np.abs(x - y) / (unit * scale), initial=0.0))


def report(records: list[Record], device: str) -> list[str]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for r in records:
        groups[r["group"]].append(r)
    groups["all"] = records
    kernels = len({(r["name"].rpartition(",")[0]) for r in records})
    lines = [f"{len(records)} launches of {kernels} kernels on {device} beside the simulator.", ""]
    lines += ["| group | launches | bitwise | within rounding | worst | different |", "|---|---|---|---|---|---|"]
    for group, rows in groups.items():
        count = [sum(r["verdict"] == v for r in rows) for v in ("bitwise", "within rounding")]
        worst = max((r["difference"] for r in rows if r["verdict"] == "within rounding"), default=0.0)
        rest = len(rows) - sum(count)
        lines.append(f"| {group} | {len(rows)} | {count[0]} | {count[1] or ''} | {worst:.2f} | {rest or ''} |")
    bad = [r for r in records if r["verdict"] not in ("bitwise", "within rounding")]
    return [*lines, "", *(f"- {r['verdict']} ({r['difference']:.3g}): {r['name']}" for r in bad)]


if __name__ == "__main__":
    sys.exit(main())
