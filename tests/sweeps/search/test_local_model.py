"""The Gaussian process of results that jump in some parameters and do not change in others."""

from __future__ import annotations

import numpy as np
import pytest

from sweeps.search.engines.modelled.local_model import (
    LENGTHS,
    NOISE,
    draws,
    fitted,
    likelihood_of_rough,
)


def jumping(features: np.ndarray) -> np.ndarray:
    """A slope and a jump from each of 400 steps of the first feature to the next; the rest is idle."""
    heights = np.random.default_rng(9).normal(size=401)
    steps = (features[:, 0] * 400).astype(int)
    values: np.ndarray = 2.0 * features[:, 0] + 0.3 * heights[steps]
    return values


def some(count: int, seed: int = 0) -> np.ndarray:
    """Points in the middles of every other one of the first 80 steps."""
    random = np.random.default_rng(seed)
    features = random.random((count, 3))
    features[:, 0] = (2 * random.integers(40, size=count) + 0.5) / 400
    return features


def test_the_rough_part_is_where_results_jump() -> None:
    features = some(80)
    model = fitted(features, jumping(features), 0)
    lengths = model.kernel_.k2.k1.k2.length_scale
    assert lengths[0] < 0.01 and lengths[1:] == pytest.approx([LENGTHS[-1]] * 2)


def test_what_was_tried_is_known_and_its_neighbours_are_not() -> None:
    features = some(80)
    known = features[:1] + np.array([0.0, 0.1, -0.1])  # differs only in what changes nothing
    unknown = features[:1] + np.array([0.0025, 0.0, 0.0])  # the next step
    candidates = np.concatenate([known, unknown])
    drawn = draws(features, jumping(features), candidates, 2000, np.random.default_rng(1))
    assert abs(drawn[:, 0].mean() - jumping(known)[0]) < 0.03
    assert 3 * drawn[:, 0].std() < drawn[:, 1].std() < 0.6


def test_a_smooth_function_has_hardly_any_roughness() -> None:
    features = np.random.default_rng(3).random((60, 2))
    away = np.random.default_rng(4).random((20, 2)) * 0.8 + 0.1
    drawn = draws(features, np.sin(3 * features).sum(axis=1), away, 200, np.random.default_rng(1))
    np.testing.assert_allclose(drawn.mean(axis=0), np.sin(3 * away).sum(axis=1), atol=0.02)
    assert drawn.std() > 0.1 > drawn.std(axis=0).max()


def test_a_constant_needs_no_model() -> None:
    drawn = draws(some(20), np.full(20, 3.0), some(5), 4, np.random.default_rng(0))
    assert drawn.shape == (4, 5) and (drawn == 3.0).all()


def test_the_same_seed_gives_the_same_draws() -> None:
    features = some(40)
    one, two = (
        draws(features, jumping(features), some(5, 2), 4, np.random.default_rng(3)) for _ in "ab"
    )
    np.testing.assert_array_equal(one, two)


def test_the_likelihood_of_lengths_is_that_of_scikit_learn() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    features = some(60)
    smooth = ConstantKernel(1.3) * Matern([0.4, 0.7, 2.0], nu=2.5)
    likelihood = likelihood_of_rough(features, jumping(features), smooth(features), 0.2)
    for lengths in ((1e-3, 100.0, 0.1), (100.0, 100.0, 100.0), (1e-4, 1e-4, 1e-4)):
        rough = ConstantKernel(0.2) * Matern(lengths, nu=0.5)
        process = GaussianProcessRegressor(
            smooth + rough + WhiteKernel(NOISE), optimizer=None, normalize_y=True
        ).fit(features, jumping(features))
        assert likelihood(lengths) == pytest.approx(process.log_marginal_likelihood_value_)
