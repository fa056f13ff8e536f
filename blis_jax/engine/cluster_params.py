"""The numbers of a cluster and its instances, as the engine reads them: `ClusterParams` of a configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from blis_jax.cluster.config import CRITICAL_CLASSES, SHEDDABLE_CLASSES, ClusterConfig
from blis_jax.cluster.instance_groups import per_instance, roles
from blis_jax.cluster.setting_checks import LARGEST_COUNT
from blis_jax.core.types import NO_HORIZON, SLO_CLASSES, ClusterParams
from blis_jax.engine.fleet_params import row_to_copy
from blis_jax.engine.gateway.signals import SignalParams
from blis_jax.latency import registry as latency
from blis_jax.policies.seeds import RandomSource


def _transfer_us(block_size: int, base_latency: int, bandwidth: float) -> int:
    """Time to bring one block back from the CPU tier, µs."""
    return base_latency + math.ceil(min(block_size / bandwidth, 2.0**53))


def _thresholds(whole: int, is_by_class: bool, critical: int, sheddable: int) -> np.ndarray:
    """Most prompt tokens in a step of every SLO class."""
    threshold = np.full((len(SLO_CLASSES),), whole, np.int32)
    if is_by_class:
        threshold[list(CRITICAL_CLASSES)] = critical
        threshold[list(SHEDDABLE_CLASSES)] = sheddable
    return threshold


def _instance_numbers(config: ClusterConfig, rows: int) -> dict[str, Any]:
    """The numbers of every instance; rows beyond the cluster's have the last instance's."""

    def column(*settings: str) -> list[Any]:
        return list(zip(*(per_instance(config, name) for name in settings), strict=True))

    def array(values: Sequence[Any], dtype: Any) -> np.ndarray:
        values = list(values) + [values[row_to_copy(config)]] * (rows - len(values))
        return np.asarray(values, dtype)

    def own(setting: str, dtype: Any) -> np.ndarray:
        return array(per_instance(config, setting), dtype)

    chunks = column(
        "long_prefill_token_threshold",
        "slo_prefill",
        "slo_prefill_critical",
        "slo_prefill_sheddable",
    )
    transfers = column("kv_transfer_base_latency", "kv_transfer_bandwidth")
    size = config.block_size_in_tokens
    alpha = array(latency.alphas(config), np.float64)
    alpha[:, 0] += own("network_delay", np.float64)  # a request is pending on its way, too
    cpu_blocks = own("kv_cpu_blocks", np.int32)
    thresholds = own("kv_offload_threshold", np.float64)
    if config.is_august:  # its tier acts from the first step on
        thresholds = np.full_like(thresholds, -1.0)
    after_decode = {}
    if config.is_august:
        times = latency.times_after_decode(config)
        after_decode = {"post_decode_us": array(times, np.int64)}
    return after_decode | {
        "alpha": alpha,
        "beta": array(latency.vectors(config), np.float64),
        "total_kv_blocks": own("total_kv_blocks", np.int32),
        "max_num_running_reqs": own("max_num_running_reqs", np.int32),
        "max_num_scheduled_tokens": own("max_num_scheduled_tokens", np.int32),
        "prefill_threshold": array([_thresholds(*one) for one in chunks], np.int32),
        "kv_cpu_blocks": cpu_blocks,
        "transfer_us": array([_transfer_us(size, *one) for one in transfers], np.int64),
        "offload_threshold": np.where(cpu_blocks > 0, thresholds, np.inf),
        "roles": array(roles(config), np.int32),
    }


def _signal_params(config: ClusterConfig, rows: int) -> SignalParams:
    """With phases that are alike or even; drawn ones belong to a run."""
    phases: Any = np.zeros(rows)
    if config.snapshot_phases == "even":
        phases = np.arange(rows) / config.num_instances % 1.0
    load_interval = config.load_refresh_interval
    if config.is_august:  # one look for all
        load_interval = config.snapshot_refresh_interval
    arrays: dict[str, Any] = {
        "load_interval_us": np.int64(load_interval),
        "index_delay_us": np.int64(config.prefix_index_delay),
        "index_loss": np.float64(config.prefix_index_loss),
        "phase": phases,
        "has_phases": np.bool_(config.snapshot_phases != "aligned"),
        "counts_in_flight": np.int32(config.in_flight_counts),
    }
    if config.is_august:
        arrays["cache_delay_us"] = np.int64(config.cache_signal_delay)
    return SignalParams(**arrays)


def drawn_phases(signals: SignalParams, rows: int, seed: int) -> SignalParams:
    """Phases are drawn of the policies' seed, so that every seed has its own and all strategies have them in common."""
    phase: Any = np.random.default_rng([seed, int(RandomSource.PHASES.origin)]).random(rows)
    return dataclasses.replace(signals, phase=phase)


def cluster_params(config: ClusterConfig, rows: int, more: dict[str, Any]) -> ClusterParams:
    """The numbers of a cluster whose instance table has so many rows; `more` are those of mechanisms at the gateway."""
    arrays: dict[str, Any] = more | {
        "num_instances": np.int32(config.num_instances),
        "admission_latency_us": np.int64(config.admission_latency),
        "routing_latency_us": np.int64(config.routing_latency),
        "snapshot_refresh_interval_us": np.int64(config.snapshot_refresh_interval),
        "horizon_us": np.int64(min(config.horizon, NO_HORIZON // 2)),
        "infinity": np.float64(np.inf),
        "signals": _signal_params(config, rows),
    }
    if config.is_august:
        limits = per_instance(config, "max_model_len")
        spare = [limits[row_to_copy(config)]] * (rows - len(limits))
        limits = limits + spare if len(set(limits)) > 1 else limits[:1]
        each = np.array([limit or LARGEST_COUNT for limit in limits], np.int32)
        arrays["max_model_len"] = each if len(each) > 1 else each[0]
    return ClusterParams(**arrays, **_instance_numbers(config, rows))
