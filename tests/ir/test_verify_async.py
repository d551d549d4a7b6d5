"""The verifier names what breaks when one thing about a right asynchronous kernel is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from emmy.codegen.expr import add, i32
from emmy.codegen.lower import lower
from emmy.ir.kernel import (
    Advance,
    Assign,
    AsyncCommit,
    AsyncWait,
    Barrier,
    Bin,
    Buffer,
    BulkWait,
    ClusterBarrier,
    Declare,
    DependentWait,
    Elem,
    For,
    If,
    InitRings,
    Kernel,
    Layout,
    LdMatrix,
    Let,
    Lit,
    Matrix,
    NamedBarrier,
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
    StoreVector,
    TmaLoad,
    TmaStore,
    Var,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    bodies,
    walk,
    with_bodies,
)
from emmy.ir.kernel.layout import swizzle_of
from emmy.ir.loop import const
from emmy.ir.schedule import Row
from emmy.ir.target import target
from emmy.ir.verify.kernel import KernelError, verify
from tests.bodies import linear, prologue, scaled_linear
from tests.codegen.hopper_fixture import hopper_gemm
from tests.codegen.statements import CASES

CARD = target("sm_90a")
Change = Callable[[S], tuple[S, ...]]


def gemm(**options: object) -> Kernel:
    return hopper_gemm(512, 512, 512, **options)  # type: ignore[arg-type]


def edited(kernel: Kernel, change: Change) -> Kernel:
    """Every statement replaced by what `change` makes of it, from the innermost on."""

    def body(statements: tuple[S, ...]) -> tuple[S, ...]:
        return tuple(out for s in statements for out in change(with_bodies(s, body) if bodies(s) else s))

    return replace(kernel, body=body(kernel.body))


def without(kernel: Kernel, kind: type, where: Callable[[S], bool] = lambda s: True) -> Kernel:
    return edited(kernel, lambda s: () if isinstance(s, kind) and where(s) else (s,))


def with_fields(kernel: Kernel, kind: type, **fields: object) -> Kernel:
    """The first statement of the kind with other fields, and all that equal it."""
    first: list[S] = []

    def change(s: S) -> tuple[S, ...]:
        if isinstance(s, kind) and (not first or s == first[0]):
            first.append(s)
            return (replace(s, **fields),)  # type: ignore[type-var]
        return (s,)

    return edited(kernel, change)


def role(kernel: Kernel, number: int, **fields: object) -> Kernel:
    def change(s: S) -> tuple[S, ...]:
        if not isinstance(s, Roles):
            return (s,)
        changed = replace(s.roles[number], **fields)  # type: ignore[arg-type]
        return (Roles(tuple(changed if k == number else r for k, r in enumerate(s.roles))),)

    return edited(kernel, change)


def in_role(kernel: Kernel, number: int, *extra: S) -> Kernel:
    """Statements at the end of a role."""

    def change(s: S) -> tuple[S, ...]:
        if not isinstance(s, Roles):
            return (s,)
        return (Roles(tuple(replace(r, body=(*r.body, *extra)) if k == number else r for k, r in enumerate(s.roles))),)

    return edited(kernel, change)


def a_map(kernel: Kernel, **fields: object) -> Kernel:
    return replace(kernel, maps=(replace(kernel.maps[0], **fields), *kernel.maps[1:]))  # type: ignore[arg-type]


def a_buffer(kernel: Kernel, **fields: object) -> Kernel:
    return replace(kernel, shared=(replace(kernel.shared[0], **fields), *kernel.shared[1:]))  # type: ignore[arg-type]


def operand(kernel: Kernel, which: str, index: int, value: int, major: str = "k") -> Kernel:
    """One index of one operand of the first wgmma."""
    s = next(s for s in _all(kernel.body) if isinstance(s, Wgmma))
    m = getattr(s, which)
    at = list(m.place.index)
    at[index] = i32(value)
    moved = Matrix(replace(m.place, index=tuple(at)), major)  # type: ignore[arg-type]
    return with_fields(kernel, Wgmma, **{which: moved})


def _all(body: tuple[S, ...]) -> list[S]:
    return [t for s in body for t in (s, *(u for b in bodies(s) for u in _all(b)))]


def fewer_lanes_release(kernel: Kernel) -> Kernel:
    """Only warps 1 to 3 release."""
    return edited(kernel, lambda s: (If(Bin(">", Var("warp", "i32"), i32(0), "bool"), (s,)),)
                  if isinstance(s, If) and any(isinstance(t, RingArrive) for t in s.then) else (s,))  # fmt: skip


def released_at_once(kernel: Kernel) -> Kernel:
    """No wait between a product and the release of the slot that it reads: as many in flight as there are rounds."""
    return without(kernel, WgmmaWait, lambda s: isinstance(s, WgmmaWait) and s.pending == 1)


def tma(kernel: Kernel, **fields: object) -> Kernel:
    return with_fields(kernel, TmaLoad, **fields)


TID = Var("tid", "i32")
SLOT = Var("p_slot", "i32")
EARLY = DependentWait
WIDE = Buffer("f", "f32", (64, 32), swizzle_of(128), align=1024)
LATE_STORE = Store(Place("global", "c", (i32(0),), "bf16"), Lit(0.0, "f32"), Bin("==", TID, i32(0), "bool"))

BROKEN: dict[str, tuple[Callable[[], Kernel], str]] = {
    # roles and barriers
    "barrier of the block in a role": (lambda: in_role(gemm(), 1, Barrier()), "a barrier in role consumer"),
    "barrier of the cluster in a role": (
        lambda: in_role(gemm(cluster=2), 1, ClusterBarrier()), "a barrier of the cluster in role consumer"),
    "roles that leave warps out": (lambda: role(gemm(), 0, warps=3), "roles of 3, 8 warps in 384 threads"),
    "roles in a role": (lambda: in_role(gemm(), 1, Roles((Role("all", 12, 0, ()),))), "roles inside of a role"),
    "odd registers": (lambda: role(gemm(), 0, registers=42), "role producer has 42 registers"),
    "too many registers of a role": (lambda: role(gemm(), 1, registers=248), "role consumer has 248 registers"),
    "registers of all roles": (lambda: role(gemm(), 0, registers=64), "the roles take 67584 registers"),
    "registers of part of a warpgroup": (
        lambda: role(role(gemm(), 0, warps=2), 1, warps=10, registers=160), "in part of a warpgroup"),
    "wgmma in some warps": (
        lambda: edited(gemm(), lambda s: (If(Bin("<", Var("warp", "i32"), i32(3), "bool"), (s,)),)
                       if isinstance(s, WgmmaCommit) else (s,)), "wgmma under a condition"),
    "named barrier of too many": (
        lambda: with_fields(gemm(), NamedBarrier, threads=160), "128 threads come to barrier 1"),
    "named barrier of too few": (
        lambda: with_fields(gemm(), NamedBarrier, threads=96), "128 threads come to barrier 1"),
    "named barrier of part of a warp": (lambda: with_fields(gemm(), NamedBarrier, threads=100), "a barrier of 100"),
    "the block's own barrier by name": (
        lambda: with_fields(gemm(), NamedBarrier, id=Lit(0, "i32")), "barrier 0: 1 to 15"),
    "a barrier past the last": (
        lambda: with_fields(gemm(), NamedBarrier, id=add(Var("group", "i32"), 15)), "barrier 16: 1 to 15 are free"),
    "one barrier for both groups": (
        lambda: with_fields(gemm(), NamedBarrier, id=Lit(1, "i32")), "256 threads come to barrier 1"),
    # rings
    "arrivals more than counted": (
        lambda: replace(gemm(), rings=(Ring("ab", 4, 1, 4),)), "8 threads arrive on the empty side of ring ab"),
    "arrivals fewer than counted": (
        lambda: replace(gemm(), rings=(Ring("ab", 4, 2, 8),)), "1 threads arrive on the full side of ring ab"),
    "a warp does not release": (lambda: fewer_lanes_release(gemm()), "6 threads arrive on the empty side"),
    "no one releases": (lambda: without(gemm(), RingArrive, lambda s: getattr(s, "side", "") == "empty"),
                        "nothing arrives on the empty side"),
    "bytes announced": (lambda: with_fields(gemm(), RingArrive, bytes=16384), "16384 bytes are announced on ring ab"),
    "bytes on the empty side": (
        lambda: with_fields(gemm(), RingArrive, side="empty"), "bytes are announced on the full side"),
    "read before full": (lambda: without(gemm(), RingWait, lambda s: getattr(s, "side", "") == "full"),
                         "a_s is read before the slot's wait for full"),
    "refill before empty": (lambda: without(gemm(stages=3), RingWait, lambda s: getattr(s, "side", "") == "empty"),
                            "a_s is filled before the slot's wait for empty"),
    "release too early": (lambda: released_at_once(gemm()), "is released while a wgmma may still read it"),
    "release of the slot in use": (
        lambda: edited(gemm(), lambda s: () if isinstance(s, Advance) and s.cursor == "done" else
                       (replace(s, cursor="q"),) if isinstance(s, RingArrive) and s.cursor == "done" else (s,)),
        "a slot of ring ab is released that was not waited for"),
    "rings not set up": (lambda: without(gemm(), InitRings), "a ring is used before InitRings and a barrier"),
    "no barrier after the set-up": (lambda: without(gemm(), Barrier), "a ring is used before InitRings and a barrier"),
    "a barrier of the block for a cluster": (
        lambda: edited(gemm(cluster=2), lambda s: (Barrier(),) if isinstance(s, ClusterBarrier) else (s,)),
        "a ring is used before InitRings and a barrier of the cluster"),
    "a block that ends too early": (
        lambda: replace(gemm(cluster=2), body=gemm(cluster=2).body[:-1]), "no barrier of the cluster follows"),
    "a load by a warp": (
        lambda: edited(gemm(), lambda s: (replace(s, cond=Bin("<", TID, i32(2), "bool")),)
                       if isinstance(s, If) and s.cond == Bin("==", TID, i32(0), "bool") else (s,)),
        "2 threads arrive on the full side|2 threads issue one TMA load"),
    "unknown cursor": (lambda: tma(gemm(), cursor="r"), "r is no cursor here"),
    # wgmma
    "no fence": (lambda: without(gemm(), WgmmaFence), "no WgmmaFence between"),
    "no commit": (lambda: without(gemm(), WgmmaCommit), "is not committed"),
    "no last wait": (lambda: without(gemm(store="direct"), WgmmaWait, lambda s: getattr(s, "pending", 1) == 0),
                     "is released while a wgmma may still read it"),
    "never waited for": (
        lambda: edited(gemm(), lambda s: () if isinstance(s, WgmmaWait | StMatrix) or
                       (isinstance(s, If) and any(isinstance(t, RingArrive) for t in s.then)) else (s,)),
        "nothing arrives on the empty side|a wgmma is never waited for"),
    "n": (lambda: with_fields(gemm(), Wgmma, n=100), "n is 100: a multiple of 8 from 8 to 256"),
    "too few accumulators": (lambda: with_fields(gemm(), Declare, count=32), "acc has 32 elements"),
    "accumulators past the end": (lambda: with_fields(gemm(groups=1), Wgmma, at=i32(96)), "acc has 128 elements"),
    "a type without wgmma": (lambda: with_fields(gemm(), Wgmma, type="f64"), "no wgmma of f64"),
    "factors of another type": (lambda: with_fields(gemm(), Wgmma, type="f16"), "a is no matrix of f16"),
    "rows past the matrix": (lambda: operand(gemm(), "b", 1, 64), "b needs 128 of b_s from 64 on, which has 128"),
    "columns past the matrix": (lambda: operand(gemm(), "a", 2, 56), "a needs 16 of a_s from 56 on, which has 64"),
    "row between atoms": (lambda: operand(gemm(), "a", 1, 4), "a starts at row 4 of a_s"),
    "column between chunks": (lambda: operand(gemm(), "a", 2, 4), "a starts at column 4 of a_s"),
    "layout that no descriptor says": (
        lambda: a_buffer(gemm(), layout=Layout()), "swizzles 128 bytes, a_s has no swizzle|a_s has no layout of wgmma"),
    "buffer that is not aligned": (
        lambda: a_buffer(gemm(), align=512), "swizzles 128 bytes, a_s has no swizzle|a_s has no layout of wgmma"),
    "columns in more than one block": (
        lambda: with_fields(gemm(tile_n=256), Wgmma, b=Matrix(Place("shared", "c_s", (i32(0),) * 3, "bf16"), "mn")),
        "b needs 4 blocks of c_s from 0 on, which has 2"),
    "columns of wide factors": (
        lambda: with_fields(replace(gemm(), shared=(*gemm().shared, WIDE)), Wgmma, type="tf32", n=32,
                            a=Matrix(Place("shared", "f", (i32(0), i32(0)), "f32"), "mn")),
        "a is mn-major: only 16-bit factors can be"),
    # TMA
    "box too large": (lambda: a_map(gemm(), box=(512, 64)), "a box of \\(512, 64\\): 1 to 256"),
    "box rows of odd bytes": (lambda: a_map(gemm(), box=(128, 60)), "rows of the box have 120 bytes"),
    "box wider than the swizzle": (
        lambda: a_map(gemm(), box=(64, 128)), "have 256 bytes, more than the swizzle span 128"),
    "swizzle of another span": (
        lambda: a_map(gemm(), swizzle=64, box=(128, 32)), "map map_a swizzles 64 bytes, a_s has"),
    "swizzle that is none": (lambda: a_map(gemm(), swizzle=48), "swizzle 48: 0, 32, 64 or 128"),
    "stride of odd bytes": (lambda: a_map(gemm(), strides=(const(511), const(1))), "a stride of 1022 bytes"),
    "elements apart": (lambda: a_map(gemm(), strides=(const(512), const(2))), "the innermost stride is 2, not 1"),
    "origin of odd bytes": (lambda: a_map(gemm(), offset=const(4)), "the origin is 8 bytes into the tensor"),
    "six dimensions": (
        lambda: a_map(gemm(), shape=(const(1),) * 6, strides=(const(1),) * 6, box=(1,) * 5 + (64,)), "6 extents"),
    "a map that rounds what is no f32": (lambda: a_map(gemm(), type="tf32"), "a is no f32 operand or result"),
    "a map of another tensor": (lambda: a_map(gemm(), param="d"), "d is no bf16 operand or result"),
    "one coordinate": (lambda: tma(gemm(), at=(i32(0),)), "1 coordinates for a map of 2"),
    "a long coordinate": (lambda: tma(gemm(), at=(Lit(0, "i64"), i32(0))), "a coordinate is i32"),
    "box past the buffer": (lambda: tma(gemm(), dst=Place("shared", "a_s", (i32(3), i32(64), i32(0)), "bf16")),
                            "a box of 128 rows from row 448 of a_s"),
    "box from the middle of a row": (
        lambda: tma(gemm(), dst=Place("shared", "a_s", (SLOT, i32(0), i32(8)), "bf16")), "starts at column 8 of a_s"),
    "box between atoms": (
        lambda: tma(gemm(), dst=Place("shared", "a_s", (SLOT, i32(4), i32(0)), "bf16")), "starts at row 4 of a_s"),
    "rows of another length": (lambda: a_map(gemm(), box=(128, 32)), "rows of 32 in the box of map_a, of 64 in a_s"),
    "store to an operand": (lambda: with_fields(gemm(), TmaStore, map="map_a"), "box|a is an operand and is written"),
    "no proxy fence": (lambda: without(gemm(), ProxyFence), "c_s was written by ordinary stores and no ProxyFence"),
    "no barrier before the store": (lambda: without(gemm(), NamedBarrier), "c_s was written by other threads"),
    "source written too early": (
        lambda: without(gemm(), BulkWait, lambda s: getattr(s, "read", False)), "c_s is written while a TMA store may"),
    "store that nothing waits for": (
        lambda: without(gemm(), BulkWait, lambda s: not getattr(s, "read", True)), "a TMA store may still read shared"),
    # early starts
    "no wait for the kernel before": (
        lambda: without(gemm(dependent=True), EARLY), "does not wait for the kernel before"),
    "a result before the wait": (
        lambda: edited(gemm(dependent=True), lambda s: (LATE_STORE, s) if isinstance(s, EARLY) else (s,)),
        "a result is written before the wait for the kernel before"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name: str) -> None:
    build, says = BROKEN[name]
    with pytest.raises(KernelError, match=says) as found:
        verify(build(), CARD)
    assert "of hopper tile=" in str(found.value), "the schedule row is named"


def test_tma_does_not_round_what_it_stores() -> None:
    k = CASES["TMA store"].kernel()
    with pytest.raises(KernelError, match="TMA rounds to tf32 what it loads only"):
        verify(replace(k, maps=tuple(replace(m, type="tf32") for m in k.maps)), CARD)


def test_the_statement_is_named() -> None:
    with pytest.raises(KernelError, match=r"in `wgmma\.m64n100\.bf16 acc"):
        verify(with_fields(gemm(), Wgmma, n=100), CARD)


def test_accumulators_that_a_later_group_does_not_write_may_be_read() -> None:
    """Two arrays in turns: the older group has ended at a wait that leaves the newer one in flight."""
    first = Wgmma("acc", i32(0), 64, "bf16", *_factors(), accumulate=False)
    second = replace(first, acc="other")
    use = Store(Place("global", "c", (TID,), "bf16"), Elem("acc", i32(0), "f32"))
    body = (WgmmaFence(), first, WgmmaCommit(), second, WgmmaCommit(), WgmmaWait(1), use, WgmmaWait(0))
    verify(_alone(body), CARD)
    early = (*body[:5], WgmmaWait(2), use, WgmmaWait(0))
    with pytest.raises(KernelError, match="acc is used before the wgmma that writes it"):
        verify(_alone(early), CARD)


def test_a_loop_that_leaves_a_product_in_flight_is_followed_into_its_next_round() -> None:
    use = Store(Place("global", "c", (TID,), "bf16"), Elem("acc", i32(0), "f32"))
    product = Wgmma("acc", i32(0), 64, "bf16", *_factors())
    loop = For(Var("i", "i32"), i32(0), i32(9), i32(1), (use, WgmmaFence(), product, WgmmaCommit()))
    with pytest.raises(KernelError, match="acc is used before the wgmma that writes it"):
        verify(_alone((loop, WgmmaWait(0))), CARD)


def _from_registers(array: str) -> Wgmma:
    a, b, c, d = (Elem(array, i32(q), "u32") for q in range(4))
    return Wgmma("acc", i32(0), 64, "bf16", (a, b, c, d), _factors()[1])


def test_registers_of_a_left_factor_may_change_when_their_product_is_done() -> None:
    """Two sets in turns: while a product reads one, the other is assigned, by arithmetic, a vector or ldmatrix."""
    zero = [Assign(Elem(n, i32(q), "u32"), Lit(0, "u32")) for n in ("left", "next") for q in range(4)]
    words = Place("shared", "a_s", (i32(0),) * 3, "bf16")
    changes: dict[str, S] = {
        "an assignment": Assign(Elem("left", i32(1), "u32"), Lit(1, "u32")),
        "ldmatrix": LdMatrix((Elem("left", i32(2), "u32"),), words),
    }
    for change in changes.values():
        ahead = (WgmmaFence(), _from_registers("next"), WgmmaCommit())
        body = (*zero, WgmmaFence(), _from_registers("left"), WgmmaCommit(), *ahead, WgmmaWait(1), change, WgmmaWait(0))
        verify(_alone(body), CARD)
        early = tuple(s for s in body if s != WgmmaWait(1))
        with pytest.raises(KernelError, match="left is changed while a wgmma may still read it"):
            verify(_alone(early), CARD)


def test_a_left_factor_is_fenced_after_it_is_computed() -> None:
    zero = [Assign(Elem("left", i32(q), "u32"), Lit(0, "u32")) for q in range(4)]
    late = (WgmmaFence(), *zero, _from_registers("left"), WgmmaCommit(), WgmmaWait(0))
    with pytest.raises(KernelError, match="no WgmmaFence between the registers' last use and this wgmma"):
        verify(_alone(late), CARD)


def test_a_left_factor_is_no_copy_of_other_registers() -> None:
    """A compiler makes both one register, which then changes while the product before may still read it."""
    zero = [Assign(Elem(n, i32(q), "u32"), Lit(0, "u32")) for n in ("left", "next") for q in range(4)]
    copy = Assign(Elem("left", i32(1), "u32"), Elem("next", i32(1), "u32"))
    product = (WgmmaFence(), _from_registers("left"), WgmmaCommit(), WgmmaWait(0))
    verify(_alone((*zero, *product)), CARD)
    with pytest.raises(KernelError, match="left is a copy"):
        verify(_alone((*zero, copy, *product)), CARD)
    named = replace(_from_registers("left"), a=(Var("same", "u32"), *(Elem("left", i32(q), "u32") for q in (1, 2, 3))))
    with pytest.raises(KernelError, match="same is a copy"):
        verify(_alone((*zero, Let("same", Elem("next", i32(0), "u32")), product[0], named, *product[2:])), CARD)


def computed() -> Kernel:
    """A product whose left factor consumers compute."""
    row = "WORK=w8x1+p4,TILE=wgmma_m64n128k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d4/smem-tma/reg,RASTER="
    return lower(prologue(512, 512, 512, "silu"), "wgmma", Row.parse(row), CARD, "k_computed")


def test_factors_that_consumers_compute_pass() -> None:
    verify(computed(), CARD)


COMPUTED: dict[str, tuple[Callable[[S], tuple[S, ...]], str]] = {
    "a wait for one group less": (
        lambda s: (WgmmaWait(2),) if s == WgmmaWait(1) else (s,), "is changed while a wgmma may still read it"),
    "no wait": (lambda s: () if s == WgmmaWait(1) else (s,), "is changed while a wgmma may still read it"),
    "no fence": (lambda s: () if s == WgmmaFence() else (s,), "no WgmmaFence between the registers' last use"),
    "raw tiles read too early": (
        lambda s: () if isinstance(s, RingWait) and s.side == "full" else (s,), "is read before the slot's wait"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_broken_about_computed_factors_is_named(name: str) -> None:
    change, says = COMPUTED[name]
    with pytest.raises(KernelError, match=says):
        verify(edited(computed(), change), CARD)


REMOTE: dict[str, tuple[Callable[[], Kernel], str]] = {
    "a store to a block that may not have started": (
        lambda: replace(shared_scalars(), body=(told(shared_scalars()), *shared_scalars().body)),
        "no barrier of the cluster precedes"),
    "a read of a block that may have ended": (
        lambda: replace(shared_scalars(), body=shared_scalars().body[:-1]), "no barrier of the cluster follows"),
    "a vector of another block": (
        lambda: edited(shared_scalars(), lambda s: (replace(s, place=replace(s.place, rank=i32(1))),)
                       if isinstance(s, StoreVector) and s.place.space == "shared" else (s,)),
        "only loads and stores of shared memory in a cluster name another block"),
    "another block without a cluster": (
        lambda: replace(shared_scalars(), cluster=(1, 1, 1)),
        "only loads and stores of shared memory in a cluster name another block"),
}  # fmt: skip


def shared_scalars() -> Kernel:
    """Blocks that share a sum tell one another what their shares of a row add up to, and read each other's sums."""
    row = "WORK=w4x1+p4,TILE=wgmma_m64n64k16_bf16_f32/f1x1/k4,REDUCE=g2,STAGE=d4/smem-tma,RASTER="
    return lower(scaled_linear(64, 64, 512), "wgmma", Row.parse(row), CARD, "k")


def told(k: Kernel) -> Store:
    """A store of a number where the first block looks for a row scalar."""
    found = next(s for s in walk(k.body) if isinstance(s, Store) and s.place.rank is not None)
    return Store(replace(found.place, index=(i32(0), i32(0))), Lit(0.0, "f32"))


def test_blocks_that_tell_one_another_pass() -> None:
    stores = [s for s in walk(shared_scalars().body) if isinstance(s, Store) and s.place.rank is not None]
    assert len(stores) == 2
    verify(shared_scalars(), CARD)


@pytest.mark.parametrize("name", REMOTE)
def test_what_is_broken_about_other_blocks_is_named(name: str) -> None:
    build, says = REMOTE[name]
    with pytest.raises(KernelError, match=says):
        verify(build(), CARD)


def _factors() -> tuple[Matrix, Matrix]:
    a, b = (Matrix(Place("shared", name, (i32(0),) * 3, "bf16")) for name in ("a_s", "b_s"))
    return a, b


def _alone(body: tuple[S, ...]) -> Kernel:
    k = gemm()
    sums = (Declare("acc", "f32", count=32), Declare("other", "f32", count=32))
    names = (*sums, Declare("left", "u32", count=4), Declare("next", "u32", count=4))
    return replace(k, body=(k.body[0], *names, *body), rings=(), maps=(), threads=128)


# ---- cp.async


def staged() -> Kernel:
    """A product by mma.sync whose tiles three stages of cp.async bring."""
    row = Row.parse("WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x2/k2,REDUCE=,STAGE=d3/smem-async,RASTER=")
    return lower(linear(512, 512, 512, "bf16"), "mma", row, target("sm_80"), "k_staged")


def test_stages_of_copies_pass() -> None:
    verify(staged(), target("sm_80"))


STAGED: dict[str, tuple[Callable[[], Kernel], str]] = {
    "a wait for one group less": (
        lambda: edited(staged(), lambda s: (AsyncWait(2),) if s == AsyncWait(1) else (s,)),
        "_tile is read before its copies are waited for"),
    "no wait in the loop": (
        lambda: edited(staged(), lambda s: (replace(s, body=tuple(t for t in s.body if t != AsyncWait(1))),)
                       if isinstance(s, For) else (s,)), "_tile is read before its copies are waited for"),
    "no barrier in the loop": (
        lambda: edited(staged(), lambda s: (replace(s, body=tuple(t for t in s.body if t != Barrier())),)
                       if isinstance(s, For) else (s,)),
        "_tile is read before a barrier follows|_tile is refilled and no barrier"),
    "a refill of the slot in use": (
        lambda: edited(staged(), lambda s: (replace(s, value=Var("slot", "i32")),)
                       if isinstance(s, Let) and s.name == "fill" else (s,)),
        "_tile is refilled and no barrier follows its last read"),
    "a tile written over copies": (
        lambda: edited(staged(), lambda s: (s, Store(
            Place("shared", "a_tile", (i32(0), i32(0), i32(0)), "bf16"), Lit(0.0, "f32")))
            if s == AsyncCommit() else (s,)), "a_tile is written while copies to it are in flight"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
def test_what_is_broken_about_copies_is_named(name: str) -> None:
    build, says = STAGED[name]
    with pytest.raises(KernelError, match=says):
        verify(build(), target("sm_80"))
