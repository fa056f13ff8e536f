"""Configurations × seeds of one workload in compiled calls: requests drawn once a seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from blis_jax import progress
from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure
from blis_jax.policies.seeds import BY_WORKLOAD, policy_seed_under
from blis_jax.traces.source import TraceSource
from blis_jax.workload.source import until_horizon
from blis_jax.workload.spec import (
    WorkloadSpec,
    load_spec,
    override,
    parse_spec,
)
from sweeps.runs.workload_names import list_workloads, load_workload
from sweeps.search.objectives import Runs
from sweeps.strategies.file import Strategy

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.records import RunRecord
    from blis_jax.runs.driver import Runner
    from blis_jax.runs.runs import Row
    from blis_jax.workload.source import RequestSource
    from blis_jax.workload.table import RequestTable

T = TypeVar("T")
STREAMS = ("reference", "jax")
MOST_JAX_SEEDS = 2**32


def workload_of(strategy: Strategy, num_requests: int | None = None) -> WorkloadSpec:
    """The workload that a strategy names, checked; paths begin at the file, then where one is."""
    return workload_from(strategy.workload, strategy.source, strategy.folder, num_requests)


def workload_from(
    given: str | Mapping[str, Any],
    source: str = "",
    folder: Path | None = None,
    num_requests: int | None = None,
) -> WorkloadSpec:
    """A workload by its name, one in a file, or the content of one; `source` names its key in errors."""
    where = f"{source}: workload" if source else "workload"
    if not isinstance(given, str):
        spec = parse_spec(yaml.safe_dump(dict(given)), where)
    elif given in list_workloads():
        spec = load_workload(given)
    else:
        spec = load_spec(_workload_path(given, where, folder or Path()))
    return override(spec, num_requests=num_requests) if num_requests else spec


def _workload_path(given: str, where: str, folder: Path) -> Path:
    places = [folder / given, Path(given), folder / Path(given).name]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(
        f"{where}: {given!r} is neither a file, here or beside the strategy, nor a built-in "
        f"workload ({', '.join(list_workloads())}){closest(given, list_workloads())}"
    )


def targets_of(strategy: Strategy) -> Mapping[str, Mapping[str, float]]:
    """The SLO targets of a strategy, ms by class; the default ones if its file has none."""
    if strategy.targets is None:
        return DEFAULT_TARGETS
    return {name: limits.model_dump(exclude_none=True) for name, limits in strategy.targets.items()}


def measure_of(targets: Mapping[str, Mapping[str, float]], spec: RequestSource) -> Measure:
    """The SLO targets and the measured part of the arrivals."""
    measure = Measure(targets, spec.measure.warm_up_s, spec.measure.cool_down_s)
    measure.check(spec)
    return measure


class Bench:
    """Runs configurations on the requests of every seed; compiles once a mechanism."""

    def __init__(
        self,
        spec: RequestSource,
        seeds: Sequence[int],
        stream: str,
        names: Sequence[str],
        measure: Measure | None = None,
        configs_per_batch: int = 1,
        policy_seeds: str = BY_WORKLOAD,
        runner: Runner | None = None,
    ) -> None:
        """`stream` draws the requests of a workload: `reference` as BLIS does, `jax` as the sweeps do.

        `names` are the metrics; `configs_per_batch` is how many configurations `run` usually gets;
        `policy_seeds` is the rule that gives random policies their seed, of policies/seeds.py; `runner` is one whose
        programs other benches use, too.
        """
        from blis_jax.commands.sweep.data import slo_targets
        from blis_jax.runs.driver import Runner
        from blis_jax.runs.options import default_form
        from blis_jax.runs.simulation import Options
        from sweeps.runs.seed_results import seed_results

        self.spec, self.seeds, self.stream = spec, tuple(seeds), stream
        self.configs_per_batch, self.rule_of_policy_seeds = configs_per_batch, policy_seeds
        self.policy_seeds = [policy_seed_under(policy_seeds, seed) for seed in self.seeds]
        self.names = tuple(dict.fromkeys(names))
        self.measure = measure or measure_of(DEFAULT_TARGETS, spec)
        self.targets = slo_targets(self.measure)
        self.result = seed_results(self.names, self.measure, self.targets)
        self.tables: dict[int, list[RequestTable]] = {}
        num_rows = len(self.seeds) * configs_per_batch
        self.runner = runner or Runner(Options(form=default_form()), num_rows)

    def on_seeds(self, seeds: Sequence[int]) -> Bench:
        """The same on other seeds."""
        check_seeds(seeds, self.stream)
        return Bench(
            self.spec,
            seeds,
            self.stream,
            self.names,
            self.measure,
            self.configs_per_batch,
            self.rule_of_policy_seeds,
        )

    def run(self, configs: Sequence[ClusterConfig], places: range | None = None) -> list[Runs]:
        """The runs of each configuration, one a seed; `places` are those of the seeds, all by default."""
        return self.summaries(configs, self.result, places)

    def record(self, config: ClusterConfig, seed: int) -> RunRecord:
        """One run, whole."""
        from blis_jax.runs.simulation import Row

        at = self.seeds.index(seed)
        config = until_horizon(config, self.spec)
        table = self._tables_for(config.block_size_in_tokens)[at]
        table = placed(table, self.spec, seed, config)
        (found,) = self.runner.run([Row(config, table, self.policy_seeds[at])], lambda run: run)
        return found

    def summaries(
        self,
        configs: Sequence[ClusterConfig],
        summarize: Callable[[RunRecord], T],
        places: range | None = None,
    ) -> list[tuple[T, ...]]:
        """What `summarize` makes of each run, by configuration and seed; called from threads."""
        chosen = range(len(self.seeds)) if places is None else places
        each = [self._rows_at(config, chosen) for config in configs]
        results = iter(self.runner.run(list(itertools.chain(*each)), summarize))
        found = [tuple(itertools.islice(results, len(rows))) for rows in each]
        return [runs * (len(chosen) // len(runs)) for runs in found]

    def _rows_at(self, config: ClusterConfig, places: range) -> list[Row]:
        rows = self.rows(config)
        return rows if len(rows) < len(self.seeds) else [rows[place] for place in places]

    def rows(self, config: ClusterConfig) -> list[Row]:
        """The runs of a configuration that seeds make different: one a seed, or a single one."""
        from blis_jax.runs.simulation import Row

        config = until_horizon(config, self.spec)
        count = self._num_different(config)
        tables = self._tables_for(config.block_size_in_tokens)[:count]
        each = zip(tables, self.seeds[:count], self.policy_seeds[:count], strict=True)
        return [
            Row(config, placed(table, self.spec, seed, config), policy_seed)
            for table, seed, policy_seed in each
        ]

    def _num_different(self, config: ClusterConfig) -> int:
        """Runs that the seeds make different; one if neither trace nor policies draw anything."""
        is_one = isinstance(self.spec, TraceSource) and not self.spec.depends_on_seed(config)
        return 1 if is_one else len(self.seeds)

    def _tables_for(self, block_size: int) -> list[RequestTable]:
        if block_size not in self.tables:
            tables = []
            with progress.phase("drawing requests", len(self.seeds), "seeds") as work:
                for seed in self.seeds:
                    tables.append(table_of(self.spec, seed, block_size, self.stream))
                    work.advance()
            self.tables[block_size] = tables
        return self.tables[block_size]


def table_of(spec: RequestSource, seed: int, block_size: int, stream: str) -> RequestTable:
    """The requests of one run: those of a trace, or those that a stream draws from a seed."""
    if isinstance(spec, TraceSource):
        return spec.table(seed, block_size)
    assert isinstance(spec, WorkloadSpec)
    if stream == "jax":
        from blis_jax.commands.run.requests import draw_requests

        table, _ = draw_requests(spec, seed, block_size)
    else:
        from blis_jax.workload.reference import draw

        table, _ = draw(spec, seed, block_size)
    if not table.num_rows:
        raise ConfigError(f"seed {seed}: no request arrives before the horizon; raise the horizon")
    return table


def placed(
    table: RequestTable, spec: RequestSource, seed: int, config: ClusterConfig
) -> RequestTable:
    """The requests of one run with what its cluster goes by, which rows of traces alone have."""
    return spec.placed(table, seed, config) if isinstance(spec, TraceSource) else table


def check_seeds(seeds: Sequence[int], stream: str) -> None:
    """Refuses seeds that the stream does not have."""
    if len(set(seeds)) != len(seeds):
        raise ConfigError("seeds: a seed is given twice; give each once")
    limit = MOST_JAX_SEEDS if stream == "jax" else 2**63
    for seed in seeds:
        if not 0 <= seed < limit:
            raise ConfigError(f"seeds: {seed} is out of range; seeds are 0 to {limit - 1}")
