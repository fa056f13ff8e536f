"""Fill the dataset that options of `sweeps.dataset` describe: its points, its runs, and its attributes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.cluster.setting_values import all_values
from blis_jax.commands.options.outputs import outputs_of
from blis_jax.commands.options.seed_options import FIRST_SEED
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import fingerprint, sole_writer, versions
from blis_jax.metrics.metric import names_in
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.words import cluster_line
from sweeps.dataset.axes import check_axes, read_axes
from sweeps.dataset.plan import DatasetSizes, make_plan
from sweeps.dataset.store import DatasetStore, fill
from sweeps.runs.experiment import Experiment, metrics_for, targets_of
from sweeps.runs.options import FOLDER
from sweeps.runs.requests import StudyRequests, check_seeds, workload_for
from sweeps.strategies.arms import arm_of
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from sweeps.dataset.__main__ import DatasetOptions
    from sweeps.dataset.axes import DescriptorAxis
    from sweeps.dataset.plan import DatasetPlan
    from sweeps.strategies.arms import Arm
    from sweeps.strategies.file import Strategy


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
    strategy, sizes, axes = options.load(), sizes_of(options), _axes(options.vary)
    path = _path(options)

    space = space_of(strategy)
    count = options.num_requests or space.num_requests
    spec, name = workload_for(options.workload, [strategy], count, rate=options.rate)
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
    with sole_writer(path):
        done = store.open(about, options.resume)
        return fill(plan, spec, experiment, store, done, not options.quiet)


# --- input ----------------------------------------------------------------------------------------


def sizes_of(options: DatasetOptions) -> DatasetSizes:
    """Return how many points and seeds there are, checked."""
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


def _axes(vary: str | None) -> tuple[DescriptorAxis, ...]:
    return read_axes(vary or "")


def _baseline(options: DatasetOptions, axes: Sequence[DescriptorAxis]) -> Arm | None:
    """Return the baseline, if one is given."""
    if options.baseline is None:
        if options.own_seeds:
            raise ConfigError(
                "--own-seeds: what a seed does is learned beside a baseline; give --baseline"
            )
        return None
    changed = [axis.kind.name for axis in axes if axis.kind.is_workload]
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
    """Return the attributes: what the numbers depend on, and a hash of it."""
    base, sizes, requests = plan.space.base, plan.sizes, experiment.requests
    content = {
        "mechanism": all_values(base),
        "parameters": [entry.model_dump(mode="json") for entry in strategy.parameters],
        "overrides": [entry.model_dump(mode="json") for entry in strategy.overrides],
        "workload": requests.content()["workload"],
        "sizes": dataclasses.asdict(sizes),
        "vary": [[axis.kind.name, axis.low, axis.high] for axis in plan.axes],
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
