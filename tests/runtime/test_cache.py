import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emmy.errors import CompileError
from emmy.runtime.cache import CubinCache, CubinKey
from emmy.runtime.nvrtc import OPTIONS, Compiled, Job, nvrtc_version
from emmy.settings import Settings

SOURCE = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1.0f; }'
JOB = Job(SOURCE, "k", "sm_80")
pytestmark = pytest.mark.nvrtc


def key(n: int) -> CubinKey:
    return CubinKey(f"{n:064x}", "k", "sm_80", "13.0", OPTIONS)


def compiled(n: int, size: int = 100) -> Compiled:
    return Compiled(bytes([n % 256]) * size, f"log {n}", n, 0, 0)


def files(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file())


def test_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    first = CubinCache(tmp_path)
    made = first.compile(JOB)
    second = CubinCache(tmp_path)
    assert second.compile(JOB) == made
    assert (first.hits, first.misses, second.hits, second.misses) == (0, 1, 1, 0)


def test_readable_key_stands_beside_the_code(tmp_path: Path) -> None:
    CubinCache(tmp_path).compile(JOB)
    code, facts = files(tmp_path)
    assert code.suffix == ".cubin" and code.read_bytes().startswith(b"\x7fELF")
    stored = json.loads(facts.read_text())["key"]
    assert stored["arch"] == "sm_80"
    assert stored["nvrtc"] == nvrtc_version()
    assert stored["options"] == list(OPTIONS)


def test_everything_in_the_key_tells_entries_apart() -> None:
    base = CubinKey.of(JOB)
    others = [
        CubinKey.of(Job(SOURCE + " ", "k", "sm_80")),
        CubinKey.of(Job(SOURCE, "k", "sm_86")),
        CubinKey(base.source_sha256, "other", base.arch, base.nvrtc, base.options),
        CubinKey(base.source_sha256, base.entry, base.arch, "1.0", base.options),
        CubinKey(base.source_sha256, base.entry, base.arch, base.nvrtc, ()),
    ]
    assert len({k.digest for k in [base, *others]}) == 6
    assert CubinKey.of(Job(SOURCE, "k", "sm_80")).digest == base.digest


def test_refused_source_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        CubinCache(tmp_path).compile(Job("not c++", "k", "sm_80"))
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "not json", "other json", "no code"])
def test_damaged_entry_is_rebuilt(tmp_path: Path, damage: str) -> None:
    made = CubinCache(tmp_path).compile(JOB)
    code, facts = files(tmp_path)
    if damage == "flip":
        code.write_bytes(code.read_bytes()[:-1] + b"?")
    elif damage == "truncate":
        code.write_bytes(code.read_bytes()[:100])
    elif damage == "empty":
        facts.write_bytes(b"")
    elif damage == "not json":
        facts.write_bytes(b"\xff{")
    elif damage == "other json":
        facts.write_text("[1, 2]")
    else:
        code.unlink()
    cache = CubinCache(tmp_path)
    assert cache.compile(JOB) == made
    assert (cache.hits, cache.misses) == (0, 1)
    again = CubinCache(tmp_path)
    assert again.compile(JOB) == made
    assert again.hits == 1


def unwritable(tmp_path: Path) -> Path:
    """A root below a plain file: no user, root included, can make a folder there."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    return blocker / "cache"


def test_folder_that_cannot_be_made_serves_from_memory_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CubinCache(unwritable(tmp_path))
    with caplog.at_level(logging.WARNING):
        made = cache.compile(JOB)
        other = cache.compile(Job(SOURCE, "k", "sm_86"))
        assert cache.compile(JOB) is made
        assert cache.compile(Job(SOURCE, "k", "sm_86")) is other
    assert (cache.hits, cache.misses) == (2, 2)
    assert len(caplog.records) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_serves_from_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o500)
    cache = CubinCache(tmp_path)
    made = cache.compile(JOB)
    assert cache.compile(JOB) is made
    assert len(caplog.records) == 1


def test_full_disk_serves_from_memory_and_leaves_no_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    cache = CubinCache(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        made = cache.compile(JOB)
    assert files(tmp_path) == []
    assert cache.compile(JOB) is made
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def test_writer_killed_between_its_files_leaves_a_usable_cache(tmp_path: Path) -> None:
    # the process dies by SIGKILL at its second os.replace: the code is in place, its JSON is not
    script = f"""
import os, signal
from pathlib import Path
from emmy.runtime.cache import CubinCache, Job
moved, real = [], os.replace
def replace(a, b):
    if moved:
        os.kill(os.getpid(), signal.SIGKILL)
    moved.append(b)
    real(a, b)
os.replace = replace
CubinCache(Path({str(tmp_path)!r})).compile(Job({SOURCE!r}, "k", "sm_80"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [p.suffix for p in files(tmp_path)] == [".cubin", ".tmp"]
    cache = CubinCache(tmp_path)
    made = cache.compile(JOB)
    assert cache.misses == 1
    assert CubinCache(tmp_path).get(CubinKey.of(JOB)) == made
    old = time.time() - 7200
    (leftover,) = tmp_path.rglob("*.tmp")
    os.utime(leftover, (old, old))
    cache.prune()
    assert [p.suffix for p in files(tmp_path)] == [".cubin", ".json"]


def test_code_whose_writer_died_is_removed(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    cache.put(key(1), compiled(1))
    code, facts = files(tmp_path)
    facts.unlink()
    cache.prune()
    assert code.exists()  # its writer may be about to write the JSON
    old = time.time() - 7200
    os.utime(code, (old, old))
    cache.prune()
    assert not code.exists()


def test_two_processes_at_once_agree(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from emmy.runtime.cache import CubinCache, Job
cache = CubinCache(Path({str(tmp_path)!r}))
for n in range(12):
    source = {SOURCE!r} + f"// {{n}}"
    made = cache.compile(Job(source, "k", "sm_80"))
    assert made.cubin[:4] == b"\\x7fELF" and made.registers > 0
"""
    both = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [p.communicate()[1] for p in both]
    assert [p.returncode for p in both] == [0, 0], errors
    assert [p.suffix for p in files(tmp_path)] == [".cubin", ".json"] * 12
    after = CubinCache(tmp_path)
    after.compile_many([Job(f"{SOURCE}// {n}", "k", "sm_80") for n in range(12)], workers=2)
    assert (after.hits, after.misses) == (12, 0)


def test_folder_stays_within_its_bound_and_keeps_what_is_used(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path, max_bytes=20_000)
    for n in range(40):
        cache.put(key(n), compiled(n, 1000))
        facts = cache._paths(key(n))[1]
        os.utime(facts, (time.time() - 1000 + n,) * 2)
        if n == 5:
            assert cache.get(key(0)) == compiled(0, 1000)
    left = cache.prune()
    assert left <= 20_000
    assert sum(p.stat().st_size for p in files(tmp_path)) == left
    assert cache.get(key(0)) is not None  # used again after it was written
    assert cache.get(key(1)) is None
    assert cache.get(key(39)) == compiled(39, 1000)


def test_settings_read_the_environment_once(tmp_path: Path) -> None:
    env = {"EMMY_CACHE_DIR": str(tmp_path), "EMMY_TUNE_DB": str(tmp_path / "db"), "EMMY_POISON": "1"}
    assert Settings.read(env) == Settings(tmp_path, tmp_path / "db", True)
    assert Settings.read({"EMMY_POISON": "0"}).poison is False
    assert "emmy" in str(Settings.read({}).cache_dir)
