"""Random scenes behind the gateway's queue, with pools, transfers, outages and an elastic size."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax import Options, simulate
from blis_jax.cluster.config import NO_HORIZON, from_flags
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.policies import ClusterChange, Policies, cluster_policy, pytree
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from tests.engine.scenes.test_moving_scenes import MECHANISMS, MOVES, NODES, OPTIONS, scene
from tests.support.oracles import queued_oracle
from tests.support.scenes import REQUEST_ARRAYS, STEP_ARRAYS, table_of

LEFT = (Status.QUEUE_FULL, Status.SHED, Status.EXPIRED)


def queued_scene(seed: int, mechanism: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A scene of moving requests, of all classes, behind a queue with small and large limits."""
    workload, settings = scene(seed, mechanism)
    rng = np.random.default_rng([seed, 20])

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    workload = workload | {"slo_class": rng.integers(6, size=24).astype(np.int8)}
    return workload, settings | {
        "flow-control": True,
        "saturation-detector": str(pick("never", "concurrency", "concurrency", "utilization")),
        "max-concurrency": int(pick(1, 2, 3, 9)),
        "queue-depth-threshold": pick(1.0, 2.0),
        "kv-cache-util-threshold": pick(0.0005, 0.8),
        "usage-limit-threshold": pick(1.0, 0.6),
        "per-band-capacity": int(pick(0, 0, 0, 3)),
        "max-gateway-queue-depth": int(pick(0, 2, 4)),
        "queue-shedding": bool(pick(False, True, True)),
        "request-ttl": int(pick(0, 0, 9000)),
        "dispatch-tick-interval": int(pick(1000, 370)),
        "admission-latency": int(pick(0, 150)),
        "routing-latency": int(pick(0, 0, 410)),
    }


def sound(record: RunRecord) -> None:
    """What holds in every run: everybody is somewhere once, and nothing comes before what it follows from."""
    assert record.outcome in WHOLE
    assert not {name: count for name, count in violations(record).items() if count}
    assert not any(record.invariant_failures.values())
    requests = record.requests
    if record.outcome == Outcome.COMPLETED:
        ends = (Status.COMPLETED, Status.LOST, Status.EVICTED, *LEFT)
        assert np.isin(requests.status, ends).all()
        assert not record.instances.used_blocks_at_end.any()
    stayed = np.isin(requests.status, (*LEFT, Status.IN_GATEWAY))
    has_come = requests.status != Status.IN_FLIGHT  # others may lie beyond the horizon
    np.testing.assert_array_equal((requests.gateway_wait_us < 0)[has_come], stayed[has_come])
    assert (requests.instance[stayed] < 0).all()
    is_done = requests.status == Status.COMPLETED
    early = requests.ttft_us - requests.gateway_wait_us
    assert (early[is_done] > 0).all()


def check(seed: int, mechanism: str) -> RunRecord:
    return check_scene(*queued_scene(seed, mechanism))


def check_scene(workload: dict[str, np.ndarray], settings: dict[str, Any]) -> RunRecord:
    """The run of a scene, which is equal to the oracle's."""
    cluster = from_flags({**settings, "variant": "scheduling"})
    options = Options(**OPTIONS, kv_model="no-eviction")
    record = simulate(cluster, table_of(workload, **NODES), options)
    expected = queued_oracle.simulate(workload, settings)
    arrays = expected.requests | expected.steps
    for name in (*REQUEST_ARRAYS, *MOVES, "gateway_wait_us"):
        np.testing.assert_array_equal(getattr(record.requests, name), arrays[name], name)
    steps = expand_steps(record, 16)
    for name in STEP_ARRAYS:
        if name != "step_used_blocks" or not record.requests.restarts.any():
            np.testing.assert_array_equal(getattr(steps, name), arrays[name], name)
    sound(record)
    return record


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("part", range(2))
def test_many_scenes_behind_the_queue_are_equal_to_the_oracle(part: int, mechanism: str) -> None:
    found = [check(seed, mechanism) for seed in range(3000 + 50 * part, 3050 + 50 * part)]
    statuses = np.concatenate([record.requests.status for record in found])
    assert all((statuses == one).sum() > 4 for one in LEFT)
    assert sum(int((record.requests.gateway_wait_us > 0).sum()) for record in found) > 60
    if "hand_over_policy" in MECHANISMS[mechanism]:
        assert sum(int(record.requests.hand_overs.sum()) for record in found) > 100
    if "cluster_policy" in MECHANISMS[mechanism]:
        assert sum(int((record.requests.restarts > 0).sum()) for record in found) > 3


ELASTIC = {
    "cluster-policy": "autoscaler",
    "autoscaler-interval-s": 0.002,
    "autoscaler-start-up-s": 0.003,
    "autoscaler-stabilise-s": 0.006,
    "autoscaler-min-instances": 1,
    "autoscaler-max-instances": 4,
    "autoscaler-first-instances": 1,
    "autoscaler-target-load": 2.0,
}
FAILING = {
    "cluster-policy": "outages",
    "outages-mtbf-s": 0.03,
    "outages-mttr-s": 0.01,
    "outages-start-up-s": 0.002,
    "outages-running": 1,
    "outages-reroute-ms": 0.4,
}


def run(seed: int, changes: dict[str, Any], **more: Any) -> RunRecord:
    """A scene without pools behind the queue, with other settings; `more` goes to `simulate`."""
    workload, settings = queued_scene(seed, "outage")
    settings = settings | {"cluster-policy": "none", "hand-over-policy": "none"} | changes
    cluster = from_flags({**settings, "variant": "scheduling"})
    table = table_of(workload, **NODES)
    return simulate(cluster, table, Options(**OPTIONS), seed=seed, **more)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [ELASTIC, FAILING], ids=["autoscaler", "outages"])
@pytest.mark.parametrize("pools", ["none", "pools"])
def test_many_scenes_of_changing_size_keep_what_must_hold(cluster: Any, pools: str) -> None:
    """Outages of several instances, at times of all, and instances that come and go; alone and with pools."""
    found = [run(seed, cluster | {"hand-over-policy": pools}) for seed in range(40)]
    for record in found:
        sound(record)
    assert sum(int(record.instances.times_down.sum()) for record in found) > 30
    assert sum(int((record.requests.gateway_wait_us > 0).sum()) for record in found) > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ELASTIC | dict.fromkeys(("autoscaler-min-instances", "autoscaler-first-instances"), 4),
        FAILING | {"outages-mtbf-s": 1e9},
        {
            "hand-over-policy": "pools",
            "instances": [{"count": 4, "role": "both"}],
        },
    ],
    ids=["size that never changes", "no outage", "pools of both roles"],
)
def test_what_has_no_effect_leaves_the_queue_alone(changes: dict[str, Any]) -> None:
    """Bit for bit the run behind the queue without the policy."""
    for seed in range(5):
        plain, other = run(seed, {}), run(seed, changes)
        assert other.outcome == plain.outcome
        for name in (*REQUEST_ARRAYS, "gateway_wait_us", "left_us"):
            mine, theirs = getattr(other.requests, name), getattr(plain.requests, name)
            np.testing.assert_array_equal(mine, theirs, name)


@pytree
class Left:
    """Whether they have gone."""

    has_left: Any


@cluster_policy(
    start=lambda params, shape: Left(jnp.array(False)),
    next_time=lambda params, state: jnp.where(state.has_left, jnp.inf, 15e3),
)
def all_leave(params: Any, state: Any, context: Any) -> Any:
    """At 15 ms all instances go down for good; their queues leave them."""
    none = jnp.zeros_like(context.is_up)
    return ClusterChange(is_up=none, queue_leaves=~none, delay_us=0.0), Left(~state.has_left)


@pytest.mark.slow
def test_a_run_ends_where_no_instance_will_ever_come_up_again() -> None:
    """Otherwise the queue's ticks would go on for ever; those that wait are at the gateway at the end."""
    never = {"saturation-detector": "concurrency", "request-ttl": 0, "horizon": NO_HORIZON}
    record = run(7, never, policies=Policies(cluster=all_leave))
    assert record.outcome == Outcome.HORIZON and not any(violations(record).values())
    assert (record.requests.status == Status.IN_GATEWAY).sum() > 2
