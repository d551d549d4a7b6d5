"""NVRTC accepts every sort of contraction and attention kernel for every target."""

from __future__ import annotations

from pathlib import Path

import pytest

from emmy.codegen.cuda import source
from emmy.codegen.lower import lower
from emmy.egraph.schedule import schedule_rows
from emmy.ir.loop import Body
from emmy.ir.target import TARGETS, allowing, target
from emmy.runtime.nvrtc import Compiled, Job, compile_many
from tests import bodies as B

pytestmark = pytest.mark.nvrtc
RULESETS = Path(__file__).parents[2] / "rulesets"
BODIES: dict[str, Body] = {
    "linear": B.linear(512, 512, 512),
    "linear k by n": B.linear(512, 512, 512, "f16", trans_b=False),
    "odd": B.linear(33, 77, 65),
    "odd k by n": B.linear(129, 255, 1001, "f16", trans_b=False),
    "copies of odd operands": B.padded_linear(129, 255, 1001, "f16", trans_b=False),
    "to aligned lines": B.padded_linear(129, 255, 1001, whole=True, out=True, act=True),
    "f32": B.linear(200, 300, 400, "f32"),
    "chunks of f32 sums": B.linear(200, 300, 1200, "f32"),
    "normalized": B.rms_linear(512, 256, 512, factored=False),
    "gated": B.swiglu(256, 512, 256),
    "attention": B.attention(1, 4, 2, 256, 256, 64, causal=True),
    "attention, long heads": B.attention(1, 2, 2, 256, 256, 256),
}


def sample(body: Body, arch: str, count: int) -> list[tuple[str, str, Job, int]]:
    """`count` of the legal rows, spread evenly: family, row, what to compile, bytes of shared memory."""
    card = target(arch)
    rows = [
        r for r in schedule_rows([body], card, {}, RULESETS).rows[body.hash] if r.family not in ("plain", "map", "row")
    ]
    found = []
    for r in rows[:: max(1, len(rows) // count)][:count]:
        kernel = lower(body, r.family, r.row, card, "k_test")
        assert kernel.smem <= card.smem_block
        assert kernel.smem <= r.config.smem + 512, "the rule counts less shared memory than the kernel has"
        found.append((r.family, r.row.text, Job(source(kernel), kernel.name, arch), kernel.smem))
    return found


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", BODIES)
def test_rows_compile_for_the_target(name: str, arch: str) -> None:
    rows = sample(BODIES[name], arch, 3)
    built = compile_many([job for _, _, job, _ in rows])
    for (_, row, _, _), binary in zip(rows, built, strict=True):
        assert isinstance(binary, Compiled), f"{row}: {binary}"
        assert "warning" not in binary.log, row


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("name", ["linear", "linear k by n", "gated"])
def test_rows_that_tma_stages_compile_for_the_targets_that_have_it(name: str, arch: str) -> None:
    card = target(arch)
    found = schedule_rows([BODIES[name]], card, {}, RULESETS).rows[BODIES[name].hash]
    rows = [r for r in found if r.family == "mma" and r.row.stage.where == "smem-tma"]
    picked = rows[:: len(rows) // 3]
    kernels = [lower(BODIES[name], r.family, r.row, card, "k_test") for r in picked]
    built = compile_many([Job(source(k), k.name, arch) for k in kernels])
    for row, binary in zip(picked, built, strict=True):
        assert isinstance(binary, Compiled), f"{row.row.text}: {binary}"
        assert "warning" not in binary.log, row.row.text


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("body", [B.linear(16, 1024, 4096), B.swiglu(64, 512, 2048), B.linear(33, 500, 1001, "f32")])
def test_sums_that_blocks_share_compile_for_the_target_and_do_not_spill(body: Body, arch: str) -> None:
    card = target(arch)
    found = schedule_rows([body], card, {}, RULESETS).rows[body.hash]
    rows = [r for r in found if r.config.exchange]
    picked = rows[:: max(1, len(rows) // 4)][:4]
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in picked]
    built = compile_many([Job(source(k), k.name, arch) for k in kernels])
    for row, binary in zip(picked, built, strict=True):
        assert isinstance(binary, Compiled), f"{row.row.text}: {binary}"
        assert "warning" not in binary.log and binary.spill_bytes == 0, row.row.text


@pytest.mark.parametrize(
    "body",
    [B.linear(4095, 4095, 4096), B.linear(4000, 4095, 512, "f16", bias=True, act=True)],
    ids=["plain", "epilogue"],
)
def test_results_that_leave_line_by_line_compile_and_do_not_spill(body: Body) -> None:
    card = target("sm_90a")
    rows = [r for r in schedule_rows([body], card, {}, RULESETS).rows[body.hash] if r.row.stage.out]
    # the largest tiles, which leave the fewest registers, and others
    largest = [r for r in rows if "n256" in r.row.text and r.row.raster.persist]
    picked = [*largest[:: max(1, len(largest) // 4)], *rows[:: len(rows) // 3]]
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in picked]
    built = compile_many([Job(source(k), k.name, "sm_90a") for k in kernels])
    for row, binary in zip(picked, built, strict=True):
        assert isinstance(binary, Compiled), f"{row.row.text}: {binary}"
        assert "warning" not in binary.log and binary.spill_bytes == 0, row.row.text


@pytest.mark.parametrize("where", ["smem-async", "smem-tma"])
def test_large_tiles_do_not_spill(where: str) -> None:
    card = target("sm_90a")
    body = B.linear(4096, 4096, 4096)
    rows = [
        r
        for r in schedule_rows([body], card, {}, RULESETS).rows[body.hash]
        if "f4x8/k" in r.row.text and r.family == "mma"
    ]
    picked = [r for r in rows if r.row.stage.where == where][::6]
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in picked]
    built = compile_many([Job(source(k), k.name, card.arch) for k in kernels])
    assert [b.spill_bytes for b in built if isinstance(b, Compiled)] == [0] * len(picked)


COMPUTED: dict[str, Body] = {
    **{k: B.prologue(2048, 4096, 4096, k) for k in ("silu", "gate", "norm", "row", "cast", "f8e4m3", "both")},
    "transposed": B.prologue(2048, 4096, 4096, "silu", "f16", trans_a=True, trans_b=False),
    "i8 weight": B.dequant(512, 4096, 4096),
    "f8 weight": B.dequant(16, 4096, 4096, stored="f8e5m2"),
}


EIGHTHS: dict[str, Body] = {
    "of f8e4m3": B.f8_linear(4096, 4096, 4096, scaled="row", bias=True),
    "of f8e5m2, few rows": B.f8_linear(16, 4096, 4096, "f8e5m2", scaled="tensor"),
}


@pytest.mark.parametrize("name", [*COMPUTED, *EIGHTHS])
def test_computed_factors_and_8_bit_floats_leave_products_asynchronous(name: str) -> None:
    """The assembler makes no wgmma synchronous, and what a thread holds fits its registers."""
    card, body = target("sm_90a"), {**COMPUTED, **EIGHTHS}[name]
    found = schedule_rows([body], card, {}, RULESETS).rows[body.hash]
    rows = [r for r in found if r.family == "wgmma" and r.row.stage.registers == (name in COMPUTED)]
    rows.sort(key=lambda r: (r.config.tile_m * r.config.tile_n, r.row.text))
    picked = [rows[-1], rows[len(rows) // 2]]
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in picked]
    for row, binary in zip(picked, compile_many([Job(source(k), k.name, card.arch) for k in kernels]), strict=True):
        assert isinstance(binary, Compiled), f"{row.row.text}: {binary}"
        assert not binary.notes and not binary.spill_bytes, f"{row.row.text}: {binary.notes}"


TENSOR: dict[str, Body] = {
    "linear": B.linear(4096, 4096, 1024, "f32"),
    "a wave and part of another": B.linear(1536, 2560, 1024, "f32"),
    "few rows": B.linear(16, 4096, 4096, "f32"),
    "scale in the epilogue": B.scaled_linear(2048, 4096, 4096, "f32"),
    "two sums": B.swiglu(2048, 4096, 4096, "f32"),
    "i8 weight": B.dequant(16, 4096, 4096, "f32"),
    **{k: B.prologue(2048, 4096, 4096, k, "f32") for k in ("silu", "gate", "norm", "row", "both")},
}
SHAPES = ("m64n8k8", "m64n64k8", "m64n96k8", "m64n128k8", "m64n256k8", "REDUCE=g", "REDUCE=sk", "/c2", "+pp", "w1x")


@pytest.mark.parametrize("name", TENSOR)
def test_factors_of_f32_compile_for_warpgroups_and_leave_products_asynchronous(name: str) -> None:
    """A row of each kind that the body has; blocks with equal shares of stages keep some of their tiles' bounds in
    memory, of whatever type the factors are."""
    card, body = allowing(target("sm_90a"), "tf32"), TENSOR[name]
    found = [r for r in schedule_rows([body], card, {}, RULESETS).rows[body.hash] if r.family == "wgmma"]
    piles = [[r for r in found if part in r.row.text] for part in SHAPES]
    picked = list({p[len(p) // 3].row.text: p[len(p) // 3] for p in piles if p}.values())
    assert len(picked) > 2
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in picked]
    sources = [source(k) for k in kernels]
    assert all(".f32.tf32.tf32 " in s for s in sources)
    for row, binary in zip(picked, compile_many([Job(s, "k_test", card.arch) for s in sources]), strict=True):
        assert isinstance(binary, Compiled), f"{row.row.text}: {binary}"
        assert not binary.notes, f"{row.row.text}: {binary.notes}"
        assert not binary.spill_bytes or row.row.reduce.stream, row.row.text


@pytest.mark.parametrize(
    ("where", "arch"),
    [
        *((where, "sm_90a") for where in ("d2/smem", "d3/smem-async", "d3/smem-async/reg")),
        *(("d3/smem-async/turn/reg", arch) for arch in ("sm_80", "sm_90a", "sm_120a")),
    ],
)
def test_large_tiles_of_threads_do_not_spill(where: str, arch: str) -> None:
    card = target(arch)
    body = B.linear(512, 3584, 3584, "f32")
    rows = schedule_rows([body], card, {}, RULESETS).rows[body.hash]
    large = ("f8x8/k16", "f8x14/") if "/turn" in where else ("f8x8/k16",)
    picked = [r for r in rows if any(t in r.row.text for t in large) and f"STAGE={where}," in r.row.text]
    kernels = [lower(body, r.family, r.row, card, "k_test") for r in picked]
    built = compile_many([Job(source(k), k.name, card.arch) for k in kernels])
    assert picked and [b.spill_bytes for b in built if isinstance(b, Compiled)] == [0] * len(picked)
