"""What the runner does on a GPU, on a driver that is Python: checks, samples and failures of candidates."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings")
from cuda.bindings import driver as bindings

from emmy.tune.runner.batch import Batch
from emmy.tune.runner.buffers import Buffers
from emmy.tune.runner.card import Card
from emmy.tune.runner.driver import CudaError
from emmy.tune.runner.launches import tensor_map
from emmy.tune.runner.manifest import DTYPES
from emmy.tune.runner.operands import fill
from tests.tune.fake_cuda import CALLERS, FakeCuda, view
from tests.tune.groups import N, task


def has_driver() -> bool:
    try:
        bindings.cuDriverGetVersion()
    except RuntimeError:
        return False
    return True


pytestmark = [pytest.mark.nvrtc, pytest.mark.skipif(has_driver(), reason="would launch")]


def good(a: list[int]) -> None:
    view(a[1], N)[:] = 2 * view(a[0], N)


def wrong(a: list[int]) -> None:
    good(a)
    view(a[1], N)[7] += 1.0


def lazy(a: list[int]) -> None:
    view(a[1], N - 1)[:] = 2 * view(a[0], N - 1)


def outside(a: list[int]) -> None:
    good(a)
    view(a[1], N + 1)[N] = 0.0


def changes(a: list[int]) -> None:
    good(a)
    view(a[0], N)[3] += 1.0


KERNELS: dict[str, Any] = {
    "good": (good, 8e-6), "slow": (good, 16e-6), "crawls": (good, 5e-3), "wrong": (wrong, 1e-6), "lazy": (lazy, 1e-6),
    "outside": (outside, 1e-6), "changes": (changes, 1e-6), "magic": (good, 1e-8),
}  # fmt: skip


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda(KERNELS)
    for module in CALLERS:
        monkeypatch.setattr(module, "cuda", made)
    return made


def run(names: list[str], **more: Any) -> dict[str, Any]:
    t = task(names, **more)
    card, said = Card(0), []
    held = Buffers(card, t["group"])
    Batch(card, t, held, said.append).run(t["wanted"], t["warm"])
    held.close()
    return {line["id"]: line for line in said if "id" in line}


def test_right_candidates_are_timed_and_the_faster_one_is_faster(fake: FakeCuda) -> None:
    found = run(["good", "slow"])
    assert [found[n]["ok"] for n in ("good", "slow")] == [True, True]
    assert found["good"]["median"] == pytest.approx(8e-6) and found["slow"]["median"] == pytest.approx(16e-6)
    assert found["good"]["warm"]["median"] == pytest.approx(8e-6)


def test_samples_go_to_those_near_the_best(fake: FakeCuda) -> None:
    found = run(["good", "slow", "crawls"])
    assert found["good"]["n"] == 30 and found["slow"]["n"] == 3 and found["crawls"]["n"] == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wrong", "error"),
        ("lazy", "NaN or infinity"),
        ("outside", "behind the result"),
        ("changes", "operand were changed"),
    ],
)
def test_a_candidate_with_wrong_results_is_not_timed(fake: FakeCuda, name: str, reason: str) -> None:
    found = run([name, "slow"])
    assert found[name]["kind"] == "wrong result" and reason in found[name]["reason"]
    assert found["slow"]["ok"]


def test_a_time_that_no_card_can_reach_is_rejected(fake: FakeCuda) -> None:
    assert run(["magic"])["magic"]["kind"] == "implausible"


def test_expected_values_take_the_place_of_a_check_candidate(fake: FakeCuda) -> None:
    t = task(["good", "wrong"], check="")
    values = fill(t["group"]["buffers"][0], 1).view(np.float32).astype(np.float64) * 2
    t["group"]["expected"] = {"out0": base64.b64encode(values.tobytes()).decode()}
    card, said = Card(0), []
    Batch(card, t, Buffers(card, t["group"]), said.append).run(t["wanted"], False)
    assert {line["id"]: line["ok"] for line in said if "id" in line} == {"good": True, "wrong": False}


def test_the_cache_is_cold_in_every_sample(fake: FakeCuda) -> None:
    t = task(["good"])
    card = Card(0)
    held = Buffers(card, t["group"])
    # copies of all buffers exceed twice the cache, or other bytes are read before each sample
    nodes = []
    runs = Batch(card, t, held, lambda line: nodes.append(line.get("copies", 0)))
    runs.run(t["wanted"], False)
    assert held.copies * held.footprint >= 2 * fake.l2 or fake.flushes >= 30
    assert max(nodes) > 1


def test_copies_are_bounded_by_memory(fake: FakeCuda) -> None:
    fake.free = 1 << 20
    t = task(["good"])
    held = Buffers(Card(0), t["group"])
    assert 1 <= held.copies * held.footprint <= fake.free


def test_memory_is_given_back(fake: FakeCuda) -> None:
    card = Card(0)
    before = len(fake.held)
    held = Buffers(card, task(["good"])["group"])
    held.close()
    assert len(fake.held) == before


def test_a_lost_context_is_told_and_ends_the_batch(fake: FakeCuda) -> None:
    def illegal(_: list[int]) -> None:
        fake.broken = (700, "CUDA_ERROR_ILLEGAL_ADDRESS")

    fake.kernels["illegal"] = (illegal, 0.0)
    t = task(["good", "illegal", "slow"])
    card, said = Card(0), []
    with pytest.raises(CudaError):
        Batch(card, t, Buffers(card, t["group"]), said.append).run(t["wanted"], False)
    assert said[-1]["id"] == "illegal" and said[-1]["kind"] == "illegal address"


def test_clusters_are_launched_as_such(fake: FakeCuda) -> None:
    t = task(["good"])
    t["group"]["candidates"][0]["launches"][0]["cluster"] = [2, 1, 1]
    card, said = Card(0), []
    Batch(card, t, Buffers(card, t["group"]), said.append).run(t["wanted"], False)
    assert fake.clusters and said[-1]["ok"]


def test_a_launch_finds_memory_of_its_own_that_is_zeros_where_it_leaves_zeros(fake: FakeCuda) -> None:
    seen: set[tuple[int, int]] = set()

    def counts(a: list[int]) -> None:
        good(a)
        seen.add((a[2], a[3]))
        assert not view(a[3], 5, np.int32).any()
        view(a[2], 3)[:] = 1.0

    fake.kernels["good"] = (counts, 8e-6)
    t = task(["good"])
    work = [{"dtype": "f32", "count": 3, "zeroed": False}, {"dtype": "i32", "count": 5, "zeroed": True}]
    t["group"]["candidates"][0]["launches"][0]["work"] = work
    card, said = Card(0), []
    held = Buffers(card, t["group"])
    Batch(card, t, held, said.append).run(t["wanted"], False)
    assert said[-1]["ok"] and len(seen) >= 1
    held.close()
    assert not seen & {(p, q) for p in fake.held for q in fake.held}, "it is given back"


def with_work(t: dict[str, Any], name: str, *counts: int) -> dict[str, Any]:
    """The task, of which candidate `name` asks for so many elements of its own."""
    c = next(c for c in t["group"]["candidates"] if c["id"] == name)
    c["launches"][0]["work"] = [{"dtype": "f32", "count": n, "zeroed": False} for n in counts]
    return t


def test_copies_leave_room_for_what_candidates_ask_for_of_their_own(fake: FakeCuda) -> None:
    fake.free = 1 << 20
    card = Card(0)
    plain = Buffers(card, task(["good", "slow"])["group"])
    asked = Buffers(card, with_work(task(["good", "slow"]), "slow", 1 << 17, 1 << 16)["group"])
    each, own = sum(plain.bytes.values()) + 1024 * len(plain.bytes), 4 * ((1 << 17) + (1 << 16))
    assert plain.copies * each + own > 0.8 * fake.free, "else there is nothing to leave room for"
    assert asked.copies > 1 and asked.copies * each + own <= 0.8 * fake.free


@pytest.mark.parametrize("fails", ["cuMemAlloc", "cuGraphInstantiate"])
def test_a_candidate_that_fails_gives_back_what_it_had(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    t = with_work(task(["good", "slow"]), "slow", 100, 1 << 21)
    card, said = Card(0), []
    held = Buffers(card, t["group"])
    before, real = set(fake.held), getattr(fake, fails)
    unloaded: list[Any] = []
    monkeypatch.setattr(fake, "cuModuleUnload", unloaded.append, raising=False)

    def failing(*args: Any) -> Any:
        of_slow = len(set(fake.held) - before) > 1  # beside the reference its first workspace is there
        if of_slow and (fails != "cuMemAlloc" or args[0] > 1 << 20):
            raise CudaError(2, "CUDA_ERROR_OUT_OF_MEMORY", fails)
        return real(*args)

    monkeypatch.setattr(fake, fails, failing)
    Batch(card, t, held, said.append).run(t["wanted"], False)
    results = {line["id"]: line for line in said if "id" in line}
    assert results["good"]["ok"] and results["slow"]["kind"] == "memory"
    references = {p for p, _ in held.reference.values()}
    assert set(fake.held) - before == references and len(unloaded) == 3, "the check candidate is loaded by itself"


def test_tensor_maps_are_encoded_for_every_copy(fake: FakeCuda) -> None:
    t = task(["good"])
    m = {"arg": 0, "dtype": "f32", "offset": 4, "shape": [10, 100], "strides": [100, 1], "box": [2, 32], "swizzle": 128}
    t["group"]["candidates"][0]["launches"][0]["maps"] = [m]
    card, said = Card(0), []
    held = Buffers(card, t["group"])
    Batch(card, t, held, said.append).run(t["wanted"], False)
    assert said[-1]["ok"] and {c[2] - 16 for c in fake.maps} == {s["in0"] for s in held.sets}
    rank, sizes, strides, box = fake.maps[0][1], fake.maps[0][3], fake.maps[0][4], fake.maps[0][5]
    assert (rank, [int(x) for x in sizes], [int(x) for x in strides], [int(x) for x in box]) == (
        2,
        [100, 10],
        [400],
        [32, 2],
    )


def test_a_map_of_tf32_rounds_what_is_f32_in_memory(fake: FakeCuda) -> None:
    kinds = []
    for dtype in ("f32", "tf32"):
        m = {"arg": 0, "dtype": dtype, "offset": 4, "shape": [10, 100], "strides": [100, 1], "box": [2, 32],
             "swizzle": 128}  # fmt: skip
        tensor_map(m, 4096)
        kinds.append(fake.maps[-1][0])
        assert (fake.maps[-1][2], int(fake.maps[-1][4][0])) == (4096 + 16, 400)
    types = bindings.CUtensorMapDataType
    assert kinds == [types.CU_TENSOR_MAP_DATA_TYPE_FLOAT32, types.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_fills_have_the_size_of_their_type_and_no_nan(dtype: str) -> None:
    import ml_dtypes

    kind = "normal" if DTYPES[dtype][1] < 6 else "integers"
    spec = {"kind": kind, "mean": 0.0, "std": 1.0, "low": 0, "high": 1}
    data = fill({"name": "x", "dtype": dtype, "count": 4099, "fill": spec}, 3)
    assert data.nbytes == 4099 * DTYPES[dtype][0]
    numpy: Any = {
        "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64,
        "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    }.get(dtype)  # fmt: skip
    if numpy is not None:
        values = data.view(numpy).astype(np.float64)
        assert np.isfinite(values).all() and 0.5 < np.abs(values).max() < 300
