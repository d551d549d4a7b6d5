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
    Assign,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    Atomic,
    Barrier,
    Bin,
    Buffer,
    Builtin,
    Call,
    Comment,
    Convert,
    Declare,
    Elem,
    Fence,
    For,
    If,
    Kernel,
    LdMatrix,
    Let,
    Lit,
    Load,
    LoadVector,
    Mma,
    Place,
    S,
    Select,
    Shuffle,
    Store,
    StoreVector,
    Un,
    Var,
    WarpSync,
    X,
)

_BUILTIN = {"tid": "tid", "bid_x": "block.x", "bid_y": "block.y", "bid_z": "block.z", "grid_x": "grid.x"}


def show_kernel(k: Kernel) -> str:
    """The whole kernel; the first line says what a launch needs."""
    grid = ", ".join(e.text for e in k.grid)
    lines = [f"kernel {k.name}  grid=({grid})  threads={k.threads}  smem={k.smem}", f"    // {k.comment}"]
    lines += ["    " + _buffer(b) for b in k.shared]
    lines += _block(k.body, 1)
    return "\n".join(lines)


def _buffer(b: Buffer) -> str:
    layout = f" pad {b.layout.pad}" if b.layout.pad else ""
    layout += f" swizzle {b.layout.swizzle}>>{b.layout.shift}" if b.layout.swizzle else ""
    over = f" over {b.overlays}" if b.overlays else ""
    return f"smem {b.type} {b.name}[{', '.join(map(str, b.shape))}]{layout}{over}"


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
    else:
        yield _bare(s)


def _bare(s: S) -> str:
    if isinstance(s, Fence):
        return f"fence {s.scope}"
    if isinstance(s, AsyncWait):
        return f"async wait {s.pending}"
    words: dict[type, str] = {Barrier: "sync", WarpSync: "sync warp", AsyncCommit: "async commit"}
    return words[type(s)]


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
