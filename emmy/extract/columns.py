"""Kernel configs as arrays, one a field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from emmy.ir.config import KernelConfig

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Columns:
    """The configs' fields as float arrays."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        self.family = np.array([c.family for c in configs])
        names = [f.name for f in fields(KernelConfig) if f.name != "family"]
        values = np.array(list(map(attrgetter(*names), configs)), np.float64).reshape(len(configs), len(names))
        for name, column in zip(names, values.T, strict=True):
            setattr(self, name, column.copy())

    block_threads: Array
    blocks: Array
    tile_m: Array
    tile_n: Array
    tile_k: Array
    vector: Array
    stages: Array
    smem: Array
    registers: Array
    rows_per_block: Array
    reduce_threads: Array
    splits: Array
    run: Array
    flight: Array
    held: Array
    direct: Array
    hold_m: Array
    hold_n: Array
    group: Array
    persist: Array
    turns: Array
    shares: Array
    staged: Array
    swapped: Array
    bits: Array
    exchange: Array
    stream: Array
    apart: Array

    def of(self, *families: str) -> Mask:
        return np.isin(self.family, families)
