import dataclasses

import jax
import numpy as np
import pytest

from surrogate.data import Data
from surrogate.fitting.fit import EPOCHS_PER_CALL, FitState, Settings, epochs_of, fit, init
from surrogate.fitting.learn import samples_of

pytestmark = pytest.mark.lenient_promotion  # optax scales arrays by numbers


def leaves(state: FitState) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.mark.slow
def test_members_differ_and_the_same_seed_gives_the_same_bits(
    data: Data, settings: Settings
) -> None:
    samples, _ = samples_of(data)
    short = dataclasses.replace(settings, steps=100)
    once, again = fit(short, samples), fit(short, samples)
    for one, other in zip(leaves(once), leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
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
    for one, other in zip(leaves(whole), leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(init(longer, samples).epoch) == 0


@pytest.mark.slow
def test_loss_falls(data: Data, settings: Settings) -> None:
    samples, _ = samples_of(data)
    losses: list[float] = []
    fit(settings, samples, None, lambda state, loss: losses.append(loss))
    assert losses[-1] < losses[0] / 2
