"""Kernel IR: hardware statements.  The CUDA printer is a one-to-one walk over it, so meaning ends here.

    Kernel = Kernel(name, comment, params, shared, grid, threads, body, min_blocks)
    Param  = Param(name, type, role)                 role: in, out (pointers, 16-byte aligned), size (i64 scalar)
    Buffer = Buffer(name, type, shape, layout, overlays)    shared memory
    Layout = Layout(pad, swizzle)                    where element (.., row, column) of a buffer lies
    Place  = Place(space, buffer, index, type)       global: one flat element index; shared: an index a dimension

    X (value)  = Lit(value, type) | Var(name, type) | Elem(array, index, type) | Builtin(name)
               | Bin(op, a, b, type) | Un(op, a, type) | Select(cond, yes, no, type)
               | Call(name, args, type)              a word of the scalar vocabulary or of `INTRINSICS`
               | Convert(a, type)                    value conversion, also to and from the raw bits of bf16, f16, f8
    S (statement) =
      Let(name, value) | Declare(name, type, init, count) | Assign(target, value) | Comment(text)
    | For(var, start, stop, step, body, unroll) | If(cond, then, orelse)
    | Load(name, type, place, guard, fill) | Store(place, value, guard)
    | LoadVector(array, at, count, place, guard) | StoreVector(place, array, at, count, guard)
    | Atomic(op, place, value, guard, old)
    | Barrier() | WarpSync() | Fence(scope) | Shuffle(name, value, mode, lane)
    | AsyncCopy(dst, src, bytes, guard) | AsyncCommit() | AsyncWait(pending)
    | LdMatrix(dst, src, trans) | Mma(shape, type, d, a, b, c)

Types are the storage types of `emmy.ir.dtype` plus `u32` and `u64`.  A value of type bf16, f16 or f8 is its bits; all
arithmetic is on f32, f64 and integers.  Names are unique in a kernel and declared before they are used; a `Let` or a
`Load` is never assigned again.  Loops stay rolled: `unroll` is a request to the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, Literal

from emmy.ir.dtype import DTYPES
from emmy.ir.loop import Expr

BYTES: Final[dict[str, int]] = {**{d.name: d.bytes for d in DTYPES.values()}, "u32": 4, "u64": 8}
# Words beyond the scalar vocabulary of emmy.ir.scalar: name -> result type.
INTRINSICS: Final[dict[str, str]] = {
    "pack_bf16x2": "u32",  # (f32 low, f32 high), each rounded to nearest even
    "pack_f16x2": "u32",
    "join16": "u32",  # (16 raw bits low, 16 raw bits high)
    "unpack_bf16_low": "f32",  # (u32)
    "unpack_bf16_high": "f32",
    "unpack_f16_low": "f32",
    "unpack_f16_high": "f32",
    "fma": "f32",  # a * b + c in one rounding
    "exp2_fast": "f32",  # ex2.approx.ftz: 2 ulp, denormal results are flushed
    "round_bf16": "f32",  # f32 -> the nearest value that bf16 has
    "round_f16": "f32",
    "round_f8e4m3": "f32",
    "round_f8e5m2": "f32",
    "floordiv_index": "same",  # floor division and remainder of integers by a positive divisor
    "floormod_index": "same",
    "clock": "i64",
}
MMA_SHAPES: Final = {("m16n8k16", "bf16"): (4, 4, 2), ("m16n8k16", "f16"): (4, 4, 2)}  # registers of d, a, b a lane


# ---- values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lit:
    value: int | float | bool
    type: str


@dataclass(frozen=True, slots=True)
class Var:
    """A register (or, for `Declare(count=n)`, a register array; `type` is the element's)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Elem:
    """Element of a register array.  The index is constant once loops are unrolled, or the array leaves registers."""

    array: str
    index: X
    type: str


@dataclass(frozen=True, slots=True)
class Builtin:
    """`tid` (thread in the block), `bid_x`, `bid_y`, `bid_z`, `grid_x`: all i32."""

    name: str

    @property
    def type(self) -> str:
        return "i32"


@dataclass(frozen=True, slots=True)
class Bin:
    """C operators: + - * / % << >> & | ^ < <= > >= == != && ||.  `/` truncates on integers."""

    op: str
    a: X
    b: X
    type: str


@dataclass(frozen=True, slots=True)
class Un:
    """C operators: - ! ~."""

    op: str
    a: X
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: tuple[X, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Convert:
    a: X
    type: str


@dataclass(frozen=True, slots=True)
class Select:
    """Both sides are evaluated; use `If` where one side reads memory that may not be there."""

    cond: X
    yes: X
    no: X
    type: str


X = Lit | Var | Elem | Builtin | Bin | Un | Call | Convert | Select
Target = Var | Elem


# ---- memory --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """Row pitch and XOR swizzle of a shared buffer whose last two dimensions are (row, column).

    `pad` elements are added to every row.  With `swizzle` = s > 0 the 16-byte chunk c of row r lies at chunk
    c ^ ((r >> shift) & (s - 1)); s is a power of two and divides the chunks of a row.  128-byte rows take s = 8,
    shift = 0; 64-byte rows s = 4, shift = 1: eight rows then touch all 32 banks and ldmatrix has no conflicts.
    """

    pad: int = 0
    swizzle: int = 0
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """Shared memory, 128-byte aligned.  `overlays` names an earlier buffer whose bytes this one reuses."""

    name: str
    type: str
    shape: tuple[int, ...]
    layout: Layout = Layout()
    overlays: str = ""

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
    """A memory element.  Global: `index` is one flat element index (i32 or i64).  Shared: an index a dimension."""

    space: Literal["global", "shared"]
    buffer: str
    index: tuple[X, ...]
    type: str


# ---- statements ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


@dataclass(frozen=True, slots=True)
class Let:
    """A register that is written once."""

    name: str
    value: X


@dataclass(frozen=True, slots=True)
class Declare:
    """A register that is assigned again, or with `count` an array of them (16-byte aligned, for vector copies)."""

    name: str
    type: str
    init: X | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    target: Target
    value: X


@dataclass(frozen=True, slots=True)
class For:
    """`for (var = start; var < stop; var += step)`.  unroll: 0 fully, 1 as the compiler likes, n by n."""

    var: Var
    start: X
    stop: X
    step: X
    body: tuple[S, ...]
    unroll: int = 1


@dataclass(frozen=True, slots=True)
class If:
    cond: X
    then: tuple[S, ...]
    orelse: tuple[S, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """One element into a new register of `type` (converted).  Where `guard` is false nothing is read: `fill`, or 0."""

    name: str
    type: str
    place: Place
    guard: X | None = None
    fill: X | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """One element, converted to the place's type."""

    place: Place
    value: X
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class LoadVector:
    """`count` elements from `place` into array[at ..]: 1, 2, 4, 8 or 16 aligned bytes.  Guard false: zeros."""

    array: str
    at: X
    count: int
    place: Place
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class StoreVector:
    place: Place
    array: str
    at: X
    count: int
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class Atomic:
    """op: add, max, min (f32 add; i32, i64, u32 all).  `old` names a register that takes the former value."""

    op: str
    place: Place
    value: X
    guard: X | None = None
    old: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the block; orders shared and global memory among them."""


@dataclass(frozen=True, slots=True)
class WarpSync:
    pass


@dataclass(frozen=True, slots=True)
class Fence:
    scope: Literal["block", "device"] = "device"


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A value of another lane of the warp; all 32 lanes take part.  mode: xor, up, down, lane.  f32, f64, integers."""

    name: str
    value: X
    mode: Literal["xor", "up", "down", "lane"]
    lane: X
    width: int = 32


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """cp.async of 4, 8 or 16 bytes, both sides aligned.  Where `guard` is false zeros arrive and nothing is read."""

    dst: Place
    src: Place
    bytes: int
    guard: X | None = None


@dataclass(frozen=True, slots=True)
class AsyncCommit:
    """Closes the thread's current group of asynchronous copies."""


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """Waits until at most `pending` of the thread's groups are in flight (a barrier makes them visible to others)."""

    pending: int


@dataclass(frozen=True, slots=True)
class LdMatrix:
    """Loads 1, 2 or 4 8x8 matrices of 16-bit elements, one u32 register each; lane 8*i + r gives row r of matrix i."""

    dst: tuple[Target, ...]
    src: Place
    trans: bool = False


@dataclass(frozen=True, slots=True)
class Mma:
    """d = a * b + c on the warp's fragments; `type` of the factors (bf16, f16), f32 accumulators.  d may be c."""

    shape: str
    type: str
    d: tuple[Target, ...]
    a: tuple[X, ...]
    b: tuple[X, ...]
    c: tuple[X, ...]


S = (
    Comment | Let | Declare | Assign | For | If | Load | Store | LoadVector | StoreVector | Atomic
    | Barrier | WarpSync | Fence | Shuffle | AsyncCopy | AsyncCommit | AsyncWait | LdMatrix | Mma
)  # fmt: skip


# ---- kernels -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    type: str
    role: Literal["in", "out", "size"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """`grid` is in blocks, as Loop IR integers over `Size`; `comment` states the body and the schedule row."""

    name: str
    comment: str
    params: tuple[Param, ...]
    shared: tuple[Buffer, ...]
    grid: tuple[Expr, Expr, Expr]
    threads: int
    body: tuple[S, ...]
    min_blocks: int = 0

    @property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every shared buffer.  A buffer has room for whatever overlays it."""
        at: dict[str, int] = {}
        end = 0
        for b in self.shared:
            if b.overlays:
                at[b.name] = at[b.overlays]
                continue
            at[b.name] = end
            end += self.room(b)
        return at

    def room(self, buffer: Buffer) -> int:
        """Bytes set aside for a buffer that overlays none: the most that it or its overlays take, in lines of 128."""
        need = max(b.bytes for b in self.shared if buffer.name in (b.name, b.overlays))
        return -(-need // 128) * 128

    @property
    def smem(self) -> int:
        """Bytes of shared memory a block."""
        return sum(self.room(b) for b in self.shared if not b.overlays)

    @property
    def dynamic_smem(self) -> int:
        """Bytes to ask for at launch: all of it where it exceeds the 48 KiB that need no permission, else none."""
        return self.smem if self.smem > STATIC_SMEM else 0


STATIC_SMEM: Final = 48 * 1024


def children(node: object) -> Iterator[object]:
    """Values, places and statements directly inside a statement, value or place."""
    for f in fields(node):  # type: ignore[arg-type]
        v = getattr(node, f.name)
        items = v if isinstance(v, tuple) else (v,)
        yield from (i for i in items if isinstance(i, NODES))


def walk(body: tuple[S, ...]) -> Iterator[S]:
    """Every statement, outer before inner."""
    for s in body:
        yield s
        if isinstance(s, For):
            yield from walk(s.body)
        elif isinstance(s, If):
            yield from walk(s.then)
            yield from walk(s.orelse)


NODES: Final = (
    Lit, Var, Elem, Builtin, Bin, Un, Call, Convert, Select, Place,
    Comment, Let, Declare, Assign, For, If, Load, Store, LoadVector, StoreVector, Atomic,
    Barrier, WarpSync, Fence, Shuffle, AsyncCopy, AsyncCommit, AsyncWait, LdMatrix, Mma,
)  # fmt: skip
