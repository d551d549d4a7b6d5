"""The process that touches a GPU: tasks a line on standard input, results a line on standard output."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

from .batch import Batch
from .buffers import Buffers
from .card import Card
from .driver import CudaError

Json = dict[str, Any]


def work(ordinal: int) -> int:
    """The worker process: a task a line on standard input, lines of results on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print must not mix with the answers

    def say(line: Json) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    card = Card(ordinal)
    say({"gpu": card.gpu, "capability": card.capability, "l2": card.l2})
    held: tuple[str, Buffers] | None = None
    for line in sys.stdin:
        task = json.loads(line)
        group = task["group"]
        try:
            say({"at": "", "stage": "setup"})
            key = group_key(group)
            if held is None or held[0] != key:
                if held is not None:
                    held[1].close()
                held = None
                held = key, Buffers(card, group)
            Batch(card, task, held[1], say).run(task["wanted"], bool(task.get("warm")))
        except CudaError as e:
            if e.fatal:
                return 3  # the context is lost: the parent starts another process
            if held is not None:
                held[1].close()
            held = None
            say({"at": "", "stage": "setup", "kind": e.kind, "reason": str(e)})
        say({"done": True})
    return 0


def group_key(group: Json) -> str:
    """Equal for batches that can share buffers and references."""
    shared = [group["id"], group["buffers"], group.get("check"), group.get("expected")]
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(work(int(sys.argv[1])))
