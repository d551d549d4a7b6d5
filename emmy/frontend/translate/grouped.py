"""Products whose weight depends on the row: experts, whose rows are sorted by the weight that they meet.

`grouped_mm(x, w, offs)` multiplies rows offs[e-1] to offs[e] of x with w[e].  Which rows those are is data, so rows are
laid out in blocks of `block` rows that each belong to one group:

    blocks before group e    first[e] = sum of ceil(rows / block) of the groups before it
    group of block b         how many groups end at or before it
    row r of block b         x[start of its group + (b - first) * block + r]

which is a batched product whose batch picks its weight by an index tensor, between two gathers.  There are
ceil(rows / block) + groups blocks whatever the data are; rows beyond a group's end are computed and not read.  Rows
behind the last group's end, which PyTorch leaves undefined, are zeros.
"""

from __future__ import annotations

from typing import Final

from emmy.frontend.translate.call import Call, Decline, Handler, convert, number
from emmy.frontend.translate.contraction import labelled, matmul_of
from emmy.frontend.translate.indexing import read
from emmy.frontend.translate.layout import reshape
from emmy.ir.build import iadd, idiv, imod, imul, isub, scalar
from emmy.ir.loop import Expr, const
from emmy.ir.tensor import Terms, coordinates

ZERO: Final = const(0)
ONE: Final = const(1)
# Rows of a block: about half of what a group has on average, as tiles of tensor cores have rows.  With few rows a group
# every row is a block of its own, which reads each weight that it needs and computes nothing in vain.
FEWEST: Final = 8
BLOCKS: Final = (128, 64, 32, 16)


def block_rows(rows: Expr, groups: Expr) -> int:
    """Rows of a block; 1 where there are few rows a group, or nobody knows how many."""
    n, e = number(rows), number(groups)
    if n is None or not e or n < FEWEST * e:
        return 1
    return next((b for b in BLOCKS if 2 * b * e <= n), BLOCKS[-1])


def grouped_rows(t: Terms, x: int, w: int, ends: int) -> int:
    """x[s, k] * w[e, k, n] where ends[e-1] <= s < ends[e]; rows behind the last end are zeros."""
    (rows, k), (groups, _, n) = t.shape(x), t.shape(w)
    block = block_rows(rows, groups)
    ends = convert(t, ends, "i64")
    (s,) = coordinates((rows,))
    group = _passed(t, ends, t.iota(s, (rows,)), groups)
    if block == 1:
        return _held(t, _picked(t, x, w, group, "sk", "sn"), ends)
    size = const(block)
    (e,) = coordinates((groups,))
    starts = t.map(ends, (isub(e, ONE),), (groups,), 0)
    many = t.bin("floordiv", t.bin("add", t.bin("sub", ends, starts), _whole(t, block - 1)), _whole(t, block))
    behind = t.scan("sum", many, 0)
    # from a row's place among blocks to its place in x
    shift = t.bin("sub", starts, t.bin("mul", t.bin("sub", behind, many), _whole(t, block)))
    blocks = iadd(idiv(iadd(rows, const(block - 1)), size), groups)
    (b,) = coordinates((blocks,))
    owner = _passed(t, behind, t.iota(b, (blocks,)), groups)
    at = t.bin("add", t.gather(shift, (read(t, 1, owner, (b,)),), [owner], (blocks,)), t.iota(imul(b, size), (blocks,)))
    c, r, i = coordinates((blocks, size, k))
    row = _within(iadd(read(t, 1, at, (c,)), r), rows)
    laid = t.gather(x, (row, i), [at], (blocks, size, k))
    made = _picked(t, laid, w, owner, "srk", "srn")
    flat = t.bin("sub", t.iota(s, (rows,)), t.gather(shift, (read(t, 1, group, (s,)),), [group], (rows,)))
    s, j = coordinates((rows, n))
    place = _within(read(t, 1, flat, (s,)), imul(blocks, size))
    return _held(t, t.gather(made, (idiv(place, size), imod(place, size), j), [flat], (rows, n)), ends)


def _held(t: Terms, x: int, ends: int) -> int:
    """x[s, n] where a group holds row s, else zero."""
    (rows, _), (groups,) = t.shape(x), t.shape(ends)
    s, _ = coordinates((rows, ONE))
    last = t.map(ends, (isub(groups, ONE),), (ONE, ONE))
    return t.where(t.bin("lt", t.iota(s, (rows, ONE)), last), x, t.full(0.0))


def _picked(t: Terms, x: int, w: int, group: int, xs: str, out: str) -> int:
    """The product of x with the weight that the first axis of x picks."""
    (many,), (_, k, n) = t.shape(group), t.shape(w)
    s, i, j = coordinates((many, k, n))
    weights = t.gather(w, (read(t, 1, group, (s,)), i, j), [group], (many, k, n))
    return labelled(t, "grouped_mm", x, xs, weights, "skn", out)


def _passed(t: Terms, ends: int, place: int, groups: Expr) -> int:
    """In which group each place lies: how many groups end at or before it, the last at most."""
    (many,) = t.shape(place)
    over = t.bin("le", reshape(t, ends, (ONE, groups)), reshape(t, place, (many, ONE)))
    count = t.reduce("sum", t.cast(over, "i64"), (1,))
    return t.bin("min", count, t.iota(isub(groups, ONE), (many,)))


def _whole(t: Terms, value: int) -> int:
    return t.iota(const(value), ())


def _within(e: Expr, n: Expr) -> Expr:
    """Inside of 0 … n-1, whatever the data."""
    return scalar("max", ZERO, scalar("min", e, isub(n, ONE)))


def grouped_mm(t: Terms, c: Call) -> int:
    """_grouped_mm and what transformers runs in its place: rows, columns or nothing of the operands is ragged."""
    x, w, ends = c.get(0, "self", c.kwargs.get("input")), c.get(1, "mat2", c.kwargs.get("weight")), c.get(2, "offs")
    if c.get(3, "bias") is not None:
        raise Decline("a bias")
    if t.dtype(x) != c.dtype:
        raise Decline("a product in another type than its factors")
    ranks = len(t.shape(x)), len(t.shape(w))
    if ends is None and ranks == (3, 3):
        return matmul_of(t, "grouped_mm", x, w)
    if ends is not None and ranks == (2, 3):
        return grouped_rows(t, x, w, ends)
    if ends is not None and ranks == (3, 2):
        return _turned(t, grouped_rows(t, _turned(t, w), _turned(t, x), ends))
    raise Decline("a ragged sum")


def _turned(t: Terms, x: int) -> int:
    """The last two axes exchanged."""
    shape = t.shape(x)
    other = (*shape[:-2], shape[-1], shape[-2])
    *lead, i, j = coordinates(other)
    return t.map(x, (*lead, j, i), other)


GROUPED: Final[dict[str, Handler]] = {"_grouped_mm": grouped_mm, "transformers.grouped_mm_fallback": grouped_mm}
