from pathlib import Path

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from surrogate.data import FAILED, Data
from surrogate.predictor import Surrogate
from tests.surrogate.made_data import COLUMNS, expected

pytestmark = pytest.mark.lenient_promotion  # flax adds biases to batches


def test_predicts_points_that_it_has_not_seen(surrogate: Surrogate, data: Data) -> None:
    found = surrogate.predict_mean(data.test.inputs)
    for place, name in enumerate(("latency_ms", "share")):
        y = data.test.means[:, place]
        error = np.square(found[name] - y).sum() / np.square(y - y.mean()).sum()
        assert error < 0.25
    assert not found["rejections"].any() and not found[FAILED].any()


def test_interface(surrogate: Surrogate) -> None:
    assert surrogate.names == ("load", "chunk", "order")
    assert surrogate.bounds == ((0.5, 2.0), (0.0, 100.0), (0.0, 1.0))
    assert surrogate.outputs == ("latency_ms", "share", "rejections", FAILED)


def test_saved_and_loaded_it_predicts_the_same(
    surrogate: Surrogate, data: Data, tmp_path: Path
) -> None:
    surrogate.save(tmp_path / "made.surrogate")
    again = Surrogate.load(tmp_path / "made.surrogate")
    assert again.predict(data.test.inputs).identical(surrogate.predict(data.test.inputs))
    assert again.about == surrogate.about


def test_predict_agrees_with_itself(surrogate: Surrogate, data: Data) -> None:
    found = surrogate.predict(data.test.inputs)
    means = surrogate.predict_mean(data.test.inputs)
    for place, name in enumerate(surrogate.outputs):
        np.testing.assert_allclose(found["mean"].values[:, place], means[name], rtol=1e-5)
    assert (found["low"] <= found["mean"]).all() and (found["mean"] <= found["high"]).all()
    assert (np.diff(found["quantile"].values, axis=2) >= 0).all()
    assert (found["low"].sel(output="latency_ms") > 0).all()
    wider = surrogate.predict(data.test.inputs, confidence=0.95)
    assert (wider["high"] >= found["high"]).all()
    assert found["in_domain"].all()


def test_members_lie_around_their_mean(surrogate: Surrogate, data: Data) -> None:
    members = surrogate.predict_members(data.test.inputs)
    means = surrogate.predict_mean(data.test.inputs)
    assert tuple(members) == surrogate.outputs
    for name, found in members.items():
        assert found.shape == (len(data.test.inputs), surrogate.settings.members)
        slack = 1e-5 * np.abs(means[name])
        assert (found.min(axis=1) <= means[name] + slack).all()
        assert (found.max(axis=1) >= means[name] - slack).all()
    assert (members["latency_ms"].std(axis=1) > 0).all()
    assert not members["rejections"].any()


def test_a_point_alone_is_predicted_as_among_others(surrogate: Surrogate, data: Data) -> None:
    points = data.test.inputs[:70]
    together = surrogate.predict_mean(points)["latency_ms"]
    alone = [surrogate.predict_mean(points[at : at + 1])["latency_ms"][0] for at in (0, 69)]
    np.testing.assert_allclose(alone, together[[0, 69]], rtol=1e-5)


def test_points_by_name_are_those_by_number(surrogate: Surrogate) -> None:
    by_name = surrogate.predict_mean([{"load": 1.0, "chunk": 7, "order": "last"}])
    by_number = surrogate.predict_mean(np.array([[1.0, 7.0, 1.0]]))
    assert by_name == by_number


def test_gradient_is_the_slope_of_predictions(surrogate: Surrogate) -> None:
    points = np.array([[1.0, 30.0, 0.0], [1.5, 60.0, 1.0]])
    slopes = surrogate.gradient(points, "latency_ms")
    for place, step in ((0, 0.02), (1, 1.0)):
        moved = np.zeros(3)
        moved[place] = step
        above, below = (
            surrogate.predict_mean(points + sign * moved)["latency_ms"] for sign in (1, -1)
        )
        np.testing.assert_allclose(
            slopes[:, place], (above - below) / (2 * step), rtol=0.05, atol=2e-3
        )
    assert not slopes[:, 2].any()
    step = np.array([0.01, 0.0, 0.0])
    truth = (expected(points + step) - expected(points - step))[:, 0] / 0.02
    np.testing.assert_allclose(slopes[:, 0], truth, rtol=0.3)
    assert not surrogate.gradient(points, "rejections").any()


def test_outside_of_the_data_it_says_so(surrogate: Surrogate) -> None:
    found = surrogate.predict(np.array([[9.0, 30.0, 0.0], [1.0, 30.0, 0.0]]))
    assert found["in_domain"].values.tolist() == [False, True]
    assert "load 9 is above the data" in found["reason"].values[0]


def test_wrong_questions_are_refused(surrogate: Surrogate) -> None:
    with pytest.raises(ConfigError, match=r"allowed is \[n, 3\]"):
        surrogate.predict_mean(np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="did you mean"):
        surrogate.gradient(np.zeros((1, len(COLUMNS))), "latency")
    with pytest.raises(ConfigError, match="confidence"):
        surrogate.predict(np.zeros((1, 3)), confidence=1.0)


def test_no_points_give_no_predictions(surrogate: Surrogate) -> None:
    assert surrogate.predict_mean(np.zeros((0, 3)))["share"].shape == (0,)
