"""Node pools, instance loading and the autoscaler of BLIS's revision of August 2026, read from its policy files.

The initial instances become groups whose KV blocks follow the memory of their pool's GPUs. Step times stay those of the
cluster's GPU, as in BLIS, whose command line never fills in the speeds of other GPUs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from blis_jax.cluster import disaggregation
from blis_jax.errors import ConfigError, ConfigWarning, UnsupportedError, shortened
from blis_jax.files.input_files import mapping
from blis_jax.files.strict_yaml import value_at
from blis_jax.latency.model_description import usual_tp

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

POOLS, LIFECYCLE, AUTOSCALER = "node_pools", "instance_lifecycle", "autoscaler"
SECTIONS = (POOLS, LIFECYCLE, AUTOSCALER)
POLICY = "saturation-autoscaler"  # in the registry; its settings begin with this
_PREFIX = "saturation_autoscaler_"
MOST_GIB = 1e9  # of a GPU
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
    """A pool of equal machines; instances are placed on the pools in their order."""

    gpu_type: str
    gpus_per_node: int
    nodes: int
    cost_per_hour: float = 0.0  # of a machine; the first pool of a kind of GPU decides for all

    def plain(self) -> dict[str, Any]:
        """Return the pool as JSON values."""
        return dict(vars(self))


def is_fleet(document: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the document has sections of a BLIS policy file about machines and instances."""
    return isinstance(document, Mapping) and any(name in document for name in SECTIONS)


def settings_of_fleet(
    config: ClusterConfig, sections: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Translate sections of a BLIS policy file into settings; `instances` has the groups of the initial instances.

    Args:
        config: the cluster, whose `num_instances` are placed, each with `tp` GPUs.
        sections: sections of the file by name, out of `SECTIONS`.
        source: the text that errors begin with.

    Raises:
        ConfigError: a key or value is not allowed, or the pools do not fit the number of instances.
        UnsupportedError: the nodes have too few GPUs while tenants have budgets.
    """
    mapping(sections, source, SECTIONS)
    if not config.is_august:
        name = next(name for name in SECTIONS if name in sections)
        raise ConfigError(
            f"{source}: {name} are of blis-2026-08; take that profile, or list groups"
        )
    disaggregation.check_sum(config)
    settings: dict[str, Any] = {"instances": ()}
    if POOLS in sections:
        settings["instances"], settings["node_pools"] = _groups_of_pools(
            config, sections[POOLS], source
        )
    loading = _lifecycle(sections.get(LIFECYCLE) or {}, f"{source}: {LIFECYCLE}")
    scaling = _autoscaler(sections.get(AUTOSCALER) or {}, f"{source}: {AUTOSCALER}")
    placed = sum(group["count"] for group in settings["instances"])
    is_short = POOLS in sections and placed < config.num_instances
    if is_short:
        _tell_unplaced(config, placed, source)
    loads = any(loading[f"{_PREFIX}loading_delay_{name}_s"] for name in _DELAY_KEYS)
    first_load = loads and POOLS in sections and not loading[f"{_PREFIX}warm_start"]
    # a fleet says that a request may find no instance
    may_be_unrouted = is_short and (not placed or disaggregation.has_pools(config))
    if scaling[f"{_PREFIX}interval_us"] > 0 or first_load or may_be_unrouted:
        settings |= {"cluster_policy": POLICY, **loading, **scaling}
    return settings


def _tell_unplaced(config: ClusterConfig, placed: int, source: str) -> None:
    """Warn that instances without room on the initial nodes never start, as in BLIS; refuse it if tenants have
    budgets.
    """
    sentence = (
        f"{source}: the nodes have room for {placed} instances of {gpus_of_instance(config)} GPUs, but num_instances "
        f"is {config.num_instances}"
    )
    if config.tenant_budgets.strip():
        raise UnsupportedError(f"{sentence}; raise initial_nodes or gpus_per_node")
    warnings.warn(f"{sentence}; the others never start, as in BLIS", ConfigWarning, stacklevel=2)


def gpus_of_instance(config: ClusterConfig) -> int:
    """Return the GPUs of an instance for placing it on a node, even before the model's defaults are filled in."""
    return config.tp if "tp" in config.given else usual_tp(config.model)


def _groups_of_pools(
    config: ClusterConfig, pools: object, source: str
) -> tuple[list[Any], tuple[NodePool, ...]]:
    """Return the groups of initial instances, each placed on the first node with enough free GPUs, and the node
    pools.
    """
    if not isinstance(pools, list | tuple) or not pools:
        raise ConfigError(f"{source}: {POOLS} must be a list of pools, got {shortened(pools)}")
    tp, names = gpus_of_instance(config), []
    left, groups, groups_of_pools = config.num_instances, [], []
    memory: dict[str, float] = {}
    for number, entry in enumerate(pools, 1):
        place = f"{source}: pool {number}"
        pool = mapping(entry, place, _POOL_KEYS)
        made = _pool(pool, place)
        name = str(pool.get("name", made.gpu_type))
        if name in names:
            raise ConfigError(
                f"{place}: there is a pool {shortened(name)} already; give it another name"
            )
        names.append(name)
        groups_of_pools.append(made)
        # the first pool with a kind of GPU decides that kind's memory
        written = pool.get("gpu_memory_gib", 0.0)
        gib = value_at(written, f"{place}: gpu_memory_gib", float, 0, MOST_GIB, excludes_low=True)
        memory.setdefault(made.gpu_type, gib)
        count = min(left, made.nodes * (made.gpus_per_node // tp))
        left -= count
        if count:
            group = {"count": count, "name": name, "gpu_memory_gib": memory[made.gpu_type]}
            groups.append(group)
    return groups, tuple(groups_of_pools)


def _pool(pool: Mapping[str, Any], place: str) -> NodePool:
    gpus, nodes = (
        value_at(pool.get(key), f"{place}: {key}", int, low, math.inf)
        for key, low in (("gpus_per_node", 1), ("initial_nodes", 0))
    )
    kind = value_at(pool.get("gpu_type") or None, f"{place}: gpu_type", str)
    bounds = {"min_nodes": 0, "max_nodes": nodes, **pool}
    least, most = (
        value_at(bounds[key], f"{place}: {key}", int, 0, math.inf)
        for key in ("min_nodes", "max_nodes")
    )
    if most < max(nodes, least):
        raise ConfigError(
            f"{place}: max_nodes is {most}, below initial_nodes ({nodes}) or min_nodes ({least})"
        )
    _delay(pool, "provisioning_delay", place)  # nodes are never added, as in BLIS's command line
    return NodePool(kind, gpus, nodes, _number(pool, "cost_per_hour", place))


def _lifecycle(section: object, place: str) -> dict[str, float]:
    """Return the settings for how long an instance loads, and for whether the initial instances load too."""
    values = mapping(section, place, _LIFECYCLE_KEYS)
    warm_start = "warm_start_initial_instances"
    warm = value_at(values.get(warm_start, False), f"{place}: {warm_start}", bool)
    delay = _delay(values, "loading_delay", place)
    lifecycle = {f"{_PREFIX}loading_delay_{name}_s": value for name, value in delay.items()}
    return lifecycle | {f"{_PREFIX}warm_start": int(warm)}


def _autoscaler(section: object, place: str) -> dict[str, float]:
    """Return the autoscaler's settings; without an interval the autoscaler never acts."""
    values = mapping(section, place, _AUTOSCALER_KEYS)
    autoscaler = {name: _number(values, name, place) for name in ("interval_us", *_WINDOWS)}
    delay = _delay(values, "hpa_scrape_delay", place)
    autoscaler |= {f"scrape_delay_{name}_s": value for name, value in delay.items()}
    place = f"{place}.analyzer"
    analyzer = mapping(values.get("analyzer") or {}, place, _ANALYZER)
    for name, default in _ANALYZER.items():
        autoscaler[name] = _number(analyzer, name, place) or default
    if autoscaler["kv_cache_threshold"] > 1:
        raise ConfigError(
            f"{place}: kv_cache_threshold must be above 0 and at most 1, got {autoscaler['kv_cache_threshold']}"
        )
    return {_PREFIX + name: value for name, value in autoscaler.items()}


def check(config: ClusterConfig) -> None:
    """Refuse machines and numbers that BLIS's autoscaler cannot handle.

    Raises:
        ConfigError: the message says what is allowed.
    """
    if not all(isinstance(pool, NodePool) for pool in config.node_pools):
        raise ConfigError(
            "node_pools are taken from a policy file; give it as instances (--instances FILE)"
        )
    if config.cluster_policy != POLICY:
        return
    if not config.is_august:
        raise ConfigError(
            f"cluster_policy {POLICY} exists only in the revision blis-2026-08; take that profile, or autoscaler"
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


def _delay(section: Mapping[str, Any], key: str, place: str) -> dict[str, float]:
    """Return mean and standard deviation of a delay, in s."""
    delay = mapping(section.get(key) or {}, f"{place}.{key}", _DELAY_KEYS)
    return {name: _number(delay, name, f"{place}.{key}") for name in _DELAY_KEYS}


def _number(section: Mapping[str, Any], key: str, place: str) -> float:
    """Return the section's number under a key, finite and at least 0; 0 if the key is missing."""
    number: float = value_at(section.get(key, 0.0), f"{place}: {key}", float, 0, math.inf)
    return number
