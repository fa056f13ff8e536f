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
from blis_jax.commands.store import Store
from blis_jax.errors import ConfigError, reads_store
from blis_jax.files.atomic_write import fingerprint, sole_writer, versions
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.words import cluster_line
from blis_jax.results.schema import NOT_RUN, Provenance, new_dataset, outcome_attributes
from blis_jax.workload.spec import WorkloadSpec
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
from sweeps.runs.drawn import MOST_BLOCKS, MOST_REQUESTS_KEPT, DrawnRows, part_runner
from sweeps.runs.experiment import Experiment, metrics_for, targets_of
from sweeps.runs.options import FOLDER
from sweeps.runs.requests import StudyRequests, check_seeds, workload_for
from sweeps.strategies.arms import Arm, arm_of
from sweeps.strategies.space import Dimension, space_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from sweeps.dataset.__main__ import DatasetOptions
    from sweeps.strategies.file import Strategy


# --- the store ------------------------------------------------------------------------------------


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

    def content(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return by name all that the dataset's numbers depend on, with a hash."""
        content: Mapping[str, Any] = json.loads(attributes["content"])
        return {**content, "identity": attributes["identity"]}


# --- runs ------------------------------------------------------------------------------------------


class DatasetRunner:
    """Run points on their seeds; each mechanism and number of instances is compiled once."""

    def __init__(self, plan: DatasetPlan, experiment: Experiment) -> None:
        """Take the plan; the experiment's workload is the one before points change it."""
        self.plan, self.experiment = plan, experiment
        tables = DrawnRows(experiment.requests.stream, MOST_REQUESTS_KEPT)
        self.experiment = dataclasses.replace(experiment, tables=tables)
        self.experiments: dict[int, Experiment] = {}

    def run(self, points: range) -> dict[str, np.ndarray]:
        """Run the points; return the arrays of the store for them."""
        planned, places = (
            of_all[points.start : points.stop]
            for of_all in (self.plan.is_planned, self.plan.places)
        )
        served = [self._point(point) for point in points]
        runs: dict[tuple[int, int], RunSummary] = {}
        for instances in dict.fromkeys(config.num_instances for config, _ in served):
            rows = [row for row, (at, _) in enumerate(served) if at.num_instances == instances]
            configs, sources = zip(*(served[row] for row in rows), strict=True)
            wanted = [
                (at, seed)
                for at, row in enumerate(rows)
                for seed in places[row, planned[row]].tolist()
            ]
            experiment = self._experiment_with(instances)
            for finished in experiment.each(configs, experiment.result, wanted, sources):
                runs.update(((rows[at], seed), run) for (at, seed), run in finished)
        names = self.experiment.names
        outcome = np.where(planned, NOT_RUN, NOT_PLANNED).astype(np.int8)
        value = np.full((*planned.shape, len(names)), np.nan, np.float32)
        for row, place in np.argwhere(planned).tolist():
            run = runs[row, int(places[row, place])]
            outcome[row, place] = run.outcome
            if run.is_whole:
                value[row, place] = [run.metrics[name] for name in names]
        return {"value": value, "covariates": self._covariates(points), "outcome": outcome}

    def _point(self, point: int) -> tuple[ClusterConfig, WorkloadSpec]:
        """Return a point's configuration and workload."""
        spec = self.experiment.requests.source
        assert isinstance(spec, WorkloadSpec)
        if self.plan.roles[point] == BASELINE:
            assert self.plan.baseline is not None
            return self.plan.baseline.config, spec
        parameters, descriptors = self.plan.values(point)
        config = config_at(self.plan.space.config_with(parameters), descriptors)
        return config, workload_at(spec, descriptors)

    def _covariates(self, points: range) -> np.ndarray:
        """Measure features of the requests in the baseline's runs `[point, place, covariate]`; else NaN."""
        measured = np.full((len(points), *self.plan.places.shape[1:], len(COVARIATES)), np.nan)
        for row, point in enumerate(points):
            if self.plan.roles[point] == BASELINE:
                config, spec = self._point(point)
                assert spec.aggregate_rate is not None
                for place in np.flatnonzero(self.plan.is_planned[point]).tolist():
                    seed = self.experiment.seeds[self.plan.places[point, place]]
                    (run,) = self.experiment.rows(config, [seed])
                    measured[row, place] = covariates(run.table, spec.aggregate_rate)
        return measured

    def _experiment_with(self, instances: int) -> Experiment:
        """Return the experiment with the compiled programs of a number of instances."""
        if instances not in self.experiments:
            pools = [axis.low for axis in self.plan.axes if axis.name == "kv_blocks"]
            runner = part_runner(int(min(*pools, MOST_BLOCKS)) if pools else None)
            self.experiments[instances] = dataclasses.replace(self.experiment, shared=runner)
        return self.experiments[instances]


def fill(
    plan: DatasetPlan,
    experiment: Experiment,
    store: DatasetStore,
    points_left: np.ndarray,
    is_outside: np.ndarray,
    is_told: bool,
) -> None:
    """Run the points that are left, part by part, and write them to the store."""
    num_planned = plan.is_planned.sum(axis=1)
    left, total = num_planned * points_left, int(num_planned[~is_outside].sum())
    num_left, started = int(left.sum()), time.monotonic()
    simulating = progress.phase("simulating", total, done=total - num_left)
    with cli.resumable("sweeps.dataset", store.path), simulating as work:
        store.fill(DatasetRunner(plan, experiment).run, left, plan.points_per_part, work)
    if is_told:
        seconds = time.monotonic() - started
        render.show_answer(
            Answer.of(
                f"Runs of {len(plan.codes)} points, of which a surrogate can be learned?",
                f"Written: {store.path}",
                f"{total} runs; points of training, calibration and test are drawn apart.",
                f"{num_left} runs in {seconds:.0f} s.",
                f"blis-jax surrogate train {store.path}",
            )
        )


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
        points_left = ~(store.open(about, options.resume) | outside)
        is_told = not options.quiet and options.part is None
        fill(plan, experiment, store, points_left, outside, is_told)
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
