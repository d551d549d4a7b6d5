"""Memory of Kernel IR: shared buffers with their layouts, places, mbarrier rings, matrices and tensor maps.

A layout is stated once, on the buffer.  Addresses, swizzles, wgmma descriptors and tensor maps are derived from it
(`emmy.ir.kernel.layout`), so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emmy.ir.dtype import stored_as
from emmy.ir.kernel.values import BYTES, X
from emmy.ir.loop import Expr


@dataclass(frozen=True, slots=True)
class Layout:
    """Row pitch and XOR swizzle of a shared buffer whose last two dimensions are (row, column).

    `pad` elements are added to every row.  With `swizzle` = s > 0 the 16-byte chunk c of row r lies at chunk
    c ^ ((r >> shift) & (s - 1)); s is a power of two and divides the chunks of a row.  128-byte rows take s = 8,
    shift = 0; 64-byte rows s = 4, shift = 1: eight rows then touch all 32 banks and ldmatrix has no conflicts.  These
    two and 32-byte rows with s = 2, shift = 2 are also the swizzles of TMA and wgmma (spans of 128, 64 and 32 bytes),
    which XOR address bits: they need rows without pad and a buffer aligned to eight spans.
    """

    pad: int = 0
    swizzle: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """Shared memory.  `overlays` names an earlier buffer whose bytes this one reuses.  `align` is 128 or more bytes.

    A matrix of wgmma or a box of TMA is the last two dimensions: rows of 128, 64 or 32 bytes, swizzled by that span.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    layout: Layout = Layout()
    overlays: str = ""
    align: int = 128

    @property
    def pitch(self) -> int:
        return self.shape[-1] + self.layout.pad

    @property
    def strides(self) -> tuple[int, ...]:
        """Element stride of each dimension."""
        out, n = [1], self.pitch
        for d in reversed(self.shape[:-1]):
            out.insert(0, n)
            n *= d
        return tuple(out)

    @property
    def bytes(self) -> int:
        rows = 1
        for d in self.shape[:-1]:
            rows *= d
        return rows * self.pitch * BYTES[self.type]


@dataclass(frozen=True, slots=True)
class Place:
    """A memory element.  Global: `index` is one flat element index (i32 or i64).  Shared: an index a dimension.

    `rank`: of a shared buffer, that of another block of the cluster (of a `Load`, `LoadVector` or `Store`).
    """

    space: Literal["global", "shared"]
    buffer: str
    index: tuple[X, ...]
    type: str
    rank: X | None = None


@dataclass(frozen=True, slots=True)
class Ring:
    """`depth` slots of staged data, each with two mbarriers: `full` says that it is filled, `empty` that it is free.

    `full` and `empty` are the arrivals that complete one phase of them.  Bytes that TMA brings count besides: whoever
    arrives with `bytes` announces them.  The ring owns its phases: statements name a `Cursor`, never a parity.
    """

    name: str
    depth: int
    full: int
    empty: int

    @property
    def bytes(self) -> int:
        return 16 * self.depth


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of wgmma in shared memory: `place` is its first element, from where the descriptor is derived.

    The index counts elements as in any place (the swizzle is the hardware's); rows start at multiples of 8.  `major`
    names the axis that runs along a row of the buffer: k (buffer [.., m or n][k]) or mn ([.., blocks of mn][k][mn]).
    """

    place: Place
    major: Literal["k", "mn"] = "k"


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How TMA sees an operand or result: a parameter of the kernel, encoded by the host.

    `param` names the tensor, whose element `offset` is the map's origin.  `shape` and `strides` (elements; the last is
    1) go from the outermost dimension to the innermost, at most 5, as Loop IR integers over `Size`.  `box` is what one
    copy moves.  `swizzle` is the span in bytes (0, 32, 64, 128) and equals that of the shared buffer.  Elements outside
    of the tensor are read as zeros and never written.  A map of type tf32 rounds what it loads of an f32 tensor to 10
    bits of mantissa, to the nearest, ties to even.
    """

    name: str
    param: str
    type: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    box: tuple[int, ...]
    swizzle: int
    offset: Expr | None = None

    @property
    def element(self) -> str:
        """Type of the tensor's elements, and of the buffer's."""
        return stored_as(self.type)

    @property
    def bytes(self) -> int:
        """Bytes that one copy brings, those outside of the tensor included."""
        n = BYTES[self.element]
        for d in self.box:
            n *= d
        return n
