"""Capture: run PyTorch's exporter, then convert what it returns into a `Program`.

`torch.export` gives the pre-dispatch graph; `run_decompositions({})` with an empty table makes it functional (views and
in-place operations become values) and keeps every composite operation that does not alias its operands: linear,
matmul, layer_norm, rms_norm, softmax, scaled_dot_product_attention … stay whole.  Only aliases (flatten, chunk, mT) are
spelled by their primitive forms.
"""

from __future__ import annotations

import inspect
import io
import logging
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from emmy.errors import EmmyError, UnsupportedError, UsageError
from emmy.frontend.dtypes import dtype_name
from emmy.frontend.fx import Walk, live, refs
from emmy.frontend.lines import to_blame
from emmy.frontend.program import Program
from emmy.frontend.symbolic import SizeNames
from emmy.ir.graph import Graph, Input, InputKind, Output, Ref, ScalarInput, SizeVar


def as_module(function: Callable[..., Any], count: int) -> nn.Module:
    """A module whose forward is `function`, with its parameter names (x, y, z … for a builtin of `count` operands)."""
    if isinstance(function, nn.Module):
        return function
    signature = _signature(function, count)
    called = function
    if isinstance(function, types.FunctionType):
        # the exporter keeps only stack frames called `forward`, and the user's lines are in this one
        code = function.__code__.replace(co_name="forward")
        called = types.FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
        called.__kwdefaults__ = function.__kwdefaults__

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    sign(forward, [self_, *signature.parameters.values()])
    made = type(_name_of(function), (nn.Module,), {"forward": forward})()
    assert isinstance(made, nn.Module)
    return made


def sign(function: Any, parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function of any arguments the parameters by which the exporter names the inputs."""
    function.__signature__ = inspect.Signature(parameters)


def _signature(function: Callable[..., Any], count: int) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:
        names = [*"xyzw", *(f"x{k}" for k in range(count))][:count]
        return inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])


def capture(
    module_or_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
) -> Program:
    """The program of a module or function on example arguments.

    Args:
        module_or_fn: `nn.Module` or a function of tensors.  A module is captured in the mode (train or eval) it is in.
        args, kwargs: example arguments, any pytree; numbers are baked in.
        dynamic_shapes: as `torch.export.export` takes it.
    Raises:
        UnsupportedError: control flow or sizes that depend on data, complex or sparse tensors; names the user's line.
        UsageError: the module does not run on these arguments.
    """
    module = as_module(module_or_fn, len(args))
    _check_tensors(module, args, dict(kwargs or {}))
    with quiet():
        exported = _export(module, args, dict(kwargs or {}), dynamic_shapes)
    return from_exported(exported, args, dict(kwargs or {}), module, name or _name_of(module_or_fn))


def _check_tensors(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """UnsupportedError for an argument or weight of a kind that no kernel reads, which the exporter would not name."""
    leaves = [leaf for tree in (args, kwargs) for leaf in pytree.tree_flatten_with_path(tree)[0]]
    given = [(f"argument {pytree.keystr(path)}", x) for path, x in leaves]
    for name, tensor in (*given, *module.named_parameters(), *module.named_buffers()):
        if not isinstance(tensor, torch.Tensor) or nn.parameter.is_lazy(tensor):
            continue
        if tensor.is_nested:
            raise UnsupportedError(f"{name} is a nested tensor", "pad it: torch.nested.to_padded_tensor(x, 0.0)")
        if tensor.layout != torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise UnsupportedError(f"{name} is a sparse tensor ({layout})", "make it dense: x.to_dense()")
        dtype_name(tensor.dtype, name)


def _name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns and logs about its own internals; what matters comes back as an exception."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _without_graphs() -> Iterator[None]:
    """A failing exporter prints the graph so far to stderr; what the model itself prints there is passed on."""
    written, graph = io.StringIO(), ""
    try:
        with redirect_stderr(written):
            yield
    except Exception as e:  # only looked at
        graph = str(getattr(e, "partial_fx_graph", ""))
        raise
    finally:
        text = written.getvalue()
        sys.stderr.write(text.replace(f"{graph}\n", "") if graph else text)


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> Any:
    from torch._dynamo.exc import UserError
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        with _without_graphs():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except GuardOnDataDependentSymNode as e:
        raise UnsupportedError(
            f"control flow that depends on data at {_user_line(e)}", "use torch.where, or compute it outside the model"
        ) from e
    except UserError as e:
        # what follows the first line says which dimension is at fault, and then advises about the exporter itself
        said = str(e).partition("The error above occurred")[0].strip().split("\n")
        details = [line.strip() for line in said[1:] if line.strip()]
        raise UsageError(
            f"torch.export: {said[0]} at {_user_line(e)}", "\n  ".join(details) or "see dynamic_shapes and the inputs"
        ) from e
    except EmmyError:
        raise
    except Exception as e:  # the model's forward is the user's code and may raise anything
        raise UsageError(
            f"the model cannot be captured on these inputs: {type(e).__name__}: {_first_line(e)} at {_user_line(e)}",
            "it must run on these inputs in eager PyTorch, without leaving PyTorch (NumPy, json …)",
        ) from e


def _first_line(e: BaseException) -> str:
    return str(e).strip().split("\n")[0]


def _user_line(e: BaseException) -> str:
    """`file:line: code` of the user's innermost frame, else of the innermost of a library other than PyTorch."""
    frames = traceback.extract_tb(e.__traceback__)
    k = to_blame([f.filename for f in frames])
    if k is None:
        return "an unknown line"
    return f"{frames[k].filename}:{frames[k].lineno}: {frames[k].line or ''}".removesuffix(": ")


def from_exported(
    exported: torch.export.ExportedProgram,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    module: Callable[..., Any] | None = None,
    name: str = "",
    notes: tuple[str, ...] = (),
) -> Program:
    """The program of an exported one; example arguments default to those that were saved with it."""
    if not args and not kwargs and exported.example_inputs is not None:
        args, kwargs = exported.example_inputs
    functional = _functional(exported)
    traces = {n.name: str(n.meta.get("stack_trace") or "") for g in _graphs(exported) for n in g.nodes}
    walk = Walk(SizeNames(), traces)
    inputs, signature = _inputs(functional, walk)
    results = walk.run(functional.graph_module)
    outputs = _outputs(functional, results, {i.target: i.name for i in inputs}, {i.name for i in inputs})
    roots = {r for o in outputs for r in refs(o.value)} | {o.mutates for o in outputs if o.mutates}
    nodes = live(walk.nodes, roots)
    used = roots | {r for n in nodes for r in refs((*n.args, *(v for _, v in n.kwargs)))}
    given = [i for i in inputs if i.kind == "user"]
    held = [i for i in (*inputs, *walk.extra) if i.kind != "user" and i.name in used]
    kept = (*held, *given)
    weights = {i.target: _value(functional, walk.constants, i.target) for i in kept if i.kind != "user"}
    sizes = _sizes(functional, walk.sizes)
    graph = Graph(kept, tuple(nodes), outputs, sizes)
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
    return Program(
        graph, weights, tuple(args), module, name, notes, dict(kwargs or {}), signature, in_spec, out_spec
    )  # fmt: skip


def _functional(exported: torch.export.ExportedProgram) -> Any:
    """Views and in-place operations as values; composites that alias nothing stay whole."""
    try:
        with quiet():
            return exported.run_decompositions({})
    except RuntimeError as e:
        raise UnsupportedError(
            f"PyTorch cannot make the program functional: {_first_line(e)}",
            "transforms like torch.func.grad do this",
        ) from e


def _graphs(exported: torch.export.ExportedProgram) -> list[torch.fx.Graph]:
    return [m.graph for m in exported.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]


def _value(exported: Any, constants: Mapping[str, torch.Tensor], target: str) -> torch.Tensor:
    for table in (exported.state_dict, exported.constants, constants):
        value = table.get(target)
        if isinstance(value, torch.Tensor):
            return value.detach()
    raise UnsupportedError(f"the exported program lacks the value of {target}", "export the model again")


def _inputs(exported: Any, walk: Walk) -> tuple[list[Input], tuple[Input | ScalarInput, ...]]:
    from torch.export.graph_signature import ConstantArgument, TensorArgument
    from torch.export.graph_signature import InputKind as Kind

    kinds: dict[Any, InputKind] = {
        Kind.USER_INPUT: "user",
        Kind.PARAMETER: "parameter",
        Kind.BUFFER: "buffer",
        Kind.CONSTANT_TENSOR: "constant",
    }
    holders = [n for n in exported.graph.nodes if n.op == "placeholder"]
    inputs: list[Input] = []
    signature: list[Input | ScalarInput] = []
    for spec, node in zip(exported.graph_signature.input_specs, holders, strict=True):
        name = walk.name(node.name)
        if isinstance(spec.arg, ConstantArgument):
            walk.values[node] = spec.arg.value
            signature.append(ScalarInput(name, spec.arg.value))
            continue
        kind = kinds.get(spec.kind)
        if kind is None or not isinstance(spec.arg, TensorArgument):
            found = type(spec.arg).__name__.removesuffix("Argument")
            raise UnsupportedError(
                f"input {name} is a {found} of kind {spec.kind.name.lower()}",
                "inputs are tensors, and numbers that stay the same",
            )
        target = "" if kind == "user" else spec.target or ""
        made = Input(name, walk.tensor(node.meta["val"], f"input {name}"), kind, target)
        walk.values[node] = Ref(name)
        inputs.append(made)
        if kind == "user":
            signature.append(made)
    return inputs, tuple(signature)


def _outputs(exported: Any, results: list[Any], by_target: Mapping[str, str], names: set[str]) -> tuple[Output, ...]:
    from torch.export.graph_signature import OutputKind

    outputs: list[Output] = []
    for spec, value in zip(exported.graph_signature.output_specs, results, strict=True):
        if value is not None and not isinstance(value, Ref | int | float | bool):
            raise UnsupportedError(f"the result {value} is a size or a structure", "return tensors")
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(Output(value))
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            outputs.append(Output(value, by_target[spec.target]))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            assert spec.target in names
            outputs.append(Output(value, spec.target))
        else:
            raise UnsupportedError(f"a result of kind {spec.kind.name.lower()}", "export the forward pass alone")
    return tuple(outputs)


def _sizes(exported: Any, names: SizeNames) -> tuple[SizeVar, ...]:
    """Bounds of the symbolic sizes that the graph mentions."""
    ranges = {str(symbol): bounds for symbol, bounds in exported.range_constraints.items()}
    out: list[SizeVar] = []
    for symbol, name in names.names.items():
        bounds = ranges.get(symbol)
        low = int(bounds.lower) if bounds is not None and bounds.lower.is_Integer else 0
        high = int(bounds.upper) if bounds is not None and bounds.upper.is_Integer else None
        out.append(SizeVar(name, low, high, names.examples[name]))
    return tuple(out)
