"""The account of a plan: rows in their places, what could run instead and at what cost, what was refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import emmy
from emmy.errors import UsageError
from emmy.extract.records import Failure, Measurement
from emmy.extract.store import Store
from emmy.inspect.explain import explain
from emmy.inspect.explain_text import text_of
from emmy.inspect.views import report_lines
from emmy.saturation import Saturation


def norm_linear(**options: object) -> Saturation:
    module = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 32, bias=False))
    return emmy.saturate(module, (torch.randn(4, 64),), target="sm_89", check=False, golden="", **options)


@pytest.fixture(scope="module")
def saturation(tmp_path_factory: pytest.TempPathFactory) -> Saturation:
    return norm_linear(database=tmp_path_factory.mktemp("store") / "none.duckdb")


def test_every_kernel_of_the_plan_is_told_once(saturation: Saturation) -> None:
    found = explain(saturation)
    assert [e.name for e in found] == list(dict.fromkeys(c.name for c in saturation.launches))
    assert [e.name for e in explain(saturation, found[-1].name)] == [found[-1].name]
    with pytest.raises(UsageError, match="k_nothing"):
        explain(saturation, "k_nothing")


def test_rows_stand_in_the_order_of_evidence_and_the_chosen_one_is_among_them(saturation: Saturation) -> None:
    for e in explain(saturation):
        assert (e.family, e.row) in [(r.family, r.row) for r in e.rows]
        assert [r.us for r in e.rows] == sorted(r.us for r in e.rows)
        assert e.rows[0].us == e.us and e.legal >= len(e.rows) and e.measured == 0


def test_a_fused_launch_is_compared_with_the_plan_that_cuts_it(saturation: Saturation) -> None:
    total = saturation.predicted_seconds * 1e6
    e = next(e for e in explain(saturation) if e.rule.startswith("fuse"))
    cut = next(a for a in e.instead if a.kind == "cut")
    assert len(cut.added) >= 2 and e.name in cut.removed and cut.us > 0
    costs = {x.name: 0.0 if x.tier == "at build" else x.us for x in explain(saturation)}
    assert cut.us == pytest.approx(sum(p.us for p in cut.added) - sum(costs[n] for n in cut.removed))
    # a plan in which nothing at all is fused is no better
    apart = norm_linear(place="cut", database=saturation.options.database)
    assert total < total + cut.us <= apart.predicted_seconds * 1e6 + 1e-6


def test_an_unfused_launch_is_compared_with_the_launch_that_takes_it_in(saturation: Saturation) -> None:
    apart = norm_linear(place="cut", database=saturation.options.database)
    fused = [a for e in explain(apart) for a in e.instead if a.kind == "fused"]
    assert fused and min(a.us for a in fused) < 0  # what was forbidden would be better


def test_asking_changes_nothing(saturation: Saturation) -> None:
    before = report_lines(saturation)
    assert explain(saturation) == explain(saturation)
    assert report_lines(saturation) == before


def test_measured_rows_go_first_and_say_so(tmp_path: Path, saturation: Saturation) -> None:
    e = explain(saturation)[-1]
    slow = e.rows[3]
    store = Store(tmp_path / "e.duckdb")
    seen = Measurement(e.body, (), slow.family, slow.row, saturation.regime, 20, 2e-6, 1.9e-6, 2.1e-6)
    store.record_measurements([seen])
    (told,) = [x for x in explain(norm_linear(database=store.path)) if x.body == e.body]
    assert (told.tier, told.row, told.us, told.measured) == ("measured", slow.row, 2.0, 1)
    assert told.why == "measured goes before predicted" and told.rows[0].n == 20
    store.record_measurements([replace(seen, row=e.rows[1].row, family=e.rows[1].family, median=1.95e-6)])
    (told,) = [x for x in explain(norm_linear(database=store.path)) if x.body == e.body]
    assert told.why.startswith("least measured time, by 0.05 us (2.6%)")


def test_rows_that_cannot_run_are_told_with_the_reason(tmp_path: Path, saturation: Saturation) -> None:
    e = explain(saturation)[-1]
    store = Store(tmp_path / "e.duckdb")
    store.record_failures([Failure(e.body, e.rows[0].row, "check", "wrong values\nmore", "sm_89")])
    (told,) = [x for x in explain(norm_linear(database=store.path)) if x.body == e.body]
    assert told.row == e.rows[1].row and told.rows[0].refused == "check: wrong values"
    assert ("row", e.rows[0].row, "check: wrong values") in [(r.what, r.of, r.why) for r in told.refused]
    assert "1 better ones cannot run" in told.why


def test_families_and_fusions_that_were_refused_are_told(saturation: Saturation) -> None:
    refused = [r for e in explain(saturation) for r in e.refused]
    assert ("family", "attention", "no online sum") in [(r.what, r.of, r.why) for r in refused]

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            return torch.softmax(self.second(y), -1) + y

    shared = emmy.saturate(Shared(), (torch.randn(512, 512),), target="sm_89", check=False, golden="")
    fusions = [r for e in explain(shared) for r in e.refused if r.what == "fuse"]
    assert any("a contraction would be computed more than once" in r.why for r in fusions), fusions


def test_the_text_fits_80_columns_and_marks_the_chosen_row(saturation: Saturation) -> None:
    text = text_of(saturation, explain(saturation))
    assert max(map(len, text.splitlines())) <= 80
    assert sum(line.startswith("  >") for line in text.splitlines()) == len({c.name for c in saturation.launches})
    assert "instead of this launch:" in text and "cut, without" in text
