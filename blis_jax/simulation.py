"""Entry point: one run."""

from __future__ import annotations

from blis_jax.config import ClusterConfig
from blis_jax.options import Options
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records import RunRecord
from blis_jax.runner import Runner
from blis_jax.runs import GivenRun, Row
from blis_jax.workload.table import RequestTable

__all__ = ["Options", "Row", "simulate"]


def simulate(
    config: ClusterConfig,
    table: RequestTable,
    options: Options | None = None,
    seed: int = 0,
    policies: Policies | None = None,
) -> RunRecord:
    """One run, repaired: capacities enlarged where they were hit, ties put in the reference's order.

    Args:
        config: the cluster, and names of its policies.
        table: the requests, as numpy arrays.
        options: how to run.
        seed: the one that the requests were drawn from; random policies draw from it, as in
            `over_seeds`, and other policies ignore it.
        policies: policies to use in place of those that the configuration names.

    Returns:
        The record; what cannot be repaired stays in its `outcome`.
    """
    options = options or Options()
    row = Row(config, table, policy_seed(seed), policies)
    return Runner(options, num_rows=1).alone(GivenRun(row, options))
