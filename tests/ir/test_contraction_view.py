"""Which bodies are contractions, how their axes and factors are divided, and why others are not."""

from __future__ import annotations

import pytest

from emmy.ir.build import cast, scalar
from emmy.ir.loop import Body, Expr, Out, ax, const, fold, load, size
from emmy.ir.normal import compose
from emmy.ir.views.contraction_view import ContractionView, contraction_view
from emmy.ir.views.product import Part, unconditional
from tests import bodies as B


def view(body: Body) -> ContractionView:
    found = contraction_view(body)
    assert isinstance(found, ContractionView), found
    return found


def extents(axes: tuple[Expr, ...]) -> list[str]:
    return [a.extent.text for a in axes]  # type: ignore[attr-defined]


def sides(body: Body) -> tuple[list[str], list[str], list[str], list[str]]:
    v = view(body)
    return extents(v.batch), extents(v.m), extents(v.n), extents(v.k)


def test_a_linear_layer_has_rows_columns_and_one_sum() -> None:
    assert sides(B.linear(64, 96, 128)) == ([], ["64"], ["96"], ["128"])
    v = view(B.linear(64, 96, 128))
    assert v.parts_a[0].plain is not None and v.parts_b[0].plain is not None
    assert v.half == "bf16"


def test_the_axis_along_which_results_are_neighbours_belongs_to_n() -> None:
    i, j = B.axes(5, 7)
    r = ax("r", 11)
    product = scalar("mul", load(0, (i, r), "f32"), load(1, (j, r), "f32"))
    transposed = B.body(
        [Out((i, j), (j, i), fold("sum", r, product, "f32"), B.tensor("f32", 7, 5))],
        [B.tensor("f32", 5, 11), B.tensor("f32", 7, 11)],
    )
    assert sides(transposed) == ([], ["7"], ["5"], ["11"])


def test_axes_of_both_factors_are_batch() -> None:
    assert sides(B.linear(4, 6, 8, batch=3)) == (["3"], ["4"], ["6"], ["8"])


def test_a_matrix_times_a_vector_has_no_rows() -> None:
    assert sides(B.matvec(64, 128)) == ([], [], ["64"], ["128"])


def test_a_head_split_keeps_every_column_axis() -> None:
    batch, m, n, k = sides(B.head_split(40, 4, 16, 128))
    assert (batch, m, k) == ([], ["40"], ["128"])
    assert n == ["4", "16"]


def test_a_transposed_product_composed_into_a_linear_layer_is_one_contraction() -> None:
    i, j = B.axes(16, 12)
    copy = B.body([Out((i, j), (i, j), load(0, (j, i), "bf16"), B.tensor("bf16", 16, 12))], [B.tensor("bf16", 12, 16)])
    product = B.linear(16, 20, 12)
    which = next(k for k, s in enumerate(product.slots) if [e.text for e in s.shape] == ["16", "12"])
    tensors = [*product.slots, copy.slots[0]]
    both, _ = compose(copy, 0, product, which, [2], [0, 1], tensors)
    assert sides(both) == ([], ["16"], ["20"], ["12"])
    assert view(both).parts_a[0].plain is not None


def test_merged_heads_sum_over_two_axes() -> None:
    assert sides(B.head_merge(40, 4, 16, 128)) == ([], ["40"], ["128"], ["4", "16"])


def test_a_patch_embedding_is_a_contraction_over_the_patch() -> None:
    batch, m, n, k = sides(B.patches(2, 3, 32, 8, 64))
    assert (batch, m, n, k) == ([], ["2", "4", "4"], ["64"], ["3", "8", "8"])


def test_a_scale_in_the_epilogue_is_a_row_scalar() -> None:
    v = view(B.rms_linear(70, 96, 128))
    assert len(v.scalars_m) == 1 and not v.scalars_n
    assert not v.parts_a[0].scalars


def test_a_scale_on_the_operand_is_a_row_scalar_of_that_part() -> None:
    v = view(B.rms_linear(70, 96, 128, factored=False))
    assert v.parts_a[0].scalars == v.scalars_m
    assert v.parts_b[0].plain is not None, "the norm's weight stays with the activations"


def test_gate_and_up_share_their_left_part() -> None:
    v = view(B.swiglu(65, 96, 128))
    assert (len(v.parts_a), len(v.parts_b), len(v.sums)) == (1, 2, 2)


def test_dequantization_stays_on_its_operand() -> None:
    v = view(B.dequant(8, 16, 40))
    assert v.parts_a[0].plain is not None and v.parts_b[0].plain is None
    assert v.half == "bf16"


def test_f32_factors_take_no_16_bit_instruction() -> None:
    assert view(B.linear(64, 96, 128, "f32")).half is None


def test_symbolic_extents_are_axes_like_others() -> None:
    assert sides(B.linear(size("s"), 96, 128)) == ([], ["$s"], ["96"], ["128"])
    assert sides(B.linear(64, 96, size("s"))) == ([], ["64"], ["96"], ["$s"])


def test_a_kept_result_over_other_axes_declines() -> None:
    assert contraction_view(B.rms_linear(64, 96, 128, keep=True)) == "results over different axes"


def test_a_kept_result_over_the_same_axes_is_stored_too() -> None:
    assert len(view(B.rms_linear(64, 96, 96, keep=True)).body.outs) == 2


def _reduction(value: Expr) -> Body:
    i = ax("i", 6)
    return B.body([Out((i,), (i,), value, B.tensor("f32", 6))], [B.tensor("f32", 6, 8)])


def test_a_row_sum_is_no_contraction() -> None:
    i, r = ax("i", 6), ax("r", 8)
    x = load(0, (i, r), "f32")
    assert contraction_view(_reduction(fold("sum", r, x))) == "the sum is over one factor"
    assert isinstance(contraction_view(_reduction(fold("sum", r, scalar("mul", x, x)))), str)
    assert isinstance(contraction_view(_reduction(fold("max", r, x))), str)


def test_a_product_of_two_contractions_is_not_one() -> None:
    i, j = B.axes(4, 5)
    k, r = ax("k", 6), ax("r", 7)
    inner = fold("sum", r, scalar("mul", load(0, (i, r), "f32"), load(1, (r, k), "f32")), "f32")
    outer = fold("sum", k, scalar("mul", inner, load(2, (k, j), "f32")), "f32")
    body = B.body(
        [Out((i, j), (i, j), outer, B.tensor("f32", 4, 5))],
        [B.tensor("f32", 4, 7), B.tensor("f32", 7, 6), B.tensor("f32", 6, 5)],
    )
    assert contraction_view(body) == "a factor holds a fold over the summed axis"


@pytest.mark.parametrize("body", [B.attention(1, 2, 2, 8, 8, 16), B.body(
    [Out(B.axes(3), B.axes(3), load(0, B.axes(3), "f32"), B.tensor("f32", 3))], [B.tensor("f32", 3)]
)])  # fmt: skip
def test_attention_and_maps_are_no_contractions(body: Body) -> None:
    assert isinstance(contraction_view(body), str)


def test_only_loads_that_no_condition_guards_are_unconditional() -> None:
    part = view(B.rotated(40, 24, 64)).parts_a[0]
    assert len(part.loads) == 2
    assert not any(n in unconditional(part.value) for n in part.loads)
    plain = view(B.dequant(8, 16, 40)).parts_b[0]
    assert all(n in unconditional(plain.value) for n in plain.loads)


def test_a_guarded_load_is_an_operand() -> None:
    i, j = B.axes(6, 5)
    r = ax("r", 8)
    guarded = scalar("where", scalar("lt", r, const(7)), load(0, (i, r), "f32"), B.f32(0.0))
    body = B.body(
        [
            Out(
                (i, j),
                (i, j),
                fold("sum", r, scalar("mul", guarded, load(1, (j, r), "f32")), "f32"),
                B.tensor("f32", 6, 5),
            )
        ],
        [B.tensor("f32", 6, 8), B.tensor("f32", 5, 8)],
    )
    v = view(body)
    assert v.parts_a[0].plain is None and v.parts_b[0].plain is not None


@pytest.mark.parametrize("stored", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("operand", ["", "bf16", "f16"])
def test_factors_stored_in_8_bits_are_taken_so_where_the_program_names_such_a_product(
    stored: str, operand: str
) -> None:
    """Converted first, they are factors of the 16-bit product that the program asks for."""
    v = view(B.f8_linear(64, 96, 128, stored, operand=operand))
    assert (v.eighth, v.half) == (None if operand else stored, operand or "bf16")
    (a,), (b,) = v.parts_a, v.parts_b
    assert a.eighth is not None and b.eighth is not None and a.in_eighths and b.in_eighths


def test_casts_to_wider_types_hide_no_8_bit_factor() -> None:
    x, w = (
        cast(cast(load(k, (ax(n, e), ax("r", 64)), "f8e4m3"), "bf16"), "f32") for k, n, e in ((0, "i", 8), (1, "j", 16))
    )
    part = Part(x, (ax("r", 64),))
    assert part.eighth is load(0, (ax("i", 8), ax("r", 64)), "f8e4m3")
    assert Part(scalar("mul", x, w), (ax("r", 64),)).eighth is None


def test_factors_are_not_taken_in_8_bits_where_that_would_show() -> None:
    assert view(B.f8_linear(64, 96, 128, out="f32")).eighth is None
    assert view(B.f8_linear(64, 96, 128, operand="f32")).eighth is None
    assert view(B.linear(64, 96, 128)).eighth is None
    assert view(B.prologue(64, 96, 128, "f8e4m3")).eighth is None
