"""Which element of a matrix each register of each lane holds, as the PTX ISA manual draws it.

Every map is a pair of integer arrays (row, column) of shape [lanes, registers, elements a register]; 32 lanes for a
warp's mma.sync, 128 for a warpgroup's wgmma.  Sections "Matrix fragments for mma.m16n8k16 / k8 / k32" and "Register
fragments for wgmma.mma_async".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Map = tuple[NDArray[np.int64], NDArray[np.int64]]
PER_REGISTER: Final = {"bf16": 2, "f16": 2, "tf32": 1, "f8e4m3": 4, "f8e5m2": 4, "i8": 4}  # elements of 32 bits


def _axes(lanes: int, registers: int, elements: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    lane, register, element = np.meshgrid(np.arange(lanes), np.arange(registers), np.arange(elements), indexing="ij")
    return lane, register, element


def factor_a(type: str, lanes: int = 32) -> Map:
    """Left factor, [16 or, with 128 lanes, 64 rows][k]: four registers."""
    per = PER_REGISTER[type]
    lane, i, e = _axes(lanes, 4, per)
    row = 16 * (lane // 32) + lane % 32 // 4 + 8 * (i % 2)
    return row, 4 * per * (i // 2) + per * (lane % 4) + e


def factor_b(type: str) -> Map:
    """Right factor of mma.sync, [k][8]: two registers."""
    per = PER_REGISTER[type]
    lane, i, e = _axes(32, 2, per)
    return 4 * per * i + per * (lane % 4) + e, lane // 4


def accumulator(n: int = 8, lanes: int = 32) -> Map:
    """Result, [16 or, with 128 lanes, 64 rows][n]: n/2 registers of one element."""
    lane, i, _ = _axes(lanes, n // 2, 1)
    row = 16 * (lane // 32) + lane % 32 // 4 + 8 * (i // 2 % 2)
    return row, 8 * (i // 4) + 2 * (lane % 4) + i % 2


def ldmatrix(count: int, trans: bool) -> Map:
    """ldmatrix and stmatrix: [32, count, 2] -> (the lane that gives the row's address, element of the row)."""
    lane, i, e = _axes(32, count, 2)
    row, column = lane // 4, 2 * (lane % 4) + e
    return (8 * i + column, row) if trans else (8 * i + row, column)
