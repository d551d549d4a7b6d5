"""What a search says: a live table on a terminal, one line a step otherwise, and the rows of the winners at the end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

from emmy.extract.records import STAND_IN
from emmy.ir.schedule import short_row
from emmy.saturation import Saturation
from emmy.tune.asked import Outcome, Progress
from emmy.tune.plans import GAP, Compared
from emmy.tune.subjects import Subject

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

WIDTH: Final = 80


class Report:
    """A context in which `observe` and `note` may be called; people read it on `stream` (stderr)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live: Live | None = None
        self.said: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> Report:
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(file=self.stream), refresh_per_second=4, transient=True)
            self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.__exit__(kind, error, trace)

    def note(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(f"emmy: {text}", markup=False, highlight=False)
        else:
            print(f"emmy: {text}", file=self.stream, flush=True)

    def observe(self, p: Progress) -> None:
        if self.live is not None:
            self.live.update(table(p))
            return
        for line in steps(p, self.said):
            print(line, file=self.stream, flush=True)


def table(p: Progress) -> Table:
    """The state of all bodies, those first that the chosen plan runs."""
    from rich.table import Table

    made = Table(title=f"{p.measured} rows measured, {p.left:.0f} s left{_failures(p.failures)}", title_justify="left")
    for head in ("kernel", "rows", "measured", "first pick", "best", "gain", "row"):
        made.add_column(head, justify="left" if head in ("kernel", "row") else "right", no_wrap=head != "row")
    for x in sorted(p.subjects, key=lambda x: (-x.weight, x.name)):
        first = x.space.times.get(x.space.first)
        best = x.space.best
        made.add_row(
            x.name, str(len(x.space.rows)), str(x.space.tried), _micro(first),
            _micro(x.space.best_seconds if best is not None else None),
            f"{first / x.space.best_seconds:.2f}x" if first and best is not None else "",
            x.space.rows[best].row.text if best is not None else "",
        )  # fmt: skip
    return made


def steps(p: Progress, said: dict[str, tuple[int, float]]) -> list[str]:
    """A line for each body that changed since `said`."""
    lines = []
    for x in p.subjects:
        best = x.space.best
        state = (x.space.tried, x.space.best_seconds if best is not None else 0.0)
        if not x.space.tried or said.get(x.body.hash) == state:
            continue
        said[x.body.hash] = state
        tried = f"{p.seconds:6.1f} s  {x.name}: {x.space.tried} of {len(x.space.rows)} rows"
        if best is None:
            lines += _folded(f"{tried}, none works yet{_failures(p.failures)}")
            continue
        lines += _folded(f"{tried}, best {_micro(state[1])} us{_failures(p.failures)}")
        lines.append(f"          {short_row(x.space.rows[best].row.text)}")
    return lines


def _micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.2f}"


def _failures(failures: Counter[str]) -> str:
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(failures.items()))
    return f" ({told})" if told else ""


def summary_lines(o: Outcome) -> list[str]:
    """What was found of each body, then the rate, in lines of at most 80 columns."""
    lines = []
    for x in sorted(o.subjects, key=lambda x: (-x.weight, x.name)):
        lines += _folded(_subject_line(x))
    rate = f", {o.measured / o.seconds:.1f} a second" if o.measured else ""
    return lines + _folded(
        f"{o.measured} rows measured, {o.recalled} known before, {sum(o.failures.values())} failed"
        f"{_failures(o.failures)} in {o.seconds:.1f} s{rate}; {o.stopped}"
    )


def _folded(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _subject_line(x: Subject) -> str:
    best, first = x.space.best, x.space.times.get(x.space.first)
    if best is None:
        return f"{x.name}: found {len(x.space.rows)} legal rows, none was timed; {x.stopped}"
    text = f"{x.name}: found {len(x.space.rows)} legal rows and timed {len(x.space.times)} of them."
    text += f" The fastest took {_micro(x.space.best_seconds)} us"
    if first:
        text += f", the first pick {_micro(first)} us: {first / x.space.best_seconds:.2f}x"
    return text + (f"; {x.stopped}" if x.stopped else "")


def plan_lines(c: Compared) -> list[str]:
    """The whole plans beside the sums of their launches."""
    if c.tuned is None or c.untuned is None:
        return [f"whole plan: not timed; {c.reason}"]
    lines = []
    both = [("untuned", c.untuned), ("tuned", c.tuned)] if c.untuned.key != c.tuned.key else [("the plan", c.tuned)]
    for name, t in both:
        wide = f" (a gap of {t.gap:+.0%})" if abs(t.gap) > GAP else ""
        lines += _folded(
            f"whole plan, {name}: {_micro(t.whole)} us, the sum of its launches {_micro(t.parts)} us{wide}"
        )
    if c.keep == "untuned":
        lines.append("the untuned plan is faster as a whole: compile keeps it")
    return lines


def winner_lines(s: Saturation) -> list[str]:
    """What compile chooses now: kernel, time and tier, and below them the row, ready to be pasted."""
    made_up = s.regime.gpu == STAND_IN
    lines = ["compile would choose, if these times were not made up:" if made_up else "compile now chooses:"]
    for c in {c.name: c for c in s.launches}.values():
        d = c.priced.decision
        when = " (at build)" if c.at_build else ""
        row = c.priced.scheduled.row.text
        lines += [f"  {c.name}  {_micro(d.cost)} us {d.tier}{when}", f"    EMMY_KNOBS='{row}'"]
    return lines


def document(o: Outcome, c: Compared, final: Saturation) -> dict[str, object]:
    """The same for machines; times in microseconds."""
    bodies: Sequence[dict[str, object]] = [
        {
            "kernel": x.name, "body": x.body.hash, "rows": len(x.space.rows), "measured": len(x.space.times),
            "uniform": len(x.space.uniform), "failed": dict(Counter(x.space.failed.values())),
            "first_us": x.space.times.get(x.space.first, 0.0) * 1e6,
            "best_us": x.space.best_seconds * 1e6 if x.space.best is not None else 0.0,
            "row": x.space.rows[x.space.best].row.text if x.space.best is not None else "", "stopped": x.stopped,
        }
        for x in o.subjects
    ]  # fmt: skip
    whole = {
        name: {"whole_us": t.whole * 1e6, "parts_us": t.parts * 1e6, "gap": t.gap}
        for name, t in (("untuned", c.untuned), ("tuned", c.tuned))
        if t is not None
    }
    return {
        "measured": o.measured, "recalled": o.recalled, "failures": dict(o.failures), "seconds": o.seconds,
        "device_seconds": o.device_seconds, "stopped": o.stopped,
        "gpu": o.regime.gpu, "compiler": o.regime.compiler,
        "bodies": bodies, "plan": {**whole, "keep": c.keep, "reason": c.reason},
        "chosen": [
            {"kernel": l.name, "row": l.priced.scheduled.row.text, "us": l.priced.decision.cost * 1e6,
             "tier": l.priced.decision.tier}
            for l in final.launches
        ],
    }  # fmt: skip
