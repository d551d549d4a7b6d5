"""The analytic prior: sane against known floors, never below its roofline, sensitive to every knob."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from emmy.extract.prior import predict, predict_many, roofline, terms_many
from emmy.extract.work import analyse
from emmy.ir.build import scalar
from emmy.ir.config import KernelConfig
from emmy.ir.loop import Out, ax, const, fold, load, online, scan
from emmy.ir.target import TARGETS, target
from tests import bodies as B

H200 = target("sm_90a")


def mma(m, n, tile_m=128, tile_n=128, tile_k=32, threads=256, stages=3, splits=1):
    smem = (tile_m + tile_n) * tile_k * 2 * stages
    registers = min(255, 64 + tile_m * tile_n // threads)
    blocks = ceil(m / tile_m) * ceil(n / tile_n) * splits
    return KernelConfig("mma", threads, blocks, tile_m, tile_n, tile_k, 16, stages, smem, registers, splits=splits)


def test_partial_sums_of_several_blocks_cost_what_they_move():
    body = B.linear(64, 1024, 4096)
    work, whole = analyse(body, {}), mma(64, 1024, 64, 64)
    divided = [mma(64, 1024, 64, 64, splits=s) for s in (2, 4, 8)]
    shared = [replace(c, exchange=2 * c.blocks * 64 * 64 * 4) for c in divided]
    seconds = [predict(work, c, H200) for c in (whole, *shared)]
    # idle SMs are worth a workspace of a few megabytes, and more of it costs more
    assert seconds[2] < seconds[0]
    dearer = [predict(work, replace(c, exchange=8 * c.exchange), H200) for c in shared]
    assert all(a < b for a, b in zip(seconds[1:], dearer, strict=True))


def row(rows, columns, threads=256, share=256, vector=16, registers=40):
    at_once = threads // share
    return KernelConfig("row", threads, ceil(rows / at_once), 1, columns, 1, vector, 1, 0, registers, at_once, share)


def plain(points, threads=256):
    return KernelConfig("plain", threads, ceil(points / threads), registers=40)


def rms(m, k, dtype="bf16"):
    i, r, c = ax("i", m), ax("r", k), ax("c", k)
    value = scalar("mul", load(0, (i, c), dtype), B.rms_scale(load(0, (i, r), dtype), r))
    return B.body([Out((i, c), (i, c), value, B.tensor(dtype, m, k))], [B.tensor(dtype, m, k)])


def configs(m, n):
    tiles = [(32, 32), (64, 64), (128, 64), (64, 128), (128, 128), (128, 256)]
    return [
        mma(m, n, tm, tn, tk, threads, stages)
        for tm, tn in tiles for tk in (16, 32, 64) for threads in (128, 256) for stages in (1, 2, 3, 4)
    ]  # fmt: skip


CASES = [
    (B.linear(4096, 4096, 4096), configs(4096, 4096)),
    (B.linear(33, 77, 5), configs(33, 77)),
    (B.rms_linear(512, 1024, 4096, factored=False), configs(512, 1024)),
    (rms(8192, 4096), [row(8192, 4096, t, s, v) for t in (128, 256, 512) for s in (32, t) for v in (2, 8, 16)]),
    (B.attention(1, 16, 8, 512, 512, 128),
     [KernelConfig("attention", t, 16 * 512 // tm, tm, tn, 128, 16, s, s * tn * 512 + tm * 256, 128 + tm // 2)
      for t in (64, 128) for tm in (32, 64, 128) for tn in (32, 64, 128) for s in (1, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("arch", sorted(TARGETS))
def test_no_schedule_is_below_the_roofline_and_no_two_tie(case, arch):
    body, rows = CASES[case]
    work, t = analyse(body), target(arch)
    seconds = predict_many(work, rows, t)
    assert np.all(np.isfinite(seconds))
    assert np.all(seconds >= roofline(work, t))
    assert len(set(seconds.tolist())) == len(rows)


def test_one_and_many_agree():
    body, rows = CASES[0]
    work = analyse(body)
    assert [predict(work, c, H200) for c in rows[:5]] == predict_many(work, rows[:5], H200).tolist()


def test_large_product_is_near_its_tensor_rate_and_a_thread_an_output_is_not():
    work = analyse(B.linear(4096, 4096, 4096))
    good, slow = predict(work, mma(4096, 4096), H200), predict(work, plain(4096 * 4096), H200)
    assert roofline(work, H200) < good < 1.4 * work.tensor_flops / H200.flops_mma16
    assert slow > 20 * good


def test_row_kernel_is_near_its_memory_floor():
    work = analyse(rms(8192, 4096))
    held = replace(row(8192, 4096), held=True, flight=32)
    assert predict(work, held, H200) < 1.15 * roofline(work, H200)
    assert predict(work, plain(8192 * 4096), H200) > 20 * roofline(work, H200)


def test_few_blocks_cost_waves_and_a_split_wins_them_back():
    work = analyse(B.linear(64, 4096, 4096))
    large, small = predict(work, mma(64, 4096), H200), predict(work, mma(64, 4096, 64, 64, 64, 128), H200)
    split = predict(work, mma(64, 4096, 64, 64, 64, 128, splits=4), H200)
    assert split < small < large


def test_copy_and_compute_in_turns_cost_more_than_overlapped():
    work = analyse(B.linear(4096, 4096, 4096))
    assert predict(work, mma(4096, 4096, stages=3), H200) < 0.9 * predict(work, mma(4096, 4096, stages=1), H200)


def test_norm_fused_into_a_product_beats_the_cut_and_the_scale_on_the_operand():
    product = mma(512, 1024, 64, 64, 32, 128)
    late, early = (predict(analyse(B.rms_linear(512, 1024, 4096, factored=f)), product, H200) for f in (True, False))
    cut = predict(analyse(B.linear(512, 1024, 4096)), product, H200) + predict(
        analyse(rms(512, 4096)), row(512, 4096), H200
    )
    assert late < cut
    assert late < early


def test_recomputing_a_product_for_every_tile_loses_to_the_cut():
    # (x A) is made again for each of the columns' tiles of (x A) B
    i, j = B.axes(2048, 4096)
    r, q = ax("r", 4096), ax("q", 1024)
    from emmy.ir.loop import fold

    inner = fold("sum", q, scalar("mul", load(0, (i, q), "bf16"), load(1, (r, q), "bf16")), "bf16")
    value = fold("sum", r, scalar("mul", inner, load(2, (j, r), "bf16")), "bf16")
    both = B.body(
        [Out((i, j), (i, j), value, B.tensor("bf16", 2048, 4096))],
        [B.tensor("bf16", 2048, 1024), B.tensor("bf16", 4096, 1024), B.tensor("bf16", 4096, 4096)],
    )
    fused = predict(analyse(both), mma(2048, 4096), H200)
    cut = sum(predict(analyse(B.linear(2048, 4096, k)), mma(2048, 4096), H200) for k in (1024, 4096))
    assert fused > 2 * cut


def test_narrow_access_and_idle_threads_cost():
    work = analyse(rms(8192, 4096))
    assert predict(work, row(8192, 4096, vector=16), H200) < predict(work, row(8192, 4096, vector=2), H200)
    few = analyse(rms(16, 8192))
    assert predict(few, row(16, 8192, 512, 512), H200) < predict(few, row(16, 8192, 32, 32, registers=255), H200)


def test_threads_of_a_row_that_cross_a_matrix_read_whole_sectors_for_an_element():
    def seconds(matrix, index):
        value = fold("sum", k, scalar("mul", load(0, (k,), "bf16"), load(1, index, "bf16")))
        body = B.body([Out((n,), (n,), value, B.tensor("bf16", 3072))], [B.tensor("bf16", 768), matrix])
        return predict(analyse(body), row(3072, 768, 128, 128), H200)

    n, k = ax("n", 3072), ax("k", 768)
    along, crossed = seconds(B.tensor("bf16", 3072, 768), (n, k)), seconds(B.tensor("bf16", 768, 3072), (k, n))
    assert crossed > 2 * along


def test_rows_of_a_block_do_not_share_what_they_compute():
    n, k = ax("n", 8192), ax("k", 256)
    factor = scalar("mul", scalar("sin", load(0, (k,), "f32")), load(1, (n, k), "f32"))
    tensors = [B.tensor("f32", 256), B.tensor("f32", 8192, 256)]
    work = analyse(B.body([Out((n,), (n,), fold("sum", k, factor), B.tensor("f32", 8192))], tensors))
    terms, _ = terms_many(work, [row(8192, 256, 256, share) for share in (256, 8)], H200)
    one, many = terms["scalar"]
    assert one < 4 * many


def test_elements_of_many_lines_cost_after_the_products():
    work = analyse(B.linear(4096, 4096, 4096))
    one = KernelConfig("wgmma", 384, 512, 128, 256, 64, 16, 4, 200000, 168, persist=True)
    boxes, apart = (predict(work, replace(one, staged=s, apart=not s), H200) for s in (True, False))
    assert 1.05 * boxes < apart < 1.2 * boxes


def test_more_registers_never_help():
    work, config = analyse(rms(8192, 4096)), row(8192, 4096)
    costs = [predict(work, replace(config, registers=r), H200) for r in (40, 64, 128, 255)]
    assert costs == sorted(costs)


def test_a_scan_kernel_beats_a_thread_an_output_on_long_rows():
    i, j, r = ax("i", 4096), ax("j", 16384), ax("r", 16384)
    tensor = B.tensor("f32", 4096, 16384)
    work = analyse(B.body([Out((i, j), (i, j), scan("sum", r, j, load(0, (i, r), "f32")), tensor)], [tensor]))
    shared = KernelConfig("scan", 128, 4096, 1, 1, 512, 16, registers=44, reduce_threads=128, run=16, flight=16)
    assert predict(work, shared, H200) < 1.3 * roofline(work, H200)
    assert predict(work, plain(4096 * 16384), H200) > 100 * predict(work, shared, H200)


def test_a_held_row_beats_one_that_is_read_again_while_its_registers_fit():
    # teams with few threads have more rows in flight than the caches hold
    work = analyse(rms(8192, 4096))
    again = replace(row(8192, 4096, 128, 64), flight=16, registers=32)
    held = replace(again, held=True, flight=128, registers=100)
    spilled = replace(held, registers=700)
    assert predict(work, held, H200) < predict(work, again, H200)
    assert predict(work, spilled, H200) > predict(work, again, H200)


def test_a_held_softmax_neither_rescales_nor_repeats_its_exponentials():
    i, r, c = ax("i", 8192), ax("r", 8192), ax("c", 8192)
    x, here, tensor = load(0, (i, r), "bf16"), load(0, (i, c), "bf16"), B.tensor("bf16", 8192, 8192)
    weight = scalar("exp", scalar("sub", here, fold("max", r, x)))
    value = scalar("div", weight, online(r, x, const(1.0, "f32")))
    work = analyse(B.body([Out((i, c), (i, c), value, tensor)], [tensor]))
    streamed = replace(row(8192, 8192, 128, 128), run=16, flight=32, registers=28)
    held = replace(streamed, held=True, flight=256, registers=108)
    again = replace(work, kept=tuple(0.0 for _ in work.kept))
    assert predict(work, held, H200) < predict(again, held, H200)
    assert predict(work, held, H200) < predict(work, streamed, H200)
    assert predict(replace(work, stepped=tuple(9 * s for s in work.stepped)), held, H200) == predict(work, held, H200)
    assert predict(again, streamed, H200) == predict(work, streamed, H200)


def test_one_block_with_all_its_elements_in_registers_leaves_memory_idle():
    work = analyse(rms(8192, 4096))
    small = replace(row(8192, 4096, 128, 128), run=16, flight=128, held=True, registers=64)
    large = replace(small, block_threads=1024, blocks=1024, rows_per_block=8)
    assert predict(work, large, H200) > 1.05 * predict(work, small, H200)


def test_square_tiles_beat_reads_that_lie_apart():
    i, j = ax("i", 4096), ax("j", 4096)
    tensor = B.tensor("bf16", 4096, 4096)
    value = scalar("add", load(0, (i, j), "bf16"), load(1, (j, i), "bf16"))
    work = analyse(B.body([Out((i, j), (i, j), value, tensor)], [tensor] * 2))
    apart = KernelConfig("map", 64, 4096 * 4096 // 2048, 1, 2048, vector=16, run=16)
    turned = KernelConfig("map", 64, 4096, 64, 64, vector=16, smem=8192)
    assert 2 * predict(work, turned, H200) < predict(work, apart, H200)


def test_a_long_step_beats_two_short_ones_and_two_stages_hide_nothing():
    work = analyse(B.linear(4096, 4096, 4096))
    long, short = (predict(work, mma(4096, 4096, 128, 256, k, 256, d), H200) for k, d in ((64, 3), (32, 6)))
    assert long < short
    assert predict(work, mma(4096, 4096, 128, 256, 64, 256, 2), H200) > 1.15 * long


def test_small_blocks_cost_their_start():
    i = ax("i", 1 << 26)
    tensor = B.tensor("bf16", 1 << 26)
    work = analyse(B.body([Out((i,), (i,), scalar("neg", load(0, (i,), "bf16")), tensor)], [tensor]))
    few, many = (KernelConfig("map", 64, (1 << 26) // n, tile_n=n, vector=v) for n, v in ((1024, 16), (128, 4)))
    assert predict(work, many, H200) > 2 * predict(work, few, H200)


def test_a_slower_card_is_slower():
    work, config = analyse(rms(8192, 4096)), row(8192, 4096)
    assert predict(work, config, target("sm_86")) > 3 * predict(work, config, H200)
