"""Speed on the local GPU beside PyTorch: the untuned and the tuned plan, held to the bars of a suite.

    python -m experiments.bench.speed --out OUT [--suite contractions] [--cases REGEX] [--db STORE | --tune 60]
    python -m experiments.bench.speed --out OUT --suite small --dry-run          (no GPU: everything but timing)

Every case is a process.  All build first (our plans, torch.compile), side by side; then each measures alone, held apart
by a file lock: the ceilings of the card, our plans and the peers in turns over the same buffers, L2 cold (buffers
rotated over more than twice the cache) and warm, errors against float64, repeated runs, and the best mma.sync rows.
OUT/CASE.json keeps each finished case with its commit: the same command goes on where it was cut off, and measures
again what another commit measured.  OUT/SUITE.json holds all, OUT/SUITE.md the table, which is printed last.
Exit code 1: a case failed, missed its bar, or is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from experiments.bench.bars import BenchCase, findings, means, table, verdicts
from experiments.bench.first import first
from experiments.bench.suites import SUITES, Suite

ALL: Final[dict[str, Callable[[], Suite]]] = {**SUITES, "first": first}
Json = dict[str, Any]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("speed-out"))
    p.add_argument("--suite", choices=sorted(ALL), default="contractions")
    p.add_argument("--cases", default="", metavar="REGEX", help="only cases whose names have it")
    p.add_argument("--budget", type=float, default=500, help="seconds for all; what it cuts off is done next time")
    p.add_argument("--arch", default="sm_90a")
    p.add_argument("--db", type=Path, help="store for the tuned plan; default OUT/tuned.duckdb, golden rows beside it")
    p.add_argument("--tune", type=float, default=0, metavar="SECONDS", help="first tune each case for so long")
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--mma", type=int, default=4, help="mma.sync rows to time a case")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="cases that build at once")
    p.add_argument("--commit", default="", help="stamp, where the tree is no checkout")
    p.add_argument("--dry-run", action="store_true", help="everything but timing, without a GPU")
    p.add_argument("--case", default="", help=argparse.SUPPRESS)
    return p.parse_args(words)


def commit_of(o: argparse.Namespace) -> str:
    """The checkout's commit, with a mark where files differ from it."""
    if o.commit:
        return str(o.commit)
    git = ["git", "-C", str(Path(__file__).parent)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    ).stdout
    return found.stdout.strip() + ("+" if changed.strip() else "")


def file_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def read(folder: Path, name: str) -> Json:
    """What is known of a case; empty where nothing is, or where a run was cut off while it wrote."""
    try:
        found = json.loads(file_of(folder, name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def finished(record: Json, commit: str, dry: bool) -> bool:
    """Whether a case need not be done again: it is done at this commit, and timed where timing is asked for.

    A dry run never takes the place of a measurement.
    """
    if record.get("status") != "done":
        return False
    if dry and not record["dry"]:
        return True
    return record.get("commit") == commit and (dry or not record["dry"])


def words_of(o: argparse.Namespace, case: str, commit: str) -> list[str]:
    """The command of one case's process."""
    passed = ("out", "suite", "arch", "tune", "rounds", "mma", "seed")
    options = [w for name in passed for w in (f"--{name}", str(getattr(o, name)))]
    options += (["--db", str(o.db)] if o.db else []) + (["--dry-run"] if o.dry_run else [])
    return [sys.executable, "-m", "experiments.bench.speed", "--case", case, "--commit", commit, *options]


def all_cases(o: argparse.Namespace) -> int:
    began, commit = time.monotonic(), commit_of(o)
    o.out.mkdir(parents=True, exist_ok=True)
    suite = ALL[o.suite]()
    asked = [c for c in suite.cases if re.search(o.cases, c.name)]
    waiting = [c.name for c in asked if not finished(read(o.out, c.name), commit, o.dry_run)]
    print(f"{len(asked)} cases, {len(asked) - len(waiting)} of them known at {commit}", file=sys.stderr)
    environ = {**os.environ, "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    running: dict[str, subprocess.Popen[bytes]] = {}
    codes: dict[str, str] = {}
    while (waiting or running) and time.monotonic() - began < o.budget - 5:
        while waiting and len(running) < o.jobs:
            name = waiting.pop(0)
            with (o.out / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(words_of(o, name, commit), env=environ, stdout=log, stderr=log)
        for name in [n for n, p in running.items() if p.poll() is not None]:
            codes[name] = str(running.pop(name).returncode)
            print(f"{time.monotonic() - began:6.1f} s  {name}: exit {codes[name]}", file=sys.stderr, flush=True)
        time.sleep(0.2)
    for name, process in running.items():
        process.kill()
        process.wait()
        codes[name] = "killed at the budget"
    codes |= dict.fromkeys(waiting, "not begun within the budget")
    records = {c.name: outcome(o.out, c.name, codes.get(c.name, "0")) for c in asked}
    # a twin may have been measured by another call
    records |= {c.twin: read(o.out, c.twin) for c in asked if c.twin and c.twin not in records}
    return report(o, suite, asked, records)


def report(o: argparse.Namespace, suite: Suite, cases: Sequence[BenchCase], records: dict[str, Json]) -> int:
    """Write what all cases found; 1 where one failed, missed its bar or is wrong."""
    judged = [*verdicts(cases, suite.by_group, records), *means(cases, suite.by_group, records)]
    document = {
        "suite": o.suite, "arch": o.arch, "seed": o.seed, "rounds": o.rounds,
        "cases": [records[c.name] for c in cases],
        "verdicts": [{**asdict(v), "word": v.word} for v in judged],
    }  # fmt: skip
    text = "\n".join(table(cases, suite.by_group, records))
    (o.out / f"{o.suite}.json").write_text(json.dumps(document, indent=1) + "\n")
    (o.out / f"{o.suite}.md").write_text(text + "\n")
    print(text, flush=True)
    return int(any(v.missed for v in judged) or any(findings(c, records[c.name]) for c in cases))


def outcome(folder: Path, name: str, code: str) -> Json:
    record = read(folder, name) or {"name": name, "status": "not begun"}
    if code != "0":
        path = folder / f"{name}.log"
        log = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        record["failed"] = f"{record['status']}, exit {code}" + (f": {' | '.join(log[-2:])[-400:]}" if log else "")
    return record


def main() -> int:
    o = arguments()
    if not o.case:
        return all_cases(o)
    from experiments.bench.one_case import one_case

    return one_case(next(c for c in ALL[o.suite]().cases if c.name == o.case), o)


if __name__ == "__main__":
    sys.exit(main())
