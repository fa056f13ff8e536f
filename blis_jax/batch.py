"""Many runs: points of a parameter space times seeds, drawn and simulated inside compiled calls.

Points of one mechanism share a compilation, and mechanisms compile side by side. Rows go through in
chunks, one single-threaded worker per core on a CPU and all in one vectorised loop on a GPU; every
row comes back, repaired where it can be, with its outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from blis_jax.config import ClusterConfig
from blis_jax.drawn_rows import DrawnRow, Found, Group, default_form, num_workers
from blis_jax.errors import ConfigError
from blis_jax.grid import Grid, Timing
from blis_jax.mechanism import mechanism
from blis_jax.policies.contract import Policies
from blis_jax.records import RunRecord
from blis_jax.simulation import Options, simulate
from blis_jax.workload.draw import compile_plan
from blis_jax.workload.spec import WorkloadSpec

T = TypeVar("T")
LARGEST_SEED = 2**32 - 1


def _kind(config: ClusterConfig, spec: WorkloadSpec, policies: Policies | None) -> tuple[Any, ...]:
    """What must be equal for two points to share a compilation."""
    plan = compile_plan(spec, block_size=config.block_size_in_tokens)
    clients = tuple(dataclasses.replace(one, num_proposals=0) for one in plan.shape.clients)
    num_requests = plan.shape.num_requests if plan.shape.is_capped else None
    leaves = tuple(np.shape(leaf) for leaf in jax.tree.leaves(plan.params))
    return mechanism(config, policies), config.block_size_in_tokens, clients, num_requests, leaves


class _Job(NamedTuple):
    group: Group
    points: list[int]  # of the group's points among all
    rows: list[DrawnRow]  # still to run; they count the group's points


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
    kept = dict(known or {})
    timing = Timing()

    def keep(points: list[int], found: list[Found]) -> None:
        """Take in what a chunk has finished."""
        final = [one for one in found if one.is_final]
        for one in final:
            place = points[one.row.point], one.row.seed
            kept[place] = one.summary
            if on_row is not None:
                on_row(*place, one.summary)
        timing.num_rows += len(final)
        if progress is not None:
            progress(len(final))

    _run_jobs(_jobs(configs, specs, handed, seeds, summarize, options, kept), keep, timing)
    table = tuple(tuple(kept[p, s] for s in range(len(seeds))) for p in range(len(configs)))
    return Grid(tuple(configs), tuple(int(seed) for seed in seeds), table, timing)


def _jobs(
    configs: Sequence[ClusterConfig],
    specs: Sequence[WorkloadSpec],
    policies: Sequence[Policies | None],
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], Any],
    options: Options,
    kept: Mapping[tuple[int, int], Any],
) -> list[_Job]:
    """One job per compilation, without the rows that are there already."""
    kinds: dict[Any, list[int]] = {}
    for index, config in enumerate(configs):
        kinds.setdefault(_kind(config, specs[index], policies[index]), []).append(index)
    jobs = []
    for points in kinds.values():
        rows = [
            DrawnRow(place, seed)
            for place, point in enumerate(points)
            for seed in range(len(seeds))
            if (point, seed) not in kept
        ]
        if rows:
            chosen = [configs[point] for point in points]
            of_chosen = [specs[point] for point in points]
            handed = [policies[point] for point in points]
            group = Group(chosen, of_chosen, seeds, options, summarize, handed, len(rows))
            jobs.append(_Job(group, points, rows))
    return jobs


def _run_jobs(
    jobs: list[_Job], keep: Callable[[list[int], list[Found]], None], timing: Timing
) -> None:
    """Run every group once it is compiled, and again the rows that a larger capacity can repair."""
    compilers = ThreadPoolExecutor(num_workers())
    try:
        while jobs:
            sizes = [job.group.chunk_size(len(job.rows)) for job in jobs]
            compilations = [
                compilers.submit(job.group.compile, size)
                for job, size in zip(jobs, sizes, strict=True)
            ]
            failed: list[_Job] = []
            for job, size, compilation in zip(jobs, sizes, compilations, strict=True):
                start = time.perf_counter()
                compilation.result()
                compiled = time.perf_counter()
                again: list[Found] = []
                with contextlib.closing(job.group.run(job.rows, size)) as chunks:
                    for found in chunks:
                        keep(job.points, found)
                        again += [one for one in found if not one.is_final]
                timing.compile_s += compiled - start
                timing.run_s += time.perf_counter() - compiled
                if again:
                    timing.num_reruns += len(again)
                    job.group.grow({one.outcome for one in again})
                    failed.append(job._replace(rows=[one.row for one in again]))
            jobs = failed
    finally:
        compilers.shutdown(cancel_futures=True)


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
