"""Row scalars that are made before the products cost time; those that passing tiles give do not."""

from __future__ import annotations

from statistics import median

import pytest

from emmy.egraph.schedule import schedule_rows
from emmy.extract.before import Statistic
from emmy.extract.prior import predict_many
from emmy.extract.work import analyse
from emmy.ir.target import target
from emmy.resources import rulesets
from tests import bodies as B

H200 = target("sm_90a")


def test_a_norm_in_the_epilogue_is_read_off_passing_tiles_and_one_on_load_is_not() -> None:
    assert analyse(B.rms_linear(512, 1024, 4096)).before == (Statistic(True, 4096, True),)
    assert analyse(B.rms_linear(512, 1024, 4096, factored=False)).before == (Statistic(True, 4096, False),)
    assert analyse(B.linear(512, 1024, 4096)).before == ()
    assert analyse(B.matvec(64, 128)).before == ()


@pytest.mark.parametrize(("family", "parts"), [("wgmma", ("g8",)), ("mma", ("g",))])
def test_blocks_that_see_a_part_of_their_rows_read_these_whole_before(family: str, parts: tuple[str, ...]) -> None:
    more = dearer(family)
    assert dearer_by(more, *parts) > 2 * dearer_by(more, ",")


def test_blocks_of_a_cluster_tell_one_another_what_their_shares_of_rows_add_up_to() -> None:
    more = dearer("wgmma")
    assert dearer_by(more, "g2", "g4") < 1.2 * dearer_by(more, ",")


def dearer(family: str) -> dict[str, float]:
    """Predicted time of a normalization and a product over that of the product alone, by row."""
    normed, bare = rows(B.rms_linear(512, 1024, 4096), family), rows(B.linear(512, 1024, 4096), family)
    return {r: t / bare[r] for r, t in normed.items() if r in bare and "WORK=w1x" not in r}


def dearer_by(more: dict[str, float], *ways: str) -> float:
    return median(t for r, t in more.items() if any(f"REDUCE={way}" in r for way in ways))


def rows(body: B.Body, family: str) -> dict[str, float]:
    """Predicted seconds by row; rows whose left factors are computed are told as those of stored ones."""
    found = schedule_rows([body], H200, {}, rulesets()).rows[body.hash]
    legal = [r for r in found if r.family == family]
    seconds = predict_many(analyse(body), [r.config for r in legal], H200)
    return {r.row.text.replace("/reg", ""): float(t) for r, t in zip(legal, seconds, strict=True)}
