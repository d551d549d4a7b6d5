"""Plans that run on a GPU: hand-written kernels, compared with PyTorch."""

import math
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from emmy.errors import CompileError, DeviceError, InputError, PlanError
from emmy.ir.graph import Node, Output, Ref
from emmy.ir.plan import Buffer, Launch, Plan
from emmy.ir.target import TARGETS
from emmy.runtime.bench import measure, ratio
from emmy.runtime.cache import CubinCache
from emmy.runtime.module import Module, runs_on
from tests.runtime.plans import (
    ADD_ROW,
    COLUMNS,
    DOUBLE,
    S,
    buffer,
    elementwise,
    launch,
    opaque,
    plan,
    tensor,
    two_kernels,
)

ROW = tensor(COLUMNS)


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


# values


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("poisoned", [True, False])
def test_two_kernels_with_a_temporary_at_every_size(build: Callable[..., Module], graph: bool, poisoned: bool) -> None:
    module = build(two_kernels(), {"linear.weight": weight()}, graph=graph, poison=poisoned)
    for n in (16, 1, 0, 33, 100_000, 7, 16):
        x = rows(n)
        for _ in range(2):
            assert equal(one(module, x), 2 * x + weight().cuda())


@pytest.mark.gpu
def test_graph_replay_equals_direct_launches_for_moving_inputs(build: Callable[..., Module]) -> None:
    graphs = build(two_kernels(), {"linear.weight": weight()}, graph=True)
    direct = build(two_kernels(), {"linear.weight": weight()}, graph=False)
    kept = [rows(33, seed) for seed in range(5)]
    for x in [*kept, *reversed(kept)]:
        assert equal(one(graphs, x), one(direct, x))


@pytest.mark.gpu
def test_results_of_two_calls_are_independent(build: Callable[..., Module]) -> None:
    module = build(two_kernels(), {"linear.weight": weight()})
    a, b = rows(9, 1), rows(9, 2)
    first = one(module, a)
    copy = first.clone()
    second = one(module, b)
    assert first.data_ptr() != second.data_ptr()
    assert equal(first, copy)
    second.zero_()
    assert equal(first, 2 * a + weight().cuda())


@pytest.mark.gpu
def test_results_enqueued_without_waiting_are_right(build: Callable[..., Module]) -> None:
    # arguments of a graph change while earlier launches of it are still in the queue
    module = build(two_kernels(), {"linear.weight": weight()})
    inputs = [rows(50_000, seed) for seed in range(20)]
    results = [one(module, x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        assert equal(result, 2 * x + weight().cuda())


def forgetful(arch: str = "sm_90a") -> Plan:
    half = elementwise("half_only", "f32 -> f32", "p0[i]", columns=COLUMNS // 2)
    buffers = [buffer("x", "input"), buffer("t", "temporary"), buffer("y", "output"), buffer("z", "output")]
    launches: list[Launch] = [
        launch("half_only", "x", "t", half),
        launch("half_only", "x", "y", half),
        launch("double_it", "t", "z", DOUBLE),
    ]
    return plan(buffers, launches, "y z", arch)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
def test_poison_shows_what_nothing_wrote(build: Callable[..., Module], graph: bool) -> None:
    module = build(forgetful(), graph=graph, poison=True)
    x = rows(10)
    for _ in range(2):
        for out in module(x):
            assert isinstance(out, Tensor)
            flat = out.reshape(-1)
            assert not flat[:40].isnan().any()
            assert flat[40:].isnan().all()


@pytest.mark.gpu
def test_poison_is_read_from_the_environment(build: Callable[..., Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMMY_POISON", "1")
    assert build(two_kernels(), {"linear.weight": weight()}).poison
    monkeypatch.setenv("EMMY_POISON", "0")
    assert not build(two_kernels(), {"linear.weight": weight()}).poison


@pytest.mark.gpu
def test_a_long_chain_reuses_its_arena(build: Callable[..., Module]) -> None:
    names = [f"t{k}" for k in range(20)]
    buffers = [buffer("x", "input"), *(buffer(n, "temporary") for n in names), buffer("y", "output")]
    row = ["x", *names, "y"]
    launches: list[Launch] = [launch("double_it", a, b, DOUBLE) for a, b in pairwise(row)]
    module = build(plan(buffers, launches, "y"), poison=True)
    x = rows(64)
    assert equal(one(module, x), x * 2.0**21)
    memory = module.memory(x)
    assert memory.arena == memory.peak == 2 * 64 * COLUMNS * 4


@pytest.mark.gpu
def test_large_dynamic_shared_memory(build: Callable[..., Module]) -> None:
    source = """extern "C" __global__ void __launch_bounds__(256) shuffle(const float* x, float* y, long long s) {
    extern __shared__ float stage[];
    long long n = s * 8;
    for (long long i = threadIdx.x; i < n; i += 256) stage[i] = x[i];
    __syncthreads();
    for (long long i = threadIdx.x; i < n; i += 256) y[i] = stage[n - 1 - i];
}
"""
    n, smem = 2048, 2048 * COLUMNS * 4
    step = launch("shuffle", "x", "y", source, elements=1, smem=smem)
    small = launch("shuffle", "y", "z", source, elements=1, smem=smem // 2)
    buffers = [buffer("x", "input"), buffer("y", "output"), buffer("z", "output")]
    x = rows(n)
    module = build(plan(buffers, [step], "y"))
    assert equal(one(module, x), x.flatten().flip(0).view(n, COLUMNS))
    both = build(plan(buffers, [step, small], "y z"))
    half = rows(n // 2)
    assert equal(both(half)[1], half)


CONVERSIONS = r"""
__device__ __forceinline__ float bf16_to_f32(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
__device__ __forceinline__ unsigned short f32_to_bf16(float x) {
    unsigned short r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r;
}
"""


@pytest.mark.gpu
def test_bf16_without_headers_rounds_as_pytorch_does(build: Callable[..., Module]) -> None:
    narrow, wide = tensor(COLUMNS, dtype="bf16"), ROW
    source = CONVERSIONS + elementwise("narrow", "f32 -> bf16", "f32_to_bf16(p0[i])", rows="1")
    back = CONVERSIONS + elementwise("widen", "bf16 -> f32", "bf16_to_f32(p0[i])", rows="1")
    buffers = [Buffer("x", wide, "input"), Buffer("n", narrow, "output"), Buffer("w", wide, "output")]
    launches: list[Launch] = [
        launch("narrow", "x", "n", source, sizes=(), elements=COLUMNS),
        launch("widen", "n", "w", back, sizes=(), elements=COLUMNS),
    ]
    p = plan(buffers, launches, "n w")
    module = build(Plan(p.arch, p.buffers, p.launches, p.outputs, ()))
    tie = 1 + 2.0**-8  # halfway between two bf16 values
    x = torch.tensor([0.0, -1.5, tie, tie + 2.0**-9, 3.4e38, math.inf, math.nan, 1e-40], device="cuda")
    n, w = module(x)
    assert equal(n, x.bfloat16())
    assert equal(w, x.bfloat16().float())


# what the model updates


def updating(in_place: bool) -> Plan:
    """cache += x, and y = 2 * the new cache."""
    add = elementwise("add", "f32 f32 -> f32", "p0[i] + p1[i]")
    new = "cache" if in_place else "new"
    buffers = [buffer("x", "input"), buffer("cache", "input"), buffer("new", "temporary"), buffer("y", "output")]
    if in_place:
        buffers.pop(2)
    launches: list[Launch] = [launch("add", "cache x", new, add), launch("double_it", new, "y", DOUBLE)]
    return plan(buffers, launches, "y", mutates=f"cache={new}")


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "strided", "misaligned"])
def test_updated_inputs_are_written_where_they_lie(
    build: Callable[..., Module], graph: bool, in_place: bool, layout: str
) -> None:
    module = build(updating(in_place), graph=graph, poison=True)
    x, start = rows(12, 1), rows(12, 2)
    if layout == "strided":
        cache = torch.zeros(12, 2 * COLUMNS, device="cuda")[:, ::2]
    elif layout == "misaligned":
        cache = torch.zeros(12 * COLUMNS + 1, device="cuda")[1:].view(12, COLUMNS)
    else:
        cache = torch.zeros(12, COLUMNS, device="cuda")
    cache.copy_(start)
    expected, where = start, cache.data_ptr()
    for _ in range(3):
        expected = expected + x
        assert equal(one(module, x, cache), 2 * expected)
        assert equal(cache, expected)
    assert cache.data_ptr() == where


@pytest.mark.gpu
def test_a_buffer_of_the_model_keeps_its_state(build: Callable[..., Module]) -> None:
    p = updating(in_place=True)
    buffers = [buffer("cache", "buffer", tensor(12, COLUMNS), "steps") if b.name == "cache" else b for b in p.buffers]
    state = torch.zeros(12, COLUMNS)
    module = build(Plan(p.arch, tuple(buffers), p.launches, p.outputs, p.sizes), {"steps": state})
    x = rows(12)
    one(module, x)
    assert equal(one(module, x), 2 * (x + x))
    assert equal(module.state["steps"], x + x)
    assert equal(state, torch.zeros(12, COLUMNS))  # the caller's, on the CPU, is another tensor


@pytest.mark.gpu
def test_an_input_returned_and_updated_is_returned_as_it_was(build: Callable[..., Module]) -> None:
    buffers = [buffer("x", "input"), buffer("new", "temporary")]
    module = build(plan(buffers, [launch("double_it", "x", "new", DOUBLE)], "x", mutates="x=new"))
    x = rows(5)
    old = x.clone()
    assert equal(one(module, x), old)
    assert equal(x, 2 * old)


@pytest.mark.gpu
def test_inputs_that_exchange_their_contents(build: Callable[..., Module]) -> None:
    buffers = [buffer("a", "input"), buffer("b", "input"), buffer("y", "output")]
    module = build(plan(buffers, [launch("double_it", "a", "y", DOUBLE)], "y", mutates="a=b b=a"))
    a, b = rows(5, 1), rows(5, 2)
    old_a, old_b = a.clone(), b.clone()
    assert equal(one(module, a, b), 2 * old_a)
    assert equal(a, old_b) and equal(b, old_a)


# what PyTorch runs


def run_op(node: Node, operands: list[Tensor], sizes: dict[str, int]) -> tuple[Tensor, ...]:
    assert sizes == {"s": operands[0].shape[0]}
    if node.op == "sort":
        return tuple(torch.sort(operands[0], dim=0))
    if node.op == "same":
        return (operands[0].view_as(operands[0]),)
    if node.op == "columns":
        return (operands[0].t().contiguous().t(),)
    assert node.op == "wrong"
    return (operands[0].half(),)


def around(op: str) -> Plan:
    """y = 2 op(2 x) - 2 x, where `b` = -x takes the memory of op's operand before op's result is read."""
    negate = elementwise("negate", "f32 -> f32", "-p0[i]")
    add = elementwise("add", "f32 f32 -> f32", "p0[i] + p1[i]")
    names = ("a", "b", "c", "d", "e")
    buffers = [buffer("x", "input"), *(buffer(n, "temporary") for n in names), buffer("y", "output")]
    results = "c i" if op == "sort" else "c"
    types = [tensor(), tensor(dtype="i64")] if op == "sort" else [tensor()]
    if op == "sort":
        buffers.append(buffer("i", "output", tensor(S, COLUMNS, dtype="i64")))
    launches: list[Launch] = [
        launch("double_it", "x", "a", DOUBLE),
        opaque("op", op, "a", results, *types),
        launch("negate", "x", "b", negate),
        launch("double_it", "b", "d", DOUBLE),
        launch("double_it", "c", "e", DOUBLE),
        launch("add", "e d", "y", add),
    ]
    return plan(buffers, launches, "y i" if op == "sort" else "y")


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("op", ["same", "columns", "sort"])
def test_kernels_around_an_operation_of_pytorch(build: Callable[..., Module], graph: bool, op: str) -> None:
    module = build(around(op), graph=graph, poison=True, opaque=run_op)
    for n in (6, 40, 6):
        for seed in range(2):
            x = rows(n, seed)
            middle, order = torch.sort(2 * x, dim=0) if op == "sort" else (2 * x, None)
            results = module(x)
            assert equal(results[0], 2 * middle - 2 * x)
            assert order is None or equal(results[1], order)


@pytest.mark.gpu
def test_an_operation_that_gives_another_type_is_refused(build: Callable[..., Module]) -> None:
    module = build(around("wrong"), opaque=run_op)
    with pytest.raises(PlanError, match=r"wrong gave torch.float16 \[3, 8\], launch 'op' expects f32\[\$s,8\]"):
        module(rows(3))


@pytest.mark.gpu
def test_an_operation_of_pytorch_needs_someone_to_run_it(build: Callable[..., Module]) -> None:
    with pytest.raises(PlanError, match=r"'op' \(same\) needs PyTorch"):
        build(around("same"))


# weights


def folding() -> Plan:
    buffers = [
        buffer("x", "input"),
        buffer("w", "parameter", ROW, "linear.weight"),
        buffer("w2", "folded", ROW),
        buffer("y", "output"),
    ]
    double_row = elementwise("double_row", "f32 -> f32", "2.0f * p0[i]", rows="1")
    launches: list[Launch] = [
        launch("double_row", "w", "w2", double_row, sizes=(), elements=COLUMNS, at_build=True),
        launch("add_row", "x w2", "y", ADD_ROW),
    ]
    return plan(buffers, launches, "y w2")


@pytest.mark.gpu
def test_folded_launches_run_once_and_their_operands_are_let_go(build: Callable[..., Module]) -> None:
    module = build(folding(), {"linear.weight": weight()}, poison=True)
    for n in (5, 6):
        x = rows(n)
        y, folded = module(x)
        assert equal(y, x + 2 * weight().cuda())
        assert equal(folded, 2 * weight().cuda())
        assert isinstance(folded, Tensor)
        folded.zero_()  # the caller's copy
    assert set(module.state) == {"w2"}
    assert module.memory(rows(5)).held == COLUMNS * 4


@pytest.mark.gpu
def test_weights_on_the_device_are_used_in_place_and_tied_ones_moved_once(build: Callable[..., Module]) -> None:
    w = weight().cuda()
    module = build(two_kernels(), {"linear.weight": w})
    x = rows(4)
    w.add_(1)
    assert equal(one(module, x), 2 * x + w)

    buffers = [buffer("x", "input"), buffer("u", "parameter", ROW), buffer("v", "parameter", ROW)]
    buffers += [buffer("t", "temporary"), buffer("y", "output")]
    launches: list[Launch] = [launch("add_row", "x u", "t", ADD_ROW), launch("add_row", "t v", "y", ADD_ROW)]
    on_cpu = weight()
    tied = build(plan(buffers, launches, "y"), {"u": on_cpu, "v": on_cpu})
    assert tied.state["u"].data_ptr() == tied.state["v"].data_ptr()
    assert equal(one(tied, x), x + weight().cuda() + weight().cuda())


@pytest.mark.gpu
def test_weights_that_do_not_fit_are_refused(build: Callable[..., Module]) -> None:
    with pytest.raises(InputError, match=r"weight 'linear.weight' is missing"):
        build(two_kernels(), {})
    with pytest.raises(InputError, match=r"weight 'linear.weight', dimension 0: expected 8, found 9"):
        build(two_kernels(), {"linear.weight": torch.zeros(9)})
    with pytest.raises(InputError, match=r"weight 'linear.weight': expected dtype f32, found f16"):
        build(two_kernels(), {"linear.weight": torch.zeros(8, dtype=torch.float16)})


@pytest.mark.gpu
def test_inputs_constants_and_numbers_are_returned(build: Callable[..., Module]) -> None:
    p = two_kernels()
    outputs = (Output(Ref("x")), Output(3), Output(Ref("y")), Output(None), Output(Ref("y")), Output(Ref("w")))
    module = build(Plan(p.arch, p.buffers, p.launches, outputs, p.sizes), {"linear.weight": weight()})
    x = rows(3)
    values = module(x)
    assert values[0] is x
    assert (values[1], values[3]) == (3, None)
    assert values[2] is values[4]
    assert equal(values[5], weight().cuda())


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
