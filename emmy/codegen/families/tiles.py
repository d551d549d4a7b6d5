"""What contraction kernels stage in shared memory: one tile of an operand, and how it gets there.

A tile is `rows` elements of a part's own linear index by `depth` elements of the summed one.  In shared memory it is
[rows][depth] (`layout` k) or [depth][rows] (`layout` own), swizzled or padded; `run` is the side along which global
memory is contiguous.  Three transports:

- async: the part is a plain load; every 16-byte chunk is one cp.async, zeros where it lies outside;
- sync: raw chunks are read into registers early, the part's arithmetic is done and the result stored to shared memory
  late, so that the reads overlap the products in between;
- tma: the part is a plain load, and one thread asks for boxes of it (see `boxes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emmy.codegen.families.boxes import slabs
from emmy.ir.kernel import Buffer, Layout
from emmy.ir.loop import Ax
from emmy.ir.views.access import Side
from emmy.ir.views.product import Part

Transport = Literal["async", "sync", "tma"]


def swizzled(columns: int, bytes: int) -> Layout:
    """The layout without bank conflicts for ldmatrix on rows of `columns` elements (a multiple of 16 bytes)."""
    chunks = columns * bytes // 16
    s = 1
    while s < 8 and chunks % (2 * s) == 0:
        s *= 2
    return Layout(0, s, {8: 0, 4: 1, 2: 2, 1: 0}[s]) if s > 1 else Layout()


@dataclass(frozen=True)
class Tile:
    """What is staged: see the module's text.  `stages` buffers make the ring."""

    name: str
    part: Part
    own: tuple[Ax, ...]
    k: tuple[Ax, ...]
    rows: int
    depth: int
    dtype: str
    run: Side
    layout: Side
    transport: Transport
    stages: int
    shared: Layout
    label: str = ""
    shifts: bool = False  # registers suffice for two vectors a chunk

    @property
    def buffer(self) -> Buffer:
        label = self.label or f"{self.name}_tile"
        if self.transport == "tma":
            return slabs(label, self.dtype, self.stages, self.run, self.rows, self.depth)
        inner = (self.rows, self.depth) if self.layout == "k" else (self.depth, self.rows)
        return Buffer(label, self.dtype, (self.stages, *inner), self.shared)


__all__ = ["Tile", "Transport", "swizzled"]
