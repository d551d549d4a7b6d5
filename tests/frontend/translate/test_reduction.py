"""Reductions, scans and softmax, with and without dimensions, on odd shapes and types."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from tests.frontend.translate.reference import check_all

REDUCTIONS = {
    "sum": torch.sum,
    "sum1": lambda x: x.sum(1),
    "sum-1k": lambda x: x.sum(-1, keepdim=True),
    "sum02": lambda x: x.sum((0, 2)),
    "sum[]": lambda x: x.sum(()),
    "mean": torch.mean,
    "mean1": lambda x: x.mean(1),
    "mean-1-2": lambda x: x.mean((-1, -2), keepdim=True),
    "prod": torch.prod,
    "prod1": lambda x: x.prod(1),
    "amax": torch.amax,
    "amax1": lambda x: x.amax(1),
    "amin02": lambda x: x.amin((0, 2)),
    "max": torch.max,
    "max1": lambda x: x.max(1),
    "min-1k": lambda x: x.min(-1, keepdim=True),
    "argmax": torch.argmax,
    "argmax1": lambda x: x.argmax(1),
    "argmin-1k": lambda x: x.argmin(-1, keepdim=True),
    "argmin": torch.argmin,
    "any": lambda x: (x > 1).any(),
    "any1": lambda x: (x > 1).any(1),
    "all": lambda x: (x > 0).all(),
    "all-1": lambda x: (x > 0).all(-1),
    "all02": lambda x: torch.all(x > 0, (0, 2)),
    "anyf": lambda x: x.any(0),
    "count": lambda x: torch.count_nonzero(x > 1, 1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "lse": lambda x: x.logsumexp(1),
    "lse02": lambda x: x.logsumexp((0, 2), keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "softmax0": lambda x: x.softmax(0),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "softmin": lambda x: F.softmin(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "var": torch.var,
    "var1": lambda x: x.var(1),
    "var0": lambda x: x.var(1, unbiased=False),
    "var_c": lambda x: x.var(1, correction=2),
    "std": torch.std,
    "std02": lambda x: x.std((0, 2), keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, 1),
    "norm": torch.norm,
    "norm1": lambda x: x.norm(dim=1),
    "norm_p1": lambda x: x.norm(p=1, dim=0, keepdim=True),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf, dim=-1),
    "norm_3": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "norm_0": lambda x: torch.linalg.vector_norm(x, 0, dim=-1),
    "linalg": torch.linalg.norm,
    "fro": lambda x: torch.linalg.matrix_norm(x),
    "normalize": lambda x: F.normalize(x, dim=1),
    "nansum": torch.nansum,
    "diff": torch.diff,
    "diff2": lambda x: x.diff(2, 1),
    "prepend": lambda x: x.diff(dim=1, prepend=x[:, :1], append=x[:, :2]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats(dtype: torch.dtype) -> None:
    check_all(REDUCTIONS, (torch.rand(3, 4, 5) + 0.5).to(dtype), rtol=1e-4)


def test_extents_of_one_and_scalars() -> None:
    names = ("mean1", "var1", "var0", "max1", "argmax1", "softmax", "cumsum", "norm1", "lse", "any1", "sum02")
    check_all({k: REDUCTIONS[k] for k in names}, torch.rand(2, 1, 3))
    scalar = {
        "sum": torch.sum,
        "sum0": lambda x: x.sum(0),
        "mean": torch.mean,
        "max": lambda x: x.max(0),
        "argmax": lambda x: x.argmax(-1),
        "softmax": lambda x: x.softmax(0),
        "cumsum": lambda x: x.cumsum(0),
        "amax": torch.amax,
        "norm": torch.norm,
        "var": torch.var,
        "lse": lambda x: x.logsumexp(0),
        "prod": torch.prod,
        "any": torch.any,
    }
    check_all(scalar, torch.tensor(0.7))


def test_sums_over_nothing() -> None:
    names = (
        "sum",
        "sum1",
        "sum02",
        "mean",
        "mean1",
        "prod1",
        "any1",
        "all",
        "lse",
        "var1",
        "var_mean",
        "norm1",
        "softmax0",
        "cumsum",
    )
    check_all({k: REDUCTIONS[k] for k in names}, torch.rand(3, 0, 5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_and_bools_sum_in_i64(dtype: torch.dtype) -> None:
    fns = {
        "sum": torch.sum,
        "sum1": lambda x: x.sum(1),
        "prod": lambda x: x.prod(1),
        "max": torch.amax,
        "max1": lambda x: x.amax(1),
        "min": lambda x: x.amin(0),
        "cumsum": lambda x: x.cumsum(1),
        "any": lambda x: x.any(1),
        "all": lambda x: x.all(0),
        "mean": lambda x: x.mean(1, dtype=torch.float32),
        "typed": lambda x: x.sum(1, dtype=torch.int32),
        "float": lambda x: x.sum(0, dtype=torch.float32),
        "count": torch.count_nonzero,
        "soft": lambda x: x.softmax(1, dtype=torch.float32),
    }
    if dtype != torch.bool:
        fns |= {"argmax": lambda x: x.argmax(1), "argmin": torch.argmin, "maxi": lambda x: x.max(1)}
    check_all(fns, torch.tensor([[0, 3, 1, 7], [5, 2, 2, 0], [9, 9, 1, 4]]).to(dtype))


def test_a_dtype_argument_is_applied_before_the_sum() -> None:
    x = torch.randn(3, 4).to(torch.bfloat16)
    check_all(
        {
            "sum": lambda x: x.sum(1, dtype=torch.float32),
            "mean": lambda x: x.mean(1, dtype=torch.float32),
            "softmax": lambda x: x.softmax(-1, dtype=torch.float32),
            "log": lambda x: F.log_softmax(x, 1, dtype=torch.float32),
            "cumsum": lambda x: x.cumsum(0, dtype=torch.float32),
            "norm": lambda x: torch.linalg.vector_norm(x, dim=1, dtype=torch.float32),
        },
        x,
    )


def test_nan_and_infinity_pass_through() -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 3.0], [inf, 0.0, -inf], [-inf, -inf, -inf], [inf, inf, 1.0], [2.0, 1.0, 2.0]])
    names = (
        "max",
        "amax1",
        "argmax1",
        "argmin-1k",
        "lse",
        "softmax",
        "log_softmax",
        "sum1",
        "mean1",
        "cumsum",
        "any1",
        "nansum",
        "norm_inf",
    )
    fns = {
        "amax1": lambda x: x.amax(1),
        "argmax1": lambda x: x.argmax(1),
        "argmin-1k": lambda x: x.argmin(1, keepdim=True),
    }
    check_all({k: fns.get(k, REDUCTIONS[k]) for k in names}, x)


def test_losses() -> None:
    x, target = torch.randn(4, 5), torch.tensor([1, 4, -100, 0])
    y, w = torch.rand(4, 5), torch.rand(5)
    check_all(
        {
            "ce": lambda x, t, y, w: F.cross_entropy(x, t),
            "weighted": lambda x, t, y, w: F.cross_entropy(x, t, w),
            "none": lambda x, t, y, w: F.cross_entropy(x, t, reduction="none"),
            "sum": lambda x, t, y, w: F.nll_loss(x, t, reduction="sum"),
            "nll": lambda x, t, y, w: F.nll_loss(x, t),
            "mse": lambda x, t, y, w: F.mse_loss(x, y),
            "l1": lambda x, t, y, w: F.l1_loss(x, y, reduction="sum"),
            "smooth": lambda x, t, y, w: F.smooth_l1_loss(x, y, beta=0.5),
            "huber": lambda x, t, y, w: F.huber_loss(x, y, delta=0.7),
            "bce": lambda x, t, y, w: F.binary_cross_entropy(y, y.flip(0)),
            "logits": lambda x, t, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
            "kl": lambda x, t, y, w: F.kl_div(x.log_softmax(1), y, reduction="sum"),
            "cos": lambda x, t, y, w: F.cosine_similarity(x, y),
        },
        x,
        target,
        y,
        w,
        rtol=1e-4,
    )


def test_a_sequence_of_class_scores() -> None:
    check_all({"ce": lambda x, t: F.cross_entropy(x, t)}, torch.randn(2, 5, 3), torch.tensor([[0, 1, 4], [2, 2, 3]]))
