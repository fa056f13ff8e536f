"""Smoothed gradients: right on functions known in closed form, and on a small cluster."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.sensitivity.smoothed import (
    Perturbed,
    _draws,
    decisions,
    fit_pairs,
    perturbed,
    smoothed_gradients,
)
from tests.sweeps.tiny import tiny_space

BASE = ClusterConfig(num_instances=2, routing_policy="weighted")


def test_a_linear_function_has_its_slope_without_spread():
    draws, widths = _draws(3, 8, 1, "normal"), np.array([0.5, 2.0, 0.1])
    slope = np.array([3.0, -1.0, 40.0])
    seeds = np.arange(5.0)[None, :]
    differences = 2.0 * (draws * widths) @ slope[:, None] + 0.0 * seeds
    gradient, of_seeds, of_draws = fit_pairs(draws, widths, differences)
    np.testing.assert_allclose(gradient, slope, rtol=1e-12)
    np.testing.assert_allclose(of_seeds + of_draws, 0.0, atol=1e-20)


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_a_step_has_the_slope_of_its_smoothed_self(law):
    """A jump at the centre: the normal law's smoothed step is its distribution function."""
    sigma, num_pairs = 0.7, 4000
    draws = _draws(1, num_pairs, 2, law)
    differences = np.sign(draws)  # of a step of height 1 at the centre
    gradient, _, of_draws = fit_pairs(draws, np.array([sigma]), differences)
    mean_size = np.sqrt(2 / np.pi) if law == "normal" else np.sqrt(3) / 2  # E|z| = E z·sign(z)
    expected = mean_size / (2 * sigma)
    assert abs(gradient[0] - expected) < 4 * np.sqrt(of_draws[0])
    assert of_draws[0] < 1e-3


def test_the_stated_variance_is_that_of_repeated_estimates():
    rng = np.random.default_rng(3)
    found, stated = [], []
    for repeat in range(300):
        draws = _draws(1, 12, repeat, "normal")
        noise = rng.standard_normal((1, 20)) * 0.5  # each seed has its own slope
        differences = 2 * draws * (1.0 + noise) + 0.3 * np.sign(draws)
        gradient, of_seeds, of_draws = fit_pairs(draws, np.array([1.0]), differences)
        found.append(gradient[0])
        stated.append(of_seeds[0] + of_draws[0])
    assert np.mean(stated) == pytest.approx(np.var(found), rel=0.3)


def test_perturbed_points_are_rounded_for_the_simulator_only():
    budget = Perturbed("max_num_scheduled_tokens", 10.0)
    weight = Perturbed("routing_scorers.queue-depth", 0.1, is_log=True)
    config = perturbed(BASE, [budget, weight], np.array([0.26, 1.0]))
    assert config.max_num_scheduled_tokens == 2051
    assert dict(config.scorers())["queue-depth"] == pytest.approx(2 * np.exp(0.1))
    assert dict(config.scorers())["prefix-affinity"] == 3


def test_what_cannot_be_perturbed_is_refused():
    with pytest.raises(ConfigError, match="numeric setting"):
        Perturbed("scheduler", 1.0)
    with pytest.raises(ConfigError, match="above 0"):
        Perturbed("slo_base_critical", 0.0)
    with pytest.raises(ConfigError, match="no such scorer"):
        Perturbed("routing_scorers.slo-priority", 1.0).centre(BASE)
    with pytest.raises(ConfigError, match="no logarithm"):
        Perturbed("kv_cpu_blocks", 1.0, is_log=True).centre(BASE)
    with pytest.raises(ConfigError, match="smaller width"):
        perturbed(BASE, [Perturbed("max_num_scheduled_tokens", 5000.0)], np.array([-1.0]))
    with pytest.raises(ConfigError, match="at least 3"):
        _draws(2, 2, 0, "normal")
    with pytest.raises(ConfigError, match="law"):
        _draws(1, 2, 0, "cauchy")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    spec = workload_of(tiny_space().strategy)
    return Experiment.on(
        spec, range(42, 50), "reference", ["ttft_mean_ms", "e2e_mean_ms"], configs_per_batch=8
    )


def test_a_smaller_budget_slows_prompts(experiment):
    """A budget below the load's prompts: the smoothed slope has the sign that a large change has."""
    config = tiny_space().base.replace(max_num_scheduled_tokens=150)
    parameter = Perturbed("max_num_scheduled_tokens", 20.0)
    found = smoothed_gradients(experiment, config, [parameter], num_pairs=6)
    slope = found["ttft_mean_ms"]
    far = [config.replace(max_num_scheduled_tokens=tokens) for tokens in (115, 185)]
    low, high = (
        np.mean([one.metrics["ttft_mean_ms"] for one in runs]) for runs in experiment.run(far)
    )
    assert slope.gradient[0] < 0 and high < low
    assert abs(slope.gradient[0] - (high - low) / 70) < 4 * slope.standard_error[0]
    assert slope.num_pairs == 6 and slope.num_seeds == 8
    assert slope.share_changed > 0.5
    assert slope.interval()[0] < slope.gradient < slope.interval()[1]


def test_equal_random_states_give_equal_bits(experiment):
    config = tiny_space().base.replace(max_num_scheduled_tokens=150)
    parameter = [Perturbed("max_num_scheduled_tokens", 20.0)]
    one, other = (smoothed_gradients(experiment, config, parameter, 3, 7) for _ in range(2))
    for name, slope in one.items():
        np.testing.assert_array_equal(slope.gradient, other[name].gradient)


def test_decisions_tell_runs_apart(experiment):
    config = tiny_space().base
    slower = config.replace(alpha_coeffs=(1.0, 1.0, 1.0))
    (one,), (other,), (same,) = (
        [runs[0]] for runs in experiment.summaries([config, slower, config], decisions)
    )
    assert one == same
    assert dataclasses.is_dataclass(config) and one != other
