"""Routers as tables of operations: all that fit share one compiled engine, and a new one costs no compilation.

Compiling is most of what a short run of a new router costs. A table takes a branch for each of its operations, so where
many long runs have one router, the compiled form is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.cluster.named_policies import numbered
from blis_jax.engine.cluster_params import rows_to_begin_with
from blis_jax.policies.as_data.tables import as_table
from blis_jax.policies.contract import Policies
from blis_jax.policies.reading import CPU_TIER, NotAsDataError

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.runs.options import Options


def router_as_table(config: ClusterConfig, options: Options) -> Policies:
    """Return the configuration's router with its policy as a table, to be handed in beside the configuration.

    Raises:
        NotAsDataError: it has to be compiled; the sentence says why.
        ConfigError: there is no such policy, or it is at fault.
    """
    used = numbered(config)
    if options.form != "rows":
        raise NotAsDataError("on a GPU, lanes of one call take all branches of a table")
    if options.clock not in ("int32", "int64"):
        raise NotAsDataError("a table counts whole µs")
    if config.node_pools and config.cluster_policy != "none":
        raise NotAsDataError("a table is for a number of instances, and an autoscaler makes more")
    if config.kv_cpu_blocks and used.routing.reads(*CPU_TIER):
        raise NotAsDataError(
            f"{used.routing.words} reads what the CPU tier does, which is no input of a table"
        )
    table = as_table(used.routing, rows_to_begin_with(config), len(used.scorers))
    return Policies(routing=table, scorers=used.scorers, picker=used.picker)
