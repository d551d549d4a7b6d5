"""The environment, read once into a typed value.  Nothing else in Emmy reads environment variables for choices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emmy.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """`knobs`: EMMY_KNOBS, a pinned schedule row.  `place`: EMMY_PLACE, `fuse` or `cut`.  `tune_db`: EMMY_TUNE_DB.

    `golden`: EMMY_GOLDEN_FILE (None: the files that ship; empty path: none).  `dump_dir`: EMMY_DUMP_DIR.
    """

    knobs: str = ""
    place: str = ""
    tune_db: Path | None = None
    golden: str | None = None
    dump_dir: Path | None = None

    @staticmethod
    def read(environ: Mapping[str, str] | None = None) -> Settings:
        env = os.environ if environ is None else environ
        place = env.get("EMMY_PLACE", "").lower()
        if place not in ("", "fuse", "cut"):
            raise UsageError(f"EMMY_PLACE={place!r} is not a placement", "use fuse or cut, or leave it unset")
        db, dump = env.get("EMMY_TUNE_DB"), env.get("EMMY_DUMP_DIR")
        return Settings(
            env.get("EMMY_KNOBS", ""),
            place,
            Path(db) if db else None,
            env.get("EMMY_GOLDEN_FILE"),
            Path(dump) if dump else None,
        )
