"""The command line as a user meets it: arguments and environment in, exit code and both streams out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Emmy = Callable[..., Ran]


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels of the whole run: commands that print the same kernel compile it once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def emmy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, kernel_cache: Path
) -> Emmy:
    """`emmy(*words, **environment)` runs a command in this process and an empty folder, without the user's store"""
    for name in [n for n in os.environ if n.startswith("EMMY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("EMMY_CACHE_DIR", str(kernel_cache))
    monkeypatch.setenv("EMMY_TUNE_DB", str(tmp_path / "none.duckdb"))
    monkeypatch.setenv("EMMY_GOLDEN_FILE", "")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **environment: str) -> Ran:
        from emmy.cli.main import main

        capsys.readouterr()
        with monkeypatch.context() as m:
            m.setattr(sys, "argv", ["emmy", *arguments])
            for name, value in environment.items():
                m.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        streams = capsys.readouterr()
        return Ran(int(ended.value.code or 0), streams.out, streams.err)

    return run
