"""Makes the runs of a dataset, part by part."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import cli
from blis_jax.options import default_form, num_workers
from blis_jax.policies.seeds import policy_seed
from blis_jax.runner import Runner
from blis_jax.simulation import Options, Row
from blis_jax.sweep_data import slo_targets
from sweeps.bench import table_of, until_horizon
from sweeps.dataset_axes import BY_NAME, config_at, workload_at
from sweeps.dataset_plan import DatasetPlan
from sweeps.dataset_store import DatasetStore
from sweeps.robustness_run import MOST_BLOCKS, MOST_EVICTIONS, ROWS_PER_CALL, RUNS_PER_PART
from sweeps.seed_results import seed_results

if TYPE_CHECKING:
    from blis_jax.workload.table import RequestTable
    from sweeps.objectives import SeedResult

MOST_REQUESTS_KEPT = 2_000_000  # of the tables that are drawn ahead


class DatasetRunner:
    """Runs points on their seeds; programs are compiled once a mechanism and number of instances."""

    def __init__(self, plan: DatasetPlan, spec: Any, stream: str, names: Any, measure: Any) -> None:
        self.plan, self.spec, self.stream, self.names = plan, spec, stream, names
        self.summary = seed_results(names, measure, slo_targets(measure))
        self.tables: OrderedDict[Any, RequestTable] = OrderedDict()
        self.runners: dict[int, Runner] = {}
        self.num_requests = 0

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
        parameters, descriptors = self.plan.values(point)
        spec = workload_at(self.spec, descriptors)
        config = config_at(self.plan.space.config_with(parameters), descriptors)
        config = until_horizon(config, spec)
        requests = tuple(item for item in descriptors.items() if BY_NAME[item[0]].is_workload)
        rows = []
        for place in np.flatnonzero(self.plan.is_planned[point]):
            table = self._table(spec, requests, int(place), config)
            seed = policy_seed(self.plan.sizes.all_seeds[place])
            rows.append((int(place), Row(config, table, seed)))
        return rows

    def _table(self, spec: Any, requests: Any, place: int, config: Any) -> RequestTable:
        key = (requests, place, config.block_size_in_tokens)
        if key not in self.tables:
            seed = self.plan.sizes.all_seeds[place]
            self.tables[key] = table_of(spec, seed, config.block_size_in_tokens, self.stream)
            self.num_requests += self.tables[key].num_rows
        self.tables.move_to_end(key)
        while self.num_requests > MOST_REQUESTS_KEPT and len(self.tables) > 1:
            self.num_requests -= self.tables.popitem(last=False)[1].num_rows
        return self.tables[key]

    def _runner_for(self, instances: int) -> Runner:
        if instances not in self.runners:
            pools = [axis.low for axis in self.plan.axes if axis.kind.name == "kv_blocks"]
            num_blocks = int(min(*pools, MOST_BLOCKS)) if pools else 0
            options = Options(form=default_form())
            if num_blocks:
                options = Options(
                    form=default_form(), num_blocks=num_blocks, num_evictions=MOST_EVICTIONS
                )
            is_one_call = options.form == "lanes"
            num_rows = RUNS_PER_PART if is_one_call else ROWS_PER_CALL * num_workers()
            self.runners[instances] = Runner(options, num_rows)
        return self.runners[instances]


def fill(
    plan: DatasetPlan, about: tuple[Any, ...], store: DatasetStore, done: np.ndarray, is_told: bool
) -> int:
    """Runs the parts that are not `done`; `about` are workload, stream, metrics and measure."""
    runner = DatasetRunner(plan, *about)
    num_planned = int(plan.is_planned.sum())
    num_done = int(plan.is_planned[done].sum())
    progress, started, num_before = cli.Progress(num_planned), time.monotonic(), num_done
    try:
        for first in range(0, len(plan.codes), plan.points_per_part):
            last = min(first + plan.points_per_part, len(plan.codes))
            if done[first:last].all():
                continue
            store.fill(first, runner.run(range(first, last)))
            num_done += int(plan.is_planned[first:last][~done[first:last]].sum())
            if is_told:
                left_s = (time.monotonic() - started) / (num_done - num_before)
                progress.show(
                    num_done, f"runs, about {left_s * (num_planned - num_done):.0f} s left"
                )
    except KeyboardInterrupt:
        cli.say("sweeps.dataset", f"{store.path} has what was done; --resume goes on from there")
        raise
    finally:
        progress.clear()
    if is_told:
        seconds = time.monotonic() - started
        print(f"{num_planned - num_before} runs in {seconds:.0f} s. Written: {store.path}")
    return 0
