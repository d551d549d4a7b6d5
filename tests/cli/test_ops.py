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


def test_named_operations_are_looked_up_alone(emmy: Emmy) -> None:
    done = emmy("ops", "softmax", "sort", "--json")
    assert done.code == 0
    rows = {r["op"]: r for r in json.loads(done.out)["operations"]}
    assert {op: r["status"] for op, r in rows.items()} == {"softmax": "ours", "sort": "fallback"}
    assert rows["sort"]["reason"]


def test_a_name_that_the_survey_does_not_hold_is_wrong_usage(emmy: Emmy) -> None:
    done = emmy("ops", "softmax", "softmux")
    assert done.code == 2 and "softmux" in done.err and "emmy ops" in done.err
