"""Tuning on this machine's GPU: how many candidates a second, and whether a layer's plan is what the search promises.

    python -m experiments.tune_check --out OUT [--what rate,layer,search] [--budget 5m] [--model Qwen/Qwen3-0.6B]

`rate` tunes single kernels for a minute each and prints measured rows a second.  `layer` tunes a layer of a model,
tunes it again (nothing may be measured twice) and runs it with `--strict-evidence`.  `search` goes on with what that
measured, in a store of its own, with full effort for so long that both together take --search: its plan may be 3 %
faster at most.  `OUT/tune.json` holds what was found; the exit code is 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from emmy.cli.tune import parse_seconds

CODES: Final = {
    "rms norm 512x2304": "torch.nn.RMSNorm(2304,eps=1e-6)(torch.randn(1,512,2304))",
    "linear 512x4096x4096 bf16": "torch.nn.Linear(4096,4096,bias=False,dtype=torch.bfloat16)"
    "(torch.randn(512,4096,dtype=torch.bfloat16))",
    "attention 1x16x2048x128 bf16": "q=torch.randn(1,16,2048,128,dtype=torch.bfloat16)\n"
    "torch.nn.functional.scaled_dot_product_attention(q,q,q,is_causal=True)",
}
LEAST_RATE: Final = 20.0  # measured rows a second
NEAR: Final = 1.03  # the tuned plan's time over that of the longer search


def emmy(*words: str) -> tuple[int, str, float]:
    """(exit code, standard output, seconds); what is for people goes on to our standard error."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "emmy.cli.main", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stdout, time.monotonic() - began


def tune(
    name: str, words: list[str], database: Path, budget: str, problems: list[str], effort: str = "normal"
) -> dict[str, Any]:
    """What `emmy tune --json` says, printed in short; empty where it failed, which `problems` is told."""
    code, out, seconds = emmy("tune", *words, "--budget", budget, "--effort", effort, "--db", str(database), "--json")
    if code:
        problems.append(f"{name}: emmy tune ended with {code}")
        return {}
    found: dict[str, Any] = json.loads(out)
    rate = found["measured"] / max(found["seconds"], 1e-9)
    busy = found["measured"] / max(found["device_seconds"], 1e-9)
    plan = found["plan"]
    print(f"{name}: {found['measured']} measured, {found['recalled']} known, failures {found['failures']}, "
          f"{rate:.1f} a second ({busy:.1f} while the GPU had work), {seconds:.0f} s; {found['stopped']}")  # fmt: skip
    for b in found["bodies"]:
        times = f"first {b['first_us']:.2f} us, best {b['best_us']:.2f} us"
        print(f"  {b['kernel']}: {b['measured']} of {b['rows']}, {times} {b['row']} {b['failed'] or ''} {b['stopped']}")
    for which in ("untuned", "tuned"):
        if which in plan:
            p = plan[which]
            print(f"  plan {which}: whole {p['whole_us']:.2f} us, parts {p['parts_us']:.2f} us, gap {p['gap']:+.1%}")
    print(f"  keep {plan['keep']} {plan['reason']}", flush=True)
    return found


def search(words: list[str], o: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """The rest of a longer search on a copy of the store, and how much faster its plan is."""
    longer = o.out / "search.duckdb"
    shutil.copyfile(o.out / "tune.duckdb", longer)
    seconds = parse_seconds(o.search) - parse_seconds(o.budget)
    found = tune("layer, longer search", words, longer, f"{seconds:.0f}s", problems, "full")
    whole = {}
    for name, database in (("tuned", o.out / "tune.duckdb"), ("searched", longer)):
        code, out, _ = emmy("run", *words, "--bench", "--repeats", "200", "--json", "--db", str(database))
        if code:
            problems.append(f"emmy run --bench of the {name} plan ended with {code}")
            return found
        found[name] = json.loads(out)["timings"]
        whole[name] = found[name]["emmy"]["median_us"]
        print(f"  {name}: {whole[name]:.2f} us", flush=True)
    if whole["tuned"] > NEAR * whole["searched"]:
        problems.append(f"the longer search's plan is {whole['tuned'] / whole['searched'] - 1:.1%} faster")
    return found


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=Path("tune-out"))
    p.add_argument("--what", default="rate,layer", help="search wants layer")
    p.add_argument("--budget", default="5m")
    p.add_argument("--search", default="8m")
    p.add_argument("--model", default="Qwen/Qwen3-0.6B")
    p.add_argument("--seq-len", default="512")
    o = p.parse_args()
    if "search" in o.what and ("layer" not in o.what or parse_seconds(o.search) <= parse_seconds(o.budget)):
        p.error("search goes on with what layer measured: name both, and a --search above --budget")
    o.out.mkdir(parents=True, exist_ok=True)
    database = o.out / "tune.duckdb"
    problems: list[str] = []
    found: dict[str, Any] = {}
    if "rate" in o.what:
        for name, code in CODES.items():
            found[name] = tune(name, ["-c", code], database, "60s", problems)
            wrong = found[name].get("failures", {}).get("wrong result", 0)
            if wrong:
                problems.append(f"{name}: {wrong} rows gave wrong results")
            if found[name] and found[name]["measured"] < LEAST_RATE * found[name]["device_seconds"]:
                problems.append(f"{name}: less than {LEAST_RATE:.0f} candidates a second")
    if "layer" in o.what:
        layer = [o.model, "--layer", "0", "--seq-len", o.seq_len]
        found["layer"] = tune("layer", layer, database, o.budget, problems)
        again = tune("layer, again", layer, database, "20s", problems)
        if again.get("measured", 1) and found["layer"].get("stopped") != "the budget is spent":
            problems.append("a second run measured rows again")
        code, out, _ = emmy("run", *layer, "--bench", "--strict-evidence", "--db", str(database))
        print(out)
        if code:
            problems.append(f"emmy run --bench --strict-evidence ended with {code}")
        if "search" in o.what:
            found["search"] = search(layer, o, problems)
    (o.out / "tune.json").write_text(json.dumps(found, indent=1))
    print("\n".join(problems) or "all as it should be")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
