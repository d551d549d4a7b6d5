"""Tables of `emmy eval`, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from emmy.inspect.evaluate import LIMITS, BodyRegret, FailureKind, FamilyRegret, Variants
from emmy.inspect.summary import WIDTH
from emmy.ir.schedule import short_row

NAME: Final = 26
HEADS: Final = ("median", "p95", "worst", "rank", "~")


def variants_lines(v: Variants, limit: int) -> list[str]:
    """One body: a line a measured row with its spelling below."""
    where = f"{v.gpu}, {v.compiler}{sizes_text(v.sizes)}"
    lines = [
        f"{v.name or 'body'} {v.body}: {len(v.rows)} of {v.legal} legal rows measured"[:WIDTH],
        f"    {where}"[:WIDTH],
        *([f"    in {', '.join(v.programs)}"[:WIDTH]] if v.programs else []),
        f"{'':>4} {'us':>10} {'of best':>8} {'prior us':>10} {'n':>5}  {'family':<10} {'drawn':<10}",
    ]
    shown = v.rows[:limit] if limit else v.rows
    for i, r in enumerate(shown, 1):
        legal = "" if r.legal else " not legal today"
        lines.append(
            f"{i:>4} {r.seconds * 1e6:>10.2f} {r.ratio:>7.2f}x {r.predicted * 1e6:>10.2f} {r.n:>5}  {r.family:<10} "
            f"{r.drawn:<10}{legal}".rstrip()
        )
        lines += wrapped(short_row(r.row), 5)
    if len(shown) < len(v.rows):
        lines.append(f"     and {len(v.rows) - len(shown)} slower rows (--limit 0 shows all)")
    return lines


def regret_lines(
    bodies: Sequence[BodyRegret], families: Sequence[FamilyRegret], skipped: Mapping[str, int]
) -> list[str]:
    """The table by family, then one line a body, worst first."""
    if not bodies:
        return ["no measured bodies", *skipped_lines(skipped)]
    heads = [f"{'family':<11} {'bodies':>6} {'rows':>7} {'uniform':>7}", *map("{:>6}".format, HEADS)]
    lines = [" ".join(heads)]
    for f in families:
        lines.append(
            f"{f.family:<11} {f.bodies:>6} {f.rows:>7} {f.uniform / f.rows:>7.0%} {f.median:>6.3f} {f.p95:>6.2f} "
            f"{f.worst:>6.2f} {f.rank:>6.2f} {f.inexact:>6}"
        )
    head = f"{'body':<{NAME}} {'family':<9} {'rows':>5} {'legal':>7} {'best us':>9} {'pick us':>9} {'regret':>8}"
    lines += ["", head]
    for b in bodies:
        regret = f"{'' if b.exact else '~'}{b.regret:.2f}"
        lines.append(
            f"{b.name[: NAME - 10] or 'body'} {b.body[:8]}".ljust(NAME)
            + f" {b.family:<9} {b.rows:>5} {b.legal:>7} {b.best * 1e6:>9.2f} {b.pick * 1e6:>9.2f} {regret:>8}"
        )
    if any(not b.exact for b in bodies):
        lines += ["", "~: the pick was not measured; the best-predicted measured row stands for it"]
    median, p95, worst = LIMITS
    lines += ["", f"held to: median {median:.2f}, 95th percentile {p95:.2f}, worst {worst:.2f}"]
    return [*lines, *skipped_lines(skipped)]


def failure_lines(kinds: Sequence[FailureKind]) -> list[str]:
    if not kinds:
        return ["no failures recorded"]
    lines = [f"{'rows':>6} {'bodies':>6}  {'stage':<9} {'arch':<9} reason"]
    for k in kinds:
        lines.append(f"{k.count:>6} {k.bodies:>6}  {k.stage:<9} {k.arch or 'any':<9} {k.reason}"[:WIDTH].rstrip())
        lines += wrapped(k.example, 15)
    return lines


def skipped_lines(skipped: Mapping[str, int]) -> list[str]:
    return [f"{n} measurements left out: {why}"[:WIDTH] for why, n in skipped.items()]


def sizes_text(sizes: Mapping[str, int]) -> str:
    return "".join(f", {name}={value}" for name, value in sorted(sizes.items()))


def wrapped(row: str, indent: int) -> list[str]:
    """A row on as many lines as it needs, broken after commas."""
    lines, line = [], ""
    for part in row.split(","):
        if line and indent + len(line) + len(part) + 2 > WIDTH:
            lines.append(f"{'':<{indent}}{line},")
            line = ""
        line = f"{line},{part}" if line else part
    return [*lines, f"{'':<{indent}}{line}"[:WIDTH]]
