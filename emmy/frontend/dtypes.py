"""Between PyTorch's element types and ours."""

from __future__ import annotations

from typing import Final

import torch

from emmy.errors import UnsupportedError

TO_TORCH: Final[dict[str, torch.dtype]] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
FROM_TORCH: Final[dict[torch.dtype, str]] = {v: k for k, v in TO_TORCH.items()}


def dtype_name(dtype: torch.dtype, where: str = "") -> str:
    """Our name of an element type; UnsupportedError (with `where`) for complex, quantized and unsigned wide types."""
    name = FROM_TORCH.get(dtype)
    if name is None:
        place = f" at {where}" if where else ""
        raise UnsupportedError(
            f"tensors of type {str(dtype).removeprefix('torch.')}{place}", f"use one of {', '.join(TO_TORCH)}"
        )
    return name
