"""The runs behind the staleness map: how TTFT grows with the age of what the router knows.

python -m papers.routing_evolution.figures.staleness_data          runs all cells, and writes data/staleness_map.csv

Each strategy is one compiled program for all ages, rates and seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blis_jax import ClusterConfig, figures_of, run_grid
from blis_jax.commands.options import CommandOptions, option
from blis_jax.commands.values import whole
from blis_jax.files.atomic_write import write_csv
from blis_jax.lazy import pandas as pd
from blis_jax.workload.spec import WorkloadSpec, override, parse_spec

NAME = "papers.routing_evolution.figures.staleness_data"
DATA = Path(__file__).parents[1] / "data" / "staleness_map.csv"
METRIC = "ttft_p99_ms"
INSTANCES, GROUPS = 8, 8
AGES_MS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
RATES = (200, 400, 600)  # requests/s of the cluster
NUM_REQUESTS = 1500
SEEDS = tuple(range(1, 9))
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "round-robin": {"routing_policy": "round-robin"},
    "queue-depth": {"routing_policy": "weighted", "routing_scorers": "queue-depth:1"},
    "kv-utilization": {"routing_policy": "weighted", "routing_scorers": "kv-utilization:1"},
    "affinity 3, load 2": {
        "routing_policy": "weighted",
        "routing_scorers": "prefix-affinity:3,queue-depth:2",
    },
    "affinity 3, load 2, KV 2": {"routing_policy": "weighted"},
    "power of two": {"routing_policy": "power-of-two"},
}
READS_NOTHING = ("round-robin",)
ALL = "all"
SIGNALS: Mapping[str, str] = {
    "load": "load_refresh_interval",
    "KV": "snapshot_refresh_interval",
    "index": "prefix_index_delay",
}
READS_EVERYTHING, ONE_AGE_MS = "affinity 3, load 2, KV 2", 100
_CLIENT = """\
  - id: group-{number}
    tenant_id: tenant
    slo_class: standard
    rate_fraction: {fraction}
    arrival: {{process: poisson}}
    input_distribution: {{type: gaussian, params: {{mean: 256, std_dev: 100, min: 32, max: 2048}}}}
    output_distribution: {{type: exponential, params: {{mean: 128}}}}
    prefix_group: group-{number}
    prefix_length: 512
"""


class Cell(NamedTuple):
    """One point of the map."""

    strategy: str
    signal: str  # the one that is old, or ALL
    counts_in_flight: bool
    rate: int
    age_ms: int

    def config(self) -> ClusterConfig:
        """Return the cluster in which the cell's signal, or every signal, has the cell's age, and others are new."""
        old = {
            setting: 1000 * self.age_ms * (self.signal in (ALL, name))
            for name, setting in SIGNALS.items()
        }
        settings: Mapping[str, Any] = {**STRATEGIES[self.strategy], **old}
        return ClusterConfig(
            num_instances=INSTANCES,
            in_flight_counts=self.counts_in_flight,
            snapshot_phases="drawn",
            **settings,
        )

    def workload(self, num_requests: int = NUM_REQUESTS) -> WorkloadSpec:
        """Return eight groups of requests, each with a prefix of 512 tokens."""
        clients = [_CLIENT.format(number=number, fraction=1 / GROUPS) for number in range(GROUPS)]
        head = (
            'version: "2"\nseed: 1\ncategory: language\naggregate_rate: 100.0\nnum_requests: 100\n'
        )
        spec = parse_spec(f"{head}clients:\n{''.join(clients)}", "staleness map")
        return override(spec, aggregate_rate=float(self.rate), num_requests=num_requests)


def cells(ages: Sequence[int] = AGES_MS, rates: Sequence[int] = RATES) -> list[Cell]:
    """Return all cells: every strategy at every age, or at age 0 if it reads nothing, and for the one that reads all
    also each signal old alone.
    """
    whole = [
        Cell(strategy, ALL, counts, rate, age)
        for strategy in STRATEGIES
        for counts in ((True,) if strategy in READS_NOTHING else (True, False))
        for rate in rates
        for age in ((0,) if strategy in READS_NOTHING else ages)
    ]
    alone = [
        Cell(READS_EVERYTHING, signal, True, rate, ONE_AGE_MS)
        for signal in SIGNALS
        for rate in rates
    ]
    return whole + alone


def measured(
    wanted: Sequence[Cell], seeds: Sequence[int] = SEEDS, num_requests: int = NUM_REQUESTS
) -> pd.DataFrame:
    """Simulate the cells; return a row for each with TTFT P99 in ms on every seed."""
    rows = []
    for strategy in dict.fromkeys(cell.strategy for cell in wanted):
        cells_of_strategy = [cell for cell in wanted if cell.strategy == strategy]
        configs = [cell.config() for cell in cells_of_strategy]
        specs = [cell.workload(num_requests) for cell in cells_of_strategy]
        grid = run_grid(configs, specs, seeds, figures_of([METRIC]))
        for cell, runs in zip(cells_of_strategy, grid.rows, strict=True):
            values = [run.metrics[METRIC] for run in runs]
            rows.append((*cell, " ".join(f"{value:.3f}" for value in values)))
    return pd.DataFrame(rows, columns=[*Cell._fields, f"{METRIC} by seed"])


class StalenessOptions(
    CommandOptions, title="options", command=NAME, description="Run the cells of the staleness map."
):
    """Options of the command."""

    seeds: int = option(whole, len(SEEDS), "N", "seeds of each cell")


@StalenessOptions.as_main
def main(options: StalenessOptions) -> int:
    """Run the command; return its exit code."""
    table = measured(cells(), range(1, 1 + options.seeds))
    write_csv(DATA, table)
    print(f"Written: {DATA}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
