from __future__ import annotations

import pytest

from tests.integration.machine import Machine


@pytest.fixture(scope="module", params=["evaluator", pytest.param("card", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(request.param == "card", tmp_path_factory.mktemp("kernels"))
