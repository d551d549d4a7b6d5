"""Our names of PyTorch's element types, and what is said of those that have none."""

from __future__ import annotations

import torch

from emmy.errors import UnsupportedError
from emmy.ir.torch_types import NAMES, TORCH


def dtype_name(dtype: torch.dtype, where: str = "") -> str:
    """Our name of an element type; UnsupportedError (with `where`) for complex, quantized and unsigned wide types."""
    name = NAMES.get(dtype)
    if name is None:
        place = f" at {where}" if where else ""
        raise UnsupportedError(
            f"tensors of type {str(dtype).removeprefix('torch.')}{place}", f"use one of {', '.join(TORCH)}"
        )
    return name
