"""Nothing depends on an order that means nothing: hash seeds, rules, rows, bodies, candidates, measurements."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from emmy.extract.records import Failure, Measurement
from emmy.extract.store import Store
from emmy.frontend.source import load
from emmy.ir.target import TARGETS
from emmy.saturation import Options, saturate_program

pytest.importorskip("transformers")

SCRIPT = Path(__file__).with_name("shuffled.py")
ROOT = Path(__file__).parents[2]
MLP = (
    "y=nn.Sequential(nn.RMSNorm(256),nn.Linear(256,512,bias=False),nn.SiLU(),nn.Linear(512,256)).to(torch.bfloat16)\n"
    "y(torch.randn(128,256,dtype=torch.bfloat16))"
)
CASES = (f"mlp={MLP}", "layer=@Qwen/Qwen3-0.6B/0/16")


def with_evidence(path: Path) -> Path:
    """A store whose rows of the MLP's bodies tie, fail and contradict each other.  The times are made up."""
    s = saturate_program(load(None, MLP), Options(TARGETS["sm_90a"], check=False, database=path, golden=""))
    store = Store(path)
    for k, (body, rows) in enumerate(sorted(s.selection.rows.items())[::2]):
        few = rows[:: max(1, len(rows) // 8)]
        store.record_measurements(
            Measurement(body, (), r.family, r.row.text, s.regime, n, 4e-6, 3.9e-6, 4.1e-6, when=float(n % 3))
            for r in few[k % 2 :]
            for n in (3, 20, 21)
        )
        store.record_failures(Failure(body, r.row.text, "check", "wrong values", "sm_90a") for r in few[1:2])
    return path


def compiled(folder: Path, store: Path, seed: int, hashes: int) -> dict[str, bytes]:
    """Every file that a process of its own writes."""
    env = {**os.environ, "PYTHONHASHSEED": str(hashes), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, str(SCRIPT), str(seed), str(folder), str(store), *CASES]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"shuffle seed {seed}, hash seed {hashes}\n{done.stderr}"
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_shuffled_rules_rows_and_inputs_give_the_same_plans_and_cuda_byte_for_byte(tmp_path: Path) -> None:
    store = with_evidence(tmp_path / "evidence.duckdb")
    seed = random.SystemRandom().randrange(1, 1 << 30)
    straight = compiled(tmp_path / "straight", store, 0, 1)
    shuffled = compiled(tmp_path / "shuffled", store, seed, 2)
    assert {"mlp/plan.json", "layer/plan.json"} <= straight.keys()
    assert sum(name.endswith(".cu") for name in straight) >= 8
    different = [name for name in straight.keys() | shuffled.keys() if straight.get(name) != shuffled.get(name)]
    assert different == [], f"shuffle seed {seed}"
