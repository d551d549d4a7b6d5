"""`emmy fit`, and compiling with what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from emmy.extract.prior_file import load, save
from tests.cli.conftest import Emmy
from tests.fitting import NAMED, store_of


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(store_of(tmp_path_factory.mktemp("fit") / "e.duckdb").path)


def test_a_prior_is_fitted_installed_and_asked(emmy: Emmy, db: str, tmp_path: Path) -> None:
    out = tmp_path / "p.npz"
    done = emmy("fit", "--db", db, "--out", str(out))
    *table, written = done.out.splitlines()
    assert done.code == 0 and max(map(len, table)) <= 80
    assert written == f"written to {out}" and out.exists()
    found = json.loads(emmy("fit", "--db", db, "--out", str(out), "--json", "--dry-run").out)
    assert found["file"] is None and found["refused"] == "" and len(found["bodies"]) == len(NAMED)
    assert found["installed_before"] == found["bodies"]
    of_before = tmp_path / "older.npz"
    with np.load(out) as file:
        np.savez(of_before, **{**file, "version": np.array(1)})
    done = emmy("fit", "--db", db, "--out", str(of_before))
    assert done.code == 0 and "has version 1" in done.err and load(of_before).report == load(out).report
    code = "torch.nn.Linear(256,512,bias=False)(torch.randn(128,256))"
    for asked, name in ((str(out), "learned prior"), ("analytic", "analytic prior")):
        ran = emmy("saturate", "-c", code, "--gpu", "H200", "--json", EMMY_PRIOR=asked)
        assert {k["decided"] for k in json.loads(ran.out)["kernels"]} == {name}
    told = emmy("explain", "-c", code, "--gpu", "H200", EMMY_PRIOR=str(out))
    assert "learned prior" in " ".join(told.out.split())


def test_a_worse_prior_is_not_installed(emmy: Emmy, tmp_path: Path) -> None:
    from dataclasses import replace

    noisy, out = str(store_of(tmp_path / "noisy.duckdb", noise=0.6).path), tmp_path / "p.npz"
    assert emmy("fit", "--db", noisy, "--out", str(out), "--force").code == 0
    good = load(out)
    assert max(h.regret for h in good.report) > 1.1
    save(replace(good, report=tuple(replace(h, regret=1.0) for h in good.report)), out)
    before = out.read_bytes()
    done = emmy("fit", "--db", noisy, "--out", str(out))
    assert done.code == 1 and "not written: " in done.out and out.read_bytes() == before


def test_nothing_measured_and_too_few_bodies_are_said(emmy: Emmy, tmp_path: Path) -> None:
    for words in ((), ("--dry-run",), ("--dry-run", "--gpu", "A100")):
        nothing = emmy("fit", "--db", str(tmp_path / "none.duckdb"), *words, EMMY_GOLDEN_FILE="")
        assert nothing.code == 1 and not nothing.out
        assert "no cold measurement" in nothing.err and "none.duckdb" in nothing.err and "emmy tune" in nothing.err
    few = store_of(tmp_path / "few.duckdb", NAMED[:2])
    done = emmy("fit", "--db", str(few.path), "--out", str(tmp_path / "p.npz"))
    assert done.code == 1 and "of 2 bodies are too few to learn from" in done.err and not (tmp_path / "p.npz").exists()


def test_regret_is_that_of_priors_that_did_not_see_the_body(emmy: Emmy, db: str) -> None:
    asked = ("eval", "regret", "--db", db, "--json", "--jobs", "1")
    both = [emmy(*asked, "--prior", p, EMMY_GOLDEN_FILE="") for p in ("learned", "analytic")]
    learned, plain = (json.loads(done.out)["families"][-1] for done in both)
    assert learned["median"] < plain["median"]
    lines = [l for l in both[0].err.splitlines() if "fold " in l]
    assert lines and f"fold {len(lines)} of {len(lines)}, without" in lines[-1] and "left" not in lines[0]
    assert "fold " not in both[1].err
    assert emmy("eval", "regret", "--db", db, "--prior", "oracle").code == 2
