"""The real runner on a GPU: right values, wrong ones found, hangs killed, illegal addresses survived."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emmy.extract.store import Store
from emmy.frontend.source import load
from emmy.ir.target import target
from emmy.runtime.local import local_arch
from emmy.saturation import Options, saturate_program
from emmy.tune.asked import TuneOptions
from emmy.tune.executors import Local
from emmy.tune.runner.compiler import compile_source
from emmy.tune.runner.device import Device
from emmy.tune.runner.measure import measured_before
from emmy.tune.tune import make_packet, tune

pytestmark = pytest.mark.gpu
N = 1 << 20
ROW = "int i = blockIdx.x * blockDim.x + threadIdx.x; "
HEAD = 'extern "C" __global__ void {name}(const {c}* __restrict__ a, {c}* __restrict__ b) {{ ' + ROW + "{body} }}"
BODIES = {
    "good": "if (i < N) b[i] = a[i] + a[i];",
    "slow": "if (i < N) { float s = 0; for (int k = 0; k < 300; ++k) s = s * 0.5f + a[(i + k) % N]; "
    "b[i] = a[i] + a[i]; if (s == 12345.0f) b[i] = 0; }",
    "wrong": "if (i < N) b[i] = i == 77 ? 3.0f : a[i] + a[i];",
    "lazy": "if (i < N - 1) b[i] = a[i] + a[i];",
    "outside": "if (i < N) b[i] = a[i] + a[i]; if (i == 0) b[N] = 0;",
    "changes": "if (i < N) b[i] = a[i] + a[i]; if (i == 9) ((float*)a)[i] = 7.0f;",
    "hang": "volatile int* stop = (volatile int*)b; while (*stop != 123456789) {} b[i] = 0;",
    "illegal": "((float*)8)[i] = a[0];",
    "trap": '__trap();',
}  # fmt: skip


def source(name: str) -> str:
    return HEAD.format(name=name, c="float", body=BODIES[name].replace("N", str(N)))


def candidate(name: str) -> dict[str, Any]:
    launch = {"kernel": name, "args": ["in0", "out0"], "sizes": [], "grid": [N // 256, 1, 1], "block": 256, "smem": 0}
    return {"id": name, "family": "map", "row": name, "predicted": 1e-5, "launches": [launch]}


def task(*names: str, anchor: str = "good", least: float = 0.0) -> dict[str, Any]:
    arch = local_arch()
    kernels = {}
    for n in dict.fromkeys([*names, "good"]):
        code = compile_source(source(n), n, str(arch))
        assert isinstance(code, bytes), code
        kernels[n] = {"entry": n, "cubin": base64.b64encode(code).decode()}
    group = {
        "id": "g", "body": "b", "sizes": {}, "name": "k", "least_seconds": least, "anchor": anchor, "check": "good",
        "expected": {}, "tolerance": {"out0": 1e-6},
        "buffers": [
            {"name": "in0", "dtype": "f32", "count": N, "role": "in", "fill": {"kind": "normal", "mean": 0, "std": 1}},
            {"name": "out0", "dtype": "f32", "count": N, "role": "out", "fill": {"kind": "zeros"}},
        ],
        "candidates": [candidate(n) for n in kernels],
    }  # fmt: skip
    return {"group": group, "kernels": kernels, "wanted": list(names), "warm": True}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(0, tmp_path / "log", check_seconds=5.0)
    yield made
    made.close()


def by_id(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {r["id"]: r for r in results}


def test_right_kernels_are_timed_cold_and_warm(device: Device) -> None:
    found = by_id(device.measure(task("good", "slow")))
    good, slow = found["good"], found["slow"]
    assert good["ok"] and slow["ok"], (good, slow)
    assert slow["median"] > 2 * good["median"]
    assert good["n"] >= 10 and good["p10"] <= good["median"] <= good["p90"]
    assert 0 < good["warm"]["median"] <= 1.1 * good["median"]
    # 8 MiB through memory: not faster than 20 TB/s, not slower than a hundredth of what cards do
    assert 8 * N / 20e12 < good["median"] < 8 * N / 5e9


@pytest.mark.parametrize(
    ("name", "reason"),
    [("wrong", "error"), ("lazy", "NaN"), ("outside", "behind the result"), ("changes", "operand")],
)
def test_wrong_kernels_are_found_and_the_others_go_on(device: Device, name: str, reason: str) -> None:
    found = by_id(device.measure(task(name, "slow")))
    assert found[name]["kind"] == "wrong result" and reason in found[name]["reason"]
    assert found["slow"]["ok"] and device.replaced == 0


@pytest.mark.parametrize(
    ("name", "kind"), [("hang", "timeout"), ("illegal", "illegal address"), ("trap", "launch failure")]
)
def test_kernels_that_take_the_context_with_them_cost_themselves_only(device: Device, name: str, kind: str) -> None:
    found = by_id(device.measure(task("good", name, "slow")))
    assert found[name]["kind"] in (kind, "illegal instruction"), found[name]
    assert found["good"]["ok"] and found["slow"]["ok"] and device.replaced >= 1


def test_an_implausible_time_is_rejected(device: Device) -> None:
    assert by_id(device.measure(task("good", least=1.0)))["good"]["kind"] == "implausible"


def test_two_measurements_of_one_kernel_agree(device: Device) -> None:
    one, other = (by_id(device.measure(task("good")))["good"]["median"] for _ in range(2))
    assert abs(math.log(one / other)) < 0.15


CODES = {
    "norm": "torch.nn.RMSNorm(2304)(torch.randn(1,512,2304))",
    "norm-bf16": "torch.nn.RMSNorm(1024,dtype=torch.bfloat16)(torch.randn(64,1024,dtype=torch.bfloat16))",
    "linear-bf16": "torch.nn.Linear(512,256,bias=True,dtype=torch.bfloat16)(torch.randn(128,512,dtype=torch.bfloat16))",
    "linear-f16": "torch.randn(128,256,dtype=torch.float16) @ torch.randn(256,128,dtype=torch.float16)",
    "attention": "q=torch.randn(1,4,128,64,dtype=torch.bfloat16)\n"
    "torch.nn.functional.scaled_dot_product_attention(q,q,q,is_causal=True)",
    "gather": "torch.nn.Embedding(1000,64)(torch.randint(0,1000,(4,32)))",
    "cumsum": "torch.cumsum(torch.randn(64,1000),-1)",
    "integers": "torch.randint(0,100,(64,64)) * 3 + 1",
}


@pytest.mark.parametrize("name", CODES)
def test_a_search_of_a_real_program_ends_with_measured_rows(name: str, tmp_path: Path) -> None:
    database = tmp_path / "e.duckdb"
    options = Options(target(str(local_arch())), golden="", database=database)
    s = saturate_program(load(None, CODES[name]), options)
    executor, notes = Local([0]), list[str]()
    try:
        found = tune(s, executor, Store(database), TuneOptions(budget=120.0, rows=16), notes.append)
        assert found.outcome.failures["wrong result"] == 0, notes
        assert all(c.priced.decision.tier == "measured" for c in found.saturation.launches if not c.at_build), notes
        assert found.plans.tuned is not None and found.plans.untuned is not None, found.plans.reason
        again = saturate_program(load(None, CODES[name]), options)
        more = tune(again, executor, Store(database), TuneOptions(budget=120.0, rows=16), notes.append)
        assert more.outcome.measured == 0
    finally:
        executor.close()


def test_a_packet_needs_neither_emmy_nor_torch(tmp_path: Path) -> None:
    options = Options(target(str(local_arch())), golden="", database=tmp_path / "none.duckdb")
    s = saturate_program(load(None, CODES["norm"]), options)
    make_packet(s, tmp_path / "p", TuneOptions(rows=10), print)
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['emmy'] = None; sys.argv = sys.argv[1:]; "
        "sys.path.insert(0, sys.argv[0].rpartition('/')[0]); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "p/runner.py")]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "p/results.jsonl"
    lines = [json.loads(l) for l in out.read_text().splitlines()]
    bad = [l for l in lines if l.get("ok") is False]
    assert not bad and len(measured_before(out)) >= 11
    assert np.isfinite([l["median"] for l in lines if l.get("ok")]).all()
