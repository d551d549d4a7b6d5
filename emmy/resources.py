"""Where the data that ships with Emmy lies: rules and golden measurements.

An installed wheel holds them inside the package; a checkout, also one installed with `pip install -e`, holds them
beside it.
"""

from __future__ import annotations

from pathlib import Path

from emmy.errors import EmmyError


def _folder(name: str) -> Path:
    package = Path(__file__).resolve().parent
    for folder in (package / f"_{name}", package.parent / name):
        if folder.is_dir():
            return folder
    raise EmmyError(f"the {name} folder is missing from {package}", "install emmy-egraph again, or run from a checkout")


def rulesets() -> Path:
    """The folder of rule files: `model/*.egg`, `loop/*.egg`, `schedule/*.egg`.  EmmyError where it is missing."""
    return _folder("rulesets")


def golden() -> Path:
    """The folder of reviewed measurements, `<gpu>_sm<cc>.json`.  EmmyError where it is missing."""
    return _folder("golden")
