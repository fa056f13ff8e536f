"""The Gaussian process that takes the chance of points for noise."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.search.engines.smooth_model import _loss, fitted

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


@pytest.mark.parametrize("most", [1.0, 64.0])
def test_the_gradient_is_that_of_the_loss(
    known: tuple[np.ndarray, np.ndarray], most: float
) -> None:
    features, results = known
    noisiness = np.linspace(1.0, most, len(results))
    wanted = (results - results.mean()) / results.std()
    logs = np.linspace(-0.5, 0.8, 14)
    _, gradient = _loss(logs, features, wanted, noisiness)
    step = 1e-5
    steps = step * np.eye(14)
    moved = [
        sum(sign * _loss(logs + sign * one, features, wanted, noisiness)[0] for sign in (1.0, -1.0))
        / step
        / 2
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


def test_results_with_less_noise_count_for_more() -> None:
    """Half of the results have a tenth of the noise: told so, the mean is nearer to the truth than without."""
    random = np.random.default_rng(5)
    features = random.random((120, 3))
    noisiness = np.where(np.arange(120) % 2 == 0, 1.0, 0.01)
    results = truth(features) + np.sqrt(noisiness) * random.normal(size=120)
    told, not_told = (fitted(features, results, given) for given in (noisiness, None))
    errors = [np.square(one.mean(features) - truth(features)).mean() for one in (told, not_told)]
    assert errors[0] < 0.5 * errors[1]


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
