"""Random scenes of `blis-2026-08` with pools behind the gateway's queue: every array is that of the plain cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from blis_jax import Options, simulate
from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.records.invariants import violations
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import expand_steps
from blis_jax.workload.table import RequestTable, with_timeouts
from tests.support.oracles.august import scenes
from tests.support.oracles.august.cluster import Cluster, Endless
from tests.support.scenes import REQUEST_ARRAYS, Prompt, table_of, workload_of

OPTIONS = Options(
    num_slots=32, num_blocks=64, list_blocks=24, num_shared_blocks=64, log_capacity=4096
)
NODES = {"num_nodes": 8, "depth": 2}
COUNT = 32
MOST_EVENTS = 3000  # of the plain cluster: scenes that end have some hundreds
FAST = (2, 5, 6, 7)
_BETA = (0.152128, 0.0, 1.36252915, 0.752037, 32.09546717, 4.41684444, 126.024825, 481.8613888)
_BETA += (0.0, 1.94710771, 0.752037)  # those that the profile has by default
SHARED = {"prefill_decode_instances": 4}
MECHANISMS: dict[str, dict[str, Any]] = {
    "round-robin": {"flow_control": True},
    "least-loaded, evictions, budgets": {
        "flow_control": True,
        "routing_policy": "least-loaded",
        "in_flight_eviction": True,
        "tenant_budgets": "0=0.5",
    },
    "weighted, own scorers, cached prefixes": {
        "flow_control": True,
        "routing_policy": "weighted",
        "prefill_routing_scorers": "load-balance:1",
        "pd_decider": "prefix-threshold",
        "in_flight_eviction": True,
    },
    "budgets without the queue": {"routing_policy": "least-loaded", "tenant_budgets": "0=0.5"},
}


@dataclass(frozen=True)
class Scene:
    """A workload and a cluster."""

    workload: dict[str, np.ndarray]
    table: RequestTable
    config: ClusterConfig
    timeout_us: np.ndarray | None


def scene(seed: int, mechanism: str, has_timeouts: bool = False) -> Scene:
    """32 requests of all classes on four instances, at times that ticks, transfers and arrivals have in common."""
    rng = np.random.default_rng([seed, 81])

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    every = int(pick(1, 500, 1000))
    span = int(pick(20_000, 60_000, 200_000))
    prompts = [
        Prompt(
            every * int(rng.integers(span // every)),
            int(rng.integers(1, 240)),
            int(pick(1, 1, 2, 8, 30)),
            int(rng.integers(6)),
            int(rng.integers(-1, 3)),
            48,
        )
        for _ in range(COUNT)
    ]
    workload = workload_of(prompts) | {"tenant": rng.integers(3, size=COUNT).astype(np.int16)}
    pools = pick(
        {"prefill_instances": 1, "decode_instances": 2},
        {"prefill_instances": 2, "decode_instances": 1, "prefill_decode_instances": 1},
        {"prefill_instances": 1, "prefill_decode_instances": 2},
        SHARED,
    )
    settings = MECHANISMS[mechanism]
    if "tenant_budgets" in settings:
        settings = settings | {"tenant_budgets": str(pick("0=0.1,1=0.3", "0=0.05,2=0", "1=0.2"))}
    if settings.get("pd_decider") == "prefix-threshold":
        settings = settings | {"pd_prefix_threshold": int(pick(0, 16, 100))}
    else:
        settings = settings | {"pd_decider": str(pick("always", "always", "always", "never"))}
    config = _cluster(pick, pools | settings)
    timeout = rng.integers(20_000, 200_000, COUNT) if has_timeouts else None
    table = table_of(workload, **NODES)
    if timeout is not None:
        table = with_timeouts(table, timeout)
    return Scene(workload, table, config, timeout)


def _cluster(pick: Callable[..., Any], settings: dict[str, Any]) -> ClusterConfig:
    """A cluster with these settings, the others small and large."""
    return ClusterConfig(
        revision=AUGUST,
        model="meta-llama/llama-3.1-8b-instruct",
        hardware="H100",
        latency_model="trained-physics",
        tp=1,
        alpha_coeffs=(float(pick(0, 1000, 1500)), 777.0, 45.0),
        beta_coeffs=_BETA,
        num_instances=4,
        total_kv_blocks=int(pick(24, 40, 60)),
        max_num_running_reqs=int(pick(2, 4, 64)),
        max_num_scheduled_tokens=int(pick(100, 400, 2048)),
        snapshot_refresh_interval=int(pick(0, 1000, 5000)),
        cache_signal_delay=int(pick(0, 1000, 7000)),
        pd_transfer_bandwidth=float(pick(1e9, 25.0, 0.5)),
        pd_transfer_base_latency=float(pick(0.999, 0.499, 0.05)),
        pd_transfer_contention=bool(pick(False, True)),
        saturation_detector=str(pick("never", "concurrency", "concurrency", "utilization")),
        max_concurrency=int(pick(1, 2, 5)),
        queue_depth_threshold=float(pick(1.0, 3.0)),
        kv_cache_util_threshold=float(pick(0.2, 0.8)),
        usage_limit_threshold=float(pick(1.0, 0.6)),
        per_band_capacity=int(pick(0, 0, 3)),
        max_gateway_queue_depth=int(pick(0, 0, 4, 9)),
        queue_shedding=bool(pick(False, True)),
        fairness_policy=str(pick("global-strict", "round-robin")),
        dispatch_order=str(pick("fifo", "slo-deadline")),
        slo_targets=str(pick("critical=4000,batch=90000", "standard=9000")),
        request_ttl=int(pick(0, 0, 20_000)),
        dispatch_tick_interval=int(pick(500, 1000, 370)),
        admission_latency=int(pick(0, 0, 500)),
        routing_latency=int(pick(0, 0, 1000)),
        **settings,
    )


def both(one: Scene, seed: int) -> tuple[RunRecord, Cluster] | None:
    """The engine's run and the plain cluster after its own; None if that would never end."""
    try:
        plain = scenes.run(one.config, one.workload, seed, one.timeout_us, MOST_EVENTS)
    except Endless:
        return None
    return simulate(one.config, one.table, OPTIONS, seed), plain


def check(seed: int, mechanism: str, has_timeouts: bool = False) -> RunRecord | None:
    """The record of a scene, equal to the plain cluster; None if that would never end."""
    one = scene(seed, mechanism, has_timeouts)
    found = both(one, seed)
    if found is None:
        return None
    record, plain = found
    assert record.outcome in WHOLE, seed
    assert scenes.differences(record, one.table, plain) == [], seed
    assert not any(violations(record).values()), seed
    return record


def checked(seeds: range, mechanism: str, has_timeouts: bool = False) -> list[RunRecord]:
    """The records of all scenes that come to an end, each of them equal to the plain cluster."""
    found = [check(seed, mechanism, has_timeouts) for seed in seeds]
    return [record for record in found if record is not None]


def count(records: list[RunRecord], status: Status) -> int:
    return sum(int((record.requests.status == status).sum()) for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_many_scenes_are_equal_to_the_plain_cluster(mechanism: str) -> None:
    """Every array of requests, parts and steps."""
    found = checked(range(70), mechanism)
    assert len(found) > 50
    assert sum(int(record.splits.is_split.sum()) for record in found if record.splits) > 500
    settings = MECHANISMS[mechanism]
    assert count(found, Status.DROPPED) > 50
    if "flow_control" in settings:
        assert sum(int((record.requests.gateway_wait_us > 0).sum()) for record in found) > 200
        assert all(
            count(found, one) > 10 for one in (Status.QUEUE_FULL, Status.EXPIRED, Status.SHED)
        )
    if "in_flight_eviction" in settings:
        assert count(found, Status.EVICTED) > 10
    if "tenant_budgets" in settings:
        assert count(found, Status.REJECTED) > 50


@pytest.mark.slow
def test_requests_whose_time_is_up_are_equal_to_the_plain_cluster() -> None:
    """In seed 101 the time of two is up while their KV is on its way."""
    found = checked(range(100, 130), "round-robin", has_timeouts=True)
    assert len(found) > 20 and count(found, Status.TIMED_OUT) > 100


@pytest.mark.slow
def test_scenes_of_one_program_are_equal_to_the_plain_cluster() -> None:
    assert len(checked(FAST, "least-loaded, evictions, budgets")) == len(FAST)


@pytest.mark.slow
def test_a_queue_that_holds_nothing_back_leaves_pools_as_they_are() -> None:
    """Every array of the run without the queue, where requests come one after another."""
    changes = {"saturation_detector": "never", "max_gateway_queue_depth": 0, "per_band_capacity": 0}
    for seed in (0, 3):
        one = scene(seed, "round-robin")
        queued = simulate(one.config.replace(**changes), one.table, OPTIONS, seed)
        plain = simulate(one.config.replace(flow_control=False), one.table, OPTIONS, seed)
        for name in REQUEST_ARRAYS:
            mine, theirs = getattr(queued.requests, name), getattr(plain.requests, name)
            np.testing.assert_array_equal(mine, theirs, name)
        for mine, theirs in zip(expand_steps(queued, 16), expand_steps(plain, 16), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("pools", [{}, {"prefill_instances": 1, "decode_instances": 1}], ids=str)
def test_a_batch_whose_last_member_is_evicted_makes_no_step(pools: dict[str, int]) -> None:
    """The evicted request runs alone, and the urgent one comes after the step that was scheduled."""
    workload = workload_of([Prompt(0, 64, 200, 3), Prompt(40_000, 64, 3, 1)])
    table = table_of(workload)
    config = ClusterConfig(
        revision=AUGUST,
        model="meta-llama/llama-3.1-8b-instruct",
        hardware="H100",
        num_instances=2 if pools else 1,
        flow_control=True,
        in_flight_eviction=True,
        saturation_detector="utilization",
        kv_cache_util_threshold=0.00001,
        total_kv_blocks=60,
        snapshot_refresh_interval=0,
        **pools,
    )
    record = simulate(config, table, OPTIONS)
    assert record.requests.status.tolist() == [Status.EVICTED, Status.COMPLETED]
    assert scenes.differences(record, table, scenes.run(config, workload)) == []
