"""Every mutation operator at random sites of kernels of every family: is each mutant found?

    python -m experiments.mutations [--seed S] [--kernels N] [--sites N] [--only REGEX] [--out FILE] [--jobs N]

A mutant is found when the verifier refuses it, when the simulator has a finding, or when its values are wrong for one
of several inputs.  A mutant that is not found must be equivalent: proved by its witness (see tests/simulate/edits.py),
by the static proof for barriers, or by a reason in tests/simulate/survivors.py.  The table goes to FILE (by default
docs/mutations.md).  Exit code 1 when a mutant is neither found nor equivalent.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.simulate.judge import Verdict, judge_subject
from tests.simulate.subjects import subjects

FOUND = ("verifier", "finding", "values")
HEAD = """# Mutation table
Every operator below changes one statement (or one object) of a kernel. A mutant is *found* when the Kernel IR verifier
refuses it, when the [simulator](simulator.md) has a finding, or when the simulated values are wrong: outside of the
tolerance against float64, or further from the kernel's own than another order of sums explains. A mutant that is not
found must do the same as its kernel in that launch, and is *equivalent* with a proof:

- **witness**: a kernel that stores out of bounds exactly where the mutation could make a difference is simulated, and
  does not. It proves that the changed guard, index or bound has the same value wherever it is used, that the changed
  statement is never executed, or that the changed first value is never read.
- **unused**: with NaN in the place of what the mutation changes, results are right: it is never used.
- **static**: no access on the ways from the former barrier to the one left out conflicts with an access on the ways to
  the next; or the same thread stores to the element again; or the advanced cursor is not used again.
- **no wait**: without any wait for that side of the ring the launch is right and has no finding: the arrivals that the
  mutation changes are for nobody.
- **identical**: only registers are computed otherwise, and no bit of the results differs from the kernel's on seventeen
  inputs of ten kinds.
- **by hand**: a reason that is stated in `tests/simulate/survivors.py` and listed at the end.

`make test-simulate` runs this; `python -m experiments.mutations` writes this page.
"""


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--kernels", type=int, default=4, help="kernels of each group")
    p.add_argument("--sites", type=int, default=1, help="sites of an operator in a kernel")
    p.add_argument("--only", default="", help="regular expression searched in `group: operator`")
    p.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "mutations.md")
    p.add_argument("--jobs", type=int, default=1)
    return p.parse_args()


def main() -> int:
    o = arguments()
    began = time.monotonic()
    work = subjects(o.kernels, o.seed)
    verdicts: list[Verdict] = []
    # children of their own: a fork would inherit locks of threads that it does not have
    with ProcessPoolExecutor(o.jobs, get_context("spawn")) as pool:
        jobs = [pool.submit(judge_subject, s.key, o.kernels, o.seed, o.sites, o.only) for s in work]
        for s, job in zip(work, jobs, strict=True):
            made = job.result()
            verdicts += made
            lost = [v for v in made if v.how == "survived"]
            print(f"{s.key}: {len(made)} mutants, {len(lost)} survived, {time.monotonic() - began:.0f} s", flush=True)
            for v in lost:
                print(f"    {v.operator} at {v.site}", flush=True)
    if not o.only:
        o.out.write_text(page(verdicts, o))
    print("\n".join(table(verdicts)))
    survived = [v for v in verdicts if v.how == "survived"]
    print(f"{len(verdicts)} mutants, {len(survived)} neither found nor proved equivalent")
    return int(bool(survived))


def page(verdicts: list[Verdict], o: argparse.Namespace) -> str:
    hand = sorted({(v.operator, v.reason) for v in verdicts if v.how == "hand"})
    by_group = Counter(v.key.split(":")[0] for v in verdicts)
    groups = ", ".join(f"{g} {n}" for g, n in sorted(by_group.items()))
    lines = [
        HEAD,
        f"{len(verdicts)} mutants of {len({v.key for v in verdicts})} kernels, seed {o.seed}, {o.sites} site(s) of "
        f"each operator in a kernel: {groups}.",
        "",
        *table(verdicts),
        "",
        "## What found them",
        *kinds(verdicts),
        "",
        "## Equivalent by hand",
        *([f"- {operator}: {reason}" for operator, reason in hand] or ["None."]),
    ]
    lost = [f"- {v.key}: {v.operator} at `{v.site}`" for v in verdicts if v.how == "survived"]
    if lost:
        lines += ["", "## Neither found nor proved equivalent", *lost]
    return "\n".join(lines) + "\n"


def table(verdicts: list[Verdict]) -> list[str]:
    columns = (
        "verifier",
        "finding",
        "values",
        "witness",
        "unused",
        "static",
        "no wait",
        "identical",
        "hand",
        "survived",
    )
    lines = ["| operator | mutants | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for v in verdicts:
        rows[v.operator][v.how] += 1
    rows["all"] = Counter(v.how for v in verdicts)
    for name, count in rows.items():
        cells = " | ".join(str(count[c] or "") for c in columns)
        lines.append(f"| {name} | {count.total()} | {cells} |")
    return lines


def kinds(verdicts: list[Verdict]) -> list[str]:
    """How often each kind of finding was the first."""
    count = Counter(v.reason for v in verdicts if v.how == "finding")
    return ["| finding | mutants |", "|---|---|", *(f"| {k} | {n} |" for k, n in count.most_common())]


if __name__ == "__main__":
    sys.exit(main())
