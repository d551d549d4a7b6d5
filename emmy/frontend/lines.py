"""Whose line of code a stack frame is, by its file: errors and reports name the user's, not a library's."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import torch

# traces of saved programs come from other machines, so libraries are also known by the usual folders
_TORCH: Final = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")
_PACKAGES: Final = re.compile(r"[/\\](site|dist)-packages[/\\]")
_STANDARD: Final = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\]")
# code without a file that a person typed; any other name in brackets is generated code
_TYPED: Final = re.compile(r"<(code|stdin|ipython-input.*)>")


class Owner(IntEnum):
    """Nearest to the user first."""

    USER = 0
    PACKAGE = 1
    STANDARD = 2
    PYTORCH = 3


def owner(path: str) -> Owner:
    """Whose file it is; PyTorch's includes ours and generated code."""
    if path.startswith("<"):
        return Owner.USER if _TYPED.fullmatch(path) else Owner.PYTORCH
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if path.startswith((os.path.dirname(torch.__file__) + os.sep, ours + os.sep)) or _TORCH.search(path):
        return Owner.PYTORCH
    paths = sysconfig.get_paths()
    if path.startswith((paths["purelib"] + os.sep, paths["platlib"] + os.sep)) or _PACKAGES.search(path):
        return Owner.PACKAGE
    if path.startswith((paths["stdlib"] + os.sep, paths["platstdlib"] + os.sep)) or _STANDARD.search(path):
        return Owner.STANDARD
    return Owner.USER


def to_blame(paths: Sequence[str]) -> int | None:
    """Position of the innermost (last) frame of the user, else of another package; None where there is neither."""
    owners = [owner(p) for p in paths]
    for wanted in (Owner.USER, Owner.PACKAGE):
        found = [k for k, o in enumerate(owners) if o is wanted]
        if found:
            return found[-1]
    return None
