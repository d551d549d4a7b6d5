"""Constants as CUDA spells them."""

import pytest

from emmy.codegen.cuda import literal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5f"),
        (1e-05, "1e-05f"),
        (1e300, "EMMY_INF"),
        (-3.5e38, "-EMMY_INF"),
        (float("inf"), "EMMY_INF"),
        (float("nan"), "EMMY_NAN"),
    ],
)
def test_floats_beyond_f32_are_infinite(value: float, text: str) -> None:
    assert literal(value, "f32") == text
