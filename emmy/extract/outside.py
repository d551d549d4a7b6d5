"""Data from outside of this process: JSON that says one thing only, numbers that fit a float, files of a known size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

# characters of the longest text that is quoted in a message
_QUOTED: Final = 60


def read_json(text: str | bytes) -> Any:
    """The value that a text spells.  ValueError where it is no JSON, is nested too deeply, names a key twice (readers
    differ in which of the two they believe), or spells half of a character, which can be neither printed nor stored."""
    try:
        value = json.loads(text, object_pairs_hook=_object)
        if isinstance(text, bytes) or "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("a text in it holds half of a surrogate pair") from error
    return value


def read_at_most(path: Path, most: int) -> bytes:
    """The file's content.  ValueError where it is longer than `most` bytes, whatever size it claims; OSError."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return data


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
