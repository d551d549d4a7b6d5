"""Speed on the local GPU beside PyTorch: the chosen row, the best predicted rows, random rows.

    python -m experiments.bench.speed --suite first|contractions --out OUT [--only REGEX] [--budget SECONDS] [--cpu]

Every case is a process.  All build first (our kernels, torch.compile), side by side; then each measures alone, held
apart by a file lock.  The peers (eager, torch.compile, ours) are timed in turns, with L2 cold and with L2 warm; then
the 8 best rows by prediction, 8 random ones and the chosen one, cold, each checked against float64.  The regret is
the chosen row's time over the fastest row's.  Cold decides.  The table is printed last; OUT/SUITE_speed.json holds all.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from experiments.bench.suites import SUITES
from experiments.cases import Case

PEERS: Final = ("eager", "tcompile")


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("speed-out"))
    p.add_argument("--suite", choices=sorted(SUITES), default="first")
    p.add_argument("--only", default="")
    p.add_argument("--budget", type=float, default=400)
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--top", type=int, default=8)
    p.add_argument("--random", type=int, default=8)
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases that build at once")
    p.add_argument("--cpu", action="store_true", help="build our kernels only")
    p.add_argument("--case", default="", help=argparse.SUPPRESS)
    return p.parse_args()


# ---- one case ----------------------------------------------------------------------------------------------------


@contextmanager
def turn(path: Path, alone: bool) -> Iterator[None]:
    """Hold the lock shared (builders) or alone (who measures)."""
    with path.open("a") as f:
        fcntl.flock(f, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def one_case(o: argparse.Namespace) -> int:
    case = next(c for c in SUITES[o.suite]() if c.name == o.case)
    record: dict[str, Any] = {"name": case.name, "status": "building"}

    def save(**more: Any) -> None:
        record.update(more)
        (o.out / f"{case.name}.json").write_text(json.dumps(record))

    save()
    lock = o.out / "lock"
    with turn(lock, alone=False):
        bench = Bench(case, o)
        save(status="built", **bench.facts)
        if o.cpu:
            return 0
        bench.peers()
    with turn(lock, alone=True):
        save(check=bench.check("ours", bench.module), peers=bench.measure_peers(), status="peers")
        save(rows=bench.measure_rows(), status="done")
    return 0


class Bench:
    """A case built: our plan and its variants; on a GPU also PyTorch's functions and the inputs."""

    def __init__(self, case: Case, o: argparse.Namespace) -> None:
        from emmy.extract.prior import predict_many, roofline
        from experiments.prepare import facts_of, saturate_case, task_of, with_row

        self.case, self.o = case, o
        self.s = s = saturate_case(case, o.arch, o.out)
        self.task = task_of(case, s, {})
        self.chosen = max(s.launches, key=lambda c: c.priced.decision.cost)
        body = self.chosen.priced.body
        legal = s.selection.legal(body)
        work = s.selection.work(body)
        seconds = [float(t) for t in predict_many(work, [r.config for r in legal], s.options.target)]
        order = sorted(range(len(legal)), key=lambda k: (seconds[k], legal[k].row.text))
        picked = order[: o.top]
        rest = order[o.top :]
        picked += random.Random(f"{o.seed}:{case.name}").sample(rest, min(o.random, len(rest)))
        own = (self.chosen.priced.scheduled.family, self.chosen.priced.scheduled.row.text)
        self.facts = {
            **facts_of(s.plan), "family": own[0], "row": own[1], "legal": len(legal),
            "predicted_us": s.predicted_seconds * 1e6, "roofline_us": roofline(work, s.options.target) * 1e6,
        }  # fmt: skip
        self.variants: list[dict[str, Any]] = []
        for k in picked:
            scheduled = legal[k]
            if (scheduled.family, scheduled.row.text) == own:
                continue
            plan = with_row(s, self.chosen, body, scheduled, o.out)
            kind = "top" if order.index(k) < o.top else "random"
            self.variants.append(
                {"kind": kind, "family": scheduled.family, "row": scheduled.row.text, "predicted_us": seconds[k] * 1e6,
                 "rank": order.index(k), "plan": plan}
            )  # fmt: skip

    def peers(self) -> None:
        """Compile PyTorch's functions and draw the inputs."""
        import torch

        generator = torch.Generator(device="cuda").manual_seed(self.o.seed)
        self.weights = {n: like.draw(generator) for n, like in self.task.parameters.items()}
        self.weights |= {n: t.cuda() for n, t in self.task.held.items()}
        self.inputs = [like.draw(generator) for like in self.task.inputs]
        self.eager: Callable[..., Any] = self.s.program.module  # type: ignore[assignment]
        self.compiled = torch.compile(self.eager, dynamic=False)
        self.compiled(*self.inputs)
        self.module = self.build(self.task.plan)

    def build(self, plan: Any) -> Any:
        from emmy.runtime.cache import CubinCache
        from emmy.runtime.module import Module
        from experiments.execute import opaque

        return Module(plan, self.weights, opaque=opaque, poison=False, cache=CubinCache(self.o.out))

    def check(self, name: str, module: Any) -> dict[str, Any]:
        """Error over tolerance of one run."""
        import torch

        from emmy.frontend.reference import interpret
        from experiments.execute import comparisons, run, share

        if not hasattr(self, "reference"):
            self.reference = interpret(self.task.graph, self.weights, self.inputs, torch.float64)
            self.plain = interpret(self.task.graph, self.weights, self.inputs)
        values = run(module, self.task.graph, self.inputs)
        found = comparisons(values, self.reference, self.plain, self.task)
        return {"ok": all(c.ok for c in found), "share": max(share(c) for c in found), "text": str(found[0])}

    def measure_peers(self) -> dict[str, Any]:
        from emmy.runtime.bench import measure, ratio

        calls = {
            "ours": lambda: self.module(*self.inputs),
            "eager": lambda: self.eager(*self.inputs),
            "tcompile": lambda: self.compiled(*self.inputs),
        }
        found: dict[str, Any] = {}
        for l2 in ("cold", "warm"):
            timed = measure(calls, cold=l2 == "cold", rounds=self.o.rounds)
            found[l2] = {n: [t.median * 1e6, t.p10 * 1e6, t.p90 * 1e6, t.method] for n, t in timed.items()}
            found[l2 + "_ratio"] = {n: ratio(timed["ours"], timed[n]).median for n in PEERS}
        return found

    def measure_rows(self) -> list[dict[str, Any]]:
        from emmy.runtime.bench import measure

        modules: dict[str, Any] = {"chosen": self.module}
        rows = [{"kind": "chosen", "family": self.facts["family"], "row": self.facts["row"],
                 "predicted_us": self.chosen.priced.decision.cost * 1e6}]  # fmt: skip
        for k, variant in enumerate(self.variants):
            row = {n: v for n, v in variant.items() if n != "plan"}
            rows.append(row)
            if isinstance(variant["plan"], str):
                row["refused"] = variant["plan"]
                continue
            module = self.build(variant["plan"])
            row["check"] = self.check(row["row"], module)
            modules[str(k)] = module
        calls = {n: (lambda m=m: m(*self.inputs)) for n, m in modules.items()}
        timed = measure(calls, cold=True, rounds=max(8, self.o.rounds // 3))
        rows[0]["measured_us"] = timed["chosen"].median * 1e6
        for k, row in enumerate(rows[1:]):
            if str(k) in timed:
                row["measured_us"] = timed[str(k)].median * 1e6
        return rows


# ---- all cases ----------------------------------------------------------------------------------------------------


def all_cases(o: argparse.Namespace) -> int:
    began = time.monotonic()
    o.out.mkdir(parents=True, exist_ok=True)
    names = [c.name for c in SUITES[o.suite]() if re.search(o.only, c.name)]
    passed = ("out", "suite", "arch", "top", "random", "rounds", "seed")
    options = [word for name in passed for word in (f"--{name}", str(getattr(o, name)))] + (["--cpu"] if o.cpu else [])
    environ = {**os.environ, "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    running: dict[str, subprocess.Popen[bytes]] = {}
    codes: dict[str, str] = {}
    waiting = list(names)
    while (waiting or running) and time.monotonic() - began < o.budget - 5:
        while waiting and len(running) < o.jobs:
            name = waiting.pop(0)
            with (o.out / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", "experiments.bench.speed", "--case", name, *options]
                running[name] = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        for name in [n for n, p in running.items() if p.poll() is not None]:
            codes[name] = str(running.pop(name).returncode)
        time.sleep(0.2)
    for name, process in running.items():
        process.kill()
        process.wait()
        codes[name] = "killed at the budget"
    results = [outcome(o.out, name, codes.get(name, "not started")) for name in names]
    facts = {"arch": o.arch, "seed": o.seed, "rounds": o.rounds, "seconds": time.monotonic() - began, "cases": results}
    (o.out / f"{o.suite}_speed.json").write_text(json.dumps(facts, indent=1))
    text = "\n".join(table(results))
    (o.out / f"{o.suite}_speed.md").write_text(text + "\n")
    print(text, flush=True)
    return int(any(r["status"] != "done" for r in results))


def outcome(folder: Path, name: str, code: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"name": name, "status": "building"}
    if code != "0":
        log = (folder / f"{name}.log").read_text(errors="replace") if (folder / f"{name}.log").exists() else ""
        record["failed"] = f"{record['status']}, then exit {code}: " + " | ".join(log.strip().splitlines()[-2:])[-400:]
    return record


def table(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "Microseconds, medians of interleaved rounds; L2 cold unless named warm.  ratio = ours / faster of eager and"
        " torch.compile.  best row = fastest of the rows timed; regret = chosen / best row.",
        "",
        "| case | ours | eager | tcompile | ratio | warm ratio | best row | regret | predicted | wrong rows | row |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [line(r) for r in results]
    lines += ["", *(f"{r['name']}: {r['failed']}" for r in results if "failed" in r)]
    lines += [f"{r['name']}: WRONG {r['check']['text']}" for r in results if not r.get("check", {"ok": True})["ok"]]
    return lines


def line(r: dict[str, Any]) -> str:
    cells = [r["name"]]
    peers = r.get("peers")
    if peers:
        cells += [f"{peers['cold'][n][0]:.2f}" for n in ("ours", *PEERS)]
        cells += [f"{max(peers[k + '_ratio'].values()):.3f}" for k in ("cold", "warm")]
    else:
        cells += [r["status"], "", "", "", ""]
    timed = [x for x in r.get("rows", []) if "measured_us" in x and x.get("check", {"ok": True})["ok"]]
    if timed:
        best = min(timed, key=lambda x: x["measured_us"])
        wrong = sum(not x.get("check", {"ok": True})["ok"] for x in r["rows"])
        refused = sum("refused" in x for x in r["rows"])
        cells += [f"{best['measured_us']:.2f}", f"{timed[0]['measured_us'] / best['measured_us']:.2f}"]
        cells += [f"{r['predicted_us']:.1f}", f"{wrong} wrong, {refused} refused" if wrong + refused else ""]
        cells.append(
            f"{r['family']} {r['row']}" + ("" if best is timed[0] else f"; best {best['family']} {best['row']}")
        )
    else:
        cells += [
            "",
            "",
            f"{r['predicted_us']:.1f}" if "predicted_us" in r else "",
            "",
            f"{r.get('family', '')} {r.get('row', '')}",
        ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    options = arguments()
    sys.exit(one_case(options) if options.case else all_cases(options))
