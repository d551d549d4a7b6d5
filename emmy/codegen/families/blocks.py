"""Which output tile a block makes: a one-dimensional grid over batch, rows and columns of tiles, in raster order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emmy.codegen.expr import BID, Code, add, div, lt, mod, mul, select, sub
from emmy.codegen.families.frame import Frame
from emmy.ir.build import iadd, idiv, imul
from emmy.ir.kernel import Lit, X
from emmy.ir.loop import Ax, Expr, const
from emmy.ir.views.box import points


@dataclass(frozen=True)
class Blocks:
    """`m0`, `n0`: first linear row and column of the block; `batch`: values of the batch axes."""

    grid: tuple[Expr, Expr, Expr]
    batch: dict[Ax, X]
    m0: X
    n0: X
    m_total: X
    n_total: X


def tiles_of(axes: Sequence[Ax], tile: int) -> Expr:
    """The number of tiles that cover the axes' points, as a Loop IR integer."""
    return idiv(iadd(points(axes), tile - 1), tile)


def place_blocks(
    frame: Frame, batch: Sequence[Ax], m: Sequence[Ax], n: Sequence[Ax], tile_m: int, tile_n: int, group: int = 0,
    reverse_m: bool = False, code: Code | None = None, index: X = BID,
) -> Blocks:  # fmt: skip
    """The block's tile, or with `code` the tile `index` of a persistent block.

    Row major order, or with `group` bands of that many rows of tiles, within which columns advance slowest: bands keep
    the operands of the blocks that run together in L2.  `reverse_m` starts with the last rows (the longest ones of a
    causal mask).
    """
    code = frame.code if code is None else code
    rows, columns = tiles_of(m, tile_m), tiles_of(n, tile_n)
    grid = (imul(points(batch), imul(rows, columns)), const(1), const(1))
    tm, tn = frame.count(rows), frame.count(columns)
    m_total, n_total = frame.total(m), frame.total(n)
    per_batch = mul(tm, tn)
    which = index if not batch else code.let("tile", mod(index, per_batch))
    env = frame.decode(div(index, per_batch), batch) if batch else {}
    env = {a: code.let(f"b{k}", x) for k, (a, x) in enumerate(env.items())}
    if group > 1:
        band = mul(tn, group)
        first = code.let("band", mul(div(which, band), group))
        height = code.let("height", select(lt(sub(tm, first), group), sub(tm, first), frame.count(const(group))))
        inside = code.let("inside", mod(which, band))
        row, column = add(first, mod(inside, height)), div(inside, height)
    else:
        row, column = div(which, tn), mod(which, tn)
    if reverse_m:
        row = sub(add(tm, -1), row)
    m0, n0 = mul(row, tile_m), mul(column, tile_n)
    m0 = m0 if isinstance(m0, Lit) else code.let("m0", m0)
    n0 = n0 if isinstance(n0, Lit) else code.let("n0", n0)
    return Blocks(grid, env, m0, n0, m_total, n_total)
