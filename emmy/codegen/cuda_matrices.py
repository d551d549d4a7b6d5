"""Device functions on matrices: ldmatrix, stmatrix, mma.sync and wgmma.

Sources: PTX ISA manual, "Warp Level Matrix Multiply-Accumulate Instructions" and "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions".
"""

from __future__ import annotations

from typing import Final

from emmy.ir.kernel import MMA_SHAPES, WGMMA_K, Wgmma

_F = "static __device__ __forceinline__"
_PTX: Final = {"f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8"}


def _stmatrix(count: int, trans: bool) -> str:
    registers = [f"r{k}" for k in range(count)]
    parameters = ", ".join(f"unsigned {r}" for r in registers)
    operands = ", ".join(f'"r"({r})' for r in registers)
    sources = ", ".join(f"%{k + 1}" for k in range(count))
    return f"""{_F} void stmatrix_x{count}{"_trans" if trans else ""}(void* d, {parameters}) {{
    asm volatile("stmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16 [%0], {{{sources}}};"
                 :: "r"((unsigned)__cvta_generic_to_shared(d)), {operands} : "memory");
}}"""


def _mma(shape: str, type: str) -> str:
    """mma.sync with f32 accumulators, or i32 ones for i8."""
    c, bound, ptx = ("int", "r", "s32") if type == "i8" else ("float", "f", "f32")
    t = _PTX.get(type, type)
    return f"""{_F} void mma_{shape}_{type}({c}& d0, {c}& d1, {c}& d2, {c}& d3,
    unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
    {c} c0, {c} c1, {c} c2, {c} c3) {{
    asm volatile("mma.sync.aligned.{shape}.row.col.{ptx}.{t}.{t}.{ptx} "
                 "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%10, %11, %12, %13}};"
                 : "={bound}"(d0), "={bound}"(d1), "={bound}"(d2), "={bound}"(d3)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1),
                   "{bound}"(c0), "{bound}"(c1), "{bound}"(c2), "{bound}"(c3));
}}"""


def wgmma_name(s: Wgmma) -> str:
    """`wgmma_m64n128k16_bf16_kk`: majors of a (r: in registers) and b; `_first` where the former sum is not read."""
    a = "r" if isinstance(s.a, tuple) else s.a.major[0]
    return f"wgmma_m64n{s.n}k{WGMMA_K[s.type]}_{s.type}_{a}{s.b.major[0]}{'' if s.accumulate else '_first'}"


def wgmma_helper(s: Wgmma) -> str:
    """The function of one variant; `d` is the first of n/2 accumulators.

    Without `accumulate` they are outputs only, so that the compiler need not keep anything in them before.
    """
    count, in_registers = s.n // 2, isinstance(s.a, tuple)
    bound = "+f" if s.accumulate else "=f"
    d = ", ".join(f"%{k}" for k in range(count))
    outputs = ", ".join(f'"{bound}"(d[{k}])' for k in range(count))
    if in_registers:
        a, b = "{" + ", ".join(f"%{count + k}" for k in range(4)) + "}", f"%{count + 4}"
        parameters, inputs = "unsigned a0, unsigned a1, unsigned a2, unsigned a3", '"r"(a0), "r"(a1), "r"(a2), "r"(a3)'
    else:
        a, b = f"%{count}", f"%{count + 1}"
        parameters, inputs = "unsigned long long a", '"l"(a)'
    t = {"bf16": "bf16", "f16": "f16", "tf32": "tf32"}.get(s.type) or _PTX[s.type]
    majors = [] if isinstance(s.a, tuple) else [s.a.major]
    # only 16-bit factors can lie either way; the others have no such operands
    turned = [str(int(m == "mn")) for m in (*majors, s.b.major)] if s.type in ("bf16", "f16") else []
    immediates = ", ".join(["p", "1", "1", *turned])
    return f"""{_F} void {wgmma_name(s)}(float* d, {parameters}, unsigned long long b) {{
    asm volatile("{{\\n\\t.reg .pred p;\\n\\tsetp.ne.b32 p, {int(s.accumulate)}, 0;\\n\\t"
                 "wgmma.mma_async.sync.aligned.m64n{s.n}k{WGMMA_K[s.type]}.f32.{t}.{t} "
                 "{{{d}}}, {a}, {b}, {immediates};\\n\\t}}"
                 : {outputs}
                 : {inputs}, "l"(b));
}}"""


_LOADS: Final[dict[str, str]] = {
    "ldmatrix_x1": f"""{_F} void ldmatrix_x1(unsigned& r0, const void* s) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%0}}, [%1];"
                 : "=r"(r0) : "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}}""",
    "ldmatrix_x2": f"""{_F} void ldmatrix_x2(unsigned& r0, unsigned& r1, const void* s) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%0, %1}}, [%2];"
                 : "=r"(r0), "=r"(r1) : "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}}""",
    "ldmatrix_x4": f"""{_F} void ldmatrix_x4(
    unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* s) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}}""",
    "ldmatrix_x1_trans": f"""{_F} void ldmatrix_x1_trans(unsigned& r0, const void* s) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%0}}, [%1];"
                 : "=r"(r0) : "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}}""",
    "ldmatrix_x2_trans": f"""{_F} void ldmatrix_x2_trans(unsigned& r0, unsigned& r1, const void* s) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%0, %1}}, [%2];"
                 : "=r"(r0), "=r"(r1) : "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}}""",
    "ldmatrix_x4_trans": f"""{_F} void ldmatrix_x4_trans(
    unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* s) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%0, %1, %2, %3}}, [%4];"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}}""",
}
_STORES: Final = {f"stmatrix_x{n}{'_trans' if t else ''}": _stmatrix(n, t) for n in (1, 2, 4) for t in (False, True)}
_MMA: Final = {f"mma_{shape}_{t}": _mma(shape, t) for shape, t in MMA_SHAPES}
_WGMMA: Final[dict[str, str]] = {
    "wgmma_matrix": f"""{_F} unsigned long long wgmma_matrix(const void* start, int units, unsigned long long fields) {{
    // 14 bits: in a cluster the address also has the block's rank, which must not reach the fields above
    return fields | ((((unsigned)__cvta_generic_to_shared(start) >> 4) + (unsigned)units) & 0x3fffu);
}}""",
    "wgmma_fence": f'{_F} void wgmma_fence() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}',
    "wgmma_commit": f'{_F} void wgmma_commit() {{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }}',
    "wgmma_wait": """template <int N> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}""",
    # no instruction; the compiler moves no read of the accumulators above it, hence not above the wait before it
    "settled": """template <int N> static __device__ __forceinline__ void settled(float (&d)[N]) {
#pragma unroll
    for (int k = 0; k < N; ++k) asm volatile("" : "+f"(d[k]) :: "memory");
}""",
}
MATRICES: Final[dict[str, str]] = {**_LOADS, **_STORES, **_MMA, **_WGMMA}
