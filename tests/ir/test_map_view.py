"""Which loads of an element-wise body are read in the aligned vectors around them."""

from __future__ import annotations

import pytest

from emmy.ir.build import iadd, scalar
from emmy.ir.loop import Body, Out, const, load
from emmy.ir.views.map_view import MapView, map_view, vectors
from tests import bodies as B
from tests.codegen import small as K


def shifted(body: Body, width: int) -> int:
    view = map_view(body)
    assert isinstance(view, MapView)
    return len(vectors(view, width).shifted)


def chosen_by_data(columns: int) -> Body:
    """Rows of odd length at the one row that an index names, zeros elsewhere."""
    i, j = B.axes(12, 64)
    here = scalar("eq", load(0, (const(0),), "i64"), i)
    value = scalar("where", here, load(1, (i, iadd(j, 1)), "bf16"), B.f32(0.0))
    slots = [B.tensor("i64", 1), B.tensor("bf16", 12, columns)]
    return B.body([Out((i, j), (i, j), value, B.tensor("bf16", 12, 64))], slots)


@pytest.mark.parametrize(
    ("body", "width", "count"),
    [
        (K.padded_copy(33, 77, 80), 8, 1),
        (K.padded_copy(33, 77, 80), 16, 1),
        (K.padded_copy(33, 77, 80), 4, 0),  # less than 16 bytes
        (K.padded_copy(33, 77, 80, "f32"), 4, 1),
        (K.padded_copy(33, 80, 80), 8, 0),  # lines that are aligned
        (K.padded_copy(1, 15, 16), 8, 0),  # less than two vectors
        (K.concatenated(9, 47, 81, "bf16"), 8, 1),  # the second one would begin before its operand
        (K.upside_down(33, 67, 64), 8, 0),  # a group behind the last one would begin before the operand
        (chosen_by_data(67), 8, 0),  # most of what would be read is not needed
    ],
)
def test_runs_that_may_begin_anywhere_are_found(body: Body, width: int, count: int) -> None:
    assert shifted(body, width) == count
