"""Values of Kernel IR: what a thread computes in registers.  No value reads memory and none has an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emmy.ir.dtype import DTYPES

BYTES: Final[dict[str, int]] = {**{d.name: d.bytes for d in DTYPES.values()}, "u32": 4, "u64": 8}
# Words beyond the scalar vocabulary of emmy.ir.scalar: name -> result type.
INTRINSICS: Final[dict[str, str]] = {
    "pack_bf16x2": "u32",  # (f32 low, f32 high), each rounded to nearest even
    "pack_f16x2": "u32",
    "join16": "u32",  # (16 raw bits low, 16 raw bits high)
    "unpack_bf16_low": "f32",  # (u32)
    "unpack_bf16_high": "f32",
    "unpack_f16_low": "f32",
    "unpack_f16_high": "f32",
    "bits_of_f32": "u32",  # the same 32 bits as an integer, and back
    "f32_of_bits": "f32",
    "fma": "f32",  # a * b + c in one rounding
    "exp2_fast": "f32",  # ex2.approx.ftz: 2 ulp, denormal results are flushed
    "exp_fast": "f32",  # by ex2.approx: off by 2^-17 of the value at most, for arguments up to 88
    "sigmoid_fast": "f32",  # 1 / (1 + exp_fast(-x)) by rcp.approx
    "round_bf16": "f32",  # f32 -> the nearest value that bf16 has
    "round_f16": "f32",
    "round_f8e4m3": "f32",
    "round_f8e5m2": "f32",
    "round_tf32": "f32",  # to 10 bits of mantissa, ties away from zero (cvt.rna.tf32)
    "floordiv_index": "same",  # floor division and remainder of integers by a positive divisor
    "floormod_index": "same",
    "clock": "i64",
}
BUILTINS: Final = ("tid", "bid_x", "bid_y", "bid_z", "grid_x", "cluster_rank")


@dataclass(frozen=True, slots=True)
class Lit:
    """A number.  NaN equals NaN, so that a kernel equals itself."""

    value: int | float | bool
    type: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lit) or self.type != other.type:
            return False
        return self.value == other.value or (self.value != self.value and other.value != other.value)

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.type))


@dataclass(frozen=True, slots=True)
class Var:
    """A register (or, for `Declare(count=n)`, a register array; `type` is the element's)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Elem:
    """Element of a register array.  The index is constant once loops are unrolled, or the array leaves registers."""

    array: str
    index: X
    type: str


@dataclass(frozen=True, slots=True)
class Builtin:
    """`tid` (thread in the block), `bid_x`, `bid_y`, `bid_z`, `grid_x`, `cluster_rank` (of the block): all i32."""

    name: str

    @property
    def type(self) -> str:
        return "i32"


@dataclass(frozen=True, slots=True)
class Bin:
    """C operators: + - * / % << >> & | ^ < <= > >= == != && ||.  `/` truncates on integers."""

    op: str
    a: X
    b: X
    type: str


@dataclass(frozen=True, slots=True)
class Un:
    """C operators: - ! ~."""

    op: str
    a: X
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: tuple[X, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Convert:
    a: X
    type: str


@dataclass(frozen=True, slots=True)
class Select:
    """Both sides are evaluated; use `If` where one side reads memory that may not be there."""

    cond: X
    yes: X
    no: X
    type: str


X = Lit | Var | Elem | Builtin | Bin | Un | Call | Convert | Select
Target = Var | Elem
