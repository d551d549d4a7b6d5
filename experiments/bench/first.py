"""Cases of other kinds than single contractions, timed as those are but held to no bar: norms, softmax, attention."""

from __future__ import annotations

import math

from experiments.bench.bars import BenchCase, Group
from experiments.bench.suites import BYTES, Shape, Suite, linear
from experiments.cases import Case, gelu_expression, program, rand


def moving(
    name: str, dtype: str, shapes: tuple[Shape, ...], code: str, terms: int = 1, stores: int = 0, flops: float = 0.0
) -> BenchCase:
    """A case whose floor is the bytes of operands and results, `shapes`."""
    moved = BYTES[dtype] * sum(map(math.prod, shapes))
    return BenchCase(Case(name, code, terms=terms, stores=stores), "first", flops, moved, dtype)


def norm(kind: str, m: int, n: int, dtype: str) -> BenchCase:
    call = f"F.rms_norm(x, ({n},), w, 1e-6)" if kind == "rms_norm" else f"F.layer_norm(x, ({n},), w, b)"
    b = [rand("b", dtype, n)] if kind == "layer_norm" else []
    code = program(rand("x", dtype, m, n), rand("w", dtype, n), *b, call)
    return moving(f"{kind}_{m}x{n}_{dtype}", dtype, ((m, n), (m, n), (n,)), code, n)


def attention(name: str, q: Shape, kv: Shape, more: str, causal: bool = False) -> BenchCase:
    lines = (rand("q", "bf16", *q), rand("k", "bf16", *kv), rand("v", "bf16", *kv))
    code = program(*lines, f"F.scaled_dot_product_attention(q, k, v{more})")
    flops = 4.0 * math.prod(q) * kv[2] * (0.5 if causal else 1.0)
    return moving(f"attention_{name}", "bf16", (q, q, kv, kv), code, kv[2], 2, flops)


def one(name: str, dtype: str, shape: Shape, call: str, result: Shape, terms: int = 1) -> BenchCase:
    return moving(name, dtype, (shape, result), program(rand("x", dtype, *shape), call), terms)


def first() -> Suite:
    wide, square, gate = (4096, 16384), (4096, 4096), (4096, 14336)
    two_results = program(
        "def f(x, y, w):\n    h = x + y\n    return h, F.rms_norm(h, (4096,), w, 1e-6)",
        rand("x", "bf16", *square), rand("y", "bf16", *square), rand("w", "bf16", 4096), "f(x, y, w)",
    )  # fmt: skip
    cases = (
        attention("4x32x4096x128", (4, 32, 4096, 128), (4, 32, 4096, 128), ""),
        attention("causal_gqa_1x16g8x2048x128", (1, 16, 2048, 128), (1, 8, 2048, 128),
                  ", is_causal=True, enable_gqa=True", causal=True),
        attention("decode_8x32g8x4096x128", (8, 32, 1, 128), (8, 8, 4096, 128), ", enable_gqa=True"),
        linear("first", 512, 4096, 4096),
        norm("rms_norm", 32, 2048, "f32"), norm("rms_norm", 512, 2304, "f32"), norm("rms_norm", 8192, 4096, "bf16"),
        norm("layer_norm", 8192, 4096, "bf16"),
        one("softmax_28x2048x2048_f32", "f32", (28, 2048, 2048), "F.softmax(x, dim=-1)", (28, 2048, 2048), 2048),
        one("softmax_8192x8192_bf16", "bf16", (8192, 8192), "F.softmax(x, dim=-1)", (8192, 8192), 8192),
        moving("swiglu_4096x14336_bf16", "bf16", (gate, gate, gate),
               program(rand("g", "bf16", *gate), rand("u", "bf16", *gate), "F.silu(g) * u"), stores=1),
        one("gelu_tanh_512x18944_f32", "f32", (512, 18944), gelu_expression(), (512, 18944)),
        moving("add_rms_norm_4096x4096_bf16", "bf16", (square,) * 4, two_results, 4096, 1),
        moving("add_transposed_4096_bf16", "bf16", (square,) * 3,
               program(*(rand(x, "bf16", *square) for x in "xy"), "x + y.t()")),
        one("sum_4096x16384_f32", "f32", wide, "x.sum(-1)", (4096,), 16384),
        one("cumsum_4096x16384_f32", "f32", wide, "x.cumsum(-1)", wide, 16384),
    )  # fmt: skip
    return Suite((Group("first"),), cases)
