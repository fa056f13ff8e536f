"""Configurations × seeds in compiled calls: requests drawn once a seed, rows, and what runs them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure, read_window
from blis_jax.policies.seeds import BY_WORKLOAD, policy_seed_under
from blis_jax.runs.options import default_form, num_workers
from blis_jax.traces.source import TraceSource
from blis_jax.workload.source import until_horizon
from blis_jax.workload.spec import (
    WorkloadSpec,
)
from sweeps.search.objectives import Runs
from sweeps.strategies.file import Strategy

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.records.record import RunRecord
    from blis_jax.runs.driver import Runner
    from blis_jax.runs.runs import Row
    from blis_jax.workload.source import RequestSource
    from blis_jax.workload.table import RequestTable

T = TypeVar("T")
STREAMS = ("reference", "jax")
MOST_JAX_SEEDS = 2**32


def targets_of(strategy: Strategy) -> Mapping[str, Mapping[str, float]]:
    """Return the SLO targets of a strategy, ms by class; the default ones if its file has none."""
    if strategy.targets is None:
        return DEFAULT_TARGETS
    return {name: limits.model_dump(exclude_none=True) for name, limits in strategy.targets.items()}


def measure_of(
    targets: Mapping[str, Mapping[str, float]], spec: RequestSource, window: str | None = None
) -> Measure:
    """Return the SLO targets with the measured part of the arrivals, checked; `window` replaces the workload's."""
    measure = Measure(targets, *read_window(window, spec))
    measure.check(spec)
    return measure


class DrawnRows:
    """Make the rows of runs; the requests of each source, seed and size of a block are drawn once."""

    def __init__(
        self, stream: str, most_requests: int | None = None, policy_seeds: str = BY_WORKLOAD
    ) -> None:
        """`stream` draws the requests of a workload: `reference` as BLIS does, `jax` as the sweeps do.

        Beyond `most_requests` in all tables together those used longest ago are dropped. `policy_seeds` is the rule
        that gives random policies their seed, of policies/seeds.py.
        """
        self.stream, self.most_requests, self.policy_seeds = stream, most_requests, policy_seeds
        self.kept: OrderedDict[Hashable, RequestTable] = OrderedDict()
        self.num_requests = 0

    def rows(
        self,
        config: ClusterConfig,
        source: RequestSource,
        seeds: Sequence[int],
        key: Hashable = None,
    ) -> list[Row]:
        """Return the runs of a configuration on these seeds; `key` tells the sources apart."""
        from blis_jax.runs.runs import Row

        config = until_horizon(config, source)
        size = config.block_size_in_tokens
        if any((key, seed, size) not in self.kept for seed in seeds):
            with progress.phase("drawing requests", len(seeds), "seeds") as work:
                for seed in seeds:
                    self.table(source, seed, size, key)
                    work.advance()
        return [
            Row(
                config,
                placed(self.table(source, seed, size, key), source, seed, config),
                policy_seed_under(self.policy_seeds, seed),
            )
            for seed in seeds
        ]

    def table(
        self, source: RequestSource, seed: int, block_size: int, key: Hashable = None
    ) -> RequestTable:
        """Return the requests of one run, drawn if they are not at hand."""
        place = key, seed, block_size
        if place not in self.kept:
            self.kept[place] = table_of(source, seed, block_size, self.stream)
            self.num_requests += self.kept[place].num_rows
        self.kept.move_to_end(place)
        most = self.num_requests if self.most_requests is None else self.most_requests
        while self.num_requests > most and len(self.kept) > 1:
            self.num_requests -= self.kept.popitem(last=False)[1].num_rows
        return self.kept[place]


class Bench:
    """Run configurations on the requests of every seed; compile once for each mechanism."""

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
        """`stream` and `policy_seeds` are those of `DrawnRows`.

        `names` are the metrics; `configs_per_batch` is how many configurations `run` usually gets; `runner` is one
        whose programs other benches use, too.
        """
        from blis_jax.metrics.on_device.compiled import RunFigures
        from blis_jax.runs.driver import Runner
        from blis_jax.runs.options import Options

        self.spec, self.seeds, self.stream = spec, tuple(seeds), stream
        self.configs_per_batch = configs_per_batch
        self.drawn = DrawnRows(stream, policy_seeds=policy_seeds)
        self.names = tuple(dict.fromkeys(names))
        self.measure = measure or measure_of(DEFAULT_TARGETS, spec)
        self.targets = self.measure.slo_targets()
        self.result = RunFigures(self.names, self.targets, self.measure)
        num_rows = len(self.seeds) * configs_per_batch
        self.runner = runner or Runner(Options(form=default_form()), num_rows)

    def on_seeds(self, seeds: Sequence[int]) -> Bench:
        """Return the same on other seeds."""
        check_seeds(seeds, self.stream)
        batch, rule = self.configs_per_batch, self.drawn.policy_seeds
        return Bench(self.spec, seeds, self.stream, self.names, self.measure, batch, rule)

    def run(self, configs: Sequence[ClusterConfig], places: range | None = None) -> list[Runs]:
        """Return the runs of each configuration, one a seed; `places` are those of the seeds, all by default."""
        return self.summaries(configs, self.result, places)

    def record(self, config: ClusterConfig, seed: int) -> RunRecord:
        """Return one run, whole."""
        (record,) = self.runner.run(self.drawn.rows(config, self.spec, [seed]), lambda run: run)
        return record

    def summaries(
        self,
        configs: Sequence[ClusterConfig],
        summarize: Callable[[RunRecord], T],
        places: range | None = None,
    ) -> list[tuple[T, ...]]:
        """Return what `summarize` makes of each run, by configuration and seed; called from threads."""
        seeds = self.seeds if places is None else [self.seeds[place] for place in places]
        each = [self.rows(config, seeds) for config in configs]
        results = iter(self.runner.run(list(itertools.chain(*each)), summarize))
        rows_of_each = [tuple(itertools.islice(results, len(rows))) for rows in each]
        return [runs * (len(seeds) // len(runs)) for runs in rows_of_each]

    def rows(self, config: ClusterConfig, seeds: Sequence[int] | None = None) -> list[Row]:
        """Return the runs of a configuration that seeds make different: one a seed, or a single one.

        That is where neither a trace nor policies draw anything.
        """
        seeds = self.seeds if seeds is None else seeds
        if isinstance(self.spec, TraceSource) and not self.spec.depends_on_seed(config):
            seeds = self.seeds[:1]
        return self.drawn.rows(config, self.spec, seeds)


RUNS_PER_PART = 512
ROWS_PER_CALL = 8  # on a CPU: a run that livelocks holds up few others
MOST_EVICTIONS = 16_384  # of a run that thrashes, so that it need not be made twice
MOST_BLOCKS = 16_384  # of a pool that programs are prepared for


def part_runner(num_blocks: int | None) -> Runner:
    """Return a runner of parts of a store; `num_blocks` of pools that may run out, None if none does."""
    from blis_jax.runs.driver import Runner
    from blis_jax.runs.options import Options

    options = Options(form=default_form())
    if num_blocks is not None:
        options = Options(form=default_form(), num_blocks=num_blocks, num_evictions=MOST_EVICTIONS)
    is_one_call = options.form == "lanes"
    return Runner(options, RUNS_PER_PART if is_one_call else ROWS_PER_CALL * num_workers())


def table_of(spec: RequestSource, seed: int, block_size: int, stream: str) -> RequestTable:
    """Return the requests of one run: those of a trace, or those that a stream draws from a seed."""
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
    """Return the requests of one run with what its cluster goes by, which rows of traces alone have."""
    return spec.placed(table, seed, config) if isinstance(spec, TraceSource) else table


def check_seeds(seeds: Sequence[int], stream: str) -> None:
    """Refuse seeds that the stream does not have."""
    if len(set(seeds)) != len(seeds):
        raise ConfigError("seeds: a seed is given twice; give each once")
    limit = MOST_JAX_SEEDS if stream == "jax" else 2**63
    for seed in seeds:
        if not 0 <= seed < limit:
            raise ConfigError(f"seeds: {seed} is out of range; seeds are 0 to {limit - 1}")
