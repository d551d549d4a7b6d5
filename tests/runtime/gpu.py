"""Inputs on a GPU, and results compared with what PyTorch computes."""

import torch
from torch import Tensor

from emmy.runtime.module import Module
from tests.runtime.plans import COLUMNS


def rows(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * n + seed)
    return torch.randn(n, COLUMNS, generator=generator).cuda()


def weight() -> Tensor:
    return torch.arange(COLUMNS, dtype=torch.float32)


def one(module: Module, *inputs: Tensor) -> Tensor:
    (out,) = module(*inputs)
    assert isinstance(out, Tensor)
    return out


def equal(actual: object, expected: Tensor) -> bool:
    """Same values, NaN in the same places."""
    assert isinstance(actual, Tensor)
    same = actual.shape == expected.shape and actual.dtype == expected.dtype
    return same and bool(torch.all((actual == expected) | ((actual != actual) & (expected != expected))))
