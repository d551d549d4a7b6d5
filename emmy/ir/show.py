"""Torch IR and Tensor IR for people: Rust-shaped pseudocode, one `let` a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from emmy.ir.graph import Graph, Node, Ref
from emmy.ir.loop import Const, Expr, Load, Op, Size, Tensor
from emmy.ir.parse import parse_expr, parse_index
from emmy.ir.tensor import parse_axes


def size_text(e: Expr) -> str:
    """An extent or index as arithmetic: `2*s0 + 1`."""
    return _infix(e, {})


def tensor_text(t: Tensor) -> str:
    return f"{t.dtype}[{','.join(size_text(e) for e in t.shape)}]"


_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "&&",
    "or": "||",
}


def _infix(e: Expr, names: Mapping[str, str]) -> str:
    if isinstance(e, Const):
        return str(e.value)
    if isinstance(e, Size):
        return e.name
    if isinstance(e, Load):
        return f"{names.get(str(e.slot), f'#{e.slot}')}[{', '.join(_infix(i, names) for i in e.index)}]"
    if isinstance(e, Op) and e.name in _INFIX:
        left, right = (_wrapped(a, e.name, names) for a in e.args)
        return f"{left} {_INFIX[e.name]} {right}"
    if isinstance(e, Op):
        name = e.dtype if e.name == "cast" else e.name
        return f"{name}({', '.join(_infix(a, names) for a in e.args)})"
    return names.get(getattr(e, "name", ""), getattr(e, "name", e.text))


def _wrapped(e: Expr, parent: str, names: Mapping[str, str]) -> str:
    text = _infix(e, names)
    tight = not isinstance(e, Op) or e.name not in _INFIX or (parent == "add" and e.name in ("mul", "add"))
    return text if tight else f"({text})"


# ---- Torch IR


def show_torch(graph: Graph) -> str:
    """The exported graph with parameters by name."""
    user = [i for i in graph.inputs if i.kind == "user"]
    names = {i.name: f"inputs.{i.name}" for i in user}
    lines = [
        "struct Dynamic {"
        + (" " + ", ".join(f"{s.name}: {s.low}..={s.high or ''}" for s in graph.sizes) + " " if graph.sizes else "")
        + "}",
        "",
    ]
    lines += ["struct Inputs<dynamic: Dynamic> {", *(f"    {i.name}: {tensor_text(i.tensor)}," for i in user), "}", ""]
    table = graph.tensors
    outs = [(o, o.value.name) for o in graph.outputs if isinstance(o.value, Ref)]
    lines += ["struct Outputs<dynamic: Dynamic> {"]
    lines += [
        f"    {_ident(n)}: {tensor_text(table[n])},{f'  // updates {o.mutates}' if o.mutates else ''}" for o, n in outs
    ]
    lines += ["}", "", "fn main(dynamic: Dynamic, inputs: Inputs<dynamic>) -> Outputs<dynamic> {"]
    rest = [i for i in graph.inputs if i.kind != "user"]
    literals = [(n, k, v) for n in graph.nodes for k, v in enumerate(n.args) if isinstance(v, float)]
    if rest or literals:
        lines.append("  // constants: checkpoint tensors, and the literals the trace captured")
    lines += [f'  let {i.name}: {tensor_text(i.tensor)} = load("{i.target}");' for i in rest]
    lines += [f"  let {n.name}_c{k}: f32[1] = {v};" for n, k, v in literals]
    for n in graph.nodes:
        lines.append(f"  {call_text(n, names)}")
    lines += [f"  Outputs {{ {', '.join(_ident(n) for _, n in outs)} }}", "}"]
    return "\n".join(lines)


def call_text(n: Node, names: Mapping[str, str]) -> str:
    """One node: `let exp: f32[8] = exp(neg);`.  `names` are spellings of inputs."""
    results = ", ".join(tensor_text(t) for t in n.results)
    return f"let {n.name}: {results if len(n.results) == 1 else f'({results})'} = {_call(n, names)};"


def _ident(name: str) -> str:
    return name.replace("#", "_")


def _call(n: Node, names: Mapping[str, str]) -> str:
    parts = [_arg(a, names) for a in n.args] + [f"{k}={_arg(v, names)}" for k, v in n.kwargs]
    return f"{n.op.split('.')[1] if '.' in n.op else n.op}({', '.join(parts)})"


def _arg(a: object, names: Mapping[str, str]) -> str:
    if isinstance(a, Ref):
        base, _, k = a.name.partition("#")
        return names.get(base, base) + (f".{k}" if k else "")
    if isinstance(a, tuple | list):
        return "[" + ", ".join(_arg(x, names) for x in a) + "]"
    if isinstance(a, Expr):
        return size_text(a)
    return "none" if a is None else str(a).lower() if isinstance(a, bool) else str(a)


# ---- Tensor IR

_SYMBOL = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "and": "&",
    "or": "|",
}


def show_tensor(rows: Iterable[tuple[str, Tensor, str, Sequence[object], Sequence[tuple[str, Tensor]]]]) -> str:
    """`rows`: (name, type, kind, plain arguments, operands as (name, type)) in order of definition."""
    lines: list[str] = []
    for name, tensor, kind, args, operands in rows:
        parts = [
            _broadcast(lines, name, k, o, tensor) if kind in ("Bin", "Where") else o[0] for k, o in enumerate(operands)
        ]
        lines.append(f"let {name}: {tensor_text(tensor)} = {_SHOW[kind](args, parts, tensor)};")
    return "\n".join(lines)


def _broadcast(lines: list[str], name: str, k: int, operand: tuple[str, Tensor], result: Tensor) -> str:
    """An explicit index map where an operand is not of the result's shape (scalars stand as they are)."""
    text, tensor = operand
    if tensor.shape == result.shape or not tensor.shape:
        return text
    lead = len(result.shape) - len(tensor.shape)
    index = ["0" if e is not result.shape[lead + i] else _letter(lead + i) for i, e in enumerate(tensor.shape)]
    used = set(index)
    params = [_letter(i) if _letter(i) in used else f"_{_letter(i)}" for i in range(len(result.shape))]
    wide = f"{name}_bc{k}"
    lines.append(
        f"let {wide}: {tensor_text(Tensor(tensor.dtype, result.shape))} = "
        f"emmy::index_map_simple({text}, |{', '.join(params)}| [{', '.join(index)}]);"
    )
    return wide


def _letter(i: int) -> str:
    return "ijklmnpq"[i] if i < 8 else f"d{i}"


def _coordinates(rank: int) -> dict[str, str]:
    return {f"d{i}": _letter(i) for i in range(rank)}


def _map(args: Sequence[object], ops: Sequence[str], t: Tensor) -> str:
    index = parse_index(str(args[0]))
    names = {**_coordinates(len(t.shape)), **{str(k): o for k, o in enumerate(ops)}}
    used = {a.name for e in index for a in e.free}
    params = [_letter(i) if f"d{i}" in used else f"_{_letter(i)}" for i in range(len(t.shape))]
    body = ", ".join(_infix(e, names) for e in index)
    fill = f", fill={args[1]}" if len(args) > 1 and args[1] != "" and not isinstance(args[1], tuple) else ""
    return f"emmy::index_map_simple({ops[0]}, |{', '.join(params)}| [{body}]{fill})"


def _reduce(args: Sequence[object], ops: Sequence[str], t: Tensor) -> str:
    kind = str(args[0]).partition(":")[0]
    axes = [a - len(t.shape) for a in parse_axes(str(args[1]))]
    return f"{kind}({ops[0]}, axis={axes[0] if len(axes) == 1 else axes})"


def _bin(args: Sequence[object], ops: Sequence[str], t: Tensor) -> str:
    name = str(args[0])
    return f"{ops[0]} {_SYMBOL[name]} {ops[1]}" if name in _SYMBOL else f"{name}({ops[0]}, {ops[1]})"


def _iota(args: Sequence[object], ops: Sequence[str], t: Tensor) -> str:
    return _infix(parse_expr(str(args[0])), _coordinates(len(t.shape)))


_SHOW: dict[str, Callable[[Sequence[object], Sequence[str], Tensor], str]] = {
    "Full": lambda args, ops, t: str(args[0]),
    "Iota": _iota,
    "Un": lambda args, ops, t: f"{args[0]}({ops[0]})",
    "Bin": _bin,
    "Where": lambda args, ops, t: f"where({', '.join(ops)})",
    "Cast": lambda args, ops, t: f"cast({ops[0]}, {args[0]})",
    "As": lambda args, ops, t: f"{ops[0]} as {args[0]}",
    "Reduce": _reduce,
    "Scan": lambda args, ops, t: f"scan_{args[0]}({ops[0]}, axis={args[1]})",
    "Map": _map,
    "Gather1": _map, "Gather2": _map, "Gather3": _map,
    "Scatter1": lambda args, ops, t: f"scatter_{args[0]}({', '.join(ops)})",
    "Scatter2": lambda args, ops, t: f"scatter_{args[0]}({', '.join(ops)})",
}  # fmt: skip
