"""Tests marked `gpu` run only where PyTorch finds a CUDA device.  Hypothesis has no deadlines: machines differ."""

from __future__ import annotations

import functools
import importlib.util

import pytest

if importlib.util.find_spec("hypothesis"):  # a GPU machine may come without it
    from hypothesis import HealthCheck, settings

    # `print_blob` shows how to replay a failure, beside the seed that is printed with it
    settings.register_profile(
        "emmy", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    settings.load_profile("emmy")


@functools.cache
def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("no CUDA device here: run `make test-gpu` on a machine that has one")
