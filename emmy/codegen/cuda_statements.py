"""Statements of Kernel IR that hold no others, each as one line of C++."""

from __future__ import annotations

from typing import Any, Final, Literal

from emmy.codegen.cuda_matrices import wgmma_name
from emmy.codegen.cuda_scalar import CTYPE
from emmy.codegen.cuda_values import TERNARY, Values, converted, literal, memory_type
from emmy.ir.kernel import (
    BYTES,
    Advance,
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    BulkCommit,
    BulkWait,
    Call,
    ClusterBarrier,
    Comment,
    CopyArrive,
    Cursor,
    Declare,
    DependentLaunch,
    DependentWait,
    Fence,
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
    Place,
    ProxyFence,
    Ring,
    RingArrive,
    RingWait,
    S,
    ShiftVector,
    Shuffle,
    StMatrix,
    Store,
    StoreVector,
    TmaLoad,
    TmaStore,
    Var,
    Vote,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    X,
    walk,
)
from emmy.ir.kernel.layout import descriptor_fields
from emmy.ir.verify.flight import settled

_SHUFFLE: Final = {"xor": "__shfl_xor_sync", "up": "__shfl_up_sync", "down": "__shfl_down_sync", "lane": "__shfl_sync"}
_ATOMIC: Final = {"add": "atomicAdd", "max": "atomicMax", "min": "atomicMin"}
_BARE: Final[dict[type, str]] = {
    Barrier: "__syncthreads();", WarpSync: "__syncwarp();", ClusterBarrier: "cluster_sync();",
    AsyncCommit: "async_commit();", BulkCommit: "bulk_commit();",
    WgmmaFence: "wgmma_fence();", WgmmaCommit: "wgmma_commit();",
    DependentLaunch: "dependent_launch();", DependentWait: "dependent_wait();",
}  # fmt: skip


class Statements(Values):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.rings: dict[str, Ring] = {r.name: r for r in kernel.rings}
        self.cursors = {s.name: self.rings[s.ring] for s in walk(kernel.body) if isinstance(s, Cursor)}
        self.settled = iter(settled(kernel.body))

    def simple(self, s: S) -> str:
        """The statement's line, without its indentation.  Statements are asked for in the order of `walk`."""
        if type(s) in _BARE:
            return _BARE[type(s)]
        if type(s) not in _LINES:
            raise TypeError(f"no statement: {s!r}")
        line: str = _LINES[type(s)](self, s)
        return line

    # -- registers

    def comment(self, s: Comment) -> str:
        return f"// {s.text}"

    def let(self, s: Let) -> str:
        return f"const {CTYPE[s.value.type]} {s.name} = {self.x(s.value)};"

    def declare(self, s: Declare) -> str:
        if s.count is None:
            init = "" if s.init is None else f" = {self.x(s.init)}"
            return f"{CTYPE[s.type]} {s.name}{init};"
        align = "__align__(16) " if s.count * BYTES[s.type] >= 4 else ""
        return f"{align}{memory_type(s.type)} {s.name}[{s.count}]{self.filled(s.init, s.count)};"

    def filled(self, init: X | None, count: int) -> str:
        """The initializer of an array whose elements all begin as `init`."""
        if init is None:
            return ""
        zero = isinstance(init, Lit) and init.value == 0
        return " = {}" if zero else f" = {{{', '.join([self.x(init)] * count)}}}"

    def assign(self, s: Assign) -> str:
        target, v = self.x(s.target), s.value
        if isinstance(v, Bin) and v.a == s.target and v.op in ("+", "-", "*"):
            return f"{target} {v.op}= {self.x(v.b)};"
        if isinstance(v, Call) and v.name in ("add", "mul") and v.args[0] == s.target and v.type in ("f32", "f64"):
            return f"{target} {'+=' if v.name == 'add' else '*='} {self.x(v.args[1])};"
        return f"{target} = {self.x(v)};"

    def shuffle(self, s: Shuffle) -> str:
        width = "" if s.width == 32 else f", {s.width}"
        head = f"const {CTYPE[s.value.type]} {s.name} = {_SHUFFLE[s.mode]}"
        return f"{head}(0xffffffffu, {self.x(s.value)}, {self.x(s.lane)}{width});"

    def vote(self, s: Vote) -> str:
        if s.mode == "ballot":
            return f"const unsigned {s.name} = __ballot_sync(0xffffffffu, {self.x(s.value)});"
        return f"const bool {s.name} = __{s.mode}_sync(0xffffffffu, {self.x(s.value)}) != 0;"

    # -- memory

    def guarded(self, guard: X | None) -> str:
        return "" if guard is None else f"if ({self.x(guard)}) "

    def load(self, s: Load) -> str:
        place = self.place(s.place)
        text, level = converted(place, place, s.place.type, s.type)
        if s.guard is not None:
            fill = self.x(s.fill, 1) if s.fill is not None else literal(0, s.type)
            read = text if level > TERNARY else f"({text})"
            text = f"{self.x(s.guard, 1)} ? {read} : {fill}"
        return f"const {CTYPE[s.type]} {s.name} = {text};"

    def store(self, s: Store) -> str:
        return f"{self.guarded(s.guard)}{self.place(s.place)} = {self.converted(s.value, s.place.type)[0]};"

    def vector(self, s: LoadVector | StoreVector) -> str:
        bytes = s.count * BYTES[s.place.type]
        array = s.array if isinstance(s.at, Lit) and s.at.value == 0 else f"&{s.array}[{self.x(s.at)}]"
        if isinstance(s, StoreVector):
            return f"{self.guarded(s.guard)}copy{bytes}({self.address(s.place)}, {array});"
        copy = f"copy{bytes}({array}, {self.address(s.place)});"
        return copy if s.guard is None else f"{self.guarded(s.guard)}{copy} else zero{bytes}({array});"

    def shift_vector(self, s: ShiftVector) -> str:
        bytes = self.x(Bin("*", s.by, Lit(16 // s.count, "i32"), "i32"))
        return f"shift16(&{s.array}[{self.x(s.at)}], &{s.source}[{self.x(s.start)}], {bytes});"

    def atomic(self, s: Atomic) -> str:
        old = f"const {CTYPE[s.value.type]} {s.old} = " if s.old else self.guarded(s.guard)
        return f"{old}{_ATOMIC[s.op]}({self.address(s.place)}, {self.x(s.value)});"

    def fence(self, s: Fence) -> str:
        # weaker than __threadfence, which also orders fences among themselves
        return "fence_device();" if s.scope == "device" else "__threadfence_block();"

    def proxy_fence(self, s: ProxyFence) -> str:
        return f"proxy_fence_{s.space}();"

    def named_barrier(self, s: NamedBarrier) -> str:
        return f"named_{'arrive' if s.arrive else 'sync'}({self.x(s.id)}, {s.threads});"

    # -- copies and rings

    def async_copy(self, s: AsyncCopy) -> str:
        guard = "true" if s.guard is None else self.x(s.guard)
        # copies of single elements are many: the instruction holds what lies between them
        src = self.apart(s.src) if s.bytes == 4 else self.address(s.src)
        return f"async_copy{s.bytes}({self.address(s.dst)}, {src}, {guard});"

    def apart(self, p: Place) -> str:
        """The address as a base and what lies beyond it: copies that share the base differ by constants then."""
        (index,) = p.index
        if isinstance(index, Bin) and index.op == "+" and isinstance(index.a, Var):
            return f"&{p.buffer}[{self.x(index.a)}] + ({self.x(index.b)})"
        return self.address(p)

    def async_wait(self, s: AsyncWait) -> str:
        return f"async_wait<{s.pending}>();"

    def init_rings(self, s: InitRings) -> str:
        rings = " ".join(f"ring_init({r.name}, {r.depth}, {r.full}, {r.empty});" for r in self.k.rings)
        return f"if (threadIdx.x == 0) {{ {rings} ring_fence(); }}"

    def cursor(self, s: Cursor) -> str:
        return f"int {s.name}_slot = 0; unsigned {s.name}_parity = 0u;"

    def advance(self, s: Advance) -> str:
        position = f"{s.cursor}_slot, {s.cursor}_parity"
        depth = self.cursors[s.cursor].depth
        if s.by is None:
            return f"ring_step<{depth}>({position});"
        return f"ring_skip<{depth}>({position}, {self.x(s.by)});"

    def barrier_of(self, cursor: str, side: Literal["full", "empty"]) -> str:
        ring = self.cursors[cursor]
        return f"&{ring.name}[{cursor}_slot]" if side == "full" else f"&{ring.name}[{ring.depth} + {cursor}_slot]"

    def ring_wait(self, s: RingWait) -> str:
        # a barrier that nothing has completed yet passes on the other parity: the slot is empty in the first round
        parity = f"{s.cursor}_parity" if s.side == "full" else f"{s.cursor}_parity ^ 1u"
        return f"ring_wait({self.barrier_of(s.cursor, s.side)}, {parity});"

    def ring_arrive(self, s: RingArrive) -> str:
        name = "ring_expect" if s.bytes else "ring_arrive"
        bytes = f", {s.bytes}" if s.bytes else ""
        at, rank = ("", "") if s.rank is None else ("_at", f", {self.x(s.rank)}")
        return f"{name}{at}({self.barrier_of(s.cursor, s.side)}{bytes}{rank});"

    def copy_arrive(self, s: CopyArrive) -> str:
        return f"ring_arrive_copies({self.barrier_of(s.cursor, 'full')});"

    def tma_load(self, s: TmaLoad) -> str:
        at = ", ".join(self.x(x) for x in reversed(s.at))
        mask = "" if s.multicast is None else f", {self.x(s.multicast)}"
        name = f"tma_load_{len(s.at)}d{'' if s.multicast is None else '_multicast'}"
        return f"{name}({self.box(s.dst)}, &{s.map}, {self.barrier_of(s.cursor, 'full')}, {at}{mask});"

    def tma_store(self, s: TmaStore) -> str:
        at = ", ".join(self.x(x) for x in reversed(s.at))
        return f"tma_{s.op or 'store'}_{len(s.at)}d(&{s.map}, {at}, {self.box(s.src)});"

    def bulk_wait(self, s: BulkWait) -> str:
        return f"bulk_wait{'_read' if s.read else ''}<{s.pending}>();"

    # -- matrices

    def ldmatrix(self, s: LdMatrix) -> str:
        dst = ", ".join(self.x(d) for d in s.dst)
        return f"ldmatrix_x{len(s.dst)}{'_trans' if s.trans else ''}({dst}, {self.address(s.src)});"

    def stmatrix(self, s: StMatrix) -> str:
        src = ", ".join(self.x(v) for v in s.src)
        return f"stmatrix_x{len(s.src)}{'_trans' if s.trans else ''}({self.address(s.dst)}, {src});"

    def mma(self, s: Mma) -> str:
        operands = ", ".join(self.x(v) for v in (*s.d, *s.a, *s.b, *s.c))
        return f"mma_{s.shape}_{s.type}({operands});"

    def matrix(self, m: Matrix) -> str:
        fields = descriptor_fields(self.shared[m.place.buffer], m)
        return f"wgmma_matrix({m.place.buffer}, {self.units(m.place)}, {fields:#x}ull)"

    def wgmma(self, s: Wgmma) -> str:
        a = ", ".join(self.x(v) for v in s.a) if isinstance(s.a, tuple) else self.matrix(s.a)
        return f"{wgmma_name(s)}(&{s.acc}[{self.x(s.at)}], {a}, {self.matrix(s.b)});"

    def wgmma_wait(self, s: WgmmaWait) -> str:
        return " ".join([f"wgmma_wait<{s.pending}>();", *(f"settled({a});" for a in next(self.settled))])


_LINES: Final[dict[type, Any]] = {
    Comment: Statements.comment, Let: Statements.let, Declare: Statements.declare, Assign: Statements.assign,
    Shuffle: Statements.shuffle, Vote: Statements.vote, Load: Statements.load, Store: Statements.store,
    LoadVector: Statements.vector, StoreVector: Statements.vector,
    ShiftVector: Statements.shift_vector, Atomic: Statements.atomic, Fence: Statements.fence,
    ProxyFence: Statements.proxy_fence, NamedBarrier: Statements.named_barrier, AsyncCopy: Statements.async_copy,
    AsyncWait: Statements.async_wait, InitRings: Statements.init_rings, Cursor: Statements.cursor,
    Advance: Statements.advance, RingWait: Statements.ring_wait, RingArrive: Statements.ring_arrive,
    CopyArrive: Statements.copy_arrive, TmaLoad: Statements.tma_load, TmaStore: Statements.tma_store,
    BulkWait: Statements.bulk_wait, LdMatrix: Statements.ldmatrix, StMatrix: Statements.stmatrix,
    Mma: Statements.mma, Wgmma: Statements.wgmma, WgmmaWait: Statements.wgmma_wait,
}  # fmt: skip
