"""Values and places of Kernel IR for people.  Types are printed only where they do not follow."""

from __future__ import annotations

import math
from typing import Final

from emmy.ir.kernel.memory import Place
from emmy.ir.kernel.types import is_float, literal_type, natural, operands, wants
from emmy.ir.kernel.values import Bin, Builtin, Convert, Elem, Lit, Select, Un, Var, X

BUILTIN_WORDS: Final = {"tid": "thread.x", "bid_x": "block.x", "bid_y": "block.y", "bid_z": "block.z",
                        "grid_x": "grid.x", "cluster_rank": "cluster.rank"}  # fmt: skip


class ValueText:
    """`tid`: how the thread's number is spelled, `thread.x` in a kernel that has a register of that name."""

    def __init__(self, tid: str = "tid") -> None:
        self.builtins = {**BUILTIN_WORDS, "tid": tid}

    def x(self, v: X, want: str | None = None, inner: bool = False) -> str:
        """`want`: the type that the place of the value asks for; `inner`: in brackets if it is an operation."""
        if isinstance(v, Lit):
            return literal_text(v, want)
        if isinstance(v, Var):
            return v.name
        if isinstance(v, Elem):
            return f"{v.array}[{self.x(v.index, 'i32')}]"
        if isinstance(v, Builtin):
            return self.builtins[v.name]
        suffix = "" if natural(v) == v.type else f"_{v.type}"
        bare = isinstance(v, Bin | Un | Select)
        asked = zip(operands(v), wants(v, want), strict=True)
        parts = [self.x(p, w, inner=bare) for p, w in asked]
        if isinstance(v, Bin):
            text = f"{parts[0]} {v.op} {parts[1]}"
        elif isinstance(v, Un):
            # a minus before a number would be part of it
            text = f"{v.op}({parts[0]})" if isinstance(v.a, Lit) else f"{v.op}{parts[0]}"
        elif isinstance(v, Select):
            text = f"{parts[0]} ? {parts[1]} : {parts[2]}"
        else:
            return f"{v.type if isinstance(v, Convert) else v.name}({', '.join(parts)}){suffix}"
        brackets = suffix or (inner and not isinstance(v, Un))
        return f"({text}){suffix}" if brackets else text

    def all(self, values: tuple[X, ...], want: str | None = None) -> str:
        return ", ".join(self.x(v, want) for v in values)

    def place(self, p: Place) -> str:
        block = "" if p.rank is None else f" of block {self.x(p.rank, 'i32', inner=True)}"
        return f"{p.buffer}[{self.all(p.index, 'i32')}]{block}"

    def guard(self, guard: X | None) -> str:
        return "" if guard is None else f"  where {self.x(guard, 'bool')}"


def literal_text(v: Lit, want: str | None) -> str:
    """A number as short as it can be: whole where it is, with its type only where nothing else says it."""
    if v.type == "bool":
        return "true" if v.value else "false"
    value = v.value
    if isinstance(value, float) and _whole(value):
        short, found = str(int(value)), literal_type(int(value), want)
    else:
        value = value if isinstance(value, float) else int(value)
        short, found = repr(value), literal_type(value, want)
    if found == v.type:
        return short
    if is_float(v.type) and literal_type(float(value), want) == v.type:
        return repr(float(value))
    return f"{short}_{v.type}"


def _whole(value: float) -> bool:
    signed_zero = value == 0 and math.copysign(1, value) < 0
    return math.isfinite(value) and abs(value) < 1e15 and value == int(value) and not signed_zero
