"""Reads and writes whose place is data, pooling windows, resampling."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.frontend.translate.reference import check, check_all


def test_reads_by_index() -> None:
    x, i, j = torch.randn(4, 6, 3), torch.tensor([[0, 3, 1], [2, -1, -4]]), torch.tensor([2, 0, -1])
    check_all(
        {
            "first": lambda x, i, j: x[i],
            "second": lambda x, i, j: x[:, i],
            "pair": lambda x, i, j: x[i, j],
            "apart": lambda x, i, j: x[i, :, j],
            "three": lambda x, i, j: x[i, j, j],
            "new": lambda x, i, j: x[:, j][:, None],
            "list": lambda x, i, j: x[[1, 2]],
            "rows": lambda x, i, j: x[torch.arange(3), j],
            "column": lambda x, i, j: x[torch.arange(4)[:, None], j],
            "int32": lambda x, i, j: x[i.int()],
            "select": lambda x, i, j: x.index_select(1, j.abs()),
            "embedding": lambda x, i, j: F.embedding(i.abs(), x[0]),
            "take": lambda x, i, j: torch.take(x, i),
            "gather": lambda x, i, j: torch.gather(x[:, :, 0], 0, i % 4),
            "gather1": lambda x, i, j: x[:2, :, 0].gather(1, i.abs()),
            "along": lambda x, i, j: torch.take_along_dim(x[:, :3, 0], i.abs() % 4, 0),
            "one": lambda x, i, j: x[:1][torch.zeros(2, dtype=torch.long), j[:2]],
            "last": lambda x, i, j: x[..., j],
        },
        x,
        i,
        j,
    )


def assigned(x: torch.Tensor, at: object, value: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[at] = value  # type: ignore[index]
    return y


def test_writes_by_index() -> None:
    x, i, s = torch.randn(4, 6), torch.tensor([[0, 3, 1], [2, 1, 0]]), torch.rand(4, 6) + 0.5
    v = torch.tensor([2, 0, -1])
    fns = {
        "scatter": lambda x, i, s, v: x.scatter(0, i, s),
        "value": lambda x, i, s, v: x.scatter(1, i, 9.0),
        "add": lambda x, i, s, v: x.scatter_add(0, i, s),
        "add1": lambda x, i, s, v: x.scatter_add(1, i % 2, s),
        "reduce": lambda x, i, s, v: x.scatter(0, i, s, reduce="add"),
        "index_add": lambda x, i, s, v: x.index_add(0, v.abs(), s[:3], alpha=2),
        "copy": lambda x, i, s, v: x.index_copy(0, v.abs(), s[:3]),
        "fill": lambda x, i, s, v: x.index_fill(1, v.abs(), 5.0),
        "put": lambda x, i, s, v: torch.index_put(x, (v,), torch.tensor(7.0)),
        "rows": lambda x, i, s, v: torch.index_put(x, (v,), s[:3]),
        "acc": lambda x, i, s, v: torch.index_put(x, (i % 2,), s[0, 0], accumulate=True),
        "pair": lambda x, i, s, v: torch.index_put(x, (v, v), s[0, :3]),
        "mask": lambda x, i, s, v: torch.index_put(x, (x > 0,), torch.tensor(0.0)),
        "rowmask": lambda x, i, s, v: torch.index_put(x, (x[:, 0] > 0,), torch.tensor(1.0)),
        "select": lambda x, i, s, v: x.select_scatter(s[0], 0, -1),
        "slice": lambda x, i, s, v: x.slice_scatter(s[:2], 0, 1, 3),
        "strided": lambda x, i, s, v: x.slice_scatter(s[:, :3], 1, 0, 6, 2),
        "diagonal": lambda x, i, s, v: x.diagonal_scatter(s[0, :4]),
        "off": lambda x, i, s, v: x.diagonal_scatter(s[0, :3], -1),
        "int": lambda x, i, s, v: torch.zeros(4, 6, dtype=torch.long).scatter_add(0, i, i),
    }
    fns["column"] = lambda x, i, s, v: assigned(x, (slice(None), v), s[:, :3])
    fns["block"] = lambda x, i, s, v: assigned(x, (v[:, None], v), s[:3, :3])
    for mode in ("sum", "prod", "amax", "amin", "mean"):
        fns[mode] = lambda x, i, s, v, mode=mode: x.scatter_reduce(0, i, s, mode)
        fns[f"{mode}_alone"] = lambda x, i, s, v, mode=mode: x.scatter_reduce(1, i % 2, s, mode, include_self=False)
    check_all(fns, x, i, s, v, rtol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil"),
    [(2, None, 0, False), (3, 2, 1, False), (3, 2, 1, True), ((2, 3), (3, 1), 0, True)],
)
def test_pooling(kernel: object, stride: object, padding: int, ceil: bool) -> None:
    check_all(
        {
            "max": lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil),
            "avg": lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil),
            "inner": lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, count_include_pad=False),
            "divisor": lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, divisor_override=5),
            "which": lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil, return_indices=True),
            "int": lambda x: F.max_pool2d((x * 10).int(), kernel, stride, padding, ceil_mode=ceil),
        },
        torch.randn(2, 3, 7, 8),
        rtol=1e-5,
    )


def test_pooling_in_other_dimensions_and_adaptive() -> None:
    check_all(
        {
            "max1": lambda x: F.max_pool1d(x[0], 2),
            "avg1": lambda x: F.avg_pool1d(x[0], 3, 2, 1),
            "max3": lambda x: F.max_pool3d(x[None], 2),
            "avg3": lambda x: F.avg_pool3d(x[None], 2),
            "one": lambda x: F.adaptive_avg_pool2d(x, 1),
            "even": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
            "uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
            "up": lambda x: F.adaptive_avg_pool2d(x, (9, 8)),
            "line": lambda x: F.adaptive_avg_pool1d(x[0], 3),
            "volume": lambda x: F.adaptive_avg_pool3d(x[None], 2),
            "max": lambda x: F.adaptive_max_pool2d(x, (4, 2), return_indices=True),
            "dilated": lambda x: F.max_pool2d(x, 2, dilation=2),
            "max1_all": lambda x: F.adaptive_max_pool1d(x[0], 1),
            "unbatched": lambda x: F.avg_pool2d(x[0], 2),
            "none": lambda x: F.adaptive_avg_pool2d(x, (None, 2)),
        },
        torch.randn(2, 3, 6, 8),
    )


def test_resampling() -> None:
    fns = {}
    for k, size in enumerate(((12, 16), (3, 4), (5, 9), (1, 1), (7, 8))):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            fns[f"{mode}{k}"] = lambda x, s=size, m=mode: F.interpolate(x, size=s, mode=m)
        fns[f"corners{k}"] = lambda x, s=size: F.interpolate(x, size=s, mode="bilinear", align_corners=True)
    for scale in (2.0, 0.5, 1.5):
        for mode in ("nearest", "bilinear"):
            fns[f"{mode}x{scale}"] = lambda x, s=scale, m=mode: F.interpolate(x, scale_factor=s, mode=m)
    fns["linear"] = lambda x: F.interpolate(x[0], size=13, mode="linear")
    fns["trilinear"] = lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear")
    fns["line"] = lambda x: F.interpolate(x[0], scale_factor=2)
    check_all(fns, torch.randn(2, 3, 6, 8), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("corners", [True, False])
def test_grid_sampling(corners: bool) -> None:
    x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 3, 2) * 2.6 - 1.3
    fns = {
        f"{mode}-{padding}": (lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, corners))
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border")
    }
    check_all(fns, x, grid, rtol=1e-4, atol=1e-5)


def test_indices_inside_a_bigger_program() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = F.embedding(i, x) + x[:1]
        position = (i != 0).cumsum(1) * (i != 0)
        return y * torch.gather(position, 1, i % 3)[..., None] + y[torch.arange(2)[:, None], i % 3]

    check(fn, torch.randn(5, 4), torch.tensor([[1, 2, 0], [4, 0, 3]]))
