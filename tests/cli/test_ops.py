import json

import pytest

from tests.cli.conftest import Emmy


@pytest.mark.slow
def test_the_survey_is_listed_with_what_becomes_of_each_operation(emmy: Emmy) -> None:
    done = emmy("ops", "--json")
    table = json.loads(done.out)
    status = {r["op"]: r["status"] for r in table["operations"]}
    assert done.code == 0 and len(status) == 176
    assert table["counts"]["ours"] >= 110
    assert {status[op] for op in ("linear", "softmax", "scaled_dot_product_attention", "cumsum")} == {"ours"}
    assert all(r["reason"] for r in table["operations"] if r["status"] != "ours")
