"""The Hopper product on a card: through a plan, so with its maps, clusters, graphs and early starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from emmy.codegen.cuda import source
from emmy.codegen.cuda_async import ASYNC
from emmy.ir.graph import Output, Ref
from emmy.ir.kernel import Kernel
from emmy.ir.loop import Tensor as Type
from emmy.ir.loop import const
from emmy.ir.plan import Buffer, KernelLaunch, Plan, tensor_maps
from emmy.runtime.module import Module
from tests.codegen.hopper_fixture import hopper_gemm

pytestmark = pytest.mark.gpu

# A wait that never ends gives up, so that a wrong kernel gives wrong results instead of hanging the GPU.  It must not
# trap, which would make the assembler serialize wgmma.
WATCHED = {
    "ring_wait": ASYNC["ring_wait"]
    .replace("unsigned done;", "unsigned done, spins = 0;")
    .replace("while (!done)", "while (!done && ++spins < (1u << 20))"),
}

KERNELS = {
    "two groups": {},
    "wide": {"tile_n": 256, "blocks": 132},
    "one group": {"groups": 1, "stages": 3, "blocks": 7},
    "direct": {"store": "direct"},
    "narrow": {"tile_n": 64, "stages": 8, "blocks": 5},
    "pairs": {"tile_n": 256, "cluster": 2, "blocks": 66},
    "pairs of narrow tiles": {"tile_n": 192, "groups": 1, "cluster": 2, "store": "direct"},
}
# on tiles, beside their edges, less than a tile, one stage of k, more stages than the ring has
SHAPES = [(512, 512, 512), (500, 520, 200), (1, 8, 8), (129, 264, 1024), (128, 64, 64), (1000, 1032, 776)]


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is for sm_90a")


def launch(k: Kernel, name: str, operands: tuple[str, str], result: str) -> KernelLaunch:
    k = replace(k, name=name)
    return KernelLaunch(
        name, operands, (result,), (), k.grid, k.threads, k.dynamic_smem, source(k, WATCHED), "", "test", "",
        maps=tensor_maps(k), cluster=k.cluster, dependent=k.dependent,
    )  # fmt: skip


def typed(name: str, role: str, *shape: int) -> Buffer:
    return Buffer(name, Type("bf16", tuple(const(d) for d in shape)), role, name)  # type: ignore[arg-type]


def twice(m: int, n: int, k: int, **options: object) -> Module:
    """y = x a^T and z = y b^T, two kernels in one graph."""
    first = launch(hopper_gemm(m, n, k, **options), "first", ("x", "a"), "y")  # type: ignore[arg-type]
    second = launch(hopper_gemm(m, k, n, **options), "second", ("y", "b"), "z")  # type: ignore[arg-type]
    buffers = (
        typed("x", "input", m, k), typed("a", "input", n, k), typed("b", "input", k, n), typed("y", "output", m, n),
        typed("z", "output", m, k),
    )  # fmt: skip
    return Module(Plan("sm_90a", buffers, (first, second), (Output(Ref("y")), Output(Ref("z")))), {}, poison=True)


def integers(*shape: int, most: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-most, most + 1, shape, generator=generator).to(torch.bfloat16).cuda()


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x.double() @ w.double().T).bfloat16()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_sums_of_integers_are_exact(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    module = twice(m, n, k, **KERNELS[name])
    x, a, b = integers(m, k), integers(n, k, most=1), integers(k, n, most=1)
    for _ in range(3):
        y, z = module(x, a, b)
        assert isinstance(y, Tensor) and isinstance(z, Tensor)
        assert torch.equal(y, product(x, a))
        assert torch.equal(z, product(y, b))
    other = integers(m, k, most=1)
    assert torch.equal(module(other, a, b)[0], product(other, a))  # type: ignore[arg-type]


@pytest.mark.parametrize("graph", [False, True])
def test_kernels_that_start_early_wait_for_what_they_read(graph: bool) -> None:
    module = twice(2048, 2048, 2048, tile_n=256, blocks=132, dependent=True)
    module.graph = graph
    x, a, b = integers(2048, 2048), integers(2048, 2048, most=1), integers(2048, 2048, most=1)
    for _ in range(20):
        y, z = module(x, a, b)
        assert isinstance(y, Tensor) and isinstance(z, Tensor)
        assert torch.equal(y, product(x, a))
        assert torch.equal(z, product(y, b))


def test_rounding_is_that_of_f32_sums() -> None:
    m = n = k = 1024
    generator = torch.Generator().manual_seed(0)
    x, a = (torch.randn(m, k, generator=generator).bfloat16().cuda() for _ in range(2))
    y = twice(m, n, k, tile_n=256)(x, a, a)[0]
    assert isinstance(y, Tensor)
    exact = x.double() @ a.double().T
    assert float((y.double() - exact).abs().max() / exact.abs().max()) < 2.0**-8


def test_the_callers_own_capture_replays_it() -> None:
    module = twice(512, 512, 512, cluster=2, dependent=True)
    x, a, b = integers(512, 512), integers(512, 512, most=1), integers(512, 512, most=1)
    module(x, a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, z = module(x, a, b)
    graph.replay()
    torch.cuda.synchronize()
    assert isinstance(y, Tensor) and isinstance(z, Tensor)
    assert torch.equal(y, product(x, a))
    assert torch.equal(z, product(y, b))
