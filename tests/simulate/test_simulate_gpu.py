"""What `experiments.simulate_gpu` prepares is complete, and its comparison tells bits, rounding and faults apart."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from experiments.simulate_gpu import difference, prepare_one, raw, report, verdict
from tests.simulate import fixtures
from tests.simulate.cases import sampled
from tests.simulate.subjects import hopper


def record(exact: bool = False) -> dict[str, Any]:
    return {"types": ["bf16"], "shapes": [[2, 3]], "exact": exact}


def bytes_of(*values: float) -> np.ndarray[Any, Any]:
    return raw(np.array(values, np.float32).astype(ml_dtypes.bfloat16))


def test_a_launch_is_prepared_with_all_that_a_gpu_needs() -> None:
    case, kernel = hopper()[1]
    made, arrays = prepare_one("by hand", "hopper", case, kernel, "integer", 0)
    assert made["findings"] == [] and made["exact"] and len(made["maps"]) == len(kernel.maps) == 3
    assert {m["argument"] for m in made["maps"]} == {0, 1, 2}
    assert sorted(arrays) == ["x0", "x1", "y0"] and arrays["y0"].size == 136 * 72 * 2


def test_maps_that_round_to_tf32_are_prepared_as_such() -> None:
    s = sampled("wgmma_tf32", 1)[0]
    made, _ = prepare_one("wgmma_tf32", s.case.name, s.case, s.kernel, "normal", 0)
    assert made["findings"] == [] and {m["type"] for m in made["maps"]} == {"tf32"}
    assert all(n % 16 == 0 for m in made["maps"] for n in m["strides"])


def test_results_that_a_launch_adds_to_bring_their_contents() -> None:
    case, kernel = fixtures.atomic_sum()
    _, arrays = prepare_one("by hand", "atomics", case, kernel, "integer", 0)
    assert sorted(arrays) == ["x0", "y0", "z0"] and not arrays["z0"].any()


def test_equal_bits_rounding_and_faults_are_told_apart() -> None:
    simulated = {"0/y0": bytes_of(1, 2, 3, 4, 5, 6)}
    near, far = bytes_of(1, 2, 3, 4, 5, 6.03), bytes_of(1, 2, 3, 4, 5, 9)
    assert verdict(record(), [simulated["0/y0"]], simulated, 0) == ("bitwise", 0.0)
    assert verdict(record(), [near], simulated, 0)[0] == "within rounding"
    assert verdict(record(), [far], simulated, 0)[0] == "different"
    assert verdict(record(exact=True), [near], simulated, 0)[0] == "different"


def test_a_nan_in_another_place_is_a_difference() -> None:
    nan = float("nan")
    assert difference(bytes_of(nan, 1), bytes_of(nan, 1), "bf16", [2]) == 0.0
    assert difference(bytes_of(nan, 1), bytes_of(1, 1), "bf16", [2]) == float("inf")
    assert difference(bytes_of(1, 1), bytes_of(nan, 1), "bf16", [2]) == float("inf")


def test_the_table_counts_each_verdict() -> None:
    rows = [{"name": f"k{n}, integer", "group": "map", "verdict": v, "difference": d}
            for n, (v, d) in enumerate([("bitwise", 0.0), ("within rounding", 0.5), ("different", 99.0)])]  # fmt: skip
    text = "\n".join(report(rows, "H200"))
    assert "3 launches of 3 kernels on H200" in text
    assert "| map | 3 | 1 | 1 | 0.50 | 1 |" in text and "- different (99): k2, integer" in text
