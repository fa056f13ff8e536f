"""Runs of a task's cluster under the baseline and under programs, each made once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from blis_jax import progress
from blis_jax.errors import ConfigError
from blis_jax.policies.contract import Policies
from blis_jax.policies.reading import NotAsDataError
from blis_jax.runs.alternatives import router_as_table
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form
from sweeps.evolve.score import RunPair
from sweeps.runs.measured import Recorder, failure_of
from sweeps.strategies.arms import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.metrics.run_summary import RunSummary
    from sweeps.evolve.programs import EvolvedRouter
    from sweeps.evolve.task import Task
    from sweeps.runs.experiment import Experiment


class TaskRuns:
    """Run routers on a task's workloads.

    Requests are drawn once. Routers that fit are tables of operations and share one compiled engine; others are
    compiled, each once for all workloads and seeds. Each run of a router is made once.
    """

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        """`seeds` are all on which anything will run.

        Raises:
            ConfigError: there are no such seeds.
        """
        self.task = task
        first, *others = task.experiments(tuple(dict.fromkeys(seeds)))
        self.runner = Runner(Options(form=default_form()), len(first.seeds))
        self.experiments = [replace(one, shared=self.runner) for one in (first, *others)]
        # by configuration, workload and seed
        self.runs: dict[tuple[str, int, int], RunSummary] = {}
        self.tables: dict[
            str, Policies | str
        ] = {}  # by configuration; a text says why it is compiled

    def pairs(
        self, baseline: EvolvedRouter, program: EvolvedRouter, seeds: Sequence[int]
    ) -> list[RunPair]:
        """Return the runs of both on every workload.

        Raises:
            ConfigError: a run did not come to its end.
        """
        ours, theirs = (self.of(one, seeds) for one in (program, baseline))
        return [
            RunPair(requests, before, after)
            for requests, before, after in zip(self.task.requests, theirs, ours, strict=True)
        ]

    def as_table(self, program: EvolvedRouter) -> Policies | str:
        """Return a router as a table of operations, or why it is compiled.

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
        """Return why a router is compiled, unless the task says that all are."""
        table = self.as_table(program)
        is_asked = self.task.file.compile_programs
        return (f"compiled: {table}",) if isinstance(table, str) and not is_asked else ()

    def of(self, program: EvolvedRouter, seeds: Sequence[int]) -> list[tuple[RunSummary, ...]]:
        """Return the runs of a router by workload; those of `pairs` are made of them."""
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
        """Return the runs of a configuration with what is handed in with it, which have a key together."""
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
