"""What a body is guessed to cost before its schedules are asked for."""

from __future__ import annotations

import pytest

from emmy.egraph.typical import typical_configs
from emmy.ir.loop import Body
from emmy.ir.target import allowing, target
from tests import bodies


def families(body: Body, arch: str) -> set[str]:
    return {c.family for c in typical_configs(body, target(arch), {})}


@pytest.mark.parametrize(
    "body",
    [bodies.linear(64, 256, 1024), bodies.scaled_linear(64, 256, 1024), bodies.prologue(64, 256, 1024, "silu")],
    ids=["plain", "scaled", "computed"],
)
def test_products_are_guessed_on_warpgroups_where_a_card_has_them(body: Body) -> None:
    assert "wgmma" in families(body, "sm_90a")
    assert "wgmma" not in families(body, "sm_89") | families(body, "sm_120a")


def test_a_body_that_warpgroups_decline_is_guessed_without_them() -> None:
    found = families(bodies.linear(64, 256, 1024, "f32"), "sm_90a")
    assert "tile" in found and not found & {"mma", "wgmma"}


def test_products_of_f32_are_guessed_on_warpgroups_where_tf32_is_allowed() -> None:
    card = allowing(target("sm_90a"), "tf32")
    for body in (bodies.linear(64, 256, 1024, "f32"), bodies.prologue(64, 256, 1024, "silu", "f32")):
        assert {c.bits for c in typical_configs(body, card, {}) if c.family == "wgmma"} == {32}


def test_every_body_has_a_guess() -> None:
    for body in (bodies.matvec(16, 64), bodies.attention(1, 2, 1, 40, 90, 16), bodies.swiglu(64, 128, 256)):
        for arch in ("sm_80", "sm_90a"):
            assert typical_configs(body, target(arch), {})
