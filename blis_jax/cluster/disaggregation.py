"""Prefill, decode and encode pools of BLIS's revision of August 2026, derived from that revision's settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.machines import ENCODE_DECIDERS, PoolSettings, blocks_of, deployment
from blis_jax.cluster.settings import declared_in, demand
from blis_jax.core.types import ENCODE, IDLE, ROLES
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import kv_bytes_per_token
from blis_jax.latency.registry import SIZED

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

# settings of pools with the values that mean none; they are given only where there are pools
SETTINGS: dict[str, Any] = {
    name: setting.default for name, setting in declared_in(PoolSettings).items()
}
_COUNTS = ("prefill_instances", "decode_instances", "prefill_decode_instances", "encode_instances")
# settings that a pool may override
_OWN = ("total_kv_blocks", "tp", "max_model_len", "latency_model")
OF_ONE_POOL = tuple(
    f"{pool}_{name}"
    for pool in ("prefill", "decode")
    for name in ("tp", "hardware", "max_model_len", "latency_model")
)


def has_pools(config: ClusterConfig) -> bool:
    """Return whether the instances are divided into pools."""
    return any(getattr(config, name) for name in _COUNTS[:3])


def roles(config: ClusterConfig) -> list[int]:
    """Return the role of every instance: an index into `ROLES`, or `ENCODE`, or `IDLE` for instances in no pool."""
    codes = [ROLES.index("prefill"), ROLES.index("decode"), ROLES.index("both"), ENCODE]
    codes_of_instances = [
        code
        for code, name in zip(codes, _COUNTS, strict=True)
        for _ in range(getattr(config, name))
    ]
    codes_of_instances += [IDLE] * (config.num_instances - len(codes_of_instances))
    # instances without room on a node never start
    return codes_of_instances[: config.num_instances]


def per_instance(config: ClusterConfig, setting: str) -> list[Any]:
    """Return the value of a setting for every instance, in order."""
    usual = getattr(config, setting)
    if setting not in _OWN:
        return [usual] * config.num_instances
    memory = [group.gpu_memory_gib for group in config.instances for _ in range(group.count)]
    pairs = list(zip(roles(config), memory or [None] * config.num_instances, strict=True))
    made = {pair: _own(config, *pair)[setting] for pair in dict.fromkeys(pairs)}
    return [made[pair] for pair in pairs]


def later_blocks(config: ClusterConfig, at: int) -> int:
    """Return the KV blocks of an instance that is added at run time on the same kind of node as instance `at`; as in
    BLIS, an added instance is in no pool.
    """
    memory = [group.gpu_memory_gib for group in config.instances for _ in range(group.count)]
    blocks: int = _own(config, IDLE, memory[at] if memory else None)["total_kv_blocks"]
    return blocks


def kinds_of_gpu(config: ClusterConfig) -> list[str]:
    """Return every instance's kind of GPU, for clusters in which no node pool decides it."""
    pools = [_POOL_OF_ROLE.get(role) for role in roles(config)] if has_pools(config) else []
    named = [getattr(config, f"{pool}_hardware") if pool else "" for pool in pools]
    return [name or config.hardware for name in named or [""] * config.num_instances]


def cuts_answers(config: ClusterConfig) -> bool:
    """Return whether some decode instance admits only shorter requests than the prefill instances do."""
    if not has_pools(config) or config.pd_decider == "never":
        return False
    limits = [limit or math.inf for limit in per_instance(config, "max_model_len")]
    prefill, decode, both = (ROLES.index(name) for name in ("prefill", "decode", "both"))
    role_limits = list(zip(roles(config), limits, strict=True))
    longest = max((limit for role, limit in role_limits if role in (prefill, both)), default=0)
    return (
        min((limit for role, limit in role_limits if role in (decode, both)), default=longest)
        < longest
    )


# an instance of role both uses the decode pool's settings
_POOL_OF_ROLE = {ROLES.index("prefill"): "prefill", ROLES.index("decode"): "decode"}
_POOL_OF_ROLE[ROLES.index("both")] = "decode"


def _own(config: ClusterConfig, role: int, memory: float | None) -> dict[str, Any]:
    """Return an instance's own values by setting name, given its role and its GPUs' `memory` in GiB, None off a node.

    A pool's GPUs change the number of KV blocks, but no step times. On a node, the memory of the node's GPUs decides
    the KV blocks.
    """

    def given(name: str) -> Any:
        pool = _POOL_OF_ROLE.get(role)
        return getattr(config, f"{pool}_{name}") if pool else None

    tp, hardware = given("tp") or config.tp, given("hardware") or config.hardware
    of_pool = {
        "tp": tp,
        "total_kv_blocks": config.total_kv_blocks,
        "max_model_len": given("max_model_len") or config.max_model_len,
        "latency_model": given("latency_model") or config.latency_model,
    }

    def shorten(blocks: int) -> None:
        """Set the pool's KV blocks, and lower the longest allowed request to what fits into them; never raise it."""
        of_pool["total_kv_blocks"] = blocks
        if of_pool["max_model_len"]:
            room = blocks * config.block_size_in_tokens
            of_pool["max_model_len"] = min(of_pool["max_model_len"], room)

    if (tp, hardware) != (config.tp, config.hardware):
        longest = given("max_model_len")
        shorten(blocks_of(config, hardware, tp, config.dp))
        of_pool["max_model_len"] = longest or of_pool["max_model_len"]
    if memory is not None and "total_kv_blocks" not in config.given:
        shorten(blocks_of(config, hardware, tp, config.dp, memory))
    return of_pool


def numbers(config: ClusterConfig) -> dict[str, float]:
    """Return the numbers of the policy that decides which requests are split into prefill and decode."""
    served = deployment(config, config.hardware, config.prefill_tp or config.tp, config.dp)
    thresholds = {"never": 1e18, "always": -1.0, "prefix-threshold": config.pd_prefix_threshold}
    return {
        "base_latency_us": config.pd_transfer_base_latency * 1000.0,
        "bytes_per_us": config.pd_transfer_bandwidth * 1000.0,
        "shares_link": float(config.pd_transfer_contention),
        "block_bytes": float(config.block_size_in_tokens) * kv_bytes_per_token(served),
        "block_size": float(config.block_size_in_tokens),
        "encodes": float(ENCODE_DECIDERS.index(config.encode_decider)),
        "threshold": float(thresholds[config.pd_decider]),
    }


def check(config: ClusterConfig) -> None:
    """Refuse pool settings that contradict each other.

    Raises:
        ConfigError: the message begins with the setting.
    """
    changed = [name for name, none in SETTINGS.items() if getattr(config, name) != none]
    if not changed:
        return
    if not config.is_august:
        raise ConfigError(
            f"{changed[0]} exists only in the revision blis-2026-08; take the profile blis-2026-08, or use instances "
            "with roles and hand_over_policy pools"
        )
    if not has_pools(config):
        raise ConfigError(
            f"{changed[0]} is for prefill and decode pools; give prefill_instances and decode_instances too"
        )
    _check_pools(config)


def check_sum(config: ClusterConfig) -> None:
    """Refuse pools that have more instances in total than the cluster.

    Raises:
        ConfigError: the message begins with `num_instances`.
    """
    total = sum(getattr(config, name) for name in _COUNTS)
    if total > config.num_instances:
        raise ConfigError(
            f"num_instances is {config.num_instances}, but the pools add up to {total}; raise it, or make one smaller"
        )


def _check_pools(config: ClusterConfig) -> None:
    if not config.node_pools:  # else they were counted before instances were placed
        check_sum(config)
    shared = config.prefill_decode_instances
    for name in ("prefill_instances", "decode_instances"):
        if not getattr(config, name) + shared:
            raise ConfigError(f"{name} is 0, so one of the pools is empty; give at least 1")
    if config.encode_decider != "never" and not config.encode_instances:
        raise ConfigError(
            f"encode_decider {config.encode_decider} needs an encode pool; give encode_instances"
        )
    changed = [name for name in OF_ONE_POOL if getattr(config, name)]
    if changed and not config.prefill_instances:
        raise ConfigError(
            f"{changed[0]} has no effect without prefill_instances, as in BLIS; give some, or leave it out"
        )
    _check_latency_models(config)
    if config.instances and not config.node_pools:
        raise ConfigError(
            "instances: groups and the pools of blis-2026-08 exclude each other; leave one of them out"
        )


def _check_latency_models(config: ClusterConfig) -> None:
    for name in ("prefill_latency_model", "decode_latency_model"):
        if getattr(config, name):
            demand(config, name, SIZED.__contains__, f"one of {', '.join(SIZED)}")
        if getattr(config, name) == "trained-physics" and config.latency_model == "roofline":
            raise ConfigError(
                f"{name} is trained-physics, but latency_model roofline has no coefficients for it; give latency_model "
                "trained-physics, and roofline to the other pool"
            )
