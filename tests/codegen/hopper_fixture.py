"""C = A B^T in bf16 for sm_90a, written in Kernel IR by hand: TMA, a ring, roles, wgmma and a store through TMA.

It is no family: it shows that the statements suffice for such a kernel and that printer, verifier, simulator and
runtime agree on what they mean.
"""

from __future__ import annotations

from typing import Final

from emmy.codegen.expr import add, both, call, compare, div, i32, lt, mod, mul, sub
from emmy.ir.kernel import (
    Advance,
    Barrier,
    Buffer,
    Builtin,
    BulkCommit,
    BulkWait,
    ClusterBarrier,
    Cursor,
    Declare,
    DependentLaunch,
    DependentWait,
    Elem,
    For,
    If,
    InitRings,
    Kernel,
    Let,
    Lit,
    Matrix,
    NamedBarrier,
    Param,
    Place,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    Role,
    Roles,
    S,
    StMatrix,
    Store,
    TensorMap,
    TmaLoad,
    TmaStore,
    Var,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import const

ROWS: Final = 128  # of a tile
DEPTH: Final = 64  # of k a stage: 128 bytes, the swizzle span
SWIZZLE: Final = swizzle_of(128)


def _i(name: str) -> Var:
    return Var(name, "i32")


def _at(buffer: Buffer, *index: X | int) -> Place:
    return Place("shared", buffer.name, tuple(i32(i) if isinstance(i, int) else i for i in index), buffer.type)


def hopper_gemm(
    m: int, n: int, k: int, *, tile_n: int = 128, stages: int = 4, groups: int = 2, blocks: int = 0,
    store: str = "tma", cluster: int = 1, dependent: bool = False,
) -> Kernel:  # fmt: skip
    """c[m, n] = sum over k of a[m, k] * b[n, k]; k and n multiples of 8 (rows of 16 bytes, as TMA needs them).

    Tiles of 128 x `tile_n` (a multiple of 64) by one or two consumer `groups`.  `blocks` > 0: so many persistent ones,
    else a block a tile.  `store`: tma (through shared memory) or direct.  `cluster` 2: two tiles of rows share the
    columns' operand, of which each block brings one half to both.  `dependent`: it starts while the kernel before still
    runs, and lets the next one start.
    """
    return _Gemm(m, n, k, tile_n, stages, groups, blocks, store, cluster, dependent).kernel()


class _Gemm:
    def __init__(
        self, m: int, n: int, k: int, tile_n: int, stages: int, groups: int, blocks: int, store: str, cluster: int,
        dependent: bool,
    ) -> None:  # fmt: skip
        assert k % 8 == 0 and n % 8 == 0 and tile_n % 64 == 0
        self.m, self.n, self.k = m, n, k
        self.tile_n, self.groups, self.blocks, self.store, self.cluster = tile_n, groups, blocks, store, cluster
        self.dependent = dependent
        self.per_group = 2 // groups  # blocks of 64 rows
        self.k_blocks = -(-k // DEPTH)
        self.tiles_n = -(-n // tile_n)
        self.tiles = -(-m // (ROWS * cluster)) * self.tiles_n  # of a cluster
        self.a = Buffer("a_s", "bf16", (stages, ROWS, DEPTH), SWIZZLE, align=1024)
        self.b = Buffer("b_s", "bf16", (stages, tile_n, DEPTH), SWIZZLE, align=1024)
        self.c = Buffer("c_s", "bf16", (groups, 64, 64), SWIZZLE, align=1024)
        self.ring = Ring("ab", stages, 1, 4 * groups * cluster)

    def kernel(self) -> Kernel:
        params = (Param("a", "bf16", "in"), Param("b", "bf16", "in"), Param("c", "bf16", "out"))
        maps = [self.map("a", self.m, self.k, ROWS, DEPTH), self.map("b", self.n, self.k, self.share, DEPTH)]
        if self.store == "tma":
            maps.append(self.map("c", self.m, self.n, 64, 64))
        shared = (self.a, self.b, self.c) if self.store == "tma" else (self.a, self.b)
        launched = self.cluster * (min(self.blocks, self.tiles) or self.tiles)
        few, many = (56, 240) if self.groups == 1 else (40, 232)
        together: S = Barrier() if self.cluster == 1 else ClusterBarrier()
        body: list[S] = [Let("tid", Builtin("tid"))]
        if self.cluster > 1:
            body.append(Let("rank", Builtin("cluster_rank")))
        body += [
            InitRings(),
            together,
            *([DependentLaunch(), DependentWait()] if self.dependent else []),
            Roles((Role("producer", 4, few, self.produce()), Role("consumer", 4 * self.groups, many, self.consume()))),
        ]
        if self.cluster > 1:
            body.append(together)  # nobody leaves while another block may still write or arrive here
        comment = f"hopper tile={ROWS}x{self.tile_n} stages={self.ring.depth} groups={self.groups} store={self.store}"
        return Kernel(
            "k_hopper", comment, params, shared, (const(launched), const(1), const(1)), 128 * (1 + self.groups),
            tuple(body), rings=(self.ring,), maps=tuple(maps), cluster=(self.cluster, 1, 1),
            dependent=self.dependent,
        )  # fmt: skip

    @property
    def share(self) -> int:
        """Rows of b that a block brings."""
        return self.tile_n // self.cluster

    def map(self, param: str, rows: int, columns: int, box_rows: int, box_columns: int) -> TensorMap:
        shape, strides = (const(rows), const(columns)), (const(columns), const(1))
        return TensorMap(f"map_{param}", param, "bf16", shape, strides, (box_rows, box_columns), 128)

    def over_tiles(self, body: tuple[S, ...], name: str) -> S:
        """The body for every tile of this block, with the registers `m_name` and `n_name` at its first element."""
        tile = _i(f"tile_{name}")
        row = mul(div(tile, self.tiles_n), ROWS * self.cluster)
        if self.cluster > 1:
            row = add(row, mul(_i("rank"), ROWS))
        start = (Let(f"m_{name}", row), Let(f"n_{name}", mul(mod(tile, self.tiles_n), self.tile_n)))
        first, step = (div(Builtin(x), self.cluster) for x in ("bid_x", "grid_x"))
        return For(tile, first, i32(self.tiles), step, (*start, *body))

    def produce(self) -> tuple[S, ...]:
        kb = _i("kb_p")
        at, k0 = _i("p_slot"), mul(kb, DEPTH)
        part: X | int = 0 if self.cluster == 1 else mul(_i("rank"), self.share)
        mask = None if self.cluster == 1 else Lit((1 << self.cluster) - 1, "u32")
        bytes = 2 * DEPTH * (ROWS + self.tile_n)
        stage = (
            RingWait("p", "empty"),
            RingArrive("p", "full", bytes),
            TmaLoad(_at(self.a, at, 0, 0), "map_a", (_i("m_p"), k0), "p"),
            TmaLoad(_at(self.b, at, part, 0), "map_b", (add(_i("n_p"), part), k0), "p", mask),
            Advance("p"),
        )
        loop = For(kb, i32(0), i32(self.k_blocks), i32(1), stage)
        return (If(compare("==", _i("tid"), 0), (Cursor("p", "ab"), self.over_tiles((loop,), "p"))),)

    def consume(self) -> tuple[S, ...]:
        lane, group = _i("lane"), _i("group")
        names: tuple[S, ...] = (
            Let("thread", sub(_i("tid"), 128)),
            Let("group", div(_i("thread"), 128)),
            Let("warp", mod(div(_i("thread"), 32), 4)),
            Let("lane", mod(_i("thread"), 32)),
            Cursor("q", "ab"),
            Cursor("done", "ab"),
        )
        if self.store == "tma":
            names = (*names, Let("first", compare("==", mod(_i("thread"), 128), 0)))
        rank = None if self.cluster == 1 else lane
        release = (If(lt(lane, self.cluster), (RingArrive("done", "empty", rank=rank),)), Advance("done"))
        rest = For(_i("kb_q"), i32(1), i32(self.k_blocks), i32(1), (*self.products(True), WgmmaWait(1), *release))
        tile: tuple[S, ...] = (
            Declare("acc", "f32", count=self.per_group * self.tile_n // 2),
            *self.products(False),
            rest,
            WgmmaWait(0),
            *release,
            *(self.stored_by_tma(group) if self.store == "tma" else self.stored(group)),
        )
        end = (If(Var("first", "bool"), (BulkWait(0),)),) if self.store == "tma" else ()
        return (*names, self.over_tiles(tile, "q"), *end)

    def products(self, accumulate: bool) -> tuple[S, ...]:
        """One stage, committed as one group."""
        slot, out = _i("q_slot"), []
        for j in range(DEPTH // 16):
            for i in range(self.per_group):
                row = add(mul(_i("group"), 64 * self.per_group), 64 * i)
                a, b = Matrix(_at(self.a, slot, row, 16 * j)), Matrix(_at(self.b, slot, 0, 16 * j))
                at = i32(i * self.tile_n // 2)
                out.append(Wgmma("acc", at, self.tile_n, "bf16", a, b, accumulate or j > 0))
        return (RingWait("q", "full"), WgmmaFence(), *out, WgmmaCommit(), Advance("q"))

    def row(self, group: X, i: int) -> X:
        return add(_i("m_q"), add(mul(group, 64 * self.per_group), 64 * i))

    def stored(self, group: X) -> list[S]:
        """Every thread stores the two neighbours that it has of each 8 columns."""
        out: list[S] = []
        for i in range(self.per_group):
            j, h, e = _i(f"j_{i}"), _i(f"h_{i}"), _i(f"e_{i}")
            row = add(self.row(group, i), mul(_i("warp"), 16), div(_i("lane"), 4), mul(h, 8))
            column = add(_i("n_q"), mul(j, 8), mul(mod(_i("lane"), 4), 2), e)
            value = Elem("acc", add(mul(j, 4), mul(h, 2), e, i * self.tile_n // 2), "f32")
            inside = both(lt(row, self.m), lt(column, self.n))
            one = Store(Place("global", "c", (add(mul(row, self.n), column),), "bf16"), value, inside)
            pair = For(e, i32(0), i32(2), i32(1), (one,), 0)
            half = For(h, i32(0), i32(2), i32(1), (pair,), 0)
            out.append(For(j, i32(0), i32(self.tile_n // 8), i32(1), (half,), 0))
        return out

    def stored_by_tma(self, group: X) -> list[S]:
        """Blocks of 64 x 64: stmatrix into the group's buffer, from where one thread sends it."""
        first = Var("first", "bool")
        together = NamedBarrier(add(group, 1), 128)
        out: list[S] = []
        for i in range(self.per_group):
            j, q = _i(f"j_{i}"), _i(f"q_{i}")
            where = add(mul(j, 32), mul(q, 8), i * self.tile_n // 2)
            acc = [Elem("acc", add(where, r), "f32") for r in range(8)]
            packed = tuple(call("pack_bf16x2", acc[r], acc[r + 1], type="u32") for r in range(0, 8, 2))
            row = add(mul(_i("warp"), 16), mod(_i("lane"), 16))
            cell = _at(self.c, group, row, add(mul(q, 16), mul(div(_i("lane"), 16), 8)))
            send = TmaStore("map_c", (self.row(group, i), add(_i("n_q"), mul(j, 64))), _at(self.c, group, 0, 0))
            block = (
                If(first, (BulkWait(0, read=True),)),
                together,
                For(q, i32(0), i32(4), i32(1), (StMatrix(cell, packed),), 0),
                ProxyFence(),
                together,
                If(first, (send, BulkCommit())),
            )
            out.append(For(j, i32(0), i32(self.tile_n // 64), i32(1), block, 0))
        return out
