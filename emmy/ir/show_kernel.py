"""Kernel IR for people: hardware statements one a line, without C++'s types and punctuation.

kernel k_rms_norm  grid=(512, 1, 1)  threads=256  smem=128
    // row WORK=t256 … of body 1f0c…
    in f32 x
    out f32 y
    smem f32 acc0_s[1, 8]
    f32 acc0 = 0
    for q in tid..2304 step 256
        in0 = load x[q + (row * 2304)]
        acc0 += v0
    shuffle other0 = acc0 xor offset
    sync
"""

from __future__ import annotations

from typing import Final

from emmy.ir.infix import size_text
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
    ProxyFence,
    RingArrive,
    RingWait,
    Roles,
    S,
    ShiftVector,
    Shuffle,
    StMatrix,
    Store,
    StoreVector,
    TensorMap,
    TmaLoad,
    TmaStore,
    Vote,
    WarpSync,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
    walk,
)
from emmy.ir.kernel.types import loaded, natural
from emmy.ir.show_values import BUILTIN_WORDS, ValueText

BARE: Final[dict[type, str]] = {
    Barrier: "sync",
    WarpSync: "sync warp",
    ClusterBarrier: "sync cluster",
    AsyncCommit: "async commit",
    BulkCommit: "bulk commit",
    InitRings: "init rings",
    WgmmaFence: "wgmma fence",
    WgmmaCommit: "wgmma commit",
    DependentLaunch: "dependent launch",
    DependentWait: "dependent wait",
}


def show_kernel(k: Kernel) -> str:
    """The whole kernel; the first line says what a launch needs.  `emmy.ir.parse_kernel` reads it back."""
    taken = any(p.name == "tid" for p in k.params) or any(_names(s, "tid") for s in walk(k.body))
    lines = [_head(k), f"    {_comment(k.comment)}"]
    lines += ["    " + _param(p) for p in k.params]
    lines += ["    " + _buffer(b) for b in k.shared]
    lines += [f"    ring {r.name} of {r.depth}  full={r.full}  empty={r.empty}" for r in k.rings]
    lines += ["    " + _map(m) for m in k.maps]
    lines += _Text(BUILTIN_WORDS["tid"] if taken else "tid").block(k.body, 1)
    return "\n".join(lines)


def show_statement(s: S) -> str:
    """One statement on one line (of a loop or branch its head)."""
    return _Text().block((s,), 0)[0]


def _names(s: S, name: str) -> bool:
    """Whether the statement brings a register of that name."""
    if isinstance(s, For):
        return s.var.name == name
    own = s.old if isinstance(s, Atomic) else s.name if isinstance(s, Let | Declare | Load | Shuffle | Vote) else ""
    return own == name


def _head(k: Kernel) -> str:
    options = f"  min_blocks={k.min_blocks}" if k.min_blocks else ""
    options += f"  cluster=({', '.join(map(str, k.cluster))})" if k.cluster != (1, 1, 1) else ""
    options += "  dependent" if k.dependent else ""
    grid = ", ".join(size_text(e) for e in k.grid)
    return f"kernel {k.name}  grid=({grid})  threads={k.threads}  smem={k.smem}{options}"


def _comment(text: str) -> str:
    return f"// {text}" if text else "//"


def _param(p: Param) -> str:
    typed = "" if (p.role, p.type) == ("size", "i64") else f"{p.type} "
    return f"{p.role} {typed}{p.name}{'' if p.count is None else f'[{size_text(p.count)}]'}"


def _buffer(b: Buffer) -> str:
    layout = f" pad {b.layout.pad}" if b.layout.pad else ""
    layout += f" swizzle {b.layout.swizzle}>>{b.layout.shift}" if b.layout.swizzle or b.layout.shift else ""
    over = f" over {b.overlays}" if b.overlays else ""
    align = f" align {b.align}" if b.align != 128 else ""
    return f"smem {b.type} {b.name}[{', '.join(map(str, b.shape))}]{layout}{align}{over}"


def _map(m: TensorMap) -> str:
    shape, strides = (", ".join(size_text(e) for e in of) for of in (m.shape, m.strides))
    swizzle = f"  swizzle {m.swizzle} bytes" if m.swizzle else ""
    offset = f" + {size_text(m.offset)}" if m.offset is not None else ""
    box = ", ".join(map(str, m.box))
    return f"map {m.type} {m.name}[{shape}] of {m.param}{offset}  strides ({strides})  box ({box}){swizzle}"


class _Text(ValueText):
    def block(self, body: tuple[S, ...], depth: int) -> list[str]:
        pad, lines = "    " * depth, list[str]()
        for s in body:
            if isinstance(s, For):
                lines += [pad + self.loop(s), *self.block(s.body, depth + 1)]
            elif isinstance(s, If):
                lines += [f"{pad}if {self.x(s.cond, 'bool')}", *self.block(s.then, depth + 1)]
                if s.orelse:
                    lines += [f"{pad}else", *self.block(s.orelse, depth + 1)]
            elif isinstance(s, Roles):
                for r in s.roles:
                    registers = f"  {r.registers} registers" if r.registers else ""
                    lines += [f"{pad}role {r.name}  {r.warps} warps{registers}", *self.block(r.body, depth + 1)]
            else:
                lines.append(pad + self.simple(s))
        return lines

    def loop(self, s: For) -> str:
        t = s.var.type
        step = "" if isinstance(s.step, Lit) and s.step == Lit(1, t) else f" step {self.x(s.step, t)}"
        unroll = {0: "  unrolled", 1: "", -1: "  rolled"}.get(s.unroll, f"  unroll {s.unroll}")
        typed = "" if t == "i32" else f"{t} "
        start, stop = (self.x(v, t, inner=True) for v in (s.start, s.stop))
        return f"for {typed}{s.var.name} in {start}..{stop}{step}{unroll}"

    def simple(self, s: S) -> str:
        if isinstance(s, Comment):
            return _comment(s.text)
        if isinstance(s, Let):
            return f"{s.name} = {self.x(s.value)}"
        if isinstance(s, Declare):
            init = "" if s.init is None else f" = {self.x(s.init, s.type)}"
            return f"{s.type} {s.name}{'' if s.count is None else f'[{s.count}]'}{init}"
        if isinstance(s, Assign):
            return self.assign(s)
        if isinstance(s, Shuffle):
            width = "" if s.width == 32 else f" width {s.width}"
            return f"shuffle {s.name} = {self.x(s.value)} {s.mode} {self.x(s.lane, 'i32')}{width}"
        if isinstance(s, Vote):
            return f"vote {s.name} = {s.mode} {self.x(s.value, 'bool')}"
        if isinstance(s, LdMatrix | StMatrix | Mma | Wgmma):
            return self.matrices(s)
        return self.memory(s)

    def assign(self, s: Assign) -> str:
        """`+=` and `*=` are the words add and mul, `-=` the operator; all else is spelled out."""
        t, v = s.target, s.value
        if isinstance(v, Bin | Call) and natural(v) == v.type == t.type:
            if isinstance(v, Bin) and v.op == "-" and v.a == t:
                return f"{self.x(t)} -= {self.x(v.b, t.type)}"
            if isinstance(v, Call) and v.name in ("add", "mul") and v.args[0] == t:
                return f"{self.x(t)} {'+=' if v.name == 'add' else '*='} {self.x(v.args[1], t.type)}"
        return f"{self.x(t)} = {self.x(v, t.type)}"

    def memory(self, s: S) -> str:
        if isinstance(s, Load):
            kind = "load" if s.place.space == "global" else "read"
            typed = "" if s.type == loaded(s.place.type) else f" as {s.type}"
            fill = f" else {self.x(s.fill, s.type)}" if s.fill is not None else ""
            return f"{s.name} = {kind} {self.place(s.place)}{typed}{self.guard(s.guard)}{fill}"
        if isinstance(s, Store):
            return f"{self.place(s.place)} = {self.x(s.value, loaded(s.place.type))}{self.guard(s.guard)}"
        if isinstance(s, LoadVector):
            return f"{s.array}[{self.x(s.at, 'i32')} +{s.count}] = load {self.place(s.place)}{self.guard(s.guard)}"
        if isinstance(s, StoreVector):
            return f"{self.place(s.place)} = {s.array}[{self.x(s.at, 'i32')} +{s.count}]{self.guard(s.guard)}"
        if isinstance(s, ShiftVector):
            source = f"{s.source}[{self.x(s.start, 'i32')} +{2 * s.count}]"
            return f"{s.array}[{self.x(s.at, 'i32')} +{s.count}] = shift {source} by {self.x(s.by, 'i32')}"
        if isinstance(s, Atomic):
            old = f"{s.old} = " if s.old else ""
            value = self.x(s.value, loaded(s.place.type))
            return f"{old}atomic {s.op} {self.place(s.place)}, {value}{self.guard(s.guard)}"
        if isinstance(s, AsyncCopy):
            return f"async {self.place(s.dst)} = {self.place(s.src)} {s.bytes} bytes{self.guard(s.guard)}"
        return self.copy(s)

    def matrices(self, s: LdMatrix | StMatrix | Mma | Wgmma) -> str:
        if isinstance(s, LdMatrix):
            return f"ldmatrix{'.trans' if s.trans else ''} {self.all(s.dst)} = {self.place(s.src)}"
        if isinstance(s, StMatrix):
            return f"stmatrix{'.trans' if s.trans else ''} {self.place(s.dst)} = {self.all(s.src, 'u32')}"
        if isinstance(s, Mma):
            a, b = self.all(s.a, "u32"), self.all(s.b, "u32")
            c = self.all(s.c, s.d[0].type if s.d else None)
            return f"mma.{s.shape}.{s.type} ({self.all(s.d)}) = ({a}) * ({b}) + ({c})"
        left = self.matrix(s.a) if isinstance(s.a, Matrix) else f"({self.all(s.a, 'u32')})"
        op = "+=" if s.accumulate else "="
        at = f"{s.acc}[{self.x(s.at, 'i32')} +{s.n // 2}]"
        return f"wgmma.m64n{s.n}.{s.type} {at} {op} {left} * {self.matrix(s.b)}"

    def matrix(self, m: Matrix) -> str:
        return self.place(m.place) + ("" if m.major == "k" else f".{m.major}")

    def copy(self, s: S) -> str:
        if isinstance(s, Cursor):
            return f"cursor {s.name} of {s.ring}"
        if isinstance(s, Advance):
            by = "" if s.by is None else f" by {self.x(s.by, 'i32')}"
            return f"advance {s.cursor}{by}"
        if isinstance(s, RingWait):
            return f"wait {s.cursor} {s.side}"
        if isinstance(s, RingArrive):
            bytes = f" {s.bytes} bytes" if s.bytes else ""
            block = "" if s.rank is None else f" of block {self.x(s.rank, 'i32')}"
            return f"arrive {s.cursor} {s.side}{bytes}{block}"
        if isinstance(s, CopyArrive):
            return f"arrive {s.cursor} full after copies"
        if isinstance(s, TmaLoad):
            blocks = "" if s.multicast is None else f" in blocks {self.x(s.multicast, 'u32')}"
            return f"tma {self.place(s.dst)} = {s.map}[{self.all(s.at, 'i32')}] on {s.cursor}{blocks}"
        if isinstance(s, TmaStore):
            return f"tma {s.map}[{self.all(s.at, 'i32')}] {'+=' if s.op else '='} {self.place(s.src)}"
        return self.bare(s)

    def bare(self, s: S) -> str:
        if isinstance(s, Fence):
            return f"fence {s.scope}"
        if isinstance(s, ProxyFence):
            return f"fence async {s.space}"
        if isinstance(s, AsyncWait):
            return f"async wait {s.pending}"
        if isinstance(s, BulkWait):
            return f"bulk wait {s.pending}{' read' if s.read else ''}"
        if isinstance(s, WgmmaWait):
            return f"wgmma wait {s.pending}"
        if isinstance(s, NamedBarrier):
            return f"{'arrive at' if s.arrive else 'sync'} {self.x(s.id, 'i32')} of {s.threads}"
        return BARE[type(s)]
