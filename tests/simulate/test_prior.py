"""What the prior takes a launch to move and compute is what the simulator counts, within stated factors.

The prior needs no kernel for its features; here they are held to kernels.  Facts (stored bytes, threads, blocks, shared
memory) over the row suite, sectors and arithmetic at shapes that fill their tiles, where edges do not decide.
"""

from __future__ import annotations

import math
import random
from typing import Final

import pytest

from emmy.codegen.simulate import Counters
from emmy.egraph.schedule import schedule_rows
from emmy.extract.constants import SECTOR_BYTES
from emmy.extract.prior import terms_many
from emmy.extract.work import Work, analyse
from emmy.ir.config import KernelConfig
from emmy.ir.evaluate import integer
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from tests import bodies as B
from tests.codegen import small as K
from tests.simulate.cases import CARD, GROUPS, RULESETS, Case, Sample, one, sampled
from tests.simulate.runner import check_sample

ROWS: Final = 3  # of a body
FULL: Final[dict[str, tuple[Case, ...]]] = {
    "map": (one("bias and gelu", K.bias_gelu(64, 512)), one("rotary", K.rotary(32, 4, 64))),
    "turn": (one("transpose bf16", K.added_transpose(128, 128, "bf16")), one("f32", K.added_transpose(128, 64))),
    "row": (one("rms norm", K.rms_norm(32, 1024, "bf16")), one("softmax", K.softmax(32, 1024)),
            one("layer norm", K.layer_norm(16, 2048, "f16"))),
    "scan": (one("cumulative sum", K.cumulative(8, 2048)),),
    "plain": (one("bias and gelu", K.bias_gelu(64, 512)), one("column sums", K.column_sum(64, 256))),
    "tile": (one("linear", B.linear(128, 128, 64, "f32")),),
    "tile_ahead": (one("linear", B.linear(128, 128, 64, "f32")),),
    "tile_coop": (one("linear", B.linear(128, 128, 128, "f32")),),
    "mma": (one("linear", B.linear(128, 128, 256)), one("bias", B.linear(128, 256, 128, bias=True, act=True))),
    "mma_parts": (one("linear", B.linear(64, 128, 1024)),),
    "tile_parts": (one("linear", B.linear(64, 128, 256, "f32")),),
    "wgmma": (one("linear", B.linear(256, 256, 128)),),
    "attention_mma": (one("attention", B.attention(1, 2, 2, 128, 256, 64)),),
}  # fmt: skip
# Bytes of sectors that warps ask for over the bytes that the prior takes to pass between L2 and the SMs.  It is above 1
# where L1 serves what a block reads again, below where the prior takes whole sectors for what neighbours share.
SECTORS: Final = (0.7, 2.2)
# Floating operations over those of the products, padded to whole tiles, and one for each slot of other arithmetic.
PRODUCTS: Final = (0.9, 1.1)
# The same without products: a slot is an instruction, and an exponential or division is several.
OTHERS: Final = (0.15, 5.0)


def counted(sample: Sample) -> Counters:
    return check_sample(sample, count=True).simulation.counters


def samples(group: str) -> list[Sample]:
    found = []
    for c in FULL[group]:
        rows = schedule_rows([c.body], CARD, c.sizes, RULESETS).rows[c.body.hash]
        legal = [r for r in rows if GROUPS[group].takes(r)]
        found += [Sample(group, c, r) for r in random.Random(c.name).sample(legal, min(ROWS, len(legal)))]
    return found


@pytest.mark.parametrize("group", FULL)
def test_sectors_and_arithmetic_are_within_stated_factors(group: str) -> None:
    for s in samples(group):
        work, counters, config = analyse(s.case.body, s.case.sizes), counted(s), s.scheduled.config
        through = float(terms_many(work, (config,), CARD)[0]["through"][0])
        moved = SECTOR_BYTES * (counters.sectors_read + counters.sectors_written)
        assert SECTORS[0] <= moved / through <= SECTORS[1], f"{s.label}: {moved} bytes, {through} expected"
        low, high = PRODUCTS if work.dots else OTHERS
        expected = arithmetic(work, config)
        assert low <= counters.flops / expected <= high, f"{s.label}: {counters.flops} flops, {expected} expected"


def arithmetic(work: Work, config: KernelConfig) -> float:
    """Floating operations as the prior counts them."""
    slots = sum(work.slots)
    if not work.dots:
        return slots
    main = next((d for d in work.dots if d.main), work.dots[0])
    tiled = config.family != "attention"
    pad = math.ceil(main.m / config.tile_m) * config.tile_m / main.m if tiled else 1.0
    pad *= math.ceil(main.n / config.tile_n) * config.tile_n / main.n if tiled else 1.0
    return sum(d.flops for d in work.dots) * pad + slots


@pytest.mark.parametrize("group", GROUPS)
def test_a_rows_meaning_for_cost_is_that_of_its_kernel(group: str) -> None:
    for s in sampled(group, 6, "meaning"):
        kernel, config = s.kernel, s.scheduled.config
        assert config.block_threads == kernel.threads, s.label
        # blocks that stay are as many as the card has multiprocessors at most
        blocks = math.prod(integer(e, s.case.sizes) for e in kernel.grid)
        assert blocks == (min(config.blocks, GROUPS[group].card.sms) if config.stream else config.blocks), s.label
        # lines of 128 bytes, and rings that the estimate takes as whole stages
        assert kernel.smem <= config.smem + 128 * len(kernel.shared), s.label
        assert counted(s).bytes_written == written(s), s.label


def written(s: Sample) -> float:
    """Bytes that the launch stores: its results, partial sums, and the counters of their arrivals."""
    config, parts = s.scheduled.config, max(1, s.scheduled.row.reduce.parts)
    warps = config.block_threads // 32 - (4 if config.family == "wgmma" else 0)  # a producer makes no sums
    stored, exchanged = analyse(s.case.body, s.case.sizes).stored, config.exchange / 2
    if config.stream:  # the two blocks of a tile that a share ends in each store a part, of which one clears counters
        room = min(config.blocks, GROUPS[s.group].card.sms)
        return stored + divided(s, room) * (exchanged / room + 3 * 4 * warps)
    counters = 4 * warps * (config.blocks + config.blocks // parts) if config.exchange else 0
    return stored + exchanged + counters


def divided(s: Sample, blocks: int) -> int:
    """Tiles in which an equal share of stages ends, of those beyond the whole ones of `blocks` that stay."""
    view, config = contraction_view(s.case.body), s.scheduled.config
    assert isinstance(view, ContractionView)
    stages = math.ceil(math.prod(integer(a.extent, s.case.sizes) for a in view.k) / config.tile_k)
    tiles = config.blocks - (config.blocks // blocks - 1) * blocks
    each, more = divmod(tiles * stages, blocks)
    return sum((b * each + min(b, more)) % stages > 0 for b in range(1, blocks))


@pytest.mark.simulate
@pytest.mark.parametrize("group", GROUPS)
def test_every_rows_meaning_for_cost_is_that_of_its_kernel(group: str) -> None:
    for s in sampled(group, 48, "meaning"):
        kernel, config = s.kernel, s.scheduled.config
        assert (config.block_threads, counted(s).bytes_written) == (kernel.threads, written(s)), s.label
