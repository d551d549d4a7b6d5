"""Cases of the speed suites: single operations, reductions and maps (`first`), contractions of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from experiments.cases import Case, gelu_expression, program, rand


def linear(m: int, n: int, k: int, dtype: str = "bf16", name: str = "") -> Case:
    code = program(rand("x", dtype, m, k), rand("w", dtype, n, k), "F.linear(x, w)")
    return Case(name or f"linear_{m}x{n}x{k}_{dtype}", code, terms=k)


def product(name: str, x: tuple[int, ...], y: tuple[int, ...], call: str, terms: int) -> Case:
    return Case(name, program(rand("x", "bf16", *x), rand("y", "bf16", *y), call), terms=terms)


def first() -> list[Case]:
    def attention(name: str, dtype: str, q: tuple[int, ...], kv: tuple[int, ...], more: str) -> Case:
        lines = (rand("q", dtype, *q), rand("k", dtype, *kv), rand("v", dtype, *kv))
        call = f"F.scaled_dot_product_attention(q, k, v{more})"
        return Case(f"attention_{name}", program(*lines, call), terms=kv[2], stores=2)

    def norm(kind: str, m: int, n: int, dtype: str) -> Case:
        call = f"F.rms_norm(x, ({n},), w, 1e-6)" if kind == "rms_norm" else f"F.layer_norm(x, ({n},), w, b)"
        b = [rand("b", dtype, n)] if kind == "layer_norm" else []
        return Case(f"{kind}_{m}x{n}_{dtype}", program(rand("x", dtype, m, n), rand("w", dtype, n), *b, call), terms=n)

    def two_results(n: int) -> str:
        return program(
            f"def f(x, y, w):\n    h = x + y\n    return h, F.rms_norm(h, ({n},), w, 1e-6)",
            rand("x", "bf16", 4096, n), rand("y", "bf16", 4096, n), rand("w", "bf16", n), "f(x, y, w)",
        )  # fmt: skip

    swiglu = program(rand("g", "bf16", 4096, 14336), rand("u", "bf16", 4096, 14336), "F.silu(g) * u")
    return [
        linear(4096, 4096, 4096),
        attention("4x32x4096x128", "bf16", (4, 32, 4096, 128), (4, 32, 4096, 128), ""),
        attention("causal_gqa_1x16g8x2048x128", "bf16", (1, 16, 2048, 128), (1, 8, 2048, 128),
                  ", is_causal=True, enable_gqa=True"),
        attention("decode_8x32g8x4096x128", "bf16", (8, 32, 1, 128), (8, 8, 4096, 128), ", enable_gqa=True"),
        linear(512, 4096, 4096),
        linear(64, 4096, 4096),
        linear(16, 4096, 4096),
        linear(1, 4096, 4096),
        linear(512, 3584, 3584, "f32"),
        norm("rms_norm", 32, 2048, "f32"),
        norm("rms_norm", 512, 2304, "f32"),
        norm("rms_norm", 8192, 4096, "bf16"),
        norm("layer_norm", 8192, 4096, "bf16"),
        Case("softmax_28x2048x2048_f32", program(rand("x", "f32", 28, 2048, 2048), "F.softmax(x, dim=-1)"), terms=2048),
        Case("softmax_8192x8192_bf16", program(rand("x", "bf16", 8192, 8192), "F.softmax(x, dim=-1)"), terms=8192),
        Case("swiglu_4096x14336_bf16", swiglu, stores=1),
        Case("gelu_tanh_512x18944_f32", program(rand("x", "f32", 512, 18944), gelu_expression())),
        Case("add_rms_norm_4096x4096_bf16", two_results(4096), terms=4096, stores=1),
        Case("add_transposed_4096_bf16", program(*(rand(x, "bf16", 4096, 4096) for x in "xy"), "x + y.t()")),
        Case("sum_4096x16384_f32", program(rand("x", "f32", 4096, 16384), "x.sum(-1)"), terms=16384),
        Case("cumsum_4096x16384_f32", program(rand("x", "f32", 4096, 16384), "x.cumsum(-1)"), terms=16384),
    ]  # fmt: skip


def contractions() -> list[Case]:
    bias_gelu = program(
        rand("x", "bf16", 4096, 4096), rand("w", "bf16", 4096, 4096), rand("b", "bf16", 4096),
        "F.gelu(F.linear(x, w, b))",
    )  # fmt: skip
    normed = program(
        rand("x", "bf16", 512, 4096), rand("g", "bf16", 4096), rand("w", "bf16", 1024, 4096),
        "F.linear(F.rms_norm(x, (4096,), g, 1e-6), w)",
    )  # fmt: skip

    def swiglu(m: int) -> Case:
        code = program(
            rand("x", "bf16", m, 4096), rand("wg", "bf16", 14336, 4096), rand("wu", "bf16", 14336, 4096),
            rand("wd", "bf16", 4096, 14336), "F.linear(F.silu(F.linear(x, wg)) * F.linear(x, wu), wd)",
        )  # fmt: skip
        return Case(f"swiglu_mlp_{m}", code, terms=14336, stores=3)

    big = 4096
    return [
        linear(4096, 4096, 4096), linear(8192, 8192, 8192), linear(4096, 14336, 4096), linear(2048, 4096, 4096),
        linear(256, 4096, 4096), linear(512, 4096, 4096), linear(512, 3584, 3584), linear(512, 4096, 1024),
        linear(1, 4096, 4096), linear(16, 4096, 4096), linear(64, 4096, 4096),
        linear(512, 3584, 3584, "f32"), linear(32, 3584, 3584, "f32"),
        Case("linear_bias_gelu_4096", bias_gelu, terms=4096, stores=2),
        Case("rms_norm_linear_512x4096x1024", normed, terms=4096, stores=2),
        swiglu(4096), swiglu(1),
        linear(4096, 4096, 4096, "f16"), linear(2048, 4096, 4096, "f16"),
        product("matmul_4096_nn", (big, big), (big, big), "x @ y", big),
        product("matmul_4096_tn", (big, big), (big, big), "x.t() @ y", big),
        product("matmul_4096_tt", (big, big), (big, big), "x.t() @ y.t()", big),
        linear(4095, 4095, 4095), linear(1000, 1000, 1000), linear(777, 1333, 2049), linear(16, 12288, 4096),
        product("bmm_64x128x128x64", (64, 128, 64), (64, 64, 128), "x @ y", 64),
    ]  # fmt: skip


SUITES: Final[dict[str, Callable[[], list[Case]]]] = {"first": first, "contractions": contractions}
