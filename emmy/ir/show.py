"""Torch IR for people: Rust-shaped pseudocode, one `let` a value.  `emmy.ir.parse_graph` reads it back.

    struct Dynamic { s0: 5..=64 = 16 }                   symbolic sizes: bounds (`5..`: only one), the example's value
    struct Inputs … struct Outputs …                     `// updates x`: the new contents of an input or held tensor
    let p_weight: f32[8] = load("weight");               a parameter; `load_buffer`, `load_constant`
    let exp: f32[8] = exp(neg);                          `aten.exp.default`; `add.Tensor` is `aten.add.Tensor`

Lines of source and paths of modules are not shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from emmy.ir.dtype import DTYPES
from emmy.ir.graph import Graph, InputKind, Node, Output, Ref, SizeVar
from emmy.ir.infix import size_text, tensor_text
from emmy.ir.loop import Expr

LOADS: Final[dict[InputKind, str]] = {"parameter": "load", "buffer": "load_buffer", "constant": "load_constant"}


def show_torch(graph: Graph) -> str:
    """The exported graph with parameters by name."""
    user = [i for i in graph.inputs if i.kind == "user"]
    names = {i.name: f"inputs.{i.name}" for i in user}
    lines = [
        "struct Dynamic {" + (" " + ", ".join(_size_text(s) for s in graph.sizes) + " " if graph.sizes else "") + "}",
        "",
    ]
    lines += ["struct Inputs<dynamic: Dynamic> {", *(f"    {i.name}: {tensor_text(i.tensor)}," for i in user), "}", ""]
    table = graph.tensors
    outs = [(o, o.value.name) for o in graph.outputs if isinstance(o.value, Ref)]
    returned = ", ".join(_returned(o) for o in graph.outputs)
    lines += ["struct Outputs<dynamic: Dynamic> {"]
    lines += [
        f"    {_ident(n)}: {tensor_text(table[n])},{f'  // updates {o.mutates}' if o.mutates else ''}" for o, n in outs
    ]
    lines += ["}", "", "fn main(dynamic: Dynamic, inputs: Inputs<dynamic>) -> Outputs<dynamic> {"]
    rest = [i for i in graph.inputs if i.kind != "user"]
    literals = [(n, k, v) for n in graph.nodes for k, v in enumerate(n.args) if isinstance(v, float)]
    if rest or literals:
        lines.append("  // constants: checkpoint tensors, and the literals the trace captured")
    lines += [f"  let {i.name}: {tensor_text(i.tensor)} = {LOADS[i.kind]}({json.dumps(i.target)});" for i in rest]
    lines += [f"  let {n.name}_c{k}: f32[1] = {v};" for n, k, v in literals]
    for n in graph.nodes:
        lines.append(f"  {call_text(n, names)}")
    lines += [f"  Outputs {{ {returned} }}", "}"]
    return "\n".join(lines)


def call_text(n: Node, names: Mapping[str, str]) -> str:
    """One node: `let exp: f32[8] = exp(neg);`.  `names` are spellings of inputs."""
    results = ", ".join(tensor_text(t) for t in n.results)
    return f"let {n.name}: {results if len(n.results) == 1 else f'({results})'} = {_call(n, names)};"


def _size_text(s: SizeVar) -> str:
    bounds = f"{s.low}.." if s.high is None else f"{s.low}..={s.high}"
    return f"{s.name}: {bounds} = {s.example}"


def _returned(o: Output) -> str:
    """A field of the result: its name where that says all."""
    text = _arg(o.value, {})
    return text if "." not in text or not isinstance(o.value, Ref) else f"{_ident(o.value.name)}: {text}"


def op_text(op: str) -> str:
    """`aten` and `default` go without saying."""
    space, _, rest = op.partition(".")
    return rest.removesuffix(".default") if space == "aten" and rest.count(".") == 1 else op


def _ident(name: str) -> str:
    return name.replace("#", "_")


def _call(n: Node, names: Mapping[str, str]) -> str:
    parts = [_arg(a, names) for a in n.args] + [f"{k}={_arg(v, names)}" for k, v in n.kwargs]
    return f"{op_text(n.op)}({', '.join(parts)})"


def _arg(a: object, names: Mapping[str, str]) -> str:
    if isinstance(a, Ref):
        base, _, k = a.name.partition("#")
        return names.get(base, base) + (f".{k}" if k else "")
    if isinstance(a, tuple | list):
        return "[" + ", ".join(_arg(x, names) for x in a) + "]"
    if isinstance(a, Expr):
        return size_text(a)
    if isinstance(a, str):
        return a if a in DTYPES else json.dumps(a)
    return "none" if a is None else str(a).lower() if isinstance(a, bool) else repr(a)
