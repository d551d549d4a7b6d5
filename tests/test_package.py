"""What is shipped: the wheel holds the rules and the golden measurements, and finds them without a checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from emmy import resources
from emmy.errors import EmmyError

ROOT = Path(__file__).parents[1]


def test_a_checkout_finds_its_own_rules_and_golden_files():
    assert resources.rulesets() == ROOT / "rulesets"
    assert resources.golden() == ROOT / "golden"


def test_a_missing_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "emmy" / "resources.py"))
    with pytest.raises(EmmyError, match="rulesets folder is missing"):
        resources.rulesets()


def test_the_wheel_carries_rules_golden_files_configurations_and_types(tmp_path: Path):
    pytest.importorskip("hatchling", reason="hatchling is in the dev extra")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("emmy_egraph-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    rules = {f"emmy/_rulesets/{p.relative_to(ROOT / 'rulesets')}" for p in (ROOT / "rulesets").rglob("*.egg")}
    assert rules and rules <= names
    assert {"emmy/_golden/README.md", "emmy/py.typed"} <= names
    data = {str(p.relative_to(ROOT)) for kind in ("*.json", "*.csv") for p in (ROOT / "emmy").rglob(kind)}
    assert "emmy/frontend/translate/op_names.csv" in data and data <= names
    assert not [n for n in names if n.startswith(("tests/", "docs/", "experiments/"))]

    find = "from emmy.resources import rulesets, golden; print(rulesets().name, golden().name)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-P", "-c", find], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout == "_rulesets _golden\n", done.stderr
