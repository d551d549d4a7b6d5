"""Every command that README and docs show is run here, and what they show of its output is what it prints.

A block starts with three backticks and `console`; `console gpu` needs a GPU.  Lines after `$ ` are commands (`\\`
continues one), other lines are output, where `…` stands for anything.  The commands of a page run in order in one
folder.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```console( gpu)?\n(.*?)^```", re.M | re.S)
# these set up or run the suite itself: that they are make targets is all that is checked here
SUITE = {"make test", "make lint", "make demo", "make test-gpu", "make test-simulate"}


@dataclass(frozen=True)
class Command:
    text: str
    shown: tuple[str, ...]


def commands(page: Path, gpu: bool) -> list[Command]:
    found: list[tuple[str, list[str]]] = []
    for kind, block in BLOCK.findall(page.read_text()):
        if bool(kind) != gpu:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return [Command(text, tuple(shown)) for text, shown in found]


def execute(text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command prints; fails where it does not succeed."""
    if text in SUITE:
        done = subprocess.run(["make", "-n", text.split()[1]], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
    words = shlex.split(text)
    with monkeypatch.context() as m:
        while re.fullmatch(r"[A-Z_]+=.*", words[0], re.S):
            name, _, value = words.pop(0).partition("=")
            m.setenv(name, value)
        if words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            return done.stdout + done.stderr
        assert words[0] == "emmy", f"only emmy, python and make are run here: {text}"
        from emmy.cli.main import app

        result = CliRunner().invoke(app, words[1:])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, f"{text}\n{result.output}"
        return result.output


def missing_lines(shown: tuple[str, ...], output: str) -> list[str]:
    """Shown lines that no line of the output matches."""
    printed = [" ".join(line.split()) for line in output.splitlines()]
    patterns = [".*".join(re.escape(" ".join(part.split())) for part in line.split("…")) for line in shown]
    match = [any(re.fullmatch(p.replace(r".*", r"\s*.*\s*"), line) for line in printed) for p in patterns]
    return [line for line, ok in zip(shown, match, strict=True) if not ok]


CASES = [
    pytest.param(page, gpu, id=f"{page.stem}{'-gpu' if gpu else ''}", marks=[pytest.mark.gpu] if gpu else [])
    for page in PAGES
    for gpu in (False, True)
    if commands(page, gpu)
]


@pytest.mark.nvrtc
@pytest.mark.slow
# libraries of others may warn in a user's terminal
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("page", "gpu"), CASES)
def test_commands_of_the_page_do_what_it_shows(
    page: Path, gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("EMMY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for command in commands(page, gpu):
        output = execute(command.text, monkeypatch)
        assert missing_lines(command.shown, output) == [], f"$ {command.text}\n{output}"


def test_a_shown_line_that_is_not_printed_is_found() -> None:
    assert missing_lines(("k_a   1 us", "k_b … us"), "k_a 1 us\nk_b 17.5 us\n") == []
    assert missing_lines(("k_a … us", "k_c"), "k_a 1 us\n") == ["k_c"]
