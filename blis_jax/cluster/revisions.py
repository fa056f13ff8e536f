"""What belongs to one revision of the reference alone, and is refused in the other.

`blis-2026-08` names the policies of February's revision and of its own; some of its names mean another policy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from blis_jax.core.kinds import NONE
from blis_jax.errors import ConfigError
from blis_jax.latency.model_description import model_description
from blis_jax.latency.registry import SIZED

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

# a policy of August's revision by the name that it has there, where that means another one elsewhere
AUGUST_POLICIES: dict[tuple[str, str], str] = {
    ("priority", "constant"): "gateway-class",
    ("routing", "least-loaded"): "least-loaded-drawn",
    ("picker", "first-best"): "drawn-best",
    ("scorer", "queue-depth"): "waiting-requests",
}
# settings of mechanisms that August's revision does not have, with the value that leaves each out
_GONE: dict[str, Any] = {
    "variant": "scheduling",
    "corrected": False,
    "slo_priority_bridge": False,
    "slo_prefill": False,
    "preemption_mode": "restart",
    "precise_kv_routing": False,
    "enable_prefix_caching": True,
    "load_refresh_interval": 0,
    "snapshot_phases": "aligned",
    "in_flight_counts": True,
    "prefix_index_delay": 0,
    "prefix_index_loss": 0.0,
    "network_delay": 0,
    "num_gateways": 1,
    "priority_policy": "constant",
    "hand_over_policy": "none",
    "victim_policy": "none",
    "draft_policy": "none",
    "decode_routing_policy": "same",
    "decode_routing_picker": "same",
}
_GONE_POLICIES = {"admission_policy": ("slo-gated",), "routing_policy": ("prefix-affinity",)}
_CLUSTER_POLICIES = ("none", "saturation-autoscaler")


def registered(config: ClusterConfig, kind: str, name: str) -> str:
    """Return the name in the registry of the policy that the configuration calls so."""
    return AUGUST_POLICIES.get((kind, name), name) if config.is_august else name


# what August's revision takes where a setting is not given, if that is another value
_DEFAULTS = {"snapshot_refresh_interval": 50_000, "latency_model": "trained-physics"}
OF_REVISION = ("snapshot_refresh_interval", "max_model_len")  # whose default the revision decides


def defaults(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return settings that were not given and have another default in the configuration's revision."""
    if not config.is_august:
        return {}
    is_auto = config.latency_model == "auto"
    return {
        name: value
        for name, value in _DEFAULTS.items()
        if name not in said or (name == "latency_model" and is_auto)
    }


def limits(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return the longest request of August's revision: as given, else of the model; never longer than the KV cache."""
    if not config.is_august:
        return {}
    longest = config.max_model_len
    if "max_model_len" not in said and config.latency_model in SIZED:
        longest = model_description(config.model, config.model_config).max_model_len
    room = config.total_kv_blocks * config.block_size_in_tokens
    return {"max_model_len": min(longest, room) if longest else longest}


def check(config: ClusterConfig) -> None:
    """Refuse settings that the configuration's revision does not know.

    Raises:
        ConfigError: with what to leave out.
    """
    if not config.is_august:
        if config.max_model_len:
            raise ConfigError(
                "max_model_len exists only in the revision blis-2026-08; leave it out, or take the profile blis-2026-08"
            )
        for name in ("kv_cpu_blocks", "precise_kv_routing"):
            if getattr(config, name) and not config.enable_prefix_caching:
                raise ConfigError(
                    f"enable_prefix_caching false: {name} {getattr(config, name)} needs blocks that are found again; "
                    "leave one of them out"
                )
        if config.preemption_mode == "recompute" and not config.corrected:
            raise ConfigError(
                "preemption_mode recompute is for the corrected profile; set corrected (--corrected), or leave it out"
            )
        return
    for name, value in _GONE.items():
        if getattr(config, name) != value:
            raise ConfigError(
                f"{name} {getattr(config, name)} is not part of blis-2026-08; leave it at {value}, "
                "or take the profile blis-2026-02"
            )
    for name, values in _GONE_POLICIES.items():
        if getattr(config, name) in values:
            raise ConfigError(
                f"{name} {getattr(config, name)} is not part of blis-2026-08; take the profile blis-2026-02"
            )
    if config.cluster_policy not in _CLUSTER_POLICIES:
        raise ConfigError(
            f"cluster_policy {config.cluster_policy} is not part of blis-2026-08; use one of "
            f"{', '.join(_CLUSTER_POLICIES)}, or take the profile blis-2026-02"
        )
    # the linear law went out of BLIS between March and August, and stays for what was computed with August's rules
    if config.latency_model.startswith("blackbox-") or config.latency_model == "step-law":
        raise ConfigError(
            f"latency_model {config.latency_model} is not part of blis-2026-08; use trained-physics, roofline or "
            "blackbox"
        )


ROUTER_SIGNALS = ("llm-d-router-0.10",)  # what routers see, by the scheduler that they are those of
SCRAPE_US = 50_000  # the router's least interval between looks at its servers
_SCORERS_THERE = {"queue-depth": "waiting-requests", "prefix-affinity": "approx-prefix-cache"}
_PICKERS_THERE = {"first-best": "random-best"}


def seen_as(config: ClusterConfig, signals: str | None) -> ClusterConfig:
    """Return a configuration whose router decides by what the scheduler of llm-d's router 0.10 sees.

    Metrics are scraped each 50 ms, of each instance at times of its own; requests in flight are counted at once; a
    queue is the waiting requests alone; the prefix index has blocks of 64 tokens; ties fall at random.

    Args:
        config: a cluster of February's revision; others have no such settings.
        signals: one of `ROUTER_SIGNALS`; None leaves the configuration as it is.

    Raises:
        ConfigError: the name is unknown, or the configuration's revision cannot have it.
    """
    if signals is None:
        return config
    if signals not in ROUTER_SIGNALS:
        raise ConfigError(f"signals {signals!r} are unknown; use {', '.join(ROUTER_SIGNALS)}")
    changes: dict[str, Any] = {
        "load_refresh_interval": SCRAPE_US,
        "snapshot_refresh_interval": SCRAPE_US,
        "snapshot_phases": "drawn",
        "in_flight_counts": True,
    }
    if config.routing_policy == "weighted":
        changes["routing_scorers"] = ",".join(
            f"{_SCORERS_THERE.get(name, name)}:{weight:.17g}" for name, weight in config.scorers()
        )
        picker = config.routing_picker
        changes["routing_picker"] = _PICKERS_THERE.get(picker, picker)
    return config.replace(**changes)


def served(config: ClusterConfig, is_real: bool) -> ClusterConfig:
    """Return a configuration without BLIS's defects where it stands for real servers and does not say `corrected`.

    `is_real` says that requests or step times were measured. A cluster with roles or hand-overs, which BLIS of
    February does not have, stands for real servers, too.
    """
    is_said = "corrected" in config.given or config.is_august
    has_roles = any(group.role != "both" for group in config.instances)
    is_real = is_real or has_roles or config.hand_over_policy != NONE
    return config.replace(corrected=True) if is_real and not is_said else config
