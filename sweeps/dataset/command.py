"""Make the dataset that options of `blis-jax dataset` describe: its points, its runs, and its attributes."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from blis_jax import progress
from blis_jax.cluster.setting_values import all_values
from blis_jax.commands import cli
from blis_jax.commands.options.outputs import outputs_of
from blis_jax.commands.options.seed_options import FIRST_SEED
from blis_jax.commands.store import Store, unmade_parts
from blis_jax.errors import ConfigError, reads_store
from blis_jax.files.atomic_write import fingerprint, sole_writer, versions
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.words import cluster_line
from blis_jax.results.schema import NOT_RUN, Provenance, new_dataset, outcome_attributes
from blis_jax.runs.driver import Runner
from surrogate.columns import to_json
from surrogate.data import BASELINE, KIND, NOT_PLANNED, OWN_KIND
from surrogate.levels.model import COVARIATES, covariates
from sweeps.dataset.axes import (
    BY_NAME,
    check_axes,
    config_at,
    read_axes,
    workload_at,
)
from sweeps.dataset.plan import DatasetPlan, DatasetSizes, make_plan
from sweeps.runs.drawn import MOST_BLOCKS, DrawnRows, part_runner
from sweeps.runs.experiment import Experiment, metrics_for, targets_of
from sweeps.runs.options import FOLDER
from sweeps.runs.requests import StudyRequests, check_seeds, workload_for
from sweeps.strategies.arms import Arm, arm_of
from sweeps.strategies.space import Dimension, space_of

if TYPE_CHECKING:
    from blis_jax.runs.runs import Row
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.dataset.__main__ import DatasetOptions
    from sweeps.strategies.file import Strategy


# --- the store ------------------------------------------------------------------------------------


MOST_REQUESTS_KEPT = 2_000_000  # of the tables that are drawn ahead
ADVICE = "give --overwrite or another --output"


def empty_dataset(plan: DatasetPlan, names: Sequence[str], about: Mapping[str, str]) -> xr.Dataset:
    """Return the dataset as it is before any run; `about` has further attributes."""
    seeds = np.array(plan.sizes.all_seeds)
    shape = plan.is_planned.shape
    coords = {
        "parameter": [column.name for column in plan.columns],
        "metric": list(names),
        "covariate": list(COVARIATES),
    }
    provenance = Provenance(config=all_values(plan.space.base), seeds=plan.sizes.all_seeds)
    further = {"parameters": to_json(plan.columns), **about}
    kind = OWN_KIND if plan.sizes.own_seeds else KIND
    dataset = new_dataset(kind, provenance, coords, further)
    dataset.coords["unit"] = ("metric", [lookup(name)[0].unit for name in names])
    if not plan.sizes.own_seeds:
        dataset.coords["seed"] = seeds
        dataset.coords["is_other_seed"] = ("seed", np.arange(len(seeds)) >= plan.sizes.seeds)
    dataset.coords["role"] = ("point", plan.roles.tolist())
    dataset["inputs"] = (("point", "parameter"), plan.codes)
    chunk = (min(plan.points_per_part, shape[0]), shape[1])
    dims = ("point", "seed")
    dataset["run_seed"] = (dims, seeds[plan.places])
    dataset["covariates"] = (
        (*dims, "covariate"), np.full((*shape, len(COVARIATES)), np.nan, np.float32)
    )  # fmt: skip
    dataset["covariates"].encoding = {"chunks": (*chunk, len(COVARIATES))}
    dataset["value"] = ((*dims, "metric"), np.full((*shape, len(names)), np.nan, np.float32))
    dataset["value"].encoding = {"chunks": (*chunk, len(names))}
    codes = np.where(plan.is_planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
    attributes = outcome_attributes(not_planned=NOT_PLANNED, not_run=NOT_RUN)
    dataset["outcome"] = (dims, codes, attributes)
    dataset["outcome"].encoding = {"chunks": chunk}
    return dataset


class DatasetStore(Store):
    """The store of one dataset; its attribute `content` holds all that its numbers depend on."""

    wanted, advice = "the .zarr that blis-jax dataset writes", ADVICE

    def __init__(self, path: Path, plan: DatasetPlan, names: Sequence[str]) -> None:
        super().__init__(path, "sweeps.dataset")
        self.kind = OWN_KIND if plan.sizes.own_seeds else KIND  # type: ignore[misc]
        self.plan, self.names = plan, tuple(names)

    @reads_store(ADVICE)
    def open(self, about: Mapping[str, str], is_resumed: bool) -> np.ndarray:
        """Create the store, or open the store of the same dataset to resume it; return which points are done."""
        dataset = self.begin(empty_dataset(self.plan, self.names, about), is_resumed)
        return np.asarray((dataset["outcome"].values != NOT_RUN).all(axis=1))

    def fill(
        self, first: int, runs: Sequence[Mapping[int, RunSummary]], covariates: np.ndarray
    ) -> None:
        """Write the runs of points, from point `first` on, by place of the seed."""
        planned = self.plan.is_planned[first : first + len(runs)]
        outcome = np.where(planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
        value = np.full((*planned.shape, len(self.names)), np.nan, np.float32)
        for row, by_seed in enumerate(runs):
            for seed, run in by_seed.items():
                outcome[row, seed] = run.outcome
                if run.is_whole:
                    value[row, seed] = [run.metrics[name] for name in self.names]
        self.write(first, {"value": value, "covariates": covariates, "outcome": outcome})

    def content(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return by name all that the dataset's numbers depend on, with a hash."""
        content: Mapping[str, Any] = json.loads(attributes["content"])
        return {**content, "identity": attributes["identity"]}


# --- runs ------------------------------------------------------------------------------------------


class DatasetRunner:
    """Run points on their seeds; each mechanism and number of instances is compiled once."""

    def __init__(self, plan: DatasetPlan, spec: WorkloadSpec, experiment: Experiment) -> None:
        """Take the plan; `spec` is the experiment's workload before points change it."""
        self.plan, self.spec, measure = plan, spec, experiment.measure
        self.summary = RunFigures(experiment.names, measure.slo_targets(), measure)
        self.drawn = DrawnRows(experiment.requests.stream, MOST_REQUESTS_KEPT)
        self.runners: dict[int, Runner] = {}

    def run(self, points: range) -> list[dict[int, RunSummary]]:
        """Run the points; return the runs of each point by place of the seed."""
        runs: list[dict[int, RunSummary]] = [{} for _ in points]
        by_instances: dict[int, list[tuple[int, int, Row]]] = {}
        for place, point in enumerate(points):
            for seed, row in self._rows(point):
                rows = by_instances.setdefault(row.config.num_instances, [])
                rows.append((place, seed, row))
        for instances, entries in by_instances.items():
            results = self._runner_for(instances).run([row for *_, row in entries], self.summary)
            for (place, seed, _), result in zip(entries, results, strict=True):
                runs[place][seed] = result
        return runs

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
        places, seeds = self._seeds_of(point)
        return list(zip(places, self.drawn.rows(config, spec, seeds, requests), strict=True))

    def _seeds_of(self, point: int) -> tuple[list[int], list[int]]:
        """Return the places of a point's planned runs, and their seeds."""
        planned: list[int] = np.flatnonzero(self.plan.is_planned[point]).tolist()
        every = self.plan.sizes.all_seeds
        return planned, [every[self.plan.places[point, place]] for place in planned]

    def covariates(self, points: range) -> np.ndarray:
        """Measure features of the requests in the baseline's runs `[point, place, covariate]`; else NaN."""
        measured = np.full((len(points), *self.plan.places.shape[1:], len(COVARIATES)), np.nan)
        for row, point in enumerate(points):
            if self.plan.roles[point] == BASELINE:
                rate = self.spec.aggregate_rate
                assert rate is not None
                for place, run in self._rows(point):
                    measured[row, place] = covariates(run.table, rate)
        return measured

    def _runner_for(self, instances: int) -> Runner:
        if instances not in self.runners:
            pools = [axis.low for axis in self.plan.axes if axis.name == "kv_blocks"]
            self.runners[instances] = part_runner(int(min(*pools, MOST_BLOCKS)) if pools else None)
        return self.runners[instances]


def fill(
    plan: DatasetPlan,
    spec: WorkloadSpec,
    experiment: Experiment,
    store: DatasetStore,
    done: np.ndarray,
    is_told: bool,
) -> int:
    """Run the parts that are not `done`, and write them to the store; return the exit code."""
    runner = DatasetRunner(plan, spec, experiment)
    num_planned = int(plan.is_planned.sum())
    num_done = int(plan.is_planned[done].sum())
    started, num_before = time.monotonic(), num_done
    simulating = progress.phase("simulating", num_planned, done=num_done)
    with cli.resumable("sweeps.dataset", store.path), simulating as work:
        for points in unmade_parts(done, plan.points_per_part):
            store.fill(points.start, runner.run(points), runner.covariates(points))
            part = slice(points.start, points.stop)
            num_done += int(plan.is_planned[part][~done[part]].sum())
            work.show(num_done)
    if is_told:
        seconds = time.monotonic() - started
        render.show_answer(
            Answer.of(
                f"Runs of {len(plan.codes)} points, of which a surrogate can be learned?",
                f"Written: {store.path}",
                f"{num_planned} runs; points of training, calibration and test are drawn apart.",
                f"{num_planned - num_before} runs in {seconds:.0f} s.",
                f"blis-jax surrogate train {store.path}",
            )
        )
    return 0


# --- the command ----------------------------------------------------------------------------------


FIRST_OWN_SEED, OWN_DECK = 1_000_000, 1024  # far from any pool
_OF_POINTS = ("sizes", "points")  # two datasets of one population may differ there
OF_RUN = ("tokens_per_sec", "requests_per_s", "class_fairness", "num_preemptions", "cache_hit_rate")
OF_CLASS = (
    *(f"{latency}_{what}_ms" for latency in ("ttft", "e2e") for what in ("mean", "p50", "p90", "p99")),
    "goodput_rps",
    "slo_miss_rate",
    "reject_rate",
)  # fmt: skip


def fill_dataset(options: DatasetOptions, command: str) -> int:
    """Run the points that the options describe, and write them; return the exit code."""
    options.check_part(options.output)
    strategy, sizes, axes = options.load(), sizes_of(options), read_axes(options.vary or "")
    path = _path(options)

    space = space_of(strategy)
    count = options.num_requests or space.num_requests
    spec, name = workload_for(options.workload, [strategy], count, rate=options.rate, follows=False)
    check_axes(axes, spec, [dimension.target for dimension in space.dimensions])
    baseline = _baseline(options, axes)
    plan = make_plan(space, axes, sizes, options.random_state, baseline)
    check_seeds(sizes.all_seeds, options.rng)
    requests = StudyRequests(spec, sizes.all_seeds, options.rng, name)
    names = _metrics(options.metrics, requests)
    experiment = Experiment(requests, names, targets_of(strategy))
    store = DatasetStore(path, plan, names)
    if options.plan:
        render.show_answer(
            Answer.of(
                "What would be run?",
                f"{len(plan.codes)} points, {plan.is_planned.sum()} runs, {len(names)} metrics",
                "the points are those that the same options run.",
                "nothing was run.",
                "leave out --plan to run them.",
                cluster_line({strategy.name: space.base}, space.settings),
            )
        )
        return 0
    about = _about(strategy, plan, experiment)
    about["command"] = command
    outside = np.zeros(len(plan.codes), bool)
    if options.part is not None:
        about |= options.part.attributes(("point",))
        outside = options.part.is_outside(len(plan.codes))
    with sole_writer(path):
        done = store.open(about, options.resume) | outside
        is_told = not options.quiet and options.part is None
        fill(plan, spec, experiment, store, done, is_told)
    if options.part is not None and not options.quiet:
        total = len(plan.codes)
        said = options.part.answer(path, len(options.part.of(total)), total, "points")
        render.show_answer(said)
    return 0


# --- input ----------------------------------------------------------------------------------------


def sizes_of(options: DatasetOptions) -> DatasetSizes:
    """Return the numbers of points and seeds, checked."""
    has_own = options.own_seeds > 0
    usual_first = FIRST_OWN_SEED if has_own else FIRST_SEED[options.rng]
    usual_seeds = OWN_DECK if has_own else options.usual_seeds
    seeds = usual_seeds if options.seeds is None else options.seeds
    of_training = (
        options.usual_train_seeds
        if options.seeds is None
        else min(options.usual_train_seeds, seeds)
    )
    sizes = DatasetSizes(
        train=options.points,
        calibration=options.calibration,
        test=options.test,
        seeds=seeds,
        train_seeds=of_training if options.train_seeds is None else options.train_seeds,
        other_points=options.other_points,
        first_seed=usual_first if options.first_seed is None else options.first_seed,
        branch=options.branch,
        own_seeds=options.own_seeds,
    )
    sizes.check()
    return sizes


def _baseline(options: DatasetOptions, axes: Sequence[Dimension]) -> Arm | None:
    """Return the baseline arm if the options name one, else None."""
    if options.baseline is None:
        if options.own_seeds:
            raise ConfigError(
                "--own-seeds: what a seed does is learned beside a baseline; give --baseline"
            )
        return None
    changed = [axis.name for axis in axes if BY_NAME[axis.name].is_workload]
    if changed:
        raise ConfigError(
            f"--baseline: {changed[0]} changes the requests of every point, so a seed has no level of "
            "its own; leave out --baseline, or this part of --vary"
        )
    return arm_of(options.baseline)


def _path(options: DatasetOptions) -> Path:
    usual = f"{FOLDER}/{options.stem}.zarr"
    return outputs_of(options, usual, (".zarr",), is_kept=lambda path: options.plan).result


def _metrics(listed: str | None, requests: StudyRequests) -> tuple[str, ...]:
    usual = *OF_RUN, *OF_CLASS, *names_in(OF_CLASS, requests.classes)
    return metrics_for(listed, requests.classes) or usual


def _about(strategy: Strategy, plan: DatasetPlan, experiment: Experiment) -> dict[str, str]:
    """Return the dataset's attributes: all that its numbers depend on, and a hash of these."""
    base, sizes, requests = plan.space.base, plan.sizes, experiment.requests
    content = {
        "mechanism": all_values(base),
        "parameters": [entry.model_dump(mode="json") for entry in strategy.parameters],
        "overrides": [entry.model_dump(mode="json") for entry in strategy.overrides],
        "workload": requests.content()["workload"],
        "sizes": dataclasses.asdict(sizes),
        "vary": [[axis.name, axis.low, axis.high] for axis in plan.axes],
        "rng": requests.stream,
        "metrics": list(experiment.names),
        "targets": {} if strategy.targets is None else strategy.model_dump(mode="json")["targets"],
        "points": fingerprint([plan.codes.tolist()]),
        "baseline": None if plan.baseline is None else all_values(plan.baseline.config),
        "versions": list(versions().values()),
    }
    text = json.dumps(content, sort_keys=True)
    common = {name: value for name, value in content.items() if name not in _OF_POINTS}
    pool = [sizes.first_seed, sizes.seeds]
    return {
        "world": fingerprint([common]),
        "population": fingerprint([common, pool]),
        "baseline": "" if plan.baseline is None else plan.baseline.name,
        "workload": json.dumps(requests.source.content()),
        "strategy": strategy.name,
        "content": text,
        "identity": fingerprint([text]),
    }
