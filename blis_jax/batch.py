"""Many runs: points of a parameter space times seeds, drawn and simulated inside compiled calls.

Points of one mechanism share a compilation, and mechanisms compile side by side. Rows go through in
chunks, one single-threaded worker per core on a CPU and all in one vectorised loop on a GPU; every
row comes back, repaired where it can be, with its outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from blis_jax.config import ClusterConfig
from blis_jax.demand import demand_of_draws
from blis_jax.errors import ConfigError
from blis_jax.options import Options, default_form
from blis_jax.policies.contract import Policies
from blis_jax.records import RunRecord
from blis_jax.runner import Runner, Timing
from blis_jax.runs import DrawnRun, Point, larger_plan
from blis_jax.simulation import simulate
from blis_jax.sizes import Sizes, first_sizes
from blis_jax.workload.spec import WorkloadSpec

T = TypeVar("T")
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Grid(Generic[T]):
    """Summaries of points × seeds, `rows[point][seed]`."""

    configs: tuple[ClusterConfig, ...]
    seeds: tuple[int, ...]
    rows: tuple[tuple[T, ...], ...]
    timing: Timing = field(default_factory=Timing)


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
    """Every configuration on every seed's workload; `summarize` makes of each record what is kept.

    `spec` is one for all or one for each configuration. Seeds are common: a seed means the same
    requests for every configuration with one workload, the same random numbers where workloads
    differ, and the same draws of random policies; another seed brings others. `summarize` is called
    from several threads. `known` holds summaries by (point, place of the seed) that need no run;
    `on_row` is told of every other one as it comes, `progress` the number of rows that each chunk
    has finished. `policies` take the place of those that the configurations name; they are one for
    all or one for each configuration.
    """
    if not configs or not len(seeds):
        raise ConfigError("a grid needs at least one configuration and one seed; none was given")
    for seed in seeds:
        if not 0 <= seed <= LARGEST_SEED:
            raise ConfigError(f"seed {seed} is out of range; seeds are 0 to {LARGEST_SEED}")
    specs = [spec] * len(configs) if isinstance(spec, WorkloadSpec) else list(spec)
    if len(specs) != len(configs):
        raise ConfigError(f"{len(specs)} workloads for {len(configs)} configurations; give as many")
    handed = list(policies) if isinstance(policies, Sequence) else [policies] * len(configs)
    if len(handed) != len(configs):
        raise ConfigError(f"{len(handed)} policies for {len(configs)} configurations; give as many")
    options = options or Options(form=default_form(), resolve_ties=False)
    points = [Point(*given) for given in zip(configs, specs, handed, strict=True)]
    kept = dict(known or {})
    runner = Runner(options)
    runs = drawn_runs(points, seeds, options, kept)
    with contextlib.closing(runner.stream(runs, summarize)) as calls:
        for finished in calls:
            for run, summary in finished:
                kept[run.place] = summary
                if on_row is not None:
                    on_row(*run.place, summary)
            if progress is not None:
                progress(len(finished))
    table = tuple(tuple(kept[p, s] for s in range(len(seeds))) for p in range(len(configs)))
    return Grid(tuple(configs), tuple(int(seed) for seed in seeds), table, runner.timing)


def drawn_runs(
    points: Sequence[Point],
    seeds: Sequence[int],
    options: Options,
    known: Container[tuple[int, int]] = (),
) -> list[DrawnRun]:
    """A run for each point and seed that is not known; points of one kind begin with sizes that hold all of them."""
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
    """One configuration on many seeds; see `run_grid`."""
    return run_grid([config], spec, seeds, summarize, options, policies=policies).rows[0]


def over_params(
    configs: Sequence[ClusterConfig],
    spec: WorkloadSpec,
    seed: int,
    summarize: Callable[[RunRecord], T] = lambda record: record,  # type: ignore[assignment,return-value]
    options: Options | None = None,
    policies: Policies | Sequence[Policies | None] | None = None,
) -> tuple[T, ...]:
    """Many configurations on one seed's workload; see `run_grid`."""
    grid = run_grid(configs, spec, [seed], summarize, options, policies=policies)
    return tuple(row[0] for row in grid.rows)


__all__ = ["Grid", "Timing", "over_params", "over_seeds", "run_grid", "simulate"]
