"""The machines of a cluster, as the engine reads them: `FleetParams` of a configuration, and how many rows it has.

Source: BLIS as of August 2026, `infra_placement.go` for the order of nodes, `engine.go` for that of kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.disaggregation import kinds_of_gpu
from blis_jax.cluster.node_pools import gpus_of_instance
from blis_jax.core.types import NO_HORIZON
from blis_jax.core.views import FleetParams
from blis_jax.policies.seeds import RandomSource, normal_draws

MOST_SPARE_ROWS = 16  # for instances still to be made, to begin with


def rows_to_begin_with(config: ClusterConfig) -> int:
    """Return the rows of the instance table; instances that an autoscaler makes take rows of their own."""
    if not config.node_pools or config.cluster_policy == "none":
        return config.num_instances
    gpus = gpus_of_instance(config)
    room = sum(pool.nodes * (pool.gpus_per_node // gpus) for pool in config.node_pools)
    at_once = min(room, config.num_instances + MOST_SPARE_ROWS)
    return max(8, at_once + at_once % 2)  # near numbers share a compilation


def cheapest_first(config: ClusterConfig) -> list[str]:
    """Sort the kinds of GPU by cost, then by name."""
    return sorted(_costs(config), key=lambda kind: (_costs(config)[kind], kind))


def _costs(config: ClusterConfig) -> dict[str, float]:
    costs: dict[str, float] = {}
    for pool in config.node_pools:
        costs.setdefault(pool.gpu_type, pool.cost_per_hour)
    return costs


def _nodes(config: ClusterConfig) -> list[tuple[str, int]]:
    """The kind and number of GPUs of every node."""
    return [
        (pool.gpu_type, pool.gpus_per_node) for pool in config.node_pools for _ in range(pool.nodes)
    ]


def _first_nodes(config: ClusterConfig) -> list[int]:
    """The node of every first instance."""
    gpus = gpus_of_instance(config)
    places = [at for at, (_, size) in enumerate(_nodes(config)) for _ in range(size // gpus)]
    return places[: config.num_instances]


def row_to_copy(config: ClusterConfig) -> int:
    """Return the first instance of the cheapest kind, whose numbers instances made later copy; −1
    without node pools or instances.
    """
    if not config.node_pools:
        return -1
    nodes = _nodes(config)
    if not config.instances:  # no node has room for one
        return -1
    kinds = [nodes[at][0] for at in _first_nodes(config)]
    return min(range(len(kinds)), key=lambda at: cheapest_first(config).index(kinds[at]))


def fleet_params(
    config: ClusterConfig, num_rows: int, num_changes: int, policy_seed: int
) -> FleetParams:
    """Return the machines of the cluster, with `num_changes` draws of each of the reference's streams."""
    of_instances = kinds_of_gpu(config)
    kinds = cheapest_first(config) or sorted(set(of_instances))
    costs = _costs(config)
    dearest = sorted(kinds, key=lambda kind: (-costs.get(kind, 0.0), kind))
    nodes = _nodes(config) or [(kinds[0], 0)]
    first = _first_nodes(config) or [0] * config.num_instances
    num_first = config.num_instances if config.instances or not config.node_pools else 0
    row_kinds = [kinds.index(nodes[at][0]) for at in first]
    if not config.node_pools:
        row_kinds = [kinds.index(kind) for kind in of_instances]
    row_kinds += [row_kinds[row_to_copy(config)]] * (num_rows - len(first))
    names = sorted(range(config.num_instances), key=lambda at: f"instance_{at}")
    # those of the autoscaler are called autoscale-…, in the order in which they were made
    drain_rank = np.arange(num_rows) - num_rows
    drain_rank[names] = np.arange(config.num_instances)
    numbers: dict[str, Any] = {
        "node_kind": np.asarray([kinds.index(kind) for kind, _ in nodes], np.int32),
        "node_gpus": np.asarray([gpus for _, gpus in nodes], np.int32),
        "gpus_each": np.int32(gpus_of_instance(config)),
        "has_nodes": np.bool_(bool(config.node_pools)),
        "num_first": np.int32(num_first),
        "first_node": np.asarray(first + [0] * (num_rows - len(first)), np.int32),
        "row_kind": np.asarray(row_kinds, np.int32),
        "drain_rank": drain_rank.astype(np.int32),
        "rank_up": np.arange(len(kinds), dtype=np.int32),
        "rank_down": np.asarray([dearest.index(kind) for kind in kinds], np.int32),
        "loading_draws": normal_draws(policy_seed, num_rows, RandomSource.LOADING),
        "scrape_draws": normal_draws(policy_seed, max(num_changes, 1), RandomSource.SCRAPES),
        "is_endless": np.bool_(config.horizon >= NO_HORIZON),
    }
    return FleetParams(**numbers)


def instance_names(config: ClusterConfig, orders: Sequence[int]) -> tuple[str, ...]:
    """Return the reference's names of all instances; `orders` has the number of each one's order, 0
    for the first instances.
    """
    return tuple(
        f"autoscale-{config.model.lower()}-{order:06d}" if order else f"instance_{at}"
        for at, order in enumerate(orders)
    )
