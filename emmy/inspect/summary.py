"""A saturation in a few numbers, for a terminal of 80 columns and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from emmy.ir.plan import KernelLaunch
from emmy.ir.schedule import short_row
from emmy.saturation import Saturation

WIDTH: Final = 80


def summary(s: Saturation, load_seconds: float = 0.0) -> dict[str, Any]:
    """What `emmy saturate --json` prints: dicts, lists, text and numbers; seconds, and microseconds where `_us`."""
    rows = s.selection.rows
    priced = [c.priced.alternatives for c in s.launches]
    return {
        "program": s.program.name,
        "target": s.options.target.arch,
        "gpu": s.options.target.gpu,
        "kernels": kernels(s),
        "opaque": [{"name": o.node.name, "op": o.node.op, "reason": o.call.reason} for o in s.opaque],
        "launches": sum(isinstance(n, KernelLaunch) and not n.at_build for n in s.plan.launches),
        "launches_at_build": sum(isinstance(n, KernelLaunch) and n.at_build for n in s.plan.launches),
        "predicted_us": s.predicted_seconds * 1e6,
        "predicted_share": s.predicted_share,
        "timed": None if s.timed is None else asdict(s.timed),
        "alternatives": {
            "launches": len(s.model.launches),
            "closed_launches": len(s.model.closed),
            "rows": sum(map(len, rows.values())),
            "rows_of_chosen": sum(priced),
        },
        "egraph": {
            "model_enodes": s.model.enodes(),
            "tensors": len(s.model.numbering.tensors),
            "bodies": len(s.model.bodies()),
            "scheduled_bodies": len(rows),
            "loop_enodes": s.model.loop_stats.enodes,
            "schedule_enodes": s.selection.enodes,
            "rounds": s.model.rounds,
        },
        "extraction": {"method": s.choice.method, "gap": s.choice.gap},
        "seconds": {"load": load_seconds, **s.seconds},
        "model_seconds": dict(s.model.seconds),
        "notes": list(s.notes),
    }


def kernels(s: Saturation) -> list[dict[str, Any]]:
    """One record a kernel, in order of first launch."""
    counts = Counter(c.name for c in s.launches)
    records: dict[str, dict[str, Any]] = {}
    for c in s.launches:
        if c.name in records:
            continue
        compiled = s.compiled.get(c.name)
        records[c.name] = {
            "name": c.name,
            "launches": counts[c.name],
            "family": c.priced.scheduled.family,
            "row": c.priced.scheduled.row.text,
            "body": c.priced.body.hash,
            "predicted_us": c.priced.decision.cost * 1e6,
            "tier": "at build" if c.at_build else c.priced.decision.tier,
            "decided": s.selection.decided(c.priced.decision),
            "alternatives": c.priced.alternatives,
            "registers": None if compiled is None else compiled.registers,
            "spill_bytes": None if compiled is None else compiled.spill_bytes,
            "threads": c.kernel.threads,
            "smem_bytes": c.kernel.smem,
        }
    return list(records.values())


def kernel_lines(d: Mapping[str, Any]) -> list[str]:
    """A table of the kernels of a summary; each line has at most 80 columns."""
    lines = [f"{'kernel':<42} {'launches':>8} {'family':<9} {'us':>8} {'tier'}"]
    for k in d["kernels"]:
        us = f"{k['predicted_us']:.2f}"
        lines.append(f"{k['name'][:42]:<42} {k['launches']:>8} {k['family']:<9} {us:>8} {k['tier']}")
        resources = [f"{k['threads']} threads"]
        if k["smem_bytes"]:
            resources.append(f"{k['smem_bytes'] / 1024:.1f} KiB shared")
        if k["registers"] is not None:
            resources.append(f"{k['registers']} registers")
        if k["spill_bytes"]:
            resources.append(f"{k['spill_bytes']} B spilled")
        lines += _wrapped(short_row(k["row"]), f"{', '.join(resources)}; {k['alternatives']} rows")
    for o in d["opaque"]:
        lines.append(f"{o['name'][:42]:<42} {1:>8} {'PyTorch':<9} {'':>8} {'opaque'}")
        lines.append(f"    {o['op']}: {o['reason']}"[:WIDTH])
    return lines


def _wrapped(row: str, resources: str) -> list[str]:
    if len(row) + len(resources) + 6 <= WIDTH:
        return [f"    {row}  {resources}"]
    lines, line = [], "   "
    for part in row.split(","):
        if len(line) + len(part) + 2 > WIDTH:
            lines.append(line + ",")
            line = "   "
        line += f" {part}" if line == "   " else f",{part}"
    return [*lines, line, f"    {resources}"]


def summary_lines(d: Mapping[str, Any]) -> list[str]:
    """The text of a summary; each line has at most 80 columns."""
    a, e, x = d["alternatives"], d["egraph"], d["extraction"]
    launches = f"{_count(d['launches'], 'launch', 'launches')} of {_count(len(d['kernels']), 'kernel', 'kernels')}"
    at_build = f", {d['launches_at_build']} more at build" if d["launches_at_build"] else ""
    opaque = f", {len(d['opaque'])} by PyTorch" if d["opaque"] else ""
    share = f"{d['predicted_share']:.0%} of it rests on predictions"
    gap = "" if x["method"] == "optimal" else f" (at most {x['gap']:.2%} above the best)"
    head = f"{d['program']} for {d['target']} ({d['gpu']})"
    return [
        head[:WIDTH],
        *kernel_lines(d),
        "",
        f"{launches}{at_build}{opaque}",
        f"predicted     {d['predicted_us']:.2f} us; {share}",
        *([f"whole plan    {d['timed']['seconds'] * 1e6:.2f} us, timed; it decided"] if d["timed"] else []),
        f"alternatives  {a['closed_launches']:,} launches, {a['rows']:,} schedule rows",
        f"model e-graph {e['model_enodes']:,} e-nodes, {a['launches']:,} launches, {e['bodies']:,} bodies,"
        f" {e['rounds']} rounds",
        f"loop e-graph  {e['loop_enodes']:,} e-nodes; schedule e-graph {e['schedule_enodes']:,} e-nodes",
        f"extraction    {x['method']}{gap}",
        *_seconds(d["seconds"]),
    ]


def _seconds(seconds: Mapping[str, float]) -> list[str]:
    parts = [f"{name} {t:.2f}" for name, t in seconds.items()]
    lines, line = [], "seconds       "
    for part in (*parts, f"in all {sum(seconds.values()):.2f}"):
        if len(line) + len(part) + 2 > WIDTH:
            lines.append(line.rstrip())
            line = " " * 14
        line += part + (", " if not part.startswith("in all") else "")
    return [*lines, line]


def _count(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"
