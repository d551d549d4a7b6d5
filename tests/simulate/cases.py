"""Small bodies of every kernel family at shapes on, one below and one above the edges of tiles, and their legal rows.

Groups: the families map (`map_shifted`: rows of its operands at every alignment), turn, row, scan, plain, tile
(`tile_ahead`: its fragments read a step ahead; `tile_coop`: its sums shared by groups of threads; `tile_turned`: its
operands turned by their copies; `tile_parts`: its sums shared by blocks), tf32, mma (`mma_windows`: rows at every
alignment; `mma_boxes`: its operands brought by TMA; `padded`: copies with aligned lines, on wgmma too; `mma_parts`: its
sums shared by blocks) and wgmma (`wgmma_computed`: left factors computed by the consumers; `wgmma_eighth`: factors of 8
bits; `wgmma_tf32`: factors of f32; `wgmma_lines`: results that warps store line by line; `wgmma_told`: row scalars of
sums that clusters share), contractions whose matrix or row is data (`picked`, and `picked_copies` by cp.async),
attention on threads and on tensor cores, and the two launches of a split reduction (`partial` and `finish`), which are
scheduled like any other body.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.build import cast, iadd, imul, scalar
from emmy.ir.dtype import DTYPES
from emmy.ir.evaluate import integer
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body, Out, ax, const, fold, load, size
from emmy.ir.schedule import Scheduled
from emmy.ir.target import Target, allowing, target
from tests import bodies as B
from tests import host_cuda
from tests.codegen import small as K

RULESETS: Final = Path(__file__).parents[2] / "rulesets"
CARD: Final = target("sm_90a")
ANY_ORDER: Final = allowing(CARD, "atomics")
S: Final = size("s")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One body at one binding of its sizes.  `exact`: integers in, small enough for the result to be exact.

    `zeroed`: results that are zero before the launch.  `units`: error that is allowed of `check.distance` (0: what
    the results' type asks for).
    """

    name: str
    body: Body
    sizes: Mapping[str, int]
    exact: bool = False
    zeroed: tuple[int, ...] = ()
    units: float = 0.0

    def inputs(self, seed: int = 0, kind: str = "") -> list[Array]:
        """One array a slot: integers from -3 to 3 where the case is exact (or `kind` is `integer`), else normal.

        `kind` may also be `negative` (all below -2), `large` (of magnitude 30), `spread` (elements that grow),
        `growing` (rows that grow), `edge` (the first and last of each row large), `special` (one NaN an operand) or
        `infinite` (a row of -infinity an operand).
        """
        rng = np.random.default_rng([seed, len(self.name)])
        return [self._input(k, rng, kind or ("integer" if self.exact else "normal")) for k in range(len(self.slots))]

    @property
    def slots(self) -> tuple[Any, ...]:
        return self.body.slots

    def _input(self, slot: int, rng: np.random.Generator, kind: str) -> Array:
        tensor = self.slots[slot]
        shape = tuple(integer(e, self.sizes) for e in tensor.shape)
        to = host_cuda.NUMPY[tensor.dtype]
        if DTYPES[tensor.dtype].kind != "float":
            # a permutation of small numbers: as indices they are in range and reach no element twice
            n = int(np.prod(shape, dtype=np.int64))
            return (rng.permutation(max(n, 1))[:n] % 12).reshape(shape).astype(to)
        if kind == "integer":
            return rng.integers(-3, 4, shape).astype(to)
        x = rng.standard_normal(shape)
        if kind == "growing" and x.ndim > 1:
            x = x * (1.0 + 0.03 * np.arange(shape[-2])[:, None])
        if kind == "edge" and x.size:
            x[..., [0, -1]] *= 50.0
        if kind == "special" and x.size:
            x.reshape(-1)[rng.integers(x.size)] = np.nan
        if kind == "infinite" and x.size and x.ndim > 1:
            x.reshape(-1, shape[-1])[rng.integers(x.size // shape[-1])] = -np.inf
        if kind == "negative":
            x = -np.abs(x) - 2.0
        if kind == "large":
            x = 30.0 * x
        if kind == "spread":
            x = x * (1.0 + np.arange(x.size).reshape(shape) % 7)
        return x.astype(np.float32).astype(to)

    def results(self) -> list[tuple[int, ...]]:
        return [tuple(integer(e, self.sizes) for e in o.tensor.shape) for o in self.body.outs]


def one(name: str, body: Body, exact: bool = False, **sizes: int) -> Case:
    return Case(name, body, sizes, exact)


def in_tf32(*cases: Case) -> tuple[Case, ...]:
    """The cases, whose factors are rounded to tf32: two of 2^-10 each over the 2^-20 of a unit."""
    return tuple(replace(c, units=2048.0) for c in cases)


# ---- bodies that only this suite has


def partial_sum(results: int, parts: int, length: int, dtype: str = "f32", kind: str = "sum") -> Body:
    """The first launch of a split reduction: each part of a row summed by itself."""
    p, i = B.axes(parts, results)
    k = ax("k", const(length))
    value = fold(kind, k, load(0, (i, iadd(imul(p, length), k)), dtype))
    return B.body(
        [Out((p, i), (p, i), value, B.tensor("f32", parts, results))], [B.tensor(dtype, results, parts * length)]
    )


def partial_linear(m: int, n: int, parts: int, length: int, dtype: str = "bf16") -> Body:
    """The first launch of a split contraction: x * W.T over each part of the summed axis."""
    p, i, j = B.axes(parts, m, n)
    k = ax("k", const(length))
    at = iadd(imul(p, length), k)
    value = fold("sum", k, scalar("mul", load(0, (i, at), dtype), load(1, (j, at), dtype)), dtype)
    slots = [B.tensor(dtype, m, parts * length), B.tensor(dtype, n, parts * length)]
    return B.body([Out((p, i, j), (p, i, j), value, B.tensor("f32", parts, m, n))], slots)


def finish_sum(parts: int, *results: int, dtype: str = "f32", kind: str = "sum", bias: bool = False) -> Body:
    """The second launch of a split reduction: the parts' results, and what follows (`bias`, a rounding to `dtype`)."""
    at = B.axes(*results)
    p = ax("p", const(parts))
    value = fold(kind, p, load(0, (p, *at), "f32"))
    slots = [B.tensor("f32", parts, *results)]
    if bias:
        value = scalar("add", value, load(1, (at[-1],), "f32"))
        slots.append(B.tensor("f32", results[-1]))
    return B.body([Out(at, at, cast(value, dtype), B.tensor(dtype, *results))], slots)


def cache_update(tokens: int, heads: int, dim: int, new: int, dtype: str = "bf16") -> Body:
    """New keys stored into a cache of `tokens` where positions say."""
    i, h, d = B.axes(new, heads, dim)
    index = (load(1, (i,), "i64"), h, d)
    out = Out((i, h, d), index, load(2, (i, h, d), dtype), B.tensor(dtype, tokens, heads, dim), into=0)
    return B.body([out], [B.tensor(dtype, tokens, heads, dim), B.tensor("i64", new), B.tensor(dtype, new, heads, dim)])


# ---- groups


def map_cases() -> list[Case]:
    return [
        *(one(f"bias and gelu {r}x{n} {t}", K.bias_gelu(r, n, t))
          for r, n, t in ((33, 77, "bf16"), (1, 64, "f16"), (64, 1, "f32"), (31, 128, "bf16"), (2, 129, "f32"))),
        one("bias and gelu, rows by name", K.bias_gelu(S, 64), s=17),
        one("rotary 6x3x64", K.rotary(6, 3, 64), True),
        one("rotary, odd halves", K.rotary(3, 2, 10, "f32"), True),
        one("concatenated 5x24+40", K.concatenated(5, 24, 40)),
        one("concatenated, odd", K.concatenated(5, 3, 7, "f16")),
        one("store in another order", K.permuted_store(3, 5, 16), True),
        one("embedding", K.embedding(11, 12, 48), True),
        one("positions", K.positions(9, 7), True),
        one("update of a cache", cache_update(12, 2, 8, 5), True),
        one("one element", K.converted(1, "f32", "bf16"), True),
        one("f32 to f8", K.converted(257, "f32", "f8e4m3"), True),
        one("outer product", B.linear(33, 40, 1), True),
    ]  # fmt: skip


def shifted_cases() -> list[Case]:
    """Maps whose operands' rows begin at every alignment, up to their last elements, and results with aligned rows."""
    return [
        *(one(f"copy {r}x{n} to {w} {t}", K.padded_copy(r, n, w, t), True)
          for r, n, w, t in ((33, 77, 80, "bf16"), (64, 65, 128, "f16"), (17, 127, 128, "bf16"), (9, 70, 96, "f32"))),
        one("from the fourth column", K.padded_copy(21, 67, 64, skip=3), True),
        one("a column of few rows", K.padded_copy(40, 1, 16, "f16"), True),
        one("concatenated", K.concatenated(9, 47, 81, "bf16")),
        one("rows by name", K.padded_copy(S, 37, 48), True, s=29),
    ]  # fmt: skip


def turn_cases() -> list[Case]:
    shapes = ((40, 24, "f32"), (64, 32, "bf16"), (40, 136, "bf16"), (68, 36, "f32"), (63, 65, "f16"), (65, 63, "f32"),
              (1, 64, "f32"), (64, 1, "f16"), (31, 33, "bf16"), (32, 32, "f32"))  # fmt: skip
    return [
        *(one(f"transpose {r}x{n} {t}", K.added_transpose(r, n, t), True) for r, n, t in shapes),
        one("transpose, rows by name", K.added_transpose(S, 40, "f16"), True, s=37),
        one("transpose, rows by name, one", K.added_transpose(S, 64, "bf16"), True, s=1),
    ]


def row_cases() -> list[Case]:
    return [
        *(one(f"rms norm {r}x{n} {t}", K.rms_norm(r, n, t))
          for r, n, t in ((5, 256, "f32"), (3, 255, "bf16"), (2, 257, "f16"), (33, 5, "f32"), (9, 32, "f16"))),
        one("rms norm, rows by name", K.rms_norm(S, 128, "bf16"), s=11),
        one("residual and rms norm", K.add_rms_norm(5, 512)),
        one("softmax 7x256", K.softmax(7, 256, "bf16")),
        one("softmax, long odd", K.softmax(2, 1025)),
        one("softmax, length by name", K.softmax(3, S), s=515),
        one("softmax, one pass", K.softmax(3, 500, twisted=True)),
        one("softmax, one pass in vectors", K.softmax(3, 512, "bf16", twisted=True)),
        one("softmax, masked rows", K.masked_softmax(9, 40)),
        one("layer norm 6x256", K.layer_norm(6, 256, "f16")),
        one("layer norm, odd", K.layer_norm(3, 33)),
        one("column sums 100x70", K.column_sum(100, 70), True),
        one("column sums, half", K.column_sum(33, 64, "bf16"), True),
        one("column sums, one column", K.column_sum(65, 1, "f16"), True),
        one("channel statistics", K.channel_statistics(3, 5, 28)),
        one("sum of all", K.whole_sum(1500, "bf16"), True),
        one("integers and booleans", K.integer_folds(9, 70), True),
        one("matrix times vector", B.matvec(17, 128), True),
        one("matrix times a normalized vector", B.scaled_linear(1, 17, 128)),
    ]  # fmt: skip


def scan_cases() -> list[Case]:
    shapes = ((3, 1500, "f32"), (5, 77, "bf16"), (2, 256, "f16"), (1, 257, "f32"), (4, 255, "f32"), (7, 1, "f32"),
              (1, 1, "bf16"), (9, 32, "f32"), (8, 33, "f16"), (2, 31, "f32"), (3, 1024, "f32"), (2, 1023, "bf16"),
              (2, 1025, "f32"))  # fmt: skip
    return [
        # integers whose running sums stay small enough for 8 bits of mantissa only in f32
        *(one(f"cumulative sum {r}x{n} {t}", K.cumulative(r, n, dtype=t), t == "f32") for r, n, t in shapes),
        one("cumulative maximum, first axis", K.cumulative(40, 33, "max", first=True), True),
        one("cumulative product", K.cumulative(2, 20, "prod")),
        one("cumulative sum, first axis", K.cumulative(65, 7, first=True), True),
        one("cumulative maximum 3x129", K.cumulative(3, 129, "max", dtype="bf16"), True),
    ]


def plain_cases() -> list[Case]:
    names = ("bias and gelu 33x77 bf16", "rotary, odd halves", "positions", "update of a cache", "outer product")
    rows = (
        "rms norm 33x5 f32",
        "softmax, masked rows",
        "layer norm, odd",
        "column sums 100x70",
        "integers and booleans",
    )
    return [
        *(c for c in map_cases() if c.name in names),
        *(c for c in row_cases() if c.name in rows),
        one("two spaces", K.two_spaces(5, 7), True),
        one("cumulative sum 2x31", K.cumulative(2, 31), True),
        one("linear 9x7x5", B.linear(9, 7, 5), True),
        one("attention 1x2x5x7x8", B.attention(1, 2, 1, 5, 7, 8)),
    ]


EDGES: Final = (
    (64, 64, 64),
    (63, 65, 64),
    (65, 63, 63),
    (1, 64, 65),
    (64, 1, 64),
    (33, 40, 16),
    (31, 33, 17),
    (128, 32, 48),
)


def contraction_cases() -> list[Case]:
    """Bodies that both families of contractions take."""
    return [
        *(one(f"linear {m}x{n}x{k} {t}", B.linear(m, n, k, t), True)
          for (m, n, k), t in zip(EDGES, ("bf16", "f16") * 4, strict=True)),
        one("bias, activation, batch, k by n", B.linear(24, 40, 72, bias=True, batch=2, trans_b=False, act=True)),
        one("transposed left", B.linear(64, 48, 40, trans_a=True), True),
        one("scale in the epilogue", B.rms_linear(33, 40, 64)),
        one("scale on the operand", B.rms_linear(33, 40, 72, factored=False)),
        one("two rows, scale on the operand", B.rms_linear(2, 40, 72, factored=False)),
        one("mean and deviation on the operand", B.layer_linear(33, 24, 72)),
        one("five rows, mean and deviation", B.layer_linear(5, 40, 64, "f16")),
        one("transposed, mean and deviation", B.layer_linear(8, 40, 64, trans_a=True)),
        one("two results", B.rms_linear(32, 48, 48, keep=True)),
        one("two sums", B.swiglu(33, 40, 64)),
        one("head split", B.head_split(40, 2, 16, 64), True),
        one("head merge", B.head_merge(40, 2, 16, 64), True),
        one("patches", B.patches(1, 3, 16, 4, 32), True),
        one("dequantized", B.dequant(8, 16, 40)),
        one("guarded halves", B.rotated(40, 24, 64), True),
        one("symbolic rows", B.linear(S, 48, 64), True, s=37),
        one("symbolic sum", B.linear(40, 48, S), True, s=45),
        one("empty sum", B.linear(8, 8, S), True, s=0),
    ]  # fmt: skip


def window_cases() -> list[Case]:
    """Factors whose rows begin at every alignment, at the operand's end too."""
    shapes = (
        (33, 37, 65, "bf16"),
        (40, 24, 67, "f16"),
        (65, 66, 70, "bf16"),
        (31, 63, 129, "bf16"),
        (64, 33, 100, "f16"),
    )
    sides = ((False, True), (True, True), (False, False), (True, False))
    return [
        *(one(f"linear {m}x{n}x{k} {t}{' m by k' * a}{' k by n' * (not b)}",
              B.linear(m, n, k, t, trans_a=a, trans_b=b), True) for m, n, k, t in shapes for a, b in sides),
        one("batch", B.linear(24, 39, 71, batch=2, trans_b=False), True),
        one("scale on the operand", B.rms_linear(33, 40, 73, factored=False)),
        one("scale in the epilogue", B.rms_linear(33, 40, 75)),
        one("two sums", B.swiglu(33, 40, 69)),
        one("symbolic rows", B.linear(S, 48, 65), True, s=37),
        one("symbolic sum", B.linear(40, 49, S, trans_b=False), True, s=45),
    ]  # fmt: skip


def padded_cases() -> list[Case]:
    """Products of copies whose lines are aligned, of odd extents, and products that write such copies."""
    return [
        one("linear 33x65x77", B.padded_linear(33, 65, 77), True),
        one("k by n 33x65x77", B.padded_linear(33, 65, 77, trans_b=False), True),
        one("m by k, k by n, f16", B.padded_linear(65, 33, 67, "f16", trans_a=True, trans_b=False), True),
        one("batch", B.padded_linear(24, 39, 71, batch=3, trans_b=False), True),
        one("whole lines", B.padded_linear(65, 77, 33, "f16", whole=True), True),
        one("whole lines, batch, activation", B.padded_linear(33, 41, 129, batch=2, whole=True, act=True)),
        one("one row", B.padded_linear(1, 65, 131), True),
        one("to aligned lines", B.padded_linear(33, 77, 65, whole=True, out=True), True),
        one("to aligned lines, activation", B.padded_linear(70, 61, 67, trans_b=False, out=True, act=True)),
        one("batch to aligned lines, f16", B.padded_linear(40, 35, 72, "f16", batch=2, out=True), True),
    ]


def line_cases() -> list[Case]:
    """Products whose factors TMA moves and whose results it cannot store."""
    return [
        one("linear 65x63x64", B.linear(65, 63, 64), True),
        one("linear 130x202x72 f16", B.linear(130, 202, 72, "f16"), True),
        one("bias, activation", B.linear(70, 77, 72, bias=True, act=True)),
        one("batches that begin at odd elements", B.linear(33, 65, 72, batch=3), True),
        one("two sums", B.swiglu(130, 41, 64)),
        one("scale in the epilogue", B.rms_linear(72, 41, 64)),
        one("copies of odd operands", B.padded_linear(65, 77, 67, "f16", whole=True), True),
        one("less than a tile", B.linear(257, 5, 64), True),
        one("columns by name", B.linear(72, S, 64), True, s=141),
        one("rows of 8 bits", B.f8_linear(65, 41, 144, "f8e5m2", scaled="row", bias=True)),
    ]


def boxed_cases() -> list[Case]:
    """Bodies whose factors lie in memory as TMA takes them; others have no rows in this group."""
    return [
        *contraction_cases(),
        one("row scalars from the tiles", B.scaled_linear(33, 40, 136)),
        one("greatest of a row from the tiles", B.scaled_linear(65, 24, 72, by="max")),
        one("both along rows, batch", B.linear(24, 40, 72, trans_a=True, trans_b=False, batch=2), True),
        one("sum by name", B.linear(40, 48, S, trans_a=True, trans_b=False), True, s=45),
        one("no sum by name", B.linear(8, 8, S, trans_a=True, trans_b=False), True, s=0),
    ]


def picked_cases() -> list[Case]:
    """Which matrix, or which row, is multiplied is data."""
    return [
        one("matrices 33x40x72", B.picked_linear(3, 33, 40, 72), True),
        one("matrices as they lie", B.picked_linear(2, 24, 40, 72, trans_b=False), True),
        one("matrices, f16, ragged", B.picked_linear(5, 17, 33, 45, "f16")),
        one("matrices, f32", B.picked_linear(3, 9, 40, 36, "f32"), True),
        one("matrices, f32, as they lie", B.picked_linear(3, 20, 24, 33, "f32", trans_b=False)),
        one("matrices by index from the end", B.picked_linear(2, 24, 32, 64, wrap=True)),
        one("one row a matrix", B.picked_linear(7, 1, 40, 72, trans_b=False)),
        one("rows 33x40x72", B.picked_rows(33, 40, 72), True),
        one("rows, f16, ragged", B.picked_rows(40, 33, 45, "f16")),
        one("rows, f32", B.picked_rows(20, 24, 36, "f32")),
        one("matrices by name", B.picked_linear(S, 24, 40, 72), s=3),
    ]


def computed_cases() -> list[Case]:
    """Bodies one of whose factors is computed on load; others have no rows in the group of computed left factors."""
    return [
        *contraction_cases(),
        one("activation 65x40x72", B.prologue(65, 40, 72, "silu")),
        one("activation, transposed, f16", B.prologue(72, 64, 40, "silu", "f16", trans_a=True, trans_b=False)),
        one("gate 33x72x136", B.prologue(33, 72, 136, "gate")),
        one("gate, batch", B.prologue(24, 40, 72, "gate", "f16", batch=2)),
        one("normalization 63x40x72", B.prologue(63, 40, 72, "norm")),
        one("row scale 1x64x64", B.prologue(1, 64, 64, "row")),
        one("f32 factor 64x33x36", B.prologue(64, 40, 40, "cast")),
        one("f8 factor 33x40x80", B.prologue(33, 40, 80, "f8e4m3")),
        one("two sums, one factor computed", B.prologue(65, 40, 72, "both")),
        one("dequantized, whole rows", B.dequant(8, 65, 80), True),
        one("dequantized f8", B.dequant(33, 64, 48, "f16", "f8e5m2"), True),
        one("symbolic rows, activation", B.prologue(S, 48, 64, "silu"), s=37),
        one("symbolic sum, row scale", B.prologue(40, 64, S, "row", trans_a=True, trans_b=False), s=45),
    ]


def eighth_cases() -> list[Case]:
    """Products of 8-bit floats; integers are exact in their short sums, too."""
    types = ("f8e4m3", "f8e5m2") * 4
    return [
        *(one(f"linear {m}x{n}x{k} {t}", B.f8_linear(m, n, k, t), True)
          for (m, n, k), t in zip(((64, 64, 64), (63, 65, 64), (1, 64, 80), (64, 1, 128), (65, 40, 272)), types,
                                  strict=False)),
        one("scales of tensors", B.f8_linear(33, 40, 144, scaled="tensor")),
        one("scales of rows, bias", B.f8_linear(40, 72, 80, scaled="row", bias=True)),
        one("results of f16", B.f8_linear(64, 48, 400, "f8e5m2", out="f16"), True),
        one("batch", B.f8_linear(24, 40, 144, batch=2), True),
        one("symbolic rows", B.f8_linear(S, 48, 64, scaled="tensor"), s=37),
    ]  # fmt: skip


def tf32_cases() -> list[Case]:
    """Products of f32 whose factors tf32 holds where they are small integers, stored so or computed."""
    shapes = ((64, 64, 32), (63, 65, 36), (1, 64, 68), (64, 1, 64), (65, 40, 132), (17, 24, 520), (130, 72, 4))
    return list(in_tf32(
        *(one(f"linear {m}x{n}x{k}", B.linear(m, n, k, "f32"), True) for m, n, k in shapes),
        one("bias", B.linear(40, 72, 100, "f32", bias=True), True),
        one("batch", B.linear(24, 40, 72, "f32", batch=2), True),
        one("greatest of a row from the tiles", B.scaled_linear(33, 40, 136, "f32", by="max"), True),
        one("row scale on the operand", B.prologue(33, 72, 136, "row", "f32"), True),
        one("row scale, batch", B.prologue(24, 40, 72, "row", "f32", batch=2), True),
        one("i8 factor", B.prologue(65, 40, 80, "i8", "f32"), True),
        one("i8 weight", B.dequant(17, 65, 80, "f32"), True),
        one("symbolic rows", B.linear(S, 48, 64, "f32"), True, s=37),
    ))  # fmt: skip


def tile_cases() -> list[Case]:
    odd = ((33, 40, 16), (63, 65, 64), (1, 33, 40), (64, 64, 32))
    turned = ((True, True), (False, False), (True, False))
    return [
        *contraction_cases(),
        *(one(f"linear {m}x{n}x{k} f32", B.linear(m, n, k, "f32"), True) for m, n, k in odd),
        *(one(f"linear f32, left {'k' if a else 'm'} rows, right {'n' if b else 'k'} rows",
              B.linear(36, 40, 68, "f32", trans_a=a, trans_b=b), True) for a, b in turned),
        one("two sums f32", B.swiglu(33, 40, 64, "f32")),
        one("few rows f32", B.linear(3, 40, 260, "f32"), True),
        one("symbolic rows f32", B.linear(S, 48, 64, "f32"), True, s=37),
        one("chunks of a sum f32", B.linear(9, 11, 1100, "f32"), True),
        one("chunks of two sums f32", B.swiglu(5, 12, 1030, "f32")),
    ]  # fmt: skip


def parts_cases() -> list[Case]:
    """Sums long enough to be shared by several blocks, on and beside what divides them evenly."""
    return [
        one("linear 16x40x512", B.linear(16, 40, 512), True),
        one("linear 33x24x552 f16", B.linear(33, 24, 552, "f16"), True),
        one("linear 1x65x520", B.linear(1, 65, 520), True),
        one("linear 40x1x513", B.linear(40, 1, 513), True),
        one("bias, activation, batch, k by n", B.linear(8, 40, 520, bias=True, batch=2, trans_b=False, act=True)),
        one("scale in the epilogue", B.rms_linear(17, 24, 512)),
        one("scale on the operand", B.rms_linear(17, 24, 520, factored=False)),
        one("two results", B.rms_linear(16, 32, 576, keep=True)),
        one("two sums", B.swiglu(17, 24, 520)),
        one("row scalars", B.scaled_linear(16, 40, 512, by="max")),
    ]


def long_cases() -> list[Case]:
    """Sums of sixteen stages and more."""
    return [
        one("linear 16x40x1024", B.linear(16, 40, 1024), True),
        one("linear 72x24x1100 f16", B.linear(72, 24, 1104, "f16"), True),
        one("linear 1x72x1032", B.linear(1, 72, 1032), True),
        one("bias, activation, batch, k by n", B.linear(8, 64, 1040, bias=True, batch=2, trans_b=False, act=True)),
        one("two sums", B.swiglu(17, 24, 1032)),
        one("row scalars", B.scaled_linear(16, 40, 1024, by="max")),
    ]


def told_cases() -> list[Case]:
    """Row scalars of which every block of a cluster sees a share of the row; the last share has fewer stages."""
    return [
        one("scale in the epilogue 16x24x512", B.rms_linear(16, 24, 512)),
        one("scale in the epilogue 17x40x520 f16", B.rms_linear(17, 40, 520, "f16")),
        one("scale in the epilogue 65x64x1040", B.rms_linear(65, 64, 1040)),
        one("scale of plain rows 63x24x512", B.scaled_linear(63, 24, 512)),
        one("scale of plain rows 1x40x1032 f16", B.scaled_linear(1, 40, 1032, "f16")),
        one("greatest of a row", B.scaled_linear(33, 40, 1040, by="max")),
        one("least of a row", B.scaled_linear(72, 8, 456, by="min")),
    ]


def stream_cases() -> list[Case]:
    """Tiles for one to four waves of a card of three multiprocessors."""
    return [
        one("linear 256x64x256", B.linear(256, 64, 256), True),
        one("linear 200x130x328 f16", B.linear(200, 130, 328, "f16"), True),
        one("bias, activation, k by n", B.linear(260, 72, 264, bias=True, trans_b=False, act=True)),
        one("batch", B.linear(70, 64, 256, batch=2), True),
        one("two sums", B.swiglu(250, 72, 256)),
        one("transposed left", B.linear(256, 64, 264, trans_a=True), True),
    ]


def tile_parts_cases() -> list[Case]:
    odd = ((17, 40, 264), (63, 33, 129), (1, 33, 520), (3, 130, 96))
    return [
        *(one(f"linear {m}x{n}x{k} f32", B.linear(m, n, k, "f32"), True) for m, n, k in odd),
        one("bias, activation, batch, k by n", B.linear(8, 40, 136, bias=True, batch=2, trans_b=False, act=True)),
        one("scale in the epilogue", B.rms_linear(17, 24, 136)),
        one("two sums", B.swiglu(17, 24, 136)),
        one("transposed left", B.linear(16, 48, 140, trans_a=True), True),
        one("chunks of shares f32", B.linear(5, 20, 2100, "f32"), True),
    ]


def attention_cases() -> list[Case]:
    return [
        one("whole tiles", B.attention(1, 2, 2, 32, 64, 16)),
        one("one below", B.attention(1, 2, 1, 31, 63, 16)),
        one("one above", B.attention(1, 1, 1, 33, 65, 32, dtype="f16")),
        one("causal, grouped heads", B.attention(1, 4, 2, 40, 40, 24, causal=True)),
        one("additive mask, token major", B.attention(1, 2, 2, 33, 70, 32, mask="add", token_major=True)),
        one("one query", B.attention(1, 4, 2, 1, 50, 64)),
        one("one key", B.attention(1, 2, 1, 17, 1, 16)),
        one("short values", B.attention(1, 2, 1, 20, 30, 24, value_dim=8, causal=True)),
        one("symbolic", B.attention(1, 2, 1, S, S, 16, causal=True), s=45),
        one("causal, token major", B.attention(1, 2, 1, 40, 90, 16, causal=True, token_major=True)),
    ]


def attention_thread_cases() -> list[Case]:
    more = [
        one("odd heads", B.attention(1, 2, 1, 20, 30, 13, value_dim=9)),
        one("f32", B.attention(1, 2, 1, 17, 33, 16, dtype="f32", causal=True)),
        one("f32, one query", B.attention(2, 2, 1, 1, 33, 8, dtype="f32")),
        one("f32, mask", B.attention(1, 2, 1, 9, 31, 16, dtype="f32", mask="add")),
    ]
    return [*attention_cases(), *more]


def partial_cases() -> list[Case]:
    return [
        one("parts of a sum 3x4x64", partial_sum(3, 4, 64), True),
        one("parts of a sum, one row", partial_sum(1, 8, 129, "bf16"), True),
        one("parts of a maximum", partial_sum(5, 3, 63, kind="max"), True),
        one("parts of a linear 1x40", partial_linear(1, 40, 4, 64), True),
        one("parts of a linear 33x24", partial_linear(33, 24, 2, 48, "f16"), True),
        one("parts of a linear 64x1", partial_linear(64, 1, 3, 33), True),
    ]


def finish_cases() -> list[Case]:
    return [
        one("finished sum 4x3", finish_sum(4, 3), True),
        one("finished sum 8x1", finish_sum(8, 1), True),
        one("finished maximum 3x5", finish_sum(3, 5, kind="max"), True),
        one("finished linear 4x1x40 bf16", finish_sum(4, 1, 40, dtype="bf16", bias=True), True),
        one("finished linear 2x33x24 f16", finish_sum(2, 33, 24, dtype="f16"), True),
        one("finished sum of many 512x2", finish_sum(512, 2), True),
        one("finished linear 3x64x65", finish_sum(3, 64, 65, dtype="bf16"), True),
    ]


@dataclass(frozen=True, slots=True)
class Group:
    """`takes`: whether a legal row of one of the cases belongs to the group."""

    cases: Callable[[], list[Case]]
    takes: Callable[[Scheduled], bool]
    card: Target = ANY_ORDER


def _family(name: str, unit: str = "tw") -> Callable[[Scheduled], bool]:
    return lambda s: s.family == name and s.row.work.unit in unit


def _tile(s: Scheduled) -> bool:
    return s.family == "tile" and not s.row.reduce.parts


def _lying(s: Scheduled) -> bool:
    return _tile(s) and not s.row.stage.turn


def _copies(s: Scheduled) -> bool:
    return s.row.stage.where == "smem-async"


def _mma(s: Scheduled) -> bool:
    return s.family == "mma" and not s.row.reduce.parts


def _told(s: Scheduled) -> bool:
    return s.row.reduce.parts in (2, 4) and not s.row.reduce.finish and s.row.work.dims[0] > 1


GROUPS: Final[dict[str, Group]] = {
    "map": Group(map_cases, _family("map")),
    "map_shifted": Group(shifted_cases, lambda s: s.family == "map" and s.row.tile.fragment[-1] >= 8),
    "turn": Group(turn_cases, _family("turn")),
    "row": Group(row_cases, _family("row")),
    "scan": Group(scan_cases, _family("scan")),
    "plain": Group(plain_cases, _family("plain")),
    "tile": Group(tile_cases, lambda s: _lying(s) and not (s.row.reduce.coop or s.row.stage.registers)),
    "tile_ahead": Group(tile_cases, lambda s: _lying(s) and s.row.stage.registers and not s.row.reduce.coop),
    "tile_coop": Group(tile_cases, lambda s: _lying(s) and s.row.reduce.coop),
    "tile_turned": Group(tile_cases, lambda s: _tile(s) and s.row.stage.turn),
    "tile_parts": Group(tile_parts_cases, lambda s: s.family == "tile" and s.row.reduce.parts > 1),
    "mma": Group(contraction_cases, lambda s: _mma(s) and s.row.stage.where != "smem-tma"),
    # small integers, which tf32 holds
    "tf32": Group(lambda: [c for c in tile_cases() if c.exact], _family("tf32"), allowing(CARD, "tf32")),
    "mma_windows": Group(window_cases, lambda s: _mma(s) and s.row.stage.where == "smem"),
    "mma_boxes": Group(boxed_cases, lambda s: _mma(s) and s.row.stage.where == "smem-tma"),
    "padded": Group(padded_cases, lambda s: s.family in ("mma", "wgmma")),
    "mma_parts": Group(parts_cases, lambda s: s.family == "mma" and s.row.reduce.parts > 1),
    "picked": Group(picked_cases, lambda s: _tile(s) or s.family == "row" or (_mma(s) and not _copies(s))),
    "picked_copies": Group(picked_cases, lambda s: _mma(s) and _copies(s)),
    "wgmma": Group(contraction_cases, lambda s: s.family == "wgmma" and not s.row.stage.registers),
    "wgmma_lines": Group(line_cases, lambda s: s.family == "wgmma" and s.row.stage.out),
    "wgmma_parts": Group(long_cases, lambda s: s.family == "wgmma" and s.config.exchange > 0 and not s.config.stream),
    "wgmma_told": Group(told_cases, lambda s: s.family == "wgmma" and _told(s)),
    "wgmma_stream": Group(stream_cases, lambda s: s.config.stream, replace(CARD, sms=3)),
    "wgmma_eighth": Group(eighth_cases, _family("wgmma")),
    "wgmma_tf32": Group(tf32_cases, _family("wgmma"), allowing(CARD, "tf32,atomics")),
    "wgmma_computed": Group(computed_cases, lambda s: s.family == "wgmma" and s.row.stage.registers),
    "attention": Group(attention_thread_cases, _family("attention", "t")),
    "attention_mma": Group(attention_cases, _family("attention", "w")),
    "partial": Group(partial_cases, lambda s: s.family != "plain"),
    "finish": Group(finish_cases, lambda s: s.family != "plain"),
}


@dataclass(frozen=True)
class Sample:
    """One case under one legal row."""

    group: str
    case: Case
    scheduled: Scheduled

    @property
    def kernel(self) -> Kernel:
        limits = {n: max(64, v) for n, v in self.case.sizes.items()}
        card = GROUPS[self.group].card if self.group in GROUPS else CARD
        return lower(self.case.body, self.scheduled.family, self.scheduled.row, card, "k_test", limits=limits)

    @property
    def label(self) -> str:
        return f"{self.group}: {self.case.name} under {self.scheduled.family} {self.scheduled.row.text}"


@functools.cache
def legal(group: str) -> tuple[tuple[Case, tuple[Scheduled, ...]], ...]:
    """The cases of a group, each with its legal rows that belong to the group."""
    cases = GROUPS[group].cases()
    found = []
    for c in cases:  # one by one: rows depend on the values of symbolic sizes
        rows = schedule_rows([c.body], GROUPS[group].card, c.sizes, RULESETS).rows[c.body.hash]
        found.append((c, tuple(s for s in rows if GROUPS[group].takes(s))))
    return tuple(found)


def sampled(group: str, count: int, seed: object = 0) -> list[Sample]:
    """`count` rows (all where there are fewer), spread evenly over the group's cases, by chance within a case."""
    rng = random.Random(f"{group}:{seed}")
    piles = [(c, rng.sample(rows, len(rows))) for c, rows in legal(group) if rows]
    picked: list[Sample] = []
    while piles and len(picked) < count:
        for c, rows in piles:
            picked.append(Sample(group, c, rows.pop()))
        piles = [(c, rows) for c, rows in piles if rows]
    return picked[:count]
