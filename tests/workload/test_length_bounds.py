"""Means and bounds of the length laws against their own draws."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.workload.drawing import samplers
from blis_jax.workload.drawing.samplers import longest_length

NUM_DRAWS = 200_000
LAWS = {
    "gaussian": samplers.Gaussian(*map(np.float64, (250, 60, 1, 4000))),
    "exponential": samplers.Exponential(np.float64(130)),
    "pareto_lognormal": samplers.ParetoLognormal(*map(np.float64, (4, 50, 4, 0.6, 0.3))),
    "constant": samplers.Constant(np.float64(37)),
    "empirical": samplers.Empirical(np.array([3.0, 40.0, 500.0]), np.array([0.2, 0.9, 1.0])),
}


@pytest.fixture(scope="module", params=LAWS)
def sampled(request):
    with jax.enable_x64(True):
        law = jax.tree.map(jnp.asarray, LAWS[request.param])
        drawn = law.draw(jax.random.key(1), NUM_DRAWS)
        return LAWS[request.param], np.asarray(samplers.whole_tokens(drawn))


@pytest.mark.statistical
def test_the_mean_is_that_of_the_draws(sampled):
    """5 standard errors and a rounding, which adds less than 0.1 tokens to these laws."""
    law, lengths = sampled
    assert abs(law.expected() - lengths.mean()) < 5 * lengths.std() / math.sqrt(NUM_DRAWS) + 0.1


@pytest.mark.statistical
@pytest.mark.parametrize("chance", [1e-1, 1e-2, 1e-3])
def test_few_draws_exceed_the_longest_length(sampled, chance):
    """5 standard deviations of the number of draws that may exceed it."""
    law, lengths = sampled
    longest = longest_length(law, chance)
    most = NUM_DRAWS * chance + 5 * math.sqrt(NUM_DRAWS * chance)
    assert np.sum(lengths > longest) < most
    assert longest <= 4 * np.quantile(lengths, 1 - chance) + 1


def test_bounds_of_the_law_hold_for_any_chance():
    clamped = samplers.Gaussian(*map(np.float64, (250, 60, 100, 270)))
    assert longest_length(clamped, 1e-9) == 270
    assert longest_length(LAWS["constant"], 1e-9) == 37
    assert longest_length(LAWS["empirical"], 1e-9) == 500
    assert longest_length(samplers.Gaussian(*map(np.float64, (-5, 1, 0, 9))), 0.5) == 1


def test_a_tail_without_a_mean_or_an_end():
    heavy = samplers.ParetoLognormal(*map(np.float64, (0.5, 50, 4, 60, 0.3)))
    assert heavy.expected() == math.inf
    assert longest_length(heavy, 1e-9) == samplers.LONGEST_TOKENS
    lognormal = samplers.ParetoLognormal(*map(np.float64, (0.5, 50, 4, 0, 0)))
    assert lognormal.expected() == pytest.approx(math.exp(4))
    assert longest_length(lognormal, 1e-9) == 55
