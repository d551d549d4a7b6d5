import json

import pytest

from tests.cli.conftest import Emmy


@pytest.mark.nvrtc
def test_a_machine_that_compiles_is_healthy(emmy: Emmy) -> None:
    done = emmy("doctor", "--json")
    checks = {c["name"]: c for c in json.loads(done.out)}
    assert done.code == 0 and checks["NVRTC"]["ok"] and checks["compile for sm_90a"]["ok"]


@pytest.mark.nvrtc
def test_a_needed_thing_that_fails_gives_1_and_says_what_to_do(emmy: Emmy, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    done = emmy("doctor", EMMY_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert done.code == 1
    row = next(line for line in done.out.splitlines() if line.startswith("kernel cache"))
    assert "FAILS" in row
    assert "EMMY_CACHE_DIR" in done.out
