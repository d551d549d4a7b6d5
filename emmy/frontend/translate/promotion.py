"""PyTorch's type promotion over our type names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from emmy.ir.dtype import DTYPES, is_float

Category = Literal["bool", "int", "float"]
DEFAULT: Final = "f32"
HALF: Final = ("f16", "bf16")
_SIGNED: Final = ("i8", "i16", "i32", "i64")
_FLOATS: Final = ("f8e5m2", "f8e4m3", "f16", "bf16", "f32", "f64")
_RANK: Final[dict[Category, int]] = {"bool": 0, "int": 1, "float": 2}
_NUMBER: Final[dict[Category, str]] = {"bool": "bool", "int": "i64", "float": DEFAULT}


def category(dtype: str) -> Category:
    return DTYPES[dtype].kind


def promote(a: str, b: str) -> str:
    """`torch.promote_types`: the narrowest type that holds both; u8 with a signed type is at least i16."""
    if a == b:
        return a
    if is_float(a) and is_float(b):
        return "f32" if {a, b} == {"f16", "bf16"} else max(a, b, key=_FLOATS.index)
    if is_float(a) or is_float(b):
        return a if is_float(a) else b
    if "bool" in (a, b):
        return b if a == "bool" else a
    if "u8" in (a, b):
        other = b if a == "u8" else a
        return "i16" if other == "i8" else other
    return max(a, b, key=_SIGNED.index)


def promote_all(types: Sequence[str]) -> str | None:
    out: str | None = None
    for name in types:
        out = name if out is None else promote(out, name)
    return out


def result_type(dims: Sequence[str], zeros: Sequence[str], numbers: Sequence[Category]) -> str:
    """Type of an operation on tensors with dimensions, 0-d tensors and Python numbers.

    A group counts only where its category (bool < int < float) is above that of the groups before it.
    """
    best = promote_all(dims)
    zero = promote_all(zeros)
    if zero is not None and (best is None or _RANK[category(zero)] > _RANK[category(best)]):
        best = zero if best is None else promote(best, zero)
    top = max(numbers, key=_RANK.__getitem__, default=None)
    if top is not None and (best is None or _RANK[top] > _RANK[category(best)]):
        best = _NUMBER[top] if best is None else promote(best, _NUMBER[top])
    return best or DEFAULT
