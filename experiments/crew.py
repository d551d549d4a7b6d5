"""Worker processes that are fed one task at a time, so that one that hangs or dies costs its own task only.

A worker reads a JSON line from standard input and answers with one on standard output; what it prints otherwise goes to
its log.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Died(Exception):
    """The worker ended or did not answer in time; the message is the end of its log."""


class Worker:
    """One child process."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, env={**os.environ, **environ}
            )

    def ask(self, message: Message, seconds: float) -> Message:
        """The answer; Died when there is none after so many seconds."""
        assert self.process.stdin is not None
        before = self.log.stat().st_size
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as e:
            raise Died(self._why(before, "ended")) from e
        line = self._line(seconds)
        if line is None:
            alive = self.process.poll() is None
            if alive:
                self.process.send_signal(signal.SIGUSR1)  # a worker of ours then writes where it is to its log
                time.sleep(0.5)
            raise Died(self._why(before, f"no answer in {seconds:.0f} s" if alive else "ended"))
        answer: Message = json.loads(line)
        return answer

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _line(self, seconds: float) -> bytes | None:
        assert self.process.stdout is not None
        deadline, data = time.monotonic() + seconds, b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                self.process.wait()
                return None
            data += more
        return data

    def _why(self, before: int, what: str) -> str:
        with self.log.open("rb") as f:
            f.seek(before)
            lines = f.read()[-4000:].decode(errors="replace").strip().splitlines()
        places = [l.strip() for l in lines if "/emmy/" in l][:5]
        shown = places if "no answer" in what and places else lines[-3:]
        code = self.process.returncode
        return f"worker {what}" + (f" with {code}" if code is not None else "") + ": " + " | ".join(shown)[-600:]


class Crew:
    """`count` workers on one queue.  `done(message, answer)` is called from their threads; an `answer` with the key
    `died` tells of a worker that was lost over the task, one with `skipped` of a task that came after the deadline."""

    def __init__(
        self, count: int, make: Callable[[int], Worker], seconds: float, deadline: float,
        done: Callable[[Message, Message], None],
    ) -> None:  # fmt: skip
        self.make, self.seconds, self.deadline, self.done = make, seconds, deadline, done
        self.tasks: queue.Queue[Message | None] = queue.Queue()
        self.threads = [threading.Thread(target=self._serve, args=(k,), daemon=True) for k in range(count)]
        for t in self.threads:
            t.start()

    def put(self, message: Message) -> None:
        self.tasks.put(message)

    def finish(self) -> None:
        """Wait for all tasks, then end the workers."""
        self.tasks.join()
        for _ in self.threads:
            self.tasks.put(None)
        for t in self.threads:
            t.join()

    def _serve(self, number: int) -> None:
        worker: Worker | None = None
        while (message := self.tasks.get()) is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.done(message, {"skipped": True})
                self.tasks.task_done()
                continue
            worker = worker or self.make(number)
            try:
                answer = worker.ask(message, min(self.seconds, left))
            except Died as e:
                worker.stop()
                worker, answer = None, {"died": str(e), "late": time.monotonic() >= self.deadline}
            self.done(message, answer)
            self.tasks.task_done()
        if worker is not None:
            worker.stop()
