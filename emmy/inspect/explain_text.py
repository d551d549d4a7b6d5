"""`emmy explain` as text, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from emmy.inspect.evaluate_text import wrapped
from emmy.inspect.explain import Alternative, Explained
from emmy.inspect.summary import WIDTH
from emmy.ir.schedule import short_row
from emmy.saturation import Saturation

# How many refusals of one sort are told of each launch; `--json` has all.
SHOWN: Final = 4
_INDENT: Final = 4


def explained_lines(e: Explained) -> list[str]:
    """One kernel."""
    times = f" x{e.launches}" if e.launches > 1 else ""
    lines = [
        _cut(f"{e.name}{times}: {e.us:.2f} us, {e.tier}"),
        *_indented(f"made by {e.rule}; body {e.body}"),
        *_indented(f"why this row: {e.why}; what decided: {e.decided}"),
        f"    {e.measured} of {e.legal} legal rows measured; in the order of evidence:",
    ]
    for r in e.rows:
        samples = f"n={r.n}" if r.n else ""
        doubt = " (to be measured again)" if not r.solid else ""
        mark = ">" if (r.family, r.row) == (e.family, e.row) else " "
        refused = f" refused: {r.refused}" if r.refused else ""
        lines.append(
            _cut(f"  {mark} {r.place:>5} {r.us:>10.2f} us  {r.tier:<9} {r.family:<9} {samples}{doubt}{refused}")
        )
        lines += wrapped(short_row(r.row), 10)
    if e.instead:
        lines.append("    instead of this launch:")
    for a in e.instead:
        lines += _alternative(a)
    return [*lines, *_refusals(e)]


def _alternative(a: Alternative) -> list[str]:
    others = [n for n in a.removed if n]
    lines = [_cut(f"    {a.us:>+10.2f} us  {a.kind}, without {', '.join(others)}")]
    for p in a.added:
        lines.append(_cut(f"{'':>12}{p.us:>10.2f} us  {p.tier:<9} {p.name} -> {', '.join(p.makes)}"))
        if p.row:
            lines += wrapped(short_row(p.row), 26)
    return lines


def _refusals(e: Explained) -> list[str]:
    lines = []
    for what in ("row", "family", "fuse", "roofline"):
        found = [r for r in e.refused if r.what == what]
        for r in found[:SHOWN]:
            of = short_row(r.of) if what == "row" else r.of
            times = f" ({r.count} times)" if r.count > 1 else ""
            lines += _indented(f"refused: {what} {of}: {r.why}{times}")
        if len(found) > SHOWN:
            lines.append(f"    refused: {what}: {len(found) - SHOWN} more (--json has all)")
    return lines


def plan_lines(s: Saturation) -> list[str]:
    """What the whole plan costs, on what that rests, and which operations PyTorch runs."""
    gap = "" if s.choice.method == "optimal" else f", at most {s.choice.gap:.2%} above the best"
    lines = [
        _cut(f"{s.program.name} for {s.options.target.arch} ({s.options.target.gpu})"),
        f"{s.predicted_seconds * 1e6:.2f} us in all, {s.predicted_share:.0%} of it predicted; {s.choice.method}{gap}",
    ]
    if s.timed is not None:
        lines += wrap(f"whole plans decided: {s.timed.text}", WIDTH, subsequent_indent="    ")
    for o in s.opaque:
        lines += wrap(f"PyTorch runs {o.node.op} ({o.node.name}): {o.call.reason}", WIDTH, subsequent_indent="    ")
    return lines


def _indented(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * (_INDENT + 4))


def _cut(text: str) -> str:
    return text[:WIDTH].rstrip()


def text_of(s: Saturation, kernels: Sequence[Explained]) -> str:
    return "\n\n".join(["\n".join(plan_lines(s)), *("\n".join(explained_lines(e)) for e in kernels)])
