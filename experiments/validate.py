"""Correctness on the GPU: every case against a float64 reference, outputs poisoned, fresh inputs, twice.

    python -m experiments.validate --out OUT [--only REGEX] [--budget SECONDS] [--no-models] [--cpu]

Cases are saturated, lowered and compiled by crews of processes, whole models by one of their own; what is ready is
executed by other processes, so that a kernel that hangs or faults costs its own case.  `OUT/results.jsonl` grows as
results come, `OUT/results.json` and `OUT/results.md` are written at the end; the table is printed last.  `--cpu`
compiles only and lets PyTorch's own result stand for ours.  Exit code 1 when a case is wrong, failed or was
skipped.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

NEEDED: Final = (
    "torch", "egglog", "numpy", "cuda.core", "cuda.bindings", "sklearn", "duckdb", "pyarrow", "ml_dtypes", "highspy",
    "typer", "rich", "platformdirs", "filelock", "transformers", "safetensors",
)  # fmt: skip
GOOD: Final = ("ok",)
BAD: Final = ("wrong", "died", "prepare", "refused", "skipped")
Record = dict[str, Any]


def missing_packages() -> list[str]:
    """Which of the packages that we need are not here; says so on standard output."""

    def absent(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is None
        except ModuleNotFoundError:  # its parent is missing
            return True

    missing = [n for n in NEEDED if absent(n)]
    print(f"python {sys.version.split()[0]}, missing packages: {', '.join(missing) or 'none'}")
    for name in ("torch", "egglog", "nvidia-cuda-nvrtc", "cuda-bindings", "transformers", "triton"):
        try:
            print(f"  {name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"  {name} has no metadata here")
    sys.stdout.flush()
    return missing


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("validate-out"))
    p.add_argument("--only", default="", help="regular expression searched in the case's name")
    p.add_argument("--budget", type=float, default=500, help="seconds for all")
    p.add_argument("--models", action=argparse.BooleanOptionalAction, default=True)
    p.add_argument("--cpu", action="store_true", help="compile only; no GPU is touched")
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    p.add_argument("--prepare-seconds", type=float, default=330, help="most that one case, no whole model, may take")
    p.add_argument("--gpu-jobs", type=int, default=3, help="processes that execute")
    p.add_argument("--sample", type=int, default=10, help="random rows of a family for each sampled body")
    p.add_argument("--thin", type=int, default=1, help="take every so many-th case of odd shapes")
    p.add_argument("--runs", type=int, default=2)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


class Run:
    """The results so far, shared by the crews' threads."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        self.sink = (folder / "results.jsonl").open("w")
        self.facts: dict[str, Record] = {}
        self.results: dict[str, Record] = {}

    def result(self, name: str, record: Record) -> None:
        with self.lock:
            whole = {**self.facts.get(name, {}), **record, "name": name}
            self.results[name] = whole
            self.sink.write(json.dumps(whole) + "\n")
            self.sink.flush()


def main() -> int:
    o = arguments()
    began = time.monotonic()
    missing = missing_packages()
    if "torch" in missing or "egglog" in missing:
        return 2
    from experiments.cases import all_cases
    from experiments.crew import Crew, Message, Worker

    o.out.mkdir(parents=True, exist_ok=True)
    cases = [c for c in all_cases(o.sample) if re.search(o.only, c.name) and (o.models or c.group != "models")]
    cases = [c for k, c in enumerate(cases) if c.group not in ("shapes", "attention") or k % o.thin == 0]
    run = Run(o.out)
    same = ("out", "arch", "seed", "sample", "runs")
    options = [word for name in same for word in (f"--{name}", str(getattr(o, name)))]
    command = [sys.executable, "-m", "experiments.worker", *options, *(["--cpu"] if o.cpu else [])]

    def worker(kind: str, environ: dict[str, str], *more: str) -> Any:
        return lambda k: Worker([*command, *more], environ, o.out / f"{kind}-{k}.log")

    def executed(message: Message, answer: Message) -> None:
        run.result(message["task"], verdict(answer))

    def prepared(message: Message, answer: Message) -> None:
        if "records" not in answer:
            run.result(message["case"], verdict(answer))
            return
        for record in answer["records"]:
            if record["status"] != "ready":
                run.result(record["name"], record)
                continue
            run.facts[record["name"]] = record
            execution.put({"task": record["name"]})

    deadline = began + o.budget - 10
    one_thread = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    execution = Crew(1 if o.cpu else o.gpu_jobs, worker("execute", one_thread if o.cpu else {}), 90, deadline, executed)
    # whole models start first, may take until the deadline, and go before others where these want the same cores
    threads = str(max(2, o.jobs // 4))
    whole, rest = [c for c in cases if c.whole], [c for c in cases if not c.whole]
    first = worker("whole", one_thread, "--threads", threads)
    then = worker("prepare", one_thread, "--threads", "1", "--nice", "10")
    crews = [
        Crew(len(whole), first, o.budget, deadline - 15, prepared),
        Crew(min(max(1, o.jobs - len(whole)), len(rest)), then, o.prepare_seconds, deadline - 15, prepared),
    ]
    for crew, some in zip(crews, (whole, rest), strict=True):
        for case in some:
            crew.put({"case": case.name})
    for crew in crews:
        crew.finish()
    print(f"prepared {len(cases)} cases after {time.monotonic() - began:.0f} s", flush=True)
    execution.finish()
    return report(o, run, time.monotonic() - began)


def verdict(answer: Record) -> Record:
    if "died" in answer:
        return {"status": "skipped" if answer.get("late") else "died", "reason": answer["died"]}
    if "skipped" in answer:
        return {"status": "skipped", "reason": "the budget was spent"}
    return answer


def report(o: argparse.Namespace, run: Run, seconds: float) -> int:
    """Write results and print the table; 1 where anything is not ok."""
    results = sorted(run.results.values(), key=lambda r: r["name"])
    lines = [*table(results), "", *failures(results)]
    how = "PyTorch on CPU in our place (dry run)" if o.cpu else f"on {device_name()}"
    head = f"{len(results)} checks {how}, {o.arch}, seed {o.seed}, {o.runs} runs each, {seconds:.0f} s"
    facts = {"head": head, "arch": o.arch, "seed": o.seed, "runs": o.runs, "cpu": o.cpu, "results": results}
    (o.out / "results.json").write_text(json.dumps(facts, indent=1))
    text = "\n".join([head, "", *lines])
    (o.out / "results.md").write_text(text + "\n")
    print(text, flush=True)
    return int(any(r["status"] not in GOOD for r in results))


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def kind_of(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] in ("shapes", "rows") else parts[0]


def table(results: list[Record]) -> list[str]:
    """Markdown: a line for each group with its worst error over tolerance."""
    lines = ["| group | ok | " + " | ".join(BAD) + " | worst error/allowed | eager's | opaque | case |"]
    lines.append("|---" * (len(BAD) + 6) + "|")
    groups: dict[str, list[Record]] = {}
    for r in results:
        groups.setdefault(kind_of(r["name"]), []).append(r)
    for group, rows in sorted(groups.items()):
        count = Counter(r["status"] for r in rows)
        numbers = " | ".join(str(count[s] or "") for s in (*GOOD, *BAD))
        worst = max(rows, key=lambda r: r.get("share", -1.0))
        fallback = len({op for r in rows for op in r.get("opaque", ())})
        figures = f"{worst['share']:.3f} | {worst['eager_share']:.3f}" if "share" in worst else " | "
        lines.append(f"| {group} | {numbers} | {figures} | {fallback or ''} | {worst['name']} |")
    return lines


def failures(results: list[Record], most: int = 60) -> list[str]:
    """One line for each case that is not ok; equal reasons are told once."""
    bad = [r for r in results if r["status"] not in GOOD]
    seen: Counter[str] = Counter()
    lines = []
    for r in bad:
        reason = r.get("reason") or r.get("text", "")
        key = f"{kind_of(r['name'])} {r['status']} {re.sub(r'[0-9.e+-]+', '#', reason)[:80]}"
        seen[key] += 1
        if seen[key] <= 2 and len(lines) < most:
            lines.append(f"{r['status']}: {r['name']} {r.get('row', '')} {reason[:300]}".replace("\n", " "))
    lines.append(f"{len(bad)} of {len(results)} are not ok")
    return lines


if __name__ == "__main__":
    sys.exit(main())
