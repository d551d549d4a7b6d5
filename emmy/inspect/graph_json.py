"""The saturated e-graphs as one JSON value: what `egraph.json.gz` holds.

classes   tensors by number: type, name, order of definition
rows      primitive rows: number, kind, arguments, operands, result, the rule that made it (empty: the program)
launches  every launch: body, operands, results, rule, parents, cost in seconds where it was priced, chosen
bodies    Loop IR text by hash; `equal` pairs of a body with the better one that the loop rules found
schedules rows of each scheduled body, and why families declined it
"""

from __future__ import annotations

from typing import Any, Final

from emmy.ir.loop import Expr
from emmy.saturation import Saturation

VERSION: Final = 1


def graph_to_json(s: Saturation) -> dict[str, Any]:
    """Dicts, lists, text and numbers; equal saturations give equal values."""
    n, names = s.model.numbering, s.names
    chosen = {c.launch.id for c in s.launches}
    bodies = {l.body.hash: l.body for l in s.model.launches}
    bodies.update({b.hash: b for b in s.model.bodies()})
    stored = s.model.anchors.stored
    return {
        "format": "emmy-egraph",
        "version": VERSION,
        "classes": [
            {
                "id": t, "type": n.tensors[t].text, "name": names.tensor(t), "order": n.order.get(t, 0),
                "stored": t in stored,
            }
            for t in sorted(n.tensors)
        ],
        "inputs": list(s.model.inputs),
        "outputs": list(s.model.outputs),
        "rows": [
            {
                "id": p.id, "kind": p.kind, "args": [_plain(a) for a in p.args], "operands": list(p.operands),
                "result": p.result, "rule": n.rules.get(p.id, ""),
            }
            for p in n.prims
        ],
        "launches": [
            {
                "id": l.id, "body": l.body.hash, "operands": list(l.operands), "results": list(l.results),
                "rule": l.rule, "parents": list(l.parents), "open": l.open >= 0, "cost": _cost(s, l.body.hash),
                "chosen": l.id in chosen,
            }
            for l in s.model.launches
        ],
        "bodies": {h: b.text for h, b in bodies.items()},
        "equal": [[h, s.model.loops.best(b).hash] for h, b in bodies.items() if s.model.loops.best(b) is not b],
        "schedules": {
            h: {"rows": [[r.family, r.row.text] for r in rows], "declined": s.selection.declined.get(h, {})}
            for h, rows in sorted(s.selection.rows.items())
        },
    }  # fmt: skip


def _plain(a: object) -> Any:
    if isinstance(a, tuple):
        return [_plain(x) for x in a]
    return a.text if isinstance(a, Expr) else a


def _cost(s: Saturation, body: str) -> float | None:
    priced = s.selection.priced.get(body)
    return None if priced is None else priced.decision.cost
