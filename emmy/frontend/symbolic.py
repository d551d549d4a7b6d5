"""Symbolic sizes: from PyTorch's expressions to Loop IR, from example shapes to values.

PyTorch names a dynamic dimension by a number that it hashes from the source; here they are `s0`, `s1` … in the order in
which the inputs mention them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emmy.errors import UnsupportedError, UsageError
from emmy.ir.build import iadd, idiv, imod, imul, scalar
from emmy.ir.loop import Const, Expr, Op, Size, Tensor, const, size

if TYPE_CHECKING:
    import torch

    from emmy.ir.graph import SizeVar


@dataclass
class SizeNames:
    """Names given so far: PyTorch's symbol -> ours, and the value that the example had."""

    names: dict[str, str] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)

    def expr(self, value: Any, where: str) -> Expr:
        """The Loop IR expression of an int or `torch.SymInt`; UnsupportedError for a size that data decides."""
        if isinstance(value, int):
            return const(value)
        node = value.node
        self._learn(node, where)
        return self._convert(node.expr, where)

    def _learn(self, node: Any, where: str) -> None:
        for symbol in sorted(node.expr.free_symbols, key=str):
            if str(symbol) in self.names:
                continue
            # the table of example values was renamed between PyTorch releases
            table = "backed_var_to_val" if hasattr(node.shape_env, "backed_var_to_val") else "var_to_val"
            hint = getattr(node.shape_env, table).get(symbol)
            if hint is None or not hint.is_Integer:
                raise UnsupportedError(
                    f"a size that depends on data ({symbol}) at {where or 'an unknown line'}",
                    "every shape must follow from the input shapes: pad to a fixed size or mask instead",
                )
            name = f"s{len(self.names)}"
            self.names[str(symbol)] = name
            self.examples[name] = int(hint)

    def _convert(self, e: Any, where: str) -> Expr:
        """A sympy expression over known symbols, as an integer expression of Loop IR."""
        if e.is_Integer:
            return const(int(e))
        if e.is_Symbol:
            return size(self.names[str(e)])
        args = [self._convert(a, where) for a in e.args]
        kind = type(e).__name__
        if kind == "Add":
            return iadd(*args)
        if kind == "Mul":
            return imul(*args)
        if kind in ("FloorDiv", "CleanDiv"):
            return idiv(args[0], args[1])
        if kind in ("Mod", "PythonMod"):
            return imod(args[0], args[1])
        if kind in ("Max", "Min"):
            out = args[0]
            for a in args[1:]:
                out = scalar(kind.lower(), out, a)
            return out
        if kind == "Pow" and isinstance(args[1], Const) and int(args[1].value) > 0:
            return imul(*([args[0]] * int(args[1].value)))
        raise UnsupportedError(f"the size {e} at {where or 'an unknown line'} is not made of + * // % min max")


def evaluate(e: Expr, sizes: Mapping[str, int]) -> int:
    """The value of an integer expression over symbolic sizes."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Size):
        return sizes[e.name]
    if isinstance(e, Op):
        args = [evaluate(a, sizes) for a in e.args]
        if e.name == "add":
            return args[0] + args[1]
        if e.name == "mul":
            return args[0] * args[1]
        if e.name == "floordiv":
            return args[0] // args[1]
        if e.name == "mod":
            return args[0] % args[1]
        if e.name in ("max", "min"):
            return max(args) if e.name == "max" else min(args)
    raise UnsupportedError(f"{e.text} is no expression of sizes")


def shape_of(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The concrete extents of a tensor type."""
    return tuple(evaluate(e, sizes) for e in tensor.shape)


def bind_sizes(
    declared: Iterable[tuple[str, Tensor]], given: Sequence[torch.Tensor], bounds: Iterable[SizeVar] = ()
) -> dict[str, int]:
    """Values of the symbolic sizes from real inputs; UsageError where a shape does not fit its declaration.

    Args:
        declared: name and type of every tensor input, in order.
        given: the tensors, one each.
        bounds: the sizes for which the program was captured; others are refused.
    """
    pairs = list(zip(declared, given, strict=True))
    sizes: dict[str, int] = {}
    for (_, tensor), value in pairs:
        for e, extent in zip(tensor.shape, value.shape, strict=False):
            if isinstance(e, Size):
                sizes.setdefault(e.name, int(extent))
    for (name, tensor), value in pairs:
        if any(s not in sizes for e in tensor.shape for s in e.sizes):
            raise UsageError(f"no input has a dimension that is just the size used in {tensor.text} of input {name}")
        if tuple(value.shape) != shape_of(tensor, sizes):
            raise UsageError(f"input {name} has shape {list(value.shape)}, the program takes {tensor.text}")
    for v in bounds:
        found = sizes.get(v.name, v.low)  # a size that no shape shows is not looked at
        if found < v.low or (v.high is not None and found > v.high):
            raise UsageError(
                f"size {v.name} is {found}, the program was captured for {v.low}..={'' if v.high is None else v.high}",
                "capture or export it again with wider bounds",
            )
    return sizes
