"""Kernel IR: hardware statements.  The CUDA printer is a one-to-one walk over it, so meaning ends here.

    Kernel = Kernel(name, comment, params, shared, grid, threads, body, min_blocks, rings, maps, cluster, dependent)
    Param  = Param(name, type, role, count)          role: in, out (pointers, 16-byte aligned), size (i64 scalar),
                                                     scratch, zeroed (memory of the launch's own)
    Buffer = Buffer(name, type, shape, layout, overlays, align)    shared memory
    Layout = Layout(pad, swizzle, shift)             where element (.., row, column) of a buffer lies
    Ring   = Ring(name, depth, full, empty)          slots with two mbarriers each; owns phases and arrival counts
    TensorMap = TensorMap(name, param, type, shape, strides, box, swizzle, offset)
    Place  = Place(space, buffer, index, type, rank) global: one flat element index; shared: an index a dimension
    Matrix = Matrix(place, major)                    an operand of wgmma in shared memory

    X (value)  = Lit(value, type) | Var(name, type) | Elem(array, index, type) | Builtin(name)
               | Bin(op, a, b, type) | Un(op, a, type) | Select(cond, yes, no, type)
               | Call(name, args, type)              a word of the scalar vocabulary or of `INTRINSICS`
               | Convert(a, type)                    value conversion, also to and from the raw bits of bf16, f16, f8
    S (statement) =
      Let(name, value) | Declare(name, type, init, count) | Assign(target, value) | Comment(text)
    | For(var, start, stop, step, body, unroll) | If(cond, then, orelse) | Roles(Role(name, warps, registers, body)..)
    | Load(name, type, place, guard, fill) | Store(place, value, guard)
    | LoadVector(array, at, count, place, guard) | StoreVector(place, array, at, count, guard)
    | ShiftVector(array, at, source, start, count, by)
    | Atomic(op, place, value, guard, old)
    | Barrier() | NamedBarrier(id, threads, arrive) | ClusterBarrier() | WarpSync() | Fence(scope) | ProxyFence(space)
    | Shuffle(name, value, mode, lane, width) | Vote(name, value, mode)
    | AsyncCopy(dst, src, bytes, guard) | AsyncCommit() | AsyncWait(pending)
    | InitRings() | Cursor(name, ring) | Advance(cursor, by)
    | RingWait(cursor, side) | RingArrive(cursor, side, bytes, rank) | CopyArrive(cursor)
    | TmaLoad(dst, map, at, cursor, multicast) | TmaStore(map, at, src, op) | BulkCommit() | BulkWait(pending, read)
    | LdMatrix(dst, src, trans) | StMatrix(dst, src, trans) | Mma(shape, type, d, a, b, c)
    | WgmmaFence() | Wgmma(acc, at, n, type, a, b, accumulate) | WgmmaCommit() | WgmmaWait(pending)
    | DependentLaunch() | DependentWait()

Types are the storage types of `emmy.ir.dtype` plus `u32` and `u64`.  A value of type bf16, f16 or f8 is its bits; all
arithmetic is on f32, f64 and integers.  Names are unique in a kernel and declared before they are used; a `Let` or a
`Load` is never assigned again.  Loops stay rolled: `unroll` is a request to the compiler.  A persistent kernel is a
`For` over tiles from the block's index by the grid's size.
"""

from emmy.ir.kernel.copies import (
    Advance,
    AsyncCommit,
    AsyncCopy,
    AsyncWait,
    BulkCommit,
    BulkWait,
    CopyArrive,
    Cursor,
    InitRings,
    ProxyFence,
    RingArrive,
    RingWait,
    TmaLoad,
    TmaStore,
)
from emmy.ir.kernel.launch import STATIC_SMEM, Kernel, Param
from emmy.ir.kernel.matrices import (
    MMA_SHAPES,
    WGMMA_K,
    LdMatrix,
    Mma,
    StMatrix,
    Wgmma,
    WgmmaCommit,
    WgmmaFence,
    WgmmaWait,
)
from emmy.ir.kernel.memory import Buffer, Layout, Matrix, Place, Ring, TensorMap
from emmy.ir.kernel.statements import (
    Assign,
    Atomic,
    Barrier,
    ClusterBarrier,
    Comment,
    Declare,
    DependentLaunch,
    DependentWait,
    Fence,
    For,
    If,
    Let,
    Load,
    LoadVector,
    NamedBarrier,
    Role,
    Roles,
    S,
    ShiftVector,
    Shuffle,
    Store,
    StoreVector,
    Vote,
    WarpSync,
)
from emmy.ir.kernel.values import (
    BUILTINS,
    BYTES,
    INTRINSICS,
    Bin,
    Builtin,
    Call,
    Convert,
    Elem,
    Lit,
    Select,
    Target,
    Un,
    Var,
    X,
)
from emmy.ir.kernel.walks import NODES, bodies, children, operands, walk, with_bodies

__all__ = [
    "BUILTINS", "BYTES", "INTRINSICS", "MMA_SHAPES", "NODES", "STATIC_SMEM", "WGMMA_K", "Advance", "Assign",
    "AsyncCommit", "AsyncCopy", "AsyncWait", "Atomic", "Barrier", "Bin", "Buffer", "Builtin", "BulkCommit", "BulkWait",
    "Call", "ClusterBarrier", "Comment", "Convert", "CopyArrive", "Cursor", "Declare", "DependentLaunch",
    "DependentWait", "Elem", "Fence", "For", "If", "InitRings", "Kernel", "Layout", "LdMatrix", "Let", "Lit", "Load",
    "LoadVector", "Matrix", "Mma", "NamedBarrier", "Param", "Place", "ProxyFence", "Ring", "RingArrive", "RingWait",
    "Role", "Roles", "S", "Select", "ShiftVector", "Shuffle", "StMatrix", "Store", "StoreVector", "Target", "TensorMap",
    "TmaLoad", "TmaStore", "Un", "Var", "Vote", "WarpSync", "Wgmma", "WgmmaCommit", "WgmmaFence", "WgmmaWait", "X",
    "bodies", "children", "operands", "walk", "with_bodies",
]  # fmt: skip
