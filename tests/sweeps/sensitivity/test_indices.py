"""Indices against functions whose indices are known in closed form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sweeps.sensitivity.indices import (
    MATTERS,
    NO_EFFECT,
    NOISE,
    MorrisMeasures,
    Resampling,
    derivative_measures,
    do_meet,
    elementary_effects,
    morris_measures,
    seed_variance,
    sobol_indices,
    verdict,
    with_noise,
)
from sweeps.sensitivity.model import (
    MORRIS_LEVELS,
    STEP,
    Sizes,
    differences,
    morris,
    problem,
    saltelli,
)
from sweeps.sensitivity.study import unsettled

NAMES = ("a", "b", "c", "inert")
SIZES = Sizes(base=1024, trajectories=40, gradients=256)
RESAMPLING = Resampling(resamples=300)
NUM_SEEDS = 8


def ishigami(shares: np.ndarray) -> np.ndarray:
    """Ishigami and Homma's function with a = 7, b = 0.1 of the first three parameters, `[point]`."""
    x = np.pi * (2 * shares - 1)
    value: np.ndarray = np.sin(x[:, 0]) * (1 + 0.1 * x[:, 2] ** 4) + 7 * np.sin(x[:, 1]) ** 2
    return value


# closed form, e.g. Saltelli et al. 2008, Global Sensitivity Analysis, section 4.5
VARIANCE = 13.844587940719254
FIRST, TOTAL = (0.3139, 0.4424, 0.0, 0.0), (0.5576, 0.4424, 0.2437, 0.0)


def with_seeds(means: np.ndarray, spread: float) -> np.ndarray:
    """Means `[point]` as seen by seeds, `[point, seed]`; every seed also shifts all points alike."""
    random = np.random.default_rng(5)
    noise = random.normal(size=(len(means), NUM_SEEDS)) * spread
    return means[:, None] + noise + random.normal(size=NUM_SEEDS)


def test_sobol_indices_of_ishigamis_function() -> None:
    values = ishigami(saltelli(NAMES, SIZES))[:, None]
    found = sobol_indices(values, 4, RESAMPLING)
    assert found is not None
    np.testing.assert_allclose(found.first[:, 0], FIRST, atol=0.03)
    np.testing.assert_allclose(found.total[:, 0], TOTAL, atol=0.03)
    assert found.second[0, 2, 0] == pytest.approx(0.2437, abs=0.04)
    assert [pair for pair in ((0, 1), (0, 2), (1, 2)) if found.act_together(*pair)] == [(0, 2)]
    assert abs(found.second[0, 1, 0]) < 0.04
    assert (found.total[:3, 1] < found.total[:3, 0]).all()
    assert (found.total[:3, 0] < found.total[:3, 2]).all()
    assert verdict(found.total[3], found.dummy) == NO_EFFECT
    assert [verdict(found.total[place], found.dummy) for place in range(3)] == [MATTERS] * 3


def test_a_dummy_gets_the_variance_of_the_mean_over_seeds() -> None:
    spread = 2.0
    values = with_seeds(ishigami(saltelli(NAMES, SIZES)), spread)
    found = sobol_indices(values, 4, RESAMPLING)
    assert found is not None
    noise = spread**2 / NUM_SEEDS
    assert found.dummy[0] == pytest.approx(noise / (VARIANCE + noise), rel=0.05)
    assert found.total[3, 0] == pytest.approx(found.dummy[0], rel=0.15)
    assert verdict(found.total[3], found.dummy) == NOISE
    assert verdict(found.total[2], found.dummy) == MATTERS
    np.testing.assert_allclose(found.halves[0, :, 0], found.halves[1, :, 0], atol=0.05)


def test_what_a_seed_does_to_all_points_alike_is_no_noise() -> None:
    rows = np.arange(12.0).reshape(2, 6, 1) + np.array([0.0, 5.0, -3.0])
    np.testing.assert_allclose(seed_variance(rows), 0, atol=1e-25)


def test_rows_with_a_failed_run_are_left_out() -> None:
    values = with_seeds(ishigami(saltelli(NAMES, SIZES)), 0.1)
    whole = sobol_indices(values, 4, RESAMPLING)
    values[10 * 25, 3] = np.nan
    found = sobol_indices(values, 4, RESAMPLING)
    assert found is not None and whole is not None
    assert (found.num_rows, found.num_left_out) == (1023, 1)
    np.testing.assert_allclose(found.total[:, 0], whole.total[:, 0], atol=0.01)
    values[: len(values) // 2] = np.nan
    assert sobol_indices(values, 4, RESAMPLING) is None


def test_a_constant_metric_has_no_indices() -> None:
    design = saltelli(NAMES, Sizes(base=16))
    assert sobol_indices(np.full((len(design), 4), 3.0), 4, RESAMPLING) is None


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """40 designs of 256 rows; below 30 of 40 has a chance under 1e-4 at a coverage of 95 %."""
    inside = 0
    for state in range(40):
        sizes = Sizes(base=256, random_state=state)
        found = sobol_indices(ishigami(saltelli(NAMES, sizes))[:, None], 4, RESAMPLING)
        assert found is not None
        inside += bool(found.total[1, 1] <= TOTAL[1] <= found.total[1, 2])
    assert inside >= 30


def test_morris_of_a_linear_function_is_its_slopes() -> None:
    routes = morris(NAMES, SIZES)
    slopes = np.array([3.0, -2.0, 0.5, 0.0])
    found = morris_measures(routes, (routes @ slopes)[:, None], RESAMPLING)
    assert found is not None
    np.testing.assert_allclose(found.mu[:, 0], slopes, atol=1e-9)
    np.testing.assert_allclose(found.mu_star, np.abs(slopes)[:, None].repeat(3, 1), atol=1e-9)
    np.testing.assert_allclose(found.sigma, 0, atol=1e-9)


def test_elementary_effects_are_those_of_salib() -> None:
    from SALib.analyze import morris as method

    routes = morris(NAMES, SIZES)
    values = ishigami(routes)
    theirs = method.analyze(problem(NAMES), routes, values, num_levels=MORRIS_LEVELS, seed=1)
    effects = elementary_effects(routes.reshape(-1, 5, 4), values.reshape(-1, 5))
    np.testing.assert_allclose(np.abs(effects).mean(axis=0), theirs["mu_star"])
    np.testing.assert_allclose(effects.std(axis=0, ddof=1), theirs["sigma"])


def test_seed_noise_of_elementary_effects() -> None:
    routes = morris(NAMES, SIZES)
    found = morris_measures(routes, with_seeds(ishigami(routes), 2.0), RESAMPLING)
    assert found is not None
    assert found.mu_star[3, 0] == pytest.approx(found.dummy, rel=0.4)
    assert found.mu_star[0, 1] > found.dummy


def test_derivative_measures_of_a_linear_function_and_of_salib() -> None:
    from SALib.analyze import dgsm

    steps = differences(NAMES, SIZES)
    assert steps.min() >= 0 and steps.max() <= 1
    slopes = np.array([3.0, -2.0, 0.5, 0.0])
    values = steps @ slopes
    found = derivative_measures(steps, values[:, None], RESAMPLING)
    assert found is not None
    expected = slopes**2 / (np.pi**2 * (slopes**2).sum() / 12)
    np.testing.assert_allclose(found[0][:, 0], expected, rtol=0.02)
    assert (found[0][:3, 0] >= (slopes**2 / (slopes**2).sum())[:3]).all()  # bounds the total index
    theirs = dgsm.analyze(problem(NAMES), steps, values, num_resamples=10)
    np.testing.assert_allclose(found[0][:, 0], theirs["dgsm"], rtol=1e-9)
    assert abs(np.abs(np.diff(steps.reshape(-1, 5, 4), axis=1)).max() - STEP) < 1e-12


def test_intervals_agree_where_they_overlap() -> None:
    assert do_meet(np.array([0.2, 0.1, 0.3]), np.array([0.35, 0.25, 0.4]))
    assert not do_meet(np.array([0.2, 0.1, 0.3]), np.array([0.5, 0.4, 0.6]))


def test_noise_lowers_an_interval_down_to_nothing_at_most() -> None:
    total, dummy = np.array([0.5, 0.4, 0.6]), np.array([0.1, 0.05, 0.15])
    assert with_noise(total, dummy) == pytest.approx([0.5, 0.25, 0.6])
    assert with_noise(total, dummy + 1) == pytest.approx([0.5, 0.0, 0.6])
    below = np.array([0.0, -0.01, 0.02])  # an estimate may lie below zero
    assert with_noise(below, dummy) == pytest.approx(below)
    assert with_noise(total, np.full(3, -0.1)) == pytest.approx(total)


def test_a_strong_parameter_with_few_rows_is_open_and_not_screened_out() -> None:
    """Steps of a and b move the metric more than new seeds; of the indices, that of b alone is told from noise."""
    total = np.array([[0.8, 0.0, 0.9], [0.5, 0.4, 0.6], [0.01, 0.0, 0.9]])
    steps = np.array([[9.0, 5.0, 12.0], [8.0, 6.0, 9.0], [0.1, 0.0, 0.3]])
    found = SimpleNamespace(
        sobol={"m": SimpleNamespace(total=total, dummy=np.array([0.1, 0.1, 0.2]))},
        morris={"m": MorrisMeasures(steps, steps, steps, dummy=1.0)},
    )
    study: Any = SimpleNamespace(names=("a", "b", "c"), findings={"simulator": found})
    assert unsettled(study, "simulator", "m") == ["a"]
