"""The numbers of a cluster, as the engine reads them: `ClusterParams` of a configuration, and its queue's numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from blis_jax.cluster import adapters, disaggregation, offload_tiers, step_times
from blis_jax.cluster.config import CRITICAL_CLASSES, SHEDDABLE_CLASSES, ClusterConfig
from blis_jax.cluster.instance_groups import per_instance, roles
from blis_jax.cluster.node_pools import gpus_of_instance
from blis_jax.cluster.router import (
    DEFAULT_TICK_US,
    DETECTORS,
    MOST_TENANTS,
    slo_targets,
    tenant_budgets,
)
from blis_jax.cluster.settings import LARGEST_COUNT
from blis_jax.cluster.speculation import MOST_RANGES
from blis_jax.core.pytrees import Parts
from blis_jax.core.types import IDLE, NO_HORIZON, SLO_CLASSES, ClusterParams
from blis_jax.core.views import AfterDecode, AnswerCuts, ContextLimits, FleetParams
from blis_jax.policies.classes import ClassPriorities
from blis_jax.policies.seeds import RandomSource, normal_draws
from blis_jax.tables.adapters import AdapterParams
from blis_jax.tables.drafts import TOKEN_PARTS, DraftParams
from blis_jax.tables.gateways import QueueParams, TenantBudgets
from blis_jax.tables.offload import OffloadParams
from blis_jax.tables.router import SignalParams


def as_given(values: np.ndarray | np.generic) -> Any:
    """Return numpy values typed as the JAX arrays that a program's fields declare; a program accepts both."""
    return values


def _transfer_us(block_size: int, base_latency: int, bandwidth: float) -> int:
    """Return the time to bring one block back from the CPU tier, µs."""
    return base_latency + math.ceil(min(block_size / bandwidth, 2.0**53))


def _thresholds(whole: int, is_by_class: bool, critical: int, sheddable: int) -> np.ndarray:
    """Return the most prompt tokens that a request may get in a step, for every SLO class."""
    threshold = np.full((len(SLO_CLASSES),), whole, np.int32)
    if is_by_class:
        threshold[list(CRITICAL_CLASSES)] = critical
        threshold[list(SHEDDABLE_CLASSES)] = sheddable
    return threshold


def _of_rows(config: ClusterConfig, values: Sequence[Any], rows: int) -> list[Any]:
    """Return the values of all table rows: rows behind the instances repeat the one that later instances copy."""
    return [*values, *[values[row_to_copy(config)]] * (rows - len(values))]


def _instance_numbers(config: ClusterConfig, rows: int) -> dict[str, Any]:
    """Return the fields of `ClusterParams` that have one value per instance row."""

    def column(*settings: str) -> list[Any]:
        return list(zip(*(per_instance(config, name) for name in settings), strict=True))

    def array(values: Sequence[Any], dtype: DTypeLike) -> np.ndarray:
        return np.asarray(_of_rows(config, values, rows), dtype)

    def of_setting(setting: str, dtype: DTypeLike) -> np.ndarray:
        return array(per_instance(config, setting), dtype)

    chunks = column(
        "long_prefill_token_threshold",
        "slo_prefill",
        "slo_prefill_critical",
        "slo_prefill_sheddable",
    )
    transfers = column("kv_transfer_base_latency", "kv_transfer_bandwidth")
    # in BLIS off-loaded blocks come back in no time
    is_free = offload_tiers.has_tiers(config) and not config.kv_offload_config.saves_prefill
    size = config.block_size_in_tokens
    alpha = array(step_times.alphas(config), np.float64)
    alpha[:, 0] += of_setting("network_delay", np.float64)  # a request is pending on its way, too
    cpu_blocks = of_setting("kv_cpu_blocks", np.int32) + np.int32(
        offload_tiers.cpu_capacity(config)
    )
    blocks, codes = of_setting("total_kv_blocks", np.int32), array(roles(config), np.int32)
    if disaggregation.has_pools(config) and rows > config.num_instances:
        blocks[config.num_instances :] = disaggregation.later_blocks(config, row_to_copy(config))
        codes[config.num_instances :] = IDLE
    thresholds = of_setting("kv_offload_threshold", np.float64)
    if config.is_august:  # its tier acts from the first step on
        thresholds = np.full_like(thresholds, -1.0)
    return {
        "alpha": alpha,
        "beta": array(step_times.vectors(config), np.float64),
        "total_kv_blocks": blocks,
        "max_num_running_reqs": of_setting("max_num_running_reqs", np.int32),
        "max_num_scheduled_tokens": of_setting("max_num_scheduled_tokens", np.int32),
        "prefill_threshold": array([_thresholds(*chunk) for chunk in chunks], np.int32),
        "kv_cpu_blocks": cpu_blocks,
        "transfer_us": array(
            [0 if is_free else _transfer_us(size, *transfer) for transfer in transfers], np.int64
        ),
        "offload_threshold": np.where(cpu_blocks > 0, thresholds, np.inf),
        "roles": codes,
    }


def _signal_params(config: ClusterConfig, rows: int) -> SignalParams:
    """Return how old signals are; phases that are equal or evenly spread are set here, drawn phases belong to a run."""
    phases = np.zeros(rows)
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
    """Draw the phases from the policies' seed: seeds differ, and all strategies of a seed have the same phases."""
    phase = as_given(np.random.default_rng([seed, int(RandomSource.PHASES.origin)]).random(rows))
    return dataclasses.replace(signals, phase=phase)


def cluster_params(config: ClusterConfig, rows: int, *more: object) -> ClusterParams:
    """Return the numbers of a cluster with `rows` instance rows; `more` are those of the gateway's mechanisms."""
    arrays: dict[str, Any] = {
        "num_instances": np.int32(config.num_instances),
        "admission_latency_us": np.int64(config.admission_latency),
        "routing_latency_us": np.int64(config.routing_latency),
        "snapshot_refresh_interval_us": np.int64(config.snapshot_refresh_interval),
        "horizon_us": np.int64(min(config.horizon, NO_HORIZON // 2)),
        "infinity": np.float64(np.inf),
        "signals": _signal_params(config, rows),
    }
    of_august = _of_august(config, rows) if config.is_august else ()
    parts = Parts(*more, *of_august, *_adapters(config), *_drafts(config))
    return ClusterParams(**arrays, **_instance_numbers(config, rows), own=parts)


def _of_august(config: ClusterConfig, rows: int) -> Iterator[object]:
    """Yield the limits of requests, and the time that E2E includes after the last token."""
    limits = per_instance(config, "max_model_len")
    limits = _of_rows(config, limits, rows) if len(set(limits)) > 1 else limits[:1]
    each = as_given(np.array([limit or LARGEST_COUNT for limit in limits], np.int32))
    yield ContextLimits(each if len(each) > 1 else each[0])
    if disaggregation.cuts_answers(config):
        yield AnswerCuts(each - 1)
    times = _of_rows(config, step_times.times_after_decode(config), rows)
    yield AfterDecode(as_given(np.asarray(times, np.int64)))


ADAPTER_COLUMNS = 8  # programs have a multiple of these


def num_adapter_columns(config: ClusterConfig) -> int:
    """Return the number of adapter columns of an instance, 0 where no adapter is ever loaded."""
    if not adapters.has_adapters(config):
        return 0
    return -(-len(config.lora_config.adapters) // ADAPTER_COLUMNS) * ADAPTER_COLUMNS


def _adapters(config: ClusterConfig) -> Iterator[object]:
    """Yield the numbers of adapters, if instances load any."""
    columns = num_adapter_columns(config)
    if not columns:
        return
    ranks = [adapter.rank for adapter in config.lora_config.adapters]

    def column(values: Sequence[float], dtype: DTypeLike) -> Any:
        return np.pad(np.asarray(values, dtype), (0, columns - len(ranks)))

    yield AdapterParams(
        as_given(np.int32(config.lora_adapter_capacity)),
        load_us=column(adapters.load_times(config), np.int64),
        rank=column(ranks, np.int32),
        overhead=column(adapters.overheads(config), np.float64),
    )


DRAFT_COLUMNS = 4  # programs have a multiple of these


def num_draft_columns(config: ClusterConfig) -> int:
    """Return the most drafted tokens per request and step that a program has room for, 0 where none is ever drafted."""
    return -(-config.speculative_config.num_speculative_tokens // DRAFT_COLUMNS) * DRAFT_COLUMNS


def _drafts(config: ClusterConfig) -> Iterator[object]:
    """Yield the numbers of drafted tokens, if any are drafted."""
    columns, drafts = num_draft_columns(config), config.speculative_config
    if not columns:
        return
    reach = np.zeros((len(SLO_CLASSES), columns))
    for at, name in enumerate(SLO_CLASSES):
        rates = drafts.reach(name)
        reach[at, : len(rates)] = rates
    schedule = drafts.schedule
    sizes = np.full(MOST_RANGES, LARGEST_COUNT, np.int32)
    nums = np.zeros(MOST_RANGES, np.int32)
    sizes[: len(schedule)], nums[: len(schedule)] = zip(*schedule, strict=True)
    # of so many drafts, which round down to whole tokens only once they are added up
    expected = np.cumsum(np.pad(reach, ((0, 0), (1, 0))), axis=1)
    numbers: dict[str, Any] = {
        "expected": np.rint(expected * TOKEN_PARTS).astype(np.int32),
        "is_expected": np.bool_(not drafts.is_drawn),
        "step_us": np.float64(drafts.draft_step_us),
        "token_us": np.float64(drafts.draft_token_us),
    }
    yield DraftParams(as_given(reach), sizes=as_given(sizes), nums=as_given(nums), **numbers)


TRANSFER_DRAWS = 2**17  # of the reference's stream, where times of transfers are drawn


def offload_params(config: ClusterConfig, policy_seed: int) -> OffloadParams:
    """Return the numbers of off-load tiers, with draws from the reference's stream if transfer times have jitter."""
    offload = config.kv_offload_config

    def column(name: str, dtype: DTypeLike = np.float64) -> Any:
        return np.asarray([getattr(tier, name) for tier in offload.secondary_tiers], dtype)

    numbers: dict[str, Any] = {
        "block_bytes": np.float64(offload_tiers.block_bytes(config)),
        "is_prompt_only": np.bool_(offload.offload_prompt_only),
        "base_us": np.floor(column("base_latency") + 0.5),
        "normals": _transfer_draws(policy_seed) if offload.has_jitter else np.zeros(1),
    }
    return OffloadParams(
        **numbers,
        read_bandwidth=column("read_bandwidth"),
        write_bandwidth=column("write_bandwidth"),
        depth=column("saturation_queue_depth"),
        fraction=column("single_transfer_fraction"),
        jitter=column("latency_jitter_stddev"),
        num_readers=column("n_read_threads", np.int32),
        num_writers=column("n_write_threads", np.int32),
    )


@functools.lru_cache(maxsize=8)
def _transfer_draws(policy_seed: int) -> np.ndarray:
    return normal_draws(policy_seed, TRANSFER_DRAWS, RandomSource.TRANSFERS)


NO_TARGET = np.iinfo(np.int64).max


def class_priorities(priority: object) -> np.ndarray:
    """Return each class's priority at the gateway, int32[slo_class]: from the priority policy if it has one, else
    BLIS's.
    """
    owner = priority if isinstance(priority, ClassPriorities) else ClassPriorities
    of_class = [getattr(owner, name or "standard") for name in SLO_CLASSES]
    return np.asarray(of_class, np.float64).astype(np.int32)


def queue_params(config: ClusterConfig, priority: object) -> QueueParams:
    """Return the numbers of the gateway's queue as numpy arrays; `priority` holds those of the priority policy."""
    targets = slo_targets(config.slo_targets)
    arrays: dict[str, Any] = {
        "detector": np.int32(DETECTORS.index(config.saturation_detector)),
        "queue_depth_threshold": np.float64(config.queue_depth_threshold),
        "kv_threshold": np.float64(config.kv_cache_util_threshold),
        "max_concurrency": np.int32(config.max_concurrency),
        "priority": class_priorities(priority),
        "band_capacity": np.int32(config.per_band_capacity),
        "max_depth": np.int32(config.max_gateway_queue_depth),
        "sheds": np.bool_(config.queue_shedding),
        "usage_limit": np.float64(config.usage_limit_threshold),
        "round_robin": np.bool_(config.fairness_policy == "round-robin"),
        "by_deadline": np.bool_(config.dispatch_order == "slo-deadline"),
        "target_us": np.asarray([targets.get(name, NO_TARGET) for name in SLO_CLASSES], np.int64),
        "ttl_us": np.int64(config.request_ttl),
        "tick_us": np.int64(config.dispatch_tick_interval or DEFAULT_TICK_US),
    }
    return QueueParams(**arrays)


def budgets(config: ClusterConfig, priority: object) -> TenantBudgets:
    """Return how many requests each tenant may have at the instances: its share of the sum of all batch limits."""
    limit = np.full(MOST_TENANTS, np.inf)
    capacity = max(config.num_instances * config.max_num_running_reqs, 1)
    for tenant, share in tenant_budgets(config.tenant_budgets).items():
        limit[tenant] = share * float(capacity)
    return TenantBudgets(as_given(limit), as_given(class_priorities(priority)))


# --- its machines -----------------------------------------------------------------------------------

# Source: BLIS as of August 2026, `infra_placement.go` for the order of nodes, `engine.go` for that of kinds.

MOST_SPARE_ROWS = 16  # for instances still to be made, to begin with


def rows_to_begin_with(config: ClusterConfig) -> int:
    """Return the number of rows of the instance table, including instances that an autoscaler may create."""
    if not config.node_pools or config.cluster_policy == "none":
        return config.num_instances
    gpus = gpus_of_instance(config)
    room = sum(pool.nodes * (pool.gpus_per_node // gpus) for pool in config.node_pools)
    at_once = min(room, config.num_instances + MOST_SPARE_ROWS)
    return max(8, at_once + at_once % 2)  # near numbers share a compilation


def cheapest_first(config: ClusterConfig) -> list[str]:
    """Return the kinds of GPU, sorted by cost, then by name."""
    return sorted(_costs(config), key=lambda kind: (_costs(config)[kind], kind))


def _costs(config: ClusterConfig) -> dict[str, float]:
    costs: dict[str, float] = {}
    for pool in config.node_pools:
        costs.setdefault(pool.gpu_type, pool.cost_per_hour)
    return costs


def _nodes(config: ClusterConfig) -> list[tuple[str, int]]:
    """Return the GPU kind and the number of GPUs of every node."""
    return [
        (pool.gpu_type, pool.gpus_per_node) for pool in config.node_pools for _ in range(pool.nodes)
    ]


def _first_nodes(config: ClusterConfig) -> list[int]:
    """Return the node of every instance that exists from the start."""
    gpus = gpus_of_instance(config)
    places = [at for at, (_, size) in enumerate(_nodes(config)) for _ in range(size // gpus)]
    return places[: config.num_instances]


def row_to_copy(config: ClusterConfig) -> int:
    """Return the first instance of the cheapest GPU kind, whose numbers are copied to instances created later; −1
    without node pools or instances.
    """
    if not config.node_pools:
        return -1
    if not config.instances:  # no node has room for one
        return -1
    kinds = [_nodes(config)[at][0] for at in _first_nodes(config)]
    return min(range(len(kinds)), key=lambda at: cheapest_first(config).index(kinds[at]))


def fleet_params(
    config: ClusterConfig, num_rows: int, num_changes: int, policy_seed: int
) -> FleetParams:
    """Return the numbers of the cluster's machines, with `num_changes` draws from each of the reference's streams."""
    of_instances = disaggregation.kinds_of_gpu(config)
    kinds = cheapest_first(config) or sorted(set(of_instances))
    costs = _costs(config)
    dearest = sorted(kinds, key=lambda kind: (-costs.get(kind, 0.0), kind))
    nodes = _nodes(config) or [(kinds[0], 0)]
    first = _first_nodes(config) or [0] * config.num_instances
    num_first = config.num_instances if config.instances or not config.node_pools else 0
    row_kinds = [kinds.index(nodes[at][0]) for at in first]
    if not config.node_pools:
        row_kinds = [kinds.index(kind) for kind in of_instances]
    names = sorted(range(config.num_instances), key=lambda at: f"instance_{at}")
    # those of the autoscaler are called autoscale-…, in the order in which they were made
    drain_rank = np.arange(num_rows) - num_rows
    drain_rank[names] = np.arange(config.num_instances)
    numbers: dict[str, Any] = {
        "node_kind": np.asarray([kinds.index(kind) for kind, _ in nodes], np.int32),
        "node_gpus": np.asarray([gpus for _, gpus in nodes], np.int32),
        "gpus_each": np.int32(gpus_of_instance(config)),
        "has_nodes": np.bool_(bool(config.node_pools)),
        "num_first": np.int32(num_first),
        "first_node": np.asarray(first + [0] * (num_rows - len(first)), np.int32),
        "row_kind": np.asarray(_of_rows(config, row_kinds, num_rows), np.int32),
        "drain_rank": drain_rank.astype(np.int32),
        "rank_up": np.arange(len(kinds), dtype=np.int32),
        "rank_down": np.asarray([dearest.index(kind) for kind in kinds], np.int32),
        "loading_draws": normal_draws(policy_seed, num_rows, RandomSource.LOADING),
        "scrape_draws": normal_draws(policy_seed, max(num_changes, 1), RandomSource.SCRAPES),
        "is_endless": np.bool_(config.horizon >= NO_HORIZON),
    }
    return FleetParams(**numbers)


def instance_names(config: ClusterConfig, orders: Sequence[int]) -> tuple[str, ...]:
    """Return the reference's names of all instances; `orders` has each one's order number, 0 of a first one."""
    return tuple(
        f"autoscale-{config.model.lower()}-{order:06d}" if order else f"instance_{at}"
        for at, order in enumerate(orders)
    )
