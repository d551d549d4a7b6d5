"""Checks of what a caller of the public functions passes: the wrong type is told, not left to fail somewhere inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from emmy.errors import UsageError

# what a compile does only where it is asked for: `atomics`, blocks that add partial sums in any order, so that runs
# differ in their last bits; `tf32`, products of f32 whose factors are rounded to 10 bits of mantissa
ALLOWANCES: Final = ("atomics", "tf32")


def require(name: str, value: Any, types: type | tuple[type, ...], wanted: str) -> None:
    """UsageError unless `value` is of the types; True and False are no numbers here."""
    kinds = types if isinstance(types, tuple) else (types,)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        raise UsageError(f"{name} is {shortened(value)}, of type {type(value).__name__}", f"give {wanted}")


def allowances(text: str, name: str = "") -> tuple[str, ...]:
    """What a text such as `atomics,tf32` asks for, each once and in one order; empty: nothing.

    UsageError for what cannot be asked for; it names the variable, where the text comes from one.
    """
    asked = {part.strip().lower() for part in text.split(",")} - {""}
    wrong = sorted(asked - set(ALLOWANCES))
    if wrong:
        given = f"{name}={text!r}: " if name else ""
        raise UsageError(
            f"{given}{', '.join(map(repr, wrong))} cannot be allowed",
            f"use {', '.join(ALLOWANCES)}, or both with a comma between, or leave it out",
        )
    return tuple(a for a in ALLOWANCES if a in asked)


def positive(name: str, value: Any, kind: type, unit: str) -> None:
    """UsageError unless `value` is a number of this kind (float takes whole ones too) above zero."""
    wanted = f"a {'whole ' if kind is int else ''}number of {unit} above 0"
    require(name, value, (int, float) if kind is float else kind, wanted)
    if not value > 0:  # so that NaN is refused
        raise UsageError(f"{name} is {value}", f"give {wanted}")


def shortened(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def expanded(path: Path | str) -> Path:
    """The path with the home of `~` and `~user`; as it is where there is no such user, which opening it will say."""
    return Path(os.path.expanduser(path))
