"""Refuse settings outside the one BLIS revision, or vLLM, that has them, and fill in defaults that depend on the
revision.

The revision `blis-2026-08` has February's policies and new ones; some of its policy names mean another policy than in
February.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

from blis_jax.cluster.instance_groups import per_instance, refuse_beside
from blis_jax.cluster.machines import deployment
from blis_jax.cluster.router import is_as_vllm
from blis_jax.cluster.speculation import READS_STATES
from blis_jax.core.kinds import NONE
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import block_tokens
from blis_jax.latency.model_description import is_shipped, model_description
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
    "mamba_cache_mode": "none",
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
    """Return the registry's name of the policy that the configuration calls `name`, in its revision."""
    return AUGUST_POLICIES.get((kind, name), name) if config.is_august else name


# defaults of August's revision where they differ
_DEFAULTS = {"snapshot_refresh_interval": 50_000, "latency_model": "trained-physics"}
OF_REVISION = ("snapshot_refresh_interval", "max_model_len")  # whose default the revision decides


def defaults(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return defaults that differ in the configuration's revision, for settings that were not given."""
    if not config.is_august:
        return {}
    is_auto = config.latency_model == "auto"
    return {
        name: value
        for name, value in _DEFAULTS.items()
        if name not in said or (name == "latency_model" and is_auto)
    }


def of_vllm(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return settings that follow if a run uses a mechanism of vLLM alone: no BLIS defects, and vLLM's preemption.

    If prompts are cut at KV block boundaries, the block size is the model's.

    Raises:
        ConfigError: the model's block size is unknown and was not given.
    """
    is_used = aligns_chunks(config) or config.speculative_config.num_speculative_tokens
    if not is_used or config.is_august or ("corrected" in said and not config.corrected):
        return {}
    as_vllm: dict[str, Any] = {"corrected": True, "preemption_mode": "recompute"}
    if aligns_chunks(config) and "block_size_in_tokens" not in said:
        as_vllm["block_size_in_tokens"] = _block_of_states(config) or _unknown_block(config)
    return {name: value for name, value in as_vllm.items() if name not in said}


def limits(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return the longest request of August's revision: as given, else the model's limit; at most the KV cache."""
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
        ConfigError: the message says what to leave out.
    """
    if not config.is_august:
        if config.max_model_len:
            raise ConfigError(
                "max_model_len limits requests in the revision blis-2026-08 alone, BLIS of February passes it over; "
                "leave it out, or take the profile blis-2026-08"
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
        if aligns_chunks(config):
            _check_aligned(config)
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


# --- chunks of vLLM's for models with linear attention --------------------------------------------


def aligns_chunks(config: ClusterConfig) -> bool:
    """Return whether prompts are cut where the state of linear attention can be kept, at KV block boundaries."""
    return config.mamba_cache_mode == "align"


def _block_of_states(config: ClusterConfig) -> int | None:
    """Return the tokens per KV block that vLLM chooses for a model with linear attention; None for any other model."""
    if not (config.model_config or is_shipped(config.model)):
        return None
    # a fitted model need not name its GPU, and the block size is the same on all GPUs
    any_gpu = config.hardware or "H100"
    served = deployment(config, any_gpu, config.tp or 1, config.dp)
    return block_tokens(served) if served.model.kinds.linear else None


def _unknown_block(config: ClusterConfig) -> NoReturn:
    raise ConfigError(
        f"mamba_cache_mode align: no linear attention is known of {config.model or 'a model without a name'}, and "
        "block_size is not given; give it as vLLM logs it (Setting attention block size to … tokens), or leave "
        "mamba_cache_mode out"
    )


def num_dropped_blocks(config: ClusterConfig) -> int | None:
    """Return how many whole blocks at a prompt's end keep no reusable state of linear attention; None without cuts.

    A drafter that reads the model's own states drops the last block's state, which it has to compute again.
    """
    if not aligns_chunks(config):
        return None
    drafts = config.speculative_config
    return int(drafts.num_speculative_tokens > 0 and drafts.method in READS_STATES)


def _check_aligned(config: ClusterConfig) -> None:
    """Refuse settings that do not go with prompts cut at block boundaries, such as chunks smaller than a block."""
    if not is_as_vllm(config):
        raise ConfigError(
            f"mamba_cache_mode align: the profile {config.profile} claims to be equal to BLIS, which cuts no prompt at "
            "a block; take blis-2026-02 with corrected (--corrected true), or leave mamba_cache_mode out"
        )
    needed = {"preemption_mode": "recompute", "enable_prefix_caching": True}
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ConfigError(
                f"mamba_cache_mode align: vLLM cuts so with {name} {value} alone, and it is {getattr(config, name)}; "
                "leave one of them out"
            )
    size, least = config.block_size_in_tokens, _block_of_states(config) or 0
    if size < least:
        raise ConfigError(
            f"mamba_cache_mode align: block_size {size} has no room for a state of {config.model} with tp {config.tp}, "
            f"and vLLM takes {least}; give block_size {least}, or leave it out"
        )
    limits = {
        "max_num_batched_tokens": per_instance(config, "max_num_scheduled_tokens"),
        "long_prefill_token_threshold": per_instance(config, "long_prefill_token_threshold"),
    }
    if config.slo_prefill or any(per_instance(config, "slo_prefill")):
        for name in ("slo_prefill_critical", "slo_prefill_sheddable"):
            limits[name] = per_instance(config, name)
    for name, values in limits.items():
        for tokens in values:
            if 0 < tokens < size:
                raise ConfigError(
                    f"mamba_cache_mode align: {name} {tokens} is below block_size {size}, so a chunk would never be a "
                    "whole block; give at least as many tokens, or a smaller block_size"
                )
    refuse_beside(config, "mamba_cache_mode align", "it, since vLLM's takes no KV from elsewhere")


# --- signals of llm-d's router --------------------------------------------------------------------

ROUTER_SIGNALS = ("llm-d-router-0.10",)  # the schedulers whose signals routers may use
SCRAPE_US = 50_000  # the router's least interval between looks at its servers
_SCORERS_THERE = {"queue-depth": "waiting-requests", "prefix-affinity": "approx-prefix-cache"}
_PICKERS_THERE = {"first-best": "random-best"}


def seen_as(config: ClusterConfig, signals: str | None) -> ClusterConfig:
    """Return a configuration whose router uses the same signals as the scheduler of llm-d's router 0.10.

    Metrics are scraped every 50 ms, at a different phase for each instance; requests in flight are counted at once;
    queue length counts waiting requests alone; the prefix index has blocks of 64 tokens; ties are broken at random.

    Args:
        config: a cluster of February's revision; others have no such settings.
        signals: one of `ROUTER_SIGNALS`; None leaves the configuration as it is.

    Raises:
        ConfigError: the name is unknown, or the configuration's revision does not allow these signals.
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
    """Return a configuration without BLIS's defects if it stands for real servers and `corrected` was not given.

    `is_real` says that requests or step times were measured. A cluster with roles or hand-overs, which BLIS of February
    does not have, also stands for real servers.
    """
    is_said = "corrected" in config.given or config.is_august
    has_roles = any(group.role != "both" for group in config.instances)
    is_real = is_real or has_roles or config.hand_over_policy != NONE
    return config.replace(corrected=True) if is_real and not is_said else config
