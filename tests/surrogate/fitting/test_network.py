from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surrogate.columns import InputColumn
from surrogate.data import Data
from surrogate.fitting.learn import samples_of
from surrogate.fitting.network import (
    EPOCHS_PER_CALL,
    LEVELS,
    FitState,
    Network,
    Settings,
    epochs_of,
    features,
    fit,
    gate,
    init,
    quantiles,
)
from tests.surrogate.made_data import COLUMNS


def at(*values: float) -> np.ndarray:
    return np.asarray(features(COLUMNS, jnp.asarray([values], jnp.float32)))[0]


def test_ends_of_ranges_are_minus_one_and_one() -> None:
    low, high = at(0.5, 1, 0), at(2.0, 100, 0)
    assert len(low) == 7
    np.testing.assert_allclose(low[:2], [-1, -1], atol=1e-6)  # linear and logarithm of load
    np.testing.assert_allclose(high[:2], [1, 1], atol=1e-6)
    np.testing.assert_allclose(high[3:5], [1, 1], atol=1e-6)


def test_no_limit_is_marked_and_stands_at_the_high_end() -> None:
    unlimited, high = at(1.0, 0, 0), at(1.0, 100, 0)
    assert unlimited[2] == 1 and high[2] == 0
    np.testing.assert_array_equal(unlimited[3:], high[3:])


def test_categories_have_a_number_each() -> None:
    assert at(1.0, 5, 0)[-2:].tolist() == [1, 0]
    assert at(1.0, 5, 1)[-2:].tolist() == [0, 1]


def test_log_range_is_even_in_factors() -> None:
    columns = (InputColumn("weight", "real", 1e-6, 1e-4, is_log=True),)
    seen = features(columns, jnp.asarray([[1e-6], [1e-5], [1e-4]], jnp.float32))
    np.testing.assert_allclose(np.asarray(seen)[:, 0], [-1, 0, 1], atol=1e-5)


WEIGHTS = tuple(
    InputColumn(name, "real", 0.1, 5.0, fixed_weights=1.0) for name in ("queue", "prefix")
)


def test_weights_are_also_seen_by_their_shares() -> None:
    seen = np.asarray(features(WEIGHTS, jnp.asarray([[1.0, 2.0], [4.0, 0.0]], jnp.float32)))
    np.testing.assert_allclose((seen[:, -2:] + 1) / 2, [[0.25, 0.5], [0.8, 0.0]], atol=1e-6)
    slopes = jax.jacobian(lambda x: features(WEIGHTS, x))(jnp.zeros((1, 2), jnp.float32))
    assert np.isfinite(np.asarray(slopes)).all()


def test_the_only_weight_has_no_share() -> None:
    alone = tuple(InputColumn("queue", "real", 1.0, 5.0, fixed_weights=part) for part in (0.0, 2.0))
    one = jnp.ones((1, 1), jnp.float32)
    assert [features((column,), one).shape[1] for column in alone] == [2, 3]


def test_derivatives_are_finite_at_the_edges() -> None:
    for values in ([0.5, 0.0, 0.0], [2.0, 100.0, 1.0], [-3.0, -7.0, 0.0]):
        point = jnp.asarray([values], jnp.float32)
        slopes = jax.jacobian(lambda x: features(COLUMNS, x))(point)
        assert np.isfinite(np.asarray(slopes)).all()


pytestmark = pytest.mark.lenient_promotion  # optax scales arrays by numbers


@pytest.mark.slow
def test_members_differ_and_the_same_seed_gives_the_same_bits(
    data: Data, settings: Settings
) -> None:
    samples, _ = samples_of(data)
    short = dataclasses.replace(settings, steps=100)
    once, again = fit(short, samples), fit(short, samples)
    jax.tree.map(np.testing.assert_array_equal, once, again)
    kernel = np.asarray(once.params["params"]["mean"]["kernel"])
    assert not np.array_equal(kernel[0], kernel[1])


@pytest.mark.slow
def test_going_on_from_a_state_ends_where_an_unbroken_fit_ends(
    data: Data, settings: Settings
) -> None:
    samples, _ = samples_of(data)
    longer = dataclasses.replace(settings, steps=300)
    assert epochs_of(longer, len(samples.means)) == 2 * EPOCHS_PER_CALL
    seen: list[FitState] = []
    whole = fit(longer, samples, None, lambda state, loss: seen.append(state))
    resumed = fit(longer, samples, seen[0])
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    assert int(init(longer, samples).epoch) == 0


@pytest.mark.slow
def test_loss_falls(data: Data, settings: Settings) -> None:
    samples, _ = samples_of(data)
    losses: list[float] = []
    fit(settings, samples, None, lambda state, loss: losses.append(loss))
    assert losses[-1] < losses[0] / 2


def test_quantiles_never_cross() -> None:
    steps = jax.random.normal(jax.random.key(0), (200, 3, len(LEVELS))) * 10
    assert (np.diff(np.asarray(quantiles(steps)), axis=-1) > 0).all()


@pytest.mark.slow
def test_heads_have_one_entry_an_output() -> None:
    network = Network(3, width=8, depth=1)
    params = network.init(jax.random.key(0), jnp.zeros((1, 4)))
    heads = network.apply(params, jnp.zeros((5, 4)))
    assert [head.shape for head in heads] == [(5, 3), (5, 3), (5, 3, len(LEVELS)), (5, 32)]


def test_spread_heads_do_not_move_the_trunk() -> None:
    network = Network(2, width=8, depth=1)
    x = jnp.ones((3, 4))
    params = network.init(jax.random.key(0), x)
    slopes = jax.grad(lambda p: network.apply(p, x).log_sd.sum())(params)["params"]
    assert not np.asarray(slopes["Dense_0"]["kernel"]).any()
    assert np.asarray(slopes["narrow"]["kernel"]).any()


def test_gate_is_a_smooth_rectifier() -> None:
    assert abs(float(gate(jnp.float32(-50.0)))) < 0.01
    assert abs(float(gate(jnp.float32(50.0))) - 50.0) < 0.01
    assert float(jax.grad(gate)(jnp.float32(0.0))) == 0.5
