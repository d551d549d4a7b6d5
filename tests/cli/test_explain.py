"""`emmy explain` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emmy.extract.records import Measurement, Regime
from emmy.extract.store import Store
from emmy.ir.target import TARGETS
from emmy.runtime.nvrtc import nvrtc_version
from tests.cli.conftest import Emmy

pytestmark = pytest.mark.nvrtc
WORDS = ("explain", "-c", "nn.RMSNorm(64)(torch.randn(4, 64))", "--target", "sm_89", "--no-check")


def test_text_and_json_tell_the_same_kernels(emmy: Emmy) -> None:
    text, told = emmy(*WORDS), json.loads(emmy(*WORDS, "--json").out)
    assert text.code == 0 and max(map(len, text.out.splitlines())) <= 80
    assert told["target"] == "sm_89" and [k["name"] for k in told["kernels"]] == ["k_rms_norm"]
    kernel = told["kernels"][0]
    assert kernel["rows"][0]["row"] == kernel["row"] and kernel["why"] in " ".join(text.out.split())
    assert {r["what"] for r in kernel["refused"]} >= {"family"}


def test_one_kernel_or_an_error_that_names_them(emmy: Emmy) -> None:
    assert emmy(*WORDS, "--kernel", "k_rms_norm").code == 0
    wrong = emmy(*WORDS, "--kernel", "k_other")
    assert wrong.code == 2 and "k_rms_norm" in wrong.err


def test_strict_evidence_gives_the_account_and_then_names_what_was_not_measured(emmy: Emmy, tmp_path: Path) -> None:
    done = emmy(*WORDS, "--strict-evidence")
    assert done.code == 1 and "k_rms_norm" in done.out
    assert "no measurement on RTX 4090 with nvrtc-" in done.err and "k_rms_norm (predicted, " in done.err
    (kernel,) = json.loads(emmy(*WORDS, "--json").out)["kernels"]
    target = TARGETS["sm_89"]
    regime = Regime(target.gpu, target.capability, f"nvrtc-{nvrtc_version()}")
    store = Store(tmp_path / "e.duckdb")
    store.record_measurements(
        [Measurement(kernel["body"], (), kernel["family"], kernel["row"], regime, 20, 2e-6, 1.9e-6, 2.1e-6)]
    )
    assert emmy(*WORDS, "--strict-evidence", "--db", str(store.path)).code == 0
