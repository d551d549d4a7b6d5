"""Schedule forks of contraction and attention: what is legal, what is not, and which rule makes which rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from emmy.egraph.schedule import schedule_rows
from emmy.ir.loop import Body, size
from emmy.ir.schedule import Pin, Row
from emmy.ir.target import TARGETS, allowing, target
from emmy.ir.views.contraction_view import contraction_view
from tests import bodies as B

RULESETS = Path(__file__).parents[2] / "rulesets"
LINEAR = B.linear(128, 128, 128, "f16", trans_b=False)
SQUARE = B.linear(512, 512, 512, "f32")
ATTENTION = B.attention(1, 4, 2, 256, 256, 128, causal=True)


def rows(body: Body, arch: str = "sm_90a", held: str = "", allow: str = "") -> set[str]:
    card = allowing(target(arch), allow)
    found = schedule_rows([body], card, {}, RULESETS, frozenset({held} - {""}))
    return {f"{r.family} {r.row.text}" for r in found.rows[body.hash]}


def of(found: set[str], family: str) -> set[str]:
    return {r for r in found if r.startswith(f"{family} ")}


@pytest.mark.parametrize("arch", TARGETS)
def test_the_rows_of_the_walkthrough_are_spelled_as_there(arch: str) -> None:
    pin = Pin.parse("WORK=w2x2,TILE=mma_m16n8k16_f16_f32/f2x2/k4,REDUCE=,STAGE=d2/smem-async,RASTER=")
    found = schedule_rows([LINEAR], target(arch), {}, RULESETS).rows[LINEAR.hash]
    assert [r.family for r in found if pin.matches(r.row)] == ["mma"]
    seed = B.attention(1, 1, 1, 16, 16, 16, dtype="f32")
    pin = Pin.parse("WORK=t32,TILE=f1,REDUCE=,STAGE=")
    found = schedule_rows([seed], target(arch), {}, RULESETS).rows[seed.hash]
    assert [r.family for r in found if pin.matches(r.row)] == ["attention"]


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("body", [LINEAR, ATTENTION, B.swiglu(512, 1024, 512), B.attention(1, 2, 2, 256, 256, 256)])
def test_every_row_fits_the_card(body: Body, arch: str) -> None:
    card = target(arch)
    for r in schedule_rows([body], card, {}, RULESETS).rows[body.hash]:
        assert r.config.smem <= card.smem_block, r.row.text
        assert r.config.block_threads <= card.threads_block, r.row.text
        assert r.config.block_threads * r.config.registers <= card.registers_sm, r.row.text


def test_a_card_with_more_shared_memory_has_more_rows() -> None:
    body = B.linear(4096, 4096, 4096)
    small, large = rows(body, "sm_89"), rows(body, "sm_90a")
    assert small < large
    assert any("/f4x8/k4,REDUCE=,STAGE=d4/" in r for r in large - small)


def test_f32_factors_have_no_tensor_core_rows() -> None:
    found = rows(B.linear(128, 128, 128, "f32"))
    assert of(found, "tile") and not of(found, "mma")
    assert not any("mma_" in r for r in rows(B.attention(1, 2, 2, 64, 64, 32, dtype="f32")))


def test_operands_that_are_not_contiguous_in_16_bytes_are_not_copied_asynchronously() -> None:
    assert not any("smem-async" in r for r in of(rows(B.linear(33, 77, 65)), "mma"))
    assert any("smem-async" in r for r in of(rows(B.linear(33, 77, 72)), "mma"))


@pytest.mark.parametrize("arch", TARGETS)
def test_only_cards_with_tma_stage_by_it(arch: str) -> None:
    found = of(rows(LINEAR, arch), "mma")
    assert any("smem-tma" in r for r in found) == (target(arch).capability >= 90)


@pytest.mark.parametrize(
    "body",
    [
        B.linear(64, 64, 65),  # rows that begin at odd multiples of two bytes
        B.linear(64, 63, 64, trans_b=False),  # the same of the right factor alone
        B.rms_linear(64, 64, 64, factored=False),  # a factor that is computed
        B.dequant(16, 16, 64),  # a factor of another type
        B.rotated(40, 24, 64),  # a factor of guarded halves
        B.head_merge(40, 2, 16, 64),  # neighbours along the sum that lie in several places
    ],
    ids=["unaligned", "unaligned right", "computed", "dequantized", "guarded", "merged heads"],
)
def test_what_tma_cannot_move_as_it_is_is_staged_otherwise(body: Body) -> None:
    found = of(rows(body), "mma")
    assert found and not any("smem-tma" in r for r in found)


def test_threads_share_sums_where_results_are_fewer_than_two_blocks_an_sm() -> None:
    few, many = (of(rows(B.linear(m, 3584, 512, "f32")), "tile") for m in (32, 4096))
    assert any("REDUCE=coop/r8" in r for r in few)
    assert not any("REDUCE=coop" in r for r in many if "WORK=t16x16,TILE=f8x8/" in r)


def test_f32_factors_that_run_along_the_sum_are_copied_where_they_are_aligned() -> None:
    assert any("/smem-async" in r for r in of(rows(B.linear(64, 64, 68, "f32")), "tile"))
    assert not any("/smem-async" in r for r in of(rows(B.linear(64, 64, 65, "f32")), "tile"))


def test_fragments_a_step_ahead_need_registers_for_two_sets() -> None:
    assert not any("f8x14/" in r and "smem-async/reg" in r for r in of(rows(SQUARE), "tile"))
    assert any("f8x8/" in r and "/reg" in r for r in of(rows(SQUARE), "tile"))


def test_operands_along_the_sum_are_turned_by_copies_where_products_outweigh_these() -> None:
    turned = [r for r in of(rows(SQUARE), "tile") if "/turn" in r]
    # a step of one element needs less registers than four of them, so that large fragments can be read ahead
    assert any("f8x14/" in r and r.endswith("d3/smem-async/turn/reg,RASTER=") for r in turned)
    assert not any("f4x4/" in r or "d2/smem/" in r for r in turned)
    # nothing runs along the sum; nothing is copied as it is
    across = B.linear(4096, 4096, 1024, "f32", trans_a=True, trans_b=False)
    for body in (across, B.linear(4096, 4096, 1025, "f32"), LINEAR):
        assert not any("/turn" in r for r in of(rows(body), "tile"))


def test_totals_of_chunks_take_shared_memory_where_results_show_the_error_of_long_sums() -> None:
    """A row with the same name, of a sum no longer than a chunk for each group of threads, has none."""
    row = "WORK=t8x8,TILE=f4x8/k16,REDUCE={},STAGE=d2/smem,RASTER="

    def beside(body: Body, reduce: str = "") -> int:
        found = schedule_rows([body], target("sm_90a"), dict.fromkeys(body.sizes, 64), RULESETS).rows[body.hash]
        (config,) = (r.config for r in found if r.family == "tile" and r.row.text == row.format(reduce))
        return config.smem

    totals = 4 * 32 * 64
    short, rounded = B.linear(64, 64, 512, "f32"), B.linear(64, 64, 4096, "bf16")
    assert beside(short) == beside(rounded)
    assert beside(B.linear(64, 64, 516, "f32")) == beside(short) + totals
    assert beside(B.linear(64, 64, size("s"), "f32")) == beside(short) + totals
    # each of two groups of threads has a half of the sum
    assert beside(B.linear(64, 64, 1024, "f32"), "coop/r2") == beside(short) + totals
    assert beside(B.linear(64, 64, 1028, "f32"), "coop/r2") == beside(short) + 2 * totals
    # what does not fit beside totals has no row
    large = "WORK=t16x16,TILE=f8x8/k16,REDUCE=,STAGE=d3/smem-async,RASTER="
    assert f"tile {large}" in rows(B.linear(512, 512, 512, "f32"), "sm_89")
    assert f"tile {large}" not in rows(B.linear(512, 512, 528, "f32"), "sm_89")


def test_small_results_have_no_large_tiles() -> None:
    found = of(rows(B.linear(16, 64, 256)), "mma")
    assert found and all("WORK=w1x" in r and "/f1x" in r for r in found)


FEW = B.linear(16, 1024, 4096)
FEW_F32 = B.linear(32, 1024, 1024, "f32")


@pytest.mark.parametrize(("body", "family"), [(FEW, "mma"), (FEW_F32, "tile")])
def test_blocks_share_a_sum_where_tiles_leave_sms_idle(body: Body, family: str) -> None:
    card = allowing(target("sm_90a"), "atomics")
    found = [r for r in schedule_rows([body], card, {}, RULESETS).rows[body.hash] if r.family == family]
    divided = [r for r in found if r.row.reduce.parts]
    assert {r.row.reduce.text for r in divided} >= {"g2", "g4", "g4a", "g8"}
    k = contraction_view(body)
    assert not isinstance(k, str)
    for r in divided:
        assert Row.parse(r.row.text) == r.row
        steps = -(-int(k.k[0].size or 0) // r.config.tile_k)
        each = -(-steps // r.row.reduce.parts)
        assert (r.row.reduce.parts - 1) * each < steps, "a part without a stage"
        assert r.config.blocks % r.row.reduce.parts == 0 and r.config.exchange > 0
        assert r.config.blocks // r.row.reduce.parts < 2 * target("sm_90a").sms


@pytest.mark.parametrize(("body", "family"), [(FEW, "mma"), (FEW_F32, "tile")])
def test_sums_are_added_in_any_order_only_where_that_is_allowed(body: Body, family: str) -> None:
    plain, allowed = of(rows(body), family), of(rows(body, allow="atomics"), family)
    assert plain < allowed and all(Row.parse(r.split()[1]).reduce.finish == "a" for r in allowed - plain)
    assert of(rows(body, allow="tf32"), family) == plain


@pytest.mark.parametrize(
    "body",
    [
        B.linear(4096, 4096, 1024),  # tiles enough
        B.linear(16, 64, 48),  # a sum of three stages
        B.linear(16, 1024, size("s"), trans_a=True, trans_b=False),  # a sum whose length an input decides
    ],
    ids=["many tiles", "short", "by name"],
)
def test_sums_are_not_shared_where_it_does_not_pay_or_is_not_known_to_divide(body: Body) -> None:
    found = schedule_rows([body], target("sm_90a"), dict.fromkeys(body.sizes, 4096), RULESETS).rows[body.hash]
    assert not [r.row.text for r in found if r.family in ("mma", "tile") and r.row.reduce.parts]


@pytest.mark.parametrize(
    ("fixed", "by_name", "example"),
    [
        (FEW, B.linear(size("s"), 1024, 4096), 16),
        (FEW, B.linear(16, size("s"), 4096), 1024),
        (FEW, B.linear(16, 1024, 4096, batch=size("s")), 1),
        (FEW_F32, B.linear(size("s"), 1024, 1024, "f32"), 32),
    ],
    ids=["rows", "columns", "batches", "rows f32"],
)
def test_sums_are_not_shared_where_an_input_changes_how_many_tiles_take_a_workspace(
    fixed: Body, by_name: Body, example: int
) -> None:
    found = schedule_rows([fixed, by_name], target("sm_90a"), {"s": example}, RULESETS).rows
    divided = {b: [r.row.text for r in found[b.hash] if r.config.exchange] for b in (fixed, by_name)}
    assert divided[fixed] and not divided[by_name]


@pytest.mark.parametrize(
    ("rule", "body", "gone"),
    [
        ("mma-async", LINEAR, "mma .*STAGE=d[234]/smem-async"),
        ("mma-deep", LINEAR, "mma .*STAGE=d6/smem-async"),
        ("mma-boxes", LINEAR, "mma .*STAGE=d[234]/smem-tma"),
        ("mma-boxes-deep", LINEAR, "mma .*STAGE=d6/smem-tma"),
        ("mma-ring", LINEAR, "mma .*/smem,"),
        ("mma-raster", LINEAR, "mma .*"),
        ("mma-shape", LINEAR, "mma .*"),
        ("mma-divided", FEW, "mma .*REDUCE=g.*"),
        ("mma-parts", FEW, r"mma .*REDUCE=g\d+,.*"),
        ("mma-atomic", FEW, r"mma .*REDUCE=g\d+a,.*"),
        ("tile-divided", FEW_F32, "tile .*REDUCE=g.*"),
        ("tile-parts", FEW_F32, r"tile .*REDUCE=g\d+,.*"),
        ("tile-atomic", FEW_F32, r"tile .*REDUCE=g\d+a,.*"),
        ("tile-shape", LINEAR, "tile .*REDUCE=(,|g).*"),
        ("tile-coop", LINEAR, "tile .*REDUCE=coop.*"),
        ("tile-ring", LINEAR, "tile .*/smem[,/].*"),
        ("tile-async", SQUARE, "tile .*STAGE=d[23]/smem-async(/reg)?,.*"),
        ("tile-turned", SQUARE, "tile .*/turn.*"),
        ("tile-deep", SQUARE, "tile .*STAGE=d[46]/smem-async.*"),
        ("tile-ahead", SQUARE, "tile .*/reg,.*"),
        ("tile-raster", SQUARE, "tile .*"),
        ("attention-threads", ATTENTION, "attention WORK=t.*"),
        ("attention-mma", ATTENTION, "attention WORK=w.*"),
        ("attention-async", ATTENTION, "attention .*smem-async.*"),
        ("attention-ring", ATTENTION, "attention .*/smem,.*"),
    ],
)
def test_holding_a_rule_takes_exactly_its_rows(rule: str, body: Body, gone: str) -> None:
    import re

    everything, left = rows(body, allow="atomics"), rows(body, held=rule, allow="atomics")
    taken = {r for r in everything if re.match(gone, r)}
    assert taken and left == everything - taken


def test_rows_of_two_bodies_in_one_graph_are_those_of_each_alone() -> None:
    odd = B.linear(33, 77, 65)
    found = schedule_rows([LINEAR, odd, ATTENTION], target("sm_90a"), {}, RULESETS)
    for body in (LINEAR, odd, ATTENTION):
        assert {f"{r.family} {r.row.text}" for r in found.rows[body.hash]} == rows(body)
