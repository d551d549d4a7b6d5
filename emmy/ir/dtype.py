"""Element types: how a value is stored, and how it is held in a register.

A tensor is *stored* in one of twelve types.  Arithmetic on every floating type happens in `f32` registers (rounding
happens only where a value is stored or cast by the user); integers keep their own width, so that overflow wraps as in
PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["float", "int", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """One storage type.  `bits` is the storage width; `mantissa` counts stored mantissa bits (floats only)."""

    name: str
    kind: Kind
    bits: int
    mantissa: int = 0

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def epsilon(self) -> float:
        """Relative spacing of the type around 1 (0 for integers and bool)."""
        return 2.0**-self.mantissa if self.kind == "float" else 0.0


DTYPES: Final[dict[str, DType]] = {
    d.name: d
    for d in (
        DType("f32", "float", 32, 23),
        DType("f16", "float", 16, 10),
        DType("bf16", "float", 16, 7),
        DType("f8e4m3", "float", 8, 3),
        DType("f8e5m2", "float", 8, 2),
        DType("f64", "float", 64, 52),
        DType("i64", "int", 64),
        DType("i32", "int", 32),
        DType("i16", "int", 16),
        DType("i8", "int", 8),
        DType("u8", "int", 8),
        DType("bool", "bool", 8),
    )
}


def dtype(name: str) -> DType:
    """The type of that name; KeyError for a name that is no type."""
    return DTYPES[name]


def stored_as(factor: str) -> str:
    """The type in which factors of a matrix instruction lie in memory: tf32 is f32 whose low bits it ignores."""
    return "f32" if factor == "tf32" else factor


def is_float(name: str) -> bool:
    return DTYPES[name].kind == "float"


def register(name: str) -> str:
    """The register type of a storage type: `f32` for every float of 32 bits or fewer, itself otherwise."""
    d = DTYPES[name]
    return "f32" if d.kind == "float" and d.bits <= 32 else name
