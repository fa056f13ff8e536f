"""A cluster's configuration under the names of the reference's `run` flags, checked once on the host.

`params()` turns the numbers into arrays and `mechanism()` the names into functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.latency import registry as latency
from blis_jax.policies import registry

NO_HORIZON = 2**63 - 1
PROFILE = "blis-2026-02"
VARIANTS = ("scheduling", "routing")
DEFAULT_SCORERS = "prefix-affinity:3,queue-depth:2,kv-utilization:2"
CRITICAL_CLASSES, SHEDDABLE_CLASSES = (1,), (3, 4, 5)


@dataclass(frozen=True)
class ClusterConfig:
    """One cluster and its policies; times in µs, sizes in tokens or blocks. Defaults are the reference's."""

    model: str = "meta-llama/llama-3.1-8b-instruct"
    hardware: str = "H100"
    tp: int = 2
    alpha_coeffs: tuple[float, float, float] = (
        1601.350510688092,
        3.512476196805965,
        1805.5430360826988,
    )
    beta_coeffs: tuple[float, ...] = (  # as many as the latency model has
        6910.420479880494,
        17.67057489844186,
        2.8377471109943855,
    )
    latency_model: str = latency.AUTO  # see latency/registry.py
    total_kv_blocks: int = 132139
    block_size_in_tokens: int = 16
    max_num_running_reqs: int = 256
    max_num_scheduled_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    num_instances: int = 1
    admission_policy: str = "always-admit"
    admission_latency: int = 0
    routing_latency: int = 0
    token_bucket_capacity: float = 10000.0
    token_bucket_refill_rate: float = 1000.0
    slo_gated_threshold: float = 8.0
    routing_policy: str = "round-robin"
    routing_scorers: str = ""
    priority_policy: str = "constant"
    scheduler: str = "fcfs"
    slo_base_critical: float = 10.0
    slo_base_standard: float = 5.0
    slo_base_sheddable: float = 1.0
    slo_age_weight: float = 1e-5
    slo_threshold_standard: int = 100_000
    slo_threshold_sheddable: int = 200_000
    slo_deadline_critical: int = 100_000
    slo_deadline_standard: int = 250_000
    slo_deadline_sheddable: int = 1_000_000
    slo_deadline_least_left: int = 10_000
    cached_block_priority: float = 0.01
    class_gated_standard: float = 100.0
    class_gated_sheddable: float = 50.0
    class_gated_probability: float = 1.0
    slo_scorer_bias_critical: float = 0.9
    slo_scorer_bias_sheddable: float = 0.2
    slo_priority_bridge: bool = False
    load_adaptive_low: int = 2
    load_adaptive_high: int = 15
    slo_prefill: bool = False
    slo_prefill_critical: int = 128
    slo_prefill_sheddable: int = 0
    slo_preemption: bool = False
    snapshot_refresh_interval: int = 0
    kv_cpu_blocks: int = 0
    kv_offload_threshold: float = 0.9
    kv_transfer_bandwidth: float = 100.0
    kv_transfer_base_latency: int = 0
    horizon: int = NO_HORIZON
    variant: str = "scheduling"
    corrected: bool = False  # without the defects of the reference; see types.Defects

    def __post_init__(self) -> None:
        _check(self)

    @property
    def profile(self) -> str:
        """The reference's revision and track that are reproduced, and in what the run differs from them."""
        name = f"{PROFILE}/{self.variant}" + "/corrected" * self.corrected
        return name + latency.profile_suffix(self)

    def scorers(self) -> list[tuple[str, float]]:
        """Scorers and weights in the order given; none unless routing is weighted."""
        if self.routing_policy != "weighted":
            return []
        return parse_scorers(self.routing_scorers or DEFAULT_SCORERS)

    def replace(self, **changes: Any) -> ClusterConfig:
        """A copy with some fields changed, checked again."""
        unknown = sorted(set(changes) - set(FIELDS))
        if unknown:
            raise ConfigError(f"unknown setting {unknown[0]!r}; known: {', '.join(sorted(FIELDS))}")
        return dataclasses.replace(self, **changes)


# settings that BLIS has no flags for
OUR_POLICY_SETTINGS: tuple[str, ...] = ("slo_deadline_critical", "slo_deadline_standard")
OUR_POLICY_SETTINGS += ("slo_deadline_sheddable", "slo_deadline_least_left")
OUR_POLICY_SETTINGS += ("cached_block_priority", "class_gated_standard")
OUR_POLICY_SETTINGS += ("class_gated_sheddable", "class_gated_probability")
FIELDS = {field.name: field for field in dataclasses.fields(ClusterConfig)}


def parse_scorers(text: str) -> list[tuple[str, float]]:
    """`name:weight,name:weight` as a list."""
    pairs: list[tuple[str, float]] = []
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        try:
            value = float(weight) if colon else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"routing_scorers: {part.strip()!r} is not name:weight with a weight above 0; "
                f"write for instance {DEFAULT_SCORERS}"
            )
        if name.strip() in dict(pairs):
            raise ConfigError(
                f"routing_scorers: {name.strip()!r} is given twice; give each scorer one weight"
            )
        pairs.append((name.strip(), value))
    return pairs


def from_flags(flags: Mapping[str, Any]) -> ClusterConfig:
    """A configuration from the `config` of a golden scenario; keys it does not know are not about the cluster."""
    reason = unsupported(flags)
    if reason is not None:
        raise ConfigError(f"{reason} is not supported yet; such a scenario cannot be run")
    values: dict[str, Any] = {}
    for key, value in flags.items():
        name = key.replace("-", "_")
        if name in FIELDS:
            values[name] = tuple(value) if isinstance(value, list) else value
    # only the routing track's revision has this flag; its gate of the same name reads queue lengths
    if "precise-kv-routing" in flags:
        values["variant"] = "routing"
    return ClusterConfig(**values)


def unsupported(flags: Mapping[str, Any]) -> str | None:
    """Why a scenario's mechanism cannot run yet, or None."""
    if flags.get("roofline"):
        return "the roofline latency model"
    if flags.get("precise-kv-routing"):
        return "precise KV-aware routing"
    for key, table in (
        ("admission-policy", "ADMISSION"),
        ("routing-policy", "ROUTING"),
        ("priority-policy", "PRIORITY"),
        ("scheduler", "SCHEDULERS"),
    ):
        name = flags.get(key)
        if name is not None and name not in getattr(registry, table):
            return f"{key} {name!r}"
    if flags.get("routing-policy") == "weighted" and flags.get("routing-scorers"):
        for name, _ in parse_scorers(flags["routing-scorers"]):
            if name not in registry.SCORERS:
                return f"scorer {name!r}"
    return None


def admission_name(config: ClusterConfig) -> str:
    """Name of the admission policy in the registry; the two tracks gate differently under one name."""
    if config.admission_policy == "slo-gated" and config.variant == "routing":
        return "slo-queue-gated"
    return config.admission_policy


POLICY_NAMES: dict[str, tuple[str, ...]] = {
    "admission_policy": tuple(registry.ADMISSION),
    "routing_policy": tuple(registry.ROUTING),
    "priority_policy": tuple(registry.PRIORITY),
    "scheduler": tuple(registry.SCHEDULERS),
}
SCORER_NAMES = tuple(registry.SCORERS)

_POSITIVE: tuple[str, ...] = ("total_kv_blocks", "block_size_in_tokens", "max_num_running_reqs")
_POSITIVE += ("max_num_scheduled_tokens", "token_bucket_capacity", "token_bucket_refill_rate")
_POSITIVE += ("slo_deadline_least_left",)
_NOT_NEGATIVE: tuple[str, ...] = (
    "admission_latency",
    "routing_latency",
    "snapshot_refresh_interval",
    "horizon",
)
_NOT_NEGATIVE += ("long_prefill_token_threshold", "slo_prefill_critical", "slo_prefill_sheddable")
_NOT_NEGATIVE += ("kv_cpu_blocks", "kv_transfer_base_latency", "slo_threshold_standard")
_NOT_NEGATIVE += ("slo_threshold_sheddable", "slo_age_weight", "load_adaptive_low")
_NOT_NEGATIVE += ("load_adaptive_high", "slo_gated_threshold", "cached_block_priority")
_NOT_NEGATIVE += ("slo_deadline_critical", "slo_deadline_standard", "slo_deadline_sheddable")
_NOT_NEGATIVE += ("class_gated_standard", "class_gated_sheddable")
_SHARES: tuple[str, ...] = ("slo_scorer_bias_critical", "slo_scorer_bias_sheddable")
_SHARES += ("kv_offload_threshold", "class_gated_probability")
MAX_INSTANCES = 64
LARGEST_COUNT = 2**31 - 2


def _check(config: ClusterConfig) -> None:
    for name, field in FIELDS.items():
        _check_type(name, field.type, getattr(config, name))
    for name, known in POLICY_NAMES.items():
        if getattr(config, name) not in known:
            raise ConfigError(
                f"{name} {getattr(config, name)!r} is not known; use one of {', '.join(known)}"
            )
    for name in _POSITIVE:
        _demand(config, name, lambda value: value > 0, "above 0")
    for name in _NOT_NEGATIVE:
        _demand(config, name, lambda value: value >= 0, "at least 0")
    for name in _SHARES:
        _demand(config, name, lambda value: 0 <= value <= 1, "between 0 and 1")
    _demand(config, "kv_transfer_bandwidth", lambda value: value > 0, "above 0")
    _demand(
        config,
        "num_instances",
        lambda value: 1 <= value <= MAX_INSTANCES,
        f"between 1 and {MAX_INSTANCES}",
    )
    if config.variant not in VARIANTS:
        raise ConfigError(f"variant {config.variant!r} is not known; use scheduling or routing")
    latency.check(config)
    for scorer, _ in config.scorers():
        if scorer not in SCORER_NAMES:
            raise ConfigError(
                f"routing_scorers: scorer {scorer!r} is not known; "
                f"use one of {', '.join(SCORER_NAMES)}"
            )


def _check_type(name: str, kind: Any, value: Any) -> None:
    expected: dict[str, tuple[Any, str]] = {
        "int": (int, "a whole number"),
        "float": ((int, float), "a number"),
        "bool": (bool, "true or false"),
        "str": (str, "a text"),
    }
    if kind not in expected:
        return
    types, words = expected[kind]
    is_wrong_bool = isinstance(value, bool) and kind != "bool"
    if not isinstance(value, types) or is_wrong_bool:
        raise ConfigError(f"{name}: {value!r} is not {words}")
    if kind == "float" and not math.isfinite(value):
        raise ConfigError(f"{name}: {value!r} is not finite; give a finite number")
    if kind == "int" and name != "horizon" and abs(value) > LARGEST_COUNT:
        raise ConfigError(f"{name}: {value} is too large; at most {LARGEST_COUNT}")


def _demand(config: ClusterConfig, name: str, test: Callable[[Any], bool], words: str) -> None:
    value = getattr(config, name)
    if not test(value):
        raise ConfigError(f"{name} must be {words}, got {value}")


def mechanism(config: ClusterConfig) -> Any:
    """The functions that the names stand for."""
    from blis_jax.types import NO_DEFECTS, REFERENCE_DEFECTS, Mechanism

    admission = registry.ADMISSION[admission_name(config)]
    routing = registry.ROUTING[config.routing_policy]
    scorers = [registry.SCORERS[name] for name, _ in config.scorers()]
    return Mechanism(
        admission=admission.function,
        admission_state=admission.initial_state,
        routing=routing.function,
        routing_state=routing.initial_state,
        scorers=tuple(entry.function for entry in scorers),
        priority=registry.PRIORITY[config.priority_policy].function,
        scheduler=registry.SCHEDULERS[config.scheduler].function,
        evicts_lowest_priority=config.slo_preemption,
        defects=NO_DEFECTS if config.corrected else REFERENCE_DEFECTS,
        needs_cached_blocks=registry.SCHEDULERS[config.scheduler].needs_cached_blocks,
        latency=latency.entry_of(config).model,
        uses_prefix_index=any(entry.uses_prefix_index for entry in scorers),
    )


def _transfer_us(config: ClusterConfig) -> int:
    """Time to bring one block back from the CPU tier, µs."""
    size, bandwidth = config.block_size_in_tokens, config.kv_transfer_bandwidth
    return min(config.kv_transfer_base_latency + math.ceil(size / bandwidth), LARGEST_COUNT)


def _policy_numbers(config: ClusterConfig) -> dict[str, float]:
    return {
        "capacity": config.token_bucket_capacity,
        "refill_per_s": config.token_bucket_refill_rate,
        "load_threshold": config.slo_gated_threshold,
        "bias_critical": config.slo_scorer_bias_critical,
        "bias_sheddable": config.slo_scorer_bias_sheddable,
        "base_critical": config.slo_base_critical,
        "base_standard": config.slo_base_standard,
        "base_sheddable": config.slo_base_sheddable,
        "grace_standard_us": config.slo_threshold_standard,
        "grace_sheddable_us": config.slo_threshold_sheddable,
        "deadline_critical_us": config.slo_deadline_critical,
        "deadline_standard_us": config.slo_deadline_standard,
        "deadline_sheddable_us": config.slo_deadline_sheddable,
        "least_left_us": config.slo_deadline_least_left,
        "per_block": config.cached_block_priority,
        "standard_load": config.class_gated_standard,
        "sheddable_load": config.class_gated_sheddable,
        "probability": config.class_gated_probability,
        "low_depth": config.load_adaptive_low,
        "high_depth": config.load_adaptive_high,
    }


def params(config: ClusterConfig, num_rows: int | None = None, policy_seed: int = 0) -> Any:
    """The numbers as a pytree of numpy arrays; see policies/seeds.py for the seed."""
    from blis_jax.types import ClusterParams, Params, PolicyParams

    rows = num_rows or config.num_instances
    numbers = _policy_numbers(config)
    if config.priority_policy in ("slo-tiered", "load-adaptive"):
        numbers["age_weight"] = config.slo_age_weight

    def filled(entry: Any) -> Any:
        given = {} if entry.has_fixed_numbers else numbers
        return entry.params(
            **{name: np.float64(given.get(name, default)) for name, default in entry.defaults}
        )

    def per_instance(value: int) -> np.ndarray:
        return np.full((rows,), value, np.int32)

    threshold = np.full((6,), config.long_prefill_token_threshold, np.int32)
    if config.slo_prefill:
        threshold[list(CRITICAL_CLASSES)] = config.slo_prefill_critical
        threshold[list(SHEDDABLE_CLASSES)] = config.slo_prefill_sheddable
    scorers = config.scorers()
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
        "transfer_us": np.int32(_transfer_us(config)),
        "offload_threshold": np.float64(config.kv_offload_threshold if has_cpu_tier else np.inf),
        "infinity": np.float64(np.inf),
    }
    seed: Any = np.uint64(policy_seed)
    weights: Any = np.asarray([weight for _, weight in scorers] or [1.0], np.float64)
    policy = PolicyParams(
        admission=filled(registry.ADMISSION[admission_name(config)]),
        routing=filled(registry.ROUTING[config.routing_policy]),
        scorers=tuple(filled(registry.SCORERS[name]) for name, _ in scorers),
        scorer_weights=weights,
        priority=filled(registry.PRIORITY[config.priority_policy]),
        scheduler=filled(registry.SCHEDULERS[config.scheduler]),
        seed=seed,
    )
    return Params(ClusterParams(**arrays), policy)
