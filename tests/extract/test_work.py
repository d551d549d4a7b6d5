"""What a body's work is counted as."""

from __future__ import annotations

import pytest

from emmy.extract.work import ONLINE_SLOTS, analyse
from emmy.ir.build import scalar
from emmy.ir.loop import Out, ax, const, fold, load, online, size
from emmy.ir.scalar import SCALAR
from tests import bodies as B


def test_linear_is_one_product_with_each_operand_once():
    work = analyse(B.linear(512, 4096, 1024))
    (dot,) = work.dots
    assert (dot.m, dot.n, dot.k, dot.batch, dot.passes) == (512, 4096, 1024, 1, 1)
    assert dot.tensor and dot.main
    assert work.tensor_flops == 2 * 512 * 4096 * 1024
    assert work.bytes == 2 * (512 * 1024 + 4096 * 1024 + 512 * 4096)


def test_f32_product_is_not_for_tensor_cores():
    assert analyse(B.linear(64, 64, 64, "f32")).tensor_flops == 0


def test_second_factor_owns_the_innermost_output_axis():
    for body in (B.linear(512, 4096, 1024), B.linear(512, 4096, 1024, bias=True, act=True), B.swiglu(512, 4096, 1024)):
        assert all((d.m, d.n) == (512, 4096) for d in analyse(body).dots)


def test_sum_over_several_axes_is_one_product():
    (dot,) = analyse(B.patches(4, 3, 32, 8, 64)).dots
    assert (dot.m, dot.n, dot.k) == (64, 64, 192)


def test_row_scale_is_made_once_a_row_and_lacks_the_columns():
    work = analyse(B.rms_linear(512, 1024, 4096))
    scale = [slots for slots, g in zip(work.slots, work.groups, strict=True) if g.n == 1024 and g.m == 1]
    # the square, its sum and the weight's product for each element of x, a few operations a row
    assert sum(scale) == pytest.approx(3 * 512 * 4096, rel=0.01)


def test_scale_on_the_operand_waits_for_its_row():
    factored, late = (analyse(B.rms_linear(512, 1024, 4096, factored=f)) for f in (True, False))
    assert (factored.levels, late.levels) == (1, 2)
    assert max(r.passes for r in factored.reads) == 1
    assert max(r.passes for r in late.reads) == 2


def test_three_pass_softmax_reads_three_times_and_the_online_one_once_a_pass():
    i, r, c = ax("i", 64), ax("r", 1000), ax("c", 1000)
    x = load(0, (i, r), "f32")
    top = fold("max", r, x)
    here = load(0, (i, c), "f32")
    shifted = scalar("exp", scalar("sub", x, top))
    slow = scalar("div", scalar("exp", scalar("sub", here, top)), fold("sum", r, shifted))
    fast = scalar("div", scalar("exp", scalar("sub", here, top)), online(r, x, const(1.0, "f32")))
    tensor = B.tensor("f32", 64, 1000)
    three, two = (analyse(B.body([Out((i, c), (i, c), v, tensor)], [tensor])) for v in (slow, fast))
    assert (three.levels, two.levels) == (2, 1)
    assert sum(r.passes for r in three.reads) == 3
    assert sum(r.passes for r in two.reads) == 2
    assert three.footprint == two.footprint == (64 * 1000 * 4,)


def test_exponentials_that_a_held_row_keeps_are_those_of_its_results():
    i, r, c = ax("i", 64), ax("r", 1000), ax("c", 1000)
    x, here = load(0, (i, r), "f32"), load(0, (i, c), "f32")
    tensor, total = B.tensor("f32", 64, 1000), online(r, x, const(1.0, "f32"))

    def kept(shift):
        value = scalar("div", scalar("exp", scalar("sub", here, shift)), total)
        return sum(analyse(B.body([Out((i, c), (i, c), value, tensor)], [tensor])).kept)

    assert kept(fold("max", r, x)) == (SCALAR["exp"].slots + 1) * 64 * 1000
    assert kept(fold("min", r, x)) == kept(fold("max", r, scalar("neg", x))) == 0


def test_online_sums_over_one_score_share_their_exponentials_and_maximum():
    i, r = ax("i", 8), ax("r", 100)
    x, one = load(0, (i, r), "f32"), const(1.0, "f32")
    single, double, maximum = online(r, x, one), online(r, x, load(1, (i, r), "f32")), fold("max", r, x)

    def slots(value):
        body = B.body([Out((i,), (i,), value, B.tensor("f32", 8))], [B.tensor("f32", 8, 100)] * 2)
        return sum(analyse(body).slots)

    assert slots(single) == (ONLINE_SLOTS + 1) * 800 + 8
    assert slots(scalar("add", single, double)) - slots(single) == 800 + 8
    assert slots(scalar("add", single, maximum)) - slots(single) == 8


def test_attention_has_two_products_and_holds_the_scores_for_all_value_columns():
    work = analyse(B.attention(1, 16, 8, 512, 1024, 128))
    assert work.tensor_flops == 2 * 2 * 16 * 512 * 1024 * 128
    score = next(d for d in work.dots if not d.main)
    assert work.groups[score.group].n == 128
    assert work.rescales


def test_footprint_never_exceeds_the_tensor_and_slices_count_their_part():
    i, j = ax("i", 16), ax("j", 32)
    tensor, out = B.tensor("bf16", 16, 64), B.tensor("bf16", 16, 32)
    low, high = load(0, (i, j), "bf16"), load(0, (i, scalar("add", j, const(32))), "bf16")

    def footprint(value):
        return analyse(B.body([Out((i, j), (i, j), value, out)], [tensor])).footprint[0]

    assert footprint(low) == 16 * 32 * 2
    assert footprint(scalar("add", low, high)) == 16 * 64 * 2
    assert footprint(scalar("add", scalar("mul", low, low), high)) == 16 * 64 * 2


def test_gathered_rows_are_bounded_by_the_table():
    i, j = ax("i", 8), ax("j", 64)
    row = load(1, (i,), "i64")
    work = analyse(
        B.body([Out((i, j), (i, j), load(0, (row, j), "f32"), B.tensor("f32", 8, 64))],
               [B.tensor("f32", 50000, 64), B.tensor("i64", 8)])
    )  # fmt: skip
    assert sorted(work.footprint) == [8 * 8, 8 * 64 * 4]


def test_transposed_read_is_strided():
    i, j = ax("i", 64), ax("j", 64)
    tensor = B.tensor("f32", 64, 64)
    straight, turned = load(0, (i, j), "f32"), load(1, (j, i), "f32")
    work = analyse(B.body([Out((i, j), (i, j), scalar("add", straight, turned), tensor)], [tensor] * 2))
    assert sorted(r.strided for r in work.reads) == [False, True]


def test_a_matrix_whose_folded_axis_is_the_outer_one_is_crossed_by_the_threads_of_a_row():
    def product(matrix, index):
        vector = load(0, (k,), "bf16")
        value = fold("sum", k, scalar("mul", vector, load(1, index, "bf16")))
        return B.body([Out((n,), (n,), value, B.tensor("bf16", 512))], [B.tensor("bf16", 256), matrix])

    n, k = ax("n", 512), ax("k", 256)
    assert [r.crossed for r in analyse(product(B.tensor("bf16", 256, 512), (k, n))).reads] == [False, True]
    assert not any(r.crossed for r in analyse(product(B.tensor("bf16", 512, 256), (n, k))).reads)
    # where all that is folded runs so, threads follow the rows
    columns = fold("sum", k, load(0, (k, n), "bf16"))
    alone = B.body([Out((n,), (n,), columns, B.tensor("bf16", 512))], [B.tensor("bf16", 256, 512)])
    assert not any(r.crossed for r in analyse(alone).reads)


def test_symbolic_sizes_are_evaluated_where_they_are_given():
    body = B.linear(size("s"), 256, 128)
    assert analyse(body, {"s": 7}).tensor_flops == 2 * 7 * 256 * 128
    with pytest.raises(KeyError, match="s"):
        analyse(body)
