"""`python -m sweeps.dataset STRATEGY --output DATA.zarr`: runs all over a space, for a surrogate."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags.seed_options import FIRST_SEED
from blis_jax.commands.flags.shared_options import switches
from blis_jax.errors import ConfigError
from blis_jax.files.overwriting import refuse_existing
from blis_jax.files.process_lock import sole_writer

if TYPE_CHECKING:
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.dataset.axes import DescriptorAxis
    from sweeps.dataset.plan import DatasetPlan, DatasetSizes
    from sweeps.strategies.arms import Arm
    from sweeps.strategies.file import Strategy

NAME = "sweeps.dataset"

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
_SIZES = (
    Flag("points", cli.whole, 3072, "N", "training points, a Sobol sequence"),
    Flag("calibration", cli.whole, 512, "N", "calibration points, independent draws"),
    Flag("test", cli.whole, 1024, "N", "test points, independent draws"),
    Flag("seeds", cli.whole, 64, "N", "seeds of the pool"),
    Flag("train-seeds", cli.whole, 8, "N", "seeds of the pool for each training point, in turns"),
    Flag(
        "other-points", cli.whole, 0, "N", "test points also run on as many seeds of another pool"
    ),
    Flag(
        "first-seed",
        cli.whole,
        None,
        "N",
        "first seed of the pool; the others follow (default: 0; "
        "42, which is BLIS's, with --rng reference)",
    ),
    Flag(
        "branch",
        cli.at_least(0),
        0,
        "N",
        "further calibration points, and as many test points, at which a "
        "limit is off (prefill_crit 0), a branch that draws hardly meet",
    ),
    Flag(
        "own-seeds",
        cli.at_least(0),
        0,
        "N",
        "seeds of each point, of a deck of --seeds that its role alone has; 0 for one pool",
    ),
    Flag("random-state", cli.at_least(0), 0, "N", "seed of the points"),
)
_REQUESTS = (
    Flag("vary", str, None, "LIST", "descriptors that vary too, NAME=LOW:HIGH,… of rate, arrival_cv, "
         "share_CLASS, input_scale, output_scale, prefix_share, kv_blocks, instances, token_budget"),
    Flag("workload", str, None, "NAME", "built-in workload or .yaml file (default: the strategy's)"),
    Flag("baseline", str, None, "ARM", "a strategy that is run on every seed, so that a surrogate predicts "
         "differences from it and knows what a seed does"),
    Flag("num-requests", cli.whole, None, "N", "requests in place of the workload's number"),
    Flag("metrics", str, None, "LIST", "metrics to keep, each of every class (default: latency "
         "means and percentiles, goodput, throughput, misses, rejections)"),
    Flag("rng", cli.one_of("reference", "jax"), "jax", "NAME",
         "who draws the requests: jax as blis_jax.sweep does, or reference as BLIS does"),
)  # fmt: skip
_SWITCHES = {
    "resume": "go on where the command was stopped",
    "overwrite": "replace an existing dataset",
    "plan": "print how many runs there would be, and stop",
    **switches("quiet", "no-cache"),
}
FIRST_OWN_SEED, OWN_DECK = 1_000_000, 1024  # far from any pool
_OF_POINTS = ("sizes", "points")  # two datasets of one population may differ there
OF_RUN = ("tokens_per_sec", "requests_per_s", "class_fairness", "num_preemptions", "cache_hit_rate")
OF_CLASS = (
    *(f"{latency}_{what}_ms" for latency in ("ttft", "e2e") for what in ("mean", "p50", "p90", "p99")),
    "goodput_rps",
    "slo_miss_rate",
    "reject_rate",
)  # fmt: skip


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("strategy", metavar="STRATEGY", nargs="?", help="name or path")
    parser.add_flags("sizes", _SIZES)
    parser.add_flags("requests", _REQUESTS)
    parser.add_flags(
        "output", (Flag("output", str, None, "PATH", "store, .zarr (default: out/STRATEGY.zarr)"),)
    )
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _dataset, arguments)


def _dataset(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = _parser().given(words)
    prepare_backend(use_cache="no_cache" not in given)
    strategy, sizes, axes = _strategy(given), _sizes(given), _axes(given)
    path = _path(given)

    from sweeps.dataset.axes import check_axes
    from sweeps.dataset.parts import fill
    from sweeps.dataset.plan import make_plan
    from sweeps.dataset.store import DatasetStore
    from sweeps.runs.bench import check_seeds, measure_of, targets_of, workload_from, workload_of
    from sweeps.strategies.space import space_of

    space = space_of(strategy)
    count = given.get("num_requests") or space.num_requests
    if "workload" in given:
        spec = workload_from(given["workload"], "--workload", num_requests=count)
    else:
        spec = workload_of(strategy, count)
    check_axes(axes, spec, [dimension.target for dimension in space.dimensions])
    stream = given.get("rng", "jax")
    baseline = _baseline(given, axes)
    plan = make_plan(space, axes, sizes, given.get("random_state", 0), baseline)
    check_seeds(sizes.all_seeds, stream)
    names = _metrics(given, spec)
    measure = measure_of(targets_of(strategy), spec)
    store = DatasetStore(path, plan, names)
    if "plan" in given:
        print(f"{len(plan.codes)} points, {plan.is_planned.sum()} runs, {len(names)} metrics")
        return 0
    about = _about(strategy, spec, plan, stream, names)
    about["command"] = cli.command_text(NAME, words)
    with sole_writer(path):
        done = store.open(about, "resume" in given)
        runner_of = (spec, stream, names, measure)
        return fill(plan, runner_of, store, done, "quiet" not in given)


# --- input ----------------------------------------------------------------------------------------


def _strategy(given: Mapping[str, Any]) -> Strategy:
    from sweeps.strategies.file import list_library, load_strategy

    if given.get("strategy") is None:
        raise ConfigError(
            f"no strategy is given; give one of {', '.join(list_library())}, or a .yaml file"
        )
    return load_strategy(given["strategy"])


def _sizes(given: Mapping[str, Any]) -> DatasetSizes:
    from sweeps.dataset.plan import DatasetSizes

    values = {flag.name.split("/")[0].replace("-", "_"): flag.default for flag in _SIZES}
    values["first_seed"] = FIRST_SEED[given.get("rng", "jax")]
    if given.get("own_seeds"):
        values |= {"first_seed": FIRST_OWN_SEED, "seeds": OWN_DECK}
    values |= {name: given[name] for name in values if name in given}
    if "seeds" in given and "train_seeds" not in given:
        values["train_seeds"] = min(values["train_seeds"], values["seeds"])
    del values["random_state"]
    sizes = DatasetSizes(train=values.pop("points"), **values)
    sizes.check()
    return sizes


def _axes(given: Mapping[str, Any]) -> tuple[DescriptorAxis, ...]:
    from sweeps.dataset.axes import read_axes

    return read_axes(given.get("vary", ""))


def _baseline(given: Mapping[str, Any], axes: Sequence[DescriptorAxis]) -> Arm | None:
    """The baseline, if one is given."""
    if "baseline" not in given:
        if given.get("own_seeds"):
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

    return arm_of(given["baseline"])


def _path(given: Mapping[str, Any]) -> Path:
    path = Path(given.get("output", f"out/{Path(given['strategy']).stem}.zarr"))
    if path.suffix != ".zarr":
        raise ConfigError(f"--output: {str(path)!r} must end in .zarr")
    cli.check_writable(path, is_folder=True)
    refuse_existing(given, {"--output": None if "plan" in given else path}, can_resume=True)
    return path


def _metrics(given: Mapping[str, Any], spec: WorkloadSpec) -> tuple[str, ...]:
    from sweeps.runs.options import classes_of, metrics_for

    classes = classes_of(spec)
    chosen = metrics_for(given, classes)
    if chosen is not None:
        return chosen
    by_class = [f"{name}[{slo_class}]" for slo_class in classes for name in OF_CLASS]
    return (*OF_RUN, *OF_CLASS, *by_class)


def _about(
    strategy: Strategy, spec: WorkloadSpec, plan: DatasetPlan, stream: str, names: Sequence[str]
) -> dict[str, str]:
    """The attributes: what the numbers depend on, and a hash of it."""
    from blis_jax.cluster.setting_values import all_values
    from blis_jax.files.resuming import fingerprint, versions
    from sweeps.search.loop import workload_content

    base, sizes = plan.space.base, plan.sizes
    content = {
        "mechanism": all_values(base),
        "parameters": [entry.model_dump(mode="json") for entry in strategy.parameters],
        "overrides": [entry.model_dump(mode="json") for entry in strategy.overrides],
        "workload": workload_content(spec),
        "sizes": dataclasses.asdict(sizes),
        "vary": [[axis.kind.name, axis.low, axis.high] for axis in plan.axes],
        "rng": stream,
        "metrics": list(names),
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
        "workload": json.dumps(spec.content()),
        "strategy": strategy.name,
        "content": text,
        "identity": fingerprint([text]),
    }


if __name__ == "__main__":
    sys.exit(main())
