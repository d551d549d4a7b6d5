"""Numbers as registers hold them: numpy types, wrapping, and conversions as CUDA does them.

A value that all threads share is a Python int or bool, or a numpy float; any other is an array with an element a
thread.  bf16, f16 and f8 are their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

Value = Any  # int, bool, np.floating or an array with one element a thread
Array = npt.NDArray[Any]

NUMPY: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(t)
    for name, t in {
        "f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8,
        "u8": np.uint8, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_, "bf16": np.uint16, "f16": np.uint16,
        "f8e4m3": np.uint8, "f8e5m2": np.uint8,
    }.items()
}  # fmt: skip
RAW: Final[dict[str, np.dtype[Any]]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
FLOATS: Final = ("f32", "f64")


def memory_type(type: str) -> np.dtype[Any]:
    """How elements lie in memory: bool is a byte, which may hold anything."""
    return np.dtype(np.uint8) if type == "bool" else NUMPY[type]


_NAN: Final = {"bf16": 0x7FFF, "f16": 0x7FFF, "f8e4m3": 0x7F, "f8e5m2": 0x7F}
_SIGNED: Final = {"i64": 64, "i32": 32, "i16": 16, "i8": 8}
_UNSIGNED: Final = {"u64": 64, "u32": 32, "u8": 8, "bf16": 16, "f16": 16, "f8e4m3": 8, "f8e5m2": 8}
_RANK: Final = {"i32": 0, "u32": 1, "i64": 2, "u64": 3}


def wrap(value: int, type: str) -> int:
    """A Python integer as the integer type holds it."""
    if type in _SIGNED:
        half = 1 << (_SIGNED[type] - 1)
        return value if -half <= value < half else ((value + half) & (2 * half - 1)) - half
    return value & ((1 << _UNSIGNED[type]) - 1)


def uniform(value: Any, type: str) -> Value:
    """A number as the value of that type that all threads share."""
    if type == "bool":
        return bool(value)
    if type in FLOATS:
        with np.errstate(all="ignore"):
            return NUMPY[type].type(value)
    return wrap(int(value), type)


def tidy(value: Any, type: str) -> Value:
    """The result of a numpy function as a value of that type."""
    value = np.asarray(value)
    if value.ndim:
        return value if value.dtype == NUMPY[type] else value.astype(NUMPY[type])
    return uniform(value[()], type)


def spread(value: Value, n: int, type: str) -> Array:
    """An element a thread."""
    if isinstance(value, np.ndarray):
        return value
    return np.full(n, value, NUMPY[type])


def merge(mask: Array, new: Value, old: Value, type: str) -> Array:
    """`new` where the mask is set."""
    t = NUMPY[type].type
    return np.where(
        mask, new if isinstance(new, np.ndarray) else t(new), old if isinstance(old, np.ndarray) else t(old)
    )


def promoted(a: str, b: str) -> str:
    """C's common type of two operands."""
    if a == b == "bool":
        return "bool"
    for t in ("f64", "f32"):
        if t in (a, b):
            return t
    return max((t if t in _RANK else "i32" for t in (a, b)), key=lambda t: _RANK[t])


def to_f32(bits: Value, type: str) -> Value:
    """Raw bits of a narrow float as f32, exactly."""
    if type == "bf16":
        if isinstance(bits, np.ndarray):
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return np.uint32(bits << 16).view(np.float32)
    narrow = np.asarray(bits, NUMPY[type]).view(RAW[type]).astype(np.float32)
    return narrow if narrow.ndim else narrow[()]


def from_f32(value: Value, type: str) -> Value:
    """f32 rounded to nearest even, as raw bits; NaN is one pattern."""
    wide = np.asarray(value, np.float32)
    bits = wide.astype(RAW[type]).view(NUMPY[type])
    nan = np.isnan(wide)
    if nan.any():
        bits = np.where(nan, NUMPY[type].type(_NAN[type]), bits)
    return bits if bits.ndim else int(bits)


def _to_integer(value: Value, new: str) -> Value:
    """cvt.rzi: saturates; NaN is 0 (the lowest number of 64 bits)."""
    via = "i32" if new in ("i8", "u8", "i16") else new
    info = np.iinfo(NUMPY[via])
    wide = np.asarray(value, np.float64)
    out = np.where(wide >= float(info.max), info.max, 0).astype(NUMPY[via])
    low = wide <= float(info.min)
    middle = (wide < float(info.max)) & ~low & ~np.isnan(wide)
    out = np.where(middle, np.where(middle, wide, 0).astype(NUMPY[via]), np.where(low, NUMPY[via].type(info.min), out))
    if via == "i64":
        out = np.where(np.isnan(wide), NUMPY[via].type(info.min), out)
    return tidy(out.astype(NUMPY[new]), new)


def convert(value: Value, old: str, new: str) -> Value:
    """What `Convert` prints: a C cast, or a rounding to or from raw bits."""
    if old == new:
        return value
    if old in RAW:
        return convert(to_f32(value, old), "f32", new)
    if new in RAW:
        return from_f32(value if old == "f32" else convert(value, old, "f32"), new)
    if new == "bool":
        return value != 0 if isinstance(value, np.ndarray) else bool(value != 0)
    if old in FLOATS and new not in FLOATS:
        return _to_integer(value, new)
    if isinstance(value, np.ndarray):
        return value.astype(NUMPY[new])
    return uniform(value, new)


def bits_of(value: Value, old: str, new: str) -> Value:
    """The same bits as another type of the same width."""
    out = np.asarray(value, NUMPY[old]).view(NUMPY[new])
    return out if out.ndim else uniform(out[()], new)


def round_tf32(value: Value) -> Value:
    """To 10 bits of mantissa, ties away from zero."""
    bits = np.asarray(value, np.float32).view(np.uint32)
    kept = np.where(bits & 0x7F800000 == 0x7F800000, bits, (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000))
    out = kept.astype(np.uint32).view(np.float32)
    return out if out.ndim else out[()]


def nearest_tf32(x: Array) -> Array:
    """f32 to 10 bits of mantissa, ties to even, as TMA rounds."""
    bits = x.view(np.uint32)
    nearest = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(bits & 0x7F800000 == 0x7F800000, bits, nearest).astype(np.uint32).view(np.float32)


Function = Callable[..., Value]


def _pack(type: str) -> Function:
    def pack(low: Value, high: Value) -> Value:
        return _join16(from_f32(low, type), from_f32(high, type))

    return pack


def _join16(low: Value, high: Value) -> Value:
    return tidy(np.asarray(low).astype(np.uint32) | np.asarray(high).astype(np.uint32) << np.uint32(16), "u32")


def _half(type: str, shift: int) -> Function:
    return lambda x: to_f32(tidy((np.asarray(x, np.uint32) >> np.uint32(shift)).astype(np.uint16), type), type)


def _rounding(type: str) -> Function:
    return lambda x: to_f32(from_f32(x, type), type)


def _fma(a: Value, b: Value, c: Value) -> Value:
    """The product of two f32 is exact in f64, so only the sum is rounded twice."""
    return tidy(np.asarray(a, np.float64) * b + c, "f32")


def _exp2_fast(x: Value) -> Value:
    y = np.exp2(np.asarray(x, np.float32))
    return tidy(np.where(np.abs(y) < np.float32(2.0**-126), np.float32(0), y), "f32")


def _exp_fast(x: Value) -> Value:
    return tidy(np.exp2(np.asarray(x, np.float32) * np.float32(1.4426950408889634)), "f32")


def _sigmoid_fast(x: Value) -> Value:
    power = _exp2_fast(np.asarray(x, np.float32) * np.float32(-1.4426950408889634))
    return tidy(np.float32(1) / (np.float32(1) + power), "f32")


INTRINSIC: Final[dict[str, Function]] = {
    "pack_bf16x2": _pack("bf16"),
    "pack_f16x2": _pack("f16"),
    "join16": _join16,
    "unpack_bf16_low": _half("bf16", 0),
    "unpack_bf16_high": _half("bf16", 16),
    "unpack_f16_low": _half("f16", 0),
    "unpack_f16_high": _half("f16", 16),
    "bits_of_f32": lambda x: bits_of(x, "f32", "u32"),
    "f32_of_bits": lambda x: bits_of(x, "u32", "f32"),
    "fma": _fma,
    "exp2_fast": _exp2_fast,
    "exp_fast": _exp_fast,
    "sigmoid_fast": _sigmoid_fast,
    "round_bf16": _rounding("bf16"),
    "round_f16": _rounding("f16"),
    "round_f8e4m3": _rounding("f8e4m3"),
    "round_f8e5m2": _rounding("f8e5m2"),
    "round_tf32": round_tf32,
}
