"""A feature where it can have no effect: bit for bit the run without it.

Others are with their features: an outage of an idle instance (`policies/movement/test_stops.py`), pools of instances
for both and a cluster that never changes its size (`policies/movement/`, `test_queued_scenes.py`), an index without
delay or loss (`phases/router_view.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from blis_jax import ClusterConfig, Options, over_params, simulate
from blis_jax.core.outcome import Outcome
from blis_jax.engine import mechanism
from blis_jax.records.record import RunRecord
from blis_jax.workload.spec import load_builtin, override
from tests.support.scenes import Prompt, assert_same_arrays, table_of, workload_of

SPEC = override(load_builtin("mixed"), num_requests=60)
PLAIN = ClusterConfig(num_instances=3, routing_policy="least-loaded")
POOLS = ClusterConfig(
    instances=({"count": 1, "role": "prefill"}, {"count": 2, "role": "decode"}),
    routing_policy="least-loaded",
    hand_over_policy="pools",
    pools_link_latency_us=0.0,
    pools_kv_bytes_per_token=0.0,
)


def run(config: ClusterConfig) -> RunRecord:
    (record,) = over_params([config], SPEC, 5)
    assert record.outcome == Outcome.COMPLETED
    return record


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"pools_kv_bytes_per_token": 100_000.0, "pools_link_gb_per_s": 1e12},  # infinite bandwidth
        {"pools_share_link": 1},
    ],
    ids=["infinite bandwidth", "a shared link"],
)
def test_transfers_without_bytes(changes: dict[str, Any]) -> None:
    nothing, other = run(POOLS), run(POOLS.replace(**changes))
    assert nothing.requests.hand_overs.sum() > 40 and not nothing.requests.transfer_us.max()
    assert_same_arrays(nothing, other)


@pytest.mark.slow
def test_pools_without_a_transfer_for_requests_one_by_one() -> None:
    """A request that meets nobody takes its time, wherever the KV of its prompt is computed."""
    rng = np.random.default_rng(3)
    prompts = [
        Prompt(400_000 * at, int(rng.integers(1, 300)), int(rng.integers(1, 40)))
        for at in range(20)
    ]
    table, options = table_of(workload_of(prompts)), Options(num_slots=32)
    apart = simulate(POOLS, table, options)
    alone = simulate(ClusterConfig(num_instances=1), table, options)
    assert apart.requests.hand_overs.sum() > 15
    for name in ("status", "queued_at_us", "sched_delay_us", "ttft_us", "e2e_us", "num_itl"):
        mine, theirs = getattr(apart.requests, name), getattr(alone.requests, name)
        np.testing.assert_array_equal(mine, theirs, name)


@pytest.mark.slow
@pytest.mark.parametrize("running", [0, 1, 2])
def test_an_outage_after_the_last_request(running: int) -> None:
    plain = run(PLAIN)
    end_s = (plain.requests.arrival_us + plain.requests.e2e_us).max() / 1e6
    late = {"outage_at_time_s": float(end_s + 1e-3), "outage_at_running": running}
    outage = run(PLAIN.replace(cluster_policy="outage-at", **late))
    # only a cluster whose instances may go down has these
    assert_same_arrays(plain, outage, without=("handed_gap_us", "num_completed_itl"))
    assert (outage.requests.handed_gap_us == -1).all()


@pytest.mark.slow
@pytest.mark.parametrize("detector", ["never", "concurrency"])
def test_a_queue_of_unlimited_capacity(detector: str) -> None:
    """Every request leaves the gateway when it comes."""
    roomy = {"saturation_detector": detector, "max_concurrency": 10**6}
    queued = run(PLAIN.replace(flow_control=True, **roomy))
    assert not queued.requests.gateway_wait_us.any()
    assert_same_arrays(run(PLAIN), queued, without=("gateway_wait_us",))


@pytest.mark.slow
def test_time_on_the_network_is_time_before_the_queue() -> None:
    """`network_delay` is as much more of the first α."""
    more = 700
    alpha = [PLAIN.alpha_coeffs[0] + more, *PLAIN.alpha_coeffs[1:]]
    one, other = run(PLAIN.replace(network_delay=more)), run(PLAIN.replace(alpha_coeffs=alpha))
    assert_same_arrays(one, other)
    assert (one.requests.queued_at_us != run(PLAIN).requests.queued_at_us).all()


@pytest.mark.parametrize(
    "nothing",
    [
        {"network_delay": 0},
        {"prefix_index_loss": 0.0},
        {"prefix_index_delay": 0},
        {"num_gateways": 1},
    ],
    ids=lambda nothing: next(iter(nothing)),
)
def test_a_setting_of_nothing_is_no_setting(nothing: dict[str, Any]) -> None:
    """The same program and the same numbers; those programs that can do more are compared where they are tested."""
    config = PLAIN.replace(routing_policy="weighted")
    plain, other = config, config.replace(**nothing)
    assert mechanism.mechanism(plain) == mechanism.mechanism(other)
    leaves = [jax.tree.leaves(mechanism.params(each)) for each in (plain, other)]
    for one, two in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, two)
