"""Entry point: one run."""

from __future__ import annotations

from blis_jax.cluster.config import ClusterConfig
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records.record import RunRecord
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from blis_jax.workload.table import RequestTable

__all__ = ["Options", "Row", "simulate"]


def simulate(
    config: ClusterConfig,
    table: RequestTable,
    options: Options | None = None,
    seed: int = 0,
    policies: Policies | None = None,
) -> RunRecord:
    """Simulate one cluster on given requests.

    Where a table of the compiled program was too small, the run is made again with a larger one; where events
    of one microsecond happened in another order than in BLIS, it is made again in BLIS's order.

    Args:
        config: the cluster, and names of its policies.
        table: the requests by arrival, numpy arrays `[request]`; times in µs, lengths in tokens.
        options: how to run.
        seed: the seed of random policies, as in `over_seeds`; other policies ignore it.
        policies: policies to use in place of those that the configuration names.

    Returns:
        What happened to every request, step and instance. How the run ended is its `outcome`; a run that
        cannot end raises nothing.

    Raises:
        ConfigError: a policy, a number or a table cannot be used.
    """
    options = options or Options()
    row = Row(config, table, policy_seed(seed), policies)
    return Runner(options, num_rows=1).alone(GivenRun(row, options))
