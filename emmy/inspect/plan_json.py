"""A plan as JSON and back.  `plan.json` is data: reading it builds dataclasses and nothing else.

    plan   = {arch, sizes, buffers, launches, outputs}
    launch = {kind: "kernel", name, operands, results, sizes, grid, block, smem, source, body, family, row, at_build,
              maps, cluster, dependent}
           | {kind: "opaque", name, operands, results, node}
    arg    = null | bool | int | text | {float} | {ref} | {expr} | [arg, ..]     an argument of a Torch IR node

Kernel sources are kept once, in `sources`, since launches of one kernel share theirs.  Tensors and integer expressions
are in the text form of `emmy.ir.parse`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from emmy.errors import EmmyError, PlanError
from emmy.ir.graph import Node, Output, Ref, SizeVar
from emmy.ir.loop import Expr
from emmy.ir.parse import parse_expr, parse_tensor
from emmy.ir.plan import Buffer, KernelLaunch, Launch, OpaqueLaunch, Plan, TensorMap, Workspace

FORMAT: Final = "emmy-plan"
VERSION: Final = 1
_ROLES: Final = ("input", "parameter", "buffer", "constant", "temporary", "folded", "output")


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """A value of dicts, lists, text and numbers from which `plan_from_json` makes an equal plan."""
    sources = {n.name: n.source for n in plan.launches if isinstance(n, KernelLaunch)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "arch": plan.arch,
        "sizes": [{"name": s.name, "low": s.low, "high": s.high, "example": s.example} for s in plan.sizes],
        "buffers": [{"name": b.name, "type": b.tensor.text, "role": b.role, "source": b.source} for b in plan.buffers],
        "launches": [_launch(n) for n in plan.launches],
        "outputs": [{"value": _arg(o.value), "mutates": o.mutates} for o in plan.outputs],
        "sources": sources,
    }


def _launch(n: Launch) -> dict[str, Any]:
    if isinstance(n, OpaqueLaunch):
        return {
            "kind": "opaque", "name": n.name, "operands": list(n.operands), "results": list(n.results),
            "node": _node(n.node),
        }  # fmt: skip
    return {
        "kind": "kernel", "name": n.name, "operands": list(n.operands), "results": list(n.results),
        "sizes": list(n.sizes), "grid": [e.text for e in n.grid], "block": n.block, "smem": n.smem, "body": n.body,
        "family": n.family, "row": n.row, "at_build": n.at_build, "maps": [_map(m) for m in n.maps],
        "cluster": list(n.cluster), "dependent": n.dependent,
        "work": [{"type": w.type, "count": w.count.text, "zeroed": w.zeroed} for w in n.work],
    }  # fmt: skip


def _map(m: TensorMap) -> dict[str, Any]:
    return {
        "argument": m.argument, "type": m.type, "shape": [e.text for e in m.shape],
        "strides": [e.text for e in m.strides], "box": list(m.box), "swizzle": m.swizzle, "offset": m.offset.text,
    }  # fmt: skip


def _node(n: Node) -> dict[str, Any]:
    return {
        "name": n.name, "op": n.op, "args": [_arg(a) for a in n.args], "kwargs": {k: _arg(v) for k, v in n.kwargs},
        "results": [t.text for t in n.results], "source": n.source, "module": n.module,
    }  # fmt: skip


def _arg(value: object) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, Expr):
        return {"expr": value.text}
    if isinstance(value, tuple | list):
        return [_arg(v) for v in value]
    raise PlanError(f"an argument of type {type(value).__name__} cannot be written to plan.json")


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan that `plan_to_json` gave.  PlanError where the data is none."""
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise PlanError(
            f"this is no plan of version {VERSION}: format {data.get('format')!r}, version {data.get('version')!r}",
            "write it again with `emmy saturate`",
        )
    try:
        return _plan(data)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise PlanError(f"plan.json is damaged: {type(e).__name__}: {e}", "write it again with `emmy saturate`") from e
    except PlanError:
        raise
    except EmmyError as e:
        raise PlanError(f"plan.json is damaged: {e.what}", "write it again with `emmy saturate`") from e


def _plan(data: Mapping[str, Any]) -> Plan:
    sources: dict[str, str] = data["sources"]
    for b in data["buffers"]:
        if b["role"] not in _ROLES:
            raise PlanError(f"buffer {b['name']!r} has the unknown role {b['role']!r}")
    return Plan(
        data["arch"],
        tuple(Buffer(b["name"], parse_tensor(b["type"]), b["role"], b["source"]) for b in data["buffers"]),
        tuple(_read_launch(n, sources) for n in data["launches"]),
        tuple(Output(_read_arg(o["value"]), o["mutates"]) for o in data["outputs"]),  # type: ignore[arg-type]
        tuple(SizeVar(s["name"], s["low"], s["high"], s["example"]) for s in data["sizes"]),
    )


def _read_launch(n: Mapping[str, Any], sources: Mapping[str, str]) -> Launch:
    operands, results = tuple(n["operands"]), tuple(n["results"])
    if n["kind"] == "opaque":
        return OpaqueLaunch(n["name"], operands, results, _read_node(n["node"]))
    if n["kind"] != "kernel":
        raise PlanError(f"launch {n['name']!r} is of the unknown kind {n['kind']!r}")
    x, y, z = (parse_expr(e) for e in n["grid"])
    return KernelLaunch(
        n["name"], operands, results, tuple(n["sizes"]), (x, y, z), n["block"], n["smem"], sources[n["name"]],
        n["body"], n["family"], n["row"], n["at_build"], tuple(_read_map(m) for m in n.get("maps", ())),
        _cluster(n.get("cluster", (1, 1, 1))), n.get("dependent", False),
        tuple(Workspace(w["type"], parse_expr(w["count"]), w["zeroed"]) for w in n.get("work", ())),
    )  # fmt: skip


def _read_map(m: Mapping[str, Any]) -> TensorMap:
    shape, strides = (tuple(parse_expr(e) for e in m[of]) for of in ("shape", "strides"))
    return TensorMap(m["argument"], m["type"], shape, strides, tuple(m["box"]), m["swizzle"], parse_expr(m["offset"]))


def _cluster(extents: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = extents
    return x, y, z


def _read_node(n: Mapping[str, Any]) -> Node:
    kwargs = tuple((k, _read_arg(v)) for k, v in n["kwargs"].items())
    results = tuple(parse_tensor(t) for t in n["results"])
    return Node(n["name"], n["op"], tuple(_read_arg(a) for a in n["args"]), kwargs, results, n["source"], n["module"])


def _read_arg(value: Any) -> object:
    if isinstance(value, list):
        return tuple(_read_arg(v) for v in value)
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    if kind == "float":
        return float.fromhex(text)
    if kind == "ref":
        return Ref(text)
    if kind == "expr":
        return parse_expr(text)
    raise PlanError(f"an argument of the unknown kind {kind!r}")
