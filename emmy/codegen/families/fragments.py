"""ldmatrix reads of mma.m16n8k16 operand fragments from shared tiles, in both orders.

`k_inner` says that the tile's rows run along k ([m][k] or [n][k]); otherwise the tile is [k][m] or [k][n] and the
matrices are transposed on the way.  Lines may come in slabs, as TMA brings them (`boxes`).  Fragment maps: PTX ISA
manual, mma.m16n8k16 and ldmatrix.
"""

from __future__ import annotations

from emmy.codegen.expr import Code, add, div, i32, mod, mul
from emmy.codegen.families.boxes import tile_at
from emmy.ir.kernel import Buffer, Elem, LdMatrix, Var, X


def load_a(code: Code, b: Buffer, k_inner: bool, lane: X, array: Var, at: X, slot: X, m0: X, k0: X) -> None:
    """A 16x16 fragment into array[at .. at+3]: (m 0-7, k 0-7), (m 8-15, k 0-7), (m 0-7, k 8-15), (m 8-15, k 8-15)."""
    dst = tuple(Elem(array.name, add(at, q), "u32") for q in range(4))
    if k_inner:
        place = tile_at(b, slot, add(m0, mod(lane, 16)), add(k0, mul(div(lane, 16), 8)))
    else:
        k, m = add(mul(div(lane, 16), 8), mod(lane, 8)), mul(mod(div(lane, 8), 2), 8)
        place = tile_at(b, slot, add(k0, k), add(m0, m))
    code.emit(LdMatrix(dst, place, not k_inner))


def load_b(
    code: Code, b: Buffer, k_inner: bool, lane: X, array: Var, at: X, slot: X, n0: X, k0: X, count: int = 4
) -> None:
    """Two 16x8 fragments (one where `count` is 2): (k 0-7, n 0-7), (k 8-15, n 0-7), then n 8-15 likewise."""
    dst = tuple(Elem(array.name, add(at, q), "u32") for q in range(count))
    high = div(lane, 16) if count == 4 else i32(0)
    if k_inner:
        n, k = add(mul(high, 8), mod(lane, 8)), mul(mod(div(lane, 8), 2), 8)
        place = tile_at(b, slot, add(n0, n), add(k0, k))
    else:
        place = tile_at(b, slot, add(k0, mod(lane, 16)), add(n0, mul(high, 8)))
    code.emit(LdMatrix(dst, place, not k_inner))
