"""Trees as arrays: the same sums as the library that grew them."""

from __future__ import annotations

import numpy as np
import pytest

from emmy.evidence.fit import _joined
from emmy.extract.trees import LEAVES, Forest

# one tree: x0 <= 1 ? (x1 <= 5 ? 10 : 20) : 30
BY_HAND = Forest(
    1, np.array([0, 1], np.int16), np.array([1.0, 5.0]), np.array([0xFFFF & ~0b11, 0xFFFF & ~0b1], np.uint16),
    np.array([0, 0], np.int32), np.array([[10.0, 20.0, 30.0] + [0.0] * (LEAVES - 3)]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("row", "value"), [((1, 5), 10), ((0, 5.01), 20), ((1.01, 0), 30), ((9, 9), 30), ((-9, -9), 10)]
)
def test_a_row_falls_into_the_leaf_that_its_features_say(row, value):
    assert BY_HAND.values(np.array([row, (9.0, 0.0)])).tolist() == [[value], [30.0]]


def test_no_rows_have_no_values():
    assert BY_HAND.values(np.zeros((0, 2))).shape == (0, 1)


@pytest.mark.parametrize("constant", [0, 3])
def test_arrays_say_what_scikit_learn_says(constant):
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 6)).round(1)
    x[:, :constant] = 0.5
    y = x[:, 5] ** 2 + np.sin(3 * x[:, 3]) + x[:, 4] * (x[:, 0] > 0)
    members = []
    for seed in range(3):
        model = HistGradientBoostingRegressor(max_iter=20, max_leaf_nodes=LEAVES, random_state=seed, max_features=0.5)
        members.append(model.fit(x, y))
    forest = _joined([(m, float(np.ravel(m._baseline_prediction)[0])) for m in members])
    assert forest.members == 3 and forest.trees == 60
    expected = np.stack([m.predict(x) for m in members], axis=1)
    np.testing.assert_allclose(forest.values(x), expected, atol=1e-9)
