"""The runner's own worker process, on the driver that is Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from emmy.tune.runner.worker import work
from tests.tune.fake_cuda import CALLERS, FakeCuda
from tests.tune.test_runner_launches import KERNELS

fake = FakeCuda(KERNELS)


def illegal(_: list[int]) -> None:
    fake.broken = (700, "CUDA_ERROR_ILLEGAL_ADDRESS")


def greedy(_: list[int]) -> None:
    """Takes the memory that the next group needs."""
    fake.free = 4096


fake.kernels["illegal"] = (illegal, 0.0)
fake.kernels["greedy"] = (lambda a: (KERNELS["good"][0](a), greedy(a))[0], 8e-6)
fake.kernels["prints"] = (lambda a: (os.write(1, b"not a line of ours\n"), KERNELS["good"][0](a))[1], 8e-6)
for module in CALLERS:
    module.cuda = fake
raise SystemExit(work(0))
