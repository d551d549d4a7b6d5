"""Packets: what is written is what is read, and what is not one of ours is refused with the place that is wrong."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emmy.egraph.schedule import FAMILIES, schedule_rows
from emmy.errors import PacketError
from emmy.extract.records import Regime
from emmy.extract.store import Store
from emmy.extract.work import analyse
from emmy.frontend.source import load
from emmy.ir.target import allowing, target
from emmy.resources import rulesets
from emmy.saturation import Options, saturate_program
from emmy.tune.asked import TuneOptions
from emmy.tune.groups import SIMPLE, add_check, make_group
from emmy.tune.packet import read_packet, read_results, record_results, write_packet
from emmy.tune.tune import make_packet
from emmy.whole import key_of_pieces
from tests import bodies

pytestmark = pytest.mark.nvrtc


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packet")
    options = Options(target("sm_90a"), golden="", database=folder / "none.duckdb", check=False)
    s = saturate_program(load(None, "torch.nn.RMSNorm(64)(torch.randn(3,64))"), options)
    make_packet(s, folder / "p", TuneOptions(rows=6), print)
    return folder / "p"


def test_a_packet_carries_all_that_its_runner_needs(written: Path) -> None:
    manifest = read_packet(written)
    assert {p.name for p in written.iterdir()} == {"manifest.json", "sources", "data", "runner.py", "emmy_runner"}
    body, plan = manifest["groups"][0], manifest["groups"][-1]
    assert len(body["candidates"]) >= 6 and body["expected"] and body["anchor"]
    assert plan["candidates"][0]["family"] == "plan"
    code = "import sys; sys.modules['torch'] = sys.modules['emmy'] = None; sys.path.insert(0, '.'); import runner"
    subprocess.run([sys.executable, "-I", "-B", "-c", code], check=True, cwd=written)
    worker = [sys.executable, "-B", "-c", "import sys; sys.modules['emmy'] = None; import emmy_runner.worker"]
    subprocess.run(worker, check=True, cwd=written)


def test_a_packet_says_what_memory_of_their_own_launches_need(tmp_path: Path) -> None:
    body, card = bodies.linear(16, 512, 2048), allowing(target("sm_90a"), "atomics")
    group = make_group(body, {}, card, analyse(body, {}), "k_shared")
    rows = schedule_rows([body], card, {}, rulesets()).rows[body.hash]
    add_check(group, rows, [1e-3] * len(rows))
    shared = [next(r for r in rows if r.row.reduce.text == t and r.family == "mma") for t in ("g4", "g4a")]
    ids = [group.add(r, 1e-5) for r in shared]
    write_packet(tmp_path / "p", [group], card)
    (read,) = read_packet(tmp_path / "p")["groups"]
    launches = {c["id"]: c["launches"][0] for c in read["candidates"]}
    assert [[w["zeroed"] for w in launches[i]["work"]] for i in ids] == [[False, True], [True, True]]
    for i, r in zip(ids, shared, strict=True):
        sums, arrivals = launches[i]["work"]
        tiles = r.config.blocks // r.row.reduce.parts
        each = r.config.tile_m * r.config.tile_n * tiles
        assert sums == {
            "dtype": "f32",
            "count": each * (4 if r.row.reduce.finish == "" else 1),
            "zeroed": sums["zeroed"],
        }
        assert arrivals == {"dtype": "i32", "count": tiles * r.config.block_threads // 32, "zeroed": True}
    assert "work" not in launches[read["check"]] or read["check"] in ids


def test_every_family_has_its_place_among_those_to_compare_with() -> None:
    assert sorted(SIMPLE) == sorted(f.name for f in FAMILIES)


def test_a_packet_says_which_maps_round_to_tf32(tmp_path: Path) -> None:
    body, card = bodies.linear(64, 512, 256, "f32"), allowing(target("sm_90a"), "tf32")
    group = make_group(body, {}, card, analyse(body, {}), "k_rounded")
    rows = schedule_rows([body], card, {}, rulesets()).rows[body.hash]
    add_check(group, rows, [1e-3] * len(rows))
    rounded = group.add(next(r for r in rows if r.family == "wgmma"), 1e-5)
    write_packet(tmp_path / "p", [group], card)
    (read,) = read_packet(tmp_path / "p")["groups"]
    launches = {c["id"]: c["launches"][0] for c in read["candidates"]}
    assert [m["dtype"] for m in launches[rounded]["maps"]] == ["tf32", "tf32"]


def test_a_folder_with_content_is_not_written_to(written: Path) -> None:
    options = Options(target("sm_90a"), golden="", database=written / "none.duckdb", check=False)
    s = saturate_program(load(None, "torch.randn(4)+1"), options)
    with pytest.raises(PacketError, match="is not empty"):
        make_packet(s, written, TuneOptions(rows=1), print)


def change(manifest: Any, path: str, value: Any) -> None:
    *way, last = path.split("/")
    for step in way:
        manifest = manifest[int(step) if step.isdigit() else step]
    manifest[int(last) if last.isdigit() else last] = value


HOSTILE = {
    "another format": ("format", "zip", "no packet"),
    "a newer version": ("version", 99, "version 99"),
    "a file outside": ("groups/0/expected/out0", "../../etc/passwd", "data/<16 hex digits>"),
    "a source that is missing": ("sources/x", {"file": "sources/0123456789abcdef.cu", "entry": "k"}, "has no file"),
    "an entry that is no name": ("sources/x", {"file": "sources/0123456789abcdef.cu", "entry": "k;"}, "C identifier"),
    "an unknown buffer": ("groups/0/candidates/0/launches/0/args/0", "nowhere", "a buffer of the group"),
    "an unknown kernel": ("groups/0/candidates/0/launches/0/kernel", "nowhere", "one of"),
    "a grid that is none": ("groups/0/candidates/0/launches/0/grid", [1, -1, 1], "a whole number"),
    "too many threads": ("groups/0/candidates/0/launches/0/block", 4096, "from 1 to 1024"),
    "a type that is none": ("groups/0/buffers/0/dtype", "f7", "one of"),
    "a workspace of no type": ("groups/0/candidates/0/launches/0/work", [{"dtype": "f7"}], "one of"),
    "a workspace that may be zeros": (
        "groups/0/candidates/0/launches/0/work",
        [{"dtype": "f32", "count": 1, "zeroed": "x"}],
        "true or false",
    ),
    "a negative size": ("groups/0/buffers/0/count", -1, "a whole number"),
    "more memory than there is": ("groups/0/buffers/0/count", 1 << 40, "take"),
    "a buffer twice": ("groups/0/buffers/1/name", "in0", "a second buffer"),
    "a tolerance that is no number": ("groups/0/tolerance/out0", "all", "a number"),
    "a tolerance of NaN": ("groups/0/tolerance/out0", float("nan"), "a number"),
    "an anchor that is none": ("groups/0/anchor", "nobody", "a candidate of the group"),
    "groups that are no list": ("groups", {"0": {}}, "a list"),
    "no groups": ("groups", None, "lacks"),
    "an architecture that is an option": ("target/arch", "sm_90a -o x", "like sm_90a"),
    "a fill that is none": ("groups/0/buffers/0/fill", {"kind": "eval"}, "one of"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused(written: Path, tmp_path: Path, name: str) -> None:
    path, value, reason = HOSTILE[name]
    manifest = copy.deepcopy(json.loads((written / "manifest.json").read_text()))
    change(manifest, path, value)
    for part in ("sources", "data"):
        (tmp_path / part).symlink_to(written / part)
    if value is None:
        del manifest[path]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PacketError, match=reason):
        read_packet(tmp_path)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PacketError, match="cannot be read"):
        read_packet(tmp_path)
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(PacketError, match="not JSON"):
        read_packet(tmp_path)


# ---- results ---------------------------------------------------------------------------------------------------------


def results(written: Path, tmp_path: Path, *more: Any, gpu: str = "NVIDIA H200", **wrong: Any) -> Path:
    g = read_packet(written)["groups"][0]
    first, second = (c["id"] for c in g["candidates"][:2])
    facts = {"packet": {}, "gpu": gpu, "capability": 90, "compiler": "nvrtc-13.0", "host": "h", "l2": 1}
    times = {"n": 10, "median": 2e-6, "p10": 1e-6, "p90": 3e-6}
    good = {"group": g["id"], "id": first, "ok": True, **times, "warm": times, "clock_before": 1.9e9, "when": 5.0}
    bad = {"group": g["id"], "id": second, "ok": False, "kind": "timeout", "reason": "no answer"}
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(l) + "\n" for l in (facts, {**good, **wrong}, bad, *more)))
    return path


def test_results_become_measurements_of_the_card_and_its_compiler(written: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "e.duckdb")
    assert record_results(written, results(written, tmp_path), store) == (2, 1)
    cold, warm = sorted(store.measurements(), key=lambda m: m.regime.l2)
    assert [k.body for k in store.kernels()] == [cold.body], (
        "without its Loop IR a body is neither reviewed nor learnt from"
    )
    assert cold.regime == Regime("H200", 90, "nvrtc-13.0") and warm.regime.l2 == "warm"
    assert (cold.median, cold.n, cold.clock_before, cold.when) == (2e-6, 10, 1.9e9, 5.0)
    assert store.snapshot([cold.body], cold.regime).failed(cold.body)[0].stage == "timeout"


def plan_result(written: Path) -> dict[str, Any]:
    g = read_packet(written)["groups"][-1]
    times = {"n": 10, "median": 5e-6, "p10": 4e-6, "p90": 6e-6}
    return {"group": g["id"], "id": g["candidates"][0]["id"], "ok": True, **times, "when": 6.0}


def test_a_whole_plan_of_a_packet_is_found_by_its_program(written: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "e.duckdb")
    assert record_results(written, results(written, tmp_path, plan_result(written)), store) == (3, 1)
    group = read_packet(written)["groups"][-1]
    (routing,) = store.routings(group["program"])
    assert list(routing.pieces) == group["candidates"][0]["pieces"] and routing.total == 5e-6
    regime, key = Regime("H200", 90, "nvrtc-13.0"), key_of_pieces(routing.pieces)
    assert [m.median for m in store.snapshot([], regime, [key]).plans[key]] == [5e-6]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("program", 3, "must name its program"),
        ("pieces", "all", "must name its program and its launches"),
        ("pieces", ["deadbeef row WORK=t32"], "not the plan of its launches"),
    ],
)
def test_a_whole_plan_that_is_not_what_it_says_is_refused(
    written: Path, tmp_path: Path, field: str, value: Any, reason: str
) -> None:
    manifest = json.loads((written / "manifest.json").read_text())
    group = manifest["groups"][-1]
    (group if field == "program" else group["candidates"][0])[field] = value
    other = tmp_path / "other"
    shutil.copytree(written, other)
    (other / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PacketError, match=reason):
        record_results(other, results(written, tmp_path, plan_result(written)), Store(tmp_path / "e.duckdb"))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"median": -1.0}, "positive seconds"),
        ({"median": float("inf")}, "positive seconds"),
        ({"p10": 5e-6}, "positive seconds"),
        ({"n": 0}, "whole number of samples"),
        ({"id": "stranger"}, "no candidate"),
        ({"ok": "yes"}, "no result"),
        ({"warm": {"n": 1}}, "warm"),
    ],
)
def test_results_that_cannot_be_are_refused(written: Path, tmp_path: Path, wrong: Any, reason: str) -> None:
    with pytest.raises(PacketError, match=reason):
        read_results(results(written, tmp_path, **wrong), read_packet(written))


def test_results_without_a_card_are_refused(written: Path, tmp_path: Path) -> None:
    path = results(written, tmp_path)
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    with pytest.raises(PacketError, match="on which card"):
        read_results(path, read_packet(written))
