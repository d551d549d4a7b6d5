"""ldmatrix, stmatrix and mma.sync, with the fragment maps of `emmy.ir.kernel.fragments`.

Products and sums are taken in f64 and rounded to f32 once an instruction: for k factors the difference from any order
of f32 sums is at most k * 2^-24 times the sum of the products' magnitudes.  Integer-valued data is exact.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import ml_dtypes
import numpy as np

from emmy.codegen.simulate.numbers import Array, spread
from emmy.codegen.simulate.places import Access, locate
from emmy.codegen.simulate.program import Build, Compiled, Compiler
from emmy.codegen.simulate.statements import write, writer
from emmy.codegen.simulate.values import reader
from emmy.ir.kernel import LdMatrix, Mma, StMatrix
from emmy.ir.kernel.fragments import accumulator, factor_a, factor_b, ldmatrix

if TYPE_CHECKING:
    from emmy.codegen.simulate.gang import Gang, Positions

ELEMENT: Final = {
    "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2), "i8": np.dtype(np.int8),
}  # fmt: skip


@lru_cache
def order(kind: str, type: str, n: int, lanes: int) -> Array:
    """Where each matrix element, row after row, lies among [lane, register, element of the register]."""
    if kind == "a":
        row, column = factor_a(type, lanes)
    elif kind == "b":
        row, column = factor_b(type)
    else:
        row, column = accumulator(n, lanes)
    flat = (row * (int(column.max()) + 1) + column).reshape(-1)
    out = np.empty_like(flat)
    out[flat] = np.arange(len(flat))
    return out


@lru_cache
def inverse(n: int, lanes: int) -> Array:
    """Where each accumulator element [lane, register] lies in the matrix, row after row."""
    row, column = accumulator(n, lanes)
    out: Array = (row * n + column).reshape(-1)
    return out


def numbers_of(words: Array, type: str) -> Array:
    """u32 registers [..] -> their elements [.., per register] as f64; tf32 loses the low 13 bits, as in hardware."""
    if type == "tf32":
        return np.asarray((words & np.uint32(0xFFFFE000)).view(np.float32), np.float64)[..., None]
    element = ELEMENT[type]
    narrow = np.ascontiguousarray(words).view(element).reshape(*words.shape, 4 // element.itemsize)
    return np.asarray(narrow.astype(np.float32), np.float64)


def matrix(registers: list[Array], kind: str, type: str, rows: int, lanes: int = 32) -> Array:
    """[groups of lanes, rows, columns] of f64 from registers, each [threads]."""
    words = np.stack(registers, axis=1).astype(np.uint32, copy=False)
    elements = numbers_of(words, type).reshape(len(words) // lanes, -1)
    return elements[:, order(kind, type, 0, lanes)].reshape(len(elements), rows, -1)


def _mma(c: Compiler, s: Mma) -> Compiled:
    a, b, old = ([reader(x) for x in group] for group in (s.a, s.b, s.c))
    targets = [writer(t) for t in s.d]
    k = int(s.shape.split("k")[1])
    back, to = order("c", "", 8, 32), inverse(8, 32)
    held = "i32" if s.type == "i8" else "f32"

    def run(g: Gang) -> None:
        g.converged("mma")
        left = matrix([spread(r(g), g.n, "u32") for r in a], "a", s.type, 16)
        right = matrix([spread(r(g), g.n, "u32") for r in b], "b", s.type, k)
        if left.shape[2] != k:
            raise ValueError(f"{s.shape} of {s.type}")
        acc = np.stack([spread(r(g), g.n, held) for r in old], axis=1).reshape(-1, 128)
        total = left @ right + acc[:, back].reshape(-1, 16, 8)
        if held == "i32":
            total = total.astype(np.int64).astype(np.int32)
        out = total.reshape(-1, 128)[:, to].astype(np.int32 if held == "i32" else np.float32).reshape(-1, 4)
        for i, t in enumerate(targets):
            write(g, t, np.ascontiguousarray(out[:, i]))
        c.tally.flops += 2 * 16 * 8 * k * len(g.running_warps())

    return Compiled(run)


def _rows(g: Gang, p: Access, count: int, what: str) -> tuple[Positions, Positions, Array]:
    """Lanes that give the addresses of rows, those whose address is right, and the rows' bytes."""
    g.converged(what)
    pos = g.running()
    pos = pos[pos % 32 < 8 * count]
    good, at = locate(g, p, pos, 16 // p.bytes)
    lane = g.lanes[good]
    g.wave.tally.passes((lane >> 5) * 4 + (lane & 31) // 8, at % g.wave.shared.size // 4, 4) if len(good) else None
    return pos, good, at


def _ldmatrix(c: Compiler, s: LdMatrix) -> Compiled:
    place, count = Access(s.src), len(s.dst)
    targets = [writer(t) for t in s.dst]
    lane, element = ldmatrix(count, s.trans)

    def _stale(g: Gang, good: Positions, at: Array, blank: Array, lane: Array) -> None:
        """Fragments of rows that nothing wrote may be loaded ahead, but not used."""
        of_row = np.zeros((g.n // 32, 32), np.bool_)
        of_row[good[blank] // 32, good[blank] % 32] = True
        mask = of_row[:, lane].any(axis=3).reshape(g.n, count)
        first = g.wave.shared.element(place.buffer, int(at[blank][0]) % g.wave.shared.size)
        for i, (name, index, _) in enumerate(targets):
            if index is None:
                g.report_where("uninitialized read", mask[:, i], place.buffer, first, "nothing has written it")
            elif mask[:, i].any():
                g.env[name].stale[index(g)] = mask[:, i], place.buffer, first

    def run(g: Gang) -> None:
        _, good, at = _rows(g, place, count, "ldmatrix")
        shared = g.wave.shared
        grains = shared.grains(at, 16)
        shared.check_order(g, good, grains, place.buffer, collective=True)
        blank = np.asarray((shared.writer[grains] < 0).any(axis=1))
        g.wave.touch(g, g.running())
        rows = np.full((g.n // 32, 32, 8), 0xFFFF, np.uint16)
        rows[good // 32, good % 32] = shared.views[np.dtype(np.uint16)][(at // 2)[:, None] + np.arange(8)]
        halves = rows[:, lane, element].astype(np.uint32)  # [warps, lanes, count, 2]
        words = (halves[..., 0] | halves[..., 1] << np.uint32(16)).reshape(g.n, count)
        for i, t in enumerate(targets):
            write(g, t, np.ascontiguousarray(words[:, i]))
        if blank.any():
            _stale(g, good, at, blank, lane)

    return Compiled(run)


def _stmatrix(c: Compiler, s: StMatrix) -> Compiled:
    place, count = Access(s.dst), len(s.src)
    sources = [reader(x) for x in s.src]
    lane, element = ldmatrix(count, s.trans)

    def run(g: Gang) -> None:
        words = np.stack([spread(r(g), g.n, "u32") for r in sources], axis=1).reshape(-1, 32, count)
        _, good, at = _rows(g, place, count, "stmatrix")
        shared = g.wave.shared
        shared.check_write(g, good, shared.grains(at, 16), place.buffer)
        g.wave.touch(g, g.running())
        rows = np.empty((g.n // 32, 32, 8), np.uint16)
        halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=3).astype(np.uint16)
        rows[:, lane, element] = halves
        shared.views[np.dtype(np.uint16)][(at // 2)[:, None] + np.arange(8)] = rows[good // 32, good % 32]

    return Compiled(run)


MATRICES: Final[dict[type, Build]] = {
    Mma: _mma, LdMatrix: _ldmatrix, StMatrix: _stmatrix,
}  # fmt: skip
