import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import emmy
from emmy.errors import PlanError
from emmy.inspect.artifacts import read_plan
from emmy.inspect.plan_json import plan_from_json, plan_to_json
from emmy.ir.build import iadd, imul
from emmy.ir.graph import Node, Output, Ref, SizeVar
from emmy.ir.loop import Tensor, const, size
from emmy.ir.plan import Buffer, OpaqueLaunch, Plan

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False)
    | st.builds(Ref, st.text(min_size=1))
)
SIZES = st.sampled_from([size("s0"), iadd(imul(const(2), size("s0")), const(1))])
ARGUMENTS = st.recursive(SCALARS | SIZES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


def through_text(plan: Plan) -> Plan:
    return plan_from_json(json.loads(json.dumps(plan_to_json(plan))))


def opaque_plan(arguments: tuple[object, ...]) -> Plan:
    t = Tensor("bf16", (const(1), iadd(size("s0"), const(1))))
    node = Node("inv", "aten.linalg_inv.default", arguments, (("check", False),), (t,), "model.py:3: inv(x)", "block.0")
    buffers = (Buffer("x", t, "input", "x"), Buffer("inv", t, "output"))
    launch = OpaqueLaunch("inv", ("x",), ("inv",), node)
    return Plan(
        "sm_90a",
        buffers,
        (launch,),
        (Output(Ref("inv")), Output(3), Output(Ref("inv"), "x")),
        (SizeVar("s0", 2, None, 7),),
    )


@given(st.lists(ARGUMENTS, max_size=4).map(tuple))
def test_every_argument_of_an_operation_comes_back(arguments: tuple[object, ...]) -> None:
    plan = opaque_plan(arguments)
    assert through_text(plan) == plan


def test_not_a_number_comes_back() -> None:
    (launch,) = through_text(opaque_plan((math.nan, -math.inf))).launches
    assert isinstance(launch, OpaqueLaunch)
    assert math.isnan(launch.node.args[0]) and launch.node.args[1] == -math.inf  # type: ignore[arg-type]


def test_a_compiled_plan_comes_back() -> None:
    module = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 32))
    plan = emmy.saturate(module, (torch.randn(4, 64),), target="sm_89", check=False).plan
    assert any(n.at_build for n in plan.launches) and through_text(plan) == plan


def test_another_version_is_refused() -> None:
    data = {**plan_to_json(opaque_plan(())), "version": 99}
    with pytest.raises(PlanError, match="99"):
        plan_from_json(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("arch"),
        lambda d: d["buffers"][0].update(role="weight"),
        lambda d: d["buffers"][0].update(type="bf16[1"),
        lambda d: d["launches"][0].update(kind="magic"),
        lambda d: d["launches"][0]["node"].update(args=[{"code": "import os"}]),
        lambda d: d.update(outputs=7),
    ],
    ids=["no arch", "role", "type", "kind", "argument", "outputs"],
)
def test_damage_is_a_plan_error(damage) -> None:
    data = plan_to_json(opaque_plan((1,)))
    damage(data)
    with pytest.raises(PlanError):
        plan_from_json(data)


def test_a_file_that_is_no_plan_says_so(tmp_path) -> None:
    with pytest.raises(PlanError, match="cannot read"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("[")
    with pytest.raises(PlanError, match="no JSON"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(PlanError, match="no plan"):
        read_plan(tmp_path)
