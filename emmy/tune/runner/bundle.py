"""The package's own source, as packets and the nodes of a cluster carry it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAME: Final = "emmy_runner"
# what `python PACKET/runner.py` runs
SCRIPT: Final = f"""from pathlib import Path

from {NAME}.main import main

if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).resolve().parent))
"""


def sources() -> dict[str, str]:
    """The text of every module of the package by its file's name."""
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(Path(__file__).parent.glob("*.py"))}


def write(folder: Path) -> None:
    """Make the package `emmy_runner`, and the script `runner.py` that runs it, in `folder`."""
    package = folder / NAME
    package.mkdir()
    for name, text in sources().items():
        (package / name).write_text(text, encoding="utf-8")
    (folder / "runner.py").write_text(SCRIPT, encoding="utf-8")
