"""Names, types, places and control flow, statement by statement; operands of every kind of statement."""

from __future__ import annotations

from typing import Final

from emmy.ir.kernel import (
    BYTES,
    Advance,
    Assign,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    ClusterBarrier,
    CopyArrive,
    Cursor,
    Declare,
    For,
    If,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Mma,
    NamedBarrier,
    Place,
    RingArrive,
    RingWait,
    Roles,
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
    walk,
)
from emmy.ir.target import Target
from emmy.ir.verify.facts import Facts, Spread, failure, has_tid, names_in
from emmy.ir.verify.matrices import check_matrix, check_tma

WARP_OPS: Final = (Shuffle, Vote, LdMatrix, StMatrix, Mma, WarpSync, NamedBarrier)
GROUP_OPS: Final = (Wgmma, WgmmaFence, WgmmaCommit, WgmmaWait)


class Checker(Facts):
    def __init__(self, kernel: Kernel, target: Target) -> None:
        super().__init__(kernel)
        self.card = target
        self.role: str = ""
        self.copied: set[str] = set()
        self.waited = self.landed = False

    # -- statements

    def block(self, body: tuple[S, ...], flow: Spread) -> None:
        """`flow`: how far the threads that run these statements run them together (in a role: its threads)."""
        outer = set(self.types)
        for s in body:
            self.statement(s, flow)
        for name in set(self.types) - outer:
            # out of scope; names stay unique, so nothing else may take them
            self.mutable.discard(name)
            self.cursors.pop(name.removesuffix("_slot"), None)

    def statement(self, s: S, flow: Spread) -> None:
        if isinstance(s, For):
            self.loop(s, flow)
        elif isinstance(s, If):
            self.branch(s, flow)
        elif isinstance(s, Roles):
            self.roles(s, flow)
        elif isinstance(s, Let):
            self.name(s, s.name, s.value.type, self.value(s, s.value))
            self.values[s.name] = s.value
        elif isinstance(s, Declare):
            self.declare(s)
        elif isinstance(s, Assign):
            self.assign(s, flow)
        elif isinstance(s, Shuffle):
            lane, spread = self.value(s, s.lane), self.value(s, s.value)
            # one lane's value for the whole warp
            one = s.mode == "lane" and s.width == 32 and lane <= Spread.WARP
            self.name(s, s.name, s.value.type, min(spread, Spread.WARP) if one else spread)
        elif isinstance(s, Vote):
            self.name(s, s.name, "u32" if s.mode == "ballot" else "bool", min(self.value(s, s.value), Spread.WARP))
        elif isinstance(s, Cursor | Advance | RingWait | RingArrive | CopyArrive | TmaLoad | TmaStore):
            self.ring(s)
        else:
            self.memory(s)
        self.order(s, flow)

    def loop(self, s: For, flow: Spread) -> None:
        spread = max(self.value(s, s.start), self.value(s, s.stop))
        self.name(s, s.var.name, s.var.type, spread)
        self.value(s, s.step)
        self.settle(s.body, max(flow, spread))

    def settle(self, body: tuple[S, ...], flow: Spread) -> None:
        """A loop's body once, after its assignments have raised the spread of what they change."""
        before = dict(self.spread)
        for inner in walk(body):
            if isinstance(inner, Assign) and isinstance(inner.target, Var) and inner.target.name in self.spread:
                names = names_in(inner.value)
                known = [self.spread[n] for n in names if n in self.spread]
                unknown = any(n not in self.spread for n in names) or has_tid(inner.value)
                raised = max([*known, Spread.LANE if unknown else Spread.BLOCK])
                self.spread[inner.target.name] = max(self.spread[inner.target.name], raised)
        self.block(body, flow)
        for n, v in before.items():
            self.spread[n] = max(self.spread[n], v)

    def branch(self, s: If, flow: Spread) -> None:
        inner = max(flow, self.value(s, s.cond))
        self.block(s.then, inner)
        self.block(s.orelse, inner)

    def roles(self, s: Roles, flow: Spread) -> None:
        if self.role or flow != Spread.BLOCK:
            raise self.fail(s, "roles inside of a role or of a condition that is not the same for the whole block")
        if 32 * sum(r.warps for r in s.roles) != self.k.threads or any(r.warps < 1 for r in s.roles):
            raise self.fail(s, f"roles of {', '.join(str(r.warps) for r in s.roles)} warps in {self.k.threads} threads")
        self.budget(s)
        first = 0
        for r in s.roles:
            if (first % 4 or r.warps % 4) and (r.registers or any(isinstance(i, GROUP_OPS) for i in walk(r.body))):
                raise self.fail(s, f"role {r.name} moves registers or runs wgmma in part of a warpgroup")
            self.role = r.name
            self.block(r.body, Spread.BLOCK)
            first += r.warps
        self.role = ""

    def budget(self, s: Roles) -> None:
        given = [r.registers for r in s.roles]
        if not any(given):
            return
        for r in s.roles:
            if r.registers and (r.registers % 8 or not 24 <= r.registers <= 240):
                raise self.fail(s, f"role {r.name} has {r.registers} registers: a multiple of 8 from 24 to 240")
        total = sum(32 * r.warps * (r.registers or self.k.launch_registers) for r in s.roles)
        if total * max(1, self.k.min_blocks) > self.card.registers_sm:
            raise self.fail(s, f"the roles take {total} registers, a block has {self.card.registers_sm}")

    def declare(self, s: Declare) -> None:
        spread = self.optional(s, s.init)
        self.name(s, s.name, s.type, spread)
        self.mutable.add(s.name)
        if s.count is not None:
            if s.init is not None and not isinstance(s.init, Lit):
                raise self.fail(s, f"the elements of {s.name} begin as one number")
            self.arrays[s.name] = s.count
            self.spread[s.name] = Spread.LANE

    def assign(self, s: Assign, flow: Spread) -> None:
        spread = max(flow, self.value(s, s.value))
        self.target(s, s.target)
        if s.target.type != s.value.type:
            raise self.fail(s, f"a {s.value.type} is assigned to a {s.target.type}")
        if isinstance(s.target, Var):
            self.spread[s.target.name] = max(self.spread[s.target.name], spread)

    # -- memory

    def memory(self, s: S) -> None:
        if isinstance(s, Load):
            self.read(s, s.place)
            deps = [self.place(s, s.place), self.optional(s, s.guard), self.optional(s, s.fill)]
            self.name(s, s.name, s.type, max(deps))
        elif isinstance(s, Store | Atomic):
            self.write(s, s.place)
            self.optional(s, s.guard)
            self.value(s, s.value)
            if isinstance(s, Atomic) and s.old:
                self.name(s, s.old, s.value.type, Spread.LANE)
        elif isinstance(s, LoadVector | StoreVector):
            self.vector(s)
        elif isinstance(s, ShiftVector):
            self.shift(s)
        elif isinstance(s, AsyncCopy):
            self.read(s, s.src)
            self.write(s, s.dst)
            self.optional(s, s.guard)
            if s.bytes not in (4, 8, 16) or s.bytes % BYTES[s.dst.type] or s.dst.space != "shared":
                raise self.fail(s, f"cp.async of {s.bytes} bytes")
        elif isinstance(s, LdMatrix | StMatrix | Mma | Wgmma):
            if isinstance(s, LdMatrix):
                self.read(s, s.src)
            check_matrix(self, s)
        elif isinstance(s, NamedBarrier):
            self.value(s, s.id)

    def vector(self, s: LoadVector | StoreVector) -> None:
        if isinstance(s, LoadVector):
            self.read(s, s.place)
        else:
            self.write(s, s.place)
        self.optional(s, s.guard)
        self.array(s, s.array, s.at, s.count, s.place.type)
        if s.count * BYTES[s.place.type] not in (1, 2, 4, 8, 16):
            raise self.fail(s, f"a vector of {s.count * BYTES[s.place.type]} bytes")

    def shift(self, s: ShiftVector) -> None:
        type = self.types.get(s.array, "")
        self.array(s, s.array, s.at, s.count, type)
        self.array(s, s.source, s.start, 2 * s.count, type)
        self.value(s, s.by)
        if s.count * BYTES[type] != 16:
            raise self.fail(s, f"a shift of {s.count * BYTES[type]} bytes")

    # -- rings and TMA

    def ring(self, s: Cursor | Advance | RingWait | RingArrive | CopyArrive | TmaLoad | TmaStore) -> None:
        if isinstance(s, Cursor):
            if s.ring not in self.rings:
                raise self.fail(s, f"{s.ring} is no ring of the kernel")
            self.name(s, f"{s.name}_slot", "i32", Spread.BLOCK)
            self.name(s, f"{s.name}_parity", "u32", Spread.BLOCK)
            self.cursors[s.name] = s.ring
            return
        if not isinstance(s, TmaStore) and s.cursor not in self.cursors:
            raise self.fail(s, f"{s.cursor} is no cursor here")
        if isinstance(s, Advance):
            spread = self.optional(s, s.by)
            for name in (f"{s.cursor}_slot", f"{s.cursor}_parity"):
                self.spread[name] = max(self.spread[name], spread)
        elif isinstance(s, RingArrive):
            self.optional(s, s.rank)
            if s.bytes and s.side != "full":
                raise self.fail(s, "bytes are announced on the full side")
        elif isinstance(s, TmaLoad | TmaStore):
            check_tma(self, s)

    # -- order of copies and barriers

    def order(self, s: S, flow: Spread) -> None:
        if isinstance(s, Barrier | ClusterBarrier):
            kind = "a barrier" if isinstance(s, Barrier) else "a barrier of the cluster"
            if self.role:
                raise self.fail(
                    s, f"{kind} in role {self.role}, which the others do not reach: name it, or move it out"
                )
            if flow != Spread.BLOCK:
                raise self.fail(s, f"{kind} under a condition that is not the same for the whole block")
            self.landed = self.landed or self.waited
        elif isinstance(s, WARP_OPS) and flow == Spread.LANE:
            raise self.fail(s, "a warp operation under a condition that is not the same for the whole warp")
        elif isinstance(s, GROUP_OPS) and flow > Spread.GROUP:
            raise self.fail(s, "wgmma under a condition that is not the same for the whole warpgroup")
        elif isinstance(s, NamedBarrier):
            self.landed = self.landed or self.waited
        elif isinstance(s, AsyncCopy):
            self.copied.add(s.dst.buffer)
        elif isinstance(s, AsyncWait | RingWait):
            # what a ring says to be full has landed, for all threads
            self.waited = True
            self.landed = self.landed or isinstance(s, RingWait)

    def read(self, s: S, p: Place) -> None:
        self.place(s, p)
        if p.space == "shared" and p.buffer in self.copied and not self.landed:
            raise self.fail(s, f"{p.buffer} is read before its copies are waited for and a barrier is passed")

    def write(self, s: S, p: Place) -> None:
        self.place(s, p)
        if p.space == "global" and self.params[p.buffer].role == "in":
            raise self.fail(s, f"{p.buffer} is an operand and is written")


def check_threads(kernel: Kernel) -> None:
    """Warp and warpgroup operations in a block of whole warps and warpgroups; ids and threads of named barriers."""
    statements = list(walk(kernel.body))
    if kernel.threads % 32 and any(isinstance(s, (*WARP_OPS, Roles)) for s in statements):
        raise failure(kernel, None, f"warp operations in a block of {kernel.threads} threads")
    if (
        kernel.threads % 128
        and any(isinstance(s, GROUP_OPS) for s in statements)
        and not any(isinstance(s, Roles) for s in statements)
    ):
        raise failure(kernel, None, f"wgmma in a block of {kernel.threads} threads")
    for s in statements:
        if not isinstance(s, NamedBarrier):
            continue
        if isinstance(s.id, Lit) and not 1 <= int(s.id.value) <= 15:
            raise failure(kernel, s, f"barrier {s.id.value}: 1 to 15 are free, 0 is that of the block")
        if s.threads % 32 or not 32 <= s.threads <= kernel.threads:
            raise failure(kernel, s, f"a barrier of {s.threads} threads in a block of {kernel.threads}")
