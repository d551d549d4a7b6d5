"""Plans that run on a GPU: hand-written kernels, compared with PyTorch."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from emmy.errors import InputError, PlanError
from emmy.ir.graph import Node, Output, Ref
from emmy.ir.plan import Buffer, Launch, Plan
from emmy.runtime.module import Module
from tests.runtime.gpu import equal, one, rows, weight
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
