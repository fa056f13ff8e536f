"""Node pools, loading and the autoscaler of BLIS's revision of August 2026, as its policy files have them.

The first instances become groups whose KV blocks follow the memory of their pool's GPUs. Step times stay those of the
cluster's GPU, as in BLIS, whose command line never fills in the speeds of other GPUs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.cluster import disaggregation
from blis_jax.errors import ConfigError, ConfigWarning, UnsupportedError, closest, shortened
from blis_jax.latency.model_files import usual_tp

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

POOLS, LIFECYCLE, AUTOSCALER = "node_pools", "instance_lifecycle", "autoscaler"
SECTIONS = (POOLS, LIFECYCLE, AUTOSCALER)
POLICY = "saturation-autoscaler"  # in the registry; its settings begin with this
_PREFIX = "saturation_autoscaler_"
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
_LIFECYCLE_KEYS = ("warm_start_initial_instances", "loading_delay")
_DELAY_KEYS = ("mean", "stddev")
_WINDOWS = ("scale_up_stabilization_window_us", "scale_down_stabilization_window_us")
_AUTOSCALER_KEYS = ("interval_us", *_WINDOWS, "hpa_scrape_delay", "analyzer")
# 0 stands for the default here, as in BLIS
_ANALYZER = {
    "kv_cache_threshold": 0.8,
    "scale_up_threshold": 0.8,
    "scale_down_boundary": 0.4,
    "avg_input_tokens": 512.0,
}


@dataclass(frozen=True)
class NodePool:
    """Equal machines, in the order in which instances are placed on them."""

    gpu_type: str
    gpus_per_node: int
    nodes: int
    cost_per_hour: float = 0.0  # of a machine; the first pool of a kind of GPU decides for all

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return dict(vars(self))


def is_fleet(given: Any) -> bool:
    """Whether these are sections of a policy file about machines and instances."""
    return isinstance(given, Mapping) and any(name in given for name in SECTIONS)


def settings_of_fleet(
    config: ClusterConfig, given: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The settings that the sections of a policy file of BLIS stand for; `instances` has the groups of the first ones.

    Args:
        config: the cluster, whose `num_instances` are placed, each with `tp` GPUs.
        given: some of `SECTIONS`.
        source: what errors begin with.

    Raises:
        ConfigError: a key or value is not allowed, or pools have more instances than there are.
        UnsupportedError: the nodes have too few GPUs, and an autoscaler or budgets of tenants are there.
    """
    _refuse_unknown(given, SECTIONS, source)
    if not config.is_august:
        name = next(name for name in SECTIONS if name in given)
        raise ConfigError(
            f"{source}: {name} are of blis-2026-08; take that profile, or list groups"
        )
    disaggregation.check_sum(config)
    found: dict[str, Any] = {"instances": ()}
    if POOLS in given:
        found["instances"], found["node_pools"] = _groups_of_pools(config, given[POOLS], source)
    loading = _lifecycle(given.get(LIFECYCLE) or {}, f"{source}: {LIFECYCLE}")
    scaling = _autoscaler(given.get(AUTOSCALER) or {}, f"{source}: {AUTOSCALER}")
    placed = sum(group["count"] for group in found["instances"])
    is_short = POOLS in given and placed < config.num_instances
    if is_short:
        _tell_unplaced(config, placed, source, scaling[f"{_PREFIX}interval_us"] > 0)
    loads = any(loading[f"{_PREFIX}loading_delay_{name}_s"] for name in _DELAY_KEYS)
    first_load = loads and POOLS in given and not loading[f"{_PREFIX}warm_start"]
    # a fleet says that a request may find no instance
    may_be_unrouted = is_short and (not placed or disaggregation.has_pools(config))
    if scaling[f"{_PREFIX}interval_us"] > 0 or first_load or may_be_unrouted:
        found |= {"cluster_policy": POLICY, **loading, **scaling}
    return found


def _tell_unplaced(config: ClusterConfig, placed: int, source: str, is_scaled: bool) -> None:
    """Say that instances without room on the first nodes never start: BLIS makes no node later."""
    sentence = (
        f"{source}: the nodes have room for {placed} instances of {gpus_of_instance(config)} GPUs, but num_instances "
        f"is {config.num_instances}"
    )
    if is_scaled or config.tenant_budgets.strip():
        raise UnsupportedError(f"{sentence}; raise initial_nodes or gpus_per_node")
    warnings.warn(f"{sentence}; the others never start, as in BLIS", ConfigWarning, stacklevel=2)


def gpus_of_instance(config: ClusterConfig) -> int:
    """Return the GPUs of an instance where it is placed, also before what follows from the model is filled in."""
    return config.tp if "tp" in config.given else usual_tp(config.model)


def _groups_of_pools(
    config: ClusterConfig, pools: Any, source: str
) -> tuple[list[Any], tuple[NodePool, ...]]:
    """The first instances, placed in the pools' order on the first node with enough free GPUs; and the pools."""
    if not isinstance(pools, list | tuple) or not pools:
        raise ConfigError(f"{source}: {POOLS} must be a list of pools, got {shortened(pools)}")
    tp, names = gpus_of_instance(config), []
    left, groups, found = config.num_instances, [], []
    memory: dict[str, float] = {}
    for number, pool in enumerate(pools, 1):
        place = f"{source}: pool {number}"
        if not isinstance(pool, Mapping):
            raise ConfigError(f"{place}: got {shortened(pool)}, allowed is a mapping")
        made = _pool(pool, place)
        name = str(pool.get("name", made.gpu_type))
        if name in names:
            raise ConfigError(
                f"{place}: there is a pool {shortened(name)} already; give it another name"
            )
        names.append(name)
        found.append(made)
        # the memory of a kind of GPU is that of the first pool which has it
        memory.setdefault(made.gpu_type, _above_zero(pool, "gpu_memory_gib", place))
        count = min(left, made.nodes * (made.gpus_per_node // tp))
        left -= count
        if count:
            group = {"count": count, "name": name, "gpu_memory_gib": memory[made.gpu_type]}
            groups.append(group)
    return groups, tuple(found)


def _pool(pool: Mapping[str, Any], place: str) -> NodePool:
    _refuse_unknown(pool, _POOL_KEYS, place)
    gpus, nodes = _whole(pool, "gpus_per_node", 1, place), _whole(pool, "initial_nodes", 0, place)
    kind = pool.get("gpu_type")
    if not isinstance(kind, str) or not kind:
        raise ConfigError(f"{place}: gpu_type must be a text, got {shortened(kind)}")
    least = _whole(pool, "min_nodes", 0, place) if "min_nodes" in pool else 0
    most = _whole(pool, "max_nodes", 0, place) if "max_nodes" in pool else nodes
    if most < max(nodes, least):
        raise ConfigError(
            f"{place}: max_nodes is {most}, below initial_nodes ({nodes}) or min_nodes ({least})"
        )
    _delay(pool, "provisioning_delay", place)  # nodes are never added, as in BLIS's command line
    return NodePool(kind, gpus, nodes, _not_negative(pool, "cost_per_hour", place))


def _lifecycle(given: Any, place: str) -> dict[str, float]:
    """How long instances load, and whether the first ones do."""
    _refuse_unknown(_mapping(given, place), _LIFECYCLE_KEYS, place)
    warm = given.get("warm_start_initial_instances", False)
    if not isinstance(warm, bool):
        raise ConfigError(
            f"{place}: warm_start_initial_instances must be true or false, got {shortened(warm)}"
        )
    delay = _delay(given, "loading_delay", place)
    found = {f"{_PREFIX}loading_delay_{name}_s": value for name, value in delay.items()}
    return found | {f"{_PREFIX}warm_start": int(warm)}


def _autoscaler(given: Any, place: str) -> dict[str, float]:
    """The numbers of the autoscaler; without an interval it never acts."""
    _refuse_unknown(_mapping(given, place), _AUTOSCALER_KEYS, place)
    found = {name: _not_negative(given, name, place) for name in ("interval_us", *_WINDOWS)}
    delay = _delay(given, "hpa_scrape_delay", place)
    found |= {f"scrape_delay_{name}_s": value for name, value in delay.items()}
    place = f"{place}.analyzer"
    analyzer = _mapping(given.get("analyzer") or {}, place)
    _refuse_unknown(analyzer, tuple(_ANALYZER), place)
    for name, default in _ANALYZER.items():
        found[name] = _not_negative(analyzer, name, place) or default
    if found["kv_cache_threshold"] > 1:
        raise ConfigError(
            f"{place}: kv_cache_threshold must be above 0 and at most 1, got {found['kv_cache_threshold']}"
        )
    return {_PREFIX + name: value for name, value in found.items()}


def check(config: ClusterConfig) -> None:
    """Refuses machines and numbers with which BLIS's autoscaler cannot work.

    Raises:
        ConfigError: with what is allowed.
    """
    if not all(isinstance(pool, NodePool) for pool in config.node_pools):
        raise ConfigError(
            "node_pools are taken from a policy file; give it as instances (--instances FILE)"
        )
    if config.cluster_policy != POLICY:
        return
    if not config.is_august:
        raise ConfigError(
            f"cluster_policy {POLICY} is of the revision blis-2026-08; take that profile, or autoscaler"
        )
    if disaggregation.has_pools(config) and getattr(config, _PREFIX + "interval_us") > 0:
        raise UnsupportedError(
            f"cluster_policy {POLICY}: ticks beside prefill and decode pools are not simulated yet; leave one of "
            "them out"
        )
    up, down = (
        getattr(config, _PREFIX + name) for name in ("scale_up_threshold", "scale_down_boundary")
    )
    if down >= up:
        raise ConfigError(
            f"{_PREFIX}scale_down_boundary is {down:g}, which must be below scale_up_threshold ({up:g})"
        )
    if 0 < getattr(config, _PREFIX + "interval_us") < 1:
        raise ConfigError(f"{_PREFIX}interval_us must be 0 or at least 1 µs")


def _refuse_unknown(given: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in given:
        if key not in allowed:
            raise ConfigError(
                f"{place}: the key {shortened(key)} is unknown; use some of {', '.join(allowed)}"
                f"{closest(str(key), allowed)}"
            )


def _mapping(given: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{place}: got {shortened(given)}, allowed is a mapping")
    return given


def _delay(given: Mapping[str, Any], key: str, place: str) -> dict[str, float]:
    """Mean and standard deviation, s."""
    delay = _mapping(given.get(key) or {}, f"{place}.{key}")
    _refuse_unknown(delay, _DELAY_KEYS, f"{place}.{key}")
    return {name: _not_negative(delay, name, f"{place}.{key}") for name in _DELAY_KEYS}


def _whole(pool: Mapping[str, Any], key: str, low: int, place: str) -> int:
    value = pool.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(
            f"{place}: {key} must be a whole number from {low} on, got {shortened(value)}"
        )
    return value


def _not_negative(given: Mapping[str, Any], key: str, place: str) -> float:
    """A finite number from 0 on; 0 if the key is not there."""
    value = given.get(key, 0.0)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ConfigError(f"{place}: {key} must be a number from 0 on, got {shortened(value)}")
    return float(value)


def _above_zero(pool: Mapping[str, Any], key: str, place: str) -> float:
    value = pool.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ConfigError(f"{place}: {key} must be above 0, got {shortened(value)}")
    return float(value)
