"""What `emmy saturate` leaves in a folder: kernels, plan, report, e-graphs.

All files are written before the first takes its place, `plan.json` last, so a folder with a plan is complete.  Kernels
of an earlier plan in the same folder are removed once the new plan stands; nothing else is ever deleted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from emmy import resources
from emmy.errors import EmmyError, PlanError
from emmy.inspect.folder import write_folder
from emmy.inspect.graph_json import graph_to_json
from emmy.inspect.plan_json import plan_from_json, plan_to_json
from emmy.inspect.views import report_digest, report_lines, report_text
from emmy.ir.plan import Plan
from emmy.saturation import Saturation


def write_artifacts(s: Saturation, folder: Path) -> None:
    """Write `kernels/*.cu`, `report.txt`, `egraph.json.gz`, `plan.json`.  EmmyError where the folder takes nothing."""
    try:
        _write_all(s, folder)
    except OSError as e:
        raise EmmyError(f"cannot write to {folder}: {e.strerror}", "name another folder with --out") from e


def _write_all(s: Saturation, folder: Path) -> None:
    files = {f"kernels/{c.name}.cu": c.source.encode() for c in s.launches}
    report = report_lines(s)
    files["report.txt"] = report_text(report).encode()
    # no time in the header: equal graphs give equal files
    graph = json.dumps(graph_to_json(s), separators=(",", ":")).encode()
    files["egraph.json.gz"] = gzip.compress(graph, compresslevel=6, mtime=0)
    files["plan.json"] = (json.dumps(plan_document(s, report), indent=1) + "\n").encode()
    write_folder(folder, files, lambda: _kernel_files(folder))


def plan_document(s: Saturation, report: Iterable[str]) -> dict[str, Any]:
    """What `plan.json` holds: the plan, and beside it what it was made from and for."""
    o, r = s.options, s.regime
    return {
        "program": s.program.name,
        "target": {"arch": o.target.arch, "gpu": o.target.gpu},
        "regime": {
            "gpu": r.gpu, "capability": r.capability, "compiler": r.compiler, "numerics": r.numerics, "l2": r.l2,
        },
        "options": {
            "passes": o.passes, "pins": [p.text for p in o.pins], "place": o.place, "allow": o.allow,
            "held": sorted(o.held),
            "fallback": o.fallback, "strict_evidence": o.strict_evidence, "check": o.check,
            "limits": {
                "launches": o.limits.launches, "seconds": o.limits.seconds, "megabytes": o.limits.megabytes,
            },
        },
        "rules_sha256": rules_digest(),
        "report_sha256": report_digest(list(report)),
        "predicted_seconds": s.predicted_seconds,
        "plan": plan_to_json(s.plan),
    }  # fmt: skip


def read_plan(path: Path) -> Plan:
    """The plan of a `plan.json`, or of the folder that holds one.  PlanError where there is none."""
    path = path / "plan.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text())
    except OSError as e:
        raise PlanError(f"cannot read {path}: {e.strerror}", "write it with `emmy saturate -o FOLDER`") from e
    except ValueError as e:
        raise PlanError(f"{path} is no JSON: {e}", "write it again with `emmy saturate`") from e
    if not isinstance(data, dict) or not isinstance(data.get("plan"), dict):
        raise PlanError(f"{path} holds no plan", "write it again with `emmy saturate`")
    return plan_from_json(data["plan"])


def rules_digest() -> str:
    """sha256 over every rule file: its path and its content, 64 hexadecimal digits."""
    root, total = resources.rulesets(), hashlib.sha256()
    for path in sorted(root.glob("*/*.egg")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def _kernel_files(folder: Path) -> set[str]:
    """Kernels of the plan that stands in the folder."""
    try:
        data = json.loads((folder / "plan.json").read_text())
        return {f"kernels/{name}.cu" for name in data["plan"]["sources"] if "/" not in str(name)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # no plan of ours: nothing to clear away
