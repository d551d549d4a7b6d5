"""Checks of what a caller of the public functions passes: the wrong type is told, not left to fail somewhere inside."""

from __future__ import annotations

from typing import Any

from emmy.errors import UsageError


def require(name: str, value: Any, types: type | tuple[type, ...], wanted: str) -> None:
    """UsageError unless `value` is of the types; True and False are no numbers here."""
    kinds = types if isinstance(types, tuple) else (types,)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        raise UsageError(f"{name} is {shortened(value)}, of type {type(value).__name__}", f"give {wanted}")


def positive(name: str, value: Any, kind: type, unit: str) -> None:
    """UsageError unless `value` is a number of this kind (float takes whole ones too) above zero."""
    wanted = f"a {'whole ' if kind is int else ''}number of {unit} above 0"
    require(name, value, (int, float) if kind is float else kind, wanted)
    if not value > 0:  # so that NaN is refused
        raise UsageError(f"{name} is {value}", f"give {wanted}")


def shortened(value: object, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"
