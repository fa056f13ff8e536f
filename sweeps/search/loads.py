"""Points of a search on several loads: the strategy's workload, and those that its file names besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.runs.bench import Bench, measure_of, targets_of, workload_from
from sweeps.search.objectives import AT, Runs, SeedResult, Valuation
from sweeps.strategies.file import Strategy


def load_specs(strategy: Strategy) -> dict[str, WorkloadSpec]:
    """The workload of every further load by its name."""
    found = {}
    for name, load in strategy.loads.items():
        where = f"{strategy.source}: loads.{name}"
        spec = workload_from(load.workload, where, strategy.folder, load.num_requests)
        found[name] = override(spec, aggregate_rate=load.rate) if load.rate else spec
    return found


class LoadBenches:
    """One bench for each load; a run has the figures of all loads beside each other."""

    def __init__(
        self, main: Bench, valuation: Valuation, specs: Mapping[str, WorkloadSpec]
    ) -> None:
        """`main` runs the strategy's workload; the others have its seeds."""
        self.main = main
        targets = targets_of(valuation.strategy)
        self.others = {
            name: Bench(
                spec,
                main.seeds,
                main.stream,
                valuation.names_at(name),
                measure_of(targets, spec),
                main.configs_per_batch,
            )
            for name, spec in specs.items()
        }

    def run(self, configs: Sequence[ClusterConfig], places: range | None = None) -> list[Runs]:
        """The runs of each configuration, one a seed; `places` are those of the seeds, all by default."""
        found = self.main.run(configs, places)
        for name, bench in self.others.items():
            pairs = zip(found, bench.run(configs, places), strict=True)
            found = [
                tuple(_beside(one, two, name) for one, two in zip(mine, theirs, strict=True))
                for mine, theirs in pairs
            ]
        return found


def _beside(run: SeedResult, other: SeedResult, load: str) -> SeedResult:
    """A seed's figures with those at a load; what did not come to its end has none."""
    broken = run.num_broken_invariants + other.num_broken_invariants
    metrics: dict[str, Any] = {}
    if run.is_whole and other.is_whole:
        metrics = {**run.metrics}
        metrics |= {f"{name}{AT}{load}": value for name, value in other.metrics.items()}
    return SeedResult(other.outcome if run.is_whole else run.outcome, metrics, broken)
