"""`python -m sweeps.dataset STRATEGY --output DATA.zarr`: runs all over a space, for a surrogate."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blis_jax.backend import prepare_backend
from blis_jax.cluster.setting_values import all_values
from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, OutputSwitches, option, switch
from blis_jax.commands.options.outputs import outputs_of
from blis_jax.commands.options.seed_options import FIRST_SEED
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import fingerprint, sole_writer, versions
from blis_jax.metrics.metric import names_in
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from sweeps.runs.options import FOLDER, ArmRequests, StrategyWord

if TYPE_CHECKING:
    from sweeps.dataset.axes import DescriptorAxis
    from sweeps.dataset.plan import DatasetPlan, DatasetSizes
    from sweeps.runs.experiment import Experiment
    from sweeps.runs.requests import StudyRequests
    from sweeps.strategies.arms import Arm
    from sweeps.strategies.file import Strategy

NAME = "sweeps.dataset"
NUM_SEEDS, TRAIN_SEEDS = 64, 8

_DESCRIPTION = """\
Run points all over a strategy's space on a pool of seeds and keep every run, for surrogate.train.
Training points fill the space evenly and have a few seeds each; calibration and test points are
independent draws and have them all. Points are written as they end: a command that was stopped goes
on with --resume and ends with the same file.
"""
_EXAMPLES = """\
examples:
  the space of the ledger's iteration 8:
    %(prog)s iter08_token_budget --output out/iter08.zarr

  with the load and the cluster as further inputs:
    %(prog)s iter08_token_budget --vary rate=1000:3000,arrival_cv=1:3,instances=6:12

  what seeds outside that pool do, for intervals that hold for any seeds:
    %(prog)s iter08_token_budget --own-seeds 32 --points 256 --calibration 1024 --test 1024 \\
      --baseline iter00_baseline --output out/iter08_seeds.zarr

  small, to try:
    %(prog)s iter08_token_budget --points 64 --calibration 32 --test 32 --seeds 8 --train-seeds 4
"""


class _Sizes(CommandOptions, title="sizes"):
    """Options for the number of points of each role, and of their seeds."""

    points: int = option(cli.whole, 3072, "N", "training points, a Sobol sequence")
    calibration: int = option(cli.whole, 512, "N", "calibration points, independent draws")
    test: int = option(cli.whole, 1024, "N", "test points, independent draws")
    seeds: int | None = option(cli.whole, None, "N", "seeds of the pool", shown=NUM_SEEDS)
    train_seeds: int | None = option(
        cli.whole, None, "N", "seeds of the pool for each training point, in turns", shown=TRAIN_SEEDS,
    )  # fmt: skip
    other_points: int = option(
        cli.whole, 0, "N", "test points also run on as many seeds of another pool"
    )
    first_seed: int | None = option(
        cli.whole, None, "N",
        "first seed of the pool; the others follow (default: 0; 42, which is BLIS's, with --rng reference)",
    )  # fmt: skip
    branch: int = option(
        cli.at_least(0), 0, "N",
        "further calibration points, and as many test points, at which a limit is off (prefill_crit 0), a "
        "branch that draws hardly meet",
    )  # fmt: skip
    own_seeds: int = option(
        cli.at_least(0), 0, "N",
        "seeds of each point, of a deck of --seeds that its role alone has; 0 for one pool",
    )  # fmt: skip
    random_state: int = option(cli.at_least(0), 0, "N", "seed of the points")


class _Requests(ArmRequests, title="requests"):
    """Options for the requests of every point, and for the metrics that are kept."""

    vary: str | None = option(
        str, None, "LIST",
        "descriptors that vary too, NAME=LOW:HIGH,… of rate, arrival_cv, share_CLASS, input_scale, "
        "output_scale, prefix_share, kv_blocks, instances, token_budget",
    )  # fmt: skip
    baseline: str | None = option(
        str, None, "ARM",
        "a strategy that is run on every seed, so that a surrogate predicts differences from it and knows what "
        "a seed does",
    )  # fmt: skip
    metrics: str | None = option(
        str, None, "LIST",
        "metrics to keep, each of every class (default: latency means and percentiles, goodput, throughput, "
        "misses, rejections)",
    )  # fmt: skip
    rng: str = option(
        cli.one_of("reference", "jax"), "jax", "NAME",
        "who draws the requests: jax as blis_jax.sweep does, or reference as BLIS does",
    )  # fmt: skip


class _Switches(OutputSwitches, title="switches"):
    """The switch that only plans the points."""

    plan: bool = switch("print how many runs there would be, and stop")


FIRST_OWN_SEED, OWN_DECK = 1_000_000, 1024  # far from any pool
_OF_POINTS = ("sizes", "points")  # two datasets of one population may differ there
OF_RUN = ("tokens_per_sec", "requests_per_s", "class_fairness", "num_preemptions", "cache_hit_rate")
OF_CLASS = (
    *(f"{latency}_{what}_ms" for latency in ("ttft", "e2e") for what in ("mean", "p50", "p90", "p99")),
    "goodput_rps",
    "slo_miss_rate",
    "reject_rate",
)  # fmt: skip


class DatasetOptions(
    StrategyWord, _Sizes, _Requests, _Switches,
    title="output", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    output: str | None = option(str, None, "PATH", "store, .zarr (default: out/STRATEGY.zarr)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _dataset, arguments)


def _dataset(arguments: Sequence[str] | None) -> int:
    options = DatasetOptions.read(arguments)
    prepare_backend(use_cache=not options.no_cache)
    strategy, sizes, axes = options.load(), sizes_of(options), _axes(options.vary)
    path = _path(options)

    from sweeps.dataset.axes import check_axes
    from sweeps.dataset.plan import make_plan
    from sweeps.dataset.store import DatasetStore, fill
    from sweeps.runs.experiment import Experiment, targets_of
    from sweeps.runs.requests import StudyRequests, check_seeds, workload_for
    from sweeps.strategies.space import space_of

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
            )
        )
        return 0
    about = _about(strategy, plan, experiment)
    about["command"] = cli.command_text(NAME, arguments)
    with sole_writer(path):
        done = store.open(about, options.resume)
        return fill(plan, spec, experiment, store, done, not options.quiet)


# --- input ----------------------------------------------------------------------------------------


def sizes_of(options: DatasetOptions) -> DatasetSizes:
    """Return how many points and seeds there are, checked."""
    from sweeps.dataset.plan import DatasetSizes

    has_own = options.own_seeds > 0
    usual_first = FIRST_OWN_SEED if has_own else FIRST_SEED[options.rng]
    usual_seeds = OWN_DECK if has_own else NUM_SEEDS
    seeds = usual_seeds if options.seeds is None else options.seeds
    of_training = TRAIN_SEEDS if options.seeds is None else min(TRAIN_SEEDS, seeds)
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
    from sweeps.dataset.axes import read_axes

    return read_axes(vary or "")


def _baseline(options: DatasetOptions, axes: Sequence[DescriptorAxis]) -> Arm | None:
    """The baseline, if one is given."""
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
    from sweeps.strategies.arms import arm_of

    return arm_of(options.baseline)


def _path(options: DatasetOptions) -> Path:
    usual = f"{FOLDER}/{options.stem}.zarr"
    return outputs_of(options, usual, (".zarr",), is_kept=lambda path: options.plan).result


def _metrics(listed: str | None, requests: StudyRequests) -> tuple[str, ...]:
    from sweeps.runs.experiment import metrics_for

    usual = *OF_RUN, *OF_CLASS, *names_in(OF_CLASS, requests.classes)
    return metrics_for(listed, requests.classes) or usual


def _about(strategy: Strategy, plan: DatasetPlan, experiment: Experiment) -> dict[str, str]:
    """The attributes: what the numbers depend on, and a hash of it."""
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


if __name__ == "__main__":
    sys.exit(main())
