"""Values and places of Kernel IR as C++ expressions."""

from __future__ import annotations

from typing import Final

import numpy as np

from emmy.codegen.cuda_scalar import CTYPE, CUDA
from emmy.codegen.expr import add, div, i32, mul, shared_offset
from emmy.ir.kernel import (
    BYTES,
    INTRINSICS,
    Bin,
    Buffer,
    Builtin,
    Call,
    Convert,
    Elem,
    Kernel,
    Lit,
    Place,
    Select,
    Un,
    Var,
    X,
)

# C's precedence, tighter is larger
_LEVEL: Final = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip
UNARY: Final = 11
ATOM: Final = 12
TERNARY: Final = 0
_BUILTIN: Final = {
    "tid": "(int)threadIdx.x", "bid_x": "(int)blockIdx.x", "bid_y": "(int)blockIdx.y", "bid_z": "(int)blockIdx.z",
    "grid_x": "(int)gridDim.x", "cluster_rank": "cluster_rank()",
}  # fmt: skip
_SPELLED: Final = {"fma": "fmaf", "bits_of_f32": "__float_as_uint", "f32_of_bits": "__uint_as_float"}
_RAW: Final = ("bf16", "f16", "f8e4m3", "f8e5m2")


def memory_type(type: str) -> str:
    """C type of an element in memory."""
    return "unsigned char" if type == "bool" else CTYPE[type]


def literal(value: int | float | bool, type: str) -> str:
    if type == "bool":
        return "true" if value else "false"
    if type in ("f32", "f64"):
        return _float(float(value), type)
    n = int(value)
    if type == "i64":
        return "(-9223372036854775807LL - 1)" if n == -(2**63) else f"{n}LL"
    if type in ("u32", "u64"):
        return f"{n}u" if type == "u32" else f"{n}ull"
    return "(-2147483647 - 1)" if n == -(2**31) else str(n)


def _float(value: float, type: str) -> str:
    if value != value:
        return "EMMY_NAN" if type == "f32" else "(double)EMMY_NAN"
    if type == "f32":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))  # beyond the largest f32 it is infinite, as in PyTorch
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + ("EMMY_INF" if type == "f32" else "(double)EMMY_INF")
    text = str(np.float32(value)) if type == "f32" else repr(value)
    if "." not in text and "e" not in text:
        text += ".0"
    return text + ("f" if type == "f32" else "")


class Values:
    """Prints the values and places of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        self.shared: dict[str, Buffer] = {b.name: b for b in kernel.shared}

    # -- values: (text, precedence level)

    def x(self, v: X, least: int = TERNARY) -> str:
        text, level = self.value(v)
        return text if level >= least and not (least > TERNARY and level == TERNARY) else f"({text})"

    def value(self, v: X) -> tuple[str, int]:
        if isinstance(v, Lit):
            text = literal(v.value, v.type)
            return text, UNARY if text.startswith("-") else ATOM
        if isinstance(v, Var):
            return v.name, ATOM
        if isinstance(v, Elem):
            return f"{v.array}[{self.x(v.index)}]", ATOM
        if isinstance(v, Builtin):
            return _BUILTIN[v.name], UNARY
        if isinstance(v, Bin):
            level = _LEVEL[v.op]
            # shifts, bit operators and mixed logic read better with parentheses
            inner = max(level, 9) if v.op in ("<<", ">>", "&", "^", "|") else level
            return f"{self.x(v.a, inner)} {v.op} {self.x(v.b, inner + 1)}", level
        if isinstance(v, Un):
            return f"{v.op}{self.x(v.a, ATOM)}", UNARY
        if isinstance(v, Select):
            return f"{self.x(v.cond, 1)} ? {self.x(v.yes, 1)} : {self.x(v.no, 1)}", TERNARY
        if isinstance(v, Convert):
            return self.converted(v.a, v.type)
        return self.call(v)

    def call(self, v: Call) -> tuple[str, int]:
        if v.name in CUDA:
            t = v.args[-1].type if v.name != "where" else v.type
            # every operand as an atom: spellings need no parentheses of their own
            text = CUDA[v.name]([self.x(a, ATOM) for a in v.args], t)
            return text, ATOM if text.endswith(")") and text.split("(")[0].replace("_", "").isalnum() else TERNARY
        if v.name not in INTRINSICS:
            raise KeyError(f"unknown word {v.name!r}")
        args = ", ".join(self.x(a) for a in v.args)
        if v.name in ("floordiv_index", "floormod_index"):
            stem = "floordiv_int" if v.name == "floordiv_index" else "mod_int"
            return f"{stem}<{CTYPE[v.type]}>({args})", ATOM
        if v.name == "clock":
            return "clock64()", ATOM
        return f"{_SPELLED.get(v.name, v.name)}({args})", ATOM

    def converted(self, v: X, type: str) -> tuple[str, int]:
        return converted(self.x(v), self.x(v, UNARY), v.type, type)

    # -- memory

    def place(self, p: Place) -> str:
        if p.space == "global":
            return f"{p.buffer}[{self.x(p.index[0])}]"
        own = f"{p.buffer}[{self.x(shared_offset(self.shared[p.buffer], p.index))}]"
        return own if p.rank is None else f"*of_block(&{own}, {self.x(p.rank)})"

    def address(self, p: Place) -> str:
        return f"&{self.place(p)}"

    def box(self, p: Place) -> str:
        """Address of a box of TMA: the hardware swizzles what lies in it, so that its start is not swizzled."""
        total: X = i32(0)
        for i, stride in zip(p.index, self.shared[p.buffer].strides, strict=True):
            total = add(total, mul(i, stride))
        return f"&{p.buffer}[{self.x(total)}]"

    def units(self, p: Place) -> str:
        """Where a matrix of wgmma starts in its buffer, in the descriptor's units of 16 bytes, without the swizzle."""
        b = self.shared[p.buffer]
        chunk = 16 // BYTES[b.type]
        total: X = i32(0)
        for i, stride in zip(p.index[:-1], b.strides[:-1], strict=True):
            total = add(total, mul(i, stride // chunk))  # a row is a whole number of units
        return self.x(add(total, _exact(p.index[-1], chunk)))


def _exact(v: X, divisor: int) -> X:
    """A quotient that is known to be exact, without a division where a factor shows it."""
    if isinstance(v, Bin) and v.op == "+" and (_multiple(v.a, divisor) or _multiple(v.b, divisor)):
        return add(_exact(v.a, divisor), _exact(v.b, divisor))
    if isinstance(v, Bin) and v.op == "*" and isinstance(v.b, Lit) and _multiple(v, divisor):
        return mul(v.a, int(v.b.value) // divisor)
    return div(v, divisor)


def _multiple(v: X, divisor: int) -> bool:
    last = v.b if isinstance(v, Bin) and v.op == "*" else v
    return isinstance(last, Lit) and int(last.value) % divisor == 0


def converted(text: str, atom: str, old: str, new: str) -> tuple[str, int]:
    """`text` of type `old` as a value of type `new`; `atom` is the text bound tightly enough for a cast."""
    if old == new:
        return text, ATOM if text == atom else TERNARY
    if old in _RAW:
        return (f"{old}_to_f32({text})", ATOM) if new == "f32" else (f"({CTYPE[new]}){old}_to_f32({text})", UNARY)
    if new in _RAW:
        value = text if old == "f32" else f"(float){atom}"
        return f"f32_to_{new}({value})", ATOM
    if new == "bool":
        return f"{atom} != 0", 6
    if new in ("i8", "u8", "i16") and old in ("f32", "f64"):
        return f"({CTYPE[new]})(int){atom}", UNARY
    return f"({CTYPE[new]}){atom}", UNARY
