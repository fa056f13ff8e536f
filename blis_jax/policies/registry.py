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
from blis_jax.policies import own_file
from blis_jax.policies.contract import Policy
from blis_jax.policies.numbers import FIXED, Number, numbers_of
from blis_jax.policies.their_names import POLICIES


def _of(module: str, names: str) -> dict[str, str]:
    """Return where policies are whose names are those of their functions, with dashes."""
    return {name: f"{module}.{name.replace('-', '_')}" for name in names.split()}


ADMISSION = {
    **_of("admission", "always-admit reject-all token-bucket slo-gated slo-queue-gated"),
    **_of("admission", "predictive-slo"),
    **_of("classes", "tier-shed gaie-legacy stale-gated"),
}
ROUTING = {
    **_of("routing.by_load", "round-robin least-loaded"),
    **_of("routing.by_score", "weighted"),
    **_of("routing.by_load", "prefix-affinity always-busiest"),
    **_of("routing.pickers", "least-loaded-drawn"),
    **_of("routing.by_score", "adaptive-weighted kv-adaptive epoch-adaptive"),
    **_of("routing.by_load", "power-of-two length-buckets"),
}
SCORERS = {
    **_of("scorers", "prefix-affinity queue-depth kv-utilization load-balance kv-pressure"),
    **_of("scorers", "cost-benefit slo-headroom slo-priority precise-prefix-cache no-hit-lru"),
    **_of("scorers", "waiting-requests running-requests active-requests load-aware vllm-dp"),
    **_of("scorers", "capability-load lora-affinity"),
    "length-buckets": "routing.by_load.in_bucket",
}
PICKERS = _of("routing.pickers", "first-best random-best weighted-random drawn-best")
PRIORITY = {
    **_of("queue_order", "constant slo-based inverted-slo slo-tiered load-adaptive slo-class"),
    **_of("classes", "gateway-class"),
}
SCHEDULERS = _of("queue_order", "fcfs priority-fcfs sjf reverse-priority")
CLUSTER = {
    **_of("movement.outages", "outages outage-at"),
    **_of("movement.autoscaler", "autoscaler"),
    **_of("movement.saturation_autoscaler", "saturation-autoscaler"),
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
    if policy not in _CHECKED:
        own_file.check(policy)
        _CHECKED.add(policy)
    return policy


_CHECKED: set[Policy] = set()


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
