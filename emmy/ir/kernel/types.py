"""The types of values that follow from their parts, so that the text of a kernel need not say them.

A literal takes the type that its place asks for (`want`), else the one that its form says: `3` i32, `0.5` f32, `true`
bool.  Beside another operand it takes that one's type.  Every other value has the type of its operation on those of its
operands.  Only what differs from this has its type as a suffix: `3_i64`, `(a + b)_i64`, `exp(a)_f16`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from emmy.ir.dtype import DTYPES, register
from emmy.ir.kernel.values import BYTES, INTRINSICS, Bin, Call, Convert, Lit, Select, Un, X
from emmy.ir.scalar import SCALAR

COMPARE: Final = ("<", "<=", ">", ">=", "==", "!=")
LOGIC: Final = ("&&", "||")
SHIFT: Final = ("<<", ">>")
OPERATORS: Final = ("+", "-", "*", "/", "%", "&", "|", "^", *SHIFT, *COMPARE, *LOGIC)
_RANK: Final = ("i8", "u8", "i16", "i32", "u32", "i64", "u64")
_WORDS: Final = ("unpack_bf16_low", "unpack_bf16_high", "unpack_f16_low", "unpack_f16_high", "f32_of_bits")
_ANY: Final = ("join16", "floordiv_index", "floormod_index")


def loaded(type: str) -> str:
    """The register type of an element in memory."""
    return register(type) if type in DTYPES else type


def is_float(type: str) -> bool:
    return type in DTYPES and DTYPES[type].kind == "float"


def promoted(types: Sequence[str]) -> str:
    """The widest of integer types, else the first."""
    if all(t in _RANK for t in types):
        return max(types, key=_RANK.index)
    return types[0]


def literal_type(value: int | float | bool, want: str | None) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return want if want is not None and is_float(want) else "f32"
    return want or "i32"


def literal_only(v: X) -> bool:
    """Whether nothing but its place says what type the value has (a type that it has as a suffix does not matter)."""
    if isinstance(v, Lit):
        return True
    if isinstance(v, Un):
        return v.op != "!" and literal_only(v.a)
    if isinstance(v, Select):
        return literal_only(v.yes) and literal_only(v.no)
    if not isinstance(v, Bin) or v.op in COMPARE or v.op in LOGIC:
        return False
    return literal_only(v.a) and (v.op in SHIFT or literal_only(v.b))


def operands(v: X) -> tuple[X, ...]:
    """The values that an operation is applied to (none for what names a register)."""
    if isinstance(v, Bin):
        return v.a, v.b
    if isinstance(v, Un | Convert):
        return (v.a,)
    if isinstance(v, Select):
        return v.cond, v.yes, v.no
    return v.args if isinstance(v, Call) else ()


def with_operands(v: X, parts: Sequence[X]) -> X:
    if isinstance(v, Bin):
        return replace(v, a=parts[0], b=parts[1])
    if isinstance(v, Un | Convert):
        return replace(v, a=parts[0])
    if isinstance(v, Select):
        return replace(v, cond=parts[0], yes=parts[1], no=parts[2])
    return replace(v, args=tuple(parts)) if isinstance(v, Call) else v


def wants(v: X, want: str | None) -> tuple[str | None, ...]:
    """What an operation asks of each operand; those that are not `literal_only` have their types."""
    parts = operands(v)
    if isinstance(v, Bin) and v.op in SHIFT:
        return want, "i32"
    if (isinstance(v, Bin) and v.op in LOGIC) or (isinstance(v, Un) and v.op == "!"):
        return ("bool",) * len(parts)
    if isinstance(v, Bin):
        return _together(parts, None if v.op in COMPARE else want)
    if isinstance(v, Select):
        return "bool", *_together(parts[1:], want)
    if isinstance(v, Call):
        return _together(parts, _argument(v.name))
    return (want,) if isinstance(v, Un) else (None,)


def _together(parts: Sequence[X], want: str | None) -> tuple[str | None, ...]:
    """Literals beside other operands take the type of the first of them."""
    known = next((p.type for p in parts if not literal_only(p)), want)
    return (known,) * len(parts)


def _argument(word: str) -> str | None:
    if word in INTRINSICS:
        return "u32" if word in _WORDS else None if word in _ANY else "f32"
    return "f32" if word in SCALAR and SCALAR[word].result == "float" else None


def natural(v: X) -> str:
    """The type that follows from an operation and the types of its operands."""
    if isinstance(v, Bin):
        if v.op in COMPARE or v.op in LOGIC:
            return "bool"
        return v.a.type if v.op in SHIFT else promoted((v.a.type, v.b.type))
    if isinstance(v, Un):
        return "bool" if v.op == "!" else v.a.type
    if isinstance(v, Select):
        return promoted((v.yes.type, v.no.type))
    if not isinstance(v, Call):
        return v.type
    types = [a.type for a in v.args]
    result = INTRINSICS[v.name] if v.name in INTRINSICS else SCALAR[v.name].result if v.name in SCALAR else "same"
    if result in BYTES:
        return result
    if result == "float":
        return "f64" if "f64" in types else "f32"
    return promoted(types) if types else "f32"


__all__ = [
    "COMPARE", "LOGIC", "OPERATORS", "SHIFT", "is_float", "literal_only", "literal_type", "loaded", "natural",
    "operands", "promoted", "wants", "with_operands",
]  # fmt: skip
