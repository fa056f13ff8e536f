"""Choices by the hash of a prompt's head: cache-aware power of two choices, and session hashing with a bound."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, simulate
from sweeps.strategies.policies.hashes import (
    cached_of_two,
    hashed_rank,
    leading_key,
    session_hashed,
)
from tests.policies.contexts import asked, choice
from tests.support.scenes import Prompt, table_of, workload_of


@pytest.fixture(autouse=True)
def with_x64():
    with jax.enable_x64(True):
        yield


IDLE = [0, 0, 0, 0]


def order(**prompt) -> list[int]:
    """The instances in the order of the prompt's hash."""
    context = asked(prompt.pop("loads", IDLE), **prompt)
    rank = hashed_rank(context, leading_key(context, jnp.float64(1)))
    return np.argsort(np.asarray(rank)).tolist()


def test_the_order_follows_content_and_seed():
    assert order(content=3, own=1) == order(content=3, own=2)
    orders = {tuple(order(content=content)) for content in range(40)}
    assert len(orders) > 12  # of 24
    assert len({tuple(order(content=3, seed=seed)) for seed in range(40)}) > 12
    assert len({tuple(order(own=own)) for own in range(40)}) > 12


def test_an_instance_that_joins_moves_no_others():
    for content in range(20):
        large = order(loads=[0] * 5, content=content)
        assert [one for one in large if one < 4] == order(content=content)


@pytest.mark.parametrize(("blocks", "is_shared"), [(1, True), (4, True), (5, False), (99, False)])
def test_a_key_is_shared_as_far_as_the_content_reaches(blocks, is_shared):
    keys = {
        int(leading_key(asked(IDLE, content=3, own=own), jnp.float64(blocks))) for own in range(3)
    }
    assert len(keys) == (1 if is_shared else 3)


def two(**prompt) -> tuple[int, int]:
    first, second, *_ = order(**prompt)
    return first, second


@pytest.mark.parametrize(("excess", "takes_warm"), [(0, True), (3, True), (4, False), (9, False)])
def test_the_warm_one_wins_up_to_what_it_saves(excess, takes_warm):
    """6 blocks of 1,000 µs save three steps of 2,000 µs: three requests ahead are worth it, four are not."""
    first, second = two(content=3)
    for warm, cold in ((first, second), (second, first)):
        loads, matched = [50, 50, 50, 50], [9, 9, 9, 9]
        loads[warm], loads[cold] = 5 + excess, 5
        matched[warm], matched[cold] = 8, 2
        taken = choice(
            cached_of_two, asked(loads, matched, content=3), block_us=1000.0, step_us=2000.0
        )
        assert taken == (warm if takes_warm else cold)


def test_without_a_match_the_less_loaded_of_the_two_wins_and_of_equals_the_first():
    first, second = two(content=3)
    loads = [0, 0, 0, 0]
    assert choice(cached_of_two, asked(loads, content=3)) == first
    loads[first] = 1
    assert choice(cached_of_two, asked(loads, content=3)) == second


def test_of_one_active_instance_that_one_is_taken():
    context = asked([7, 0, 0], content=1, is_active=[True, False, False])
    assert choice(cached_of_two, context) == 0
    assert choice(session_hashed, context) == 0


@pytest.mark.parametrize(
    ("home", "others", "stays"),
    [(0, 0, True), (4, 4, False), (5, 4, False), (3, 4, True), (2, 0, False)],
)
def test_a_session_stays_while_its_instance_is_within_the_bound(home, others, stays):
    """With slack 1 an instance may have the mean rounded up, this request included.

    4 and 4, 4, 4: 17 requests, 5 each; the home would have its fifth.
    """
    first, *_ = order(content=3)
    loads = [others] * 4
    loads[first] = home
    share = -(-(sum(loads) + 1) // 4)
    assert stays == (home + 1 <= share) or (home, others) == (4, 4)
    taken = choice(session_hashed, asked(loads, content=3), slack=1.0)
    assert (taken == first) == (home + 1 <= share)


def test_a_session_over_the_bound_goes_to_the_next_in_its_order():
    first, second, third, _ = order(content=3)
    loads = [0, 0, 0, 0]
    loads[first] = loads[second] = 9
    assert choice(session_hashed, asked(loads, content=3)) == third
    assert choice(session_hashed, asked(loads, content=3), slack=4.0) == first


def sessions(rounds: int = 12) -> list[Prompt]:
    """Five sessions with a head of their own, so slowly that no instance has two requests."""
    return [
        Prompt(60_000 * (5 * turn + group), 160, 2, group=group, prefix_len=128)
        for turn in range(rounds)
        for group in range(5)
    ]


@pytest.mark.slow
def test_in_a_run_every_session_keeps_its_instance_until_the_bound_spreads_it():
    config = ClusterConfig(
        num_instances=4, routing_policy="sweeps/strategies/policies/hashes.py:session_hashed"
    )
    table = table_of(workload_of(sessions()))
    homes = simulate(config, table).requests.instance.reshape(-1, 5)
    assert (homes == homes[0]).all()
    other = {tuple(simulate(config, table, seed=seed).requests.instance[:5]) for seed in range(4)}
    assert len(other) > 1  # every seed has a hash of its own
    crowd = [Prompt(10 * at, 160, 20, group=0, prefix_len=128) for at in range(60)]
    spread = simulate(config, table_of(workload_of(crowd))).requests.instance
    assert np.bincount(spread, minlength=4).max() <= 1.25 * 60 / 4 + 2
    loose = simulate(config.replace(**{"routing.slack": 4.0}), table_of(workload_of(crowd)))
    assert len(set(loose.requests.instance)) == 1


@pytest.mark.slow
def test_in_a_run_the_two_candidates_of_a_session_get_all_of_it():
    config = ClusterConfig(
        num_instances=4, routing_policy="sweeps/strategies/policies/hashes.py:cached_of_two"
    )
    crowd = [Prompt(100 * at, 160, 20, group=0, prefix_len=128) for at in range(60)]
    taken = simulate(config, table_of(workload_of(crowd))).requests.instance
    assert sorted(np.bincount(taken, minlength=4)) == [0, 0, 30, 30]
    calm = simulate(config, table_of(workload_of(sessions()))).requests.instance.reshape(-1, 5)
    assert (calm == calm[0]).all()
