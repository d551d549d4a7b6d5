"""Torch IR -> Tensor IR: one walk in graph order, a table of handlers, opaque calls for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emmy.errors import UnsupportedError
from emmy.frontend.translate.call import Call, Decline, Handler, Value, is_empty
from emmy.frontend.translate.table import HANDLERS
from emmy.ir.graph import Graph, Node, Ref
from emmy.ir.loop import Tensor
from emmy.ir.tensor import SIGNATURES, OpaqueCall, Program, Term, Terms


def translate(graph: Graph, fallback: bool = True, handlers: Mapping[str, Handler] = HANDLERS) -> Program:
    """The program of a graph; `outputs` holds one term for each output of the graph that is a tensor, in order.

    A node without handler, or whose case its handler declines, becomes an opaque call with the reason; its operands
    are the tensors among its arguments in the order in which they are written.
    Raises:
        UnsupportedError: with `fallback` off, for the first such node; names the op, its types and the user's line.
    """
    t = Terms()
    values: dict[str, int] = {i.name: t.input(i.tensor) for i in graph.inputs}
    for index, node in enumerate(graph.nodes):
        t.origin = index
        made = _node(t, node, values, handlers)
        if isinstance(made, str):
            if not fallback:
                raise _unsupported(node, graph, made)
            operands = tuple(values[r] for r in node_operands(node))
            made = t.opaque(index, operands, node.results, made)
        if len(made) == 1:
            values[node.name] = made[0]
        else:
            values.update({f"{node.name}#{k}": v for k, v in enumerate(made)})
    outputs = tuple(values[o.value.name] for o in graph.outputs if isinstance(o.value, Ref))
    return prune(Program(tuple(t.terms), outputs, frozenset(t.facts), tuple(t.calls)))


def _node(t: Terms, node: Node, values: Mapping[str, int], handlers: Mapping[str, Handler]) -> tuple[int, ...] | str:
    """Terms of the node's results, or why there are none."""
    namespace, _, rest = node.op.partition(".")
    base = rest.split(".")[0]
    handler = handlers.get(base if namespace == "aten" else f"{namespace}.{base}")
    if handler is None:
        return "no rule for this operation"
    call = Call(node, _resolve(node.args, values), {k: _resolve(v, values) for k, v in node.kwargs})
    types = [t.dtype(values[r]) for r in node_operands(node)] + [r.dtype for r in node.results]
    if "f64" in types:
        return "f64 arithmetic"
    if all(is_empty(r) for r in node.results):
        return tuple(_empty(t, r) for r in node.results)
    try:
        made = handler(t, call)
    except Decline as reason:
        return str(reason)
    out = (made,) if isinstance(made, int) else made
    _check(t, node, out)
    return tuple(int(x) for x in out)


def _empty(t: Terms, tensor: Tensor) -> int:
    return t.full(False if tensor.dtype == "bool" else 0.0 if "f" in tensor.dtype else 0, tensor.shape, tensor.dtype)


def _check(t: Terms, node: Node, made: tuple[int, ...]) -> None:
    """A handler must give the very types that PyTorch gives."""
    got = tuple(t.tensor(x) for x in made)
    weak = any(t.is_weak(x) for x in made)
    if got != node.results or weak:
        have, want = (" ".join(x.text for x in some) for some in (got, node.results))
        raise AssertionError(f"{node.op} translates to {have}{' (weak)' if weak else ''}, PyTorch gives {want}")


def _resolve(arg: Any, values: Mapping[str, int]) -> Any:
    if isinstance(arg, Ref):
        return Value(values[arg.name])
    if isinstance(arg, tuple):
        return tuple(_resolve(a, values) for a in arg)
    return arg


def node_operands(node: Node) -> list[str]:
    """Names of the values among a node's arguments, in the order in which they are written, repeats kept."""

    def walk(arg: object) -> list[str]:
        if isinstance(arg, Ref):
            return [arg.name]
        return [r for a in arg for r in walk(a)] if isinstance(arg, tuple) else []

    return walk((node.args, tuple(v for _, v in node.kwargs)))


def _unsupported(node: Node, graph: Graph, reason: str) -> UnsupportedError:
    operands = ", ".join(graph.tensors[r].text for r in node_operands(node))
    where = f"\n  at {node.source}" if node.source else ""
    return UnsupportedError(
        f"{node.op}({operands}) is not compiled: {reason}{where}",
        "allow the fallback to run it in PyTorch, or replace it",
    )


def prune(program: Program) -> Program:
    """Without the terms that no output and no opaque call needs; ids stay positions."""
    needed = {*program.outputs, *(x for c in program.opaque for x in (*c.operands, *c.results))}
    for term in reversed(program.terms):
        if term.kind == "Input":
            needed.add(term.id)
        if term.id in needed:
            needed.update(term.operands)
    number = {old: new for new, old in enumerate(sorted(needed))}

    def moved(term: Term) -> Term:
        kinds = SIGNATURES[term.kind]
        pairs = zip(term.args, kinds, strict=True)
        args = tuple(number[a] if k == "t" and isinstance(a, int) else a for a, k in pairs)
        return Term(number[term.id], term.kind, args, term.tensor, term.origin)

    terms = tuple(moved(program.terms[i]) for i in sorted(needed))
    calls = tuple(
        OpaqueCall(c.node, tuple(number[x] for x in c.operands), tuple(number[x] for x in c.results), c.reason)
        for c in program.opaque
    )
    return Program(terms, tuple(number[x] for x in program.outputs), program.facts, calls)
