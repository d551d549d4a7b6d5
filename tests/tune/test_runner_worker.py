"""The worker's loop over tasks, and the numbers of its helper kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from emmy.tune.runner.device import Device
from emmy.tune.runner.kernels import SOURCE
from emmy.tune.runner.manifest import DTYPES
from tests.tune.groups import task
from tests.tune.test_runner_launches import has_driver

pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(has_driver(), reason="would launch")]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    command = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]
    made = Device(0, tmp_path / "log", check_seconds=20.0, command=command)
    yield made
    made.close()


def kinds(results: list[dict[str, Any]]) -> dict[str, str]:
    return {r["id"]: "ok" if r["ok"] else r["kind"] for r in results}


def test_batches_of_one_group_and_of_others_follow_each_other(device: Device) -> None:
    assert device.start() == {"gpu": "Fake H200", "capability": 90, "l2": 1 << 16}
    assert kinds(device.measure(task(["good", "wrong"], anchor="good"))) == {"good": "ok", "wrong": "wrong result"}
    assert kinds(device.measure(task(["slow"], anchor="good"))) == {"slow": "ok", "good": "ok"}
    other = task(["slow", "lazy"])
    other["group"]["id"] = "h"
    assert kinds(device.measure(other)) == {"slow": "ok", "lazy": "wrong result"}
    assert device.replaced == 0


def test_a_lost_context_costs_one_candidate(device: Device) -> None:
    found = kinds(device.measure(task(["good", "illegal", "slow"])))
    assert found == {"good": "ok", "illegal": "illegal address", "slow": "ok"} and device.replaced == 1


def test_a_group_that_does_not_fit_is_no_fault_of_its_candidates(device: Device) -> None:
    assert kinds(device.measure(task(["greedy"])))["greedy"] == "ok"
    other = task(["slow", "good"])
    other["group"]["id"] = "h"
    found = device.measure(other)
    assert kinds(found) == {"slow": "setup", "good": "setup"} and "memory" in found[0]["reason"]


def test_what_a_kernel_prints_is_no_answer(device: Device) -> None:
    assert kinds(device.measure(task(["prints"]))) == {"prints": "ok"}


SHIM = """
#include <cmath>
#include <cstring>
#define __device__ static
static float __int_as_float(int v) { float f; memcpy(&f, &v, 4); return f; }
static double __longlong_as_double(long long v) { double d; memcpy(&d, &v, 8); return d; }
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_float_type_is_read_as_it_is(tmp_path: Path) -> None:
    text = SOURCE
    source = SHIM + text[: text.index("__device__ void keep")]
    source += 'extern "C" double decoded(const void* p, long long i, int code) { return decode(p, i, code); }'
    (tmp_path / "h.cpp").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "h.so", tmp_path / "h.cpp"], check=True)
    decoded = ctypes.CDLL(str(tmp_path / "h.so")).decoded
    decoded.restype, decoded.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int]
    types: dict[str, Any] = {
        "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn,
        "f8e5m2": ml_dtypes.float8_e5m2,
    }  # fmt: skip
    for name, numpy in types.items():
        size, code, largest = DTYPES[name]
        bits = np.arange(1 << 8 * size, dtype=f"u{size}")
        with np.errstate(all="ignore"):
            expected = bits.view(numpy).astype(np.float64)
        found = np.array([decoded(bits.ctypes.data, k, code) for k in range(len(bits))])
        assert np.array_equal(found, expected, equal_nan=True), name
        assert np.nanmax(expected[np.isfinite(expected)]) == largest
