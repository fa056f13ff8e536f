"""Makes the runs of a dataset, part by part."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.sweep.data import slo_targets
from blis_jax.policies.seeds import policy_seed
from blis_jax.runs.driver import Runner
from blis_jax.runs.simulation import Row
from blis_jax.workload.source import until_horizon
from surrogate.data import BASELINE
from surrogate.levels.covariates import COVARIATES, covariates
from sweeps.dataset.axes import BY_NAME, config_at, workload_at
from sweeps.dataset.plan import DatasetPlan
from sweeps.dataset.store import DatasetStore
from sweeps.runs.bench import placed, table_of
from sweeps.runs.part_runs import MOST_BLOCKS, DrawnTables, part_runner
from sweeps.runs.seed_results import seed_results

if TYPE_CHECKING:
    from blis_jax.workload.table import RequestTable
    from sweeps.search.objectives import SeedResult

MOST_REQUESTS_KEPT = 2_000_000  # of the tables that are drawn ahead


class DatasetRunner:
    """Runs points on their seeds; programs are compiled once a mechanism and number of instances."""

    def __init__(self, plan: DatasetPlan, spec: Any, stream: str, names: Any, measure: Any) -> None:
        self.plan, self.spec, self.stream, self.names = plan, spec, stream, names
        self.summary = seed_results(names, measure, slo_targets(measure))
        self.tables = DrawnTables(MOST_REQUESTS_KEPT)
        self.runners: dict[int, Runner] = {}

    def run(self, points: range) -> list[dict[int, SeedResult]]:
        """The runs of each point by place of the seed."""
        found: list[dict[int, SeedResult]] = [{} for _ in points]
        by_instances: dict[int, list[tuple[int, int, Row]]] = {}
        for place, point in enumerate(points):
            for seed, row in self._rows(point):
                rows = by_instances.setdefault(row.config.num_instances, [])
                rows.append((place, seed, row))
        for instances, entries in by_instances.items():
            results = self._runner_for(instances).run([row for *_, row in entries], self.summary)
            for (place, seed, _), result in zip(entries, results, strict=True):
                found[place][seed] = result
        return found

    def _rows(self, point: int) -> list[tuple[int, Row]]:
        requests: tuple[tuple[str, float], ...] = ()
        if self.plan.roles[point] == BASELINE:
            assert self.plan.baseline is not None
            config, spec = self.plan.baseline.config, self.spec
        else:
            parameters, descriptors = self.plan.values(point)
            spec = workload_at(self.spec, descriptors)
            config = config_at(self.plan.space.config_with(parameters), descriptors)
            requests = tuple(item for item in descriptors.items() if BY_NAME[item[0]].is_workload)
        config = until_horizon(config, spec)
        return [
            (int(place), Row(config, self._table(spec, requests, seed, config), policy_seed(seed)))
            for place, seed in self._seeds_of(point)
        ]

    def _seeds_of(self, point: int) -> list[tuple[int, int]]:
        """The planned places of a point and their seeds."""
        planned = np.flatnonzero(self.plan.is_planned[point]).tolist()
        every = self.plan.sizes.all_seeds
        return [(place, every[self.plan.places[point, place]]) for place in planned]

    def covariates(self, points: range) -> np.ndarray:
        """What the requests of the baseline's runs are like, `[point, place, covariate]`; else NaN."""
        found = np.full((len(points), *self.plan.places.shape[1:], len(COVARIATES)), np.nan)
        for row, point in enumerate(points):
            if self.plan.roles[point] == BASELINE:
                for place, run in self._rows(point):
                    found[row, place] = covariates(run.table, self.spec.aggregate_rate)
        return found

    def _table(self, spec: Any, requests: Any, seed: int, config: Any) -> RequestTable:
        block_size = config.block_size_in_tokens
        table = self.tables.table(
            (requests, seed, block_size), lambda: table_of(spec, seed, block_size, self.stream)
        )
        return placed(table, spec, seed, config)

    def _runner_for(self, instances: int) -> Runner:
        if instances not in self.runners:
            pools = [axis.low for axis in self.plan.axes if axis.kind.name == "kv_blocks"]
            self.runners[instances] = part_runner(int(min(*pools, MOST_BLOCKS)) if pools else None)
        return self.runners[instances]


def fill(
    plan: DatasetPlan, about: tuple[Any, ...], store: DatasetStore, done: np.ndarray, is_told: bool
) -> int:
    """Runs the parts that are not `done`; `about` are workload, stream, metrics and measure."""
    runner = DatasetRunner(plan, *about)
    num_planned = int(plan.is_planned.sum())
    num_done = int(plan.is_planned[done].sum())
    started, num_before = time.monotonic(), num_done
    work = progress.begin("simulating", num_planned, done=num_done)
    try:
        for first in range(0, len(plan.codes), plan.points_per_part):
            last = min(first + plan.points_per_part, len(plan.codes))
            if done[first:last].all():
                continue
            points = range(first, last)
            store.fill(first, runner.run(points), runner.covariates(points))
            num_done += int(plan.is_planned[first:last][~done[first:last]].sum())
            work.show(num_done)
    except KeyboardInterrupt:
        cli.say("sweeps.dataset", f"{store.path} has what was done; --resume goes on from there")
        raise
    finally:
        work.clear()
    if is_told:
        seconds = time.monotonic() - started
        print(f"{num_planned - num_before} runs in {seconds:.0f} s. Written: {store.path}")
    return 0
