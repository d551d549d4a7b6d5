"""Whether a mutant is found, or proved to do the same as its kernel."""

from __future__ import annotations

import contextlib
import functools
import random
import re
import signal
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from emmy.codegen.simulate import Simulation
from emmy.errors import LoweringError
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel import Advance, Cursor, If, Kernel, ProxyFence, RingArrive, RingWait, WarpSync, walk
from emmy.ir.verify.kernel import verify
from tests.simulate.cases import CARD, Case
from tests.simulate.edits import Mutant, Path, following, sites
from tests.simulate.equivalence import (
    never_used_again,
    overwritten,
    redundant_barrier,
    registers_only,
    unneeded_waits,
    unused,
)
from tests.simulate.operators import OPERATORS, Operator
from tests.simulate.register_operators import REGISTER_OPERATORS
from tests.simulate.ring_operators import RING_OPERATORS
from tests.simulate.runner import checked
from tests.simulate.subjects import Subject, subjects
from tests.simulate.survivors import reason

ALL: Final[dict[str, Operator]] = {**OPERATORS, **REGISTER_OPERATORS, **RING_OPERATORS}
# Inputs that a mutant must pass: (seed, kind of `Case.inputs`).
INPUTS: Final = (
    (0, ""), (1, ""), (2, "normal"), (3, "negative"), (4, "large"), (5, "spread"), (6, "edge"), (7, "special"),
    (8, "infinite"), (9, "growing"), (10, "growing"),
)  # fmt: skip
# More of them, on which the results of a mutant that is said to compute the same must agree in every bit.
MORE: Final = tuple((seed, kind) for seed in (11, 12) for kind in ("integer", "normal", "large"))

# Seconds for all launches of one mutant, which take one or two: a loop that lost its end does not come back.
PATIENCE: Final = 60


@dataclass(frozen=True)
class Verdict:
    """`how`: verifier, finding (`reason`: its kind), values; or how equivalence is proved; or survived."""

    key: str
    operator: str
    site: str
    how: str
    reason: str = ""


def mutants(subject: Subject, seed: int, each: int = 1, only: str = "") -> Iterator[Mutant]:
    """At most `each` mutants of every operator, by chance."""
    group = subject.key.split(":")[0]
    for name, operator in ALL.items():
        if not re.search(only, f"{group}: {name}"):
            continue
        found = list(operator(subject.kernel))
        rng = random.Random(zlib.crc32(f"{seed} {subject.key} {name}".encode()))
        yield from rng.sample(found, min(each, len(found)))


class _Endless(Exception):
    """A launch did not end in time."""


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Ends what takes longer, in the process's main thread."""

    def ring(*_: object) -> None:
        raise _Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(subject: Subject, m: Mutant) -> Verdict:
    try:
        with within(PATIENCE):
            how, why = _found(subject, m) or _equivalent(subject, m)
    except _Endless:
        how, why = "finding", "endless loop"
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:  # a bug of the simulator
        how, why = "survived", f"the simulator failed: {e!r}"
    return Verdict(subject.key, m.operator, m.site, how, why)


def judge_subject(key: str, count: int, seed: int, each: int, only: str = "") -> list[Verdict]:
    """All verdicts of one subject, which is made again from its key (in another process)."""
    (subject,) = (s for s in subjects(count, seed) if s.key == key)
    return [judge(subject, m) for m in mutants(subject, seed, each, only)]


@functools.lru_cache(64)
def _baseline(subject: Subject, seed: int, kind: str) -> Simulation | None:
    """The kernel itself on an input; None where it is not right (not every sum of infinities is one number)."""
    run = checked(subject.case, subject.kernel, seed, kind)
    return None if run.wrong or run.simulation.findings else run.simulation


def _found(subject: Subject, m: Mutant) -> tuple[str, str] | None:
    try:
        verify(m.kernel, CARD)
    except LoweringError as e:
        return "verifier", e.what
    for seed, kind in INPUTS:
        before = _baseline(subject, seed, kind)
        if before is None:
            continue
        result = checked(subject.case, m.kernel, seed, kind)
        if result.simulation.findings:
            return "finding", result.simulation.findings[0].kind
        if result.wrong:
            return "values", str(result.worst)
        if _drifted(subject.case, before, result.simulation):
            return "values", "more than rounding away from the kernel's"
    return None


def _drifted(case: Case, before: Simulation, after: Simulation) -> bool:
    """True where an element differs by more than another order of sums would explain: a unit in the last place, and
    a thousandth of its row's magnitude for what was rounded on the way (f32: 64 units).
    """
    for (name, a), o in zip(before.outputs.items(), case.body.outs, strict=True):
        kind = DTYPES[o.tensor.dtype]
        if kind.kind != "float":
            continue
        shape = case.results()[case.body.outs.index(o)]
        x, y = (np.atleast_1d(np.asarray(v).reshape(shape).astype(np.float64)) for v in (a, after.outputs[name]))
        real = np.isfinite(x) & np.isfinite(y)
        x, y = np.where(real, x, 0.0), np.where(real, y, 0.0)
        scale = np.sqrt(np.mean(x**2, axis=-1, keepdims=True))
        units, share = (1.01, 1e-3) if kind.bits < 32 else (64.0, 64 * kind.epsilon)
        if (np.abs(x - y) > units * kind.epsilon * np.abs(x) + share * scale).any():
            return True
    return False


def _equivalent(subject: Subject, m: Mutant) -> tuple[str, str]:
    if m.witness is not None and not checked(subject.case, m.witness).simulation.findings:
        return "witness", m.claim
    if m.poisoned is not None and _right(subject, m.poisoned):
        return "unused", "what the mutation changes is never used"
    site = next((s for s in sites(subject.kernel) if s.path == m.path), None)
    if m.operator == "barrier dropped" and redundant_barrier(subject.kernel, m.path):
        return "static", "no access before it conflicts with one behind it"
    if isinstance(at := site.statement if site else None, Advance) and never_used_again(subject.kernel, m.path):
        return "static", "the cursor is not used behind it"
    if isinstance(at, If) and len(at.then) == 1 and not at.orelse:
        (at,) = at.then
    if isinstance(at, WarpSync | ProxyFence) and (arrival := _arrival_behind(subject.kernel, m.path)):
        at = arrival  # before which lanes wait for each other's reads
    if isinstance(at, RingArrive | RingWait) and _nobody_waits(subject, at):
        return "no wait", "the launch has no finding without the waits for that side of the ring"
    if m.operator == "stored twice" and overwritten(subject.kernel, m.path):
        return "static", "the same thread stores to that element again"
    if site is not None and (dead := unused(subject.kernel, site)) and _right(subject, dead):
        return "unused", "what the statement computes is never used"
    if site is not None and registers_only(site.statement) and _identical(subject, m):
        return "identical", "no bit of the results differs, and only registers do"
    stated = reason(m.operator, subject.kernel, m)
    return ("hand", stated) if stated else ("survived", "")


def _arrival_behind(kernel: Kernel, path: Path) -> RingArrive | None:
    """The arrival to which a warp sync or a proxy fence belongs."""
    after = following(kernel, path)
    while isinstance(after, WarpSync | ProxyFence):
        path = (*path[:-1], path[-1] + 1)
        after = following(kernel, path)
    inside = after.then[0] if isinstance(after, If) else None
    return inside if isinstance(inside, RingArrive) else None


def _nobody_waits(subject: Subject, s: RingArrive | RingWait) -> bool:
    rings = {c.name: c.ring for c in walk(subject.kernel.body) if isinstance(c, Cursor)}
    return _right(subject, unneeded_waits(subject.kernel, rings[s.cursor], s.side))


def _right(subject: Subject, kernel: Kernel) -> bool:
    """No finding and right values on three inputs."""
    for seed, kind in INPUTS[:3]:
        result = checked(subject.case, kernel, seed, kind)
        if result.simulation.findings or result.wrong:
            return False
    return True


def _identical(subject: Subject, m: Mutant) -> bool:
    """Every bit as the kernel has it, on all inputs."""
    for seed, kind in (*INPUTS, *MORE):
        base = _baseline(subject, seed, kind)
        if base is None:
            continue
        made = checked(subject.case, m.kernel, seed, kind).simulation
        for name, want in base.outputs.items():
            if made.findings or not np.array_equal(_bits(want), _bits(made.outputs[name])):
                return False
    return True


def _bits(a: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.ascontiguousarray(a).view(np.uint8)
