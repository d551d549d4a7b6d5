"""Experts: weights that an index tensor picks, and products of sorted rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from emmy.frontend.opaque import grouped_product
from emmy.frontend.translate.grouped import BLOCKS, FEWEST, block_rows
from emmy.ir.loop import const, size
from tests.frontend.translate.reference import check, check_all


def test_weights_that_an_index_picks() -> None:
    x, w, e = torch.randn(5, 6), torch.randn(4, 6, 3), torch.tensor([3, 0, 0, -1, 2])
    check_all(
        {
            "einsum": lambda x, w, e: torch.einsum("td,tdf->tf", x, w[e]),
            "bmm": lambda x, w, e: torch.bmm(x[:, None], w[e])[:, 0],
            "turned": lambda x, w, e: torch.bmm(w[e].transpose(1, 2), x[..., None])[..., 0],
            "rows": lambda x, w, e: F.linear(x[e.abs()], w[0].t()),
            "several": lambda x, w, e: torch.einsum("td,tkdf->tkf", x, w[torch.stack([e, e.abs()], 1)]),
        },
        x, w, e,
    )  # fmt: skip


def ends(*counts: int) -> Tensor:
    return torch.tensor(counts).cumsum(0).to(torch.int32)


@pytest.mark.parametrize(
    "counts",
    [(3, 1, 2), (0, 0, 6), (6, 0, 0), (0, 6, 0), (40, 0, 33), (1, 70, 2), (16, 16, 32), (31, 1, 32), (128, 1, 256)],
    ids=str,
)
def test_rows_of_each_group_meet_its_weight(counts: tuple[int, ...]) -> None:
    rows, offs = sum(counts), ends(*counts)
    x, w = torch.randn(rows, 8, dtype=torch.bfloat16), torch.randn(len(counts), 8, 16, dtype=torch.bfloat16)
    check(lambda x, w, o: torch._grouped_mm(x, w, offs=o), x, w, offs)
    turned = w.transpose(1, 2).contiguous()
    check(lambda x, w, o: F.grouped_mm(x, w.transpose(-2, -1), offs=o), x, turned, offs)


@pytest.mark.parametrize(("counts", "rows"), [((2, 1), 6), ((0, 0), 5), ((9, 30), 64), ((0, 17, 0), 70)], ids=str)
def test_rows_behind_the_last_group_are_zeros_whatever_the_last_weight_holds(
    counts: tuple[int, ...], rows: int
) -> None:
    x, w = torch.randn(rows, 8, dtype=torch.bfloat16), torch.randn(len(counts), 8, 16, dtype=torch.bfloat16)
    w[-1] = float("inf") if counts[-1] == 0 else w[-1]
    check(lambda x, w, o: torch._grouped_mm(x, w, offs=o), x, w, ends(*counts))
    assert not grouped_product(x.double(), w.double(), ends(*counts))[sum(counts) :].any()


def test_columns_of_each_group_and_whole_batches() -> None:
    x, w = torch.randn(3, 16, 8, dtype=torch.bfloat16), torch.randn(8, 48, dtype=torch.bfloat16)
    check(lambda x, w, o: torch._grouped_mm(x, w, offs=o), x, w, ends(8, 0, 40))
    check(lambda x, w: torch._grouped_mm(x, w), x, torch.randn(3, 8, 16, dtype=torch.bfloat16))


def test_what_transformers_runs_for_other_types() -> None:
    moe = pytest.importorskip("transformers.integrations.moe")
    assert moe is not None
    x, w = torch.randn(6, 8), torch.randn(3, 8, 4)
    check(lambda x, w, o: torch.ops.transformers.grouped_mm_fallback(x, w, o), x, w, ends(1, 0, 5))


@pytest.mark.parametrize("experts", [1, 2, 7, 64, 128])
def test_rows_of_each_expert_are_counted(experts: int) -> None:
    """As transformers counts them; bins of floats have the last one's end."""
    ids = torch.randint(0, experts + 1, (300,)).float()
    if experts > 1:
        check(lambda x: torch.histc(x, bins=experts, min=0, max=experts - 1), ids)
    check(lambda x: torch.histc(x, bins=5, min=-1, max=2), torch.linspace(-1.3, 2.0, 41))


def test_elements_of_a_bin_are_counted_in_whole_numbers() -> None:
    """f32 counts to 2^24 only."""
    program = check(lambda x: torch.histc(x, bins=3, min=0, max=2), torch.tensor([0.0, 1.0, 1.0]))
    counts = [t for t in program.terms if t.kind == "Reduce" and t.args[0] == "sum"]
    assert [t.tensor.dtype for t in counts] == ["i64"]


def test_blocks_fit_the_rows_that_a_group_has_on_average() -> None:
    assert block_rows(const(FEWEST * 4 - 1), const(4)) == 1
    assert block_rows(const(FEWEST * 4), const(4)) == BLOCKS[-1]
    assert block_rows(const(4096), const(64)) == 32
    assert block_rows(const(1 << 20), const(4)) == BLOCKS[0]
    assert block_rows(size("s"), const(4)) == 1
