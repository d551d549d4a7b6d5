"""PyTorch tensors as the runtime sees them.  Only modules that launch import this, since it imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from emmy.errors import InputError
from emmy.ir.dtype import DTYPES
from emmy.ir.torch_types import NAMES, TORCH

# the widest vector access of a kernel; allocations are aligned to more, views into them may not be
_ALIGNED: Final = 16


def accept(value: object, dtype: str, device: torch.device, what: str) -> Tensor:
    """`value` as an operand; InputError where it is no tensor, or one of another type or device."""
    if not isinstance(value, Tensor):
        raise InputError(f"{what}: expected a tensor, found {type(value).__name__}")
    if value.dtype != TORCH[dtype]:
        found = NAMES.get(value.dtype, str(value.dtype))
        raise InputError(f"{what}: expected dtype {dtype}, found {found}", "convert it, or compile for that type")
    if value.device != device:
        raise InputError(f"{what}: expected it on {device}, found {value.device}", f"move it with .to('{device}')")
    return value


def plain(t: Tensor) -> Tensor:
    """`t` itself where kernels can read it in place, else a contiguous and aligned copy."""
    if not t.is_contiguous():
        t = t.contiguous()
    return t if t.data_ptr() % _ALIGNED == 0 else t.clone()


def view(arena: Tensor, offset: int, dtype: str, shape: Sequence[int]) -> Tensor:
    """The bytes of `arena` (u8) from `offset` on as an array."""
    count = DTYPES[dtype].bytes
    for n in shape:
        count *= n
    return arena[offset : offset + count].view(TORCH[dtype]).view(list(shape))


def poison(t: Tensor) -> None:
    """Fill with 0xFF bytes: a NaN in every float type, -1 or the largest value in integers."""
    if t.numel():
        t.reshape(-1).view(torch.uint8).fill_(0xFF)
