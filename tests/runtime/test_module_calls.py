"""Calls of modules on a GPU: arguments, sizes, streams, captures, what is refused, and timing."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emmy.errors import CompileError, DeviceError, InputError
from emmy.runtime.bench import measure, ratio
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module, runs_on
from tests.runtime.gpu import equal, one, rows, weight
from tests.runtime.plans import (
    COLUMNS,
    DOUBLE,
    buffer,
    launch,
    plan,
    two_kernels,
)

# arguments


@pytest.mark.gpu
def test_views_are_read_as_the_values_they_show(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    w = weight().cuda()
    base = rows(12)
    transposed = torch.randn(COLUMNS, 12, device="cuda").t()
    misaligned = torch.randn(12 * COLUMNS + 1, device="cuda")[1:].view(12, COLUMNS)
    expanded = torch.randn(1, COLUMNS, device="cuda").expand(12, COLUMNS)
    for x in (base, base[3:], base.flip(0), transposed, misaligned, expanded, base[::2]):
        assert equal(one(module, x), 2 * x + w)
    gradient = rows(12).requires_grad_()
    assert not one(module, gradient).requires_grad


@pytest.mark.gpu
def test_arguments_that_do_not_fit_are_refused(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    with pytest.raises(InputError, match=r"expected 1 inputs \(x\), found 2"):
        module(rows(1), rows(1))
    with pytest.raises(InputError, match=r"input 'x': expected dtype f32, found f16"):
        module(rows(1).half())
    with pytest.raises(InputError, match=r"input 'x': expected it on cuda:0, found cpu"):
        module(rows(1).cpu())
    with pytest.raises(InputError, match=r"input 'x', dimension 1: expected 8, found 4"):
        module(rows(2)[:, :4])
    with pytest.raises(InputError, match=r"input 'x' has 1 dimensions"):
        module(rows(2)[0])
    with pytest.raises(InputError, match=r"input 'x': expected a tensor, found int"):
        module(3)  # type: ignore[arg-type]
    assert equal(one(module, rows(2)), 2 * rows(2) + weight().cuda())  # it still works


# size bindings, streams, captures


@pytest.mark.gpu
def test_old_size_bindings_are_dropped_and_come_back(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()}, max_bindings=2)
    for n in (1, 2, 3, 1, 2, 3, 3, 2, 1):
        assert equal(one(module, rows(n)), 2 * rows(n) + weight().cuda())
        assert len(module._instances) <= 2


@pytest.mark.gpu
def test_a_growing_arena_does_not_strand_earlier_graphs(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()}, poison=True)
    for n in (4, 1000, 4, 200_000, 1000, 4):
        x = rows(n)
        assert equal(one(module, x), 2 * x + weight().cuda())


@pytest.mark.gpu
def test_calls_on_changing_streams_are_ordered(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()]
    inputs = [rows(400_000, seed) for seed in range(6)]
    torch.cuda.synchronize()
    results = []
    for k, x in enumerate(inputs):
        with torch.cuda.stream(streams[k % 3]):
            results.append(one(module, x))
    torch.cuda.synchronize()
    for x, result in zip(inputs, results, strict=True):
        assert equal(result, 2 * x + weight().cuda())


@pytest.mark.gpu
def test_calls_from_several_threads(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = rows(1000 + seed, seed)
        for _ in range(10):
            if not equal(one(module, x), 2 * x + weight().cuda()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.gpu
@pytest.mark.parametrize("warm", [True, False])
def test_a_capture_of_the_callers_own_replays(build: Callable[..., Module], warm: bool) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    x = rows(300)
    if warm:
        one(module, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = one(module, x)
    for seed in range(3):
        x.copy_(rows(300, seed))
        graph.replay()
        assert equal(out, 2 * x + weight().cuda())
    assert equal(one(module, x), 2 * x + weight().cuda())


@pytest.mark.gpu
def test_a_closed_module_gives_its_memory_back(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    one(module, rows(1_000_000))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    module.close()
    assert before - torch.cuda.memory_allocated() >= 32_000_000


# what cannot run


@pytest.mark.gpu
def test_code_for_another_gpu_is_refused(cache: CubinCache) -> None:
    other = "sm_120a" if torch.cuda.get_device_capability() != (12, 0) else "sm_80"
    with pytest.raises(DeviceError, match=f"the plan is for {other}"):
        Module(two_kernels(other), {"linear.weight": weight()}, cache=cache)


@pytest.mark.gpu
def test_source_that_does_not_compile_is_refused(build: Callable[..., Module]) -> None:
    buffers = [buffer("x", "input"), buffer("y", "output")]
    with pytest.raises(CompileError, match="refuses kernel 'bad'"):
        build(plan(buffers, [launch("bad", "x", "y", "not CUDA")], "y"))


@pytest.mark.gpu
def test_more_shared_memory_than_there_is_is_refused(build: Callable[..., Module]) -> None:
    buffers = [buffer("x", "input"), buffer("y", "output")]
    with pytest.raises(DeviceError, match=r"cuFuncSetAttribute \(double_it, 1048576 bytes\)"):
        build(plan(buffers, [launch("double_it", "x", "y", DOUBLE, smem=1 << 20)], "y"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_a_module_says_so(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="sees no CUDA device"):
        Module(two_kernels(), {"linear.weight": weight()}, cache=CubinCache(tmp_path))


def test_architectures_that_run_on_a_capability() -> None:
    assert runs_on("sm_90a", (9, 0)) and not runs_on("sm_90a", (10, 0))
    assert runs_on("sm_80", (8, 6)) and not runs_on("sm_86", (8, 0)) and not runs_on("sm_80", (9, 0))
    assert runs_on("sm_120a", (12, 0)) and not runs_on("sm_120a", (12, 1))


# timing


@pytest.mark.gpu
@pytest.mark.parametrize("cold", [True, False])
def test_timing_samples_every_call_in_every_round(build: Callable[..., Module], cold: bool) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    small, large = rows(64), rows(2_000_000)
    copies = [rows(500_000, seed) for seed in range(16)]
    calls: dict[str, object] = {
        "small": lambda: module(small),
        "large": lambda: module(large),
        "rotating": [lambda x=x: module(x) for x in copies],
        "waits": lambda: module(small)[0].sum().item(),  # type: ignore[union-attr]
    }
    timings = measure(calls, cold=cold, rounds=10)  # type: ignore[arg-type]
    assert [t.n for t in timings.values()] == [10] * 4
    assert all(0 < t.p10 <= t.median <= t.p90 for t in timings.values())
    assert timings["small"].method == timings["large"].method == "graph"
    assert timings["rotating"].method == ("rotate" if cold else "graph")
    assert timings["waits"].method == "events"
    assert ratio(timings["large"], timings["small"]).median > 0
    assert equal(one(module, small), 2 * small + weight().cuda())
