from pathlib import Path

import pytest

from emmy.ir.target import TARGETS
from emmy.runtime.doctor import _gpu, _loads, _store, diagnose
from emmy.settings import Settings


@pytest.mark.nvrtc
def test_every_check_is_made_and_what_compiling_needs_is_there(tmp_path: Path) -> None:
    checks = {c.name: c for c in diagnose(Settings(tmp_path / "cache", tmp_path / "data" / "evidence.duckdb"))}
    assert [c for c in checks.values() if c.needed and not c.ok] == []
    assert {f"compile for {arch}" for arch in TARGETS} <= checks.keys()
    assert {"python", "torch", "egglog", "HiGHS", "driver", "NVRTC", "CUDA build of torch"} <= checks.keys()
    assert (tmp_path / "cache").is_dir()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.nvrtc
def test_a_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    checks = {c.name: c for c in diagnose(Settings(blocker / "cache", blocker / "evidence.duckdb"))}
    assert not checks["kernel cache"].ok and "EMMY_CACHE_DIR" in checks["kernel cache"].hint
    assert not checks["evidence store"].ok and "EMMY_TUNE_DB" in checks["evidence store"].hint


def test_a_file_that_is_no_store_is_found(tmp_path: Path) -> None:
    path = tmp_path / "evidence.duckdb"
    assert _store(path).ok
    path.write_bytes(b"nothing of the kind" * 300)
    found = _store(path)
    assert not found.ok and str(path) in found.detail and found.hint


def test_cards_map_to_targets() -> None:
    assert _gpu("NVIDIA H200", (9, 0)).detail == "NVIDIA H200, target sm_90a"
    assert _gpu("NVIDIA H100 PCIe", (9, 0)).detail == "NVIDIA H100 PCIe, target sm_90a, whose costs are those of a H200"
    old = _gpu("Tesla V100", (7, 0))
    assert not old.ok and "sm_70, is no target" in old.detail


def test_an_older_major_driver_is_found() -> None:
    assert _loads("13.0", "13.5").ok
    assert _loads("14.1", "13.5").ok
    assert not _loads("12.8", "13.0").ok
