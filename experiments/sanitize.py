"""A sample of kernels under compute-sanitizer, each in a process of its own.

    python -m experiments.sanitize --out OUT [--tool memcheck] [--sample 1] [--only REGEX] [--budget SECONDS]

Every body of `cases.row_cases` with its chosen row and `--sample` random rows of each family.  PyTorch's caching
allocator is turned off, so that every tensor is an allocation of its own and a read one element past it is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

ERROR_CODE: Final = 66  # what compute-sanitizer exits with when it found something
WRONG_CODE: Final = 67


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("sanitize-out"))
    p.add_argument("--tool", default="memcheck", choices=("memcheck", "racecheck", "initcheck", "synccheck"))
    p.add_argument("--only", default="", help="regular expression searched in the body's name")
    p.add_argument("--sample", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--budget", type=float, default=240)
    p.add_argument("--cpu", action="store_true", help="compile and compute the references only")
    p.add_argument("--launch", default="", help=argparse.SUPPRESS)
    o = p.parse_args()
    return launch(o) if o.launch else sample(o)


def launch(o: argparse.Namespace) -> int:
    """The child: one launch of a prepared task, compared with a reference that the CPU computes."""
    import torch

    from emmy.frontend.reference import interpret
    from emmy.runtime.cache import CubinCache
    from emmy.runtime.module import Module
    from experiments.execute import comparisons, opaque, run
    from experiments.prepare import Task, file_of

    task: Task = pickle.loads(file_of(o.out, o.launch).read_bytes())
    generator = torch.Generator().manual_seed(o.seed)
    weights = {n: like.draw(generator) for n, like in task.parameters.items()} | dict(task.held)
    inputs = [like.draw(generator) for like in task.inputs]
    reference = interpret(task.graph, weights, inputs, torch.float64)
    plain = interpret(task.graph, weights, inputs)
    values = plain
    if not o.cpu:
        module = Module(task.plan, weights, opaque=opaque, graph=False, poison=True, cache=CubinCache(o.out))
        values = run(module, task.graph, [t.cuda() for t in inputs])
        torch.cuda.synchronize()
    found = comparisons(values, reference, plain, task)
    print("\n".join(map(str, found)))
    return 0 if all(c.ok for c in found) else WRONG_CODE


def sample(o: argparse.Namespace) -> int:
    """The parent: prepares the tasks, checks each, prints a line for each finding and a summary last."""
    from experiments.cases import row_cases
    from experiments.crew import Crew, Message, Worker

    began, lock = time.monotonic(), threading.Lock()
    o.out.mkdir(parents=True, exist_ok=True)
    ready: list[str] = []
    lost: list[str] = []

    def prepared(message: Message, answer: Message) -> None:
        with lock:
            for record in answer.get("records", [{"name": message["case"], "status": "died", **answer}]):
                good = record["status"] == "ready"
                (ready if good else lost).append(record["name"] if good else json.dumps(record)[:400])

    command = [
        sys.executable, "-m", "experiments.worker", "--out", str(o.out), "--arch", o.arch, "--seed", str(o.seed),
        "--sample", str(o.sample), "--runs", "1",
    ]  # fmt: skip
    environ = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    names = [c.name for c in row_cases(o.sample) if re.search(o.only, c.name)]
    crew = Crew(
        min(o.jobs, len(names)), lambda k: Worker(command, environ, o.out / f"prepare-{k}.log"), 120,
        began + o.budget / 2, prepared,
    )  # fmt: skip
    for name in names:
        crew.put({"case": name})
    crew.finish()
    print(f"{len(ready)} tasks prepared after {time.monotonic() - began:.0f} s", flush=True)
    with ThreadPoolExecutor(min(8, o.jobs)) as pool:
        results = list(pool.map(lambda name: check(o, name, began + o.budget), sorted(ready)))
    (o.out / "sanitize.json").write_text(json.dumps({"tool": o.tool, "results": results, "unprepared": lost}, indent=1))
    for r in results:
        if r["status"] != "clean":
            print(f"{r['status']}: {r['name']}: {r['text'][-600:]}")
    for text in lost:
        print(f"not prepared: {text}")
    count = {s: sum(r["status"] == s for r in results) for s in ("clean", "errors", "wrong", "failed", "skipped")}
    families = sorted({r["name"].split("/")[1] for r in results if r["name"].startswith("rows/")})
    print(f"compute-sanitizer {o.tool}: {len(results)} processes of families {', '.join(families)}: "
          + ", ".join(f"{n} {s}" for s, n in count.items()) + f"; {len(lost)} not prepared")  # fmt: skip
    return int(count["clean"] != len(results) or bool(lost))


def check(o: argparse.Namespace, name: str, deadline: float) -> dict[str, Any]:
    """`clean`, `errors` (the tool's findings), `wrong` values, `failed` to run, or `skipped` for want of time."""
    left = deadline - time.monotonic()
    if left < 5:
        return {"name": name, "status": "skipped", "text": ""}
    tool = [
        "compute-sanitizer", "--report-api-errors", "no", "--tool", o.tool, "--error-exitcode", str(ERROR_CODE),
        "--print-limit", "5",
    ]  # fmt: skip
    child = [
        sys.executable, "-m", "experiments.sanitize", "--launch", name, "--out", str(o.out), "--seed", str(o.seed),
        *(["--cpu"] if o.cpu else []),
    ]  # fmt: skip
    environ = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            child if o.cpu else [*tool, *child], env=environ, timeout=min(left, 120), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        return {"name": name, "status": "failed", "text": f"no end after {e.timeout:.0f} s"}
    status = {0: "clean", ERROR_CODE: "errors", WRONG_CODE: "wrong"}.get(done.returncode, "failed")
    return {"name": name, "status": status, "text": done.stdout[-3000:]}


if __name__ == "__main__":
    sys.exit(main())
