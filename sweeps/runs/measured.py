"""The parts of a run kept to compare strategies: metrics, parts of TTFT, mechanisms that acted, and a fingerprint."""

from __future__ import annotations

import dataclasses
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scipy

from blis_jax import __version__
from blis_jax.cluster.config import PROFILE, ClusterConfig
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.metrics.compiled import evaluated
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.run_summary import (
    PAIRS,
    RunSummary,
    Tails,
    fingerprint,
    kept_tails,
    overtaking,
    read_summary,
    request_figures,
    tails_of_runs,
)
from blis_jax.metrics.scalars import lookup, pooled_latency
from blis_jax.metrics.summaries import ALL, select, ttft_parts_ms
from blis_jax.records.record import TTFT_PARTS, RunRecord, Status
from blis_jax.reports.study import CURVE_LEVELS
from blis_jax.statistics.intervals import is_constant
from blis_jax.statistics.paired import Pair
from blis_jax.statistics.pooled import contributions_ms, excess_counts, only, whole
from blis_jax.statistics.steady import growing_waits
from sweeps.runs.parts import make_part
from sweeps.strategies.arms import key_of

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from blis_jax.progress import Phase
    from sweeps.runs.experiment import Experiment
    from sweeps.runs.parts import RunPart

FALLS_BEHIND = (
    "falls_behind"  # of `acted`: in how many runs requests came faster than they were served
)


@dataclass(frozen=True)
class Recorder:
    """Reduce each record to a `RunSummary` with all that a comparison shows."""

    names: tuple[str, ...]  # metrics
    measure: Measure
    classes: tuple[str, ...]
    has_requests: bool = False  # whether the outcome of every request is kept

    def __call__(self, record: RunRecord) -> RunSummary:
        """Return the summary of one run."""
        if record.outcome not in WHOLE:
            return RunSummary(record.outcome)
        targets, window = self.measure.slo_targets(), window_of(self.measure, record)
        summary = evaluated(record, self.names, targets, self.measure)
        everything = select(record, window=window)
        chosen = {name: everything.of_name(name) for name in (ALL, *self.classes)}
        return dataclasses.replace(
            summary,
            ttft_parts={name: ttft_parts_ms(selection) for name, selection in chosen.items()},
            overtaking={
                f"{lower}>{higher}": overtaking(record, lower, higher)
                for lower, higher in PAIRS
                if lower in self.classes and higher in self.classes
            },
            acted=acted(record),
            fingerprint=fingerprint(record),
            ttft_curve_ms={
                name: np.round(np.quantile(ttft.values / 1000, CURVE_LEVELS), 3).tolist()
                for name, ttft in ((name, each.sample("ttft")) for name, each in chosen.items())
                if ttft.count
            },
            tails=kept_tails(everything, self.classes),
            requests=request_figures(record, targets, window) if self.has_requests else None,
        )


def acted(record: RunRecord) -> dict[str, int]:
    """Return how often each mechanism that leaves a trace acted, and whether waits grew through the run."""
    requests, instances = record.requests, record.instances
    overhead = requests.ttft_parts_us[:, TTFT_PARTS.index("chunk_overhead")]
    return {
        "num_rejected": int(np.count_nonzero(requests.status == Status.REJECTED)),
        "num_split_prompts": int(np.count_nonzero(overhead > 0)),
        "num_preemptions": int(instances.preemption_count.sum()),
        "cpu_offloads": int(instances.cpu_offloads.sum()),
        "cpu_reloads": int(instances.cpu_reloads.sum()),
        FALLS_BEHIND: int(growing_waits(requests) is not None),
    }


def same_lives(first: Sequence[RunSummary], second: Sequence[RunSummary]) -> bool:
    """Return whether all runs finished and every request had the same life in both, as far as the runs show."""
    return all(
        run.is_whole and bool(run.fingerprint) and run.fingerprint == other_run.fingerprint
        for run, other_run in zip(first, second, strict=True)
    )


class KeptRuns:
    """Run configurations, each once; runs in the journal are not made again."""

    def __init__(
        self,
        experiment: Experiment,
        recorder: Recorder,
        journal: Journal | None = None,
        work: Phase | None = None,
    ) -> None:
        """Take the experiment and its journal; `work` shows the name of each configuration that runs."""
        self.experiments, self.recorder, self.journal = [experiment], recorder, journal
        self.work = work
        self.runs: dict[str, tuple[RunSummary, ...]] = {}
        self.begun: dict[str, dict[int, RunSummary]] = {}  # by place of the seed
        if journal is not None:
            for line in journal.lines():
                if isinstance(line, dict):  # what a part is of
                    continue
                key, *places, runs = line
                read = tuple(map(read_summary, runs))
                if places:
                    self.begun.setdefault(key, {}).update(zip(places[0], read, strict=True))
                else:
                    self.runs[key] = read
            journal.begin()

    @property
    def experiment(self) -> Experiment:
        """Return the experiment on the first seeds."""
        return self.experiments[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return all seeds on which `of` runs a configuration, including added ones."""
        return tuple(seed for experiment in self.experiments for seed in experiment.seeds)

    def prepare(self, configs: Sequence[ClusterConfig]) -> None:
        """Prepare for the configurations that will run, except those that are known; see `Experiment.expect`."""
        self.experiment.expect([config for config in configs if key_of(config) not in self.runs])

    def expect(self, more: int) -> None:
        """Add `more` configurations to the total that progress is shown against."""
        if self.work is not None and self.work.total is not None:
            self.work.total += more

    def reach(self, count: int, num_configs: int) -> None:
        """Run configurations on the first `count` seeds from now on; `num_configs` of them are expected."""
        first, known = self.seeds[0], len(self.seeds)
        if count > known:
            self.expect(num_configs)
            self.experiments.append(self.experiment.on_seeds(range(first + known, first + count)))

    def of(self, config: ClusterConfig, name: str) -> tuple[RunSummary, ...]:
        """Return the runs of a configuration, one per seed."""
        self.make([(config, name)])
        return tuple(
            run
            for experiment in self.experiments
            for run in self.runs[self._key(experiment, config)]
        )

    def on_first_seeds(self, config: ClusterConfig, name: str) -> tuple[RunSummary, ...]:
        """Return the runs of a configuration on the first seeds, without seeds that were added."""
        self._make(self.experiment, {self._key(self.experiment, config): (config, name)})
        return self.runs[self._key(self.experiment, config)]

    def make(self, wanted: Sequence[tuple[ClusterConfig, str]]) -> None:
        """Run all named configurations together, so that workers do not wait for one configuration's last run."""
        for experiment in self.experiments:
            self._make(experiment, {self._key(experiment, named[0]): named for named in wanted})

    def _key(self, experiment: Experiment, config: ClusterConfig) -> str:
        is_first = experiment is self.experiment
        seeds = "" if is_first else f"@{experiment.seeds[0]}-{experiment.seeds[-1]}"
        return key_of(config) + seeds

    def _make(
        self, experiment: Experiment, wanted: Mapping[str, tuple[ClusterConfig, str]]
    ) -> None:
        """Make the missing runs; write each call's to the journal, in the end a line per configuration."""
        keys = [key for key in wanted if key not in self.runs]
        if not keys:
            return
        num_seeds = len(experiment.seeds)
        counts = self._counts(experiment, {key: wanted[key] for key in keys})
        is_in_order = len(keys) == 1 and not self.begun
        self._run(experiment, wanted, _places(counts), is_written=len(keys) > 1)
        for key, count in counts.items():
            begun = self.begun.pop(key)
            runs = tuple(begun[place] for place in range(count))
            self.runs[key] = runs * (num_seeds // count)
        if self.journal is not None and is_in_order:
            self.journal.append(self._line(keys[0]))
        elif self.journal is not None:
            self.journal.rewrite([self._line(key) for key in self.runs])

    def make_part(
        self, part: RunPart, wanted: Sequence[tuple[ClusterConfig, str]], then: str
    ) -> tuple[int, int]:
        """Make a part of the runs of configurations; return the numbers of its runs and of all runs; see
        `parts.make_part`.

        Raises:
            ConfigError: the journal is of a part with other configurations, or of another machine.
        """
        assert self.journal is not None
        by_key = {key_of(config): (config, name) for config, name in wanted}
        counts, num_seeds = self._counts(self.experiment, by_key), len(self.seeds)
        plan = [(key, count, num_seeds // count) for key, count in counts.items()]

        def make(missing: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[int], list[Any]]]:
            for key, runs in self.made(self.experiment, by_key, missing):
                yield key, list(runs), [run.document() for run in runs.values()]

        return make_part(self.journal, part, plan, then, make)

    def _counts(
        self, experiment: Experiment, wanted: Mapping[str, tuple[ClusterConfig, str]]
    ) -> dict[str, int]:
        """Return by key the number of distinct runs of each configuration."""
        num_seeds = len(experiment.seeds)
        return {key: experiment.num_distinct(named[0], num_seeds) for key, named in wanted.items()}

    def _line(self, key: str) -> list[Any]:
        return [key, [run.document() for run in self.runs[key]]]

    def _run(
        self,
        experiment: Experiment,
        wanted: Mapping[str, tuple[ClusterConfig, str]],
        places: Sequence[tuple[str, int]],
        is_written: bool,
    ) -> None:
        """Make the missing runs of `places` (key, seed index); `is_written`: write each call's to the journal."""
        for key, runs in self.made(experiment, wanted, places):
            if self.journal is not None and is_written:
                self.journal.append([key, list(runs), [run.document() for run in runs.values()]])

    def made(
        self,
        experiment: Experiment,
        wanted: Mapping[str, tuple[ClusterConfig, str]],
        places: Sequence[tuple[str, int]],
    ) -> Iterator[tuple[str, dict[int, RunSummary]]]:
        """Make the runs that are missing; yield for each call the runs of each configuration, by seed index."""
        keys = list(dict.fromkeys(key for key, _ in places))
        at_of = {key: at for at, key in enumerate(keys)}
        missing = [
            (at_of[key], place)
            for key, place in places
            if place not in self.begun.setdefault(key, {})
        ]
        left, num_before = Counter(at for at, _ in missing), len(self.runs)
        configs = [wanted[key][0] for key in keys]
        for finished in experiment.each(configs, self.recorder, missing):
            by_config: dict[int, dict[int, RunSummary]] = {}
            for (at, place), run in finished:
                by_config.setdefault(at, {})[place] = run
            for at, runs in by_config.items():
                self.begun[keys[at]].update(runs)
                left[at] -= len(runs)
                yield keys[at], runs
                if self.work is not None:
                    num_done = num_before + len(configs) - sum(count > 0 for count in left.values())
                    self.work.show(min(num_done, self.work.total or 0), wanted[keys[at]][1])


def _places(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(key, place) for key, count in counts.items() for place in range(count)]


MEASURES = ("ms", "s", "1/s")  # units in which chance does not give the same value twice
LEAST_WITHOUT_SPREAD = 3  # seeds


def pair_of(first: Sequence[RunSummary], second: Sequence[RunSummary], name: str) -> Pair:
    """Return a metric of two arms by seed; pooled metrics are pooled over the seeds on which both arms finished."""
    direction = lookup(name)[0].direction
    if pooled_latency(name) is None:
        pair = Pair(metric_values(first, name), metric_values(second, name), direction)
    else:
        pair = pooled_pair(pooled_tails(first, name), pooled_tails(second, name), direction)
    are_same = _are_alike(first) and _are_alike(second)
    return replace(pair, is_exact=are_same or _is_measure_without_spread(name, pair))


def pooled_pair(first: Tails, second: Tails, direction: str) -> Pair:
    """Return a pooled percentile of two arms by seed, ms, pooled over the seeds on which both arms finished."""
    is_common = whole(first) & whole(second)
    before, after = (contributions_ms(only(arm, is_common)) for arm in (first, second))
    return Pair(before, after, direction, excess_counts(first, second))


def _are_alike(runs: Sequence[RunSummary]) -> bool:
    """Return whether several seeds gave the same run because nothing is drawn."""
    lives = {run.fingerprint for run in runs}
    return len(runs) > 1 and len(lives) == 1 and "" not in lives and runs[0].is_whole


def _is_measure_without_spread(name: str, pair: Pair) -> bool:
    """Return whether a time or a rate is constant over the seeds of each arm; counts and shares may be so by chance."""
    values = pair.common()
    is_measure = lookup(name)[0].unit in MEASURES
    return is_measure and len(values[0]) >= LEAST_WITHOUT_SPREAD and all(map(is_constant, values))


def pooled_tails(runs: Sequence[RunSummary], name: str) -> Tails:
    """Return the kept latencies of each run for the pooled percentile called `name`."""
    latency, slo_class = pooled_latency(name), lookup(name)[1] or ALL
    return tails_of_runs([run.tails.get(latency or "", {}).get(slo_class) for run in runs])


def num_values(runs: Sequence[RunSummary], name: str) -> int:
    """Return the number of seeds for which `metric_values` has a value, without computing a pooled metric's values."""
    if pooled_latency(name) is None:
        return int(np.isfinite(metric_values(runs, name)).sum())
    tails = pooled_tails(runs, name)
    return int(whole(tails).sum()) if tails.count[whole(tails)].any() else 0


def metric_values(runs: Sequence[RunSummary], name: str) -> np.ndarray:
    """Return a metric by seed, for a pooled metric each seed's contribution to it; NaN where a run has none."""
    if pooled_latency(name) is not None:
        return contributions_ms(pooled_tails(runs, name))
    return np.array([run.value(name) for run in runs], np.float64)


# --- failures --------------------------------------------------------------------------------------

NO_FIGURE = "NO_FIGURE"  # beside the outcomes: a metric that is asked for has no value


@dataclass(frozen=True)
class Failure:
    """A configuration's failure: `code` is the outcome of the first failed seed; `by_code` has all outcomes."""

    code: str
    message: str
    seeds: tuple[int, ...]
    by_code: Mapping[str, tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return the failure as plain data."""
        by_code = {code: list(seeds) for code, seeds in self.by_code.items()}
        return {**vars(self), "seeds": list(self.seeds), "by_code": by_code}


def failure_of(seeds: Sequence[int], runs: Sequence[RunSummary]) -> Failure | None:
    """Return the failure of a configuration's runs; None if all finished."""
    by_code: dict[str, tuple[int, ...]] = {}
    for seed, run in zip(seeds, runs, strict=True):
        if not run.is_whole:
            by_code[run.outcome.name] = (*by_code.get(run.outcome.name, ()), seed)
    if not by_code:
        return None
    parts = [f"on {_seeds(which)} {_sentence(code)}" for code, which in by_code.items()]
    failed = tuple(seed for seed in seeds if any(seed in which for which in by_code.values()))
    return Failure(next(iter(by_code)), "; ".join(parts), failed, by_code)


def no_figure(seeds: Sequence[int], names: Sequence[str]) -> Failure:
    """Return the failure of runs that finished without a value of some metric."""
    message = (
        f"on {_seeds(seeds)} {', '.join(names)} cannot be computed, since no request of the class came "
        "far enough; ask for another metric, or admit more requests"
    )
    return Failure(NO_FIGURE, message, tuple(seeds), {NO_FIGURE: tuple(seeds)})


def _sentence(code: str) -> str:
    return f"{Outcome[code].sentence} ({code}): {Outcome[code].advice}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def versions() -> dict[str, str]:
    """Return the versions of the programs that computed the metrics."""
    return {
        "blis_jax": __version__,
        "profile": PROFILE,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
