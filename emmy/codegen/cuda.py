"""Kernel IR -> CUDA C++, one to one.  The source needs no header; NVRTC compiles it as it is.

bf16, f16 and f8 are stored as their bits (`unsigned short`, `unsigned char`), bool as `unsigned char`, i64 as
`long long`.  Helper functions (see `cuda_helpers`) are printed only where the kernel uses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from emmy.codegen.cuda_helpers import HELPERS, used
from emmy.codegen.cuda_scalar import CTYPE, CUDA
from emmy.codegen.expr import shared_offset
from emmy.ir.kernel import (
    BYTES,
    INTRINSICS,
    STATIC_SMEM,
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
    Param,
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

# C's precedence, tighter is larger
_LEVEL = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip
_UNARY, _ATOM, _TERNARY = 11, 12, 0
_BUILTIN = {
    "tid": "(int)threadIdx.x", "bid_x": "(int)blockIdx.x", "bid_y": "(int)blockIdx.y", "bid_z": "(int)blockIdx.z",
    "grid_x": "(int)gridDim.x",
}  # fmt: skip
_RAW = ("bf16", "f16", "f8e4m3", "f8e5m2")
_SHUFFLE = {"xor": "__shfl_xor_sync", "up": "__shfl_up_sync", "down": "__shfl_down_sync", "lane": "__shfl_sync"}
_ATOMIC = {"add": "atomicAdd", "max": "atomicMax", "min": "atomicMin"}


def source(kernel: Kernel, helpers: Mapping[str, str] | None = None) -> str:
    """The whole translation unit of one kernel.  `helpers` replaces texts of `cuda_helpers` (tests on the host do)."""
    text = "\n".join(_Printer(kernel).kernel())
    needed = used(text, {**HELPERS, **(helpers or {})})
    return "\n".join([*needed, "", text, ""]) if needed else text + "\n"


def memory_type(type: str) -> str:
    """C type of an element in memory."""
    return "unsigned char" if type == "bool" else CTYPE[type]


def literal(value: int | float | bool, type: str) -> str:
    if type == "bool":
        return "true" if value else "false"
    if type in ("f32", "f64"):
        return _float(float(value), type)
    n = int(value)
    if type == "i64":
        return "(-9223372036854775807LL - 1)" if n == -(2**63) else f"{n}LL"
    if type in ("u32", "u64"):
        return f"{n}u" if type == "u32" else f"{n}ull"
    return "(-2147483647 - 1)" if n == -(2**31) else str(n)


def _float(value: float, type: str) -> str:
    if value != value:
        return "EMMY_NAN" if type == "f32" else "(double)EMMY_NAN"
    if type == "f32":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))  # beyond the largest f32 it is infinite, as in PyTorch
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + ("EMMY_INF" if type == "f32" else "(double)EMMY_INF")
    text = str(np.float32(value)) if type == "f32" else repr(value)
    if "." not in text and "e" not in text:
        text += ".0"
    return text + ("f" if type == "f32" else "")


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self.k = kernel
        self.shared: dict[str, Buffer] = {b.name: b for b in kernel.shared}

    # -- values: (text, precedence level)

    def x(self, v: X, least: int = _TERNARY) -> str:
        text, level = self.value(v)
        return text if level >= least and not (least > _TERNARY and level == _TERNARY) else f"({text})"

    def value(self, v: X) -> tuple[str, int]:
        if isinstance(v, Lit):
            text = literal(v.value, v.type)
            return text, _UNARY if text.startswith("-") else _ATOM
        if isinstance(v, Var):
            return v.name, _ATOM
        if isinstance(v, Elem):
            return f"{v.array}[{self.x(v.index)}]", _ATOM
        if isinstance(v, Builtin):
            return _BUILTIN[v.name], _UNARY
        if isinstance(v, Bin):
            level = _LEVEL[v.op]
            # shifts, bit operators and mixed logic read better with parentheses
            inner = max(level, 9) if v.op in ("<<", ">>", "&", "^", "|") else level
            return f"{self.x(v.a, inner)} {v.op} {self.x(v.b, inner + 1)}", level
        if isinstance(v, Un):
            return f"{v.op}{self.x(v.a, _ATOM)}", _UNARY
        if isinstance(v, Select):
            return f"{self.x(v.cond, 1)} ? {self.x(v.yes, 1)} : {self.x(v.no, 1)}", _TERNARY
        if isinstance(v, Convert):
            return self.convert(v)
        return self.call(v)

    def call(self, v: Call) -> tuple[str, int]:
        if v.name in CUDA:
            t = v.args[-1].type if v.name != "where" else v.type
            # every operand as an atom: spellings need no parentheses of their own
            text = CUDA[v.name]([self.x(a, _ATOM) for a in v.args], t)
            return text, _ATOM if text.endswith(")") and text.split("(")[0].replace("_", "").isalnum() else _TERNARY
        if v.name not in INTRINSICS:
            raise KeyError(f"unknown word {v.name!r}")
        args = ", ".join(self.x(a) for a in v.args)
        if v.name in ("floordiv_index", "floormod_index"):
            stem = "floordiv_int" if v.name == "floordiv_index" else "mod_int"
            return f"{stem}<{CTYPE[v.type]}>({args})", _ATOM
        if v.name == "clock":
            return "clock64()", _ATOM
        return f"{'fmaf' if v.name == 'fma' else v.name}({args})", _ATOM

    def convert(self, v: Convert) -> tuple[str, int]:
        return converted(self.x(v.a), self.x(v.a, _UNARY), v.a.type, v.type)

    # -- memory

    def place(self, p: Place) -> str:
        if p.space == "global":
            return f"{p.buffer}[{self.x(p.index[0])}]"
        return f"{p.buffer}[{self.x(shared_offset(self.shared[p.buffer], p.index))}]"

    def address(self, p: Place) -> str:
        return f"&{self.place(p)}"

    # -- statements

    def block(self, body: tuple[S, ...], depth: int) -> Iterator[str]:
        pad = "    " * depth
        for s in body:
            if isinstance(s, For):
                yield from self.loop(s, depth)
            elif isinstance(s, If):
                yield from self.branch(s, depth)
            else:
                yield from (pad + line for line in self.simple(s))

    def loop(self, s: For, depth: int) -> Iterator[str]:
        pad = "    " * depth
        if s.unroll != 1:
            yield pad + ("#pragma unroll" if s.unroll == 0 else f"#pragma unroll {s.unroll}")
        one = isinstance(s.step, Lit) and s.step.value == 1
        step = f"++{s.var.name}" if one else f"{s.var.name} += {self.x(s.step)}"
        head = f"{CTYPE[s.var.type]} {s.var.name} = {self.x(s.start)}; {s.var.name} < {self.x(s.stop, 8)}; {step}"
        yield f"{pad}for ({head}) {{"
        yield from self.block(s.body, depth + 1)
        yield pad + "}"

    def branch(self, s: If, depth: int) -> Iterator[str]:
        pad = "    " * depth
        yield f"{pad}if ({self.x(s.cond)}) {{"
        yield from self.block(s.then, depth + 1)
        if s.orelse:
            yield pad + "} else {"
            yield from self.block(s.orelse, depth + 1)
        yield pad + "}"

    def simple(self, s: S) -> Iterator[str]:
        if isinstance(s, Comment):
            yield f"// {s.text}"
        elif isinstance(s, Let):
            yield f"const {CTYPE[s.value.type]} {s.name} = {self.x(s.value)};"
        elif isinstance(s, Declare):
            yield self.declare(s)
        elif isinstance(s, Assign):
            yield self.assign(s)
        elif isinstance(s, Load):
            yield self.load(s)
        elif isinstance(s, Store):
            value = converted(self.x(s.value), self.x(s.value, _UNARY), s.value.type, s.place.type)[0]
            yield self.guarded(s.guard) + f"{self.place(s.place)} = {value};"
        elif isinstance(s, LoadVector | StoreVector):
            yield self.vector(s)
        elif isinstance(s, Atomic):
            old = f"const {CTYPE[s.value.type]} {s.old} = " if s.old else self.guarded(s.guard)
            yield f"{old}{_ATOMIC[s.op]}({self.address(s.place)}, {self.x(s.value)});"
        elif isinstance(s, Barrier):
            yield "__syncthreads();"
        elif isinstance(s, WarpSync):
            yield "__syncwarp();"
        elif isinstance(s, Fence):
            yield "__threadfence();" if s.scope == "device" else "__threadfence_block();"
        elif isinstance(s, Shuffle):
            width = "" if s.width == 32 else f", {s.width}"
            head = f"const {CTYPE[s.value.type]} {s.name} = {_SHUFFLE[s.mode]}"
            yield f"{head}(0xffffffffu, {self.x(s.value)}, {self.x(s.lane)}{width});"
        elif isinstance(s, AsyncCopy):
            guard = "true" if s.guard is None else self.x(s.guard)
            yield f"async_copy{s.bytes}({self.address(s.dst)}, {self.address(s.src)}, {guard});"
        elif isinstance(s, AsyncCommit):
            yield "async_commit();"
        elif isinstance(s, AsyncWait):
            yield f"async_wait<{s.pending}>();"
        elif isinstance(s, LdMatrix):
            dst = ", ".join(self.x(d) for d in s.dst)
            yield f"ldmatrix_x{len(s.dst)}{'_trans' if s.trans else ''}({dst}, {self.address(s.src)});"
        elif isinstance(s, Mma):
            operands = ", ".join(self.x(v) for v in (*s.d, *s.a, *s.b, *s.c))
            yield f"mma_{s.shape}_{s.type}({operands});"
        else:
            raise TypeError(f"no statement: {s!r}")

    def guarded(self, guard: X | None) -> str:
        return "" if guard is None else f"if ({self.x(guard)}) "

    def declare(self, s: Declare) -> str:
        if s.count is None:
            init = "" if s.init is None else f" = {self.x(s.init)}"
            return f"{CTYPE[s.type]} {s.name}{init};"
        align = "__align__(16) " if s.count * BYTES[s.type] >= 4 else ""
        zero = " = {}" if s.init is not None else ""
        return f"{align}{memory_type(s.type)} {s.name}[{s.count}]{zero};"

    def assign(self, s: Assign) -> str:
        target, v = self.x(s.target), s.value
        if isinstance(v, Bin) and v.a == s.target and v.op in ("+", "-", "*"):
            return f"{target} {v.op}= {self.x(v.b)};"
        if isinstance(v, Call) and v.name in ("add", "mul") and v.args[0] == s.target and v.type in ("f32", "f64"):
            return f"{target} {'+=' if v.name == 'add' else '*='} {self.x(v.args[1])};"
        return f"{target} = {self.x(v)};"

    def load(self, s: Load) -> str:
        place = self.place(s.place)
        text, level = converted(place, place, s.place.type, s.type)
        if s.guard is not None:
            fill = self.x(s.fill, 1) if s.fill is not None else literal(0, s.type)
            read = text if level > _TERNARY else f"({text})"
            text = f"{self.x(s.guard, 1)} ? {read} : {fill}"
        return f"const {CTYPE[s.type]} {s.name} = {text};"

    def vector(self, s: LoadVector | StoreVector) -> str:
        bytes = s.count * BYTES[s.place.type]
        array = s.array if isinstance(s.at, Lit) and s.at.value == 0 else f"&{s.array}[{self.x(s.at)}]"
        if isinstance(s, StoreVector):
            return f"{self.guarded(s.guard)}copy{bytes}({self.address(s.place)}, {array});"
        copy = f"copy{bytes}({array}, {self.address(s.place)});"
        return copy if s.guard is None else f"{self.guarded(s.guard)}{copy} else zero{bytes}({array});"

    # -- the kernel

    def kernel(self) -> Iterator[str]:
        k = self.k
        bounds = f"{k.threads}, {k.min_blocks}" if k.min_blocks else str(k.threads)
        yield f"// {k.comment}"
        yield f'extern "C" __global__ void __launch_bounds__({bounds})'
        yield f"{k.name}({', '.join(self.param(p) for p in k.params)}) {{"
        yield from ("    " + line for line in self.declare_shared())
        yield from self.block(k.body, 1)
        yield "}"

    def param(self, p: Param) -> str:
        if p.role == "size":
            return f"const long long {p.name}"
        return f"{'const ' if p.role == 'in' else ''}{memory_type(p.type)}* __restrict__ {p.name}"

    def declare_shared(self) -> Iterator[str]:
        k = self.k
        dynamic = k.smem > STATIC_SMEM
        if dynamic:
            yield "extern __shared__ __align__(1024) unsigned char shared_memory[];"
        for b in k.shared:
            c = memory_type(b.type)
            if dynamic:
                yield f"{c}* {b.name} = reinterpret_cast<{c}*>(shared_memory + {k.offsets[b.name]});"
            elif b.overlays:
                yield f"{c}* {b.name} = reinterpret_cast<{c}*>({b.overlays});"
            else:
                yield f"__shared__ __align__(128) {c} {b.name}[{k.room(b) // BYTES[b.type]}];"


def converted(text: str, atom: str, old: str, new: str) -> tuple[str, int]:
    """`text` of type `old` as a value of type `new`; `atom` is the text bound tightly enough for a cast."""
    if old == new:
        return text, _ATOM if text == atom else _TERNARY
    if old in _RAW:
        return (f"{old}_to_f32({text})", _ATOM) if new == "f32" else (f"({CTYPE[new]}){old}_to_f32({text})", _UNARY)
    if new in _RAW:
        value = text if old == "f32" else f"(float){atom}"
        return f"f32_to_{new}({value})", _ATOM
    if new == "bool":
        return f"{atom} != 0", 6
    if new in ("i8", "u8", "i16") and old in ("f32", "f64"):
        return f"({CTYPE[new]})(int){atom}", _UNARY
    return f"({CTYPE[new]}){atom}", _UNARY
