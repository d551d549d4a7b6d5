"""Tensor maps, clusters and early starts: what a launch of such a kernel is given, short of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from emmy.errors import DeviceError, PlanError
from emmy.inspect.plan_json import plan_from_json, plan_to_json
from emmy.ir.loop import const
from emmy.ir.plan import KernelLaunch, Plan, TensorMap, tensor_maps
from emmy.runtime import driver
from emmy.runtime.driver import MAP_BYTES, Arguments, Function
from emmy.runtime.flow import analyse
from emmy.runtime.instance import Instance, Segment
from emmy.runtime.maps import BoundMap
from emmy.runtime.sizes import Sizes
from tests.codegen.hopper_fixture import hopper_gemm
from tests.runtime.plans import COLUMNS, DOUBLE, S, buffer, launch, plan

Call = tuple[str, int, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
MAP = TensorMap(0, "f32", (S, const(COLUMNS)), (const(COLUMNS), const(1)), (64, COLUMNS), 32, const(4))


def has_driver() -> bool:
    try:
        driver.driver_version()
    except DeviceError:
        return False
    return True


class Encoder:
    """Stands for the driver: every call's arguments, and bytes that tell which call made them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(
        self, type: str, pointer: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
    ) -> bytes:
        self.calls.append((type, pointer, tuple(shape), tuple(strides), tuple(box), swizzle))
        return bytes([len(self.calls)]) * MAP_BYTES


def mapped(**options: object) -> Plan:
    n = replace(launch("double_it", "x", "y", DOUBLE), **{"maps": (MAP, replace(MAP, argument=1)), **options})
    return plan([buffer("x", "input"), buffer("y", "output")], [n], "y")


def bind(p: Plan, sizes: Sizes, encode: Encoder) -> tuple[Instance, Segment]:
    flow = analyse(p)
    functions = {(n.source, n.name): Function(n.name, None, 0) for n in p.launches if isinstance(n, KernelLaunch)}
    instance = Instance(flow.buffers, flow.lives, flow.run, sizes, functions, encode)
    (segment,) = instance.steps
    assert isinstance(segment, Segment)
    return instance, segment


def test_maps_follow_the_pointers_of_their_tensors() -> None:
    encode = Encoder()
    instance, segment = bind(mapped(), {"s": 100}, encode)
    arguments = segment.invocations[0].arguments
    instance.point("x", 4096)
    instance.point("y", 8192)
    instance.point("x", 1 << 20)
    box = ("f32", (100, 8), (32,), (64, 8), 32)
    assert [(c[0], *c[2:]) for c in encode.calls] == [box] * 3
    assert [c[1] for c in encode.calls] == [4096 + 16, 8192 + 16, (1 << 20) + 16]
    assert (arguments.map(0)[0], arguments.map(1)[0]) == (3, 2)
    assert list(arguments.values) == [1 << 20, 8192, 100]


def test_maps_that_round_lie_over_f32() -> None:
    encode = Encoder()
    BoundMap(replace(MAP, type="tf32"), {"s": 100}, encode).at(4096)
    assert encode.calls == [("tf32", 4096 + 16, (100, 8), (32,), (64, 8), 32)]


def test_an_address_is_encoded_once() -> None:
    encode = Encoder()
    bound = BoundMap(MAP, {"s": 3}, encode)
    assert [bound.at(p)[0] for p in (16, 32, 16, 32)] == [1, 2, 1, 2]
    assert len(encode.calls) == 2


def test_addresses_that_do_not_return_are_let_go() -> None:
    encode = Encoder()
    bound = BoundMap(MAP, {"s": 3}, encode)
    for p in range(100):
        bound.at(16 * p)
    bound.at(0)
    bound.at(16 * 99)
    assert len(encode.calls) == 101


def test_tensors_without_elements_have_no_map() -> None:
    encode = Encoder()
    assert BoundMap(MAP, {"s": 0}, encode).at(0) == bytes(MAP_BYTES)
    assert encode.calls == []


def test_strides_that_tma_does_not_take_are_refused() -> None:
    odd = replace(MAP, strides=(S, const(1)))
    with pytest.raises(PlanError, match=r"f32 \[6, 8\] has a stride of 24 bytes, no multiple of 16"):
        BoundMap(odd, {"s": 6}, Encoder())


def test_parameters_lie_behind_the_maps_and_values() -> None:
    arguments = Arguments([7, 8], 2)
    arguments.set_map(1, bytes(range(128)))
    assert arguments.map(0) == bytes(128)
    assert arguments.map(1) == bytes(range(128))


def test_clusters_must_divide_the_grid() -> None:
    p = mapped(cluster=(2, 1, 1))
    bind(p, {"s": 64}, Encoder())  # two blocks
    with pytest.raises(PlanError, match=r"grid \(1, 1, 1\), which clusters of \(2, 1, 1\) do not divide"):
        bind(p, {"s": 5}, Encoder())


def test_invocations_carry_clusters_and_early_starts() -> None:
    _, segment = bind(mapped(cluster=(2, 1, 1), dependent=True), {"s": 64}, Encoder())
    assert (segment.invocations[0].cluster, segment.invocations[0].dependent) == ((2, 1, 1), True)


def test_a_map_of_a_tensor_that_is_not_there_is_refused() -> None:
    n = replace(launch("double_it", "x", "y", DOUBLE), maps=(replace(MAP, argument=2),))
    with pytest.raises(PlanError, match="'double_it' maps a tensor that it does not have"):
        analyse(plan([buffer("x", "input"), buffer("y", "output")], [n], "y"))


def test_plan_json_keeps_maps_clusters_and_early_starts() -> None:
    p = mapped(cluster=(2, 1, 1), dependent=True, maps=(MAP, replace(MAP, type="tf32")))
    assert plan_from_json(plan_to_json(p)) == p


def test_plans_without_them_still_read() -> None:
    p = plan([buffer("x", "input"), buffer("y", "output")], [launch("double_it", "x", "y", DOUBLE)], "y")
    data = plan_to_json(p)
    for name in ("maps", "cluster", "dependent"):
        del data["launches"][0][name]
    assert plan_from_json(data) == p


def test_maps_of_a_kernel_number_its_tensors() -> None:
    maps = tensor_maps(hopper_gemm(256, 128, 64))
    assert [(m.argument, m.box, m.swizzle) for m in maps] == [
        (0, (128, 64), 128), (1, (128, 64), 128), (2, (64, 64), 128),
    ]  # fmt: skip


class Calls:
    """Stands for the driver's entry points: which were called with what, in types that the bindings take."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[object, ...]]] = []

    def __call__(self, name: str, *arguments: object, what: str = "") -> object:
        from cuda.bindings import driver as bindings

        # the bindings check their arguments, then find no driver, or none that knows these handles
        if name in ("cuGraphAddDependencies", "cuGraphKernelNodeSetAttribute", "cuLaunchKernelEx"):
            with pytest.raises(RuntimeError):
                getattr(bindings, name)(*arguments)
        self.made.append((name, arguments))
        return bindings.CUgraph() if name == "cuGraphCreate" else bindings.CUgraphNode()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(driver, "_call", found)
    return found


@pytest.mark.skipif(has_driver(), reason="would launch")
def test_a_graph_starts_a_dependent_kernel_early(calls: Calls) -> None:
    _, segment = bind(mapped(cluster=(2, 1, 1), dependent=True), {"s": 64}, Encoder())
    driver.KernelGraph([segment.invocations[0], segment.invocations[0]])
    assert [name for name, _ in calls.made] == [
        "cuGraphCreate",
        "cuGraphAddKernelNode", "cuGraphKernelNodeSetAttribute",
        "cuGraphAddKernelNode", "cuGraphAddDependencies", "cuGraphKernelNodeSetAttribute",
        "cuGraphInstantiate",
    ]  # fmt: skip
    (edge,) = next(a for name, a in calls.made if name == "cuGraphAddDependencies")[3]  # type: ignore[misc]
    assert (edge.from_port, edge.type) == (1, 1)
    value = next(a for name, a in calls.made if name == "cuGraphKernelNodeSetAttribute")[2]
    assert value.clusterDim.x == 2  # type: ignore[attr-defined]


@pytest.mark.skipif(has_driver(), reason="would launch")
def test_a_launch_says_its_cluster_and_that_it_may_start_early(calls: Calls) -> None:
    _, segment = bind(mapped(cluster=(2, 1, 1), dependent=True), {"s": 64}, Encoder())
    segment.run(0, graph=False)
    ((name, (config, *_)),) = calls.made
    assert name == "cuLaunchKernelEx"
    assert (config.gridDimX, config.blockDimX, config.numAttrs) == (2, 256, 2)  # type: ignore[attr-defined]
    assert [a.id.name for a in config.attrs] == [  # type: ignore[attr-defined]
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    ]  # fmt: skip


@pytest.mark.skipif(has_driver(), reason="would launch")
def test_plain_kernels_are_launched_as_before(calls: Calls) -> None:
    _, segment = bind(mapped(), {"s": 64}, Encoder())
    segment.run(0, graph=False)
    assert [name for name, _ in calls.made] == ["cuLaunchKernel"]
