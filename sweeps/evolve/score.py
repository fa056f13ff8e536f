"""The worth of a program: its runs, its gain over the baseline in %, its changes by class, and its artifacts."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import HIGHER
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.policies import registry
from blis_jax.policies.contract import Policies
from blis_jax.policies.reading import NotAsDataError, computed_by
from blis_jax.reports.words import number
from blis_jax.runs.alternatives import router_as_table
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, Inference, interval_of
from blis_jax.statistics.paired import Difference
from sweeps.claims.judge import ByInterval, ByMean, ClaimVerdict, judge
from sweeps.compare.judge import BySeeds
from sweeps.evolve.programs import EvolvedRouter, read_program, router_of
from sweeps.evolve.task import load_task
from sweeps.runs.measured import Recorder, failure_of, metric_values
from sweeps.strategies.arms import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.metrics.run_summary import RunSummary
    from sweeps.evolve.programs import EvolvedRouter
    from sweeps.evolve.task import Guard, Task
    from sweeps.runs.experiment import Experiment
    from sweeps.runs.requests import StudyRequests

Runs = Sequence[RunSummary]  # of one configuration on one workload, one a seed
MOST_DRAWS = 5000  # of sets of seeds as large as the search's


@dataclass(frozen=True)
class RunPair:
    """The runs of the baseline and of a program on one workload, on the same seeds."""

    requests: StudyRequests
    baseline: Runs
    program: Runs

    def take(self, places: Sequence[int]) -> RunPair:
        """Return the pair with only the runs at these indexes."""
        of = ([runs[place] for place in places] for runs in (self.baseline, self.program))
        return RunPair(self.requests, *of)


def weighted(runs: Runs, weights: Mapping[str, float]) -> np.ndarray:
    """Return the weighted sum of the score's metrics for each seed; NaN where a run has no value of a metric."""
    return np.sum([weight * metric_values(runs, name) for name, weight in weights.items()], axis=0)


def gain(pairs: Sequence[RunPair], weights: Mapping[str, float], inference: Inference) -> Estimate:
    """Return the gain over the baseline in %: of the means over seeds, then averaged over the workloads."""
    samples = [weighted(runs, weights) for pair in pairs for runs in (pair.baseline, pair.program)]
    sign = 1.0 if lookup(next(iter(weights)))[0].direction == HIGHER else -1.0
    return interval_of(functools.partial(mean_gain, sign=sign), samples, inference)


def mean_gain(*values: np.ndarray, axis: int = -1, sign: float = -1.0) -> np.ndarray:
    """Return the mean gain in % over workloads; `values` alternate baseline, program; `sign`: 1 if higher is better."""
    means = [np.mean(of_runs, axis=axis) for of_runs in values]
    parts = [1 - after / before for before, after in zip(means[::2], means[1::2], strict=True)]
    return np.asarray(-sign * 100 * np.mean(parts, axis=0))


def reached(
    pairs: Sequence[RunPair], weights: Mapping[str, float], size: int, value: float
) -> tuple[int, int]:
    """Return how many subsets of `size` seeds have a gain of `value` or more, and the number of such subsets.

    Both numbers are 0 where there are too many subsets to try, or fewer seeds than `size`.
    """
    count = len(pairs[0].baseline)
    if size > count or math.comb(count, size) > MOST_DRAWS:
        return 0, 0
    alone = Inference(num_resamples=0)
    gains = [
        gain([pair.take(places) for pair in pairs], weights, alone).mean
        for places in itertools.combinations(range(count), size)
    ]
    return sum(each_gain >= value for each_gain in gains), len(gains)


@dataclass(frozen=True)
class ClassChange:
    """The change of one metric of one workload from the baseline to a program."""

    workload: str
    metric: str
    difference: Difference

    @property
    def slo_class(self) -> str:
        """Return the metric's class; `all` for a metric of all requests."""
        return lookup(self.metric)[1] or "all"

    @property
    def name(self) -> str:
        """Return the metric's name without its class."""
        return lookup(self.metric)[0].name


def changes(
    pairs: Sequence[RunPair], names: Mapping[str, Sequence[str]], inference: Inference
) -> list[ClassChange]:
    """Return the program's changes against the baseline with joint intervals; `names`: metrics by workload."""
    entries = [
        (pair, name)
        for pair in pairs
        for name in names[pair.requests.name]
        if np.isfinite(metric_values(pair.baseline, name)).any()
    ]
    compared = [(pair.baseline, pair.program, name) for pair, name in entries]
    differences = BySeeds(inference).differences(compared)
    return [
        ClassChange(pair.requests.name, name, difference)
        for (pair, name), difference in zip(entries, differences, strict=True)
    ]


@dataclass(frozen=True)
class GuardVerdict:
    """The verdict on a guard on one workload."""

    guard: Guard
    workload: str
    verdict: ClaimVerdict
    past: float  # how far its mean is past it; 0 where it keeps it

    @property
    def is_broken(self) -> bool:
        """Return whether the program's mean breaks the guard's bound."""
        return self.past > 0


def guarded(task: Task, pairs: Sequence[RunPair], by_mean: bool = False) -> Iterator[GuardVerdict]:
    """Yield the verdict on every guard of every workload; with `by_mean`, judged by the mean without an interval."""
    rule = ByMean() if by_mean else ByInterval()
    for pair in pairs:
        for guard in task.guards(pair.requests):
            claim = guard.claim
            ours, theirs = (
                {claim.metric: metric_values(runs, claim.metric)}
                for runs in (pair.program, pair.baseline)
            )
            verdict = judge(claim, rule, ours, theirs)
            mean = verdict.reading.mean.mean if verdict.reading is not None else math.nan
            past = max(claim.excess(mean), 0.0) if math.isfinite(mean) else 0.0
            yield GuardVerdict(guard, pair.requests.name, verdict, past)


FIRST = "first"  # the stage on few seeds
Evaluated = dict[str, Any]


class TaskEvaluator:
    """Evaluate programs of a task; keep requests and runs; run programs that compute the same function once."""

    def __init__(self, path: Path, folder: Path) -> None:
        """Load the task and run its baseline; programs are written below `folder`.

        Raises:
            ConfigError: the task is at fault.
        """
        self.task, self.folder = load_task(path), folder
        self.baseline = router_of(self.task.file.baseline, self.task, folder)
        self.runs = TaskRuns(self.task, self.task.file.seeds)
        self.runs.of(self.baseline, self.task.file.seeds)
        self.seen: dict[Hashable, EvolvedRouter] = {}  # by what they compute

    @property
    def limit_s(self) -> float:
        """Return the longest time that a program may take, s."""
        return self.task.file.limit_s

    @property
    def num_compiled(self) -> int:
        """Return the number of routers that had to be compiled."""
        return sum(isinstance(table, str) for table in self.runs.tables.values())

    @property
    def late(self) -> Evaluated:
        """Return the answer for a program that exceeds the time limit."""
        return self._failure(
            f"the program took longer than {self.limit_s:g} s; leave out loops without a bound"
        )

    def answer(self, text: str, suffix: str, stage: str) -> Evaluated:
        """Return a program's metrics and artifacts; if it fails, the failure score and the error with its line.

        Raises:
            ImportError: a package that reads the program is missing.
        """
        program: EvolvedRouter | None = None
        try:
            program = self._read(text, suffix)
            seeds = self.task.file.seeds
            if stage == FIRST and self.task.file.stage1 is not None:
                seeds = self.task.file.stage1.seeds
            pairs = self.runs.pairs(self.baseline, self._alike(program), seeds)
            return self._worth(program, pairs)
        except ImportError:
            raise
        except Exception as error:
            if program is not None:
                return self._failure(program.told(error))
            return self._failure(str(error) if isinstance(error, ConfigError) else repr(error))

    def _read(self, text: str, suffix: str) -> EvolvedRouter:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"program{'.py' if suffix == '.py' else '.go'}"
        path.write_text(text, encoding="utf-8")
        return read_program(str(path), self.folder)

    def _alike(self, program: EvolvedRouter) -> EvolvedRouter:
        """Return the first program seen that computes the same function, so that this program need not run."""
        table = self.runs.as_table(program)
        if not isinstance(table, str):
            return self.seen.setdefault(table.routing, program)
        config = program.config(self.task)
        policy = registry.find("routing", program.router)
        computed = computed_by(policy, config.num_instances, len(config.scorers()))
        if computed is None:
            return program
        return self.seen.setdefault(hashlib.sha256(computed.encode()).hexdigest(), program)

    def _worth(self, program: EvolvedRouter, pairs: Sequence[RunPair]) -> Evaluated:
        weights = self.task.metrics
        whole = gain(pairs, weights, BY_STUDENT)
        guards = list(guarded(self.task, pairs, by_mean=True))
        penalty = sum(judged.guard.weight * judged.past for judged in guards)
        score = whole.mean - penalty
        if not math.isfinite(score):
            return self._failure(
                "a metric of the score has no value: no request of its class came to an end"
            )
        metrics = {
            "combined_score": score, "gain_percent": whole.mean, "num_seeds": float(len(pairs[0].program)),
            "guards_broken": float(sum(judged.is_broken for judged in guards)), "failed": 0.0,
        }  # fmt: skip
        if math.isfinite(whole.high):
            metrics["half_width_percent"] = (whole.high - whole.low) / 2
        if len(pairs) > 1:
            metrics |= {
                f"gain_percent_{pair.requests.name}": gain([pair], weights, BY_STUDENT).mean
                for pair in pairs
            }
        artifacts = {"by_class": self._by_class(pairs)}
        broken = [
            f"{judged.guard.metric} on {judged.workload} is past its bound by {number(judged.past)}: "
            f"{number(judged.guard.weight * judged.past)} off the score" for judged in guards if judged.is_broken
        ]  # fmt: skip
        artifacts |= {"guards": "\n".join(broken)} if broken else {}
        notes = [*program.notes, *self.runs.notes(program)]
        artifacts |= {"notes": "\n".join(notes)} if notes else {}
        return {"metrics": metrics, "artifacts": artifacts}

    def _by_class(self, pairs: Sequence[RunPair]) -> str:
        """Return the changes against the baseline as text, one line for each workload, class and metric."""
        names = {pair.requests.name: self.task.names(pair.requests) for pair in pairs}
        return "\n".join(
            f"{change.workload}, {change.slo_class}, {change.name}: {number(change.difference.first_mean)} -> "
            f"{number(change.difference.second_mean)} ({number(change.difference.percent.mean, signed=True)} %)"
            for change in changes(pairs, names, BY_STUDENT)
        )

    def _failure(self, error: str) -> Evaluated:
        metrics = {"combined_score": self.task.file.failure_score, "failed": 1.0}
        return {"metrics": metrics, "artifacts": {"error": error}}


class TaskRuns:
    """Run routers on a task's workloads.

    Requests are drawn once. Routers that can be written as tables of operations share one compiled engine; others are
    compiled, each once for all workloads and seeds. Runs are kept and never repeated.
    """

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        """Prepare one experiment for each workload; `seeds` are all seeds on which any router will run.

        Raises:
            ConfigError: the workloads do not have these seeds or windows.
        """
        self.task = task
        first, *others = task.experiments(tuple(dict.fromkeys(seeds)))
        self.runner = Runner(Options(form=default_form()), len(first.seeds))
        self.experiments = [
            replace(experiment, shared=self.runner) for experiment in (first, *others)
        ]
        # by configuration, workload and seed
        self.runs: dict[tuple[str, int, int], RunSummary] = {}
        self.tables: dict[
            str, Policies | str
        ] = {}  # by configuration; a text says why it is compiled

    def pairs(
        self, baseline: EvolvedRouter, program: EvolvedRouter, seeds: Sequence[int]
    ) -> list[RunPair]:
        """Return, for every workload, the runs of the baseline and of the program.

        Raises:
            ConfigError: a run did not finish.
        """
        ours, theirs = (self.of(router, seeds) for router in (program, baseline))
        return [
            RunPair(requests, before, after)
            for requests, before, after in zip(self.task.requests, theirs, ours, strict=True)
        ]

    def as_table(self, program: EvolvedRouter) -> Policies | str:
        """Return a router as a table of operations, or as text the reason why it must be compiled.

        Raises:
            ConfigError: the policy is at fault.
        """
        config = program.config(self.task)
        key = key_of(config)
        if key not in self.tables:
            try:
                if self.task.file.compile_programs:
                    raise NotAsDataError("the task says compile_programs")
                self.tables[key] = router_as_table(config, self.runner.options)
            except NotAsDataError as error:
                self.tables[key] = str(error)
        return self.tables[key]

    def notes(self, program: EvolvedRouter) -> tuple[str, ...]:
        """Return the reason why a router is compiled, unless the task asks to compile all routers."""
        table = self.as_table(program)
        is_asked = self.task.file.compile_programs
        return (f"compiled: {table}",) if isinstance(table, str) and not is_asked else ()

    def of(self, program: EvolvedRouter, seeds: Sequence[int]) -> list[tuple[RunSummary, ...]]:
        """Return the runs of a router by workload, one run for each seed."""
        table, config = self.as_table(program), program.config(self.task)
        if isinstance(table, str):
            return self.of_key(key_of(config), program.name, seeds, config)
        return self.of_key(key_of(config), program.name, seeds, self.task.base, table)

    def of_key(
        self,
        key: str,
        name: str,
        seeds: Sequence[int],
        config: ClusterConfig,
        table: Policies | None = None,
    ) -> list[tuple[RunSummary, ...]]:
        """Return the runs of a configuration by workload; `key` names the configuration together with its `table`."""
        missing = [seed for seed in seeds if (key, 0, seed) not in self.runs]
        if missing:
            for experiment in self.experiments:
                experiment.handed_in.clear()
                if table is not None:
                    experiment.handed_in[config] = table
            for experiment in self.experiments:  # all sizes are known before anything compiles
                if not experiment.requests.source.waits:
                    self.runner.expect(experiment.rows(config))
            self.runner.share_sizes()
            with progress.phase("simulating", len(self.experiments), "workloads") as work:
                for place, experiment in enumerate(self.experiments):
                    work.show(place, f"{name} on {experiment.requests.name}")
                    made = _made(experiment, name, config, missing)
                    self.runs |= {(key, place, seed): run for seed, run in made.items()}
        return [
            tuple(self.runs[key, place, seed] for seed in seeds)
            for place in range(len(self.experiments))
        ]


def _made(
    experiment: Experiment, name: str, config: ClusterConfig, seeds: Sequence[int]
) -> dict[int, RunSummary]:
    recorder = Recorder(experiment.names, experiment.measure, experiment.requests.classes)
    places = [experiment.seeds.index(seed) for seed in seeds]
    (runs,) = experiment.summaries([config], recorder, places)
    failure = failure_of(seeds, runs)
    if failure is not None:
        raise ConfigError(f"{name} on {experiment.requests.name}: {failure.message}")
    return dict(zip(seeds, runs, strict=True))
