"""One run of given requests, and many: points of a parameter space times seeds, simulated in compiled calls.

A point is a configuration with a workload; points of one mechanism share a compilation, and mechanisms compile in
parallel. Runs are made in chunks: by one single-threaded worker per core on a CPU, in one vectorised loop on a GPU.
Every run is returned with its outcome, after repeats with larger tables if it did not fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, SupportsIndex, TypeVar

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.types import Mechanism
from blis_jax.engine.mechanism import of_one_program
from blis_jax.errors import ConfigError
from blis_jax.lazy import exports, xarray
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records.record import RunRecord
from blis_jax.runs.demand import demand_of_draws
from blis_jax.runs.driver import Runner, Timing
from blis_jax.runs.options import Options, default_form
from blis_jax.runs.runs import DrawnRun, GivenRun, Point, Row, Run, larger_plan
from blis_jax.runs.sizes import Sizes, first_sizes
from blis_jax.workload.table import RequestTable

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec


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
        The record of every request, step and instance. Its `outcome` says how the run ended; a run that cannot end
        raises no error.

    Raises:
        ConfigError: a policy, a number or a table cannot be used.
    """
    if not isinstance(table, RequestTable):
        raise ConfigError(
            f"the requests are a {type(table).__name__}; make a table of them: draw_requests(workload, seed=42, "
            "block_size=16)[0], or to_table(rows, 16)[0] of what read_trace returns"
        )
    options = options or Options()
    row = Row(config, table, policy_seed(seed), policies)
    return Runner(options, num_rows=1).alone(GivenRun(row, options))


_FORMS = exports("blis_jax.results", {"dataset": ("summaries_to_dataset",)})  # without xarray

T = TypeVar("T")
M = TypeVar("M", Point, GivenRun)
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Grid(Generic[T]):
    """Summaries of points × seeds, `rows[point][seed]`."""

    configs: tuple[ClusterConfig, ...]
    seeds: tuple[int, ...]
    rows: tuple[tuple[T, ...], ...]
    timing: Timing = field(default_factory=Timing)

    def to_dataset(self) -> xarray.Dataset:
        """Return the metrics of the summaries as xarray `[point, seed]`, with units; NaN where a run has no figures.

        Raises:
            ConfigError: the summaries have no metrics; ask for some with `summarize=figures_of([...])`.
        """
        dataset: xarray.Dataset = _FORMS("summaries_to_dataset")(self.rows, self.seeds)
        return dataset


def run_grid(
    configs: Sequence[ClusterConfig],
    spec: WorkloadSpec | Sequence[WorkloadSpec],
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], T],
    options: Options | None = None,
    progress: Callable[[int], None] | None = None,
    known: Mapping[tuple[int, int], T] | None = None,
    on_row: Callable[[int, int, T], None] | None = None,
    policies: Policies | Sequence[Policies | None] | None = None,
) -> Grid[T]:
    """Run every configuration on every seed's workload.

    A seed means the same requests and the same draws of random policies for every configuration.

    Args:
        configs: the clusters, `[point]`; those of one mechanism share a compiled program.
        spec: the workload, one for all or one for each configuration.
        seeds: whole numbers from 0 to 2^32 − 1.
        summarize: function from a record to its summary, called from several threads; `figures_of` is computed on the
            device.
        options: how to run.
        progress: called with the number of runs that each chunk has finished.
        known: summaries by (index of the point, index of the seed) that need no run.
        on_row: called with index of the point, index of the seed, and summary of every run as it finishes.
        policies: policies in place of those that the configurations name, one set for all or one for each.

    Returns:
        The summaries, `rows[point][seed]`.

    Raises:
        ConfigError: nothing was given to run, a seed is out of range, or the lengths do not agree.
    """
    _refuse_other_kinds(configs, spec, seeds)
    if not configs or not len(seeds):
        raise ConfigError("a grid needs at least one configuration and one seed; none was given")
    for seed in seeds:
        if not isinstance(seed, SupportsIndex):
            raise ConfigError(f"seed {seed!r} is not a whole number; seeds are 0 to {LARGEST_SEED}")
        if not 0 <= seed <= LARGEST_SEED:
            raise ConfigError(f"seed {seed} is out of range; seeds are 0 to {LARGEST_SEED}")
    specs = list(spec) if isinstance(spec, Sequence) else [spec] * len(configs)
    if len(specs) != len(configs):
        raise ConfigError(
            f"{len(specs)} workloads for {len(configs)} configurations; give one for each"
        )
    handed = list(policies) if isinstance(policies, Sequence) else [policies] * len(configs)
    if len(handed) != len(configs):
        raise ConfigError(
            f"{len(handed)} policies for {len(configs)} configurations; give one for each"
        )
    options = options or Options(form=default_form(), resolve_ties=False)
    points = [Point(*fields) for fields in zip(configs, specs, handed, strict=True)]
    for point, functions in _shared(points):
        point.functions = functions
    runs = drawn_runs(points, seeds, options, known or {})
    return _gridded(configs, seeds, runs, summarize, options, progress, known, on_row)


def _refuse_other_kinds(configs: object, spec: object, seeds: object) -> None:
    """Refuse a single seed or configuration in place of a list, and a name in place of a workload."""
    if isinstance(seeds, int):
        raise ConfigError(
            f"seeds: got the number {seeds}; give a list of them, such as range({seeds})"
        )
    if isinstance(spec, str):
        raise ConfigError(
            f"the workload is the text {spec!r}; give load_builtin({spec!r}), or load_spec(path) of a file"
        )
    if isinstance(configs, ClusterConfig):
        raise ConfigError("configs: got one ClusterConfig; give a list of them")


def run_given(
    configs: Sequence[ClusterConfig],
    table_of: Callable[[int, int], RequestTable],
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], T],
    options: Options | None = None,
    progress: Callable[[int], None] | None = None,
    known: Mapping[tuple[int, int], T] | None = None,
    on_row: Callable[[int, int, T], None] | None = None,
    placed: Callable[[RequestTable, int, ClusterConfig], RequestTable] | None = None,
) -> Grid[T]:
    """Run every configuration on given requests, `table_of(seed, block size)`; otherwise like `run_grid`.

    `placed(table, seed, configuration)` returns the table with further columns that the cluster needs.
    """
    options = options or Options(form=default_form(), resolve_ties=False)
    tables: dict[tuple[int, int], RequestTable] = {}
    runs = []
    for place in itertools.product(range(len(configs)), range(len(seeds))):
        if place in (known or {}):
            continue
        config, seed = configs[place[0]], int(seeds[place[1]])
        key = seed, config.block_size_in_tokens
        if key not in tables:
            tables[key] = table_of(*key)
        table = tables[key] if placed is None else placed(tables[key], seed, config)
        run = GivenRun(Row(config, table, policy_seed(seed)), options)
        run.place = place
        runs.append(run)
    for run, functions in _shared(runs):
        run.functions = functions
    return _gridded(configs, seeds, runs, summarize, options, progress, known, on_row)


def _shared(made: Sequence[M]) -> Iterator[tuple[M, Mechanism]]:
    """Yield the points or runs with the mechanism of the program that they share."""
    return zip(made, of_one_program([group.functions for group in made]), strict=True)


def _tell_nobody(*_: object) -> None:
    """Ignore a report for which no callback was given."""


def _gridded(
    configs: Sequence[ClusterConfig],
    seeds: Sequence[int],
    runs: Sequence[Run],
    summarize: Callable[[RunRecord], T],
    options: Options,
    progress: Callable[[int], None] | None,
    known: Mapping[tuple[int, int], T] | None,
    on_row: Callable[[int, int, T], None] | None,
) -> Grid[T]:
    """Make the runs; return their summaries with the known ones as a grid."""
    kept, runner = dict(known or {}), Runner(options)
    tell_row, tell_count = on_row or _tell_nobody, progress or _tell_nobody
    with contextlib.closing(runner.stream(runs, summarize)) as calls:
        for finished in calls:
            for run, summary in finished:
                kept[run.place] = summary
                tell_row(*run.place, summary)
            tell_count(len(finished))
    table = tuple(tuple(kept[p, s] for s in range(len(seeds))) for p in range(len(configs)))
    return Grid(tuple(configs), tuple(int(seed) for seed in seeds), table, runner.timing)


def drawn_runs(
    points: Sequence[Point],
    seeds: Sequence[int],
    options: Options,
    known: Container[tuple[int, int]] = (),
) -> list[DrawnRun]:
    """Return a run for each unknown (point, seed); points of one kind begin with sizes that hold all of them."""
    kinds: dict[Hashable, list[int]] = {}
    for place, point in enumerate(points):
        kinds.setdefault(point.kind, []).append(place)
    runs: list[DrawnRun] = []
    for places in kinds.values():
        missing = [
            (place, at) for place in places for at in range(len(seeds)) if (place, at) not in known
        ]
        if missing:
            sizes = _sizes_of([points[place] for place in places], options)
            runs += [DrawnRun(points[at[0]], int(seeds[at[1]]), sizes, at) for at in missing]
    return runs


def _sizes_of(points: Sequence[Point], options: Options) -> Sizes:
    plans = [point.plan() for point in points]
    largest = functools.reduce(larger_plan, {plan.shape for plan in plans})
    alike = [dataclasses.replace(plan, shape=largest) for plan in plans]
    demand = demand_of_draws([point.config for point in points], alike, options)
    return first_sizes(demand, options, points[0].functions)


def over_seeds(
    config: ClusterConfig,
    spec: WorkloadSpec,
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], T] = lambda record: record,  # type: ignore[assignment,return-value]
    options: Options | None = None,
    policies: Policies | None = None,
) -> tuple[T, ...]:
    """Run one configuration on many seeds.

    Args:
        config: the cluster, and names of its policies.
        spec: the workload; its requests are drawn on the device.
        seeds: whole numbers from 0 to 2^32 − 1.
        summarize: what is kept of a record, the record itself if not given; called from several threads.
        options: how to run.
        policies: in place of those that the configuration names.

    Returns:
        A summary for each seed.

    Raises:
        ConfigError: as `run_grid`.
    """
    return run_grid([config], spec, seeds, summarize, options, policies=policies).rows[0]


def over_params(
    configs: Sequence[ClusterConfig],
    spec: WorkloadSpec,
    seed: int,
    summarize: Callable[[RunRecord], T] = lambda record: record,  # type: ignore[assignment,return-value]
    options: Options | None = None,
    policies: Policies | Sequence[Policies | None] | None = None,
) -> tuple[T, ...]:
    """Run many configurations on the requests of one seed.

    Args:
        configs: the clusters; those of one mechanism share a compiled program.
        spec: the workload; its requests are drawn on the device.
        seed: a whole number from 0 to 2^32 − 1.
        summarize: what is kept of a record, the record itself if not given; called from several threads.
        options: how to run.
        policies: in place of those that the configurations name, one for all or one for each.

    Returns:
        A summary for each configuration.

    Raises:
        ConfigError: as `run_grid`.
    """
    grid = run_grid(configs, spec, [seed], summarize, options, policies=policies)
    return tuple(row[0] for row in grid.rows)


__all__ = ["Grid", "Timing", "over_params", "over_seeds", "run_grid", "simulate"]
