"""Requests whose time is up while they wait with blocks of their own."""

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.results.records import Status
from blis_jax.runs.simulation import Options, simulate
from blis_jax.workload.table import with_timeouts
from tests.support.scenes import Prompt, table_of, workload_of


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
