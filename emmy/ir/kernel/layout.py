"""What follows from a buffer's layout: element offsets, the swizzle span, wgmma descriptors, the box of a tensor map.

Sources: PTX ISA manual, "Asynchronous warpgroup level matrix shared memory layout" and "Tensor swizzling modes".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emmy.ir.kernel.memory import Buffer, Layout, Matrix
from emmy.ir.kernel.values import BYTES

Index = NDArray[np.int64]
SPANS = {128: 1, 64: 2, 32: 3}  # bytes -> swizzle code of a wgmma descriptor


def swizzle_of(span: int) -> Layout:
    """The layout of rows of `span` bytes (128, 64, 32) that TMA writes and wgmma reads."""
    return Layout(swizzle=span // 16, shift={128: 0, 64: 1, 32: 2}[span])


def element_offset(buffer: Buffer, index: Sequence[Index | int]) -> Index:
    """Elements from the buffer's start to an element, swizzle and pad included; arrays broadcast."""
    linear = plain_offset(buffer, index)
    swizzle = buffer.layout.swizzle
    if not swizzle:
        return linear
    row = np.asarray(index[-2] if len(index) > 1 else 0)
    chunk = 16 // BYTES[buffer.type]
    mask = (row >> buffer.layout.shift) & (swizzle - 1)
    column = np.asarray(index[-1])
    at: Index = linear - column + ((column // chunk) ^ mask) * chunk + column % chunk
    return at


def plain_offset(buffer: Buffer, index: Sequence[Index | int]) -> Index:
    """Elements from the buffer's start without the swizzle: where a descriptor or a box starts."""
    total = np.zeros((), np.int64)
    for i, stride in zip(index, buffer.strides, strict=True):
        total = total + np.asarray(i, np.int64) * stride
    return total


def span(buffer: Buffer) -> int:
    """Bytes of the hardware's swizzle that the buffer's layout is (128, 64, 32), 0 where it is none of them."""
    bytes = buffer.shape[-1] * BYTES[buffer.type]
    rows = buffer.shape[-2] if len(buffer.shape) > 1 else 1
    fits = bytes in SPANS and buffer.layout == swizzle_of(bytes) and rows % 8 == 0 and buffer.align % (8 * bytes) == 0
    return bytes if fits else 0


def descriptor_fields(buffer: Buffer, matrix: Matrix) -> int:
    """The 64-bit wgmma descriptor without its start address (bits 0-13, in units of 16 bytes).

    Stride offset (bits 32-45): from eight rows to the next.  Leading offset (16-29): k-major unused; mn-major from one
    block of columns to the next.  Swizzle: bits 62-63.
    """
    s = span(buffer)
    leading = 1 if matrix.major == "k" else buffer.shape[-2] * s >> 4
    return SPANS[s] << 62 | (8 * s >> 4) << 32 | leading << 16
