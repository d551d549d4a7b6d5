"""One small kernel for every kind of statement of Kernel IR, with the lines that it prints."""

from __future__ import annotations

from dataclasses import dataclass, replace

from emmy.ir.kernel import (
    Advance,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    BulkCommit,
    BulkWait,
    Call,
    ClusterBarrier,
    Comment,
    Convert,
    CopyArrive,
    Cursor,
    Declare,
    DependentLaunch,
    DependentWait,
    Elem,
    Fence,
    For,
    If,
    InitRings,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Matrix,
    Mma,
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
    Select,
    ShiftVector,
    Shuffle,
    StMatrix,
    Store,
    StoreVector,
    TensorMap,
    TmaLoad,
    TmaStore,
    Un,
    Var,
    Vote,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
)
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import const

ONE = const(1)
TID = Var("tid", "i32")
FIRST = Bin("==", TID, Lit(0, "i32"), "bool")


def i(value: int) -> Lit:
    return Lit(value, "i32")


def tile(type: str, *shape: int) -> Buffer:
    """Rows that are one swizzle span."""
    span = shape[-1] * {"bf16": 2, "f16": 2, "f32": 4, "f8e4m3": 1, "f8e5m2": 1}[type]
    return Buffer(f"s_{type}", type, shape, swizzle_of(span), align=1024)


SHARED = (tile("bf16", 2, 64, 64), tile("f16", 64, 64), tile("f32", 64, 32), tile("f8e4m3", 64, 128))
PARAMS = (
    Param("x", "f32", "in"), Param("h", "bf16", "in"), Param("y", "f32", "out"), Param("z", "bf16", "out"),
    Param("c", "i32", "out"), Param("n", "i64", "size"),
)  # fmt: skip
MAPS = (
    TensorMap("map_x", "x", "f32", (const(64), const(32)), (const(32), ONE), (64, 32), 128),
    TensorMap("map_y", "y", "f32", (const(64), const(32)), (const(32), ONE), (64, 32), 128),
    TensorMap("map_5d", "x", "f32", (ONE,) * 4 + (const(32),), (const(32),) * 4 + (ONE,), (1, 1, 1, 16, 32), 128),
)
RING = Ring("ab", 4, 1, 1)


def shared(type: str, *index: X | int) -> Place:
    return Place("shared", f"s_{type}", tuple(i(x) if isinstance(x, int) else x for x in index), type)


def matrix(type: str, *index: X | int, major: str = "k") -> Matrix:
    return Matrix(shared(type, *index), major)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Case:
    """`shown` are the lines of `body`; `before` and `after` make a kernel of it that a compiler accepts."""

    feature: str
    body: tuple[S, ...]
    shown: tuple[str, ...]
    before: tuple[S, ...] = ()
    after: tuple[S, ...] = ()
    options: tuple[tuple[str, object], ...] = ()

    def kernel(self) -> Kernel:
        inner = (*self.before, *self.body, *self.after)
        used = repr(inner)
        buffers = tuple(b for b in SHARED if f"'{b.name}'" in used)
        rings = (RING,) if "'ab'" in used or "InitRings" in used else ()
        maps = tuple(m for m in MAPS if f"'{m.name}'" in used)
        body = (Let("tid", Builtin("tid")), *inner)
        k = Kernel("k", "family ROW of body x", PARAMS, buffers, (ONE, ONE, ONE), 128, body, rings=rings, maps=maps)
        return replace(k, **dict(self.options))


def case(feature: str, statement: S, *shown: str, before: tuple[S, ...] = (), after: tuple[S, ...] = (),
         **options: object) -> Case:  # fmt: skip
    return Case(feature, (statement,), shown, before, after, tuple(options.items()))


V, U = Declare("v", "f32", Lit(1.5, "f32")), Declare("u", "u32", Lit(1, "u32"))
FLOAT, WORD = Var("v", "f32"), Var("u", "u32")
ARRAY = Declare("r", "f32", count=4)
WORDS = Declare("w", "u32", Lit(0, "u32"), 4)
INTS = Declare("q", "i32", Lit(0, "i32"), 4)
ACC = Declare("acc", "f32", count=32)
CUR = (InitRings(), Barrier(), Cursor("p", "ab"))
X0 = Place("global", "x", (TID,), "f32")
H0 = Place("global", "h", (TID,), "bf16")
Y0 = Place("global", "y", (TID,), "f32")
C0 = Place("global", "c", (i(0),), "i32")
CELL = shared("f32", 3, TID)


def elems(array: str, type: str, count: int = 4) -> tuple[Elem, ...]:
    return tuple(Elem(array, i(k), type) for k in range(count))


def mma(shape: str, type: str) -> Mma:
    d = elems("q", "i32") if type == "i8" else elems("r", "f32")
    w = elems("w", "u32")
    return Mma(shape, type, d, w, w[:2], d)


def product(type: str, acc_at: int = 0, accumulate: bool = True, **options: object) -> Wgmma:
    of = type if type != "tf32" else "f32"
    a = options.get("a", matrix(of, *([0] if of == "bf16" else []), 0, 0))
    b = options.get("b", matrix(of, *([1] if of == "bf16" else []), 0, 0))
    return Wgmma("acc", i(acc_at), 64, type, a, b, accumulate)  # type: ignore[arg-type]


TWO: dict[str, object] = {"cluster": (2, 1, 1), "grid": (const(2), ONE, ONE)}
# what must follow a product so that it is waited for
DONE = (WgmmaCommit(), WgmmaWait(0))
R4, Q4, W4 = (", ".join(f"{a}[{k}]" for k in range(4)) for a in "rqw")
FIELDS = "0x4000004000010000ull"

CASES: dict[str, Case] = {
    "comment": case("", Comment("why"), "// why"),
    "let": case("", Let("a", Lit(2.0, "f32")), "const float a = 2.0f;"),
    "declare": case("", Declare("a", "i64", Lit(3, "i64")), "long long a = 3LL;"),
    "declare filled array": case(
        "", Declare("a", "f32", Lit(-1.5, "f32"), 2), "__align__(16) float a[2] = {-1.5f, -1.5f};"
    ),
    "declare array": case("", Declare("a", "bf16", Lit(0, "u32"), 8), "__align__(16) unsigned short a[8] = {};"),
    "assign": case("", Assign(FLOAT, Bin("+", FLOAT, FLOAT, "f32")), "v += v;", before=(V,)),
    "for": case(
        "", For(Var("j", "i32"), i(0), i(4), i(1), (Assign(FLOAT, Lit(0.5, "f32")),), 0),
        "#pragma unroll", "for (int j = 0; j < 4; ++j) {", "    v = 0.5f;", "}", before=(V,)),
    "for by n": case(
        "", For(Var("j", "i32"), TID, i(64), i(128), (Assign(FLOAT, Lit(0.5, "f32")),), 2),
        "#pragma unroll 2", "for (int j = tid; j < 64; j += 128) {", "    v = 0.5f;", "}", before=(V,)),
    "if": case(
        "", If(FIRST, (Assign(FLOAT, Lit(0.5, "f32")),), (Assign(FLOAT, Lit(2.0, "f32")),)),
        "if (tid == 0) {", "    v = 0.5f;", "} else {", "    v = 2.0f;", "}", before=(V,)),
    "roles": case(
        "", Roles((Role("one", 1, 0, (Assign(FLOAT, Lit(0.5, "f32")),)), Role("two", 2, 0, (WarpSync(),)),
                   Role("rest", 1, 0, (Fence("block"),)))),
        "if ((int)threadIdx.x < 32) {  // one", "    v = 0.5f;", "} else if ((int)threadIdx.x < 96) {  // two",
        "    __syncwarp();", "} else {  // rest", "    __threadfence_block();", "}", before=(V,)),
    "one role": case("", Roles((Role("all", 4, 0, (WarpSync(),)),)),
                     "if ((int)threadIdx.x < 128) {  // all", "    __syncwarp();", "}"),
    "role registers": case(
        "role registers", Roles((Role("few", 4, 40, ()), Role("many", 8, 232, ()))),
        "if ((int)threadIdx.x < 128) {  // few", "    registers_down<40>();", "} else {  // many",
        "    registers_up<232>();", "}", threads=384),
    "load": case("", Load("a", "f32", H0, FIRST), "const float a = tid == 0 ? bf16_to_f32(h[tid]) : 0.0f;"),
    "load shared": case("", Load("a", "f32", CELL),
                        "const float a = s_f32[96 + (((tid >> 2) ^ 3) * 4 + (tid & 3))];"),
    "store": case("", Store(Place("global", "z", (TID,), "bf16"), FLOAT, FIRST),
                  "if (tid == 0) z[tid] = f32_to_bf16(v);", before=(V,)),
    "load vector": case("", LoadVector("r", i(0), 4, Place("global", "x", (i(4),), "f32"), FIRST),
                        "if (tid == 0) copy16(r, &x[4]); else zero16(r);", before=(ARRAY,)),
    "store vector": case("", StoreVector(Place("global", "y", (i(4),), "f32"), "r", i(2), 2),
                         "copy8(&y[4], &r[2]);", before=(ARRAY,)),
    "shift vector": case("", ShiftVector("r", i(0), "q", i(8), 4, TID),
                         "shift16(&r[0], &q[8], tid * 4);", before=(ARRAY, Declare("q", "f32", None, 16))),
    "atomic": case("", Atomic("add", C0, i(1), old="before"), "const int before = atomicAdd(&c[0], 1);"),
    "barrier": case("", Barrier(), "__syncthreads();"),
    "named barrier": case("", NamedBarrier(i(2), 128), "named_sync(2, 128);"),
    "named arrival": case("", NamedBarrier(i(2), 128, True), "named_arrive(2, 128);"),
    "cluster barrier": case("cluster", ClusterBarrier(), "cluster_sync();", **TWO),
    "warp sync": case("", WarpSync(), "__syncwarp();"),
    "fence": case("", Fence(), "fence_device();"),
    "proxy fence": case("proxy fence", ProxyFence(), "proxy_fence_shared();"),
    "proxy fence of global memory": case("proxy fence", ProxyFence("global"), "proxy_fence_global();"),
    "shuffle": case("", Shuffle("o", FLOAT, "xor", i(1)),
                    "const float o = __shfl_xor_sync(0xffffffffu, v, 1);", before=(V,)),
    "vote": case("", Vote("o", FIRST, "any"), "const bool o = __any_sync(0xffffffffu, tid == 0) != 0;"),
    "vote of all": case("", Vote("o", FIRST, "all"), "const bool o = __all_sync(0xffffffffu, tid == 0) != 0;"),
    "ballot": case("", Vote("o", FIRST, "ballot"), "const unsigned o = __ballot_sync(0xffffffffu, tid == 0);"),
    "async copy": case("", AsyncCopy(shared("f32", 0, 0), Place("global", "x", (i(0),), "f32"), 16, FIRST),
                       "async_copy16(&s_f32[0], &x[0], tid == 0);", after=(AsyncCommit(), AsyncWait(0))),
    "async commit": case("", AsyncCommit(), "async_commit();"),
    "async wait": case("", AsyncWait(2), "async_wait<2>();"),
    "read of another block": case("cluster", Load("o", "f32", replace(shared("f32", 0, 1), rank=i(1))),
                                  "const float o = *of_block(&s_f32[1], 1);", before=(ClusterBarrier(),),
                                  after=(ClusterBarrier(),), **TWO),
    "store to another block": case("cluster", Store(replace(shared("f32", 0, 1), rank=i(1)), Lit(0.5, "f32"), FIRST),
                                   "if (tid == 0) *of_block(&s_f32[1], 1) = 0.5f;", before=(ClusterBarrier(),),
                                   after=(ClusterBarrier(),), **TWO),
    "init rings": case("ring", InitRings(), "if (threadIdx.x == 0) { ring_init(ab, 4, 1, 1); ring_fence(); }"),
    "cursor": case("ring", Cursor("p", "ab"), "int p_slot = 0; unsigned p_parity = 0u;"),
    "advance": case("ring", Advance("p"), "ring_step<4>(p_slot, p_parity);", before=CUR),
    "advance by": case("ring", Advance("p", i(3)), "ring_skip<4>(p_slot, p_parity, 3);", before=CUR),
    "wait for full": case("ring", RingWait("p", "full"), "ring_wait(&ab[p_slot], p_parity);", before=CUR),
    "wait for empty": case("ring", RingWait("p", "empty"), "ring_wait(&ab[4 + p_slot], p_parity ^ 1u);", before=CUR),
    "arrive": case("ring", RingArrive("p", "empty"), "ring_arrive(&ab[4 + p_slot]);", before=CUR),
    "announce": case("ring", RingArrive("p", "full", 8192), "ring_expect(&ab[p_slot], 8192);", before=CUR),
    "arrive elsewhere": case("cluster", RingArrive("p", "empty", rank=i(1)), "ring_arrive_at(&ab[4 + p_slot], 1);",
                             before=CUR, **TWO),
    "announce elsewhere": case("cluster", RingArrive("p", "full", 64, Builtin("cluster_rank")),
                               "ring_expect_at(&ab[p_slot], 64, cluster_rank());", before=CUR,
                               **TWO),
    "copies arrive": case("ring", CopyArrive("p"), "ring_arrive_copies(&ab[p_slot]);", before=CUR),
    "TMA load": case("tma", TmaLoad(shared("f32", 0, 0), "map_x", (i(8), TID), "p"),
                     "tma_load_2d(&s_f32[0], &map_x, &ab[p_slot], tid, 8);", before=CUR),
    "TMA load of a slot": case("tma", TmaLoad(shared("f32", 8, 0), "map_5d", (i(4), i(3), i(2), i(1), i(0)), "p"),
                               "tma_load_5d(&s_f32[256], &map_5d, &ab[p_slot], 0, 1, 2, 3, 4);", before=CUR),
    "multicast": case("multicast", TmaLoad(shared("f32", 0, 0), "map_x", (i(0), i(0)), "p", Lit(3, "u32")),
                      "tma_load_2d_multicast(&s_f32[0], &map_x, &ab[p_slot], 0, 0, 3u);", before=CUR,
                      **TWO),
    "TMA store": case("tma", TmaStore("map_y", (i(8), i(4)), shared("f32", 0, 0)),
                      "tma_store_2d(&map_y, 4, 8, &s_f32[0]);"),
    "TMA add": case("tma", TmaStore("map_y", (i(8), i(4)), shared("f32", 0, 0), "add"),
                    "tma_add_2d(&map_y, 4, 8, &s_f32[0]);"),
    "bulk commit": case("tma", BulkCommit(), "bulk_commit();"),
    "bulk wait": case("tma", BulkWait(0), "bulk_wait<0>();"),
    "bulk wait for reads": case("tma", BulkWait(1, True), "bulk_wait_read<1>();"),
    "ldmatrix": case("", LdMatrix(elems("w", "u32"), shared("bf16", 0, Bin("&", TID, i(15), "i32"), 0), True),
                     f"ldmatrix_x4_trans({W4}, &s_bf16[(tid & 15) * 64 + (0 ^ ((tid & 15) & 7)) * 8]);",
                     before=(WORDS,)),
    "stmatrix": case("stmatrix", StMatrix(shared("bf16", 1, 8, 0), elems("w", "u32")),
                     f"stmatrix_x4(&s_bf16[4608], {W4});", before=(WORDS,)),
    "stmatrix transposed": case("stmatrix", StMatrix(shared("bf16", 1, 8, 8), elems("w", "u32", 2), True),
                                "stmatrix_x2_trans(&s_bf16[4616], w[0], w[1]);", before=(WORDS,)),
    "mma bf16": case("mma.m16n8k16.bf16", mma("m16n8k16", "bf16"), f"mma_m16n8k16_bf16({R4}, {W4}, w[0], w[1], {R4});",
                     before=(ARRAY, WORDS)),
    "mma f16": case("mma.m16n8k16.f16", mma("m16n8k16", "f16"), f"mma_m16n8k16_f16({R4}, {W4}, w[0], w[1], {R4});",
                    before=(ARRAY, WORDS)),
    "mma tf32": case("mma.m16n8k8.tf32", mma("m16n8k8", "tf32"), f"mma_m16n8k8_tf32({R4}, {W4}, w[0], w[1], {R4});",
                     before=(ARRAY, WORDS)),
    "mma e4m3": case("mma.m16n8k32.f8e4m3", mma("m16n8k32", "f8e4m3"),
                     f"mma_m16n8k32_f8e4m3({R4}, {W4}, w[0], w[1], {R4});", before=(ARRAY, WORDS)),
    "mma e5m2": case("mma.m16n8k32.f8e5m2", mma("m16n8k32", "f8e5m2"),
                     f"mma_m16n8k32_f8e5m2({R4}, {W4}, w[0], w[1], {R4});", before=(ARRAY, WORDS)),
    "mma i8": case("mma.m16n8k32.i8", mma("m16n8k32", "i8"), f"mma_m16n8k32_i8({Q4}, {W4}, w[0], w[1], {Q4});",
                   before=(INTS, WORDS)),
    "wgmma fence": case("wgmma", WgmmaFence(), "wgmma_fence();"),
    "wgmma": case("wgmma", product("bf16"),
                  f"wgmma_m64n64k16_bf16_kk(&acc[0], wgmma_matrix(s_bf16, 0, {FIELDS}),"
                  f" wgmma_matrix(s_bf16, 512, {FIELDS}));", before=(ACC, WgmmaFence()), after=DONE),
    "first wgmma": case("wgmma", product("f16", accumulate=False, b=matrix("f16", 0, Bin("*", TID, i(16), "i32"))),
                        f"wgmma_m64n64k16_f16_kk_first(&acc[0], wgmma_matrix(s_f16, 0, {FIELDS}),"
                        f" wgmma_matrix(s_f16, tid * 2, {FIELDS}));", before=(ACC, WgmmaFence()), after=DONE),
    "wgmma from registers": case(
        "wgmma", product("bf16", a=elems("w", "u32"), b=matrix("bf16", 1, 16, 0, major="mn")),
        f"wgmma_m64n64k16_bf16_rm(&acc[0], {W4}, wgmma_matrix(s_bf16, 640, 0x4000004002000000ull));",
        before=(ACC, WORDS, WgmmaFence()), after=DONE),
    "wgmma of turned matrices": case(
        "wgmma", product("bf16", a=matrix("bf16", 0, 16, 0, major="mn"), b=matrix("bf16", 1, 16, 0, major="mn")),
        "wgmma_m64n64k16_bf16_mm(&acc[0], wgmma_matrix(s_bf16, 128, 0x4000004002000000ull),"
        " wgmma_matrix(s_bf16, 640, 0x4000004002000000ull));", before=(ACC, WgmmaFence()), after=DONE),
    "wgmma tf32": case("wgmma", product("tf32"),
                       f"wgmma_m64n64k8_tf32_kk(&acc[0], wgmma_matrix(s_f32, 0, {FIELDS}),"
                       f" wgmma_matrix(s_f32, 0, {FIELDS}));", before=(ACC, WgmmaFence()), after=DONE),
    "wgmma e4m3": case("wgmma", product("f8e4m3"),
                       f"wgmma_m64n64k32_f8e4m3_kk(&acc[0], wgmma_matrix(s_f8e4m3, 0, {FIELDS}),"
                       f" wgmma_matrix(s_f8e4m3, 0, {FIELDS}));", before=(ACC, WgmmaFence()), after=DONE),
    "wgmma commit": case("wgmma", WgmmaCommit(), "wgmma_commit();", after=(WgmmaWait(0),)),
    "wgmma wait": case("wgmma", WgmmaWait(0), "wgmma_wait<0>(); settled(acc);",
                       before=(ACC, WgmmaFence(), product("bf16"), WgmmaCommit())),
    "wgmma wait for an earlier group": case(
        "wgmma", WgmmaWait(1), "wgmma_wait<1>();",
        before=(ACC, WgmmaFence(), product("bf16"), WgmmaCommit(), product("bf16"), WgmmaCommit()),
        after=(WgmmaWait(0),)),
    "dependent launch": case("dependent launch", DependentLaunch(), "dependent_launch();"),
    "dependent wait": case("dependent launch", DependentWait(), "dependent_wait();", dependent=True),
}  # fmt: skip

_A, _B = Lit(7, "i32"), Var("n", "i64")
# values: printed alone as `const T e = ...;`
VALUES: dict[str, tuple[X, str]] = {
    "cluster rank": (Builtin("cluster_rank"), "const int e = cluster_rank();"),
    "bits": (Call("bits_of_f32", (FLOAT,), "u32"), "const unsigned e = __float_as_uint(v);"),
    "of bits": (Call("f32_of_bits", (WORD,), "f32"), "const float e = __uint_as_float(u);"),
    "tf32": (Call("round_tf32", (FLOAT,), "f32"), "const float e = round_tf32(v);"),
    "fma": (Call("fma", (FLOAT, FLOAT, FLOAT), "f32"), "const float e = fmaf(v, v, v);"),
    "pack": (Call("pack_f16x2", (FLOAT, FLOAT), "u32"), "const unsigned e = pack_f16x2(v, v);"),
    "convert": (Convert(_B, "i32"), "const int e = (int)n;"),
    "select": (Select(FIRST, _A, TID, "i32"), "const int e = tid == 0 ? 7 : tid;"),
    "not": (Un("!", FIRST, "bool"), "const bool e = !(tid == 0);"),
    "shift": (Bin("<<", Bin("+", TID, i(1), "i32"), i(2), "i32"), "const int e = tid + 1 << 2;"),
}  # fmt: skip
