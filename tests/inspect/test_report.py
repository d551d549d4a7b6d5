"""The report: every rule that fired, was refused or was held, and what decided each launch."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import emmy
from emmy.inspect.summary import short_row, summary, summary_lines
from emmy.inspect.views import report_digest, report_lines
from emmy.ir.schedule import Pin, Row
from emmy.saturation import Saturation


def norm_linear(**options: object) -> Saturation:
    module = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 32, bias=False))
    return emmy.saturate(module, (torch.randn(4, 64),), target="sm_89", check=False, **options)


@pytest.fixture(scope="module")
def saturation() -> Saturation:
    return norm_linear()


def lines_of(s: Saturation, start: str) -> list[str]:
    return [line for line in report_lines(s) if line.startswith(start)]


def test_rules_of_both_graphs_that_fired_are_counted(saturation: Saturation) -> None:
    assert re.search(r"fired [1-9]", lines_of(saturation, "model/decompose-rms-norm [exact]")[0])
    assert re.search(r"fired [1-9]", lines_of(saturation, "model/fuse [rounds-later]")[0])
    assert re.search(r"fired [1-9]", lines_of(saturation, "loop/scale-leaves-sum [reassociates]")[0])
    assert re.search(r"fired [1-9]", lines_of(saturation, "schedule/plain")[0])


def test_a_rule_that_did_not_fire_is_not_listed(saturation: Saturation) -> None:
    assert lines_of(saturation, "model/decompose-softmax") == []


def test_a_held_rule_is_listed_as_held_and_never_as_fired() -> None:
    held = norm_linear(held=["fuse", "scale-leaves-sum"])
    assert lines_of(held, "model/fuse [") == ["model/fuse [rounds-later]: held"]
    assert lines_of(held, "loop/scale-leaves-sum") == ["loop/scale-leaves-sum [reassociates]: held"]


def test_families_say_what_they_schedule_and_why_not(saturation: Saturation) -> None:
    assert any(
        re.fullmatch(r"family plain: \d+ rows of \d+ bodies", line) for line in lines_of(saturation, "family plain")
    )
    assert any("refused" in line and "no online sum" in line for line in lines_of(saturation, "family attention"))


def test_every_launch_says_what_decided_it(saturation: Saturation) -> None:
    found = lines_of(saturation, "launch ")
    assert [line.split()[1].rstrip(":") for line in found] == [c.name for c in saturation.launches]
    assert all(re.search(r": (at build|[\d.]+ us predicted), \d+ rows; runner-up WORK=", line) for line in found)


def test_an_opaque_call_names_its_operation_and_line() -> None:
    s = emmy.saturate(torch.linalg.inv, (torch.randn(4, 4),), target="sm_89", check=False)
    (line,) = lines_of(s, "opaque ")
    assert "aten.linalg_inv" in line and "no rule" in line


def test_the_digest_is_of_the_lines() -> None:
    assert report_digest(["a", "b"]) == report_digest(["a", "b"]) != report_digest(["a", "c"])


def test_a_short_row_pins_the_same_row() -> None:
    row = Row.parse("WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x4/k4,REDUCE=,STAGE=d3/smem-async,RASTER=")
    assert short_row(row.text) == "WORK=w2x2,TILE=mma_m16n8k16_bf16_f32/f2x4/k4,STAGE=d3/smem-async"
    assert Pin.parse(short_row(row.text)).matches(row)


def test_the_summary_fits_80_columns_whatever_the_names() -> None:
    class Long(nn.Module):
        def forward(self, a_name_that_is_long_enough_to_be_cut: torch.Tensor) -> torch.Tensor:
            y = torch.softmax(torch.nn.functional.layer_norm(a_name_that_is_long_enough_to_be_cut, (64,)), -1)
            return torch.linalg.inv(torch.nn.functional.log_softmax(torch.cumsum(y, -1), -1))

    s = emmy.saturate(Long(), (torch.randn(64, 64),), target="sm_89", check=False)
    assert max(map(len, summary_lines(summary(s)))) <= 80
