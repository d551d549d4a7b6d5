"""Cases of the speed suites with what they are held to: contractions of every kind, and small ones to try it on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from experiments.bench.bars import BenchCase, Group
from experiments.cases import Case, program, rand

BYTES: Final = {"bf16": 2, "f16": 2, "f32": 4}
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases, each of one of the groups."""

    groups: tuple[Group, ...]
    cases: tuple[BenchCase, ...]

    @property
    def by_group(self) -> dict[str, Group]:
        return {g.name: g for g in self.groups}


def product(
    group: str, name: str, x: Shape, y: Shape, call: str, out: Shape, k: int, dtype: str = "bf16", twin: str = ""
) -> BenchCase:
    """One contraction of `x` and `y` over `k`."""
    code = program(rand("x", dtype, *x), rand("y", dtype, *y), call)
    moved = BYTES[dtype] * sum(map(math.prod, (x, y, out)))
    return BenchCase(Case(name, code, terms=k), group, 2.0 * math.prod(out) * k, moved, dtype, twin)


def linear(group: str, m: int, n: int, k: int, dtype: str = "bf16", twin: str = "") -> BenchCase:
    name = f"linear_{m}x{n}x{k}_{dtype}"
    return product(group, name, (m, k), (n, k), "F.linear(x, y)", (m, n), k, dtype, twin)


def transposed(group: str, n: int, dtype: str, twin: str) -> list[BenchCase]:
    """Square products whose left, right or both operands lie the other way; a linear layer's right one does."""
    calls = {"nn": "x @ y", "tn": "x.t() @ y", "tt": "x.t() @ y.t()"}
    square = (n, n)
    return [
        product(group, f"matmul_{n}_{how}_{dtype}", square, square, call, square, n, dtype, twin)
        for how, call in calls.items()
    ]


def bias_gelu(group: str, n: int) -> BenchCase:
    code = program(rand("x", "bf16", n, n), rand("w", "bf16", n, n), rand("b", "bf16", n), "F.gelu(F.linear(x, w, b))")
    moved = 2 * (3 * n * n + n)
    return BenchCase(Case(f"linear_bias_gelu_{n}", code, terms=n, stores=2), group, 2.0 * n**3, moved, "bf16")


def normed(group: str, m: int, k: int, n: int) -> BenchCase:
    call = f"F.linear(F.rms_norm(x, ({k},), g, 1e-6), w)"
    code = program(rand("x", "bf16", m, k), rand("g", "bf16", k), rand("w", "bf16", n, k), call)
    moved = 2 * (m * k + k + n * k + m * n)
    name = f"rms_norm_linear_{m}x{k}x{n}"
    return BenchCase(Case(name, code, terms=k, stores=2), group, 2.0 * m * n * k, moved, "bf16")


def swiglu(group: str, m: int, k: int, n: int) -> BenchCase:
    """What lies between the two launches need not be moved."""
    code = program(
        rand("x", "bf16", m, k), rand("wg", "bf16", n, k), rand("wu", "bf16", n, k), rand("wd", "bf16", k, n),
        "F.linear(F.silu(F.linear(x, wg)) * F.linear(x, wu), wd)",
    )  # fmt: skip
    moved = 2 * (2 * m * k + 3 * n * k)
    return BenchCase(Case(f"swiglu_mlp_{m}_{k}x{n}", code, terms=n, stores=3), group, 6.0 * m * n * k, moved, "bf16")


def gathered(group: str, tokens: int, experts: int, k: int, n: int) -> BenchCase:
    """Every token times the weight that its index names: of the weights at most one a token is read."""
    index = f"e=torch.arange({tokens}) * 7 % {experts}"
    code = program(
        rand("x", "bf16", tokens, k), rand("w", "bf16", experts, n, k), index, "torch.einsum('tk,tnk->tn', x, w[e])"
    )
    read = min(tokens, experts) * n * k
    moved = 2 * (tokens * k + read + tokens * n) + 8 * tokens
    name = f"experts_gathered_{tokens}_{experts}x{n}x{k}"
    return BenchCase(Case(name, code, terms=k), group, 2.0 * tokens * n * k, moved, "bf16")


def grouped(group: str, tokens: int, experts: int, k: int, n: int) -> BenchCase:
    """Tokens sorted by expert, each run of them times its expert's weight."""
    ends = f"offs=(torch.arange(1, {experts + 1}) * {tokens // experts}).to(torch.int32)"
    code = program(
        rand("x", "bf16", tokens, k), rand("w", "bf16", experts, k, n), ends,
        "torch._grouped_mm(x, w, offs=offs)",
    )  # fmt: skip
    moved = 2 * (tokens * k + experts * n * k + tokens * n) + 4 * experts
    name = f"experts_grouped_{tokens}_{experts}x{n}x{k}"
    return BenchCase(Case(name, code, terms=k), group, 2.0 * tokens * n * k, moved, "bf16")


def contractions() -> Suite:
    groups = (
        Group("large", each=1.03, mean=1.00),
        Group("middle", each=1.02, mean=0.95),
        Group("few rows", each=1.00, mean=0.92),
        Group("f32 512", each=1.03),
        Group("f32 32", each=0.90),
        Group("bias GELU", each=0.93),
        Group("RMSNorm linear", each=0.75),
        Group("SwiGLU 4096", each=0.98),
        Group("SwiGLU 1", each=0.95),
        Group("twins", twin=1.02),
        Group("odd", each=1.10, mean=1.00),
        Group("experts"),
    )
    large = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (2048, 4096, 4096))
    square = "linear_4096x4096x4096_bf16"
    cases = (
        *(linear("large", *s) for s in large),
        *(linear("middle", *s) for s in ((256, 4096, 4096), (512, 4096, 4096), (512, 3584, 3584), (512, 4096, 1024))),
        *(linear("few rows", m, 4096, 4096) for m in (1, 16, 64)),
        linear("f32 512", 512, 3584, 3584, "f32"), linear("f32 32", 32, 3584, 3584, "f32"),
        bias_gelu("bias GELU", 4096), normed("RMSNorm linear", 512, 4096, 1024),
        swiglu("SwiGLU 4096", 4096, 4096, 14336), swiglu("SwiGLU 1", 1, 4096, 14336),
        *(linear("twins", *s, "f16", twin=f"linear_{s[0]}x{s[1]}x{s[2]}_bf16") for s in large),
        *transposed("twins", 4096, "bf16", square), *transposed("twins", 4096, "f16", square),
        *(linear("odd", *s) for s in ((4095, 4095, 4095), (1000, 1000, 1000), (777, 1333, 2049), (16, 12288, 4096))),
        product("odd", "bmm_64x128x128x64", (64, 128, 64), (64, 64, 128), "x @ y", (64, 128, 128), 64),
        gathered("experts", 8, 64, 2048, 1024), grouped("experts", 4096, 64, 2048, 1024),
    )  # fmt: skip
    return Suite(groups, cases)


def small() -> Suite:
    """A few of each sort at sizes that anything takes: what the suite itself is tried on."""
    groups = (Group("plain", each=1.10, mean=1.00), Group("twins", twin=1.02), Group("others"))
    cases = (
        linear("plain", 64, 96, 64), linear("plain", 33, 65, 77),
        linear("twins", 64, 96, 64, "f16", twin="linear_64x96x64_bf16"),
        *transposed("twins", 64, "f16", "linear_64x96x64_bf16"),
        linear("others", 32, 64, 64, "f32"), normed("others", 32, 128, 64), swiglu("others", 16, 64, 128),
        gathered("others", 4, 8, 64, 32), grouped("others", 64, 4, 32, 64),
    )  # fmt: skip
    return Suite(groups, cases)


SUITES: Final[dict[str, Callable[[], Suite]]] = {"contractions": contractions, "small": small}
