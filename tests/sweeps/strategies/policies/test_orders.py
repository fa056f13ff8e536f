"""Grouping by shared blocks: what a prompt leaves for others, and where that changes the order of a run."""

import jax.numpy as jnp
import pytest

from blis_jax.cluster import config
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from sweeps.strategies.policies.orders import blocks_for_others, prefix_grouped
from tests.support.scenes import Prompt, flags, table_of, workload_of
from tests.sweeps.strategies.policies.made import asked, paths, queue

pytestmark = pytest.mark.usefixtures("in_64_bits")
OPTIONS = Options(num_slots=64, log_capacity=4096)
TREE = paths([(7, 10), (8, 5)], [(7, 10), (8, 5)], [(7, 10)], [(9, 4)], [])

ORDER = "sweeps/strategies/policies/orders.py:prefix_grouped"


def scene(cached: list[int], waiting: list[bool] | None = None):
    return queue(
        [2] * 5,
        [50, 40, 30, 20, 10],
        waiting=waiting,
        contents=TREE,
        num_cached_blocks=jnp.asarray(cached, jnp.int32),
        priority=jnp.zeros(5),
    )


def test_blocks_count_once_for_every_other_request_that_has_them() -> None:
    """The first two share 10 blocks with two others and 5 with one; the fourth and fifth share nothing."""
    assert blocks_for_others(scene([0] * 5)).tolist() == [25, 25, 20, 0, 0]


def test_cached_blocks_and_requests_that_do_not_wait_count_for_nobody() -> None:
    assert blocks_for_others(scene([12, 12, 10, 0, 0])).tolist() == [3, 3, 0, 0, 0]
    without_second = scene([0] * 5, [True, False, True, True, True])
    assert blocks_for_others(without_second).tolist()[0] == 10


def test_worth_is_that_of_cached_blocks_and_of_those_for_others() -> None:
    value, rank = asked(
        prefix_grouped, scene([12, 0, 10, 0, 0]), cached_block=0.5, shared_block=0.125
    )
    assert (-value).tolist() == [6 + 3 / 8, 25 / 8, 5.0, 0.0, 0.0]
    assert rank.tolist() == [0, 1, 2, 3, 4]


def test_without_worth_it_is_the_order_of_priority() -> None:
    value, _ = asked(prefix_grouped, scene([12, 0, 10, 0, 0]), cached_block=0.0, shared_block=0.0)
    assert value.tolist() == [0.0] * 5


@pytest.mark.slow
def test_the_first_of_a_group_goes_before_one_that_came_earlier_alone() -> None:
    """While the first runs, one alone and two of a group wait, of whose prefix nothing is cached."""
    prompts = [Prompt(0, 200, 40), Prompt(1_000, 200, 2)]
    prompts += [Prompt(2_000 + 100 * n, 200, 2, group=0, prefix_len=160) for n in range(2)]
    table = table_of(workload_of(prompts))
    base = config.from_flags(flags(max_num_running_reqs=1))
    starts = {}
    for worth in (0.0, 1.0):
        numbers = {"scheduler.cached_block": worth, "scheduler.shared_block": worth}
        cluster = base.replace(scheduler=ORDER, **numbers)
        starts[worth] = simulate(cluster, table, OPTIONS).requests.scheduled_step_idx
    assert starts[0.0][1] < starts[0.0][2] < starts[0.0][3]
    assert starts[1.0][2] < starts[1.0][3] < starts[1.0][1]
