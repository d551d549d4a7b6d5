"""The environment, read once into a typed value by whoever makes the objects that need it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emmy.arguments import allowances, expanded
from emmy.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """Choices that outlive one command line.

    `cache_dir` (EMMY_CACHE_DIR) holds compiled kernels; `tune_db` (EMMY_TUNE_DB) names the evidence store, None: the
    user's own.  `poison` (EMMY_POISON) fills memory that kernels write with 0xFF bytes before each run (a NaN in every
    float type), so that a result which nothing wrote is seen.  `knobs` (EMMY_KNOBS) is a pinned schedule row, `place`
    (EMMY_PLACE) is `fuse`, `cut` or empty, `allow` (EMMY_ALLOW) is `atomics`, `tf32`, `atomics,tf32` or empty.
    `golden` (EMMY_GOLDEN_FILE) names a file of reviewed measurements; None: the files that ship, empty: none.
    `dump_dir` (EMMY_DUMP_DIR) takes every stage as a file.  `prior` (EMMY_PRIOR) is `analytic`, `learned` or a file;
    empty: the learned prior where one ships for the card.
    """

    cache_dir: Path
    tune_db: Path | None = None
    poison: bool = False
    knobs: str = ""
    place: str = ""
    golden: str | None = None
    dump_dir: Path | None = None
    prior: str = ""
    allow: str = ""

    @property
    def evidence(self) -> Path:
        """The evidence store's file."""
        if self.tune_db is not None:
            return self.tune_db
        import platformdirs

        return platformdirs.user_data_path("emmy") / "evidence.duckdb"

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """From the environment, else from the user's own folders.  UsageError for values that there are not."""
        import platformdirs

        env = os.environ if environ is None else environ
        place = env.get("EMMY_PLACE", "").lower()
        if place not in ("", "fuse", "cut"):
            raise UsageError(f"EMMY_PLACE={place!r} is not a placement", "use fuse or cut, or leave it unset")
        allow = ",".join(allowances(env.get("EMMY_ALLOW", ""), "EMMY_ALLOW"))
        cache = _path(env, "EMMY_CACHE_DIR") or platformdirs.user_cache_path("emmy")
        poison = env.get("EMMY_POISON", "") not in ("", "0")
        return cls(
            cache, _path(env, "EMMY_TUNE_DB"), poison, env.get("EMMY_KNOBS", ""), place, env.get("EMMY_GOLDEN_FILE"),
            _path(env, "EMMY_DUMP_DIR"), env.get("EMMY_PRIOR", ""), allow,
        )  # fmt: skip


def _path(env: Mapping[str, str], name: str) -> Path | None:
    value = env.get(name)
    return expanded(value) if value else None
