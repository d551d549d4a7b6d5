"""The kernels that are mutated: rows of every group, with loops of several turns, and kernels written by hand."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any, Final

from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.build import scalar
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Body, Out, ax, fold, load
from tests import bodies as B
from tests.codegen import small as K
from tests.codegen.hopper_fixture import hopper_gemm
from tests.simulate import fixtures
from tests.simulate.cases import GROUPS, RULESETS, Case, S, in_tf32, one, partial_linear, partial_sum, sampled

# Tiles are rings: only with several turns does every statement of them matter.
LONG: Final = {
    "map_shifted": (
        # more than a block takes of the largest rows
        one("copy 430x77 to 80", K.padded_copy(430, 77, 80), True),
        one("from the fourth column", K.padded_copy(531, 67, 64, "f16", skip=3), True),
        one("copy 530x61 to 64 f32", K.padded_copy(530, 61, 64, "f32"), True),
    ),
    "mma": (
        one("linear 33x40x264", B.linear(33, 40, 264), True),
        one("linear 40x24x263", B.linear(40, 24, 263, "f16"), True),
        one("k by n, bias", B.linear(24, 40, 392, bias=True, trans_b=False, act=True)),
        one("scale on the operand", B.rms_linear(33, 24, 264, factored=False)),
        one("symbolic sum", B.linear(40, 33, S), True, s=389),
    ),
    "mma_windows": (
        one("linear 33x41x265", B.linear(33, 41, 265), True),
        one("k by n 24x39x200", B.linear(24, 39, 200, "f16", trans_b=False), True),
        one("scale on the operand", B.rms_linear(33, 24, 267, factored=False)),
        one("m by k, symbolic sum", B.linear(41, 33, S, trans_a=True), True, s=389),
    ),
    "picked": (
        one("matrices", B.picked_linear(2, 17, 40, 264, many=2), True),
        one("matrices, f32, ragged", B.picked_linear(2, 20, 24, 263, "f32", many=2)),
        one("rows", B.picked_rows(33, 40, 264), True),
        one("matrices by index from the end", B.picked_linear(2, 24, 33, 392, "f16", many=2, wrap=True)),
    ),
    "picked_copies": (
        one("matrices", B.picked_linear(2, 33, 40, 264, many=2), True),
        one("matrices, f16, as they lie", B.picked_linear(2, 24, 40, 392, "f16", trans_b=False, many=2)),
        one("rows", B.picked_rows(33, 40, 264), True),
        one("matrices by index from the end", B.picked_linear(2, 24, 33, 520, many=2, wrap=True)),
    ),
    "mma_boxes": (
        one("linear 33x40x264", B.linear(33, 40, 264), True),
        one("k by n, bias", B.linear(24, 40, 392, bias=True, trans_b=False, act=True)),
        one("greatest of a row from the tiles", B.scaled_linear(33, 24, 520, by="max"), True),
        one("sum by name", B.linear(40, 32, S, "f16", trans_a=True, trans_b=False), True, s=389),
    ),
    "padded": (
        one("k by n 33x41x265", B.padded_linear(33, 41, 265, trans_b=False), True),
        one("linear 65x40x649", B.padded_linear(65, 37, 649), True),
        one("to aligned lines", B.padded_linear(70, 61, 391, "f16", whole=True, out=True, act=True)),
        one("batch", B.padded_linear(40, 39, 263, trans_a=True, trans_b=False, batch=2), True),
    ),
    "wgmma": (
        one("linear 65x40x264", B.linear(65, 40, 648), True),
        one("linear 130x72x328", B.linear(70, 72, 712, "f16"), True),
        one("bias, activation", B.linear(40, 72, 776, bias=True, act=True)),
        one("symbolic rows", B.linear(S, 64, 640), True, s=70),
    ),
    "wgmma_lines": (
        one("linear 65x77x648", B.linear(65, 77, 648), True),
        one("bias, activation", B.linear(72, 41, 776, "f16", bias=True, act=True)),
        one("batches that begin at odd elements", B.linear(33, 65, 648, batch=3), True),
        one("columns by name", B.linear(70, S, 640), True, s=71),
    ),
    "wgmma_eighth": (
        one("linear", B.f8_linear(65, 40, 656), True),
        one("scales of rows", B.f8_linear(33, 72, 784, "f8e5m2", scaled="row", bias=True)),
    ),
    "wgmma_tf32": in_tf32(
        one("linear", B.linear(65, 40, 648, "f32"), True),
        one("bias", B.linear(40, 72, 776, "f32", bias=True), True),
        one("row scale on the operand", B.prologue(33, 72, 2312, "row", "f32"), True),
        one("symbolic rows", B.linear(S, 64, 640, "f32"), True, s=70),
    ),
    "wgmma_computed": (
        one("gate", B.prologue(65, 40, 1160, "gate")),
        one("normalization", B.prologue(33, 72, 1096, "norm")),
        one("dequantized", B.dequant(24, 65, 1168), True),
        one("transposed activation", B.prologue(72, 64, 1160, "silu", "f16", trans_a=True)),
    ),
    "tile": (
        one("linear 33x40x72 f32", B.linear(33, 40, 72, "f32"), True),
        one("linear 24x65x71", B.linear(24, 65, 71), True),
        one("k by n, bias", B.linear(24, 40, 72, bias=True, trans_b=False, act=True)),
        one("scale in the epilogue", B.rms_linear(33, 24, 72)),
        one("symbolic sum", B.linear(40, 33, S), True, s=69),
    ),
    "tf32": (
        one("linear 33x40x136 f32", B.linear(33, 40, 136, "f32"), True),
        one("m by k, k by n f32", B.linear(24, 40, 72, "f32", trans_a=True, trans_b=False), True),
        one("symbolic sum", B.linear(40, 33, S, "f32"), True, s=69),
    ),
    "tile_ahead": (
        one("linear 33x40x136 f32", B.linear(33, 40, 136, "f32"), True),
        one("linear 24x65x71", B.linear(24, 65, 71), True),
        one("m by k, k by n f32", B.linear(24, 40, 72, "f32", trans_a=True, trans_b=False), True),
        one("symbolic sum", B.linear(40, 33, S, "f32"), True, s=69),
    ),
    "tile_turned": (
        one("linear 33x72x136 f32", B.linear(33, 72, 136, "f32"), True),
        one("ragged sum", B.linear(36, 65, 76, "f32"), True),
        one("left as it lies", B.linear(36, 72, 72, "f32", trans_b=False), True),
        one("two sums", B.swiglu(40, 65, 136, "f32")),
    ),
    "tile_coop": (
        one("linear 33x28x264 f32", B.linear(33, 28, 264, "f32"), True),
        one("two sums", B.swiglu(24, 40, 136)),
        one("k by n, bias", B.linear(24, 40, 200, bias=True, trans_b=False, act=True)),
        one("symbolic sum", B.linear(20, 33, S, "f32"), True, s=389),
    ),
    "mma_parts": (
        one("linear 17x24x520", B.linear(17, 24, 520), True),
        one("bias, activation", B.linear(16, 40, 520, "f16", bias=True, trans_b=False, act=True)),
        one("two sums", B.swiglu(17, 24, 520)),
        one("scale in the epilogue", B.rms_linear(17, 24, 512)),
    ),
    "wgmma_parts": (
        one("linear 17x24x1040", B.linear(17, 24, 1024), True),
        one("bias, activation", B.linear(72, 40, 1040, "f16", bias=True, trans_b=False, act=True)),
        one("two sums", B.swiglu(17, 24, 1032)),
    ),
    "wgmma_told": (
        one("scale in the epilogue, f16", B.rms_linear(65, 40, 1040, "f16")),
        one("scale of plain rows", B.scaled_linear(33, 72, 1032, "f16")),
        one("greatest of a row", B.scaled_linear(72, 40, 1040, by="max")),
    ),
    "wgmma_stream": (
        one("linear 256x64x328", B.linear(256, 64, 328), True),
        one("bias, activation", B.linear(260, 72, 264, bias=True, trans_b=False, act=True)),
    ),
    "tile_parts": (
        one("linear 17x40x136 f32", B.linear(17, 40, 136, "f32"), True),
        one("linear 1x65x264", B.linear(1, 65, 264), True),
        one("two sums", B.swiglu(17, 24, 136)),
        one("bias, activation", B.linear(24, 40, 130, bias=True, trans_b=False, act=True)),
    ),
    "partial": (
        one("parts of a linear 33x24", partial_linear(33, 24, 2, 264, "f16"), True),
        one("parts of a linear 1x40", partial_linear(1, 40, 2, 264), True),
        one("parts of a sum", partial_sum(3, 4, 256), True),
        one("parts of a linear 64x8", partial_linear(64, 8, 2, 520), True),
    ),
    "attention_mma": (
        one("causal, grouped heads", B.attention(1, 2, 1, 40, 150, 32, causal=True)),
        one("one below", B.attention(1, 1, 1, 31, 191, 16)),
        one("mask", B.attention(1, 2, 2, 33, 130, 32, mask="add", token_major=True, dtype="f16")),
        one("symbolic", B.attention(1, 2, 1, S, S, 16, causal=True), s=140),
    ),
    "attention": (
        one("causal, grouped heads", B.attention(1, 2, 1, 20, 75, 16, causal=True)),
        one("f32", B.attention(1, 1, 1, 17, 33, 16, dtype="f32")),
        one("mask", B.attention(1, 2, 2, 9, 70, 16, mask="add", dtype="f16")),
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Subject:
    """A kernel to mutate.  `key` is its group and number."""

    key: str
    case: Case
    kernel: Kernel


@functools.lru_cache(4)
def subjects(count: int, seed: int) -> list[Subject]:
    """`count` kernels of every group and the kernels written by hand."""
    found = []
    for group in GROUPS:
        made = _long(group, count, seed) if group in LONG else _sampled(group, count, seed)
        found += [Subject(f"{group}: {n}", case, kernel) for n, (case, kernel) in enumerate(made)]
    found += [Subject(f"hopper: {n}", case, kernel) for n, (case, kernel) in enumerate(hopper()[: count + 1])]
    hand = {"warp": fixtures.warp_reverse, "last block": fixtures.last_block, "atomics": fixtures.atomic_sum}
    return [*found, *(Subject(f"{name}: 0", *make()) for name, make in hand.items())]


def hopper() -> list[tuple[Case, Kernel]]:
    """Products by TMA and wgmma written by hand: ragged tiles, one or two groups, persistent, both ways to store."""
    many: tuple[dict[str, Any], ...] = (
        {"m": 200, "n": 136, "k": 264, "stages": 2, "blocks": 2},
        {"m": 136, "n": 72, "k": 328, "tile_n": 64, "stages": 3, "groups": 1, "blocks": 1},
        {"m": 130, "n": 200, "k": 200, "stages": 2, "store": "direct", "blocks": 2},
        {"m": 300, "n": 72, "k": 200, "tile_n": 64, "stages": 2, "groups": 1, "cluster": 2, "blocks": 2},
        {"m": 264, "n": 136, "k": 72, "stages": 4, "blocks": 2},
    )
    return [
        (one(f"hopper {o['m']}x{o['n']}x{o['k']}", _product(o["m"], o["n"], o["k"]), True), hopper_gemm(**o))
        for o in many
    ]


def _product(m: int, n: int, k: int) -> Body:
    """x * W.T with its operands in this order, which normal form may change."""
    i, j = B.axes(m, n)
    r = ax("r", k)
    value = fold("sum", r, scalar("mul", load(0, (i, r), "bf16"), load(1, (j, r), "bf16")), "bf16")
    slots = (B.tensor("bf16", m, k), B.tensor("bf16", n, k))
    return Body((Out((i, j), (i, j), value, B.tensor("bf16", m, n)),), slots)


def _sampled(group: str, count: int, seed: int) -> list[tuple[Case, Kernel]]:
    return [(s.case, s.kernel) for s in sampled(group, count, f"mutate {seed}")]


def _long(group: str, count: int, seed: int) -> list[tuple[Case, Kernel]]:
    rng = random.Random(f"mutate {group} {seed}")
    made = []
    for n in range(count):
        c = LONG[group][n % len(LONG[group])]
        card = GROUPS[group].card
        rows = schedule_rows([c.body], card, c.sizes, RULESETS).rows[c.body.hash]
        r = rng.choice([r for r in rows if GROUPS[group].takes(r)])
        made.append((c, lower(c.body, r.family, r.row, card, "k_test", limits={"s": 512})))
    return made
