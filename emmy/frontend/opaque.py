"""Run one Torch IR node with PyTorch: a launch that we do not compile, and the step of the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

from emmy.errors import UnsupportedError
from emmy.frontend.symbolic import evaluate
from emmy.ir.dtype import DTYPES, register
from emmy.ir.graph import Node, Ref
from emmy.ir.loop import Expr
from emmy.ir.torch_types import TORCH

# Operations whose result follows from how the operand's type stores it, and not from its value.
BITWISE: Final = frozenset(("aten.view.dtype", "aten.view_copy.dtype", "aten.nextafter.default"))

# Matrix operands that an operation takes column by column on a card, by their place among the arguments.
BY_COLUMNS: Final = {"aten._scaled_mm.default": 1}


def operation(op: str) -> torch._ops.OpOverload:
    """The overload that `aten.add.Tensor` names; UnsupportedError where this PyTorch has none."""
    found: Any = torch.ops
    for part in op.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise UnsupportedError(f"this PyTorch ({torch.__version__}) has no operation {op}")
    return found


def run_node(
    node: Node,
    tensors: Sequence[torch.Tensor],
    sizes: Mapping[str, int],
    device: torch.device | str | None = None,
    widen: torch.dtype | None = None,
    stored: Sequence[str] = (),
) -> tuple[torch.Tensor, ...]:
    """Results of a node, contiguous.

    Args:
        tensors: what the node's references stand for, in the order of `fx.node_refs` (repeats kept).
        sizes: values of the symbolic sizes in the arguments.
        device: where an operation without tensor operands makes its result; the operands' device else.
        widen: replaces every floating element type among the arguments (the float64 reference).
        stored: the program's types of the tensors, in which operations on bits are computed where others are widened.
    """
    if widen is not None and node.op in BITWISE:
        if not stored:
            raise UnsupportedError(f"{node.op} of widened values: their bits are others", "give the types as stored")
        tensors, widen = [t.to(TORCH[s]) for t, s in zip(tensors, stored, strict=True)], None
    op = operation(node.op)
    call: Callable[..., Any] = WIDENED.get(node.op, op) if widen is not None else op
    values = iter(tensors)
    args = [_value(a, values, sizes, widen) for a in node.args]
    kwargs = {k: _value(v, values, sizes, widen) for k, v in node.kwargs}
    if node.op in BY_COLUMNS and isinstance(matrix := args[BY_COLUMNS[node.op]], torch.Tensor):
        args[BY_COLUMNS[node.op]] = matrix.t().contiguous().t()
    names = {a.name for a in op._schema.arguments}
    if not tensors and "device" in names:
        kwargs["device"] = device
    if widen is not None:
        _widen_defaults(node, names, kwargs, widen, bool(tensors))
    with torch.no_grad():
        result = call(*args, **kwargs)
    found = (result,) if isinstance(result, torch.Tensor) else tuple(r for r in result if isinstance(r, torch.Tensor))
    return tuple(r.contiguous() for r in found)


def grouped_product(
    x: torch.Tensor, w: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """`aten._grouped_mm` of any floating type, group by group; what no group holds is zero.

    Ragged are the rows of x (x 2-d, w 3-d), the columns of w (3-d, 2-d), what is summed (both 2-d), or nothing.
    """
    if offs is None:
        return torch.bmm(x, w)
    bounds = [0, *offs.tolist()]
    parts = [slice(a, b) for a, b in pairwise(bounds)]
    if x.dim() == 2 and w.dim() == 2:
        return torch.stack([x[:, p] @ w[p] for p in parts])
    if x.dim() == 2:
        out = x.new_zeros(x.shape[0], w.shape[-1])
        for e, p in enumerate(parts):
            out[p] = x[p] @ w[e]
        return out
    out = x.new_zeros(x.shape[1], w.shape[-1])
    for e, p in enumerate(parts):
        out[:, p] = x[e] @ w[:, p]
    return out


def scaled_product(
    x: torch.Tensor, w: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor, bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`aten._scaled_mm` of any floating type, with scales of tensors, or of rows of x and columns of w.

    UnsupportedError for scales of blocks.
    """
    for scale, lines in ((scale_x, x.shape[0]), (scale_w, w.shape[1])):
        if scale.numel() not in (1, lines):
            raise UnsupportedError("aten._scaled_mm with scales of blocks has no float64 value here", _SCALES)
    result = x @ w * scale_x * scale_w
    if bias is not None:
        result = result + bias
    return result if scale_result is None else result * scale_result


_SCALES: Final = "give a scale for each tensor, or for each row of x and column of w"
# What stands for operations that PyTorch does not have in float64.
WIDENED: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "aten._grouped_mm.default": grouped_product, "aten._scaled_mm.default": scaled_product,
}  # fmt: skip


def _value(arg: object, values: Iterator[torch.Tensor], sizes: Mapping[str, int], widen: torch.dtype | None) -> Any:
    """A Torch IR argument as PyTorch takes it.  No ATen string argument spells an element type of ours."""
    if isinstance(arg, Ref):
        return next(values)
    if isinstance(arg, tuple):
        return [_value(a, values, sizes, widen) for a in arg]
    if isinstance(arg, Expr):
        return evaluate(arg, sizes)
    if isinstance(arg, str) and arg in TORCH:
        return widen if widen is not None and DTYPES[arg].kind == "float" else TORCH[arg]
    return arg


def _widen_defaults(node: Node, names: set[str], kwargs: dict[str, Any], widen: torch.dtype, has_tensors: bool) -> None:
    """Defaults that follow the element type: a factory's result type, and RMSNorm's eps."""
    floating = DTYPES[node.results[0].dtype].kind == "float"
    if "dtype" in names and "dtype" not in kwargs and not has_tensors and floating:
        kwargs["dtype"] = widen
    if node.op == "aten.rms_norm.default" and "eps" not in kwargs and (len(node.args) < 4 or node.args[3] is None):
        kwargs["eps"] = rms_norm_eps(node.results[0].dtype)


def rms_norm_eps(dtype: str) -> float:
    """`eps` of `aten.rms_norm` where the program gives none: the spacing around 1 of the type that it computes in."""
    return DTYPES[register(dtype)].epsilon
