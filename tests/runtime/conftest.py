"""Modules of hand-written plans on the local GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from emmy.ir.plan import Plan
from emmy.ir.target import TARGETS
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module, runs_on


@pytest.fixture(scope="module")
def arch() -> str:
    capability = torch.cuda.get_device_capability()
    return next(a for a in reversed(TARGETS) if runs_on(a, capability))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> CubinCache:
    return CubinCache(tmp_path_factory.mktemp("cubins"))


@pytest.fixture
def build(arch: str, cache: CubinCache) -> Callable[..., Module]:
    def make(p: Plan, weights: dict[str, Tensor] | None = None, **options: object) -> Module:
        p = Plan(arch, p.buffers, p.launches, p.outputs, p.sizes)
        return Module(p, weights or {}, cache=cache, **options)  # type: ignore[arg-type]

    return make
