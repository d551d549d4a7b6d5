"""The schedule codec: printing and parsing are inverse, pins match what they name, bad text says what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.errors import PinError
from emmy.ir.schedule import KNOBS, Pin, Raster, Reduce, Row, Stage, Tile, Work

small = st.integers(1, 64)
dims = st.one_of(st.tuples(small), st.tuples(small, small))
works = st.builds(Work, st.sampled_from("tw"), dims, st.integers(0, 4), st.booleans())
INSTRUCTIONS = ("", "mma_m16n8k16_bf16_f32", "mma_m16n8k16_f16_f32", "wgmma_m64n256k16_bf16_f32")
tiles = st.builds(Tile, st.sampled_from(INSTRUCTIONS), st.one_of(st.just(()), dims), st.integers(0, 64))
reduces = st.one_of(
    st.builds(Reduce, st.booleans(), st.integers(1, 8), st.just(0), st.just("")),
    st.builds(Reduce, st.booleans(), st.integers(1, 8), small, st.sampled_from(["", "a", "k"])),
    st.just(Reduce(stream=True)),
)
stages = st.one_of(
    st.builds(Stage, st.just(0), st.just(""), st.just(0), st.booleans(), st.booleans()),
    st.builds(Stage, small, st.sampled_from(["smem", "smem-async", "smem-tma"]), st.integers(0, 4), st.booleans(),
              st.booleans(), st.booleans()),
)  # fmt: skip
rasters = st.builds(Raster, st.integers(0, 16), st.booleans())
steps = st.lists(st.tuples(st.just("TILE"), st.sampled_from(["scores", "values"]), tiles), max_size=3).map(tuple)
row_values = st.builds(Row, works, tiles, reduces, stages, rasters, steps)


@given(row_values)
def test_rows_parse_to_what_was_printed(row: Row) -> None:
    assert Row.parse(row.text) == row
    assert Row.parse(row.text).text == row.text


@given(row_values, st.sets(st.sampled_from(KNOBS)))
def test_a_pin_made_of_a_rows_own_values_matches_it(row: Row, knobs: set[str]) -> None:
    parts = [p for p in row.text.split(",") if p.split("=")[0].split("@")[0] in knobs]
    pin = Pin.parse(",".join(parts))
    assert pin.matches(row)
    assert Pin.parse(pin.text) == pin


@given(row_values, row_values)
def test_whole_rows_match_only_themselves(a: Row, b: Row) -> None:
    assert Pin.parse(a.text).matches(b) == (a == b)


def test_a_step_equal_to_the_plain_value_is_not_spelled() -> None:
    row = Row(Work("w", (4, 1)), Tile("", (1,)), steps=(("TILE", "scores", Tile("", (1,))), ("TILE", "values", Tile())))
    assert row.text == "WORK=w4x1,TILE=f1,TILE@values=,REDUCE=,STAGE=,RASTER="


def test_a_plain_pin_binds_every_step_that_is_not_named() -> None:
    row = Row.parse("WORK=t32,TILE=f1,TILE@values=f2,REDUCE=,STAGE=,RASTER=")
    assert not Pin.parse("TILE=f1").matches(row)
    assert Pin.parse("TILE=f1,TILE@values=f2").matches(row)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("WORK=t0", "WORK takes t256"),
        ("WORK=q4", "WORK takes t256"),
        ("TILE=f2/f3", "TILE takes f8"),
        ("REDUCE=r2/coop", "REDUCE takes coop"),
        ("STAGE=d2", "STAGE takes d3/smem-async"),
        ("STAGE=regout", "STAGE takes d3/smem-async"),
        ("RASTER=gm", "RASTER takes gm8"),
        ("SPEED=11", "use one of WORK, TILE, REDUCE, STAGE, RASTER"),
        ("WORK", "the knobs are WORK"),
        ("WORK=t32,WORK=t64", "keep one of the two"),
        ("TILE@Scores=f1", "for example TILE@scores"),
    ],
)
def test_bad_text_says_which_knob_and_what_it_takes(text: str, says: str) -> None:
    with pytest.raises(PinError, match=says.replace("(", r"\(")):
        Pin.parse(text)


def test_part_of_a_row_is_no_row() -> None:
    with pytest.raises(PinError, match="RASTER missing"):
        Row.parse("WORK=t256,TILE=,REDUCE=,STAGE=")
