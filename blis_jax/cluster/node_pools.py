"""Node pools of BLIS's revision of August 2026, as groups of instances: KV blocks follow the pool's GPU memory.

Step times stay those of the cluster's GPU, as in BLIS, whose command line never fills in the speeds of other GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError, closest, shortened

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

POOLS, LIFECYCLE = "node_pools", "instance_lifecycle"
_POOL_KEYS = (
    "name",
    "gpu_type",
    "gpus_per_node",
    "gpu_memory_gib",
    "initial_nodes",
    "min_nodes",
    "max_nodes",
    "provisioning_delay",
    "cost_per_hour",
)
_LIFECYCLE_KEYS = ("warm_start_initial_instances", "loading_delay", "drain_policy")


def groups_of_pools(config: ClusterConfig, given: Mapping[str, Any], source: str) -> list[Any]:
    """Groups of the cluster's instances, placed in the pools' order on the first node with enough free GPUs.

    Args:
        config: the cluster, whose `num_instances` are placed, each with `tp` GPUs.
        given: the keys `node_pools` and `instance_lifecycle` of a policy file of BLIS.
        source: what errors begin with.

    Raises:
        ConfigError: a key or value is not allowed, or the nodes have too few GPUs.
    """
    _refuse_unknown(given, (POOLS, LIFECYCLE), source)
    if not config.is_august:
        raise ConfigError(
            f"{source}: {POOLS} are of blis-2026-08; take that profile, or list groups"
        )
    pools = given.get(POOLS)
    if not isinstance(pools, list | tuple) or not pools:
        raise ConfigError(f"{source}: {POOLS} must be a list of pools, got {shortened(pools)}")
    _check_lifecycle(given.get(LIFECYCLE) or {}, f"{source}: {LIFECYCLE}")
    tp = config.tp if "tp" in config.given else 1  # as in BLIS, where a model has no tp of its own
    left, groups = config.num_instances, []
    memory: dict[str, float] = {}
    for number, pool in enumerate(pools, 1):
        place = f"{source}: pool {number}"
        if not isinstance(pool, Mapping):
            raise ConfigError(f"{place}: got {shortened(pool)}, allowed is a mapping")
        _refuse_unknown(pool, _POOL_KEYS, place)
        gpus, nodes = (
            _whole(pool, "gpus_per_node", 1, place),
            _whole(pool, "initial_nodes", 0, place),
        )
        kind = pool.get("gpu_type")
        if not isinstance(kind, str) or not kind:
            raise ConfigError(f"{place}: gpu_type must be a text, got {shortened(kind)}")
        # the memory of a kind of GPU is that of the first pool which has it
        memory.setdefault(kind, _memory(pool, place))
        count = min(left, nodes * (gpus // tp))
        left -= count
        name = str(pool.get("name", kind))
        if count:
            groups.append({"count": count, "name": name, "gpu_memory_gib": memory[kind]})
    if left:
        raise ConfigError(
            f"{source}: the nodes have room for {config.num_instances - left} instances of {tp} GPUs, "
            f"but num_instances is {config.num_instances}; raise initial_nodes or gpus_per_node"
        )
    return groups


def _refuse_unknown(given: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in given:
        if key == "autoscaler":
            raise ConfigError(
                f"{place}: the autoscaler of blis-2026-08 is not simulated yet; leave it out"
            )
        if key not in allowed:
            raise ConfigError(
                f"{place}: the key {shortened(key)} is unknown; use some of {', '.join(allowed)}"
                f"{closest(str(key), allowed)}"
            )


def _check_lifecycle(given: Any, place: str) -> None:
    """Instances are there from the beginning: a start that takes time is not simulated."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place}: got {shortened(given)}, allowed is a mapping")
    _refuse_unknown(given, _LIFECYCLE_KEYS, place)
    delay = given.get("loading_delay") or {}
    is_delayed = not isinstance(delay, Mapping) or any(delay.values())
    if is_delayed and not given.get("warm_start_initial_instances"):
        raise ConfigError(
            f"{place}: a loading_delay of the first instances is not simulated yet; "
            "set warm_start_initial_instances to true"
        )


def _whole(pool: Mapping[str, Any], key: str, low: int, place: str) -> int:
    value = pool.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(
            f"{place}: {key} must be a whole number from {low} on, got {shortened(value)}"
        )
    return value


def _memory(pool: Mapping[str, Any], place: str) -> float:
    value = pool.get("gpu_memory_gib")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ConfigError(f"{place}: gpu_memory_gib must be above 0, got {shortened(value)}")
    return float(value)
