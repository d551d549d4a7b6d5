"""Counts that bound how launches are composed: length as written, and operands that only steer."""

from __future__ import annotations

from itertools import pairwise

from emmy.ir.build import scalar
from emmy.ir.counts import steering, written
from emmy.ir.loop import Out, load
from tests import bodies as B


def chain(length: int):  # type: ignore[no-untyped-def]
    """Each value reads the one before twice."""
    (i,) = B.axes(8)
    value = load(0, (i,), "f32")
    for _ in range(length):
        value = scalar("mul", scalar("add", value, B.f32(1.0)), value)
    return B.body([Out((i,), (i,), value, B.tensor("f32", 8))], [B.tensor("f32", 8)])


def test_a_shared_node_is_written_at_each_use() -> None:
    lengths = [written(chain(n)) for n in range(6)]
    assert all(b > 2 * a for a, b in pairwise(lengths))
    assert len(chain(5).nodes) < 20


def test_an_operand_that_is_read_in_indices_alone_steers() -> None:
    picked = B.picked_linear(3, 8, 8, 16)
    (index,) = (k for k, t in enumerate(picked.slots) if t.dtype == "i64")
    assert [steering(picked, k) for k in range(3)] == [k == index for k in range(3)]
