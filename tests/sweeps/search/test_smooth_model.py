"""The Gaussian process that takes the chance of points for noise."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.search.engines.modelled.smooth_model import _loss, fitted

NOISE = 0.2


def truth(features: np.ndarray) -> np.ndarray:
    """Two of twelve features matter."""
    found: np.ndarray = np.sin(3.0 * features[:, 0]) + features[:, 1] ** 2
    return found


@pytest.fixture(scope="module")
def known() -> tuple[np.ndarray, np.ndarray]:
    """Features and noisy results of 120 points."""
    random = np.random.default_rng(1)
    features = random.random((120, 12))
    return features, truth(features) + NOISE * random.normal(size=120)


def test_the_gradient_is_that_of_the_loss(known: tuple[np.ndarray, np.ndarray]) -> None:
    features, results = known
    wanted = (results - results.mean()) / results.std()
    logs = np.linspace(-0.5, 0.8, 14)
    _, gradient = _loss(logs, features, wanted)
    step = 1e-5
    steps = step * np.eye(14)
    moved = [
        (_loss(logs + one, features, wanted)[0] - _loss(logs - one, features, wanted)[0]) / step / 2
        for one in steps
    ]
    assert gradient == pytest.approx(np.array(moved), rel=1e-5, abs=1e-6)


def test_the_mean_is_nearer_to_the_truth_than_the_results(
    known: tuple[np.ndarray, np.ndarray],
) -> None:
    features, results = known
    model = fitted(features, results)
    errors = model.mean(features) - truth(features)
    assert np.sqrt(np.mean(errors**2)) < 0.6 * NOISE
    assert np.sqrt(model.noise) * model.spread == pytest.approx(NOISE, rel=0.25)
    assert (model.lengths[2:] > 3 * model.lengths[:2].max()).all()  # the others do not matter


def test_without_noise_results_are_known_where_they_were_tried() -> None:
    features = np.random.default_rng(2).random((60, 3))
    model = fitted(features, truth(features))
    assert model.mean(features) == pytest.approx(truth(features), abs=0.02)


def test_draws_have_the_mean_and_are_wide_where_nothing_is_known(
    known: tuple[np.ndarray, np.ndarray],
) -> None:
    """The mean of 4,000 draws is within five standard errors; a corner far out is less known."""
    features, results = known
    model = fitted(features, results)
    places = np.concatenate([features[:5], np.full((1, 12), 3.0)])
    drawn = model.draws(places, 4000, np.random.default_rng(0))
    spreads = drawn.std(axis=0)
    assert (np.abs(drawn.mean(axis=0) - model.mean(places)) < 5 * spreads / np.sqrt(4000)).all()
    assert (spreads[:5] < 0.6 * NOISE).all() and spreads[5] > 3 * spreads[:5].max()
