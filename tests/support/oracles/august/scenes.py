"""Runs of the plain cluster of August 2026, and what an engine's run has otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.disaggregation import has_pools, numbers
from blis_jax.cluster.instance_groups import per_instance, roles
from blis_jax.cluster.router import slo_targets, tenant_budgets
from blis_jax.core.types import ENCODE, IDLE, ROLES, SLO_CLASSES
from blis_jax.policies.seeds import RandomSource, router_draws
from blis_jax.records.record import RunRecord
from blis_jax.workload.table import RequestTable, from_golden
from tests.support.oracles.august.cluster import Cluster, Whole
from tests.support.oracles.august.instance import NEVER, PoolInstance
from tests.support.oracles.august.records import arrays as arrays_of
from tests.support.oracles.august.router import Draws, Router
from tests.support.oracles.oracle import requests_of_workload
from tests.support.recorded import golden_2026_08

PRIORITIES = (3, 4, 3, -2, -1, -3)  # of no class, critical, standard, sheddable, batch, background
OWN = ("total-kv-blocks", "max-model-len", "tp")  # what a pool may have of its own
DRAWS = 4096


def _settings(config: ClusterConfig) -> dict[str, Any]:
    """The reference's options, and what follows from them."""
    names = [
        "num_instances",
        "block_size_in_tokens",
        "long_prefill_token_threshold",
        "max_num_running_reqs",
        "max_num_scheduled_tokens",
        "slo_preemption",
        "horizon",
        "kv_cpu_blocks",
        "kv_transfer_bandwidth",
        "kv_transfer_base_latency",
        "latency_model",
        "model",
        "hardware",
        "dp",
        "flow_control",
        "saturation_detector",
        "queue_depth_threshold",
        "kv_cache_util_threshold",
        "max_concurrency",
        "usage_limit_threshold",
        "fairness_policy",
        "max_gateway_queue_depth",
        "per_band_capacity",
        "queue_shedding",
        "request_ttl",
        "in_flight_eviction",
        "admission_latency",
        "routing_latency",
        "cache_signal_delay",
        "pd_decider",
        "pd_prefix_threshold",
        "pd_transfer_contention",
        "encode_decider",
    ]
    found = {name.replace("_", "-"): getattr(config, name) for name in names}
    found["alpha-coeffs"], found["beta-coeffs"] = (
        list(config.alpha_coeffs),
        list(config.beta_coeffs),
    )
    if config.latency_model == "roofline":
        found["alpha-coeffs"] = [0.0, 0.0, 0.0]
    found["dispatch-tick-interval"] = config.dispatch_tick_interval or 1000
    found["refresh"] = config.snapshot_refresh_interval
    found["budgets"] = tenant_budgets(config.tenant_budgets)
    by_deadline = config.dispatch_order == "slo-deadline"
    targets = slo_targets(config.slo_targets)
    found["targets"] = {SLO_CLASSES.index(name): value for name, value in targets.items()}
    found["targets"] = found["targets"] if by_deadline else None
    names_of = {**dict(enumerate(ROLES)), ENCODE: "encode", IDLE: "idle"}
    found["roles"] = [names_of[one] for one in roles(config)] if has_pools(config) else None
    if has_pools(config):
        link = numbers(config)
        found["base-us"], found["bytes-per-us"] = link["base_latency_us"], link["bytes_per_us"]
        found["block-bytes"] = link["block_bytes"]
    return found


def _routers(config: ClusterConfig, seed: int) -> dict[str, Router]:
    def made(policy: str, scorers: list[tuple[str, float]], stream: RandomSource) -> Router:
        return Router(policy, scorers, Draws(router_draws(seed, DRAWS, stream)))

    main = made(config.routing_policy, config.scorers(), RandomSource.ROUTER)
    found = {"cluster": main, "decode": main, "prefill": main}
    streams = {"decode": RandomSource.DECODE_ROUTER, "prefill": RandomSource.PREFILL_ROUTER}
    for pool, stream in streams.items():
        scorers = getattr(config, f"{pool}_scorers")()
        if scorers:
            found[pool] = made("weighted", scorers, stream)
    return found


def run(
    config: ClusterConfig,
    workload: Mapping[str, np.ndarray],
    seed: int = 0,
    timeout_us: np.ndarray | None = None,
    most_events: int = 10**9,
) -> Cluster:
    """The plain cluster once it has run; a time-out of 0 µs is none.

    Raises:
        Endless: it has not come to its end after so many events.
    """
    settings, requests = _settings(config), []
    tenants = from_golden(workload, config.block_size_in_tokens).tenant.tolist()
    most, media = max(PRIORITIES), workload.get("multimodal", [0] * len(tenants))
    for one in requests_of_workload(workload):
        band, timeout = PRIORITIES[one.slo_class], 0
        if timeout_us is not None:
            timeout = int(timeout_us[one.index])
        given = {
            "index": one.index,
            "arrival": one.arrival_us,
            "input_len": one.input_len,
            "output_len": one.output_len,
            "urgency": float(most - band),
            "tokens": one.tokens,
            "slo_class": one.slo_class,
            "deadline": one.arrival_us + timeout if timeout else NEVER,
        }
        has_media = bool(media[one.index])
        requests.append(Whole(one.index, given, tenants[one.index], band, has_media))
    own = {name: per_instance(config, name.replace("-", "_")) for name in OWN}
    instances = [
        PoolInstance(settings | {name: own[name][at] for name in OWN})
        for at in range(config.num_instances)
    ]
    cluster = Cluster(requests, settings, instances, _routers(config, seed))
    cluster.run(most_events)
    return cluster


def differences(record: RunRecord, table: RequestTable, cluster: Cluster) -> list[str]:
    """What the engine's run has otherwise, array by array, as for a recorded run."""
    count = len(cluster.instances)
    recorded = {"instances": [{"index": at, "kv": {}} for at in range(count)]}
    recorded["block_size"] = cluster.config["block-size-in-tokens"]
    arrays = arrays_of(cluster)
    # a record has where a request is; a recording where its tokens would be made. Neither says when nothing began
    is_split = arrays["pd_prefill_instance"] >= 0
    is_first = is_split & (arrays["pd_transfer_start_us"] < 0)
    arrays["instance"] = np.where(is_first, arrays["pd_prefill_instance"], arrays["instance"])
    begun, arrival = arrays["prefill_last_sched"], np.asarray(table.arrival_us)
    delay = np.where(begun < 0, -1, begun - arrival)
    arrays["sched_delay_us"] = np.where(is_first, delay, arrays["sched_delay_us"])
    arrays["prefill_last_sched"] = np.where(begun < 0, arrival - 1, begun)
    scenario: Any = SimpleNamespace(
        arrays=lambda: dict(arrays), recorded=recorded, table=lambda: table
    )
    return golden_2026_08.differences(record, scenario)
