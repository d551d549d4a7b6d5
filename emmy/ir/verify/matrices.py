"""Operands of ldmatrix, stmatrix, mma.sync and wgmma; tensor maps and the boxes that TMA moves.

Sources: PTX ISA manual, "Matrix Descriptor", "Tensors: restrictions"; CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from typing import Final

from emmy.ir.dtype import stored_as
from emmy.ir.kernel import (
    BYTES,
    MMA_SHAPES,
    WGMMA_K,
    Buffer,
    Elem,
    Kernel,
    LdMatrix,
    Lit,
    Matrix,
    Mma,
    S,
    StMatrix,
    TensorMap,
    TmaLoad,
    TmaStore,
    Var,
    Wgmma,
    X,
)
from emmy.ir.kernel.layout import SPANS, span
from emmy.ir.loop import Const
from emmy.ir.verify.facts import Facts, failure

_ADDED: Final = ("f32", "f16", "bf16", "i32", "u32", "u64")


def check_matrix(facts: Facts, s: LdMatrix | StMatrix | Mma | Wgmma) -> None:
    if isinstance(s, Mma):
        _mma(facts, s)
    elif isinstance(s, Wgmma):
        _wgmma(facts, s)
    else:
        place, registers = (s.src, s.dst) if isinstance(s, LdMatrix) else (s.dst, s.src)
        name = type(s).__name__.lower()
        facts.place(s, place)
        if place.space != "shared" or BYTES[place.type] != 2 or len(registers) not in (1, 2, 4):
            raise facts.fail(s, f"{name} takes 1, 2 or 4 matrices of 16-bit elements in shared memory")
        if facts.buffers[place.buffer].pitch * BYTES[place.type] % 16:
            raise facts.fail(s, f"rows of {place.buffer} are no multiple of 16 bytes apart, as {name} needs them")
        for r in registers:
            _word(facts, s, r)
            if isinstance(s, LdMatrix):
                assert isinstance(r, Var | Elem)
                facts.target(s, r)


def _word(facts: Facts, s: S, x: X) -> None:
    facts.value(s, x)
    if x.type != "u32":
        raise facts.fail(s, f"a register of packed elements is u32, not {x.type}")


def _mma(facts: Facts, s: Mma) -> None:
    if (s.shape, s.type) not in MMA_SHAPES:
        raise facts.fail(s, f"no instruction {s.shape} for {s.type}")
    d, a, b = MMA_SHAPES[s.shape, s.type]
    if (len(s.d), len(s.a), len(s.b), len(s.c)) != (d, a, b, d):
        raise facts.fail(s, f"{s.shape} takes {d}, {a}, {b} and {d} registers")
    for t in s.d:
        facts.target(s, t)
    for x in (*s.a, *s.b):
        _word(facts, s, x)
    total = "i32" if s.type == "i8" else "f32"
    for c in (*s.d, *s.c):
        facts.value(s, c)
        if c.type != total:
            raise facts.fail(s, f"{s.shape} of {s.type} sums in {total}, not in {c.type}")


# ---- wgmma


def _wgmma(facts: Facts, s: Wgmma) -> None:
    if s.type not in WGMMA_K:
        raise facts.fail(s, f"no wgmma of {s.type}")
    if s.n % 8 or not 8 <= s.n <= 256:
        raise facts.fail(s, f"n is {s.n}: a multiple of 8 from 8 to 256")
    facts.array(s, s.acc, s.at, s.n // 2, "f32")
    if s.acc not in facts.mutable:
        raise facts.fail(s, f"{s.acc} is not declared as a register here")
    if isinstance(s.a, Matrix):
        _operand(facts, s, s.a, "a", 64)
    else:
        if len(s.a) != 4:
            raise facts.fail(s, f"a takes four registers, not {len(s.a)}")
        for x in s.a:
            _word(facts, s, x)
    _operand(facts, s, s.b, "b", s.n)


def _operand(facts: Facts, s: Wgmma, m: Matrix, which: str, rows: int) -> None:
    """Its rows and columns inside the buffer, its start at what a descriptor can say."""
    facts.place(s, m.place)
    b = facts.buffers.get(m.place.buffer)
    if b is None or m.place.space != "shared" or m.place.type != stored_as(s.type):
        raise facts.fail(s, f"{which} is no matrix of {s.type} in shared memory")
    if not span(b):
        raise facts.fail(s, f"{b.name} has no layout of wgmma: rows of one swizzle span, aligned to eight of them")
    if m.major == "mn" and s.type not in ("bf16", "f16"):
        raise facts.fail(s, f"{which} is {m.major}-major: only 16-bit factors can be")
    if m.major == "mn" and len(b.shape) < 3 and rows > b.shape[-1]:
        raise facts.fail(s, f"{which} of {rows} columns in one block of {b.shape[-1]}")
    if m.major == "mn" and len(b.shape) >= 3:
        block, count = m.place.index[-3], -(-rows // b.shape[-1])
        first = int(block.value) if isinstance(block, Lit) else 0
        if first + count > b.shape[-3]:
            raise facts.fail(s, f"{which} needs {count} blocks of {b.name} from {first} on, which has {b.shape[-3]}")
    k = WGMMA_K[s.type]
    # along a buffer's rows, along its columns; further columns of an mn-major matrix lie in the blocks that follow
    need = (rows, k) if m.major == "k" else (k, min(rows, b.shape[-1]))
    for i, n, take in zip(m.place.index[-2:], b.shape[-2:], need, strict=True):
        first = int(i.value) if isinstance(i, Lit) else 0
        if first + take > n:
            raise facts.fail(s, f"{which} needs {take} of {b.name} from {first} on, which has {n}")
    row, column = m.place.index[-2:]
    if isinstance(row, Lit) and int(row.value) % 8:
        raise facts.fail(s, f"{which} starts at row {row.value} of {b.name}, no multiple of 8")
    if isinstance(column, Lit) and int(column.value) * BYTES[b.type] % 16:
        raise facts.fail(s, f"{which} starts at column {column.value} of {b.name}, not at 16 bytes")


# ---- TMA


def check_map(kernel: Kernel, m: TensorMap) -> None:
    """What cuTensorMapEncodeTiled asks of a map, as far as extents and strides are static."""

    def fail(why: str) -> None:
        raise failure(kernel, None, f"map {m.name}: {why}")

    param = next((p for p in kernel.params if p.name == m.param and p.role != "size"), None)
    size = BYTES[m.element]
    if param is None or param.type != m.element:
        fail(f"{m.param} is no {m.element} operand or result")
    if not 1 <= len(m.shape) <= 5 or not len(m.shape) == len(m.strides) == len(m.box):
        fail(
            f"{len(m.shape)} extents, {len(m.strides)} strides, a box of {len(m.box)} dimensions: 1 to 5, as many each"
        )
    if any(not 1 <= d <= 256 for d in m.box):
        fail(f"a box of {m.box}: 1 to 256 a dimension")
    if m.box[-1] * size % 16:
        fail(f"rows of the box have {m.box[-1] * size} bytes, no multiple of 16")
    if m.swizzle not in (0, *SPANS):
        fail(f"swizzle {m.swizzle}: 0, 32, 64 or 128 bytes")
    if m.swizzle and m.box[-1] * size > m.swizzle:
        fail(f"rows of the box have {m.box[-1] * size} bytes, more than the swizzle span {m.swizzle}")
    if not (isinstance(m.strides[-1], Const) and m.strides[-1].value == 1):
        fail(f"the innermost stride is {m.strides[-1].text}, not 1")
    for stride in m.strides[:-1]:
        if isinstance(stride, Const) and stride.value * size % 16:
            fail(f"a stride of {stride.value * size} bytes is no multiple of 16")
    if isinstance(m.offset, Const) and m.offset.value * size % 16:
        fail(f"the origin is {m.offset.value * size} bytes into the tensor, no multiple of 16")


def check_tma(facts: Facts, s: TmaLoad | TmaStore) -> None:
    """Map, box, buffer and coordinates of one copy fit one another."""
    m = facts.maps.get(s.map)
    if m is None:
        raise facts.fail(s, f"{s.map} is no map of the kernel")
    place = s.dst if isinstance(s, TmaLoad) else s.src
    facts.place(s, place)
    for x in s.at:
        facts.value(s, x)
        if x.type != "i32":
            raise facts.fail(s, f"a coordinate is i32, not {x.type}")
    if place.space != "shared" or place.type != m.element:
        raise facts.fail(s, f"{place.buffer} is no shared {m.element} buffer")
    if len(s.at) != len(m.box):
        raise facts.fail(s, f"{len(s.at)} coordinates for a map of {len(m.box)} dimensions")
    _box(facts, s, m, facts.buffers[place.buffer], place.index)
    if isinstance(s, TmaLoad):
        facts.optional(s, s.multicast)
        return
    role = facts.params[m.param].role
    if role != "out":
        raise facts.fail(s, f"{m.param} is an operand and is written")
    if m.type != m.element:
        raise facts.fail(s, f"TMA rounds to {m.type} what it loads only")
    if s.op == "add" and m.type not in _ADDED:
        raise facts.fail(s, f"TMA does not add {m.type}")


def _box(facts: Facts, s: TmaLoad | TmaStore, m: TensorMap, b: Buffer, index: tuple[X, ...]) -> None:
    if m.swizzle != (b.layout.swizzle and span(b)):
        layout = f"the swizzle of {span(b)} bytes" if span(b) else "no swizzle of TMA"
        raise facts.fail(s, f"map {m.name} swizzles {m.swizzle} bytes, {b.name} has {layout}")
    if b.layout.pad or m.box[-1] != b.shape[-1]:
        raise facts.fail(s, f"rows of {m.box[-1]} in the box of {m.name}, of {b.pitch} in {b.name}")
    rows = 1
    for d in m.box[:-1]:
        rows *= d
    room = 1
    for d in b.shape[:-1]:
        room *= d
    first = [int(i.value) if isinstance(i, Lit) else 0 for i in index]
    before = sum(i * t for i, t in zip(first, b.strides, strict=True)) // b.pitch
    if before + rows > room:
        raise facts.fail(s, f"a box of {rows} rows from row {before} of {b.name}, which has {room}")
    if isinstance(index[-1], Lit) and int(index[-1].value):
        raise facts.fail(s, f"a box starts at column {index[-1].value} of {b.name}")
    unit = 8 if m.swizzle else 1
    if len(index) > 1 and isinstance(index[-2], Lit) and int(index[-2].value) % unit:
        raise facts.fail(s, f"a box starts at row {index[-2].value} of {b.name}, no multiple of 8")
