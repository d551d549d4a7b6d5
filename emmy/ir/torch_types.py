"""Element types as PyTorch has them.  Apart from `emmy.ir.dtype`, since this imports torch."""

from __future__ import annotations

from typing import Final

import torch

TORCH: Final[dict[str, torch.dtype]] = {
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
NAMES: Final[dict[torch.dtype, str]] = {t: name for name, t in TORCH.items()}
