"""Data from outside of this process: JSON that says one thing only, and numbers that fit a float."""

from __future__ import annotations

import json
import math
from typing import Any, Final

# characters of the longest text that is quoted in a message
_QUOTED: Final = 60


def read_json(text: str | bytes) -> Any:
    """The value that a text spells.  ValueError where it is no JSON, is nested too deeply, or names a key twice:
    readers differ in which of the two they believe."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:_QUOTED]!r} stands twice in one object")
    return found


def is_number(value: object) -> bool:
    """A finite number of a size that a float holds (JSON's whole numbers have any length); True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
