"""What the router hands over: by hand, and on its way through a run."""

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError, Policies, simulate
from blis_jax.policies import priority_policy, routing_policy
from blis_jax.policies.queue_order import slo_tiered
from blis_jax.runs.options import Options
from sweeps.strategies.policies.intent import intent_tiered
from tests.support.scenes import burst, table_of, workload_of
from tests.sweeps.strategies.policies.made import asked, queue

pytestmark = pytest.mark.usefixtures("in_64_bits")
NUMBERS = {
    "base_critical": 4.0,
    "age_weight": 1e-5,
    "grace_standard_us": 0,
    "grace_sheddable_us": 0,
}


def test_a_lead_is_age_and_expected_blocks_are_priority() -> None:
    context = queue(
        [1, 2, 3], [10_000, 20_000, 30_000], expected=[0, 8, 0], handed=jnp.array([0.0, 0.0, 5e4])
    )
    plain = asked(slo_tiered, context, **NUMBERS)
    mine = asked(intent_tiered, context, expected_block=0.25, **NUMBERS)
    np.testing.assert_allclose(mine - plain, [0.0, 2.0, 0.5], rtol=1e-12)


def shorter_sooner(params, context, instance):
    """Hands over minus the prompt's length."""
    return -context.request.input_len.astype(jnp.float64)


@routing_policy(hands=shorter_sooner)
def in_turns(params, state, context):
    """By the request's place in the order of arrival."""
    return context.request.tie_rank % 2, state


@priority_policy()
def by_what_was_handed(params, state, context):
    """Nothing else."""
    return context.handed, state


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rows", "lanes"])
def test_the_number_reaches_the_queue_of_the_instance(form: str) -> None:
    """Handing over minus the length makes shortest job first; nobody handing over makes arrival order."""
    table = table_of(workload_of(burst(3)))
    cluster = ClusterConfig(num_instances=2, max_num_running_reqs=2, scheduler="priority-fcfs")
    options = Options(form=form, num_slots=64, log_capacity=4096)
    told = Policies(routing=in_turns, priority=by_what_was_handed)
    handed = simulate(cluster, table, options, policies=told)
    shortest = simulate(
        cluster.replace(scheduler="sjf"), table, options, policies=Policies(routing=in_turns)
    )
    for name in ("instance", "scheduled_step_idx", "ttft_us", "e2e_us"):
        mine, theirs = getattr(handed.requests, name), getattr(shortest.requests, name)
        np.testing.assert_array_equal(mine, theirs)
    assert len(np.unique(handed.requests.scheduled_step_idx)) > 10  # a queue formed


@pytest.mark.slow
def test_where_nothing_is_handed_over_it_is_zero() -> None:
    table = table_of(workload_of(burst(3)))
    cluster = ClusterConfig(num_instances=2, max_num_running_reqs=2, scheduler="priority-fcfs")
    blind = simulate(cluster, table, policies=Policies(priority=by_what_was_handed))
    usual = simulate(cluster, table)
    np.testing.assert_array_equal(blind.requests.ttft_us, usual.requests.ttft_us)


def test_only_the_router_hands_over() -> None:
    with pytest.raises(ConfigError, match="hands=… is for routing policies and scorers"):
        priority_policy(hands=shorter_sooner)
