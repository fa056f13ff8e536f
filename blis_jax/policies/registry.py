"""Names of policies: the only place where a name, or a path to a user's file, becomes a policy.

A policy of the package costs its own file and one line here. Nothing here imports JAX.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import NamedTuple

from blis_jax.core.kinds import KINDS, NONE, SAME
from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.input_files import is_file, value_at
from blis_jax.policies.contract import Policy
from blis_jax.policies.numbers import FIXED, Number, numbers_of
from blis_jax.policies.their_names import POLICIES

ADMISSION = {
    "always-admit": "admission.always_admit",
    "reject-all": "admission.reject_all",
    "token-bucket": "admission.token_bucket",
    "slo-gated": "admission.slo_gated",
    "slo-queue-gated": "admission.slo_queue_gated",
    "predictive-slo": "admission.predictive_slo",
    "tier-shed": "classes.tier_shed",
    "gaie-legacy": "classes.gaie_legacy",
    "stale-gated": "classes.stale_gated",
}
ROUTING = {
    "round-robin": "routing.by_load.round_robin",
    "least-loaded": "routing.by_load.least_loaded",
    "weighted": "routing.by_score.weighted",
    "prefix-affinity": "routing.by_load.prefix_affinity",
    "always-busiest": "routing.by_load.always_busiest",
    "least-loaded-drawn": "routing.pickers.least_loaded_drawn",
    "adaptive-weighted": "routing.by_score.adaptive_weighted",
    "kv-adaptive": "routing.by_score.kv_adaptive",
    "epoch-adaptive": "routing.by_score.epoch_adaptive",
    "power-of-two": "routing.by_load.power_of_two",
    "length-buckets": "routing.by_load.length_buckets",
}
SCORERS = {
    "prefix-affinity": "scorers.prefix_affinity",
    "queue-depth": "scorers.queue_depth",
    "kv-utilization": "scorers.kv_utilization",
    "load-balance": "scorers.load_balance",
    "kv-pressure": "scorers.kv_pressure",
    "cost-benefit": "scorers.cost_benefit",
    "slo-headroom": "scorers.slo_headroom",
    "slo-priority": "scorers.slo_priority",
    "precise-prefix-cache": "scorers.precise_prefix_cache",
    "no-hit-lru": "scorers.no_hit_lru",
    "waiting-requests": "scorers.waiting_requests",
    "running-requests": "scorers.running_requests",
    "active-requests": "scorers.active_requests",
    "load-aware": "scorers.load_aware",
    "vllm-dp": "scorers.vllm_dp",
    "capability-load": "scorers.capability_load",
    "length-buckets": "routing.by_load.in_bucket",
}
PICKERS = {
    "first-best": "routing.pickers.first_best",
    "random-best": "routing.pickers.random_best",
    "weighted-random": "routing.pickers.weighted_random",
    "drawn-best": "routing.pickers.drawn_best",
}
PRIORITY = {
    "constant": "queue_order.constant",
    "slo-based": "queue_order.slo_based",
    "inverted-slo": "queue_order.inverted_slo",
    "slo-tiered": "queue_order.slo_tiered",
    "load-adaptive": "queue_order.load_adaptive",
    "slo-class": "queue_order.slo_class",
    "gateway-class": "classes.gateway_class",
}
SCHEDULERS = {
    "fcfs": "queue_order.fcfs",
    "priority-fcfs": "queue_order.priority_fcfs",
    "sjf": "queue_order.sjf",
    "reverse-priority": "queue_order.reverse_priority",
}
CLUSTER = {
    "outages": "movement.outages.outages",
    "outage-at": "movement.outages.outage_at",
    "autoscaler": "movement.autoscaler.autoscaler",
    "saturation-autoscaler": "movement.saturation_autoscaler.saturation_autoscaler",
}
HAND_OVER = {"pools": "movement.pools.pools"}
NAMES: dict[str, dict[str, str]] = {
    "admission": ADMISSION,
    "routing": ROUTING,
    "scorer": SCORERS,
    "picker": PICKERS,
    "priority": PRIORITY,
    "scheduler": SCHEDULERS,
    "cluster": CLUSTER,
    "hand_over": HAND_OVER,
    "source": {},  # users have them in files
    "victim": {},
    "offload": {},
}


def find(kind: str, name: str, setting: str = "") -> Policy:
    """Return the policy of a kind with this name, or the one at `path/to/file.py:Name`.

    `setting` names it, if that is not the kind's.

    Raises:
        ConfigError: there is no such name, file or policy; the sentence lists what there is.
    """
    if is_file(name):
        return _from_file(kind, name, setting or KINDS[kind].setting)
    names = NAMES.get(kind, {})
    if name not in names:
        allowed = ", ".join((*names, *_no_policy(kind, setting)))
        raise ConfigError(
            f"{setting or KINDS[kind].setting} {shortened(name)} is not known; use one of {allowed}, or "
            f"path/to/file.py:Name{closest(name, (*names, *POLICIES.get(kind, ())))}"
        )
    return _built_in(names[name])


def _no_policy(kind: str, setting: str) -> tuple[str, ...]:
    """Return the word for no policy, or for the cluster's, where a setting takes it."""
    if setting and not KINDS[kind].is_list:
        return (SAME,)
    return (NONE,) if KINDS[kind].is_optional else ()


def _built_in(where: str) -> Policy:
    module, _, name = where.rpartition(".")
    policy: Policy = getattr(import_module(f"blis_jax.policies.{module}"), name)
    return policy


def _from_file(kind: str, name: str, setting: str) -> Policy:
    wanted = f"{setting} {name}"
    policy = value_at(name, wanted, Policy, f"@{KINDS[kind].decorator}()")
    if policy.kind != kind:
        raise ConfigError(f"{wanted} is of kind {policy.kind}; give one of kind {kind}")
    return policy


class Setting(NamedTuple):
    """A setting that some policies of the package read."""

    number: Number
    kind: str
    policies: tuple[str, ...]  # names


def setting_of(policy_name: str, field: str, number: Number) -> str | None:
    """Return the setting of a policy's number; None if the reference fixes it."""
    if number.setting == FIXED:
        return None
    return number.setting or f"{policy_name.replace('-', '_')}_{field}"


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Return the numbers of all policies of the package by setting, in the order of the registry."""
    by_setting: dict[str, Setting] = {}
    for kind, name, field, one in _numbers():
        setting = setting_of(name, field, one)
        if setting is not None:
            known = by_setting.get(setting)
            policies = tuple(dict.fromkeys((*(known.policies if known else ()), name)))
            by_setting[setting] = Setting(known.number if known else one, kind, policies)
    return by_setting


def _numbers() -> Iterator[tuple[str, str, str, Number]]:
    """Kind, policy, field and declaration of every number of the package's policies."""
    for kind, names in NAMES.items():
        for name in names:
            for field, one in numbers_of(find(kind, name).params).items():
                yield kind, name, field, one
