"""A worker process that speaks the runner's protocol and touches no GPU; what a candidate does is in its name.

hang: answers no more.  die: ends.  illegal: tells and ends.  wrong, memory: fail.  late: ends while samples are taken.
twice: ends the first time (a file in the folder of the first argument remembers).  Others take 1 us.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

REMEMBERED = Path(sys.argv[1])


def say(line: object) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    say({"gpu": "stand-in", "capability": 90, "l2": 1 << 20})
    for text in sys.stdin:
        task = json.loads(text)
        group = task["group"]
        say({"at": "", "stage": "setup"})
        if group["check"] == "hang_check":
            say({"at": "hang_check", "stage": "reference"})
            time.sleep(600)
        names = list(dict.fromkeys([*([group["anchor"]] if group.get("anchor") else ()), *task["wanted"]]))
        ready = []
        for name in names:
            say({"at": name, "stage": "check"})
            if name.startswith("hang"):
                time.sleep(600)
            if name.startswith("die"):
                raise SystemExit(1)
            if name.startswith("illegal"):
                say({"id": name, "ok": False, "kind": "illegal address", "reason": "cuStreamSynchronize"})
                raise SystemExit(3)
            if name.startswith("twice") and not (REMEMBERED / name).exists():
                (REMEMBERED / name).touch()
                raise SystemExit(1)
            if name.startswith(("wrong", "memory")):
                say({"id": name, "ok": False, "kind": name.split("_")[0], "reason": "as asked"})
                continue
            ready.append(name)
        say({"at": "", "stage": "time"})
        for name in ready:
            if name.startswith("late"):
                raise SystemExit(1)
        for name in ready:
            times = {"n": 10, "median": 1e-6, "p10": 1e-6, "p90": 1e-6}
            say(
                {"id": name, "ok": True, **times, "warm": None, "anchor": 1e-6, "clock_before": 0.0, "clock_after": 0.0}
            )
        say({"done": True})


if __name__ == "__main__":
    main()
