"""Candidates of a group, checked and then timed in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from .buffers import GUARD, Buffers
from .candidate import Candidate
from .card import Card
from .driver import CudaError, cuda
from .manifest import DTYPES
from .summary import quantile, steady, summary

Json = dict[str, Any]
ROUNDS: Final = ((3, math.inf), (7, 1.3), (20, 1.05))  # samples, and up to how much slower than the best
FAR: Final = 10.0
LONG: Final = 1e-3  # seconds


class Batch:
    """One batch of one group."""

    def __init__(self, card: Card, task: Json, buffers: Buffers, say: Callable[[Json], None]) -> None:
        self.card, self.group, self.kernels, self.say = card, task["group"], task["kernels"], say
        self.buffers = buffers
        self.candidates = {c["id"]: c for c in self.group["candidates"]}

    def run(self, wanted: Sequence[str], warm: bool) -> None:
        """Check and time the candidates named `wanted`, and the anchor; one result each is said.

        CudaError where the driver's context is lost, with which results that were not said yet are lost too.
        """
        clock = self.card.clocks.now()
        if not self.buffers.reference:
            self.refer()
        ready: list[Candidate] = []
        for name in dict.fromkeys([*([self.group["anchor"]] if self.group.get("anchor") else ()), *wanted]):
            checked = self.attempt(name)
            if checked is not None:
                ready.append(checked)
        # what is far from the best is not worth more than the one launch that it had
        fastest = min((c.estimate for c in ready), default=0.0)
        alive = [c for c in ready if c.estimate <= max(FAR * fastest, LONG)]
        for c in ready:
            if c not in alive:
                c.samples.append(c.estimate)
        anchor = next((c for c in alive if c.id == self.group.get("anchor")), None)
        reference = 0.0
        for samples, within in ROUNDS:
            self.say({"at": "", "stage": "time"})
            best = min((quantile(c.samples, 0.5) for c in alive if c.samples), default=math.inf)
            alive = [c for c in alive if c is anchor or not c.samples or quantile(c.samples, 0.5) <= within * best]
            slow = max((c.estimate for c in alive), default=0.0)
            # long kernels need fewer samples: their times vary less
            taken = self.sample(alive, samples if slow < 5e-3 else max(2, samples // 3))
            now = quantile(taken[anchor.id], 0.5) if anchor is not None else 0.0
            reference = reference or now
            # the card is warmer in later rounds, which only the best see
            scale = steady(reference, now)
            for c in alive:
                c.samples += [t * scale for t in taken[c.id]]
        if warm:
            self.sample_warm(alive[:4])
        after = self.card.clocks.now()
        seconds = quantile(anchor.samples, 0.5) if anchor is not None else 0.0
        for c in ready:
            self.say(self.result(c, clock, after, seconds))
            c.close()

    def refer(self) -> None:
        """The right values: the packet's, or what the check candidate computes."""
        self.say({"at": "", "stage": "reference"})
        if self.group.get("expected"):
            self.buffers.take_expected(self.group["expected"])
            return
        self.say({"at": self.group["check"], "stage": "reference"})
        c = self.load(self.group["check"])
        self.launch(c)
        self.buffers.take_reference(self.buffers.sets[0])
        c.close()

    def load(self, name: str) -> Candidate:
        return Candidate(self.card, self.buffers, self.kernels, self.candidates[name])

    def launch(self, c: Candidate) -> None:
        """Run it once on the first copy, with operands as given and results poisoned, and wait."""
        for name in self.buffers.shared:
            self.buffers.reset(name, self.buffers.sets[0])
        c.run(self.card.stream)
        self.card.sync()

    def attempt(self, name: str) -> Candidate | None:
        """Load, check and time once; None where it failed, which is said."""
        self.say({"at": name, "stage": "check"})
        c: Candidate | None = None
        try:
            c = self.load(name)
            self.launch(c)
            wrong = self.wrong(c)
            if wrong:
                self.fail(name, "wrong result", wrong)
                c.close()
                return None
            c.estimate = self.once(c)
            if c.estimate > LONG:
                # where the host was interrupted between the events, that is counted too
                c.estimate = min(c.estimate, self.once(c))
            c.build(self.buffers)
            return c
        except CudaError as e:
            self.fail(name, e.kind, str(e))
            if e.fatal:
                raise
            if c is not None:
                c.close()
            return None

    def once(self, c: Candidate) -> float:
        """Seconds of one launch, whatever L2 holds."""
        start, end = self.card.events
        cuda("cuEventRecord", start, self.card.stream)
        c.run(self.card.stream)
        cuda("cuEventRecord", end, self.card.stream)
        self.card.sync()
        return float(cuda("cuEventElapsedTime", start, end)) * 1e-3

    def wrong(self, c: Candidate) -> str:
        """Why the results in the first copy are not right; empty where they are."""
        b, copy = self.buffers, self.buffers.sets[0]
        for name in b.written:
            spec = b.by_name[name]
            _, code, largest = DTYPES[spec["dtype"]]
            pointer, other = b.reference[name]
            border = int(np.float64(0.98 * largest).view(np.int64))
            most, odd = self.card.counts(
                "emmy_compare", copy[name], pointer, spec["count"], code, other, int(self.card.out), border
            )
            scale = b.scale[name]
            error = most / scale if scale > 0 else most
            c.errors[name] = error
            if odd:
                return f"{name}: {odd} of {spec['count']} elements differ" + (" in NaN or infinity" if code < 6 else "")
            if not error <= self.group["tolerance"].get(name, 0.0):
                return f"{name}: error {error:.2e} of {scale:.3g}, allowed {self.group['tolerance'].get(name, 0.0):.2e}"
            if (self.card.read(copy[name] + b.bytes[name], GUARD) != 0xFF).any():
                return f"{name}: bytes behind the result were written"
        for name, pristine in b.pristine.items():
            if b.by_name[name]["role"] != "in" or not b.bytes[name]:
                continue
            _, changed = self.card.counts("emmy_changed", copy[name], pristine, b.bytes[name], int(self.card.out))
            if changed:
                return f"{name}: {changed} bytes of an operand were changed"
        return ""

    def sample(self, alive: Sequence[Candidate], rounds: int) -> dict[str, list[float]]:
        """Seconds of each candidate in every round, by its id."""
        events: list[tuple[Candidate, Any, Any]] = []
        for r in range(rounds):
            for c in alive if r % 2 == 0 else reversed(alive):
                start, end = self.card.event(), self.card.event()
                if c.flushes:
                    self.card.flush()
                cuda("cuEventRecord", start, self.card.stream)
                assert c.cold is not None
                c.cold.start(self.card.stream)
                cuda("cuEventRecord", end, self.card.stream)
                events.append((c, start, end))
        self.card.sync()
        found: dict[str, list[float]] = {c.id: [] for c in alive}
        for c, start, end in events:
            found[c.id].append(float(cuda("cuEventElapsedTime", start, end)) * 1e-3 / c.nodes)
            cuda("cuEventDestroy", start)
            cuda("cuEventDestroy", end)
        return found

    def sample_warm(self, alive: Sequence[Candidate]) -> None:
        """Eight samples of each on one set of buffers, behind two that fill L2."""
        for c in alive:
            c.build_warm()
        start, end = self.card.events
        for _ in range(10):
            for c in alive:
                assert c.warm is not None
                cuda("cuEventRecord", start, self.card.stream)
                c.warm.start(self.card.stream)
                cuda("cuEventRecord", end, self.card.stream)
                self.card.sync()
                c.warm_samples.append(float(cuda("cuEventElapsedTime", start, end)) * 1e-3 / c.warm_nodes)
        for c in alive:
            del c.warm_samples[:2]

    def result(self, c: Candidate, before: float, after: float, anchor: float) -> Json:
        """What is said of a timed candidate: SM clocks before and after in Hz, the anchor's median in seconds."""
        times = summary(c.samples)
        if times["median"] < self.group["least_seconds"]:
            reason = f"{times['median']:.3e} s, but no kernel of this card can take less than"
            return {"id": c.id, "ok": False, "kind": "implausible",
                    "reason": f"{reason} {self.group['least_seconds']:.3e} s"}  # fmt: skip
        warm = summary(c.warm_samples) if c.warm_samples else None
        return {"id": c.id, "ok": True, **times, "warm": warm, "clock_before": before, "clock_after": after,
                "anchor": anchor, "copies": c.nodes, "errors": c.errors}  # fmt: skip

    def fail(self, name: str, kind: str, reason: str) -> None:
        self.say({"id": name, "ok": False, "kind": kind, "reason": reason})
