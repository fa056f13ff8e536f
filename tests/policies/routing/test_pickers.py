"""The n-th of a mask; ties by BLIS's stream: the numbers of Go's `Intn`, one draw a tie, and an end that says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.core.types import LAST, NO_DRAW
from blis_jax.policies.routing.pickers import DrawState, draw_below, nth_where, one_of
from blis_jax.policies.seeds import RandomSource, policy_seed, router_draws
from blis_jax.workload.go_random import Stream, subsystem_seed

pytestmark = pytest.mark.usefixtures("in_64_bits")

SEED, COUNT = 42, 300


@pytest.fixture(scope="module")
def draws():
    return jnp.asarray(router_draws(policy_seed(SEED), COUNT, RandomSource.ROUTER))


@pytest.mark.parametrize("limit", [2, 3, 4, 7, 64, 1000])
def test_numbers_are_those_of_the_stream(draws, limit):
    stream, used = Stream(subsystem_seed(SEED, "router")), jnp.int32(0)
    draw = jax.jit(draw_below)
    for _ in range(40):
        value, used = draw(draws, used, jnp.int32(limit))
        assert int(value) == stream.intn(limit)


def test_a_refused_number_is_drawn_again():
    """Below 3 the last of the 2^31 numbers belongs to no whole third."""
    limit, last = 3, 2**31 - 1
    draws = jnp.array([last, 7], jnp.int32)
    value, used = draw_below(draws, jnp.int32(0), jnp.int32(limit))
    assert (int(value), int(used)) == (1, 2)


def test_nothing_is_drawn_without_a_tie(draws):
    alone = jnp.array([False, True, False])
    chosen, state = one_of(alone, draws, DrawState(jnp.int32(5)))
    assert (int(chosen), int(state.used)) == (1, 5)
    tied = jnp.array([True, False, True])
    chosen, state = one_of(tied, draws, DrawState(jnp.int32(5)))
    assert int(state.used) == 6
    assert int(chosen) == (0 if draws[5] % 2 == 0 else 2)


def test_a_stream_that_has_ended_chooses_nobody():
    tied = jnp.array([True, True])
    chosen, _ = one_of(tied, jnp.array([4], jnp.int32), DrawState(jnp.int32(1)))
    assert int(chosen) == NO_DRAW


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 64, 65, 96, 1000, 2100])
def test_the_nth_true_entry_of_masks_of_any_length(size: int, share: float):
    mask = np.random.default_rng(size).random(size) < share
    there = np.flatnonzero(mask)
    places = np.arange(-1, len(there) + 2)
    expected = [there[place] if 0 <= place < len(there) else int(LAST) for place in places]
    found = jax.jit(jax.vmap(lambda place: nth_where(jnp.asarray(mask), place)))
    np.testing.assert_array_equal(found(jnp.asarray(places, jnp.int32)), expected)
