"""Requests whose time is up while they wait with blocks of their own."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import Parts
from blis_jax.engine.phases.departures.giving_up import next_drop
from blis_jax.records.record import Status
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.tables.journeys import Dismissals, Reservations
from blis_jax.workload.table import with_timeouts
from tests.support.scenes import Prompt, table_of, workload_of


def test_kv_is_dropped_that_comes_after_its_instance_was_told_to_go():
    """In order of its coming and of the transfers' beginning; neither what was dropped, nor what an instance awaits."""
    never = jnp.int32(2**31 - 1)
    target, turn, is_dropped = [1, 1, 0, 1, -1, 1, -1], [2, 1, 0, 3, 0, 4, 0], [0, 0, 0, 1, 0, 0, 0]
    numbers = jnp.array([target, turn, is_dropped], jnp.int32).T
    ends = jnp.array([150, 150, 120, 120, never, 100, never], jnp.int32)[:, None]
    ctx: Any = SimpleNamespace(never=never)

    def dropped(*gone_at: Any) -> list[int]:
        told = Dismissals(jnp.array(gone_at, jnp.int32))
        state: Any = Parts(Reservations(numbers, ends, ends[:1, 0]), told)
        return [int(one) for one in next_drop(ctx, state)]

    assert dropped(never, 100) == [150, 1]
    assert dropped(110, 200) == [120, 2]
    assert dropped(never, never)[0] == never


@pytest.mark.slow
def test_kv_that_came_is_released():
    """Ten requests wait on the decode instance when their time is up; nothing stays used, as in BLIS."""
    prompts = [Prompt(10 * index, 160, 200) for index in range(12)]
    table = with_timeouts(table_of(workload_of(prompts)), np.full(12, 900_000))
    cluster = ClusterConfig(
        revision=AUGUST,
        model="meta-llama/llama-3.1-8b-instruct",
        hardware="H100",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
        max_num_running_reqs=2,
        total_kv_blocks=300,
    )
    record = simulate(cluster, table, Options(num_slots=64, num_blocks=512, list_blocks=64))
    assert record.outcome == Outcome.COMPLETED
    assert (record.requests.status == Status.TIMED_OUT).all()
    assert record.instances.used_blocks_at_end.tolist() == [0, 0]


@pytest.mark.slow
def test_a_run_lasts_until_kv_has_come_that_nobody_wants_any_more():
    """BLIS gives a decode part up in a step of its own, when its transfer has ended; 6.707067 s are its figure."""
    arrivals = zip((199_999, 399_998, 599_997), (185, 478, 321), strict=True)
    prompts = [Prompt(arrival, length, 512) for arrival, length in arrivals]
    table = with_timeouts(table_of(workload_of(prompts)), np.full(3, 1_000_000))
    cluster = ClusterConfig(
        revision=AUGUST,
        model="meta-llama/llama-3.1-8b-instruct",
        hardware="H100",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
        pd_transfer_bandwidth=0.01,
    )
    record = simulate(cluster, table, Options(num_slots=16))
    assert (record.requests.status == Status.TIMED_OUT).all()
    assert record.instances.sim_ended_time_us.max() == 6_707_067
