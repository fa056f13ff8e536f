"""What a configuration compiles to: functions, which are static, and numbers, which are traced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blis_jax.config import (
    CRITICAL_CLASSES,
    NO_HORIZON,
    SHEDDABLE_CLASSES,
    ClusterConfig,
)
from blis_jax.latency import registry as latency
from blis_jax.policies import registry
from blis_jax.policies.contract import Policies, Policy
from blis_jax.policies.named import Chosen, numbered
from blis_jax.types import (
    NO_DEFECTS,
    REFERENCE_DEFECTS,
    ClusterParams,
    Mechanism,
    Params,
    PolicyParams,
)


def chosen(config: ClusterConfig, policies: Policies | None = None) -> Chosen:
    """The policies of a run: those handed in, and for the rest those that the configuration names."""
    named = numbered(config)
    if policies is None:
        return named
    routing, scorers = policies.routing, policies.scorers
    if routing is None and (scorers is not None or policies.picker is not None):
        routing = registry.find("routing", "weighted")
    return Chosen(
        admission=policies.admission or named.admission,
        routing=routing or named.routing,
        scorers=named.scorers if scorers is None else scorers,
        picker=policies.picker or named.picker,
        priority=policies.priority or named.priority,
        scheduler=policies.scheduler or named.scheduler,
    )


def mechanism(config: ClusterConfig, policies: Policies | None = None) -> Mechanism:
    """The functions of a run."""
    used = chosen(config, policies)
    cluster, hand_over = _movers(policies)
    return Mechanism(
        admission=used.admission.function(),
        routing=used.routing.function(),
        scorers=tuple(scorer.function() for scorer, _ in used.scorers),
        picker=used.picker.function(),
        priority=used.priority.function(),
        scheduler=used.scheduler.function(),
        latency=latency.model_of(config),
        cluster=cluster.function() if cluster else None,
        hand_over=hand_over.function() if hand_over else None,
        evicts_lowest_priority=config.slo_preemption,
        defects=NO_DEFECTS if config.corrected else REFERENCE_DEFECTS,
    )


def params(
    config: ClusterConfig,
    num_rows: int | None = None,
    policy_seed: int = 0,
    policies: Policies | None = None,
) -> Params:
    """The numbers of a run as a pytree of numpy arrays; `num_rows` is the instance table's size."""
    return Params(
        _cluster_params(config, num_rows or config.num_instances),
        _policy_params(chosen(config, policies), policy_seed, policies),
    )


def _movers(policies: Policies | None) -> tuple[Policy | None, Policy | None]:
    """The policies that take instances down and let requests move on; no setting names one."""
    return (policies.cluster, policies.hand_over) if policies is not None else (None, None)


def _policy_params(used: Chosen, policy_seed: int, policies: Policies | None) -> PolicyParams:
    cluster, hand_over = _movers(policies)
    seed: Any = np.uint64(policy_seed)
    weights: Any = np.asarray([weight for _, weight in used.scorers] or [1.0], np.float64)
    return PolicyParams(
        admission=used.admission.values(),
        routing=used.routing.values(),
        scorers=tuple(scorer.values() for scorer, _ in used.scorers),
        scorer_weights=weights,
        picker=used.picker.values(),
        priority=used.priority.values(),
        scheduler=used.scheduler.values(),
        seed=seed,
        cluster=cluster.values() if cluster else None,
        hand_over=hand_over.values() if hand_over else None,
    )


def _transfer_us(config: ClusterConfig) -> int:
    """Time to bring one block back from the CPU tier, µs."""
    size, bandwidth = config.block_size_in_tokens, config.kv_transfer_bandwidth
    return config.kv_transfer_base_latency + math.ceil(min(size / bandwidth, 2.0**53))


def _cluster_params(config: ClusterConfig, rows: int) -> ClusterParams:
    def per_instance(value: int) -> np.ndarray:
        return np.full((rows,), value, np.int32)

    threshold = np.full((6,), config.long_prefill_token_threshold, np.int32)
    if config.slo_prefill:
        threshold[list(CRITICAL_CLASSES)] = config.slo_prefill_critical
        threshold[list(SHEDDABLE_CLASSES)] = config.slo_prefill_sheddable
    has_cpu_tier = config.kv_cpu_blocks > 0
    arrays: dict[str, Any] = {
        "alpha": np.tile(np.asarray(config.alpha_coeffs, np.float64), (rows, 1)),
        "beta": np.tile(np.asarray(config.beta_coeffs, np.float64), (rows, 1)),
        "total_kv_blocks": per_instance(config.total_kv_blocks),
        "max_num_running_reqs": per_instance(config.max_num_running_reqs),
        "max_num_scheduled_tokens": per_instance(config.max_num_scheduled_tokens),
        "prefill_threshold": np.tile(threshold, (rows, 1)),
        "num_instances": np.int32(config.num_instances),
        "admission_latency_us": np.int64(config.admission_latency),
        "routing_latency_us": np.int64(config.routing_latency),
        "snapshot_refresh_interval_us": np.int64(config.snapshot_refresh_interval),
        "horizon_us": np.int64(min(config.horizon, NO_HORIZON // 2)),
        "kv_cpu_blocks": np.int32(config.kv_cpu_blocks),
        "transfer_us": np.int64(_transfer_us(config)),
        "offload_threshold": np.float64(config.kv_offload_threshold if has_cpu_tier else np.inf),
        "infinity": np.float64(np.inf),
    }
    return ClusterParams(**arrays)
