"""Plans that are timed as a whole: by what they are found again."""

from emmy.whole import key_of_pieces


def test_families_that_spell_a_row_alike_make_different_plans() -> None:
    row = "WORK=t128,TILE=f4,REDUCE=,STAGE=,RASTER="
    keys = {key_of_pieces(p) for p in ((f"b1 map {row}",), (f"b1 turn {row}",), (f"b2 map {row}",), ())}
    assert len(keys) == 4
    assert key_of_pieces((f"b1 map {row}", f"b2 turn {row}")) != key_of_pieces((f"b2 turn {row}", f"b1 map {row}"))
    assert key_of_pieces([f"b1 map {row}"]) == key_of_pieces((f"b1 map {row}",))
