"""Rows of the wgmma family: which bodies have them, what each rule adds, what fits the card."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.errors import LoweringError
from emmy.ir.evaluate import integer
from emmy.ir.loop import Body, size
from emmy.ir.schedule import Row
from emmy.ir.target import TARGETS, allowing, target
from emmy.ir.warpgroups import Warpgroups, deposits_beyond
from emmy.resources import rulesets
from tests import bodies

HOPPER = target("sm_90a")
ATOMIC = allowing(HOPPER, "atomics")
TF32 = allowing(HOPPER, "tf32")


def rows(body: Body, card=HOPPER, held: str = "") -> set[str]:
    found = schedule_rows([body], card, {}, rulesets(), frozenset({held} - {""})).rows[body.hash]
    return {s.row.text for s in found if s.family == "wgmma"}


def with_(found: set[str], part: str) -> set[str]:
    return {r for r in found if part in r}


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_only_hopper_has_warpgroup_products(arch: str) -> None:
    assert not rows(bodies.linear(512, 512, 512), target(arch))


def test_the_row_of_a_large_product_is_spelled_as_documented() -> None:
    row = "WORK=w8x1+p4,TILE=wgmma_m64n256k16_bf16_f32/f1x1/k4,REDUCE=,STAGE=d4/smem-tma/out,RASTER=gm8/persist"
    assert row in rows(bodies.linear(4096, 4096, 4096))


@pytest.mark.parametrize(
    "body",
    [
        bodies.linear(512, 512, 512, "f32"),  # factors that would be rounded
        bodies.linear(512, 511, 513),  # rows that begin at odd multiples of two bytes
        bodies.rotated(512, 512, 512),  # loads that a condition guards
    ],
    ids=["f32", "unaligned", "guarded"],
)
def test_what_tma_cannot_move_as_it_is_has_no_rows(body: Body) -> None:
    assert not rows(body)


def test_columns_that_do_not_run_along_the_sum_come_64_at_a_time() -> None:
    columns = {Row.parse(r).tile.shape[1] for r in rows(bodies.linear(512, 512, 512, trans_b=False)) if "w1x" not in r}
    assert columns and all(n % 64 == 0 for n in columns)
    assert {16, 48, 112} <= {Row.parse(r).tile.shape[1] for r in rows(bodies.linear(512, 512, 512))}


@pytest.mark.parametrize(
    ("rule", "part", "body"),
    [
        ("wgmma-turns", "+pp", bodies.linear(4096, 4096, 512)),
        ("wgmma-cluster", "/c2", bodies.linear(4096, 4096, 512)),
        ("wgmma-out", "/out", bodies.linear(4096, 4096, 512)),
        ("wgmma-lines", "/out", bodies.linear(4096, 4095, 512)),
        ("wgmma-stay", "persist", bodies.linear(4096, 4096, 512)),
        ("wgmma-few", "w1x4", bodies.linear(16, 4096, 4096)),
        ("wgmma-parts", "in a cluster", bodies.linear(16, 4096, 4096)),
        ("wgmma-shared", "in a workspace", bodies.linear(16, 4096, 4096)),
        ("wgmma-stream", "REDUCE=sk", bodies.linear(1536, 2560, 512)),
    ],
)
def test_holding_a_rule_takes_its_rows(rule: str, part: str, body: Body) -> None:
    full, less = rows(body), rows(body, held=rule)
    assert less < full
    gone = full - less
    shares = {
        "in a cluster": {r for r in full if Warpgroups.of(Row.parse(r)).parts > 1},
        "in a workspace": {r for r in full if Warpgroups.of(Row.parse(r)).shared > 1},
    }
    wanted = shares.get(part, with_(full, part))
    assert gone & wanted
    if rule not in ("wgmma-few", "wgmma-stay"):  # others build on these
        assert gone == wanted


@pytest.mark.parametrize(
    "body",
    [
        bodies.linear(512, 512, 4096),  # less than a wave
        bodies.linear(8192, 8192, 512),  # many waves
        bodies.linear(1536, 2560, 128),  # two stages
        bodies.linear(1536, 2560, size("s"), trans_a=True, trans_b=False),  # a sum whose length an input decides
    ],
    ids=["few tiles", "many tiles", "short", "by name"],
)
def test_equal_shares_are_for_a_wave_and_part_of_another(body: Body) -> None:
    found = schedule_rows([body], HOPPER, dict.fromkeys(body.sizes, 4096), rulesets()).rows[body.hash]
    streamed = [s for s in found if s.row.reduce.stream]
    for s in streamed:
        over = s.config.blocks % HOPPER.sms
        assert HOPPER.sms < s.config.blocks <= 4 * HOPPER.sms and 0 < over < 0.9 * HOPPER.sms, s.row.text
        assert s.row.raster.persist and not s.row.stage.out
    if body.sizes or body == bodies.linear(1536, 2560, 128):
        assert not streamed


def test_a_sum_is_shared_in_a_cluster_up_to_four_blocks_and_through_a_workspace_beyond() -> None:
    body = bodies.linear(16, 4096, 8192)
    plain, found = ([Row.parse(r) for r in rows(body, card) if "REDUCE=g" in r] for card in (HOPPER, ATOMIC))
    assert {r.reduce.text for r in plain} == {"g2", "g4", "g8", "g16"}
    assert {r.reduce.text for r in found} == {"g2", "g4", "g4a", "g8", "g8a", "g16", "g16a"}
    assert all((Warpgroups.of(r).shared > 1) == (r.reduce.parts > 4 or r.reduce.finish == "a") for r in found)


def test_a_sum_is_shared_through_a_workspace_only_where_no_input_changes_the_number_of_tiles() -> None:
    """Compiled for few rows and run on many, every tile would take its workspace; a cluster needs none."""

    def shares(body: Body, s: int) -> dict[str, set[str]]:
        found = schedule_rows([body], ATOMIC, dict.fromkeys(body.sizes, s), rulesets()).rows[body.hash]
        own = [r for r in found if r.family == "wgmma" and (r.row.reduce.parts or r.row.reduce.stream)]
        kinds = {"workspace": {r.row.reduce.text for r in own if r.config.exchange}}
        return kinds | {"cluster": {r.row.reduce.text for r in own if not r.config.exchange}}

    s = size("s")
    assert shares(bodies.linear(16, 4096, 8192), 0) == {"workspace": {"g4a", "g8", "g8a", "g16", "g16a"},
                                                        "cluster": {"g2", "g4"}}  # fmt: skip
    assert shares(bodies.linear(1536, 2560, 512), 0) == {"workspace": {"sk"}, "cluster": set()}
    for by_name in (bodies.linear(s, 4096, 8192), bodies.linear(16, 4096, 8192, batch=s)):
        few = 16 if by_name == bodies.linear(s, 4096, 8192) else 1
        assert shares(by_name, few) == {"workspace": set(), "cluster": {"g2", "g4"}}
    assert shares(bodies.linear(s, 2560, 512), 1536) == {"workspace": set(), "cluster": set()}


@pytest.mark.parametrize("sms", [3, HOPPER.sms])
def test_blocks_that_stay_have_a_workspace_for_one_tile_each(sms: int) -> None:
    card = replace(HOPPER, sms=sms)
    body = bodies.linear(1536, 2560, 512) if sms == HOPPER.sms else bodies.linear(512, 72, 256)
    streamed = [s for s in schedule_rows([body], card, {}, rulesets()).rows[body.hash] if s.row.reduce.stream]
    assert streamed
    for s in streamed[:: max(1, len(streamed) // 8)]:
        kernel = lower(body, s.family, s.row, card, "k_test")
        blocks = integer(kernel.grid[0], {})
        assert blocks == min(s.config.blocks, sms)
        tile, warps = 4 * s.config.tile_m * s.config.tile_n, s.config.block_threads // 32 - 4
        counts = [(p.type, integer(p.count, {})) for p in kernel.params if p.count is not None]
        assert sorted(counts) == [("f32", 2 * blocks * tile // 4), ("i32", blocks * warps)], s.row.text


def test_sums_are_added_in_any_order_only_where_that_is_allowed() -> None:
    body = bodies.linear(16, 4096, 8192)
    plain, allowed = rows(body), rows(body, ATOMIC)
    assert plain < allowed and all(Row.parse(r).reduce.finish == "a" for r in allowed - plain)
    assert rows(body, ATOMIC, "wgmma-atomic") == plain


@pytest.mark.parametrize(
    ("fact", "where"),
    [("(wgmma-parts 8)", "8 blocks share a sum in a cluster"), ("(wgmma-shared 4 2)", "4 blocks share a sum in a wor")],
)
def test_rules_that_share_a_sum_otherwise_than_rows_say_are_refused(fact: str, where: str, tmp_path: Path) -> None:
    """A row names the blocks; whether they are a cluster follows from their number alone."""
    shutil.copytree(rulesets(), tmp_path / "rulesets")
    file = tmp_path / "rulesets" / "schedule" / "wgmma.egg"
    file.write_text(f"{file.read_text()}\n{fact}\n")
    with pytest.raises(LoweringError, match=where):
        schedule_rows([bodies.linear(16, 4096, 8192)], HOPPER, {}, tmp_path / "rulesets")


@pytest.mark.parametrize(
    ("rings", "deposits", "bytes"),
    [((64, 32), [48], 0), ((32, 64), [80], 16), ((64, 32), [48, 48], 16), ((64,), [48, 48], 48), ((64,), [], 0)],
)
def test_deposited_sums_take_what_the_largest_rings_do_not_have(
    rings: tuple[int, ...], deposits: list[int], bytes: int
) -> None:
    assert deposits_beyond(rings, deposits) == bytes


@pytest.mark.parametrize(
    "body", [bodies.linear(16, 4096, 8192), bodies.swiglu(16, 1024, 4096)], ids=["one sum", "two sums"]
)
def test_deposited_sums_lie_in_rings_and_leave_rows_as_many_stages(body: Body) -> None:
    found = schedule_rows([body], HOPPER, {}, rulesets()).rows[body.hash]
    own = [(s, Warpgroups.of(s.row)) for s in found if s.family == "wgmma"]
    deposited = [s for s, c in own if c.swapped or c.parts > 1]
    for s in deposited[:: len(deposited) // 8]:
        kernel = lower(body, s.family, s.row, HOPPER, "k_test")
        sums = [b for b in kernel.shared if b.name.startswith("sum")]
        assert sums and all(b.overlays for b in sums) and len({b.overlays for b in sums}) == len(sums), s.row.text
        assert kernel.smem <= s.config.smem <= HOPPER.smem_block, s.row.text

    def stages(share: bool) -> dict[object, set[int]]:
        depths: dict[object, set[int]] = {}
        for s, c in own:
            if not c.swapped and (c.parts > 1) == share and not (c.out or c.stream or c.cluster > 1 or c.shared > 1):
                depths.setdefault((s.row.work, s.row.tile), set()).add(c.stages)
        return depths

    alone, shared = stages(False), stages(True)
    common = alone.keys() & shared.keys()
    assert common and all(alone[k] == shared[k] for k in common)


@pytest.mark.parametrize("body", [bodies.rms_linear(512, 1024, 4096), bodies.scaled_linear(512, 1024, 4096)])
def test_row_scalars_that_a_cluster_tells_take_a_place_in_every_block(body: Body) -> None:
    found = schedule_rows([body], HOPPER, {}, rulesets()).rows[body.hash]
    own = [(s, Warpgroups.of(s.row)) for s in found if s.family == "wgmma" and "WORK=w1x" not in s.row.text]
    told = [s for s, c in own if c.parts > 1]
    assert told and any(c.shared > 1 for _, c in own)
    for s in told[:: len(told) // 6]:
        kernel, c = lower(body, s.family, s.row, HOPPER, "k_test"), Warpgroups.of(s.row)
        (places,) = (b for b in kernel.shared if b.name.startswith("m_scalar"))
        assert places.shape == (c.parts, c.long)
        assert kernel.smem <= s.config.smem <= HOPPER.smem_block, s.row.text
    assert {c.told(1) for s, c in own if c.shared > 1 or c.parts == 1} == {0}


def test_a_norm_and_a_linear_are_one_launch_whose_blocks_share_the_sum() -> None:
    row = "WORK=w8x1+p4,TILE=wgmma_m64n128k16_bf16_f32/f1x1/k4,REDUCE=g4,STAGE=d5/smem-tma/reg,RASTER="
    assert row in rows(bodies.rms_linear(512, 1024, 4096))


def test_every_block_of_a_divided_sum_has_a_stage() -> None:
    for m, n, k in ((16, 4096, 4096), (16, 512, 576), (64, 1024, 1088)):
        for text in with_(rows(bodies.linear(m, n, k)), "REDUCE=g"):
            c = Warpgroups.of(Row.parse(text))
            steps = -(-k // c.block_k)
            assert (c.parts - 1) * -(-steps // c.parts) < steps, text


def test_two_bodies_that_share_a_ring_do_not_share_how_results_leave() -> None:
    """Their stages take the same bytes, but columns of the second one's results are no neighbours."""
    stored, scattered = bodies.linear(512, 512, 512), bodies.head_split(512, 8, 64, 512)
    found = schedule_rows([stored, scattered], HOPPER, {}, rulesets())
    assert any("/out" in s.row.text for s in found.rows[stored.hash])
    assert not any("/out" in s.row.text for s in found.rows[scattered.hash])


def test_lines_are_for_results_that_tma_cannot_store() -> None:
    """Those that it can store have one sort of staged rows; a line has neighbours along it, of 16 bits."""
    stored = bodies.linear(512, 512, 512)
    assert rows(stored, held="wgmma-lines") == rows(stored)
    odd = bodies.linear(512, 513, 512)
    assert rows(odd, held="wgmma-out") == rows(odd) and with_(rows(odd), "/out")
    (out,) = odd.outs
    wide = bodies.body([replace(out, tensor=replace(out.tensor, dtype="f32"))], odd.slots)
    assert rows(wide) and not with_(rows(wide), "/out")


@pytest.mark.parametrize(
    "body", [bodies.linear(1000, 513, 512), bodies.linear(1000, size("s"), 512), bodies.linear(300, 65, 512, batch=3)]
)
def test_lines_take_the_shared_memory_that_their_rule_counts(body: Body) -> None:
    found = schedule_rows([body], HOPPER, {"s": 700}, rulesets()).rows[body.hash]
    staged = [s for s in found if s.row.stage.out]
    for s in staged[:: max(1, len(staged) // 12)]:
        smem = lower(body, s.family, s.row, HOPPER, "k").smem
        assert s.config.smem - 2048 <= smem <= s.config.smem, s.row.text
    assert staged


def test_a_card_with_fewer_registers_has_only_smaller_tiles() -> None:
    few = rows(bodies.linear(4096, 4096, 512), replace(HOPPER, registers_thread=128))
    held = [Warpgroups.of(Row.parse(r)) for r in few]
    assert held and all(c.fragments * c.n // 2 + 40 <= 128 for c in held)


def test_blocks_stay_where_tiles_give_the_row_scalars() -> None:
    found = rows(bodies.scaled_linear(4096, 4096, 512))
    assert with_(found, "persist") and not with_(found, "+pp")


COMPUTED = {
    "activation": bodies.prologue(512, 512, 512, "silu"),
    "gate": bodies.prologue(512, 512, 512, "gate"),
    "normalization": bodies.rms_linear(512, 512, 512, factored=False),
    "weight of a normalization": bodies.rms_linear(512, 512, 512),
    "stored as f32": bodies.prologue(512, 512, 512, "cast"),
    "stored transposed": bodies.prologue(512, 512, 512, "silu", trans_a=True),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_left_factors_go_through_registers(name: str) -> None:
    found = rows(COMPUTED[name])
    assert found == with_(found, "/reg") and with_(found, "WORK=w8x1+p4,")
    assert with_(found, "/c2/reg/out") if "norm" not in name else with_(found, "/c2/reg")


@pytest.mark.parametrize("stored", ["i8", "f8e4m3", "f8e5m2"])
def test_a_right_factor_that_is_scaled_on_load_exchanges_the_sides(stored: str) -> None:
    found = rows(bodies.dequant(512, 512, 512, stored=stored))
    assert found and all("WORK=w1x" in r and "/reg" in r for r in found)


@pytest.mark.parametrize(
    "body",
    [
        bodies.linear(512, 512, 512),
        bodies.scaled_linear(512, 512, 512),
        bodies.swiglu(512, 512, 512),
    ],
    ids=["linear", "scale in the epilogue", "gate in the epilogue"],
)
def test_plain_factors_stay_in_shared_memory(body: Body) -> None:
    found = rows(body)
    assert found and not with_(found, "/reg")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bodies.rotated(512, 512, 512), "conditions guard"),
        (bodies.prologue(512, 512, 513, "silu"), "multiples of 16 bytes"),
        (bodies.prologue(512, 512, 512, "i8", trans_a=True), "do not run along the sum"),
        (bodies.dequant(512, 512, 520), "multiples of 16 bytes"),
    ],
    ids=["guarded", "unaligned", "bytes across the sum", "unaligned bytes"],
)
def test_factors_that_consumers_cannot_read_are_declined_with_the_reason(body: Body, why: str) -> None:
    found = schedule_rows([body], HOPPER, {}, rulesets())
    assert not rows(body) and why in found.declined[body.hash]["wgmma"]


def test_computed_factors_count_among_the_registers() -> None:
    """Two sets of fragments and what a thread holds of a row leave fewer registers for sums."""
    for text in rows(bodies.prologue(4096, 4096, 512, "row")):
        c = Warpgroups.of(Row.parse(text))
        assert c.fragments * (c.n // 2 + 8 + 2) + 12 <= 200, text
    widest = [
        max(c.n for c in (Warpgroups.of(Row.parse(r)) for r in rows(body)) if c.groups == 3)
        for body in (bodies.linear(4096, 4096, 512), bodies.prologue(4096, 4096, 512, "row"))
    ]
    assert widest == [192, 144]


@pytest.mark.parametrize("stored", ["f8e4m3", "f8e5m2"])
def test_8_bit_floats_are_taken_as_they_are_stored(stored: str) -> None:
    """A stage is 128 elements of the sum, after which the instruction's sums go to f32 registers."""
    body = bodies.f8_linear(4096, 4096, 4096, stored, scaled="row")
    found = rows(body)
    assert not rows(body, held="wgmma-eighths")
    row = f"WORK=w8x1+p4,TILE=wgmma_m64n128k32_{stored}_f32/f1x1/k4,REDUCE=,STAGE=d6/smem-tma/out,RASTER=gm8/persist"
    assert row in found and found == with_(found, f"k32_{stored}_f32")
    held = [Warpgroups.of(Row.parse(r)) for r in found]
    assert all(c.block_k == 128 and 2 * c.fragments * c.n // 2 <= 200 for c in held)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bodies.f8_linear(512, 512, 512, trans_b=False), "8-bit factors that do not lie along the sum"),
        (bodies.f8_linear(512, 512, 520), "multiples of 16 bytes"),
        (bodies.f8_linear(512, 512, 512, out="f32"), "a right factor that is computed"),
        (bodies.f8_linear(512, 512, 512, operand="f32"), "in one type of 16 or 8 bits"),
        (bodies.f8_linear(512, 512, 512, operand="bf16"), "a right factor that is computed"),
        (bodies.f8_linear(512, 512, 512, operand="f16", scaled="row"), "a right factor that is computed"),
    ],
    ids=["across the sum", "unaligned", "results of f32", "a product of f32", "of bf16", "of f16, scaled"],
)
def test_8_bit_floats_that_the_instruction_cannot_take_are_declined_with_the_reason(body: Body, why: str) -> None:
    found = schedule_rows([body], HOPPER, {}, rulesets())
    assert not rows(body) and why in found.declined[body.hash]["wgmma"]


def test_blocks_stay_where_computed_factors_give_the_row_scalars() -> None:
    """The scale in the epilogue is gathered on the way; on the factor it takes a pass before."""
    assert with_(rows(bodies.rms_linear(4096, 4096, 512)), "persist")
    assert not with_(rows(bodies.rms_linear(4096, 4096, 512, factored=False)), "persist")


def test_factors_of_f32_are_taken_in_tf32_where_that_is_allowed() -> None:
    """An instruction's step is 32 bytes of the sum, as of every other type."""
    body = bodies.linear(4096, 4096, 4096, "f32")
    found = rows(body, TF32)
    row = "WORK=w8x1+p4,TILE=wgmma_m64n256k8_tf32_f32/f1x1/k4,REDUCE=,STAGE=d4/smem-tma,RASTER=gm8/persist"
    assert row in found and found == with_(found, "k8_tf32_f32/f") and not rows(body)
    held = [Warpgroups.of(Row.parse(r)) for r in found]
    assert {c.block_k for c in held} == {32, 64} and {c.stored.name for c in held} == {"f32"}
    assert {c.n % 8 for c in held} == {0} and max(c.n for c in held) == 256


@pytest.mark.parametrize("part", ["+pp", "/c2", "persist", "REDUCE=sk", "w12x1", "/f2x1", "/k8"])
def test_products_in_tf32_have_every_kind_of_row_that_stores_results_by_threads(part: str) -> None:
    body = bodies.linear(1536, 2560, 1024, "f32") if part == "REDUCE=sk" else bodies.linear(4096, 4096, 512, "f32")
    assert with_(rows(body, TF32), part)


def test_few_rows_in_tf32_exchange_the_sides_and_share_sums() -> None:
    found = rows(bodies.linear(16, 4096, 4096, "f32"), allowing(HOPPER, "tf32,atomics"))
    assert with_(found, "WORK=w1x4") and {"g2", "g4", "g8a"} <= {Row.parse(r).reduce.text for r in found}


@pytest.mark.parametrize("name", ["linear", "scale in the epilogue", "two sums"])
def test_stored_factors_of_f32_stay_in_shared_memory(name: str) -> None:
    body = {
        "linear": bodies.linear(512, 512, 512, "f32"),
        "scale in the epilogue": bodies.scaled_linear(512, 512, 512, "f32"),
        "two sums": bodies.swiglu(512, 512, 512, "f32"),
    }[name]
    found = rows(body, TF32)
    assert found and not with_(found, "/reg")


@pytest.mark.parametrize(
    "body",
    [
        *(bodies.prologue(512, 512, 512, kind, "f32") for kind in ("silu", "gate", "norm", "row", "i8", "f8e4m3")),
        bodies.rms_linear(512, 512, 512, "f32"),
    ],
    ids=["silu", "gate", "norm", "row", "i8", "f8e4m3", "weight of a normalization"],
)
def test_left_factors_of_f32_that_are_computed_go_through_registers(body: Body) -> None:
    found = rows(body, TF32)
    assert found and found == with_(found, "/reg")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bodies.linear(512, 512, 512, "f32", trans_b=False), "32-bit factors that do not lie along the sum"),
        (bodies.linear(512, 512, 512, "f32", trans_a=True), "32-bit factors that do not lie along the sum"),
        (bodies.prologue(512, 512, 512, "silu", "f32", trans_a=True), "f32 elements do not run along the sum"),
        (bodies.linear(512, 512, 514, "f32"), "multiples of 16 bytes"),
        (bodies.picked_linear(3, 512, 512, 512, "f32"), "a right factor that is computed"),
        (bodies.rotated(512, 512, 512, "f32"), "conditions guard"),
    ],
    ids=["k by n", "m by k", "computed, m by k", "unaligned", "gathered", "guarded"],
)
def test_factors_of_f32_that_the_instruction_cannot_take_are_declined_with_the_reason(body: Body, why: str) -> None:
    found = schedule_rows([body], TF32, {}, rulesets())
    assert not rows(body, TF32) and why in found.declined[body.hash]["wgmma"]


def test_products_of_16_bits_keep_their_type_where_tf32_is_allowed() -> None:
    for body in (bodies.linear(512, 512, 512), bodies.prologue(512, 512, 512, "cast")):
        assert rows(body, TF32) == rows(body)
