"""The child process of `validate`: prepares cases or executes prepared tasks, one JSON line each.

It catches what a compiler may answer (EmmyError while preparing); everything else ends it, as a CUDA error must, since
the context is lost: the parent notes the reason and starts another.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from emmy.errors import EmmyError
from experiments.cases import Case, all_cases


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--arch", required=True)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--sample", type=int, required=True)
    options.add_argument("--runs", type=int, required=True)
    options.add_argument("--threads", type=int, default=0, help="kernels compiled at once; 0: one a core")
    options.add_argument("--nice", type=int, default=0)
    options.add_argument("--cpu", action="store_true")
    o = options.parse_args()
    os.nice(o.nice)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    faulthandler.register(signal.SIGUSR1)
    cases = {c.name: c for c in all_cases(o.sample)}
    for line in sys.stdin:
        message = json.loads(line)
        answer = prepared(cases[message["case"]], o) if "case" in message else executed(message["task"], o)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def prepared(case: Case, o: argparse.Namespace) -> dict[str, Any]:
    from experiments.prepare import prepare

    try:
        return {"records": prepare(case, o.arch, o.out, o.seed, o.threads)}
    except EmmyError as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        reason = f"{type(e).__name__}: {e.what} ({Path(where.filename).name}:{where.lineno})"
        return {"records": [{"name": case.name, "status": "prepare", "reason": reason}]}


def executed(task: str, o: argparse.Namespace) -> dict[str, Any]:
    from experiments.execute import execute

    return execute(task, o.out, o.seed, o.runs, not o.cpu)


if __name__ == "__main__":
    main()
