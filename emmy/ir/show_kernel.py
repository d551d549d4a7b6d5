"""Kernel IR for people: hardware statements one a line, without C++'s types and punctuation.

kernel k_rms_norm  grid=(512, 1, 1)  threads=256  smem=128
    smem f32 acc0_s[1, 8]
    f32 acc0 = 0
    for q in tid..2304 step 256
        in0 = load x[q + row * 2304]
        acc0 += v0
    shuffle other0 = acc0 xor offset
    sync
"""

from __future__ import annotations

from collections.abc import Iterator

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
    Place,
    ProxyFence,
    RingArrive,
    RingWait,
    Roles,
    S,
    Select,
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

_BUILTIN = {"tid": "tid", "bid_x": "block.x", "bid_y": "block.y", "bid_z": "block.z", "grid_x": "grid.x",
            "cluster_rank": "cluster.rank"}  # fmt: skip
_BARE: dict[type, str] = {
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
    """The whole kernel; the first line says what a launch needs."""
    grid = ", ".join(e.text for e in k.grid)
    cluster = f"  cluster=({', '.join(map(str, k.cluster))})" if k.cluster != (1, 1, 1) else ""
    dependent = "  dependent" if k.dependent else ""
    head = f"kernel {k.name}  grid=({grid})  threads={k.threads}  smem={k.smem}{cluster}{dependent}"
    lines = [head, f"    // {k.comment}"]
    lines += ["    " + _buffer(b) for b in k.shared]
    lines += [f"    ring {r.name} of {r.depth}  full={r.full}  empty={r.empty}" for r in k.rings]
    lines += ["    " + _map(m) for m in k.maps]
    lines += _block(k.body, 1)
    return "\n".join(lines)


def show_statement(s: S) -> str:
    """One statement on one line (of a loop or branch its head)."""
    return _block((s,), 0)[0]


def _buffer(b: Buffer) -> str:
    layout = f" pad {b.layout.pad}" if b.layout.pad else ""
    layout += f" swizzle {b.layout.swizzle}>>{b.layout.shift}" if b.layout.swizzle else ""
    over = f" over {b.overlays}" if b.overlays else ""
    align = f" align {b.align}" if b.align != 128 else ""
    return f"smem {b.type} {b.name}[{', '.join(map(str, b.shape))}]{layout}{align}{over}"


def _map(m: TensorMap) -> str:
    shape, strides = (", ".join(e.text for e in of) for of in (m.shape, m.strides))
    swizzle = f"  swizzle {m.swizzle} bytes" if m.swizzle else ""
    offset = f" + {m.offset.text}" if m.offset is not None else ""
    box = ", ".join(map(str, m.box))
    return f"map {m.type} {m.name}[{shape}] of {m.param}{offset}  strides ({strides})  box ({box}){swizzle}"


def _block(body: tuple[S, ...], depth: int) -> list[str]:
    pad, lines = "    " * depth, []
    for s in body:
        if isinstance(s, For):
            step = "" if isinstance(s.step, Lit) and s.step.value == 1 else f" step {_x(s.step)}"
            unroll = {0: "  unrolled", 1: ""}.get(s.unroll, f"  unroll {s.unroll}")
            lines.append(f"{pad}for {s.var.name} in {_x(s.start)}..{_x(s.stop)}{step}{unroll}")
            lines += _block(s.body, depth + 1)
        elif isinstance(s, If):
            lines.append(f"{pad}if {_x(s.cond)}")
            lines += _block(s.then, depth + 1)
            if s.orelse:
                lines += [f"{pad}else", *_block(s.orelse, depth + 1)]
        elif isinstance(s, Roles):
            for r in s.roles:
                registers = f"  {r.registers} registers" if r.registers else ""
                lines += [f"{pad}role {r.name}  {r.warps} warps{registers}", *_block(r.body, depth + 1)]
        else:
            lines += [pad + line for line in _simple(s)]
    return lines


def _simple(s: S) -> Iterator[str]:
    if isinstance(s, Comment):
        yield f"// {s.text}"
    elif isinstance(s, Let):
        yield f"{s.name} = {_x(s.value)}"
    elif isinstance(s, Declare):
        init = "" if s.init is None else f" = {_x(s.init)}"
        yield f"{s.type} {s.name}{'' if s.count is None else f'[{s.count}]'}{init}"
    elif isinstance(s, Assign):
        yield _assign(s)
    elif isinstance(s, Load):
        kind = "load" if s.place.space == "global" else "read"
        fill = f" else {_x(s.fill)}" if s.fill is not None else ""
        yield f"{s.name} = {kind} {_place(s.place)}{_guard(s.guard)}{fill}"
    elif isinstance(s, Store):
        yield f"{_place(s.place)} = {_x(s.value)}{_guard(s.guard)}"
    elif isinstance(s, LoadVector):
        yield f"{s.array}[{_x(s.at)} +{s.count}] = load {_place(s.place)}{_guard(s.guard)}"
    elif isinstance(s, StoreVector):
        yield f"{_place(s.place)} = {s.array}[{_x(s.at)} +{s.count}]{_guard(s.guard)}"
    elif isinstance(s, Atomic):
        old = f"{s.old} = " if s.old else ""
        yield f"{old}atomic {s.op} {_place(s.place)}, {_x(s.value)}{_guard(s.guard)}"
    elif isinstance(s, Shuffle):
        yield f"shuffle {s.name} = {_x(s.value)} {s.mode} {_x(s.lane)}"
    elif isinstance(s, AsyncCopy):
        yield f"async {_place(s.dst)} = {_place(s.src)} {s.bytes} bytes{_guard(s.guard)}"
    elif isinstance(s, LdMatrix):
        yield f"ldmatrix{'.trans' if s.trans else ''} {', '.join(_x(d) for d in s.dst)} = {_place(s.src)}"
    elif isinstance(s, Mma):
        d, a, b, c = (", ".join(_x(v) for v in group) for group in (s.d, s.a, s.b, s.c))
        yield f"mma.{s.shape}.{s.type} ({d}) = ({a}) * ({b}) + ({c})"
    elif isinstance(s, StMatrix):
        yield f"stmatrix{'.trans' if s.trans else ''} {_place(s.dst)} = {', '.join(_x(v) for v in s.src)}"
    elif isinstance(s, Vote):
        yield f"vote {s.name} = {s.mode} {_x(s.value)}"
    elif isinstance(s, Wgmma):
        yield _wgmma(s)
    else:
        yield _copy(s)


def _wgmma(s: Wgmma) -> str:
    a = _matrix(s.a) if isinstance(s.a, Matrix) else f"({', '.join(_x(v) for v in s.a)})"
    op = "+=" if s.accumulate else "="
    return f"wgmma.m64n{s.n}.{s.type} {s.acc}[{_x(s.at)} +{s.n // 2}] {op} {a} * {_matrix(s.b)}"


def _matrix(m: Matrix) -> str:
    return _place(m.place) + ("" if m.major == "k" else f".{m.major}")


def _copy(s: S) -> str:
    if isinstance(s, Cursor):
        return f"cursor {s.name} of {s.ring}"
    if isinstance(s, Advance):
        return f"advance {s.cursor}{'' if s.by is None else f' by {_x(s.by)}'}"
    if isinstance(s, RingWait):
        return f"wait {s.cursor} {s.side}"
    if isinstance(s, RingArrive):
        bytes = f" {s.bytes} bytes" if s.bytes else ""
        return f"arrive {s.cursor} {s.side}{bytes}{'' if s.rank is None else f' of block {_x(s.rank)}'}"
    if isinstance(s, CopyArrive):
        return f"arrive {s.cursor} full after copies"
    if isinstance(s, TmaLoad):
        blocks = "" if s.multicast is None else f" in blocks {_x(s.multicast)}"
        return f"tma {_place(s.dst)} = {s.map}[{', '.join(_x(x) for x in s.at)}] on {s.cursor}{blocks}"
    if isinstance(s, TmaStore):
        return f"tma {s.map}[{', '.join(_x(x) for x in s.at)}] {'+=' if s.op else '='} {_place(s.src)}"
    return _bare(s)


def _bare(s: S) -> str:
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
        return f"{'arrive at' if s.arrive else 'sync'} {_x(s.id)} of {s.threads}"
    return _BARE[type(s)]


def _assign(s: Assign) -> str:
    v = s.value
    if isinstance(v, Bin) and v.a == s.target and v.op in ("+", "-", "*"):
        return f"{_x(s.target)} {v.op}= {_x(v.b)}"
    if isinstance(v, Call) and v.name in ("add", "mul") and v.args[0] == s.target:
        return f"{_x(s.target)} {'+=' if v.name == 'add' else '*='} {_x(v.args[1])}"
    return f"{_x(s.target)} = {_x(v)}"


def _guard(guard: X | None) -> str:
    return "" if guard is None else f"  where {_x(guard)}"


def _place(p: Place) -> str:
    return f"{p.buffer}[{', '.join(_x(i) for i in p.index)}]"


def _x(v: X, inner: bool = False) -> str:
    if isinstance(v, Lit):
        if isinstance(v.value, bool):
            return str(v.value).lower()
        n = float(v.value)
        return str(int(n)) if n == n and abs(n) < 1e15 and n == int(n) else str(v.value)
    if isinstance(v, Var):
        return v.name
    if isinstance(v, Elem):
        return f"{v.array}[{_x(v.index)}]"
    if isinstance(v, Builtin):
        return _BUILTIN[v.name]
    if isinstance(v, Bin):
        text = f"{_x(v.a, True)} {v.op} {_x(v.b, True)}"
        return f"({text})" if inner else text
    if isinstance(v, Un):
        return f"{v.op}{_x(v.a, True)}"
    if isinstance(v, Select):
        text = f"{_x(v.cond, True)} ? {_x(v.yes, True)} : {_x(v.no, True)}"
        return f"({text})" if inner else text
    if isinstance(v, Convert):
        return f"{v.type}({_x(v.a)})"
    return f"{v.name}({', '.join(_x(a) for a in v.args)})"
