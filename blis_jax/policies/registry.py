"""Names of policies: the only place where a name, or a path to a user's file, becomes a policy.

A policy of the package costs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from blis_jax.cluster import instance_groups
from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.user_files import is_file, value_at
from blis_jax.policies.contract import DECORATORS, Policy
from blis_jax.policies.numbers import FIXED, Number, numbers_of

ADMISSION = {
    "always-admit": "admission.all_or_none.always_admit",
    "reject-all": "admission.all_or_none.reject_all",
    "token-bucket": "admission.token_bucket.token_bucket",
    "slo-gated": "admission.gates.slo_gated",
    "class-gated": "admission.gates.class_gated",
    "kv-gated": "described.kv_gated.kv_gated",
    "burst-throttled": "described.burst_throttled.burst_throttled",
    "forecast-gated": "admission.forecast.forecast_gated",
    "regime-gated": "regimes.regime_gated",
    "forecast-regime-gated": "admission.forecast_in_regime.forecast_regime_gated",
    "slo-queue-gated": "admission.gates.slo_queue_gated",
    "predictive-slo": "admission.predictive.predictive_slo",
    "tier-shed": "gateway_classes.tier_shed",
    "gaie-legacy": "gateway_classes.gaie_legacy",
    "stale-gated": "admission.stale.stale_gated",
}
ROUTING = {
    "round-robin": "routing.by_load.round_robin",
    "least-loaded": "routing.by_load.least_loaded",
    "weighted": "routing.weighted.weighted",
    "prefix-affinity": "routing.prefix_affinity.prefix_affinity",
    "always-busiest": "routing.by_load.always_busiest",
    "least-loaded-drawn": "routing.drawn.least_loaded_drawn",
    "adaptive-weighted": "routing.adaptive_weighted.adaptive_weighted",
    "kv-adaptive": "routing.kv_adaptive.kv_adaptive",
    "epoch-adaptive": "routing.epoch_adaptive.epoch_adaptive",
    "power-of-two": "routing.power_of_two.power_of_two",
    "match-switched": "described.match_switched.match_switched",
    "regime-switched": "described.regime_switched.regime_switched",
    "regime-kept": "regimes.regime_kept",
    "cached-of-two": "described.cached_of_two.cached_of_two",
    "session-hashed": "described.session_hashed.session_hashed",
    "length-buckets": "routing.length_buckets.length_buckets",
}
SCORERS = {
    "prefix-affinity": "scorers.cache.prefix_affinity",
    "queue-depth": "scorers.load.queue_depth",
    "kv-utilization": "scorers.cache.kv_utilization",
    "load-balance": "scorers.load.load_balance",
    "kv-pressure": "scorers.cache.kv_pressure",
    "cost-benefit": "scorers.cost_benefit.cost_benefit",
    "slo-headroom": "scorers.slo_headroom.slo_headroom",
    "slo-priority": "scorers.load.slo_priority",
    "precise-prefix-cache": "scorers.precise.precise_prefix_cache",
    "no-hit-lru": "scorers.precise.no_hit_lru",
    "waiting-requests": "scorers.live_load.waiting_requests",
    "running-requests": "scorers.live_load.running_requests",
    "active-requests": "scorers.live_load.active_requests",
    "load-aware": "scorers.live_load.load_aware",
    "vllm-dp": "scorers.live_load.vllm_dp",
    "capability-load": "scorers.capability.capability_load",
    "length-buckets": "routing.length_buckets.in_bucket",
    "deadline-wait": "scorers.outstanding.deadline_wait",
    "class-backlog": "scorers.outstanding.class_backlog",
    "regime-affinity": "regimes.regime_affinity",
}
PICKERS = {
    "first-best": "routing.pickers.first_best",
    "random-best": "routing.pickers.random_best",
    "weighted-random": "routing.pickers.weighted_random",
    "drawn-best": "routing.drawn.drawn_best",
}
PRIORITY = {
    "constant": "queue_order.priority.constant",
    "slo-based": "queue_order.priority.slo_based",
    "inverted-slo": "queue_order.priority.inverted_slo",
    "slo-tiered": "queue_order.priority.slo_tiered",
    "load-adaptive": "queue_order.priority.load_adaptive",
    "slo-deadline": "queue_order.priority.slo_deadline",
    "slo-class": "queue_order.priority.slo_class",
    "gateway-class": "gateway_classes.gateway_class",
    "slo-slack": "queue_order.slack.slo_slack",
    "intent-tiered": "queue_order.intent.intent_tiered",
    "intent-slack": "queue_order.joint.intent_slack",
}
SCHEDULERS = {
    "fcfs": "queue_order.schedulers.fcfs",
    "priority-fcfs": "queue_order.schedulers.priority_fcfs",
    "sjf": "queue_order.schedulers.sjf",
    "priority-cached": "queue_order.schedulers.priority_cached",
    "prefix-grouped": "queue_order.prefix_groups.prefix_grouped",
    "reverse-priority": "queue_order.schedulers.reverse_priority",
}
NONE = "none"  # instances stay up, requests stay where they are, victims and offloads are those of BLIS
OPTIONAL_KINDS = ("cluster", "hand_over", "victim", "offload")  # whose setting may name none
CLUSTER = {
    "outages": "movement.outages.outages",
    "outage-at": "movement.outages.outage_at",
    "autoscaler": "movement.autoscaler.autoscaler",
    "saturation-autoscaler": "movement.saturation_autoscaler.saturation_autoscaler",
}
HAND_OVER = {"pools": "movement.pools.pools"}
VICTIMS = {"least-worth": "victims.least_worth"}
OFFLOADS = {
    "content-worth": "offloads.content_worth",
    "forecast-offload": "offloads.forecast_offload",
}
NAMES: dict[str, dict[str, str]] = {
    "admission": ADMISSION,
    "routing": ROUTING,
    "scorer": SCORERS,
    "picker": PICKERS,
    "priority": PRIORITY,
    "scheduler": SCHEDULERS,
    "cluster": CLUSTER,
    "hand_over": HAND_OVER,
    "victim": VICTIMS,
    "offload": OFFLOADS,
}
SAME = "same"  # requests that are handed over are routed by the cluster's policy
# the setting that names the policy of a kind
SETTINGS = {
    "admission": "admission_policy",
    "routing": "routing_policy",
    "scorer": "routing_scorers",
    "picker": "routing_picker",
    "priority": "priority_policy",
    "scheduler": "scheduler",
    "cluster": "cluster_policy",
    "hand_over": "hand_over_policy",
    "victim": "victim_policy",
    "offload": "offload_policy",
}

# the setting that names the policy of a kind for requests in the decode pool
DECODE_SETTINGS = {kind: f"decode_{SETTINGS[kind]}" for kind in ("routing", "scorer", "picker")}


def find(kind: str, name: str, setting: str = "") -> Policy:
    """The policy of a kind with this name, or the one at `path/to/file.py:Name`.

    `setting` names it, if that is not the kind's of `SETTINGS`.

    Raises:
        ConfigError: there is no such name, file or policy; the sentence lists what there is.
    """
    if is_file(name):
        return _from_file(kind, name, setting or SETTINGS[kind])
    names = NAMES[kind]
    if name not in names:
        allowed = ", ".join((*names, *_no_policy(kind, setting)))
        raise ConfigError(
            f"{setting or SETTINGS[kind]} {shortened(name)} is not known; use one of {allowed}, or "
            f"path/to/file.py:Name{closest(name, names)}"
        )
    return _built_in(names[name])


def _no_policy(kind: str, setting: str) -> tuple[str, ...]:
    """The word for no policy, or for the cluster's, where a setting takes it."""
    if setting and kind != "scorer":
        return (SAME,)
    return (NONE,) if kind in OPTIONAL_KINDS else ()


def located(settings: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Settings of a file in this folder, in which paths of policies begin at the folder if they are there."""
    found = dict(settings)
    for setting in (*SETTINGS.values(), *DECODE_SETTINGS.values(), "latency_model"):
        given = found.get(setting)
        if folder is not None and isinstance(given, str):
            parts = [_located(part.strip(), folder) for part in given.split(",")]
            found[setting] = ",".join(parts)
    if folder is not None and instance_groups.SETTING in found:
        groups = found[instance_groups.SETTING]
        found[instance_groups.SETTING] = instance_groups.located(groups, folder)
    return found


def _located(name: str, folder: Path) -> str:
    path, dot, rest = name.partition(".py:")
    is_there = bool(dot) and (folder / f"{path}.py").is_file()
    return f"{folder / path}.py:{rest}" if is_there else name


def _built_in(where: str) -> Policy:
    module, _, name = where.rpartition(".")
    policy: Policy = getattr(import_module(f"blis_jax.policies.{module}"), name)
    return policy


def _from_file(kind: str, name: str, setting: str) -> Policy:
    wanted = f"{setting} {name}"
    policy = value_at(name, wanted, Policy, f"@{DECORATORS[kind].__name__}()")
    if policy.kind != kind:
        raise ConfigError(f"{wanted} is of kind {policy.kind}; give one of kind {kind}")
    return policy


class Setting(NamedTuple):
    """A setting that some policies of the package read."""

    number: Number
    kind: str
    policies: tuple[str, ...]  # names


def setting_of(policy_name: str, field: str, number: Number) -> str | None:
    """The setting of a policy's number; None if the reference fixes it."""
    if number.setting == FIXED:
        return None
    return number.setting or f"{policy_name.replace('-', '_')}_{field}"


@functools.cache
def settings() -> Mapping[str, Setting]:
    """The numbers of all policies of the package by setting, in the order of the registry."""
    found: dict[str, Setting] = {}
    for kind, name, field, one in _numbers():
        setting = setting_of(name, field, one)
        if setting is not None:
            known = found.get(setting)
            policies = tuple(dict.fromkeys((*(known.policies if known else ()), name)))
            found[setting] = Setting(known.number if known else one, kind, policies)
    return found


def _numbers() -> Iterator[tuple[str, str, str, Number]]:
    """Kind, policy, field and declaration of every number of the package's policies."""
    for kind, names in NAMES.items():
        for name in names:
            for field, one in numbers_of(find(kind, name).params).items():
                yield kind, name, field, one
