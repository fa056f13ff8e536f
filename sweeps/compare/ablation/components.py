"""The settings in which two configurations differ, grouped by mechanism, and every mixture of the two."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster import disaggregation
from blis_jax.cluster.adapters import AdapterSettings
from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.named_policies import has_number, is_policy_number
from blis_jax.cluster.router import FlowSettings, short_name, weights_of, with_weights
from blis_jax.cluster.settings import declared_in
from blis_jax.cluster.speculation import SpeculativeSettings
from blis_jax.errors import ConfigError, closest
from blis_jax.policies import registry
from sweeps.strategies.space import SCORERS


def _numbers(kinds: Collection[str]) -> tuple[str, ...]:
    """Return the setting names of all numbers of the package's policies of these kinds."""
    return tuple(name for name, setting in registry.settings().items() if setting.kind in kinds)


_NUMBERS = "policy_numbers"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "hardware": (
        "model",
        "model_config",
        "hardware",
        "tp",
        "dp",
        "moe_comm_backend",
        "latency_model",
        "alpha_coeffs",
        "beta_coeffs",
    ),
    "instances": ("num_instances", "instances", "node_pools"),
    "admission": (
        "admission_policy",
        *_numbers(("admission",)),
    ),
    "gateway queue": (*declared_in(FlowSettings), "tenant_budgets"),
    "gateway latency": ("admission_latency", "routing_latency", "network_delay"),
    "routing": (
        "routing_policy",
        "routing_scorers",
        "routing_picker",
        *_numbers(("routing", "scorer", "picker")),
    ),
    "snapshots": (
        "snapshot_refresh_interval",
        "load_refresh_interval",
        "snapshot_phases",
        "in_flight_counts",
        "num_gateways",
        "cache_signal_delay",
    ),
    "LoRA adapters": tuple(declared_in(AdapterSettings)),
    "drafted tokens": (*declared_in(SpeculativeSettings), "draft_policy", *_numbers(("draft",))),
    "prefix index": ("precise_kv_routing", "prefix_index_delay", "prefix_index_loss"),
    "movement": (
        "cluster_policy",
        "event_source",
        "hand_over_policy",
        *_numbers(("cluster", "source", "hand_over")),
    ),
    "routing in the decode pool": (
        "decode_routing_policy",
        "decode_routing_scorers",
        "decode_routing_picker",
    ),
    "pools of blis-2026-08": tuple(disaggregation.SETTINGS),
    "priority": ("scheduler", "priority_policy"),
    "priority numbers": _numbers(("priority", "scheduler")),
    "numbers of policies": (_NUMBERS,),
    "priority bridge": ("slo_priority_bridge",),
    "chunks": ("long_prefill_token_threshold", "mamba_cache_mode"),
    "chunks by class": ("slo_prefill", "slo_prefill_critical", "slo_prefill_sheddable"),
    "token budget": ("max_num_scheduled_tokens",),
    "batch size": ("max_num_running_reqs",),
    "KV memory": ("total_kv_blocks", "gpu_memory_utilization", "block_size_in_tokens"),
    "prefix caching": ("enable_prefix_caching",),
    "longest request": ("max_model_len",),
    "KV tier": (
        "kv_cpu_blocks",
        "kv_offload_threshold",
        "kv_transfer_bandwidth",
        "kv_transfer_base_latency",
        "kv_offload_config",
        "offload_policy",
        *_numbers(("offload",)),
    ),
    "preemption": ("slo_preemption", "preemption_mode", "victim_policy", *_numbers(("victim",))),
    "horizon": ("horizon",),
    "profile": ("revision", "variant", "corrected"),
}


# the usual group of a policy's number, by what its name begins with; of others "numbers of policies"
_OWNERS: Mapping[str, str] = {
    **dict.fromkeys(("routing", "scorer", "picker"), "routing"),
    **dict.fromkeys(("priority", "scheduler"), "priority numbers"),
    **dict.fromkeys(("cluster", "source", "hand_over"), "movement"),
    "admission": "admission",
    "victim": "preemption",
    "offload": "KV tier",
    "draft": "drafted tokens",
}


@dataclass(frozen=True)
class Component:
    """Settings that are switched together; a scorer's weight is named `routing_scorers.NAME`."""

    name: str
    settings: tuple[str, ...]


def differing(base: ClusterConfig, arm: ClusterConfig) -> tuple[str, ...]:
    """Return the names of the settings in which two configurations differ; policy numbers one by one, and where both
    routers are weighted, scorers one by one."""
    names = [name for name in FIELDS if getattr(base, name) != getattr(arm, name)]
    if _NUMBERS in names:
        names.remove(_NUMBERS)
        before, after = dict(base.policy_numbers), dict(arm.policy_numbers)
        names += [n for n in {**after, **before} if before.get(n) != after.get(n)]
    if base.routing_policy == arm.routing_policy == "weighted":
        ours, theirs = weights_of(base.scorers()), weights_of(arm.scorers())
        changed = [name for name in {**theirs, **ours} if ours.get(name) != theirs.get(name)]
        if changed or SCORERS in names:
            names = [name for name in names if name != SCORERS]
            names += [f"{SCORERS}.{name}" for name in changed]
        if not changed and list(ours) != list(theirs):  # the order moves last digits
            names.append(SCORERS)
    return tuple(names)


def mixture(base: ClusterConfig, arm: ClusterConfig, settings: Iterable[str]) -> ClusterConfig:
    """Return the base configuration with the named settings replaced by the arm's values.

    Raises:
        ConfigError: the settings do not go together.
    """
    chosen = set(settings)
    numbers = {name for name in chosen if is_policy_number(name)}
    changes = {name: getattr(arm, name) for name in chosen if "." not in name}
    scorers = {name.partition(".")[2] for name in chosen - numbers if "." in name}
    if scorers:
        changes[SCORERS] = _scorers(base, arm, scorers)
    made = base.replace(**changes)
    own_numbers = dict(arm.policy_numbers)
    mixed = {name: value for name, value in made.policy_numbers if name not in numbers}
    mixed |= {
        name: own_numbers[name]
        for name in numbers
        if name in own_numbers and has_number(made, name)
    }
    return made.replace(policy_numbers=tuple(mixed.items()))


def _scorers(base: ClusterConfig, arm: ClusterConfig, chosen: set[str]) -> str:
    """Return scorers with weights, in the arm's order: the arm's weight if `chosen` has its short name, else the
    base's."""
    ours, theirs = dict(base.scorers()), dict(arm.scorers())
    names = {name for name in {**theirs, **ours} if short_name(name) in chosen}
    weights = {
        name: (theirs if name in names or name not in ours else ours).get(name)
        for name in {**theirs, **ours}
        if name in names or name in ours
    }
    left = [(name, weight) for name, weight in weights.items() if weight is not None]
    if not left:
        raise ConfigError("no scorer is left of a weighted router")
    return with_weights(left, {})


# --- grouping -------------------------------------------------------------------------------------


def components_of(
    base: ClusterConfig, arm: ClusterConfig, text: str | None = None
) -> tuple[Component, ...]:
    """Group the differing settings by mechanism; `text`, `NAME=MEMBER,…;NAME=…`, replaces the usual groups of the
    settings that it names.

    A member is a setting or a group of `GROUPS`; settings that `text` does not name stay in their usual groups.
    """
    names = differing(base, arm)
    if not names:
        raise ConfigError(
            "the two arms have the same settings; there is nothing to take apart, give another arm"
        )
    groups_by_user = _asked(text, names) if text else {}
    in_use = {setting for settings in groups_by_user.values() for setting in settings}
    groups = dict(groups_by_user)
    for name in names:
        if name not in in_use:
            group = group_of(name)
            if group in groups_by_user:
                raise ConfigError(
                    f"--components: {group!r} is also the usual group of {name}, which is not in it; "
                    "add it, or choose another name"
                )
            groups[group] = (*groups.get(group, ()), name)
    order = [
        *groups_by_user,
        *(group for group in GROUPS if group in groups and group not in groups_by_user),
    ]
    return tuple(Component(name, groups[name]) for name in order)


def group_of(setting: str) -> str:
    """Return the group of `components_of` that a setting usually belongs to."""
    plain = setting.partition(".")[0]
    if is_policy_number(setting):
        return _OWNERS.get(plain, "numbers of policies")
    return next(group for group, settings in GROUPS.items() if plain in settings)


def _asked(text: str, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    named: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, equals, members = (piece.strip() for piece in part.partition("="))
        if not (name and equals and members):
            raise ConfigError(
                f"--components: {part!r} is not NAME=SETTING,…; separate components by ;"
            )
        if name in named:
            raise ConfigError(f"--components: {name!r} is given twice; keep one of them")
        settings: list[str] = []
        for member in (piece.strip() for piece in members.split(",")):
            settings += _members(member, names)
        for setting in settings:
            if settings.count(setting) > 1 or any(setting in other for other in named.values()):
                raise ConfigError(f"--components: {setting} is in two places; keep one of them")
        named[name] = tuple(settings)
    return named


def _members(member: str, names: Sequence[str]) -> list[str]:
    """Return the differing settings that a member of `components_of` stands for."""
    if member in GROUPS:
        chosen = [name for name in names if group_of(name) == member]
    else:
        chosen = [name for name in names if member in (name, name.partition(".")[0])]
    if chosen:
        return chosen
    if member in GROUPS or member in FIELDS:
        raise ConfigError(
            f"--components: the arms do not differ in {member!r}; they differ in {', '.join(names)}"
        )
    known = (*names, *GROUPS)
    raise ConfigError(
        f"--components: {member!r} is neither a setting nor a group{closest(member, known)}; the "
        f"arms differ in {', '.join(names)}"
    )


def values_of(config: ClusterConfig, settings: Sequence[str]) -> dict[str, Any]:
    """Return the configuration's value of each setting; the weight where the setting is a scorer's.

    A value is None where the scorer is not used, or the policy's number is not set.
    """
    dotted: dict[str, Any] = dict(config.policy_numbers)
    dotted |= {f"{SCORERS}.{name}": weight for name, weight in weights_of(config.scorers()).items()}
    return {name: dotted.get(name) if "." in name else getattr(config, name) for name in settings}


def on(components: Sequence[Component], mask: int) -> tuple[Component, ...]:
    """Return the components that are switched on in `mask`."""
    return tuple(component for place, component in enumerate(components) if mask >> place & 1)


def config_at(
    base: ClusterConfig, arm: ClusterConfig, components: Sequence[Component], mask: int
) -> ClusterConfig:
    """Return the base with the components of `mask` switched on: none give exactly the base, all exactly the arm."""
    if mask == 0:
        return base
    if mask == 2 ** len(components) - 1:
        return arm
    settings = [setting for component in on(components, mask) for setting in component.settings]
    return mixture(base, arm, settings)
