"""Programs from a line of Python: `-c 'x=torch.randn(8); torch.exp(-x)'`.

All statements but the last run as they are; the last is an expression, the call to compile.  Tensors that exist before
it become the program's inputs, named by their variable; calls in it that make a tensor from nothing (`torch.randn(8)`)
are evaluated and become inputs as well.  When the expression is one call of a module on such tensors, the module itself
is captured, so that parameters keep their own names and unnamed inputs take the names of its forward's parameters.
Modules are compiled in eval mode.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import re
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from emmy.errors import UsageError
from emmy.frontend.capture import capture, sign
from emmy.frontend.program import Program

FILENAME: Final = "<code>"
_MAKERS: Final = (
    "randn", "rand", "zeros", "ones", "full", "randint", "arange", "empty", "tensor", "eye", "linspace", "logspace",
    "randperm", "normal", "as_tensor", "scalar_tensor",
)  # fmt: skip
# Methods that only restate a new tensor's type or place, so that the result is still an input.
_RESTATE: Final = (
    "half", "bfloat16", "float", "double", "to", "type", "int", "long", "short", "char", "byte", "bool", "cpu", "cuda",
    "contiguous", "requires_grad_", "detach",
)  # fmt: skip
_LETTERS: Final = ("x", "y", "z", "w")


def load_code(code: str) -> Program:
    """The program of `code`, captured on the tensors that it makes (random ones from a fixed seed).

    `torch`, `nn` and `F` (`torch.nn.functional`) are in scope.  UsageError names the line of a syntax error, of an
    error that the code raises, or a last line that is no expression on tensors.
    """
    if not code.strip():
        raise UsageError(
            "-c: the code is empty", "end with the call to compile, as in 'x=torch.randn(8); torch.exp(x)'"
        )
    lines = [line + "\n" for line in code.splitlines()]
    linecache.cache[FILENAME] = (len(code), None, lines, FILENAME)
    tree = _parse(code)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        raise UsageError(
            f"-c: the last line is no expression: {ast.unparse(last) if last is not None else code!r}",
            "end with the call to compile, as in 'x=torch.randn(8); torch.exp(x)'",
        )
    scope = _scope(code)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _run(compile(ast.Module(tree.body[:-1], []), FILENAME, "exec"), scope)
        for module in (v for v in scope.values() if isinstance(v, nn.Module)):
            module.eval()
        lifted = _Lift(scope)
        direct = _direct_call(last.value, scope, lifted)
        module, args = direct if direct is not None else _expression(last, scope, lifted)
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(args)):
        raise UsageError(f"-c: no tensor goes into {ast.unparse(last.value)}", "make one, as in 'x=torch.randn(8)'")
    if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
        _settle(module, args)
    program = capture(module, args, name="code")
    where = f"{FILENAME}:{last.lineno}: {ast.unparse(last.value)}"
    nodes = tuple(n if n.source.startswith(FILENAME) else replace(n, source=where) for n in program.graph.nodes)
    return replace(program, graph=replace(program.graph, nodes=nodes))


def _settle(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Lazy modules take their shapes in a first run."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module(*args)


def _scope(code: str) -> dict[str, Any]:
    """The names that the code sees: those of a module of its own, where `torch.compile` finds its globals."""
    name = f"emmy_code_{hashlib.sha256(code.encode()).hexdigest()[:12]}"
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(torch=torch, nn=nn, F=functional)
    return module.__dict__


def _parse(code: str) -> ast.Module:
    try:
        return ast.parse(code, FILENAME)
    except (SyntaxError, ValueError) as e:
        line = f"line {e.lineno}: " if isinstance(e, SyntaxError) else ""
        text = f"near {e.text.strip()!r}" if isinstance(e, SyntaxError) and e.text else ""
        raise UsageError(f"-c: {line}{getattr(e, 'msg', e)}", text) from e


def _run(compiled: Any, scope: dict[str, Any], evaluate: bool = False) -> Any:
    """Run the user's own code; whatever it raises is reported with its line."""
    try:
        if evaluate:
            return eval(compiled, scope)
        exec(compiled, scope)
    except Exception as e:  # the user's code may raise anything
        frames = [f for f in traceback.extract_tb(sys.exc_info()[2]) if f.filename == FILENAME]
        where = f"line {frames[-1].lineno}: {frames[-1].line}" if frames else "an unknown line"
        raise UsageError(f"-c: {type(e).__name__}: {e}", f"at {where}") from e
    return None


def _evaluate(node: ast.expr, scope: dict[str, Any]) -> Any:
    expression = ast.fix_missing_locations(ast.Expression(node))
    return _run(compile(expression, FILENAME, "eval"), scope, evaluate=True)


def _dotted(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    """The value of a name or dotted name, None where it has none or the node is something else."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_dotted(node.value, scope), node.attr, None)
    return None


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, nn.Module) or callable(value):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


@dataclass
class _Lift(ast.NodeTransformer):
    """Replaces what becomes an input by its name, and a module made on the spot by a name for it."""

    scope: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    bound: frozenset[str] = frozenset()

    def is_input(self, node: ast.AST) -> bool:
        """True for a variable that holds tensors and for a call that makes one from nothing."""
        if isinstance(node, ast.Name):
            return node.id not in self.bound and _holds_tensor(self.scope.get(node.id))
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in _RESTATE:
            return self._makes(node.func.value) and not self._reads(node)
        return self._makes(node)

    def _makes(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or self._reads(node):
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr in _RESTATE:
            return self._makes(node.func.value)
        found = _dotted(node.func, self.scope)
        return any(found is getattr(torch, name) for name in _MAKERS)

    def _reads(self, node: ast.AST) -> bool:
        """True where the code reads a tensor variable or a name that the expression binds itself."""
        names = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        return any(n in self.bound or _holds_tensor(self.scope.get(n)) for n in names)

    def take(self, node: ast.expr, wanted: str = "") -> str:
        """Make the node an input; returns its name."""
        if isinstance(node, ast.Name):
            self.inputs[node.id] = self.scope[node.id]
            return node.id
        taken = {*self.scope, *self.inputs}
        names = (wanted, *_LETTERS, *(f"x{k}" for k in range(len(taken) + 1)))
        name = next(n for n in names if n and n not in taken)
        self.inputs[name] = _evaluate(node, self.scope)
        self.unnamed.add(name)
        return name

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self.is_input(node):
            self.take(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self.is_input(node):
            return ast.copy_location(ast.Name(self.take(node), ast.Load()), node)
        if isinstance(node.func, ast.Call) and not self._reads(node.func) and not self.is_input(node.func):
            made = _evaluate(node.func, self.scope)
            name = self._module_name(made) if isinstance(made, nn.Module) else f"_function{node.col_offset}"
            if isinstance(made, nn.Module):
                self.modules[name] = made.eval()
            self.scope[name] = made
            node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return self.generic_visit(node)

    def _module_name(self, module: nn.Module) -> str:
        base = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(module).__name__).lower()
        names = (base, *(f"{base}_{k}" for k in range(1, len(self.modules) + len(self.scope) + 2)))
        return next(n for n in names if n not in self.scope)


def _direct_call(node: ast.expr, scope: dict[str, Any], lift: _Lift) -> tuple[nn.Module, tuple[Any, ...]] | None:
    """The module and its inputs where the expression is one call of a module on inputs and constants, else None."""
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    if any(k.arg is None for k in node.keywords) or lift.is_input(node) or lift._reads(node.func):
        return None
    arguments = [*node.args, *(k.value for k in node.keywords)]
    if any(not lift.is_input(a) and _mentions(a, lift) for a in arguments):
        return None
    called = _dotted(node.func, scope)
    if called is None and isinstance(node.func, ast.Call):
        called = _evaluate(node.func, scope)
    if not isinstance(called, nn.Module):
        if called is not None and isinstance(node.func, ast.Call):
            scope["_called"] = called
            node.func = ast.copy_location(ast.Name("_called", ast.Load()), node.func)
        return None
    return _named_inputs(called.eval(), node, lift)


def _mentions(node: ast.expr, lift: _Lift) -> bool:
    """True where an input stands somewhere inside the node."""
    return any(lift.is_input(n) for n in ast.walk(node))


def _named_inputs(module: nn.Module, node: ast.Call, lift: _Lift) -> tuple[nn.Module, tuple[Any, ...]]:
    """Give the module a forward whose parameters are the inputs, by variable or by the parameter that they fill."""
    run: Callable[..., Any] = module.forward
    parameters = list(inspect.signature(run).parameters.values())
    fills = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else "" for p in parameters]
    places: list[tuple[str | None, Any]] = []
    for k, argument in enumerate(node.args):
        wanted = fills[k] if k < len(fills) else ""
        places.append(_place(argument, wanted, lift))
    keywords = {str(k.arg): _place(k.value, str(k.arg), lift) for k in node.keywords}

    def forward(*args: Any) -> Any:
        given = dict(zip(lift.inputs, args, strict=True))
        positional = [given[name] if name is not None else value for name, value in places]
        named = {k: given[name] if name is not None else value for k, (name, value) in keywords.items()}
        return run(*positional, **named)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    sign(forward, [inspect.Parameter(n, kind) for n in lift.inputs])
    module.forward = forward
    return module, tuple(lift.inputs.values())


def _place(node: ast.expr, wanted: str, lift: _Lift) -> tuple[str | None, Any]:
    """(input name, None) or (None, constant)."""
    if lift.is_input(node):
        return lift.take(node, wanted), None
    return None, _evaluate(node, lift.scope)


def _expression(last: ast.Expr, scope: dict[str, Any], lift: _Lift) -> tuple[nn.Module, tuple[Any, ...]]:
    """A module that computes the expression from its inputs; modules that the code made are its children."""
    lift.bound = frozenset(
        n.id for n in ast.walk(last) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ) | frozenset(a.arg for n in ast.walk(last) if isinstance(n, ast.Lambda) for a in n.args.args)
    value = lift.visit(last.value)
    # variables in the order of their definition, then what had no name
    variables = [n for n in scope if n in lift.inputs]
    lift.inputs = {n: lift.inputs[n] for n in dict.fromkeys((*variables, *lift.inputs))}
    holder = ast.parse(f"def forward({', '.join(lift.inputs)}): return 0", FILENAME)
    function = holder.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = [ast.copy_location(ast.Return(value), last)]
    _run(compile(ast.fix_missing_locations(holder), FILENAME, "exec"), scope)
    run: Callable[..., Any] = scope["forward"]

    def forward(self: nn.Module, *args: Any) -> Any:
        return run(*args)

    signature = inspect.signature(run)
    self_ = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    sign(forward, [self_, *signature.parameters.values()])
    module = type("Code", (nn.Module,), {"forward": forward})()
    assert isinstance(module, nn.Module)
    named = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    for name, held in scope.items():
        if isinstance(held, nn.Module) and (name in lift.modules or name in named):
            module.add_module(name, held.eval())
    return module, tuple(lift.inputs.values())
