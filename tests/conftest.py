"""Tests marked `gpu` run only where PyTorch finds a CUDA device."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here: run `make test-gpu` on a machine that has one")
    for item in gpu:
        item.add_marker(skip)
