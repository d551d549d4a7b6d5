"""Device functions that generated sources may call, printed only where they are used.

Those that move tiles are in `cuda_async`, those on matrices in `cuda_matrices`.  Bit layouts follow the PTX ISA manual
(cvt) and the OCP 8-bit floating point specification.
Conversions to f8 round to nearest even and overflow to NaN (e4m3) or infinity (e5m2), as PyTorch's do; the hardware's
conversions saturate instead, so they are done in integer arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from emmy.codegen.cuda_async import ASYNC
from emmy.codegen.cuda_matrices import MATRICES

_F = "static __device__ __forceinline__"
_FUNCTIONS: Final[dict[str, str]] = {
    "EMMY_INF": "#define EMMY_INF __int_as_float(0x7f800000)",
    "EMMY_NAN": "#define EMMY_NAN __int_as_float(0x7fffffff)",
    # raw bits <-> f32
    "bf16_to_f32": f"{_F} float bf16_to_f32(unsigned short x) {{ return __uint_as_float((unsigned)x << 16); }}",
    "f32_to_bf16": f"""{_F} unsigned short f32_to_bf16(float x) {{
    unsigned short r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}}""",
    "f16_to_f32": f"""{_F} float f16_to_f32(unsigned short x) {{
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}}""",
    "f32_to_f16": f"""{_F} unsigned short f32_to_f16(float x) {{
    unsigned short r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}}""",
    "f8e5m2_to_f32": f"""{_F} float f8e5m2_to_f32(unsigned char x) {{
    return f16_to_f32((unsigned short)(x << 8));
}}""",
    "f8e4m3_to_f32": f"""{_F} float f8e4m3_to_f32(unsigned char x) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    float r;
    asm("{{\\n\\t.reg .b32 two;\\n\\t.reg .b16 low, high;\\n\\tcvt.rn.f16x2.e4m3x2 two, %1;\\n\\t"
        "mov.b32 {{low, high}}, two;\\n\\tcvt.f32.f16 %0, low;\\n\\t}}" : "=f"(r) : "h"((unsigned short)x));
    return r;
#else
    // exponent and mantissa as an f32 whose exponent is 120 too small; the product sets denormals right
    const float m = __uint_as_float((unsigned)(x & 0x7f) << 20) * __uint_as_float(0x7b800000u);
    const float v = (x & 0x7f) == 0x7f ? EMMY_NAN : m;
    return x & 0x80 ? -v : v;
#endif
}}""",
    "f32_to_f8e4m3": f"""{_F} unsigned char f32_to_f8e4m3(float x) {{
    const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, a = bits & 0x7fffffffu;
    if (a > 0x43e80000u) return (unsigned char)(sign | 0x7fu);  // above 464, or NaN
    if (a < 0x3c800000u) {{  // below 2^-6: adding 2^14 rounds to the denormal spacing 2^-9
        return (unsigned char)(sign | (__float_as_uint(__uint_as_float(a) + 16384.0f) - 0x46800000u));
    }}
    const unsigned r = a + 0x7ffffu + (a >> 20 & 1u);
    return (unsigned char)(sign | ((r >> 20) - (120u << 3)));
}}""",
    "f32_to_f8e5m2": f"""{_F} unsigned char f32_to_f8e5m2(float x) {{
    const unsigned bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return (unsigned char)(sign | 0x7fu);
    if (a >= 0x47700000u) return (unsigned char)(sign | 0x7cu);  // 61440 and above round to infinity
    if (a < 0x38800000u) {{  // below 2^-14: adding 2^7 rounds to the denormal spacing 2^-16
        return (unsigned char)(sign | (__float_as_uint(__uint_as_float(a) + 128.0f) - 0x43000000u));
    }}
    const unsigned r = a + 0xfffffu + (a >> 21 & 1u);
    return (unsigned char)(sign | ((r >> 21) - (112u << 2)));
}}""",
    # rounding that stays in an f32 register
    "round_bf16": f"{_F} float round_bf16(float x) {{ return bf16_to_f32(f32_to_bf16(x)); }}",
    "round_f16": f"{_F} float round_f16(float x) {{ return f16_to_f32(f32_to_f16(x)); }}",
    "round_f8e4m3": f"{_F} float round_f8e4m3(float x) {{ return f8e4m3_to_f32(f32_to_f8e4m3(x)); }}",
    "round_f8e5m2": f"{_F} float round_f8e5m2(float x) {{ return f8e5m2_to_f32(f32_to_f8e5m2(x)); }}",
    "round_tf32": f"""{_F} float round_tf32(float x) {{
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return __uint_as_float(r);
}}""",
    # pairs
    "pack_bf16x2": f"""{_F} unsigned pack_bf16x2(float low, float high) {{
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}}""",
    "pack_f16x2": f"""{_F} unsigned pack_f16x2(float low, float high) {{
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}}""",
    "join16": f"""{_F} unsigned join16(unsigned short low, unsigned short high) {{
    return (unsigned)low | (unsigned)high << 16;
}}""",
    "unpack_bf16_low": f"{_F} float unpack_bf16_low(unsigned x) {{ return __uint_as_float(x << 16); }}",
    "unpack_bf16_high": f"{_F} float unpack_bf16_high(unsigned x) {{ return __uint_as_float(x & 0xffff0000u); }}",
    "unpack_f16_low": f"{_F} float unpack_f16_low(unsigned x) {{ return f16_to_f32((unsigned short)x); }}",
    "unpack_f16_high": f"{_F} float unpack_f16_high(unsigned x) {{ return f16_to_f32((unsigned short)(x >> 16)); }}",
    # scalar operations
    "max_f32": f"""{_F} float max_f32(float a, float b) {{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}}""",
    "min_f32": f"""{_F} float min_f32(float a, float b) {{
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}}""",
    "max_f64": f"{_F} double max_f64(double a, double b) {{ return a != a ? a : (b != b ? b : (a > b ? a : b)); }}",
    "min_f64": f"{_F} double min_f64(double a, double b) {{ return a != a ? a : (b != b ? b : (a < b ? a : b)); }}",
    "exp2_fast": f"""{_F} float exp2_fast(float x) {{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}}""",
    "exp_fast": f"""{_F} float exp_fast(float x) {{
    float r;
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
    return r;
}}""",
    "sigmoid_fast": f"""{_F} float sigmoid_fast(float x) {{
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(1.0f + exp2_fast(x * -1.4426950408889634f)));
    return r;
}}""",
    "sign_of": """template <class T> static __device__ __forceinline__ T sign_of(T x) {
    return (T)((T(0) < x) - (x < T(0)));  // 0 for NaN, as PyTorch's
}""",
    "floordiv_int": """template <class T> static __device__ __forceinline__ T floordiv_int(T a, T b) {
    const T q = (T)(a / b);
    return (a % b != 0) && ((a < 0) != (b < 0)) ? (T)(q - 1) : q;
}""",
    "mod_int": """template <class T> static __device__ __forceinline__ T mod_int(T a, T b) {
    const T r = (T)(a % b);
    return (r != 0) && ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}""",
    "floordiv_f32": f"""{_F} float floordiv_f32(float a, float b) {{
    // Python's floor division: exact remainder first, so that the quotient is never off by one
    if (b == 0.0f) return a / b;
    const float m = fmodf(a, b);
    float q = (a - m) / b;
    if (m != 0.0f && (b < 0.0f) != (m < 0.0f)) q -= 1.0f;
    if (q == 0.0f) return copysignf(0.0f, a / b);
    const float f = floorf(q);
    return q - f > 0.5f ? f + 1.0f : f;
}}""",
    "mod_f32": f"""{_F} float mod_f32(float a, float b) {{
    const float m = fmodf(a, b);
    return m != 0.0f && (b < 0.0f) != (m < 0.0f) ? m + b : m;
}}""",
    "floordiv_f64": f"""{_F} double floordiv_f64(double a, double b) {{
    if (b == 0.0) return a / b;
    const double m = fmod(a, b);
    double q = (a - m) / b;
    if (m != 0.0 && (b < 0.0) != (m < 0.0)) q -= 1.0;
    if (q == 0.0) return copysign(0.0, a / b);
    const double f = floor(q);
    return q - f > 0.5 ? f + 1.0 : f;
}}""",
    "mod_f64": f"""{_F} double mod_f64(double a, double b) {{
    const double m = fmod(a, b);
    return m != 0.0 && (b < 0.0) != (m < 0.0) ? m + b : m;
}}""",
    "pow_int": """template <class T> static __device__ __forceinline__ T pow_int(T a, T b) {
    if (b < 0) return a == 1 ? (T)1 : (a == (T)-1 ? (T)(b % 2 ? -1 : 1) : (T)0);
    unsigned long long r = 1, x = (unsigned long long)a;
    for (unsigned long long n = (unsigned long long)b; n; n >>= 1) {
        if (n & 1) r *= x;
        x *= x;
    }
    return (T)r;
}""",
    "shl_int": """template <class T> static __device__ __forceinline__ T shl_int(T a, T b) {
    return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((unsigned long long)a << b);
}""",
    "shr_int": """template <class T> static __device__ __forceinline__ T shr_int(T a, T b) {
    const T most = (T)(8 * sizeof(T) - 1);
    return (T)(a >> (b < 0 || b > most ? most : b));
}""",
    # memory
    "copy1": f"""{_F} void copy1(void* d, const void* s) {{
    *reinterpret_cast<unsigned char*>(d) = *reinterpret_cast<const unsigned char*>(s);
}}""",
    "copy2": f"""{_F} void copy2(void* d, const void* s) {{
    *reinterpret_cast<unsigned short*>(d) = *reinterpret_cast<const unsigned short*>(s);
}}""",
    "zero1": f"{_F} void zero1(void* d) {{ *reinterpret_cast<unsigned char*>(d) = 0; }}",
    "zero2": f"{_F} void zero2(void* d) {{ *reinterpret_cast<unsigned short*>(d) = 0; }}",
    "copy4": f"""{_F} void copy4(void* d, const void* s) {{
    *reinterpret_cast<unsigned*>(d) = *reinterpret_cast<const unsigned*>(s);
}}""",
    "copy8": f"""{_F} void copy8(void* d, const void* s) {{
    *reinterpret_cast<uint2*>(d) = *reinterpret_cast<const uint2*>(s);
}}""",
    "copy16": f"""{_F} void copy16(void* d, const void* s) {{
    *reinterpret_cast<uint4*>(d) = *reinterpret_cast<const uint4*>(s);
}}""",
    # 16 bytes out of 32, from byte `by` (0 to 15) on; all are read before any is chosen, or the compiler chooses an
    # address among registers, which it finds by comparing it with each
    "shift16": f"""{_F} void shift16(void* d, const void* s, int by) {{
    const uint4 a = reinterpret_cast<const uint4*>(s)[0], b = reinterpret_cast<const uint4*>(s)[1];
    const bool two = by & 8, one = by & 4;
    const unsigned x0 = two ? a.z : a.x, x1 = two ? a.w : a.y, x2 = two ? b.x : a.z;
    const unsigned x3 = two ? b.y : a.w, x4 = two ? b.z : b.x, x5 = two ? b.w : b.y;
    const unsigned y0 = one ? x1 : x0, y1 = one ? x2 : x1, y2 = one ? x3 : x2;
    const unsigned y3 = one ? x4 : x3, y4 = one ? x5 : x4;
    const int bits = (by & 3) * 8;
    *reinterpret_cast<uint4*>(d) = make_uint4(
        __funnelshift_r(y0, y1, bits), __funnelshift_r(y1, y2, bits),
        __funnelshift_r(y2, y3, bits), __funnelshift_r(y3, y4, bits));
}}""",
    "zero4": f"{_F} void zero4(void* d) {{ *reinterpret_cast<unsigned*>(d) = 0u; }}",
    "zero8": f"{_F} void zero8(void* d) {{ *reinterpret_cast<uint2*>(d) = make_uint2(0u, 0u); }}",
    "zero16": f"{_F} void zero16(void* d) {{ *reinterpret_cast<uint4*>(d) = make_uint4(0u, 0u, 0u, 0u); }}",
}
HELPERS: Final[dict[str, str]] = {**_FUNCTIONS, **ASYNC, **MATRICES}
_WORD = re.compile(r"[A-Za-z_]\w*")


def used(source: str, table: Mapping[str, str]) -> list[str]:
    """Texts of the helpers that `source` needs, each after those that it calls itself."""
    order: dict[str, None] = {}

    def add(text: str) -> None:
        for name in dict.fromkeys(_WORD.findall(text)):
            if name in table and name not in order and table[name] is not text:
                add_one(name)

    def add_one(name: str) -> None:
        add(table[name])
        order[name] = None

    add(source)
    return [table[n] for n in order]
