from pathlib import Path

import pytest

from emmy.errors import UsageError
from emmy.settings import Settings


def test_every_variable_has_its_field() -> None:
    env = {
        "EMMY_CACHE_DIR": "/c", "EMMY_TUNE_DB": "/t.duckdb", "EMMY_POISON": "1", "EMMY_KNOBS": "WORK=t32",
        "EMMY_PLACE": "Fuse", "EMMY_GOLDEN_FILE": "", "EMMY_DUMP_DIR": "/d", "EMMY_ALLOW": "TF32, atomics",
    }  # fmt: skip
    expected = Settings(Path("/c"), Path("/t.duckdb"), True, "WORK=t32", "fuse", "", Path("/d"), allow="atomics,tf32")
    assert Settings.read(env) == expected
    assert Settings.read(env).evidence == Path("/t.duckdb")


def test_an_empty_environment_means_the_users_own_folders() -> None:
    settings = Settings.read({})
    assert settings == Settings(settings.cache_dir)
    assert settings.cache_dir.name == "emmy" and settings.evidence.name == "evidence.duckdb"


def test_what_cannot_be_allowed_is_refused() -> None:
    with pytest.raises(UsageError, match="EMMY_ALLOW='bf16,tf32': 'bf16' cannot be allowed"):
        Settings.read({"EMMY_ALLOW": "bf16,tf32"})


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(UsageError, match="EMMY_PLACE"):
        Settings.read({"EMMY_PLACE": "both"})
