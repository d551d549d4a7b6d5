"""From an exported, functional FX graph to Torch IR.

One walk in graph order.  Integer arithmetic on sizes becomes Loop IR expressions, assertions vanish, and what nothing
reads is dropped.  Regions that only set a mode (no_grad, autocast) were inlined by PyTorch's functionalization.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from emmy.errors import UnsupportedError
from emmy.frontend.dtypes import dtype_name
from emmy.frontend.lines import Owner, owner
from emmy.frontend.symbolic import SizeNames
from emmy.ir.graph import Input, Node, Ref
from emmy.ir.loop import Const, Expr, Tensor

# Operations without a result that only check or hint: the compiled code checks shapes at its own border.
_EFFECT_FREE: Final = ("_assert", "sym_constrain_range", "_functional_assert", "_functional_sym_constrain_range")
# Arguments that say where or how PyTorch stores a tensor, which the compiler decides itself.
_PLACEMENT: Final = ("device", "layout", "pin_memory", "memory_format", "non_blocking")
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n?([^\n]*)')


def source_of(node: FxNode, traces: Mapping[str, str]) -> str:
    """`file:line: code` of the user's innermost line that made the node; empty where none is known.

    `traces` are the stack traces of the nodes before functionalization, by name: inside an inlined region the new
    node's own trace points into generated code.
    """
    texts = [node.meta.get("stack_trace") or ""]
    texts += [traces.get(origin.name, "") for origin in _origins(node)]
    fallback = ""
    for frames in (_FRAME.findall(t) for t in texts):
        written = [f for f in frames if not f[0].startswith("<eval_with_key>")]
        own = [f for f in written if owner(f[0]) <= Owner.PACKAGE]  # a model library's own line says most
        if own:
            return _spelled(own[-1])
        fallback = fallback or (_spelled(written[-1]) if written else "")
    return fallback


def _spelled(frame: tuple[str, str, str]) -> str:
    path, line, code = frame
    return f"{path}:{line}: {code.strip()}".removesuffix(": ")


def _origins(node: FxNode) -> list[Any]:
    """The nodes that this one was made from, nearest first (`torch.fx.traceback.NodeSource`)."""
    found: list[Any] = []
    todo = list(node.meta.get("from_node") or ())
    while todo:
        origin = todo.pop(0)
        found.append(origin)
        todo += origin.from_node
    return found


def module_of(node: FxNode) -> str:
    """Dotted path of the module whose forward made the node; empty for the root."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path)
    path = re.sub(r"@\d+$", "", path)
    return re.sub(r"^(L\.self|L__self__|self)\.?(_modules\.)?", "", path).strip(".")


@dataclass
class Walk:
    """State of the conversion.  `values` maps FX nodes to arguments: a Ref, a tuple of them, or a constant."""

    sizes: SizeNames
    traces: Mapping[str, str]
    values: dict[FxNode, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    extra: list[Input] = field(default_factory=list)

    def tensor(self, value: torch.Tensor, where: str) -> Tensor:
        """The type of a (fake) tensor."""
        if value.layout != torch.strided:
            raise UnsupportedError(f"a {value.layout} tensor at {where}", "densify it first")
        shape = tuple(self.sizes.expr(e, where) for e in value.shape)
        return Tensor(dtype_name(value.dtype, where), shape)

    def run(self, module: GraphModule) -> list[Any]:
        """Convert the nodes of one graph whose placeholders have values; returns its outputs as arguments."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                self.values[node] = self._attribute(module, node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                return [self.arg(a, node) for a in node.args[0]]
            elif node.op != "placeholder":
                raise UnsupportedError(f"a {node.op} node in an exported graph", "capture the model again")
        return []

    def _attribute(self, module: GraphModule, node: FxNode) -> Any:
        target: Any = module
        for part in str(node.target).split("."):
            target = getattr(target, part)
        if isinstance(target, torch.Tensor):
            return Ref(self._constant(str(node.target), target))
        return target

    def _constant(self, target: str, tensor: torch.Tensor) -> str:
        """A tensor that the exporter left in the graph module: one more constant input."""
        if target not in self.constants:
            self.constants[target] = tensor
            name = self.name("c_" + target.replace(".", "_"))
            self.extra.append(Input(name, self.tensor(tensor, target), "constant", target))
        return next(i.name for i in self.extra if i.target == target)

    def source(self, node: FxNode) -> str:
        return source_of(node, self.traces)

    def _call(self, node: FxNode) -> None:
        where = self.source(node) or node.name
        if node.target is operator.getitem:
            self.values[node] = self._item(node, where)
            return
        value = node.meta.get("val")
        if isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool):
            self.values[node] = self._number(value, where)
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise UnsupportedError(
                f"the control-flow operation {node.target} at {where}",
                "the program must be straight-line: use torch.where, or capture one branch at a time",
            )
        results = self._results(value, where)
        op = str(node.target)
        if not results:
            if not any(part in op for part in _EFFECT_FREE):
                raise UnsupportedError(f"{op} at {where} has an effect but no result", "remove it from the model")
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedError(f"a call of {op} at {where}", "only PyTorch operations can be compiled")
        self._check_strides(node, op, where)
        args = tuple(self.arg(a, node) for a in node.args)
        kwargs = tuple((k, self.arg(v, node)) for k, v in node.kwargs.items() if k not in _PLACEMENT)
        args, kwargs = _without_placement(node.target, args, kwargs)
        name = self.name(node.name)
        self.nodes.append(Node(name, op, args, kwargs, results, self.source(node), module_of(node)))
        if isinstance(value, torch.Tensor) or len(results) == 1:
            self.values[node] = Ref(name) if isinstance(value, torch.Tensor) else (Ref(name),)
        else:
            self.values[node] = _indexed(name, value)

    def name(self, wanted: str) -> str:
        name, k = wanted, 0
        while name in self.names:
            k += 1
            name = f"{wanted}_{k}"
        self.names.add(name)
        return name

    def _item(self, node: FxNode, where: str) -> Any:
        operand, position = node.args
        source = self.values.get(operand) if isinstance(operand, FxNode) else None
        if not isinstance(source, tuple) or not isinstance(position, int):
            raise UnsupportedError(f"an item of something that is no tuple at {where}")
        return source[position]

    def _number(self, value: Any, where: str) -> Any:
        if isinstance(value, torch.SymInt):
            e = self.sizes.expr(value, where)
            return int(e.value) if isinstance(e, Const) else e
        if isinstance(value, torch.SymFloat | torch.SymBool):
            constant = value.node.maybe_as_float() if isinstance(value, torch.SymFloat) else value.node.maybe_as_bool()
            return constant if constant is not None else _Unknown(str(value), where)
        return value

    def _results(self, value: Any, where: str) -> tuple[Tensor, ...]:
        if isinstance(value, torch.Tensor):
            return (self.tensor(value, where),)
        if isinstance(value, tuple | list):
            return tuple(self.tensor(v, where) for v in value if isinstance(v, torch.Tensor))
        return ()

    def _check_strides(self, node: FxNode, op: str, where: str) -> None:
        """`as_strided` reads memory by address: only sound for us where the operand is contiguous, as ours all are."""
        if not op.startswith("aten.as_strided"):
            return
        operand = node.args[0]
        if not isinstance(operand, FxNode) or not operand.meta["val"].is_contiguous():
            raise UnsupportedError(
                f"as_strided of a tensor that is not contiguous at {where}", "call contiguous() first"
            )

    def arg(self, value: Any, node: FxNode) -> Any:
        """An FX argument as a Torch IR argument."""
        if isinstance(value, FxNode):
            known = self.values[value]
            if isinstance(known, _Unknown):
                raise UnsupportedError(
                    f"a number that is computed while the model runs ({known.text}) at {known.where}",
                    "numbers are whole functions of sizes; what depends on data must stay a tensor (without .item())",
                )
            return known
        if isinstance(value, tuple | list):
            return tuple(self.arg(v, node) for v in value)
        if isinstance(value, torch.dtype):
            return dtype_name(value, self.source(node))
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return None
        if isinstance(value, torch.SymInt):
            return self._number(value, self.source(node))
        if isinstance(value, complex):
            raise UnsupportedError(f"a complex number at {self.source(node)}")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise UnsupportedError(f"an argument of type {type(value).__name__} at {self.source(node)}")


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A float or bool that depends on a size: fine for an assertion, an error as an argument."""

    text: str
    where: str


def _indexed(name: str, value: Any) -> tuple[Any, ...]:
    """`name#k` for each tensor of a result list, None where PyTorch returned none."""
    out: list[Any] = []
    k = 0
    for v in value:
        out.append(Ref(f"{name}#{k}") if isinstance(v, torch.Tensor) else None)
        k += isinstance(v, torch.Tensor)
    return tuple(out)


def _without_placement(
    op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """Positional placement arguments cut: what follows them is passed by name."""
    names = [a.name for a in op._schema.arguments]
    at = next((i for i, n in enumerate(names[: len(args)]) if n in _PLACEMENT), None)
    if at is None:
        return args, kwargs
    later = tuple((n, a) for n, a in zip(names[at:], args[at:], strict=False) if n not in _PLACEMENT)
    return args[:at], (*later, *kwargs)


def refs(value: Any) -> tuple[str, ...]:
    """Names that an argument (or a tuple or mapping of them) mentions, in order, repeats kept."""
    if isinstance(value, Ref):
        return (value.name,)
    if isinstance(value, tuple | list):
        return tuple(r for v in value for r in refs(v))
    if isinstance(value, Mapping):
        return tuple(r for v in value.values() for r in refs(v))
    return ()


def node_refs(node: Node) -> tuple[str, ...]:
    """Names of the tensors that a node reads, in the order in which `opaque.run_node` takes them."""
    return refs(node.args) + refs(tuple(v for _, v in node.kwargs))


def live(nodes: list[Node], roots: set[str]) -> list[Node]:
    """The nodes that `roots` need, in their order."""
    needed = {r.split("#")[0] for r in roots}
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.name in needed:
            kept.append(node)
            needed.update(r.split("#")[0] for r in node_refs(node))
    return kept[::-1]


def exprs(value: Any) -> tuple[Expr, ...]:
    """Symbolic integers among arguments."""
    if isinstance(value, Expr):
        return (value,)
    if isinstance(value, tuple):
        return tuple(e for v in value for e in exprs(v))
    return ()
