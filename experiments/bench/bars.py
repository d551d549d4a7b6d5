"""What a measured case is held to: floors, bars, means, verdicts, and the table.  Nothing here needs a GPU.

A bar bounds the tuned plan's time over the best peer's, L2 cold.  No bar lies below the floor: where floor / peer is
above a bar, that case's bar is that quotient plus 3 %, also inside a mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from experiments.cases import Case

Json = dict[str, Any]
PEERS: Final = ("eager", "compiled", "autotuned")
ABOVE_FLOOR: Final = 1.03
# untuned over tuned, as a geometric mean of all cases
UNTUNED: Final = 1.10
# of a program that becomes one launch, and of NVRTC for each kernel
SATURATE_SECONDS: Final = 3.0
NVRTC_SECONDS: Final = 1.5
# unit in the last place of 1: what an output type may add to eager's relative error
ULP: Final = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2.0**-23}


@dataclass(frozen=True, slots=True)
class Group:
    """Bars of each of some cases, of their geometric mean, and over the ratio of a case's twin.  None: no bar."""

    name: str
    each: float | None = None
    mean: float | None = None
    twin: float | None = None


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A case of a group with the work that it cannot do without; `twin` names the case whose ratio it must meet.

    `dtype` is that of the products, whose rate bounds it, and of the output.
    """

    case: Case
    group: str
    flops: float
    bytes: float
    dtype: str
    twin: str = ""

    @property
    def name(self) -> str:
        return self.case.name


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ratio` against `bar` (raised from `asked` where the floor is above it); None: was not timed, or has no bar."""

    name: str
    ratio: float | None
    bar: float | None
    asked: float | None

    @property
    def word(self) -> str:
        if self.ratio is None:
            return "not timed"
        if self.bar is None:
            return "no bar"
        return "ok" if self.ratio <= self.bar else f"{self.ratio / self.bar - 1:+.1%}"

    @property
    def missed(self) -> bool:
        return self.ratio is not None and self.bar is not None and self.ratio > self.bar


def floor_seconds(flops: float, bytes: float, rate: float, copy: float) -> float:
    """The larger of flops over the rate (FLOP/s) and bytes over the copy ceiling (bytes/s)."""
    return max(flops / rate, bytes / copy)


def raised(bar: float, quotient: float | None) -> float:
    """The bar of a case whose floor is `quotient` of the best peer's time (None: unknown)."""
    return bar if quotient is None or quotient <= bar else quotient * ABOVE_FLOOR


def geometric(values: Iterable[float]) -> float:
    """Geometric mean; 1 of nothing."""
    logs = [math.log(v) for v in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 1.0


def best_peer(record: Mapping[str, Any], l2: str = "cold") -> str:
    """The peer that was fastest; empty where none was timed."""
    times = record.get("us", {}).get(l2, {})
    return min((p for p in PEERS if p in times), key=lambda p: (times[p][0], p), default="")


def ratio_of(record: Mapping[str, Any], ours: str = "tuned", l2: str = "cold") -> float | None:
    """Median over rounds of our time over the best peer's."""
    found = record.get("ratios", {}).get(l2, {}).get(ours, {}).get(best_peer(record, l2))
    return None if found is None else float(found)


def floor_us(case: BenchCase, record: Mapping[str, Any]) -> float | None:
    """By the ceilings of the record's own run."""
    ceilings = record.get("ceilings")
    if not ceilings or case.dtype not in ceilings["flops"]:
        return None
    return floor_seconds(case.flops, case.bytes, ceilings["flops"][case.dtype], ceilings["copy"]) * 1e6


def quotient_of(case: BenchCase, record: Mapping[str, Any]) -> float | None:
    """Floor over the best peer's time."""
    floor, peer = floor_us(case, record), best_peer(record)
    return None if floor is None or not peer else floor / float(record["us"]["cold"][peer][0])


def verdicts(cases: Sequence[BenchCase], groups: Mapping[str, Group], records: Mapping[str, Json]) -> list[Verdict]:
    """One a case.  A twin that was not timed leaves its case without a bar."""
    found = []
    for c in cases:
        record, group = records.get(c.name, {}), groups[c.group]
        asked = group.each
        if group.twin is not None:
            twin = ratio_of(records.get(c.twin, {}))
            asked = None if twin is None else group.twin * twin
        bar = None if asked is None else raised(asked, quotient_of(c, record))
        found.append(Verdict(c.name, ratio_of(record), bar, asked))
    return found


def means(cases: Sequence[BenchCase], groups: Mapping[str, Group], records: Mapping[str, Json]) -> list[Verdict]:
    """One a group, over the cases of it that were timed; last, untuned over tuned times of all."""
    found = []
    for g in groups.values():
        timed = [c for c in cases if c.group == g.name and ratio_of(records.get(c.name, {})) is not None]
        ratios = [r for c in timed if (r := ratio_of(records[c.name])) is not None]
        asked = g.mean
        bars = [] if asked is None else [raised(asked, quotient_of(c, records[c.name])) for c in timed]
        found.append(Verdict(g.name, geometric(ratios) if ratios else None, geometric(bars) if bars else None, asked))
    shares = [s for c in cases if (s := untuned_share(records.get(c.name, {}))) is not None]
    return [*found, Verdict("untuned / tuned", geometric(shares) if shares else None, UNTUNED, UNTUNED)]


def untuned_share(record: Mapping[str, Any]) -> float | None:
    """The untuned plan's time over the tuned plan's, L2 cold."""
    times = record.get("us", {}).get("cold", {})
    return float(times["untuned"][0] / times["tuned"][0]) if {"tuned", "untuned"} <= times.keys() else None


def accurate(ours: float, eager: float, dtype: str) -> bool:
    """Relative errors against float64: ours is at most eager's plus one unit in the last place of the output type."""
    return ours <= eager + ULP[dtype]


def achieved(case: BenchCase, seconds: float, ceilings: Mapping[str, Any]) -> str:
    """TFLOP/s where arithmetic is the floor, else TB/s."""
    if case.flops / ceilings["flops"][case.dtype] >= case.bytes / ceilings["copy"]:
        return f"{case.flops / seconds / 1e12:.0f} TFLOP/s"
    return f"{case.bytes / seconds / 1e12:.2f} TB/s"


def findings(case: BenchCase, record: Mapping[str, Any]) -> list[str]:
    """What is wrong with a case beside its speed."""
    found = [record["failed"]] if "failed" in record else []
    build = record.get("build", {})
    alone = len(record.get("rows", {}).get("untuned", [])) == 1
    if alone and build.get("saturate", 0.0) > SATURATE_SECONDS:
        found.append(f"saturate took {build['saturate']:.2f} s, more than {SATURATE_SECONDS:g}")
    for name, seconds in build.get("nvrtc", {}).items():
        if seconds > NVRTC_SECONDS:
            found.append(f"NVRTC took {seconds:.2f} s for {name}, more than {NVRTC_SECONDS:g}")
    error = record.get("error", {})
    for name in ("tuned", "untuned"):
        if name in error and not accurate(error[name], error["eager"], case.dtype):
            found.append(f"{name}: relative error {error[name]:.2e}, eager's {error['eager']:.2e}")
    for name, r in record.get("repeat", {}).items():
        if not r["equal"] and not r["atomic"]:
            found.append(f"{name}: {r['runs']} runs differ, and no row is atomic")
    return found


# ---- the table -------------------------------------------------------------------------------------------------------

HEAD: Final = (
    "case", "tuned", "untuned", *PEERS, "ratio", "bar", "verdict", "warm ratio", "achieved", "x floor", "sm_80",
    "saturate", "nvrtc", "error / eager's", "row",
)  # fmt: skip


def table(cases: Sequence[BenchCase], groups: Mapping[str, Group], records: Mapping[str, Json]) -> list[str]:
    """Markdown: one line a case, one a group, then what is wrong and which peers are missing."""
    lines = [
        "Microseconds, medians of interleaved rounds, L2 cold unless named warm; ratio: tuned over the best peer, pair"
        " by pair; bar: raised where the floor is above it; sm_80: the best mma.sync row; seconds of saturation and of"
        " NVRTC for the slowest kernel.",
        "",
        _line(HEAD),
        "|" + "---|" * len(HEAD),
    ]
    by_name = {c.name: c for c in cases}
    for v in verdicts(cases, groups, records):
        lines.append(_line(_cells(by_name[v.name], v, records.get(v.name, {}))))
    lines += ["", "| group | geometric mean | bar | verdict |", "|---|---|---|---|"]
    lines += [_line((v.name, _number(v.ratio), _number(v.bar), v.word)) for v in means(cases, groups, records)]
    lines += ["", *(f"- {c.name}: {text}" for c in cases for text in findings(c, records.get(c.name, {})))]
    for c in cases:
        lost = records.get(c.name, {}).get("lost", {})
        lines += [f"- {c.name}: no {name}: {why}" for name, why in lost.items()]
    stamps = sorted({(r["commit"], r.get("gpu", "")) for r in records.values() if "commit" in r})
    return [*lines, "", *(f"Measured at {commit} on {gpu or 'no GPU'}." for commit, gpu in stamps)]


def _cells(c: BenchCase, v: Verdict, record: Mapping[str, Any]) -> list[str]:
    cold = record.get("us", {}).get("cold", {})
    build, error, floor = record.get("build", {}), record.get("error", {}), floor_us(c, record)
    mine = cold.get("tuned", [None])[0]
    timed = mine is not None and floor is not None
    slowest = max(build.get("nvrtc", {}).values(), default=None)
    return [
        c.name, *(_number(cold[n][0], 2) if n in cold else "" for n in ("tuned", "untuned", *PEERS)),
        _number(v.ratio), _number(v.bar), v.word if record else "not run",
        _number(ratio_of(record, l2="warm")),
        achieved(c, mine * 1e-6, record["ceilings"]) if timed else "",
        _number(mine / floor, 2) if timed else "",
        _number(record.get("sm_80", {}).get("us"), 2),
        _number(build.get("saturate"), 2), _number(slowest, 2),
        f"{error['tuned']:.1e} / {error['eager']:.1e}" if "tuned" in error else "",
        "; ".join(record.get("rows", {}).get("tuned", [])),
    ]  # fmt: skip


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
