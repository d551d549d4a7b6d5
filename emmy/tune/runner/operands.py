"""The content of operands: the same bytes in every process, from a description or from a file."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from .manifest import DTYPES, BadPacket

Json = dict[str, Any]


def fill(buffer: Json, seed: int) -> np.ndarray[Any, Any]:
    """The bytes of an operand, the same in every process."""
    f, dtype, count = buffer.get("fill", {"kind": "zeros"}), buffer["dtype"], buffer["count"]
    size, code, _ = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    # a prime period, so that no two rows or tiles of an operand are equal
    some = min(count, 1_000_003)
    if f["kind"] == "data":
        data = np.frombuffer(base64.b64decode(f["base64"]), np.uint8)
        if data.nbytes != count * size:
            raise BadPacket(f"buffer {buffer['name']} takes {count * size} bytes, its data has {data.nbytes}")
        return data
    if f["kind"] == "zeros":
        return np.zeros(count * size, np.uint8)
    if f["kind"] == "integers":
        block = rng.integers(f["low"], f["high"], some, endpoint=True, dtype=np.int64)
        block = block.astype({6: "i8", 7: "i4", 8: "i2", 9: "i1", 10: "u1", 11: "u1"}.get(code, "i8"))
    elif code in (3, 4):  # bytes whose exponent is small
        block = rng.integers(0, 0x3C if code == 3 else 0x3E, some, dtype=np.uint8) | (
            np.uint8(0) if f.get("positive") else rng.integers(0, 2, some, dtype=np.uint8) << np.uint8(7)
        )
    else:
        real = rng.standard_normal(some) * f["std"] + f["mean"]
        real = np.abs(real) + 0.1 if f.get("positive") else real
        block = _stored(real, dtype)
    return np.resize(block.view(np.uint8), count * size)


def _stored(real: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bf16":
        bits = real.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return real.astype({"f64": np.float64, "f16": np.float16}.get(dtype, np.float32))
