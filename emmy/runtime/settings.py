"""What the runtime takes from the environment, read once by whoever makes the objects that need it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True, slots=True)
class Settings:
    """`cache_dir` holds compiled kernels, `evidence` is the evidence store's file.

    `poison` fills memory that kernels write with 0xFF bytes before each run (a NaN in every float type), so that a
    result which nothing wrote is seen.
    """

    cache_dir: Path
    evidence: Path
    poison: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Settings:
        """From `EMMY_CACHE_DIR`, `EMMY_TUNE_DB` and `EMMY_POISON`, else from the user's own folders."""
        env = os.environ if env is None else env
        cache, evidence = env.get("EMMY_CACHE_DIR"), env.get("EMMY_TUNE_DB")
        return cls(
            cache_dir=Path(cache) if cache else platformdirs.user_cache_path("emmy"),
            evidence=Path(evidence) if evidence else platformdirs.user_data_path("emmy") / "evidence.duckdb",
            poison=env.get("EMMY_POISON", "") not in ("", "0"),
        )
