"""What `emmy fit` says, and what both it and `emmy eval regret` say on the way, at most 80 columns wide."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from emmy.evidence.fit import Fold
from emmy.extract.learned import HeldOut
from emmy.inspect.evaluate_text import skipped_lines

WORST: Final = 8


def fold_line(f: Fold, estimate: bool) -> str:
    """One fitted fold; with an estimate of the time left where there is a terminal to read it."""
    named = [n if len(n) <= 24 else f"{n[:21]}…" for n in f.left_out]
    without = ", ".join(named[:2]) + (f" and {len(named) - 2} more" if len(named) > 2 else "")
    left = (f.total - f.number) * f.seconds
    text = f"fold {f.number} of {f.total}, without {without}: {f.bodies} bodies, {f.seconds:.1f} s"
    return text + (f"; about {left:.0f} s left" if estimate and f.number < f.total else "")


def fit_lines(report: Sequence[HeldOut], before: Sequence[HeldOut], skipped: Mapping[str, int]) -> list[str]:
    """Rank correlation and regret of held-out bodies by the family of their best row, learned beside analytic."""
    lines = [
        f"{'held-out bodies':<17} {'':>6} {'rank':>12} {'median':>12} {'p95':>11} {'worst':>13}",
        f"{'family':<10} {'bodies':>6} {'rows':>6}" + f" {'lrn':>6} {'ana':>5}" * 4,
    ]
    groups: dict[str, list[HeldOut]] = defaultdict(list)
    for h in report:
        groups[h.family].append(h)
    for family, members in [*sorted(groups.items()), ("all", list(report))]:
        lines.append(_family(family, members))
    if before:
        lines += ["", "the installed prior on bodies that it has not seen:", _family("all", list(before))]
    lines += ["", f"{'worst bodies':<18} {'family':<10} {'rows':>5} {'regret':>7} {'analytic':>8} {'rank':>6}"]
    for h in sorted(report, key=lambda h: (-h.regret, h.body))[:WORST]:
        lines.append(
            f"{h.body[:16]:<18} {h.family:<10} {h.rows:>5} {h.regret:>7.2f} {h.analytic_regret:>8.2f} {h.rank:>6.2f}"
        )
    return [*lines, *skipped_lines(skipped)]


def _family(family: str, members: Sequence[HeldOut]) -> str:
    text = f"{family:<10} {len(members):>6} {sum(h.rows for h in members):>6}"
    rank, other = (np.median([getattr(h, n) for h in members]) for n in ("rank", "analytic_rank"))
    text += f" {rank:>6.2f} {other:>5.2f}"
    mine, theirs = (np.array([getattr(h, n) for h in members]) for n in ("regret", "analytic_regret"))
    for q in (0.5, 0.95, 1.0):
        text += f" {np.quantile(mine, q):>6.2f} {min(99.99, np.quantile(theirs, q)):>5.2f}"
    return text
