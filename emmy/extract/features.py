"""What a learned prior sees of a row: numbers of the body's work, of the schedule, and of the analytic prior's terms.

One line of `NAMES` a row, all computed without building anything.  Sizes are logarithms to base 2, so that a split
means the same for small and large bodies; terms are logarithms of their share of the analytic prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from emmy.extract.columns import Columns
from emmy.extract.kinds import kinds
from emmy.extract.prior import terms_many
from emmy.extract.work import Dot, Work
from emmy.ir.config import KernelConfig
from emmy.ir.target import Target

Array = npt.NDArray[np.float64]

FAMILIES: Final = ("map", "row", "plain", "tile", "mma", "wgmma", "attention", "scan", "split")
_SHARES: Final = (
    "memory", "cache", "scattered", "tensor", "scalar", "shared", "started", "roofs", "waited", "serial",
)  # fmt: skip
_COUNTS: Final = ("steps", "waves", "resident", "warps", "active", "quantized")
_SIZES: Final = (
    "block_threads", "blocks", "tile_m", "tile_n", "tile_k", "vector", "stages", "smem", "registers", "rows_per_block",
    "reduce_threads", "splits", "run", "flight", "hold_m", "hold_n", "group", "shares",
    "exchange", "bits",
)  # fmt: skip
_FLAGS: Final = ("held", "direct", "persist", "turns", "staged", "swapped", "stream", "apart")
_WORK: Final = (
    "bytes", "stored", "tensor_flops", "scalar_flops", "slots", "points", "rows", "fold_length", "depth", "levels",
    "element", "operands", "dots", "m", "n", "k", "batch", "intensity", "floor", "strided", "strided_store", "rescales",
    "deviates",
)  # fmt: skip
_SHAPE: Final = (
    "padding", "tail", "blocks_sm", "output_block", "k_block", "bytes_thread", "registers_sm", "smem_sm", "reread",
    "excess", "alone",
)  # fmt: skip
NAMES: Final[tuple[str, ...]] = (
    "prediction", *(f"term_{n}" for n in _SHARES), *(f"count_{n}" for n in _COUNTS), *(f"config_{n}" for n in _SIZES),
    *(f"config_{n}" for n in _FLAGS), *(f"work_{n}" for n in _WORK), *(f"shape_{n}" for n in _SHAPE),
    *(f"is_{n}" for n in FAMILIES),
)  # fmt: skip
TINY: Final = 1e-12


@dataclass(frozen=True)
class Featured:
    """`matrix` [rows, NAMES]; the analytic prior's `seconds` of each; `floor` seconds that no row can beat.

    `family` and kind (`emmy.extract.kinds`) of each row.
    """

    matrix: Array
    seconds: Array
    floor: float
    family: npt.NDArray[np.str_]
    kind: npt.NDArray[np.str_]


def features(work: Work, configs: Sequence[KernelConfig], target: Target, floor: float) -> Featured:
    """Features of rows of one body, in one pass; `floor` is its roofline, in seconds."""
    terms, c = terms_many(work, configs, target)
    seconds = terms["seconds"]
    columns: list[Array | float] = [_log(seconds / floor)]
    columns += [np.log2(np.maximum(terms[n], 0.0) / seconds + 1e-3) for n in _SHARES]
    columns += [_log(terms[n]) for n in _COUNTS]
    columns += [_log(1.0 + getattr(c, n)) for n in _SIZES]
    columns += [getattr(c, n) for n in _FLAGS]
    columns += _of_work(work, target, floor)
    columns += _shape(work, c, target, terms)
    columns += [(c.family == n).astype(np.float64) for n in FAMILIES]
    matrix = np.empty((len(seconds), len(NAMES)))
    for k, column in enumerate(columns):
        matrix[:, k] = column
    return Featured(np.nan_to_num(matrix, posinf=1e9, neginf=-1e9), seconds, floor, c.family, kinds(c))


def _log(x: Array) -> Array:
    found: Array = np.log2(np.maximum(x, TINY))
    return found


def _main(work: Work) -> Dot | None:
    """The product that schedules tile."""
    return max((d for d in work.dots if d.main), key=lambda d: d.flops, default=None)


def _of_work(w: Work, target: Target, floor: float) -> list[Array | float]:
    d = _main(w)
    m, n, k, batch = (d.m, d.n, d.k, d.batch) if d else (0, 0, 0, 0)
    flops = w.tensor_flops + w.scalar_flops
    sizes = [
        w.bytes, w.stored, w.tensor_flops, w.scalar_flops, sum(w.slots), w.points, w.rows, w.fold_length, w.depth,
        w.levels, w.element, len(w.footprint), len(w.dots), m, n, k, batch, flops / max(1.0, w.bytes),
    ]  # fmt: skip
    logs: list[Array | float] = [float(np.log2(1.0 + x)) for x in sizes]
    logs.append(float(np.log2(floor / target.launch_seconds)))
    strided = sum(r.bytes for r in w.reads if r.strided) / max(1.0, sum(r.bytes for r in w.reads))
    return [*logs, strided, float(w.strided_store), float(w.rescales), float(w.deviates)]


def _shape(w: Work, c: Columns, target: Target, terms: dict[str, Array]) -> list[Array | float]:
    d = _main(w)
    m, n, k = (d.m, d.n, d.k) if d else (1, 1, 1)
    padding = np.ceil(m / c.tile_m) * c.tile_m / m * np.ceil(n / c.tile_n) * c.tile_n / n if d else c.blocks * 0.0 + 1.0
    waves = c.blocks / (target.sms * terms["resident"])
    block = np.maximum(1.0, c.blocks)
    return [
        _log(padding),
        np.ceil(waves) / np.maximum(waves, 1e-9) * (waves > 1.0),
        _log(c.blocks / target.sms),
        _log(np.maximum(1.0, w.points) / block),
        _log(np.maximum(1.0, k / np.maximum(1.0, c.splits * c.tile_k))),
        _log(w.bytes / (block * np.maximum(1.0, c.block_threads))),
        c.registers * c.block_threads * terms["resident"] / target.registers_sm,
        (c.smem + 1024.0) * terms["resident"] / target.smem_sm,
        _log(terms["through"] / max(1.0, w.bytes)),
        _log(terms["memory_bytes"] / max(1.0, w.bytes)),
        _log(1.0 + terms["alone"]),
    ]
