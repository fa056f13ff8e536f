"""An experiment: requests that configurations serve, metrics kept of each run, and the runs in compiled calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blis_jax import lazy, progress
from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure, read_targets, read_window
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.scalars import lookup, pooled_latency
from blis_jax.policies.seeds import BY_WORKLOAD
from blis_jax.runs.options import Options, default_form
from blis_jax.traces.source import TraceSource
from sweeps.claims.grammar import known_metric, our_name
from sweeps.runs.requests import StudyRequests, check_seeds, strategies_of

if TYPE_CHECKING:
    from distributed import Client

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.metrics import compiled
    from blis_jax.policies.contract import Policies
    from blis_jax.records.record import RunRecord
    from blis_jax.runs import alternatives, driver, scheduler
    from blis_jax.runs import runs as run_kinds
    from blis_jax.runs.runs import Row, Run
    from blis_jax.workload.source import RequestSource
    from sweeps.runs import drawn, measured
    from sweeps.runs.parts import RunPart
    from sweeps.search.objectives import Runs
    from sweeps.strategies.arms import Arm
    from sweeps.strategies.file import Strategy
else:  # they load JAX, for which no refusal waits
    compiled = lazy.Module("blis_jax.metrics.compiled")
    alternatives = lazy.Module("blis_jax.runs.alternatives")
    driver = lazy.Module("blis_jax.runs.driver")
    run_kinds = lazy.Module("blis_jax.runs.runs")
    drawn = lazy.Module("sweeps.runs.drawn")
    scheduler = lazy.Module("blis_jax.runs.scheduler")
    measured = lazy.Module("sweeps.runs.measured")

T = TypeVar("T")
FORMAT = 1  # of the records
Targets = Mapping[str, Mapping[str, float]]  # SLO targets, ms by class


def targets_of(strategy: Strategy) -> Mapping[str, Mapping[str, float]]:
    """Return the SLO targets of a strategy, ms by class; the default targets if its file has none."""
    if strategy.targets is None:
        return DEFAULT_TARGETS
    return {name: limits.model_dump(exclude_none=True) for name, limits in strategy.targets.items()}


def measure_of(
    targets: Mapping[str, Mapping[str, float]], spec: RequestSource, window: str | None = None
) -> Measure:
    """Return the SLO targets with the measured part of the arrivals, checked; `window` replaces the workload's own."""
    measure = Measure(targets, *read_window(window, spec))
    measure.check(spec)
    return measure


def metrics_for(listed: str | None, classes: Sequence[str]) -> tuple[str, ...] | None:
    """Return the metrics in `listed`, those without a class also for each class; None where `listed` is None."""
    if listed is None:
        return None
    names: list[str] = []
    for text in listed.split(","):
        try:
            metric = known_metric(text.strip())
        except ConfigError as error:
            raise ConfigError(f"--metrics: {error}") from None
        name = our_name(text.strip())
        names.append(name)
        if metric.has_classes and lookup(name)[1] is None:
            names += names_in([name], classes)
    return tuple(dict.fromkeys(names))


def targets_for(texts: Sequence[str], arms: Sequence[Arm]) -> Targets:
    """Return the SLO targets in `texts`, else those of the first arm whose file has some."""
    if texts:
        return read_targets(texts)
    with_some = (strategy for strategy in strategies_of(arms) if strategy.targets is not None)
    first = next(with_some, None)
    return DEFAULT_TARGETS if first is None else targets_of(first)


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that decides figures besides configurations; runs configurations on the requests of every seed.

    Requests are drawn once a seed, and each mechanism is compiled once.

    Attributes:
        requests: the requests that every run serves.
        names: the metrics that are kept.
        targets: SLO targets, ms by class.
        window: bounds of the measured arrivals, `WARM_UP,COOL_DOWN` in s; None for the workload's.
        configs_per_batch: the usual number of configurations in a call of `run`.
        policy_seeds: the rule of policies/seeds.py that seeds random policies.
        shared: the holder of compiled programs that this experiment shares.
        handed_in: policies that replace those named by a configuration, see `expect`.
        executor: a `distributed.Client` whose workers make the runs; None for the workers of --scheduler, else threads.
        tables: the cache of drawn requests that this experiment shares.
    """

    requests: StudyRequests
    names: tuple[str, ...] = ()
    targets: Targets = field(default_factory=lambda: DEFAULT_TARGETS)
    window: str | None = None
    configs_per_batch: int = 1
    policy_seeds: str = BY_WORKLOAD
    shared: driver.Runner | None = None
    handed_in: dict[ClusterConfig, Policies] = field(default_factory=dict)
    executor: Client | None = None
    tables: drawn.DrawnRows | None = None

    @classmethod
    def on(
        cls,
        source: RequestSource,
        seeds: Sequence[int],
        stream: str,
        names: Sequence[str] = (),
        targets: Targets = DEFAULT_TARGETS,
        configs_per_batch: int = 1,
        policy_seeds: str = BY_WORKLOAD,
        shared: driver.Runner | None = None,
    ) -> Experiment:
        """Return the experiment on a source of requests and on seeds.

        `stream` draws the requests of a workload: `reference` as BLIS does, `jax` as the sweeps do.
        """
        requests = StudyRequests(source, tuple(seeds), stream)
        batch, distinct = configs_per_batch, tuple(dict.fromkeys(names))
        return cls(requests, distinct, targets, None, batch, policy_seeds, shared)

    def on_seeds(self, seeds: Sequence[int]) -> Experiment:
        """Return the same experiment on other seeds."""
        check_seeds(seeds, self.requests.stream)
        return replace(self, requests=replace(self.requests, seeds=tuple(seeds)))

    def in_window(self, window: str) -> Experiment:
        """Return the same experiment with another window of measured arrivals, `WARM_UP,COOL_DOWN` in s."""
        return replace(self, window=window)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds, or the numbers of a trace's windows, from 1 on."""
        return self.requests.seeds

    @cached_property
    def measure(self) -> Measure:
        """Return the SLO targets with the measured part of the arrivals."""
        return measure_of(self.targets, self.requests.source, self.window)

    def journal(
        self, path: Path, kind: str, part: RunPart | None = None, **further: Any
    ) -> Journal:
        """Return the journal of the runs, of any configurations; `further` adds or replaces parts of its content."""
        kind = kind if part is None else part.kind_of(kind)
        targets = {name: dict(limits) for name, limits in self.targets.items()}
        content = {
            **self.requests.content(), "targets": targets, "metrics": sorted(self.names), "format": FORMAT,
        }  # fmt: skip
        return Journal(path, kind, content | further)

    # --- runs ---

    @cached_property
    def drawn(self) -> drawn.DrawnRows:
        """Return the maker of rows of runs."""
        return self.tables or drawn.DrawnRows(self.requests.stream, policy_seeds=self.policy_seeds)

    @cached_property
    def result(self) -> compiled.RunFigures:
        """Return the computation of a run's metrics, which runs in the compiled program where possible."""
        names = tuple(dict.fromkeys(self.names))
        return compiled.RunFigures(names, self.measure.slo_targets(), self.measure)

    @cached_property
    def runner(self) -> driver.Runner:
        """Return the runner that compiles and runs rows."""
        num_rows = len(self.seeds) * self.configs_per_batch
        workers = None if self.executor is None else scheduler.Workers(self.executor)
        return self.shared or driver.Runner(Options(form=default_form()), num_rows, workers)

    def rows(
        self,
        config: ClusterConfig,
        seeds: Sequence[int] | None = None,
        source: RequestSource | None = None,
    ) -> list[Row]:
        """Return a configuration's distinct runs: one per seed, or a single one; `source` replaces the requests.

        There is a single run where the requests are a trace's and neither trace nor policies draw anything.
        """
        seeds = self.seeds if seeds is None else seeds
        distinct = seeds[: self.num_distinct(config, len(seeds), source)]
        return self._drawn_on(distinct, config, source)

    def _drawn_on(
        self, seeds: Sequence[int], config: ClusterConfig, source: RequestSource | None = None
    ) -> list[Row]:
        rows = self.drawn.rows(config, source or self.requests.source, seeds)
        policies = self.handed_in.get(config)
        return [replace(row, policies=policies) for row in rows] if policies else rows

    def expect(self, configs: Sequence[ClusterConfig]) -> None:
        """Prepare for these configurations: those that differ in the router alone share one compiled program."""
        if self.requests.source.waits:
            return  # every pass of a closed loop makes its own program ready
        self.handed_in.update(alternatives.in_one_program(configs))
        self.runner.expect(row for config in self.handed_in for row in self.rows(config))

    def run(
        self, configs: Sequence[ClusterConfig], places: Sequence[int] | None = None
    ) -> list[Runs]:
        """Return each configuration's runs, one per seed; `places` are the indices of the seeds, by default all."""
        return self.summaries(configs, self.result, places)

    def summaries(
        self,
        configs: Sequence[ClusterConfig],
        summarize: Callable[[RunRecord], T],
        places: Sequence[int] | None = None,
        sources: Sequence[RequestSource | None] | None = None,
    ) -> list[tuple[T, ...]]:
        """Return what `summarize` returns for each run, by configuration and seed; it is called from threads.

        `sources` are the requests that each configuration serves, None for those of the experiment.
        """
        chosen = list(range(len(self.seeds)) if places is None else places)
        served = sources or [None] * len(configs)
        distinct = [
            chosen[: self.num_distinct(config, len(chosen), source)]
            for config, source in zip(configs, served, strict=True)
        ]
        wanted = [(at, place) for at, of_config in enumerate(distinct) for place in of_config]
        results = dict(itertools.chain.from_iterable(self.each(configs, summarize, wanted, served)))
        runs = [tuple(results[at, place] for place in places) for at, places in enumerate(distinct)]
        return [of_config * (len(chosen) // len(of_config)) for of_config in runs]

    def num_distinct(
        self, config: ClusterConfig, num_seeds: int, source: RequestSource | None = None
    ) -> int:
        """Return the number of distinct runs of a configuration on `num_seeds` seeds; further runs equal the first."""
        served = source or self.requests.source
        is_same = isinstance(served, TraceSource) and not served.depends_on_seed(config)
        return 1 if is_same else num_seeds

    def each(
        self,
        configs: Sequence[ClusterConfig],
        summarize: Callable[[RunRecord], T],
        wanted: Sequence[tuple[int, int]],
        sources: Sequence[RequestSource | None] | None = None,
    ) -> Iterator[list[tuple[tuple[int, int], T]]]:
        """Yield what `summarize` returns for the wanted runs, one compiled call after the other, as they are done.

        A run is identified by the indices of its configuration and of its seed; `sources` as in `summaries`, none of
        which waits for answers.
        """
        served, places = sources or [None] * len(configs), dict[int, list[int]]()
        for at, place in wanted:
            places.setdefault(at, []).append(place)
        if self.requests.source.waits:
            for at, place in wanted:
                yield [((at, place), self._followed(configs[at], self.seeds[place], summarize))]
            return
        runs: dict[Run, tuple[int, int]] = {}
        for at, of_config in places.items():
            rows = self._drawn_on(
                [self.seeds[place] for place in of_config], configs[at], served[at]
            )
            for place, row in zip(of_config, rows, strict=True):
                runs[run_kinds.GivenRun(row, self.runner.options)] = at, place
        for finished in self.runner.stream(list(runs), summarize):
            yield [(runs[run], summary) for run, summary in finished]

    def _followed(self, config: ClusterConfig, seed: int, summarize: Callable[[RunRecord], T]) -> T:
        options, policies = self.runner.options, self.handed_in.get(config)
        return drawn.followed(self.requests.source, seed, config, summarize, options, policies)

    def record(self, config: ClusterConfig, seed: int) -> RunRecord:
        """Return the full record of one run."""
        if self.requests.source.waits:
            return self._followed(config, seed, lambda run: run)
        (record,) = self.runner.run(self._drawn_on([seed], config), lambda run: run)
        return record

    @contextmanager
    def kept_runs(
        self,
        command: str,
        journal: Journal,
        total: int,
        classes: Sequence[str],
        has_requests: bool = False,
    ) -> Iterator[measured.KeptRuns]:
        """Yield a runner of `total` configurations that writes each run into the journal and shows progress.

        With `has_requests` the outcome of every request is kept. If the user stops the command, a message names the
        journal.
        """
        names = dict.fromkeys(self.names)
        single = tuple(name for name in names if pooled_latency(name) is None)
        kept = replace(self, names=single)
        recorder = measured.Recorder(single, self.measure, tuple(classes), has_requests)
        simulating = progress.phase("simulating", total, "configurations")
        with cli.resumable(command, journal.path), simulating as work:
            yield measured.KeptRuns(kept, recorder, journal, work)
