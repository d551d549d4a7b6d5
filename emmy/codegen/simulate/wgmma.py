"""wgmma: products of a warpgroup that run on while its threads go on, until a WgmmaWait ends their group.

Operands in shared memory are found as the hardware finds them: by the descriptor's start, strides and swizzle of
address bits.  They are read at the wait, the latest moment; order and proxy are checked at the issue, and whoever
overwrites them in between is found.  Accumulators and registers of A may not be touched in between.  Numerics as in
`matrices`: one rounding to f32 an instruction; of 8-bit factors, fewer bits (`short_sums`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from emmy.codegen.simulate.gang import Gang, RegArray
from emmy.codegen.simulate.matrices import ELEMENT, inverse, matrix, order
from emmy.codegen.simulate.numbers import Array, spread
from emmy.codegen.simulate.program import Build, Compiled, Compiler
from emmy.codegen.simulate.shared import MANY
from emmy.codegen.simulate.stream import Product
from emmy.codegen.simulate.tma import check_proxy, swizzled
from emmy.codegen.simulate.values import reader
from emmy.ir.kernel import BYTES, WGMMA_K, Buffer, Elem, Matrix, Wgmma, WgmmaCommit, WgmmaFence, WgmmaWait
from emmy.ir.kernel.layout import descriptor_fields, plain_offset, span

GROUP: Final = 128
SHORT: Final = ("f8e4m3", "f8e5m2")  # types whose products are added with few bits
KEPT: Final = 14  # bits of sums of 8-bit products


class Descriptor:
    """A matrix in shared memory of `rows` (m or n) by k elements."""

    def __init__(self, c: Compiler, m: Matrix, rows: int, k: int) -> None:
        self.buffer: Buffer = next(b for b in c.kernel.shared if b.name == m.place.buffer)
        self.index = [reader(x) for x in m.place.index]
        self.span, size = span(self.buffer), BYTES[self.buffer.type]
        self.bytes = size
        if not self.span:
            raise ValueError(f"{self.buffer.name} has no swizzle that wgmma reads")
        fields = descriptor_fields(self.buffer, m)
        stride, leading = (fields >> 32 & 0x3FFF) << 4, (fields >> 16 & 0x3FFF) << 4
        row, column = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
        if m.major == "k":
            self.steps = row // 8 * stride + row % 8 * self.span + column * size
        else:
            wide = self.span // size
            at = column // 8 * stride + column % 8 * self.span
            self.steps = row // wide * leading + at + row % wide * size

    def bytes_at(self, g: Gang) -> Array | None:
        """[warpgroups, rows, k] bytes of the wave's shared memory; None where the matrix is not one."""
        shared = g.wave.shared
        firsts = np.arange(0, g.n, GROUP)
        index = []
        for read in self.index:
            v = read(g)
            if isinstance(v, np.ndarray) and (v.reshape(-1, GROUP) != v[firsts][:, None]).any():
                g.report("not supported", None, self.buffer.name, -1, "threads of a warpgroup name different matrices")
            index.append(v[firsts].astype(np.int64) if isinstance(v, np.ndarray) else np.full(len(firsts), v, np.int64))
        begin = shared.offsets[self.buffer.name]
        start = begin + plain_offset(self.buffer, index) * self.bytes
        address = start[:, None, None] + self.steps
        if (start % 16).any() or (start // self.span % 8).any():
            detail = f"a matrix that starts at byte {int(start[0])}: rows must start at multiples of 8"
            g.report("misaligned", None, self.buffer.name, -1, detail)
            return None
        if (address < begin).any() or (address + self.bytes > begin + self.buffer.bytes).any():
            detail = f"bytes {int(address.min())} to {int(address.max())}, the buffer has {self.buffer.bytes}"
            g.report("out of bounds", None, self.buffer.name, -1, detail)
            return None
        blocks = g.lanes[firsts] // g.wave.room * shared.size
        out: Array = swizzled(address, self.span) + blocks[:, None, None]
        return out

    def check(self, g: Gang, bytes: Array, column: Array, epoch: int) -> None:
        """What is read must be written, ordered before each of the four warps, and fenced."""
        shared = g.wave.shared
        for k in range(len(bytes)):
            grains = np.unique(bytes[k].reshape(-1)[:, None] // shared.grain + np.arange(
                max(1, self.bytes // shared.grain)))[None, :]  # fmt: skip
            pos = np.arange(GROUP * k, GROUP * (k + 1), 32)
            every = np.broadcast_to(grains, (4, grains.shape[1]))
            writer = shared.writer[every]
            name = self.buffer.name
            if shared.flying:
                flying = shared.flight[every] != 0
                shared.tell(g, "read before wait", pos, every, flying, name, "the copy is in flight")
            shared.tell(g, "uninitialized read", pos, every, writer < 0, name, "nothing has written it")
            race = (writer >= 0) & ~shared.order(g.lanes[pos], every)
            if race.any():
                shared.tell(g, "shared race", pos, every, race, name, shared.who("read after a write", race, writer))
            else:
                check_proxy(g, pos, every, name, "wgmma reads what an ordinary store has written")
            shared.readers[grains, column[k]] = epoch << 6 | MANY

    def values(self, g: Gang, bytes: Array, type: str) -> Array:
        """[warpgroups, rows, k] f64, as the bytes are now."""
        raw = g.wave.shared.data[bytes[..., None] + np.arange(self.bytes)]
        if type == "tf32":
            words = np.ascontiguousarray(raw).view(np.uint32)[..., 0] & np.uint32(0xFFFFE000)
            return np.asarray(words.view(np.float32), np.float64)
        narrow = np.ascontiguousarray(raw).view(ELEMENT[type])[..., 0]
        return np.asarray(narrow.astype(np.float32), np.float64)


def columns(g: Gang) -> Array:
    """Columns of the clocks of the gang's warpgroups."""
    groups = np.arange(g.lo, g.lo + g.n, GROUP) // GROUP
    per_domain = max(1, g.wave.domain // GROUP)
    return np.asarray(g.wave.streams + groups % per_domain)


def complete(g: Gang, what: str) -> bool:
    """Whole warpgroups, all of whose threads run."""
    if g.n % GROUP or g.lo % GROUP or g.active is not None:
        missing = None if g.active is None else int(np.flatnonzero(~g.active)[0])
        g.report("divergent", missing, "", -1, f"{what} without all four warps of a warpgroup")
        return False
    return True


def _wgmma(c: Compiler, s: Wgmma) -> Compiled:
    k = WGMMA_K[s.type]
    first = reader(s.at)
    b = Descriptor(c, s.b, s.n, k)
    registers = [reader(x) for x in s.a] if isinstance(s.a, tuple) else []
    a = Descriptor(c, s.a, 64, k) if isinstance(s.a, Matrix) else None
    named = [(x.array, reader(x.index)) for x in s.a if isinstance(x, Elem)] if isinstance(s.a, tuple) else []

    def run(g: Gang) -> None:
        if not complete(g, "wgmma"):
            return
        stream = g.stream
        acc, at = g.env[s.acc], first(g)
        if not isinstance(at, int) or at < 0 or at + s.n // 2 > len(acc.rows):
            g.report("out of bounds", None, s.acc, -1, f"{s.n // 2} accumulators from {at} of {len(acc.rows)}")
            return
        held = [(acc, at + i) for i in range(s.n // 2)] + [(g.env[name], index(g)) for name, index in named]
        _check_registers(g, acc, at, s, held)
        g.peek = True  # registers that earlier products read may be read again
        left = matrix([spread(r(g), g.n, "u32") for r in registers], "a", s.type, 64, GROUP) if registers else None
        g.peek = False
        column = columns(g)
        right = b.bytes_at(g)
        if a is not None:
            left = a.bytes_at(g)
        if left is None or right is None:
            return
        if a is not None:
            a.check(g, left, column, stream.open)
        b.check(g, right, column, stream.open)
        c.tally.flops += 2 * 64 * s.n * k * (g.n // GROUP)
        for array, i in held:
            array.busy[i] = array.busy.get(i, 0) + 1
        stream.products.append(
            Product(s, acc, at, s.n, s.type, left, right, a is None, s.accumulate, stream.open, held)
        )  # fmt: skip

    def finish(g: Gang, p: Product) -> None:
        left = p.a if a is None else a.values(g, p.a, s.type)
        _perform(g, p, left, b.values(g, p.b, s.type), s.type in SHORT)

    c.finish[id(s)] = finish
    return Compiled(run)


def _check_registers(g: Gang, acc: RegArray, at: int, s: Wgmma, held: list[tuple[RegArray, int]]) -> None:
    """Fenced since they were last written, and accumulators assigned where they are read."""
    for array, i in held:
        if array.written.get(i, array.born) >= g.fences:
            g.report("missing fence", None, array.name, i, "no WgmmaFence since the register was written")
            break
    if not s.accumulate:
        return
    for i in range(at, at + s.n // 2):
        if i not in acc.busy and (acc.rows[i] is None or i in acc.holes):
            g.report("uninitialized read", None, acc.name, i, "an accumulator that nothing has assigned")
            return


def _perform(g: Gang, p: Product, left: Array, right: Array, short: bool) -> None:
    count = p.n // 2
    groups = g.n // GROUP
    old: Array = np.zeros((groups, 64, p.n))
    if p.accumulate:
        rows = np.stack([spread(_number(p.acc.rows[p.first + i]), g.n, "f32") for i in range(count)], axis=1)
        old = rows.reshape(groups, -1)[:, order("c", "", p.n, GROUP)].reshape(groups, 64, p.n)
    total = short_sums(left, right, old) if short else left @ right.transpose(0, 2, 1) + old
    out = total.reshape(groups, -1)[:, inverse(p.n, GROUP)].astype(np.float32).reshape(g.n, count)
    for i in range(count):
        p.acc.rows[p.first + i] = np.ascontiguousarray(out[:, i])
        p.acc.holes.pop(p.first + i, None)


def short_sums(left: Array, right: Array, old: Array) -> Array:
    """old + left * right as Hopper adds products of 8-bit floats: [groups, 64, n].

    The products of an instruction are aligned to the largest of them and keep `KEPT` bits; their sum and the
    accumulator, aligned to the larger of the two, keep as many.  What is shifted out is cut off.  Source: DeepSeek-V3
    technical report, sections 3.3.2 and 3.5.2.
    """
    out = np.empty_like(old, np.float64)
    for k in range(len(left)):
        # one row of the left factor at a time bounds the memory
        for row in range(left.shape[1]):
            products = left[k, row] * right[k]  # [n, elements]
            total = _cut(products, np.abs(products).max(axis=-1, keepdims=True)).sum(axis=-1)
            larger = np.maximum(np.abs(total), np.abs(old[k, row]))
            out[k, row] = _cut(total, larger) + _cut(old[k, row], larger)
    return out


def _cut(x: Array, largest: Array) -> Array:
    """`x` without the bits that lie below the `KEPT` highest of numbers as large as `largest`; no number stays one."""
    _, exponent = np.frexp(largest)
    with np.errstate(invalid="ignore"):
        unit = np.ldexp(1.0, exponent - KEPT)
        out: Array = np.where(np.isfinite(largest), np.trunc(x / unit) * unit, x)
    return out


def _number(row: object) -> object:
    return np.float32(0) if row is None else row


def _fence(c: Compiler, s: WgmmaFence) -> Compiled:
    def run(g: Gang) -> None:
        if complete(g, "wgmma.fence"):
            g.fences += 1

    return Compiled(run)


def _commit(c: Compiler, s: WgmmaCommit) -> Compiled:
    def run(g: Gang) -> None:
        if complete(g, "wgmma.commit_group"):
            g.stream.open += 1

    return Compiled(run)


def _wait(c: Compiler, s: WgmmaWait) -> Compiled:
    def run(g: Gang) -> None:
        if not complete(g, "wgmma.wait_group"):
            return
        stream = g.stream
        done = stream.open - 1 - s.pending  # the last group that has ended
        ended = [p for p in stream.products if p.group <= done]
        stream.products = [p for p in stream.products if p.group > done]
        for p in ended:
            c.finish[id(p.at)](g, p)
            for array, i in p.held:
                array.busy[i] -= 1
                if not array.busy[i]:
                    del array.busy[i]
        if done > 0:
            seen = g.wave.clocks.seen
            for k, column in enumerate(columns(g)):
                warps = g.warp_list[4 * k : 4 * k + 4]
                seen[warps, column] = np.maximum(seen[warps, column], done)

    return Compiled(run)


WGMMA: Final[dict[type, Build]] = {
    Wgmma: _wgmma, WgmmaFence: _fence, WgmmaCommit: _commit, WgmmaWait: _wait,
}  # fmt: skip
