"""Rows of runs (the requests of a source, drawn once per seed, with a configuration), and the runners of rows."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from blis_jax import progress
from blis_jax.commands.run.requests import draw_requests, run_of_users
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.policies.seeds import BY_WORKLOAD, policy_seed_under
from blis_jax.runs.closed_loop import placed as placed_in
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.runs.driver import Runner, Timing
from blis_jax.runs.many_runs import Grid, simulate
from blis_jax.runs.options import Options, default_form, num_workers, side_by_side
from blis_jax.runs.runs import Row
from blis_jax.traces.closed_loop import closed_loop_of_rows, loop_rows
from blis_jax.traces.source import TraceSource
from blis_jax.workload.reference import drawn
from blis_jax.workload.reference.arrays import run_of_reference
from blis_jax.workload.source import RequestSource, until_horizon
from blis_jax.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.policies.contract import Policies
    from blis_jax.records.record import RunRecord
    from blis_jax.workload.table import RequestTable, WorkloadNames

    Drawn = tuple[RequestTable, WorkloadNames | None]

T = TypeVar("T")
MANY = 64_000  # requests; drawing them in one process takes a second, starting others half of one


class DrawnRows:
    """Make the rows of runs; requests are drawn once per source, seed and block size."""

    def __init__(
        self, stream: str, most_requests: int | None = None, policy_seeds: str = BY_WORKLOAD
    ) -> None:
        """Take the `stream` that draws a workload's requests: `reference` draws as BLIS does, `jax` as the sweeps do.

        If tables hold more than `most_requests` together, those used longest ago are dropped. `policy_seeds` is the
        rule of policies/seeds.py that seeds random policies.
        """
        self.stream, self.most_requests, self.policy_seeds = stream, most_requests, policy_seeds
        self.kept: OrderedDict[Hashable, tuple[Drawn, RequestSource]] = OrderedDict()
        self.num_requests = 0

    def rows(self, config: ClusterConfig, source: RequestSource, seeds: Sequence[int]) -> list[Row]:
        """Return the runs of a configuration on these seeds."""
        config = until_horizon(config, source)
        size = config.block_size_in_tokens
        missing = [seed for seed in seeds if (id(source), seed, size) not in self.kept]
        if missing:
            with progress.phase("drawing requests", len(missing), "seeds") as work:
                tables = _drawn_of_each(source, missing, size, self.stream)
                for seed, made in zip(missing, tables, strict=True):
                    self._keep(source, seed, size, made)
                    work.advance()
        return [
            Row(
                config,
                placed(*self._kept(source, seed, size), source, seed, config),
                policy_seed_under(self.policy_seeds, seed),
            )
            for seed in seeds
        ]

    def table(self, source: RequestSource, seed: int, block_size: int) -> RequestTable:
        """Return the requests of one run; draw them unless they are cached."""
        return self._kept(source, seed, block_size)[0]

    def _kept(self, source: RequestSource, seed: int, block_size: int) -> Drawn:
        """Return one run's requests, with their names if clusters refer to these; draw them unless cached."""
        place = id(source), seed, block_size
        if place not in self.kept:
            self._keep(source, seed, block_size, _drawn_of(source, seed, block_size, self.stream))
        self.kept.move_to_end(place)
        return self.kept[place][0]

    def _keep(self, source: RequestSource, seed: int, block_size: int, made: Drawn) -> None:
        """Cache the requests of one run, and drop those used longest ago beyond the limit."""
        self.kept[id(source), seed, block_size] = made, source  # a source that lives keeps its id
        self.num_requests += made[0].num_rows
        most = self.num_requests if self.most_requests is None else self.most_requests
        while self.num_requests > most and len(self.kept) > 1:
            self.num_requests -= self.kept.popitem(last=False)[1][0][0].num_rows


RUNS_PER_PART = 512
ROWS_PER_CALL = 8  # on a CPU: a run that livelocks holds up few others
MOST_EVICTIONS = 16_384  # of a run that thrashes, so that it need not be made twice
MOST_BLOCKS = 16_384  # of a pool that programs are prepared for
MOST_REQUESTS_KEPT = (
    2_000_000  # of the tables that are drawn ahead, where points have requests of their own
)


def part_runner(num_blocks: int | None) -> Runner:
    """Return a runner for parts of a store; `num_blocks` is the size of KV pools that may run out, None if none can."""
    options = Options(form=default_form())
    if num_blocks is not None:
        options = Options(form=default_form(), num_blocks=num_blocks, num_evictions=MOST_EVICTIONS)
    is_one_call = options.form == "lanes"
    return Runner(options, RUNS_PER_PART if is_one_call else ROWS_PER_CALL * num_workers())


def table_of(spec: RequestSource, seed: int, block_size: int, stream: str) -> RequestTable:
    """Return the requests of one run: those of a trace, or those drawn from a seed by a stream."""
    return _drawn_of(spec, seed, block_size, stream)[0]


def _drawn_of_each(
    source: RequestSource, seeds: Sequence[int], block_size: int, stream: str
) -> Iterator[Drawn]:
    """Yield the requests of each seed; BLIS's own draws, made in Python, run in several processes if there are many."""
    first, *others = seeds
    made = _drawn_of(source, first, block_size, stream)
    yield made
    is_reference = stream != "jax" and isinstance(source, WorkloadSpec)
    if is_reference and num_workers() > 1 and len(others) * made[0].num_rows >= MANY:
        runs = side_by_side(run_of_reference, ((source, seed, block_size) for seed in others))
        yield from map(_with_requests, runs, others)
    else:
        yield from (_drawn_of(source, seed, block_size, stream) for seed in others)


def _drawn_of(source: RequestSource, seed: int, block_size: int, stream: str) -> Drawn:
    """Return the requests of one run, with their names if the workload is of August's revision."""
    if isinstance(source, TraceSource):
        return source.table(seed, block_size), None
    assert isinstance(source, WorkloadSpec)
    if stream == "jax":
        return _with_requests((draw_requests(source, seed, block_size)[0], None), seed)
    return _with_requests(run_of_reference(source, seed, block_size), seed)


def _with_requests(made: Drawn, seed: int) -> Drawn:
    if not made[0].num_rows:
        raise ConfigError(f"seed {seed}: no request arrives before the horizon; raise the horizon")
    return made


def placed(
    table: RequestTable,
    names: WorkloadNames | None,
    spec: RequestSource,
    seed: int,
    config: ClusterConfig,
) -> RequestTable:
    """Return the requests of one run as its cluster sees them, with the cluster's models and LoRA adapters."""
    if isinstance(spec, TraceSource):
        return spec.placed(table, seed, config)
    return table if names is None else placed_in(config, table, names)


def followed(
    source: RequestSource,
    seed: int,
    config: ClusterConfig,
    summarize: Callable[[RunRecord], T],
    options: Options,
    policies: Policies | None = None,
) -> T:
    """Return what `summarize` makes of a run in which requests wait for answers; `policies` as in `simulate`.

    Such requests are rows of a trace with a delay, or come from users and closed-loop sessions of a workload; their
    contents and think times depend on the seed alone, not on the configuration.
    """
    if isinstance(source, TraceSource):
        return _followed_rows(source, seed, config, summarize, options, policies)
    assert isinstance(source, WorkloadSpec)
    config = until_horizon(config, source)
    return summarize(run_of_users(config, drawn(source, seed), options, seed, policies).record)


def followed_grid(
    points: Sequence[tuple[ClusterConfig, RequestSource]],
    seeds: Sequence[int],
    summarize: Callable[[RunRecord], T],
    options: Options,
    known: Mapping[tuple[int, int], T],
    on_row: Callable[[int, int, T], None] | None = None,
) -> Grid[T]:
    """Run every configuration on requests that wait for answers, on every seed; arguments are those of `run_grid`."""
    began, rows, options = time.monotonic(), dict(known), replace(options, resolve_ties=True)
    places = itertools.product(range(len(points)), range(len(seeds)))
    missing = [place for place in places if place not in rows]
    with progress.runs(len(missing)) as advance:
        for place in missing:
            config, source = points[place[0]]
            rows[place] = followed(source, seeds[place[1]], config, summarize, options)
            advance(1)
            if on_row is not None:
                on_row(*place, rows[place])
    table = tuple(tuple(rows[at, k] for k in range(len(seeds))) for at in range(len(points)))
    timing = Timing(0.0, time.monotonic() - began, len(rows) - len(known))
    return Grid(tuple(config for config, _ in points), tuple(seeds), table, timing)


def _followed_rows(
    trace: TraceSource,
    seed: int,
    config: ClusterConfig,
    summarize: Callable[[RunRecord], T],
    options: Options,
    policies: Policies | None,
) -> T:
    """Return what `summarize` makes of a run of a trace whose requests wait for answers.

    Requests that a summary keeps one by one are in the order and at the times of the trace, not of the run, so that
    those of several configurations can be paired; a summary of a window alone keeps none.
    """
    rows = trace.rows(seed)
    workload = closed_loop_of_rows(rows)
    if workload is None:  # a window of the trace without such rows
        table = trace.placed(trace.table(seed, config.block_size_in_tokens), seed, config)
        return summarize(simulate(config, table, options, seed, policies))
    run = simulate_closed_loop(config, workload, options, seed, policies)
    summary = summarize(run.record)
    if not isinstance(summary, RunSummary) or summary.requests is None:
        return summary
    places, kept = loop_rows(rows)[run.rows], summary.requests
    is_whole = len(kept) == len(places)
    placed_in = kept.placed(places, rows.arrival_us, rows.slo_class) if is_whole else None
    return replace(summary, requests=placed_in)
