"""A plan bound to sizes: everything short of a launch, so no driver is touched."""

from dataclasses import replace

import pytest

from emmy.errors import PlanError
from emmy.ir.build import imul
from emmy.ir.loop import const, size
from emmy.ir.plan import KernelLaunch, Launch, OpaqueLaunch, Plan, Workspace
from emmy.runtime.driver import Function
from emmy.runtime.flow import analyse
from emmy.runtime.instance import Instance, Segment, grid_of
from emmy.runtime.sizes import Sizes
from tests.runtime.plans import DOUBLE, buffer, launch, opaque, plan, tensor, two_kernels


def bind(p: Plan, sizes: Sizes) -> Instance:
    flow = analyse(p)
    functions = {(n.source, n.name): Function(n.name, None, 0) for n in p.launches if not isinstance(n, OpaqueLaunch)}
    return Instance(flow.buffers, flow.lives, flow.run, sizes, functions)


def arguments(instance: Instance) -> list[list[int]]:
    segments = [s for s in instance.steps if isinstance(s, Segment)]
    return [list(i.arguments.values) for s in segments for i in s.invocations]


def test_arguments_are_operands_results_and_sizes() -> None:
    instance = bind(two_kernels(), {"s": 5})
    for k, name in enumerate(("x", "w", "y")):
        instance.point(name, 1000 + k)
    instance.rebase(4096)
    assert arguments(instance) == [[1000, 4096, 5], [4096, 1001, 1002, 5]]
    instance.point("x", 7)
    instance.rebase(8192)
    assert arguments(instance) == [[7, 8192, 5], [8192, 1001, 1002, 5]]


def test_shapes_and_arena_follow_the_sizes() -> None:
    instance = bind(two_kernels(), {"s": 5})
    assert instance.shapes["t"] == (5, 8)
    assert instance.layout.bytes == 256
    assert bind(two_kernels(), {"s": 100}).layout.bytes == -(-100 * 8 * 4 // 256) * 256


def test_workspaces_follow_results_and_no_two_launches_share_what_is_zeros() -> None:
    both = (Workspace("f32", imul(size("s"), const(3)), False), Workspace("i32", const(7), True))
    base = two_kernels()
    launches = tuple(replace(n, work=both) for n in base.launches if isinstance(n, KernelLaunch))
    instance = bind(replace(base, launches=launches), {"s": 100})
    for k, name in enumerate(("x", "w", "y")):
        instance.point(name, 1000 + k)
    instance.rebase(1 << 20)
    instance.put_zeros(1 << 30)
    first, second = arguments(instance)
    assert first[:2] == [1000, second[0]] and second[1:3] == [1001, 1002] and first[-1] == second[-1] == 100
    (sums, count), (others, counts) = first[2:4], second[3:5]
    # one launch's sums end where the other's begin to matter, but its own result lives on
    assert sums == others != second[0] and instance.zeros.bytes == 512
    assert {count, counts} == {1 << 30, (1 << 30) + 256}


def test_kernels_are_cut_at_opaque_launches() -> None:
    names = [buffer("x", "input"), *(buffer(f"t{k}", "temporary") for k in range(4)), buffer("y", "output")]
    launches: list[Launch] = [
        launch("double_it", "x", "t0", DOUBLE),
        launch("double_it", "t0", "t1", DOUBLE),
        opaque("a", "aten.sort", "t1", "t2", tensor()),
        opaque("b", "aten.sort", "t2", "t3", tensor()),
        launch("double_it", "t3", "y", DOUBLE),
    ]
    steps = bind(plan(names, launches, "y"), {"s": 1}).steps
    assert [len(s.invocations) if isinstance(s, Segment) else s.name for s in steps] == [2, "a", "b", 1]


def test_launches_without_blocks_are_left_out() -> None:
    assert bind(two_kernels(), {"s": 0}).steps == ()


def test_grids_beyond_the_hardware_are_refused() -> None:
    n = launch("double_it", "x", "y", DOUBLE)
    wide = type(n)(**{f: getattr(n, f) for f in n.__slots__} | {"grid": (const(1), size("s"), const(1))})
    assert grid_of(wide, {"s": 65535}) == (1, 65535, 1)
    with pytest.raises(PlanError, match=r"'double_it' has grid \(1, 65536, 1\) for \{'s': 65536\}"):
        grid_of(wide, {"s": 65536})
